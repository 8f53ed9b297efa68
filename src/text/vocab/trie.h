/* trie.h - texts by their bytes: which of them begin at a place. One hash table of edges (node, byte) to node;
 * building and walking cost one look-up per byte. Texts are short (NBL_TRIE_LONGEST): who looks for the longest text from
 * every place of another text does at most that many steps from each. */
#ifndef NBL_TRIE_H
#define NBL_TRIE_H

#include "text/vocab/vocab.h"

enum { NBL_TRIE_LONGEST = 1024 }; /* bytes; the longest token of a published tokenizer has about 130 */

typedef struct nbl__trie_edge {
    uint32_t from; /* node + 1; 0: a free slot */
    uint32_t byte;
    uint32_t to;
} nbl__trie_edge;

typedef struct nbl__trie {
    nbl_context *ctx;
    nbl__trie_edge *edges;
    size_t slots, used;
    int32_t *values; /* by node; -1: no text ends here */
    size_t nodes, room;
} nbl__trie;

nbl_status nbl__trie_open(nbl_context *ctx, nbl__trie *trie);
void nbl__trie_close(nbl__trie *trie);
/* A text that is there already gets the new value. One that is too long is refused; `where` opens the message. */
nbl_status nbl__trie_add(nbl__trie *trie, const char *where, const char *text, size_t size, int32_t value);

enum { NBL_TRIE_ROOT = 0 };
/* The node behind a byte, or -1. */
static inline int64_t nbl__trie_step(const nbl__trie *trie, uint32_t node, unsigned char byte)
{
    size_t slot = nbl__hash_pair(node, byte) & (trie->slots - 1);
    for (;; slot = (slot + 1) & (trie->slots - 1)) {
        const nbl__trie_edge *edge = &trie->edges[slot];
        if (edge->from == 0) return -1;
        if (edge->from == node + 1 && edge->byte == byte) return edge->to;
    }
}

#endif
