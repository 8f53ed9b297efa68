/* arena.h - an arena: many small allocations with one lifetime, freed together.
 *
 * Allocations are zeroed, aligned to 16 bytes, and never move. An arena belongs to one thread at
 * a time. */
#ifndef NBL_ARENA_H
#define NBL_ARENA_H

#include "base/base.h"

typedef struct nbl__arena {
    nbl_context *ctx;
    struct nbl__arena_chunk *chunks; /* newest first */
} nbl__arena;

static inline nbl__arena nbl__arena_make(nbl_context *ctx)
{
    return (nbl__arena){ctx, NULL};
}
/* `size` zeroed bytes. NULL and a recorded failure if memory has run out. */
void *nbl__arena_alloc(nbl__arena *arena, size_t size);
char *nbl__arena_strdup(nbl__arena *arena, const char *text);
__attribute__((format(printf, 2, 3))) char *nbl__arena_printf(nbl__arena *arena, const char *format, ...);
/* Invalidates all allocations; keeps the newest chunk for the next ones. */
void nbl__arena_clear(nbl__arena *arena);
void nbl__arena_free(nbl__arena *arena);

#endif
