/* trie.c - builds a trie; see trie.h.
 *
 * The tokens "a", "ab" and "bc" with the values 5, 6, 7:
 *
 *     node 0 (root) ──a──▶ node 1 (5) ──b──▶ node 2 (6)
 *                   └─b──▶ node 3 (-1) ──c──▶ node 4 (7)
 *
 *     values   [-1, 5, 6, -1, 7]              one per node
 *     edges    (0,a)→1 (1,b)→2 (0,b)→3 (3,c)→4   in a hash table by (node, byte)
 *
 * The hash table of edges doubles when it is half full, so a search always meets a free slot. Nodes
 * are numbered in the order in which they are made. */
#include "text/vocab/trie.h"

/* Adds a node without a value. */
static nbl_status add_node(nbl__trie *t, uint32_t *node)
{
    if (t->nodes == t->room) {
        size_t room = t->room * 2;
        int32_t *values = nbl__alloc_array(t->ctx, room, sizeof *values);
        if (values == NULL) return NBL_ERROR_MEMORY;
        memcpy(values, t->values, t->nodes * sizeof *values);
        nbl__free(t->ctx, t->values, t->room * sizeof *values);
        t->values = values;
        t->room = room;
    }
    assert(t->nodes < t->room);
    t->values[t->nodes] = -1;
    *node = (uint32_t)t->nodes++;
    return NBL_OK;
}

/* Puts an edge into a table that has a free slot. */
static void insert(nbl__trie_edge *edges, size_t slots, nbl__trie_edge edge)
{
    size_t slot = nbl__hash_pair(edge.from - 1, edge.byte) & (slots - 1);
    while (edges[slot].from) slot = (slot + 1) & (slots - 1);
    edges[slot] = edge;
}

/* Adds an edge that is not in the table yet. */
static nbl_status add_edge(nbl__trie *t, nbl__trie_edge edge)
{
    if (2 * (t->used + 1) > t->slots) {
        size_t slots = t->slots * 2;
        NBL_CHECK(t->ctx, slots < UINT32_MAX, NBL_ERROR_UNSUPPORTED, "a vocabulary of %zu bytes", t->used);
        nbl__trie_edge *edges = nbl__alloc_array(t->ctx, slots, sizeof *edges);
        if (edges == NULL) return NBL_ERROR_MEMORY;
        for (size_t i = 0; i < t->slots; i++)
            if (t->edges[i].from) insert(edges, slots, t->edges[i]);
        nbl__free(t->ctx, t->edges, t->slots * sizeof *edges);
        t->edges = edges;
        t->slots = slots;
    }
    assert(2 * (t->used + 1) <= t->slots && edge.from > 0);
    insert(t->edges, t->slots, edge);
    t->used++;
    return NBL_OK;
}

nbl_status nbl__trie_open(nbl_context *ctx, nbl__trie *t)
{
    uint32_t root;
    *t = (nbl__trie){.ctx = ctx, .slots = 256, .room = 64};
    NBL_TRY(NBL_ALLOC(ctx, t->edges, t->slots));
    NBL_TRY(NBL_ALLOC(ctx, t->values, t->room));
    return add_node(t, &root);
}

void nbl__trie_close(nbl__trie *t)
{
    if (t->edges) nbl__free(t->ctx, t->edges, t->slots * sizeof *t->edges);
    if (t->values) nbl__free(t->ctx, t->values, t->room * sizeof *t->values);
    *t = (nbl__trie){.ctx = t->ctx};
}

/* Walks along the text from the root, and makes the nodes that are missing. */
nbl_status nbl__trie_add(nbl__trie *t, const char *where, const char *text, size_t size, int32_t value)
{
    NBL_CHECK(t->ctx, size <= NBL_TRIE_LONGEST, NBL_ERROR_UNSUPPORTED,
              "%s: the token \"%.40s...\" has %zu bytes; at most %d are supported", where, text, size,
              NBL_TRIE_LONGEST);
    uint32_t node = NBL_TRIE_ROOT;
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        int64_t next = nbl__trie_step(t, node, byte);
        if (next < 0) {
            uint32_t fresh;
            NBL_TRY(add_node(t, &fresh));
            NBL_TRY(add_edge(t, (nbl__trie_edge){node + 1, byte, fresh}));
            next = fresh;
        }
        node = (uint32_t)next;
    }
    t->values[node] = value;
    return NBL_OK;
}
