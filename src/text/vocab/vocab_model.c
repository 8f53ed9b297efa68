/* vocab_model.c - the shared parts of tokenizer models, and the models WordPiece and WordLevel; see
 * vocab_model.h.
 *
 *     WordLevel   a piece is a token, or the unknown token
 *     WordPiece   "unaffable" ─▶ "una" "##ffa" "##ble": the longest token from each position */
#include "text/vocab/vocab_model.h"

#include <stdio.h>

#include "text/chars.h"

void nbl__vocab_model_close(nbl__vocab_model *m)
{
    nbl__vocab_close(&m->vocab);
    nbl__free(m->ctx, m->merges, m->merge_slots * sizeof *m->merges);
    nbl__free(m->ctx, m->scores, m->score_count * sizeof *m->scores);
    nbl__trie_close(&m->trie);
}

void nbl__vocab_scratch_free(nbl__vocab_scratch *s)
{
    for (int i = 0; i < 3; i++) nbl__free(s->ctx, s->memory[i], s->room[i]);
    nbl__bytes_free(s->ctx, &s->text);
    nbl__ids_free(s->ctx, &s->ids);
}

/* Fills the two tables that make look-ups of frequent keys an index: byte tokens <0x00> … <0xFF>,
 * and the tokens of single characters below the size of `single`. */
void nbl__vocab_model_finish(nbl__vocab_model *m)
{
    for (int i = 0; i < 256; i++) {
        char name[8];
        snprintf(name, sizeof name, "<0x%02X>", i);
        m->bytes[i] = nbl__vocab_find(&m->vocab, name, 6);
    }
    for (uint32_t c = 0; c < sizeof m->single / sizeof *m->single; c++) {
        char text[4];
        m->single[c] = nbl__vocab_find(&m->vocab, text, (size_t)nbl__char_put(text, c));
    }
}

/* Appends the unknown token. */
static nbl_status unknown(const nbl__vocab_model *m, nbl__ids *ids)
{
    NBL_CHECK(m->ctx, m->unknown >= 0, NBL_ERROR_FORMAT,
              "tokenizer.json: the text holds an unknown word, and unk_token \"%s\" is not in vocab",
              m->unknown_text);
    return nbl__ids_add(m->ctx, ids, m->unknown);
}

/* WordLevel: the whole piece is one token. */
static nbl_status wordlevel_run(const nbl__vocab_model *m, const char *text, size_t size, nbl__ids *ids)
{
    int32_t id = nbl__vocab_find(&m->vocab, text, size);
    return id >= 0 ? nbl__ids_add(m->ctx, ids, id) : unknown(m, ids);
}

/* WordPiece, greedy: the longest token from each position. A token inside a word has the prefix
 * ("##") in the vocabulary. If a position has no token, the whole word becomes the unknown token.
 * Quadratic in the length of a word, which longest_word bounds. */
nbl_status nbl__wordpiece_run(const nbl__vocab_model *m, nbl__vocab_scratch *s, const char *text, size_t size,
                              nbl__ids *ids)
{
    size_t before = ids->count;
    int64_t characters = 0;
    for (size_t i = 0; i < size; i++) characters += nbl__is_char_start(text[i]);
    if (characters > m->longest_word) return unknown(m, ids);
    s->text.size = 0;
    NBL_TRY(nbl__bytes_add(m->ctx, &s->text, m->prefix.text, m->prefix.size));
    NBL_TRY(nbl__bytes_reserve(m->ctx, &s->text, size));
    for (size_t begin = 0; begin < size;) {
        size_t end = size;
        int32_t id = -1;
        /* s->text is the prefix and the rest of the word: its prefixes are the keys to look up. */
        memcpy(s->text.data + m->prefix.size, text + begin, size - begin);
        for (; end > begin; end = (size_t)(nbl__char_back(text + begin, text + end) - text)) {
            id = begin ? nbl__vocab_find(&m->vocab, s->text.data, m->prefix.size + end - begin)
                       : nbl__vocab_find(&m->vocab, text, end);
            if (id >= 0) break;
        }
        if (id < 0) {
            ids->count = before;
            return unknown(m, ids);
        }
        NBL_TRY(nbl__ids_add(m->ctx, ids, id));
        begin = end;
    }
    return NBL_OK;
}

nbl_status nbl__vocab_model_run(const nbl__vocab_model *m, nbl__vocab_scratch *s, const char *text,
                                size_t size, nbl__ids *ids)
{
    switch (m->kind) {
    case NBL_VOCAB_MODEL_BPE: return nbl__bpe_run(m, s, text, size, ids);
    case NBL_VOCAB_MODEL_UNIGRAM: return nbl__unigram_run(m, s, text, size, ids);
    case NBL_VOCAB_MODEL_WORDPIECE: return nbl__wordpiece_run(m, s, text, size, ids);
    case NBL_VOCAB_MODEL_SCORED: return nbl__scored_run(m, s, text, size, ids);
    case NBL_VOCAB_MODEL_WORDLEVEL: break;
    }
    return wordlevel_run(m, text, size, ids);
}
