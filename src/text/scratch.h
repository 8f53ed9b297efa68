/* scratch.h - growing arrays for the work of one thread: bytes, pieces of text, ids.
 *
 * Each array is {items, count, room}; zero bytes are a valid empty array. An owner resets an array
 * by setting its count to 0 and keeps the memory for the next text. So a thread stops allocating
 * after the first few texts. An array is not safe to share between threads.
 *
 * The functions named _add append. They return NBL_ERROR_MEMORY when memory runs out, and leave the
 * array as it was. Appending may move the items: pointers into an array are invalid afterwards. */
#ifndef NBL_SCRATCH_H
#define NBL_SCRATCH_H

#include "base/base.h"

/* Grows the array *memory so that `needed` elements fit. *room is the capacity in elements and is
 * updated. `size` is the bytes per element. The first `used` elements are kept, the others are
 * lost. Growth is by half at least, so n appends cost O(n) in total. Does nothing if the array is
 * large enough. */
nbl_status nbl__scratch_grow(nbl_context *ctx, void **memory, size_t *room, size_t used, size_t needed,
                             size_t size);

/* Text under construction: data[0..size). It is not terminated by a zero byte. */
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

/* A span of a text: an added token whose id is known, or text that is still to be split.
 *
 * `origin` serves one rule, Metaspace with prepend_scheme "first": the replacement character is put
 * only in front of the piece that begins where the input begins. origin > 0 marks that piece. */
typedef struct nbl__piece {
    size_t begin, size; /* bytes; `begin` is an offset into the text that the list belongs to */
    size_t origin;      /* number of leading bytes that stem from the input's first character */
    int32_t id;         /* id of the added token; -1: text to be split */
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

/* Token ids. */
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
