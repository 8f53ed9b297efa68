/* vocab.h - tokens by text and by id: two hash tables with open addressing over one list. Ids may have gaps. */
#ifndef NBL_VOCAB_H
#define NBL_VOCAB_H

#include "base/arena.h"

typedef struct nbl__token {
    const char *text; /* not terminated: it may hold zero bytes */
    uint32_t size;
    int32_t id;
} nbl__token;

typedef struct nbl__vocab {
    nbl_context *ctx;
    nbl__token *tokens; /* in the order they came */
    size_t count, room;
    uint32_t *by_text, *by_id; /* index + 1 into tokens; 0: free */
    size_t slots;              /* of each table, a power of two */
} nbl__vocab;

/* For at most `count` tokens. */
nbl_status nbl__vocab_open(nbl_context *ctx, nbl__vocab *vocab, size_t count);
void nbl__vocab_close(nbl__vocab *vocab);
/* The text is borrowed. A text that is there already gets the new id and keeps its old one by number, too;
 * an id that is there already keeps its first text. */
void nbl__vocab_add(nbl__vocab *vocab, const char *text, size_t size, int32_t id);
/* The id of a text, or -1. */
int32_t nbl__vocab_find(const nbl__vocab *vocab, const char *text, size_t size);
/* The index of a text in `tokens`, or -1. */
int64_t nbl__vocab_index(const nbl__vocab *vocab, const char *text, size_t size);
/* The token of an id, or NULL. */
const nbl__token *nbl__vocab_get(const nbl__vocab *vocab, int32_t id);

static inline uint64_t nbl__hash_bytes(const char *text, size_t size)
{
    uint64_t h = 0x9e3779b97f4a7c15u ^ (size * 0xff51afd7ed558ccdu), block;
    for (; size >= 8; size -= 8, text += 8) {
        memcpy(&block, text, 8);
        h = (h ^ block) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    block = 0;
    if (size) memcpy(&block, text, size);
    h = (h ^ block) * 0xc4ceb9fe1a85ec53u;
    h ^= h >> 29;
    h *= 0x9e3779b97f4a7c15u;
    return h ^ h >> 32;
}

static inline uint64_t nbl__hash_pair(uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 29;
}

#endif
