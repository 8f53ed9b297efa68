/* vocab_scored.c - SentencePiece BPE of GGUF vocabularies, as llama.cpp runs it.
 *
 * Two neighbours can merge if their joined text is a token. The pair with the highest score merges
 * first; of equal scores the leftmost. Symbols that are not tokens in the end become the tokens of
 * their bytes. The symbols are a linked list, the pairs a heap, as in vocab_bpe.c. Cost: O(n log n)
 * for n characters. */
#include "text/chars.h"
#include "text/vocab/vocab_model.h"

typedef struct symbol {
    size_t begin, size;    /* bytes; size 0: merged into the left neighbour */
    int32_t before, after; /* indices of the neighbours; -1: none */
} symbol;

typedef struct candidate {
    double score;
    int32_t left, right; /* indices of the symbols */
    size_t size;         /* bytes of both symbols when the pair was added; a different size now: stale */
} candidate;

typedef struct merging {
    const nbl__vocab_model *model;
    const char *text;
    symbol *symbols;
    candidate *heap; /* the next pair first */
    size_t count;
} merging;

/* The order of the heap: higher scores first, of equal scores the one further left. */
static bool is_sooner(const candidate *a, const candidate *b)
{
    return a->score != b->score ? a->score > b->score : a->left < b->left;
}

/* A binary heap: items[(at - 1) / 2] is the parent of items[at]. */
static void push(merging *g, candidate item)
{
    size_t at = g->count++;
    for (; at > 0 && is_sooner(&item, &g->heap[(at - 1) / 2]); at = (at - 1) / 2)
        g->heap[at] = g->heap[(at - 1) / 2];
    g->heap[at] = item;
}

static candidate pop(merging *g)
{
    candidate top = g->heap[0], item = g->heap[--g->count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < g->count; at = child) {
        if (child + 1 < g->count && is_sooner(&g->heap[child + 1], &g->heap[child])) child++;
        if (!is_sooner(&g->heap[child], &item)) break;
        g->heap[at] = g->heap[child];
    }
    g->heap[at] = item;
    return top;
}

/* Adds the pair of symbol `left` and its right neighbour to the heap, if the joined text is a
 * token. */
static void push_candidate(merging *g, int32_t left)
{
    int32_t right = left < 0 ? -1 : g->symbols[left].after;
    if (right < 0) return;
    size_t size = g->symbols[left].size + g->symbols[right].size;
    int32_t id = nbl__vocab_find(&g->model->vocab, g->text + g->symbols[left].begin, size);
    if (id < 0 || (size_t)id >= g->model->score_count) return;
    push(g, (candidate){g->model->scores[id], left, right, size});
}

/* Appends the id of a symbol, or the ids of its bytes. A byte without a token becomes the unknown
 * token. */
static nbl_status add(const nbl__vocab_model *m, const char *text, size_t size, nbl__ids *ids)
{
    int32_t id = nbl__vocab_find(&m->vocab, text, size);
    if (id >= 0) return nbl__ids_add(m->ctx, ids, id);
    for (size_t i = 0; i < size; i++) {
        id = m->bytes[(unsigned char)text[i]];
        NBL_TRY(nbl__ids_add(m->ctx, ids, id >= 0 ? id : m->unknown));
    }
    return NBL_OK;
}

/* The same steps as vocab_bpe.c: symbols, candidates, merges, ids. A candidate is stale if the
 * sizes of its symbols have changed, since a symbol only ever grows or disappears. */
nbl_status nbl__scored_run(const nbl__vocab_model *m, nbl__vocab_scratch *s, const char *text, size_t size,
                           nbl__ids *ids)
{
    NBL_CHECK(m->ctx, size < INT32_MAX / 8, NBL_ERROR_UNSUPPORTED,
              "a piece of text of %zu bytes without a split", size);
    NBL_TRY(nbl__scratch_grow(s->ctx, &s->memory[0], &s->room[0], 0, size * sizeof(symbol), 1));
    NBL_TRY(nbl__scratch_grow(s->ctx, &s->memory[1], &s->room[1], 0, 3 * size * sizeof(candidate), 1));
    merging g = {m, text, s->memory[0], s->memory[1], 0};
    int32_t n = 0;
    for (size_t at = 0; at < size; n++) {
        size_t length = (size_t)nbl__char_length(text + at);
        g.symbols[n] = (symbol){at, length, n - 1, n + 1};
        at += length;
    }
    g.symbols[n - 1].after = -1;
    for (int32_t i = 0; i + 1 < n; i++) push_candidate(&g, i);
    for (size_t steps = 1; g.count; steps++) {
        if (steps % 65536 == 0) NBL_TRY(nbl__progress_poll_here(m->ctx, "tokenizing"));
        candidate top = pop(&g);
        symbol *left = &g.symbols[top.left], *right = &g.symbols[top.right];
        if (left->size == 0 || right->size == 0 || left->size + right->size != top.size) continue;
        left->size += right->size;
        right->size = 0;
        left->after = right->after;
        if (left->after >= 0) g.symbols[left->after].before = top.left;
        push_candidate(&g, left->before);
        push_candidate(&g, top.left);
    }
    for (int32_t i = 0; i >= 0; i = g.symbols[i].after)
        NBL_TRY(add(m, text + g.symbols[i].begin, g.symbols[i].size, ids));
    return NBL_OK;
}
