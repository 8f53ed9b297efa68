/* trie.h - a trie over the bytes of texts: finds which of them begin at a position of another text.
 *
 * The edges (node, byte) -> node are in one hash table with open addressing. Adding a text and
 * walking along a text cost one look-up per byte. Texts have at most NBL_TRIE_LONGEST bytes. This
 * bounds the search for the longest match from every position: NBL_TRIE_LONGEST steps per
 * position. */
#ifndef NBL_TRIE_H
#define NBL_TRIE_H

#include "text/vocab/vocab.h"

enum { NBL_TRIE_LONGEST = 1024 }; /* bytes; the longest token of a published tokenizer has about 130 */

typedef struct nbl__trie_edge {
    uint32_t from; /* node + 1; 0: a free slot */
    uint32_t byte; /* 0 to 255 */
    uint32_t to;   /* node */
} nbl__trie_edge;

typedef struct nbl__trie {
    nbl_context *ctx;
    nbl__trie_edge *edges;
    size_t slots, used; /* slots: a power of two, at least twice the edges used */
    int32_t *values;    /* by node; -1: no text ends here */
    size_t nodes, room; /* number of nodes, and capacity of `values` */
} nbl__trie;

/* Makes a trie with the root node only. After an error nbl__trie_close is still to be called. */
nbl_status nbl__trie_open(nbl_context *ctx, nbl__trie *trie);
void nbl__trie_close(nbl__trie *trie);
/* Adds a text with a value >= 0. A text that is known gets the new value. Fails for a text longer
 * than NBL_TRIE_LONGEST, with a message that begins with `where`. The text is not kept. */
nbl_status nbl__trie_add(nbl__trie *trie, const char *where, const char *text, size_t size, int32_t value);

enum { NBL_TRIE_ROOT = 0 };
/* Returns the node that `byte` leads to from `node`, or -1. */
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
