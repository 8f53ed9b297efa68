/* duplicates.c - a hash set with linear probing. See duplicates.h. */
#include "data/duplicates.h"

typedef struct hash {
    uint64_t a, b;
} hash;

/* Two independent 64-bit multiply-xor chains. Both take every word. */
static void mix(hash *h, uint32_t word)
{
    h->a = (h->a ^ word) * 0xff51afd7ed558ccdu;
    h->a ^= h->a >> 32;
    h->b = (h->b + word + 0x9e3779b97f4a7c15u) * 0xc4ceb9fe1a85ec53u;
    h->b ^= h->b >> 29;
}

/* The hash of an example; never {0, 0}, which marks a free slot. */
static hash hash_of(const int32_t *ids, const int32_t *labels, int64_t count)
{
    hash h = {0x243f6a8885a308d3u ^ (uint64_t)count, 0x13198a2e03707344u + (uint64_t)count};
    for (int64_t i = 0; i < count; i++) {
        mix(&h, (uint32_t)ids[i]);
        mix(&h, (uint32_t)labels[i]);
    }
    if (h.a == 0 && h.b == 0) h.b = 1;
    return h;
}

/* The slot that holds the hash, else the free slot where it belongs. A third of the slots is
 * free, so the search ends. */
static uint64_t *slot_of(const nbl__duplicates *seen, hash h)
{
    uint64_t i = h.a & (uint64_t)(seen->room - 1);
    while ((seen->slots[i][0] || seen->slots[i][1]) && (seen->slots[i][0] != h.a || seen->slots[i][1] != h.b))
        i = (i + 1) & (uint64_t)(seen->room - 1);
    return seen->slots[i];
}

/* Doubles the table and inserts all hashes again. */
static nbl_status grow(nbl__duplicates *seen, nbl_context *ctx)
{
    nbl__duplicates wider = {.count = seen->count, .room = seen->room ? seen->room * 2 : 1024};
    NBL_TRY(NBL_ALLOC(ctx, wider.slots, wider.room));
    for (int64_t i = 0; i < seen->room; i++) {
        hash h = {seen->slots[i][0], seen->slots[i][1]};
        if (h.a || h.b) memcpy(slot_of(&wider, h), seen->slots[i], sizeof *seen->slots);
    }
    nbl__duplicates_free(seen, ctx);
    *seen = wider;
    return NBL_OK;
}

nbl_status nbl__duplicates_add(nbl__duplicates *seen, nbl_context *ctx, const int32_t *ids,
                               const int32_t *labels, int64_t count, bool *fresh)
{
    if (3 * (seen->count + 1) > 2 * seen->room) NBL_TRY(grow(seen, ctx));
    hash h = hash_of(ids, labels, count);
    uint64_t *slot = slot_of(seen, h);
    *fresh = slot[0] == 0 && slot[1] == 0;
    if (!*fresh) return NBL_OK;
    slot[0] = h.a;
    slot[1] = h.b;
    seen->count++;
    return NBL_OK;
}

void nbl__duplicates_free(nbl__duplicates *seen, nbl_context *ctx)
{
    nbl__free(ctx, seen->slots, (size_t)seen->room * sizeof *seen->slots);
    *seen = (nbl__duplicates){0};
}
