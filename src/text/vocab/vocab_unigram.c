/* vocab_unigram.c - Unigram: of all splits of a piece into tokens, the one with the highest sum of
 * scores.
 *
 * Algorithm (Viterbi): node i holds the best split of the first i bytes. One pass from left to
 * right extends the best split of each node by every token that begins there. The tokens come from
 * a trie. The split is then read backwards from the last node.
 *
 * Ties: the split that was found first stays, and sums are computed in upstream's order, so that
 * rounding is the same. Consecutive unknown characters become one unknown token.
 *
 * Cost: bytes of the piece * length of the longest token. */
#include "text/chars.h"
#include "text/vocab/vocab_model.h"

static const double unknown_penalty = 10; /* score of an unknown character: lowest - 10 */

typedef struct node {
    double score; /* sum of the scores of the best split */
    int64_t from; /* offset where the last token of the best split begins; -1: not reached */
    int32_t id;   /* the last token */
} node;

nbl_status nbl__unigram_build(nbl__vocab_model *m, const char *where)
{
    NBL_TRY(nbl__trie_open(m->ctx, &m->trie));
    m->lowest = __builtin_inf();
    for (size_t i = 0; i < m->vocab.count; i++) {
        const nbl__token *token = &m->vocab.tokens[i];
        /* Of two tokens with the same text the last counts. */
        NBL_TRY(nbl__trie_add(&m->trie, where, token->text, token->size, token->id));
        if (m->scores[i] < m->lowest) m->lowest = m->scores[i];
    }
    return NBL_OK;
}

/* Replaces the best split of a node if the new one is better. */
static void reach(node *to, double score, size_t from, int32_t id)
{
    if (to->from >= 0 && !(score > to->score)) return;
    *to = (node){score, (int64_t)from, id};
}

/* Fills the nodes from left to right. */
static nbl_status find_best(const nbl__vocab_model *m, const char *text, size_t size, node *nodes)
{
    double unknown_score = m->lowest - unknown_penalty;
    for (size_t begin = 0, steps = 0; begin < size;) {
        if (++steps % 4096 == 0) NBL_TRY(nbl__progress_poll_here(m->ctx, "tokenizing"));
        double so_far = nodes[begin].score;
        size_t length = (size_t)nbl__char_length(text + begin);
        bool single = false;
        int64_t at = NBL_TRIE_ROOT;
        for (size_t end = begin; end < size;) {
            at = nbl__trie_step(&m->trie, (uint32_t)at, (unsigned char)text[end++]);
            if (at < 0) break;
            int32_t id = m->trie.values[at];
            if (id < 0) continue;
            reach(&nodes[end], m->scores[id] + so_far, begin, id);
            single |= end - begin == length;
        }
        if (!single) { /* no token is exactly this character: it may be unknown */
            node *to = &nodes[begin + length];
            double score = unknown_score + so_far;
            if (to->from < 0 || score > to->score) {
                NBL_CHECK(m->ctx, m->has_unknown, NBL_ERROR_FORMAT,
                          "tokenizer.json: the text holds an unknown character, and unk_id is missing");
                reach(to, score, begin, m->unknown);
            }
        }
        begin += length;
    }
    return NBL_OK;
}

/* Appends the id of a span, or the ids of its bytes, or the unknown token. A run of unknown
 * characters is looked up again, as upstream does: as a whole it can be a token. */
static nbl_status add_span(const nbl__vocab_model *m, const char *text, size_t size, nbl__ids *ids)
{
    int32_t id = nbl__vocab_find(&m->vocab, text, size);
    if (id >= 0) return nbl__ids_add(m->ctx, ids, id);
    bool all = m->byte_fallback;
    for (size_t i = 0; all && i < size; i++) all = m->bytes[(unsigned char)text[i]] >= 0;
    if (!all) return nbl__ids_add(m->ctx, ids, m->unknown);
    for (size_t i = 0; i < size; i++) NBL_TRY(nbl__ids_add(m->ctx, ids, m->bytes[(unsigned char)text[i]]));
    return NBL_OK;
}

nbl_status nbl__unigram_run(const nbl__vocab_model *m, nbl__vocab_scratch *s, const char *text, size_t size,
                            nbl__ids *ids)
{
    NBL_TRY(nbl__scratch_grow(s->ctx, &s->memory[0], &s->room[0], 0, (size + 1) * sizeof(node), 1));
    NBL_TRY(nbl__scratch_grow(s->ctx, &s->memory[1], &s->room[1], 0, (size + 1) * sizeof(size_t), 1));
    node *nodes = s->memory[0];
    size_t *ends = s->memory[1], count = 0;
    for (size_t i = 0; i <= size; i++) nodes[i] = (node){0, -1, 0};
    NBL_TRY(find_best(m, text, size, nodes));
    for (size_t end = size; end > 0;) { /* backwards: ends[] gets the end of each span */
        bool unknown = m->has_unknown && nodes[end].id == m->unknown;
        ends[count++] = end;
        end = (size_t)nodes[end].from;
        while (unknown && end > 0 && nodes[end].id == m->unknown) end = (size_t)nodes[end].from;
    }
    for (size_t begin = 0; count-- > 0; begin = ends[count])
        NBL_TRY(add_span(m, text + begin, ends[count] - begin, ids));
    return NBL_OK;
}
