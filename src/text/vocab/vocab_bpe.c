/* vocab_bpe.c - byte-pair encoding (BPE).
 *
 * Algorithm:
 *     1. Each character of the piece becomes a symbol. The symbols are a linked list in an array.
 *     2. Each pair of neighbours that has a merge becomes a candidate in a heap.
 *     3. The candidate with the lowest rank is taken; of equal ranks the leftmost. Its two symbols
 *        become one. The two new pairs of neighbours become candidates.
 *     4. When the heap is empty, the symbols are the ids.
 *
 * Example with the merges "l o" (rank 0), "lo w" (rank 1), "e r" (rank 2):
 *
 *     l o w e r   ─▶   lo w e r   ─▶   low e r   ─▶   low er
 *
 * A candidate is stale if its symbols have changed since. Stale candidates stay in the heap and are
 * dropped when they are taken.
 *
 * Cost: O(n log n) for a piece of n characters. The order of all steps is upstream's, because the
 * ids depend on it. */
#include "text/chars.h"
#include "text/vocab/vocab_model.h"

typedef struct symbol {
    int32_t id;
    int32_t before, after; /* indices of the neighbours; -1: none */
    bool gone;             /* merged into its left neighbour */
} symbol;

typedef struct candidate {
    uint32_t rank;
    int32_t index; /* index of the left symbol */
    int32_t id;    /* the merged token */
} candidate;

typedef struct queue {
    candidate *items; /* binary heap, the next candidate first; room for 3 per symbol */
    size_t count;
} queue;

/* ---- merges ---- */

nbl_status nbl__bpe_open(nbl__vocab_model *m, size_t count)
{
    size_t slots = 16;
    while (slots < 2 * count) slots *= 2;
    NBL_TRY(NBL_ALLOC(m->ctx, m->merges, slots));
    m->merge_slots = slots;
    return NBL_OK;
}

/* Puts a merge into the hash table; a pair is its key. */
void nbl__bpe_add(nbl__vocab_model *m, int32_t left, int32_t right, uint32_t rank, int32_t id)
{
    size_t slot = nbl__hash_pair((uint32_t)left, (uint32_t)right) & (m->merge_slots - 1);
    nbl__bpe_merge fresh = {(uint32_t)left + 1, (uint32_t)right + 1, rank, id};
    while (m->merges[slot].left &&
           (m->merges[slot].left != fresh.left || m->merges[slot].right != fresh.right))
        slot = (slot + 1) & (m->merge_slots - 1);
    m->merges[slot] = fresh; /* of two merges of one pair the last counts */
}

/* The merge of a pair of tokens; NULL: none. */
static const nbl__bpe_merge *find_merge(const nbl__vocab_model *m, int32_t left, int32_t right)
{
    if (m->merge_slots == 0) return NULL;
    size_t slot = nbl__hash_pair((uint32_t)left, (uint32_t)right) & (m->merge_slots - 1);
    for (;; slot = (slot + 1) & (m->merge_slots - 1)) {
        const nbl__bpe_merge *merge = &m->merges[slot];
        if (merge->left == 0) return NULL;
        if (merge->left == (uint32_t)left + 1 && merge->right == (uint32_t)right + 1) return merge;
    }
}

/* ---- the heap ---- */

/* The order of the heap. */
static bool is_sooner(const candidate *a, const candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->index < b->index;
}

/* A binary heap: items[(at - 1) / 2] is the parent of items[at]. */
static void push(queue *q, candidate item)
{
    size_t at = q->count++;
    for (; at > 0 && is_sooner(&item, &q->items[(at - 1) / 2]); at = (at - 1) / 2)
        q->items[at] = q->items[(at - 1) / 2];
    q->items[at] = item;
}

static candidate pop(queue *q)
{
    candidate top = q->items[0], item = q->items[--q->count];
    size_t at = 0;
    for (size_t child; (child = 2 * at + 1) < q->count; at = child) {
        if (child + 1 < q->count && is_sooner(&q->items[child + 1], &q->items[child])) child++;
        if (!is_sooner(&q->items[child], &item)) break;
        q->items[at] = q->items[child];
    }
    q->items[at] = item;
    return top;
}

/* Adds the pair of symbol `left` and its right neighbour as a candidate, if it has a merge. */
static void push_candidate(const nbl__vocab_model *m, queue *q, const symbol *symbols, int32_t left)
{
    int32_t right = symbols[left].after;
    const nbl__bpe_merge *merge = right < 0 ? NULL : find_merge(m, symbols[left].id, symbols[right].id);
    if (merge) push(q, (candidate){merge->rank, left, merge->id});
}

/* ---- one piece ---- */

/* The symbols of a piece while it is read. */
typedef struct word {
    symbol *symbols;
    size_t count;
    int32_t unknown; /* an unknown token that is not added yet, so that others can fuse; -1: none */
} word;

/* Appends a symbol; its neighbours are the symbols beside it. */
static void add(word *w, int32_t id)
{
    int32_t n = (int32_t)w->count;
    w->symbols[w->count++] = (symbol){id, n - 1, n + 1, false};
}

/* Builds the text of a character as the vocabulary has it: the prefix in front unless the character
 * is the first, the suffix behind if it is the last. */
static nbl_status character_text(const nbl__vocab_model *m, nbl__bytes *text, const char *character,
                                 size_t size, bool first, bool last)
{
    text->size = 0;
    if (!first) NBL_TRY(nbl__bytes_add(m->ctx, text, m->prefix.text, m->prefix.size));
    NBL_TRY(nbl__bytes_add(m->ctx, text, character, size));
    return last ? nbl__bytes_add(m->ctx, text, m->suffix.text, m->suffix.size) : NBL_OK;
}

/* Handles a character that is not in the vocabulary: byte tokens, or the unknown token, or
 * nothing. */
static nbl_status add_unknown(const nbl__vocab_model *m, word *w, const char *text, size_t size)
{
    /* Byte tokens are added at once. A pending unknown token then comes after them, as upstream. */
    bool all = m->byte_fallback;
    for (size_t i = 0; all && i < size; i++) all = m->bytes[(unsigned char)text[i]] >= 0;
    if (all) {
        for (size_t i = 0; i < size; i++) add(w, m->bytes[(unsigned char)text[i]]);
        return NBL_OK;
    }
    if (!m->has_unknown) return NBL_OK; /* as upstream: the character is dropped */
    if (w->unknown >= 0 && m->fuse_unknown) return NBL_OK;
    NBL_CHECK(m->ctx, m->unknown >= 0, NBL_ERROR_FORMAT,
              "tokenizer.json: the text holds an unknown character, and unk_token \"%s\" is not in vocab",
              m->unknown_text);
    if (w->unknown >= 0) add(w, w->unknown);
    w->unknown = m->unknown;
    return NBL_OK;
}

/* Step 1: characters to symbols. */
static nbl_status read_symbols(const nbl__vocab_model *m, nbl__vocab_scratch *s, const char *text,
                               size_t size, word *w)
{
    bool plain = m->prefix.size == 0 && m->suffix.size == 0;
    for (size_t at = 0; at < size;) {
        uint32_t c;
        size_t n = (size_t)nbl__char_get(text + at, &c);
        const char *spelt = text + at;
        size_t length = n;
        int32_t id;
        if (!plain) {
            NBL_TRY(character_text(m, &s->text, text + at, n, at == 0, at + n == size));
            spelt = s->text.data;
            length = s->text.size;
            id = nbl__vocab_find(&m->vocab, spelt, length);
        } else {
            id = c < sizeof m->single / sizeof *m->single ? m->single[c]
                                                          : nbl__vocab_find(&m->vocab, spelt, n);
        }
        if (id >= 0) {
            if (w->unknown >= 0) add(w, w->unknown);
            w->unknown = -1;
            add(w, id);
        } else {
            NBL_TRY(add_unknown(m, w, spelt, length));
        }
        at += n;
    }
    if (w->unknown >= 0) add(w, w->unknown);
    return NBL_OK;
}

/* Steps 2 and 3: merges until the heap is empty. */
static nbl_status merge_all(const nbl__vocab_model *m, word *w, queue *q)
{
    symbol *symbols = w->symbols;
    symbols[w->count - 1].after = -1;
    for (size_t i = 0; i + 1 < w->count; i++) push_candidate(m, q, symbols, (int32_t)i);
    for (size_t steps = 1; q->count; steps++) {
        if (steps % 65536 == 0) NBL_TRY(nbl__progress_poll_here(m->ctx, "tokenizing"));
        candidate top = pop(q);
        symbol *left = &symbols[top.index];
        if (left->gone || left->after < 0) continue;
        symbol *right = &symbols[left->after];
        const nbl__bpe_merge *merge = find_merge(m, left->id, right->id);
        if (merge == NULL || merge->id != top.id) continue; /* stale: the pair has changed */
        left->id = top.id;
        left->after = right->after;
        right->gone = true;
        if (left->after >= 0) symbols[left->after].before = top.index;
        if (left->before >= 0) push_candidate(m, q, symbols, left->before);
        push_candidate(m, q, symbols, top.index);
    }
    return NBL_OK;
}

nbl_status nbl__bpe_run(const nbl__vocab_model *m, nbl__vocab_scratch *s, const char *text, size_t size,
                        nbl__ids *ids)
{
    if (m->ignore_merges) {
        int32_t id = nbl__vocab_find(&m->vocab, text, size);
        if (id >= 0) return nbl__ids_add(m->ctx, ids, id);
    }
    NBL_CHECK(m->ctx, size < INT32_MAX / 8, NBL_ERROR_UNSUPPORTED,
              "a piece of text of %zu bytes without a split", size);
    /* Upper bound for the symbols: one per character, plus one for a pending unknown token. With
     * byte fallback a character gives one symbol per byte, and the prefix and suffix count too. */
    size_t max = size + 1;
    if (m->byte_fallback) max += size * m->prefix.size + m->suffix.size;
    NBL_TRY(nbl__scratch_grow(s->ctx, &s->memory[0], &s->room[0], 0, max * sizeof(symbol), 1));
    word w = {s->memory[0], 0, -1};
    NBL_TRY(read_symbols(m, s, text, size, &w));
    if (w.count == 0) return NBL_OK;
    /* Room for the heap: at most n - 1 first candidates, and each of at most n - 1 merges takes one
     * out and adds up to two. */
    NBL_TRY(nbl__scratch_grow(s->ctx, &s->memory[1], &s->room[1], 0, 3 * w.count * sizeof(candidate), 1));
    queue q = {s->memory[1], 0};
    NBL_TRY(merge_all(m, &w, &q));
    for (int32_t i = 0; i >= 0; i = w.symbols[i].after) NBL_TRY(nbl__ids_add(m->ctx, ids, w.symbols[i].id));
    return NBL_OK;
}
