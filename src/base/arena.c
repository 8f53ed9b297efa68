/* arena.c - an arena is a list of chunks, newest first; allocations come from the newest.
 *
 * Chunk sizes: 2 KiB, then doubled up to 64 KiB; an allocation that is larger gets a chunk of
 * its size. The rest of a chunk that is too small for an allocation stays unused. */
#include "base/arena.h"

#include <stdarg.h>
#include <stdio.h>

struct nbl__arena_chunk {
    struct nbl__arena_chunk *next;
    size_t size, used; /* of data */
    _Alignas(16) uint8_t data[];
};

enum { FIRST_CHUNK = 2 << 10, LARGEST_CHUNK = 64 << 10, ALIGN = 16 };

void *nbl__arena_alloc(nbl__arena *arena, size_t size)
{
    /* so that rounding up cannot overflow */
    if (size > SIZE_MAX / 2) {
        nbl__fail(arena->ctx, NBL_ERROR_MEMORY, "out of memory: %zu bytes were needed", size);
        return NULL;
    }
    size = (size + ALIGN - 1) / ALIGN * ALIGN;
    /* Take the next bytes of the newest chunk, or of a new one. */
    struct nbl__arena_chunk *chunk = arena->chunks;
    if (chunk == NULL || chunk->size - chunk->used < size) {
        size_t data = chunk == NULL                 ? FIRST_CHUNK
                      : chunk->size < LARGEST_CHUNK ? chunk->size * 2
                                                    : LARGEST_CHUNK;
        if (data < size) data = size;
        chunk = nbl__alloc(arena->ctx, sizeof *chunk + data);
        if (chunk == NULL) return NULL;
        chunk->size = data;
        chunk->next = arena->chunks;
        arena->chunks = chunk;
    }
    assert(chunk->used % ALIGN == 0 && chunk->size - chunk->used >= size);
    void *piece = chunk->data + chunk->used;
    chunk->used += size;
    return piece;
}

char *nbl__arena_strdup(nbl__arena *arena, const char *text)
{
    size_t size = strlen(text) + 1;
    char *copy = nbl__arena_alloc(arena, size);
    return copy ? memcpy(copy, text, size) : NULL;
}

char *nbl__arena_printf(nbl__arena *arena, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    char *text = length < 0 ? NULL : nbl__arena_alloc(arena, (size_t)length + 1);
    if (text) vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(arguments);
    return text;
}

void nbl__arena_clear(nbl__arena *arena)
{
    struct nbl__arena_chunk *kept = arena->chunks;
    if (kept == NULL) return;
    arena->chunks = kept->next;
    nbl__arena_free(arena);
    assert(kept->used <= kept->size);
    /* Allocations must be zeroed; bytes beyond `used` still are. */
    memset(kept->data, 0, kept->used);
    kept->used = 0;
    kept->next = NULL;
    arena->chunks = kept;
}

void nbl__arena_free(nbl__arena *arena)
{
    while (arena->chunks) {
        struct nbl__arena_chunk *chunk = arena->chunks;
        arena->chunks = chunk->next;
        nbl__free(arena->ctx, chunk, sizeof *chunk + chunk->size);
    }
}
