/* pack_examples.c - best-fit bin packing.
 *
 * The room of a bin is what is left of its capacity. Bins with equal room are in one linked list. A
 * tree of bit sets over the amounts of room finds the smallest sufficient amount. So an item costs
 * O(log64 capacity), whatever the number of bins.
 *
 *   level 2   |........|          a bit: the word below is not empty
 *   level 1   |........|........|
 *   level 0   room 0 … capacity   a bit: some bin has exactly this room */
#include "data/data_parts.h"

enum { LEVELS = 6 /* enough for 64^6 amounts of room */ };

typedef struct rooms {
    uint64_t *levels[LEVELS];
    int64_t words[LEVELS];
    int depth;
    int64_t *heads; /* [capacity + 1] first bin of the list for that room; -1: the list is empty */
    int64_t *next;  /* [bins] the next bin of the same list, or -1 */
} rooms;

/* Sets the bits for `room` at all levels. */
static void mark(rooms *r, int64_t room)
{
    for (int level = 0; level < r->depth; level++, room /= 64)
        r->levels[level][room / 64] |= UINT64_C(1) << (room % 64);
}

/* Clears the bit for `room`, and those above it while the words below are empty. */
static void unmark(rooms *r, int64_t room)
{
    for (int level = 0; level < r->depth; level++, room /= 64) {
        r->levels[level][room / 64] &= ~(UINT64_C(1) << (room % 64));
        if (r->levels[level][room / 64]) return;
    }
}

/* The smallest room >= size that a bin has, or -1. */
static int64_t find_room(const rooms *r, int64_t size)
{
    int level = 0;
    for (;; level++, size = size / 64 + 1) { /* up, until the word has a bit at `size` or above */
        if (level == r->depth || size / 64 >= r->words[level]) return -1;
        uint64_t word = r->levels[level][size / 64] >> (size % 64);
        if (word == 0) continue;
        size += __builtin_ctzll(word);
        break;
    }
    /* down, to the lowest bit of each word */
    for (; level > 0; level--) size = size * 64 + __builtin_ctzll(r->levels[level - 1][size]);
    return size;
}

/* Adds a bin to the list for its room. */
static void put_bin(rooms *r, int64_t bin, int64_t room)
{
    r->next[bin] = r->heads[room];
    r->heads[room] = bin;
    mark(r, room);
}

/* Removes the first bin of the list for `room`, which must not be empty. */
static int64_t take_bin(rooms *r, int64_t room)
{
    int64_t bin = r->heads[room];
    r->heads[room] = r->next[bin];
    if (r->heads[room] < 0) unmark(r, room);
    return bin;
}

/* Allocates lists and as many levels as capacity + 1 amounts need; the topmost has one word. */
static nbl_status open_rooms(nbl_context *ctx, rooms *r, int64_t capacity, int64_t items)
{
    NBL_TRY(NBL_ALLOC(ctx, r->heads, capacity + 1));
    NBL_TRY(NBL_ALLOC(ctx, r->next, items));
    for (int64_t i = 0; i <= capacity; i++) r->heads[i] = -1;
    for (int64_t bits = capacity + 1; r->depth < LEVELS; bits = r->words[r->depth++]) {
        r->words[r->depth] = nbl__ceil_div(bits, 64);
        NBL_TRY(NBL_ALLOC(ctx, r->levels[r->depth], r->words[r->depth]));
        if (r->words[r->depth] == 1) return r->depth++, NBL_OK;
    }
    return NBL_OK;
}

static void close_rooms(nbl_context *ctx, rooms *r, int64_t capacity, int64_t items)
{
    nbl__free(ctx, r->heads, (size_t)(capacity + 1) * sizeof *r->heads);
    nbl__free(ctx, r->next, (size_t)items * sizeof *r->next);
    for (int i = 0; i < LEVELS; i++) nbl__free(ctx, r->levels[i], (size_t)r->words[i] * sizeof *r->levels[i]);
}

nbl_status nbl__pack_best_fit(nbl_context *ctx, const int32_t *sizes, int64_t items, int64_t capacity,
                              int64_t *bin, int64_t *count)
{
    rooms r = {0};
    *count = 0;
    nbl_status status = open_rooms(ctx, &r, capacity, items);
    for (int64_t i = 0; status == NBL_OK && i < items; i++) {
        int64_t room = find_room(&r, sizes[i]);
        bin[i] = room < 0 ? (*count)++ : take_bin(&r, room);
        room = (room < 0 ? capacity : room) - sizes[i];
        if (room > 0) put_bin(&r, bin[i], room);
    }
    close_rooms(ctx, &r, capacity, items);
    return status;
}
