/* vocab.h - a vocabulary: finds tokens by text and by id.
 *
 *     tokens    one list, in the order of insertion
 *     by_text   hash table: text -> index + 1 into tokens
 *     by_id     hash table: id -> index + 1 into tokens
 *
 * Both tables use open addressing with linear probing and are at most half full. A look-up is O(1)
 * plus the hash of the text. Ids may have gaps. The capacity is fixed when the vocabulary is
 * opened. Texts are borrowed: they must outlive the vocabulary. */
#ifndef NBL_VOCAB_H
#define NBL_VOCAB_H

#include "base/arena.h"

typedef struct nbl__token {
    const char *text; /* may contain zero bytes; need not be terminated */
    uint32_t size;
    int32_t id;
} nbl__token;

typedef struct nbl__vocab {
    nbl_context *ctx;
    nbl__token *tokens; /* in the order of insertion */
    size_t count, room;
    uint32_t *by_text, *by_id; /* index + 1 into tokens; 0: free */
    size_t slots;              /* of each table, a power of two */
} nbl__vocab;

/* Allocates a vocabulary for up to `count` tokens. */
nbl_status nbl__vocab_open(nbl_context *ctx, nbl__vocab *vocab, size_t count);
void nbl__vocab_close(nbl__vocab *vocab);
/* Adds a token; there must be room for it. If the text is known, looking up the text now gives the
 * new id; looking up the old id still gives the text. If the id is known, it keeps its first
 * text. */
void nbl__vocab_add(nbl__vocab *vocab, const char *text, size_t size, int32_t id);
/* Returns the id of a text, or -1. */
int32_t nbl__vocab_find(const nbl__vocab *vocab, const char *text, size_t size);
/* Returns the index of a text in `tokens`, or -1. */
int64_t nbl__vocab_index(const nbl__vocab *vocab, const char *text, size_t size);
/* Returns the token of an id, or NULL. */
const nbl__token *nbl__vocab_get(const nbl__vocab *vocab, int32_t id);

/* Hash of a text, eight bytes per step. Not seeded, and not safe against chosen collisions. */
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

/* Hash of two numbers. */
static inline uint64_t nbl__hash_pair(uint32_t a, uint32_t b)
{
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9e3779b97f4a7c15u;
    h ^= h >> 32;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 29;
}

#endif
