/* scratch.h - growing memory of one thread's work: bytes, pieces of text, ids. Kept from one text to the
 * next, so that after the first few texts nothing is allocated. */
#ifndef NBL_SCRATCH_H
#define NBL_SCRATCH_H

#include "base/base.h"

/* Grows *memory of *room elements of `size` bytes so that `needed` fit, keeping `used` of them. */
nbl_status nbl__scratch_grow(nbl_context *ctx, void **memory, size_t *room, size_t used, size_t needed,
                             size_t size);

/* Text under construction. */
typedef struct nbl__bytes {
    char *data;
    size_t size, room;
} nbl__bytes;

static inline nbl_status nbl__bytes_reserve(nbl_context *ctx, nbl__bytes *b, size_t more)
{
    if (b->room - b->size >= more) return NBL_OK;
    return nbl__scratch_grow(ctx, (void **)&b->data, &b->room, b->size, b->size + more, 1);
}
static inline nbl_status nbl__bytes_add(nbl_context *ctx, nbl__bytes *b, const char *data, size_t size)
{
    NBL_TRY(nbl__bytes_reserve(ctx, b, size));
    if (size) memcpy(b->data + b->size, data, size);
    b->size += size;
    return NBL_OK;
}
static inline void nbl__bytes_free(nbl_context *ctx, nbl__bytes *b)
{
    nbl__free(ctx, b->data, b->room);
    *b = (nbl__bytes){0};
}

/* A stretch of a text: a token already, or yet to be split. */
typedef struct nbl__piece {
    size_t begin, size;
    size_t origin; /* how many of its leading bytes stem from the very first character of the input */
    int32_t id;    /* of an added token, or -1 */
} nbl__piece;

typedef struct nbl__pieces {
    nbl__piece *items;
    size_t count, room;
} nbl__pieces;

static inline nbl_status nbl__pieces_add(nbl_context *ctx, nbl__pieces *p, nbl__piece piece)
{
    if (p->count == p->room)
        NBL_TRY(nbl__scratch_grow(ctx, (void **)&p->items, &p->room, p->count, p->count + 1, sizeof piece));
    p->items[p->count++] = piece;
    return NBL_OK;
}
static inline void nbl__pieces_free(nbl_context *ctx, nbl__pieces *p)
{
    nbl__free(ctx, p->items, p->room * sizeof *p->items);
    *p = (nbl__pieces){0};
}

typedef struct nbl__ids {
    int32_t *items;
    size_t count, room;
} nbl__ids;

static inline nbl_status nbl__ids_add(nbl_context *ctx, nbl__ids *list, int32_t id)
{
    if (list->count == list->room)
        NBL_TRY(nbl__scratch_grow(ctx, (void **)&list->items, &list->room, list->count, list->count + 1,
                                  sizeof id));
    list->items[list->count++] = id;
    return NBL_OK;
}
static inline void nbl__ids_free(nbl_context *ctx, nbl__ids *list)
{
    nbl__free(ctx, list->items, list->room * sizeof *list->items);
    *list = (nbl__ids){0};
}

#endif
