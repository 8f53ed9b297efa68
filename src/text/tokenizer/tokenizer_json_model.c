/* tokenizer_json_model.c - reads the part "model" of tokenizer.json: BPE, Unigram, WordPiece,
 * WordLevel.
 *
 * Each model's options are those of upstream. Token texts stay in the arena of the JSON document,
 * which is the tokenizer's; the vocabulary borrows them. */
#include "text/tokenizer/tokenizer.h"

static const char part[] = "model";

/* Reads a member that must be an object or a list, according to `type`. */
static nbl_status want(nbl__tokenizer_reader *r, const nbl__json *model, const char *key, nbl__json_type type,
                       const nbl__json **value)
{
    *value = nbl__json_get(model, key);
    NBL_CHECK(r->ctx, *value, NBL_ERROR_FORMAT, "%s: model: \"%s\" is missing", r->where, key);
    NBL_CHECK(r->ctx, (*value)->type == type, NBL_ERROR_FORMAT, "%s: model: \"%s\" is not %s", r->where, key,
              type == NBL_JSON_OBJECT ? "an object" : "a list");
    return NBL_OK;
}

/* Reads the vocabulary, an object {text: id, ...}. Two texts with one id are an error. */
static nbl_status read_vocab(nbl__tokenizer_reader *r, const nbl__json *model)
{
    nbl__vocab_model *m = &r->tokenizer->model;
    const nbl__json *vocab;
    NBL_TRY(want(r, model, "vocab", NBL_JSON_OBJECT, &vocab));
    NBL_TRY(nbl__vocab_open(r->ctx, &m->vocab, (size_t)vocab->count));
    for (int64_t i = 0; i < vocab->count; i++) {
        const nbl__json *item = &vocab->items[i];
        int32_t id;
        NBL_CHECK(r->ctx, nbl__json_id(item, &id), NBL_ERROR_FORMAT,
                  "%s: model: vocab: the id of \"%s\" is not a natural number below 2147483647", r->where,
                  item->key);
        const nbl__token *other = nbl__vocab_get(&m->vocab, id);
        NBL_CHECK(r->ctx, other == NULL, NBL_ERROR_FORMAT,
                  "%s: model: vocab: \"%s\" and \"%s\" have the same id %d", r->where, other->text, item->key,
                  id);
        nbl__vocab_add(&m->vocab, item->key, item->key_size, id);
    }
    m->size = vocab->count;
    return NBL_OK;
}

/* Reads unk_token. A text that is not in the vocabulary is an error only when it is needed. */
static nbl_status read_unknown(nbl__tokenizer_reader *r, const nbl__json *model, nbl__presence need)
{
    nbl__vocab_model *m = &r->tokenizer->model;
    nbl__slice text = {NULL, 0};
    NBL_TRY(nbl__get_text(r, part, model, "unk_token", need, &text));
    m->has_unknown = text.text != NULL;
    m->unknown_text = text.text ? text.text : "";
    m->unknown = text.text ? nbl__vocab_find(&m->vocab, text.text, text.size) : -1;
    return NBL_OK;
}

/* ---- BPE ---- */

/* Fails for a merge whose parts or result are no tokens. */
static nbl_status merge_missing(nbl__tokenizer_reader *r, int64_t index, const char *text, size_t size)
{
    return nbl__fail(r->ctx, NBL_ERROR_FORMAT,
                     "%s: model: merges: merge %" PRId64
                     " needs the token \"%.*s\", which vocab does not have",
                     r->where, index, (int)size, text);
}

/* Splits a merge into its two texts. A merge is ["a", "b"], or in older files "a b". */
static bool split_merge(const nbl__json *item, nbl__slice *left, nbl__slice *right)
{
    if (item->type == NBL_JSON_ARRAY) {
        if (item->count != 2 || item->items[0].type != NBL_JSON_STRING ||
            item->items[1].type != NBL_JSON_STRING)
            return false;
        *left = (nbl__slice){item->items[0].string, (size_t)item->items[0].count};
        *right = (nbl__slice){item->items[1].string, (size_t)item->items[1].count};
        return true;
    }
    size_t size = (size_t)item->count;
    const char *space = memchr(item->string, ' ', size);
    if (space == NULL) return false;
    *left = (nbl__slice){item->string, (size_t)(space - item->string)};
    *right = (nbl__slice){space + 1, size - left->size - 1};
    return memchr(right->text, ' ', right->size) == NULL;
}

/* Adds the merge with rank `index`. Both texts and the merged text must be in the vocabulary. The
 * prefix of continuing subwords is dropped inside: "a" + "##b" makes "ab". `whole` is scratch. */
static nbl_status read_merge(nbl__tokenizer_reader *r, const nbl__json *item, int64_t index,
                             nbl__bytes *whole)
{
    nbl__vocab_model *m = &r->tokenizer->model;
    nbl__slice left, right;
    NBL_CHECK(r->ctx, split_merge(item, &left, &right), NBL_ERROR_FORMAT,
              "%s: model: merges: merge %" PRId64 " is not two texts", r->where, index);
    int32_t a = nbl__vocab_find(&m->vocab, left.text, left.size),
            b = nbl__vocab_find(&m->vocab, right.text, right.size);
    if (a < 0) return merge_missing(r, index, left.text, left.size);
    if (b < 0) return merge_missing(r, index, right.text, right.size);
    NBL_CHECK(r->ctx, right.size >= m->prefix.size, NBL_ERROR_FORMAT,
              "%s: model: merges: \"%s\" of merge %" PRId64 " is shorter than continuing_subword_prefix",
              r->where, right.text, index);
    whole->size = 0;
    NBL_TRY(nbl__bytes_add(r->ctx, whole, left.text, left.size));
    NBL_TRY(nbl__bytes_add(r->ctx, whole, right.text + m->prefix.size, right.size - m->prefix.size));
    int32_t id = nbl__vocab_find(&m->vocab, whole->data ? whole->data : "", whole->size);
    if (id < 0) return merge_missing(r, index, whole->data ? whole->data : "", whole->size);
    nbl__bpe_add(m, a, b, (uint32_t)index, id);
    return NBL_OK;
}

/* Reads the merges. The rank of a merge is its index; a lower rank merges first. */
static nbl_status read_merges(nbl__tokenizer_reader *r, const nbl__json *model)
{
    const nbl__json *merges;
    NBL_TRY(want(r, model, "merges", NBL_JSON_ARRAY, &merges));
    NBL_CHECK(r->ctx, merges->count < INT32_MAX, NBL_ERROR_UNSUPPORTED, "%s: model: too many merges",
              r->where);
    NBL_TRY(nbl__bpe_open(&r->tokenizer->model, (size_t)merges->count));
    nbl__bytes whole = {0};
    nbl_status status = NBL_OK;
    int64_t rank = 0;
    for (int64_t i = 0; status == NBL_OK && i < merges->count; i++) {
        const nbl__json *item = &merges->items[i];
        if (item->type != NBL_JSON_ARRAY && item->type != NBL_JSON_STRING)
            status = nbl__fail(r->ctx, NBL_ERROR_FORMAT,
                               "%s: model: merges: merge %" PRId64 " is not two texts", r->where, i);
        else if (item->type != merges->items[0].type)
            status = nbl__fail(r->ctx, NBL_ERROR_FORMAT,
                               "%s: model: merges: merge %" PRId64 " is written in another way than merge 0",
                               r->where, i);
        /* A list of the form "a b" may begin with the "#version" line of merges.txt: skip it. */
        else if (item->type != NBL_JSON_STRING || strncmp(item->string, "#version", 8) != 0)
            status = read_merge(r, item, rank++, &whole);
    }
    nbl__bytes_free(r->ctx, &whole);
    return status;
}

/* Reads BPE. Dropout is a trick of training: with it two encodings of one text would differ. */
static nbl_status read_bpe(nbl__tokenizer_reader *r, const nbl__json *model)
{
    nbl__vocab_model *m = &r->tokenizer->model;
    const nbl__json *dropout = nbl__json_get(model, "dropout");
    double rate = 0;
    m->kind = NBL_VOCAB_MODEL_BPE;
    NBL_CHECK(r->ctx, dropout == NULL || dropout->type == NBL_JSON_NULL || nbl__json_number(dropout, &rate),
              NBL_ERROR_FORMAT, "%s: model: \"dropout\" is not a number", r->where);
    NBL_CHECK(r->ctx, rate == 0, NBL_ERROR_UNSUPPORTED,
              "%s: model: \"dropout\" %g is not supported: results would be random", r->where, rate);
    NBL_TRY(nbl__get_bool(r, part, model, "fuse_unk", NBL_PRESENCE_OPTIONAL, &m->fuse_unknown));
    NBL_TRY(nbl__get_bool(r, part, model, "byte_fallback", NBL_PRESENCE_OPTIONAL, &m->byte_fallback));
    NBL_TRY(nbl__get_bool(r, part, model, "ignore_merges", NBL_PRESENCE_OPTIONAL, &m->ignore_merges));
    NBL_TRY(nbl__get_text(r, part, model, "continuing_subword_prefix", NBL_PRESENCE_OPTIONAL, &m->prefix));
    NBL_TRY(nbl__get_text(r, part, model, "end_of_word_suffix", NBL_PRESENCE_OPTIONAL, &m->suffix));
    NBL_CHECK(r->ctx, m->prefix.size + m->suffix.size < 256, NBL_ERROR_UNSUPPORTED,
              "%s: model: continuing_subword_prefix or end_of_word_suffix is too long", r->where);
    NBL_TRY(read_vocab(r, model));
    NBL_TRY(read_unknown(r, model, NBL_PRESENCE_OPTIONAL));
    return read_merges(r, model);
}

/* ---- Unigram ---- */

/* Reads Unigram: a list of [text, score]; the id is the index. */
static nbl_status read_unigram(nbl__tokenizer_reader *r, const nbl__json *model)
{
    nbl__vocab_model *m = &r->tokenizer->model;
    const nbl__json *vocab, *unknown = nbl__json_get(model, "unk_id");
    m->kind = NBL_VOCAB_MODEL_UNIGRAM;
    NBL_TRY(want(r, model, "vocab", NBL_JSON_ARRAY, &vocab));
    NBL_CHECK(r->ctx, vocab->count < INT32_MAX, NBL_ERROR_UNSUPPORTED, "%s: model: too many tokens",
              r->where);
    NBL_TRY(nbl__get_bool(r, part, model, "byte_fallback", NBL_PRESENCE_DEFAULT, &m->byte_fallback));
    if (unknown && unknown->type != NBL_JSON_NULL) {
        NBL_CHECK(r->ctx, nbl__json_id(unknown, &m->unknown), NBL_ERROR_FORMAT,
                  "%s: model: \"unk_id\" is not the id of a token", r->where);
        NBL_CHECK(r->ctx, m->unknown < vocab->count, NBL_ERROR_FORMAT,
                  "%s: model: \"unk_id\" %d is not in the vocabulary of %" PRId64 " tokens", r->where,
                  m->unknown, vocab->count);
        m->has_unknown = true;
    }
    NBL_TRY(nbl__vocab_open(r->ctx, &m->vocab, (size_t)vocab->count));
    NBL_TRY(NBL_ALLOC(r->ctx, m->scores, vocab->count));
    m->score_count = (size_t)vocab->count;
    for (int64_t i = 0; i < vocab->count; i++) {
        const nbl__json *item = &vocab->items[i];
        bool good = item->type == NBL_JSON_ARRAY && item->count == 2 &&
                    item->items[0].type == NBL_JSON_STRING &&
                    nbl__json_number(&item->items[1], &m->scores[i]);
        NBL_CHECK(r->ctx, good, NBL_ERROR_FORMAT,
                  "%s: model: vocab: entry %" PRId64 " is not a text and a score", r->where, i);
        nbl__vocab_add(&m->vocab, item->items[0].string, (size_t)item->items[0].count, (int32_t)i);
    }
    m->size = vocab->count;
    return nbl__unigram_build(m, r->where);
}

/* ---- WordPiece and WordLevel ---- */

/* Reads WordPiece. */
static nbl_status read_wordpiece(nbl__tokenizer_reader *r, const nbl__json *model)
{
    nbl__vocab_model *m = &r->tokenizer->model;
    uint64_t longest = 0;
    m->kind = NBL_VOCAB_MODEL_WORDPIECE;
    NBL_TRY(read_vocab(r, model));
    NBL_TRY(read_unknown(r, model, NBL_PRESENCE_REQUIRED));
    NBL_TRY(nbl__get_text(r, part, model, "continuing_subword_prefix", NBL_PRESENCE_REQUIRED, &m->prefix));
    NBL_CHECK(r->ctx, m->prefix.size < 256, NBL_ERROR_UNSUPPORTED,
              "%s: model: continuing_subword_prefix is too long", r->where);
    NBL_TRY(nbl__get_natural(r, part, model, "max_input_chars_per_word", NBL_PRESENCE_REQUIRED, &longest));
    /* Encoding a word is quadratic: each position is tried with each length. */
    NBL_CHECK(r->ctx, longest <= 10000, NBL_ERROR_UNSUPPORTED,
              "%s: model: \"max_input_chars_per_word\" %" PRIu64 " is more than the 10000 that are supported",
              r->where, longest);
    m->longest_word = (int64_t)longest;
    return NBL_OK;
}

/* Reads WordLevel. */
static nbl_status read_wordlevel(nbl__tokenizer_reader *r, const nbl__json *model)
{
    r->tokenizer->model.kind = NBL_VOCAB_MODEL_WORDLEVEL;
    NBL_TRY(read_vocab(r, model));
    return read_unknown(r, model, NBL_PRESENCE_REQUIRED);
}

/* Files of old versions have no "type". As upstream, the first model that fits the members is
 * taken. */
static const char *guess_type(const nbl__json *model)
{
    const nbl__json *vocab = nbl__json_get(model, "vocab");
    if (nbl__json_get(model, "merges")) return "BPE";
    if (nbl__json_is(vocab, NBL_JSON_ARRAY)) return "Unigram";
    return nbl__json_get(model, "max_input_chars_per_word") ? "WordPiece" : "WordLevel";
}

nbl_status nbl__read_model(nbl__tokenizer_reader *r, const nbl__json *value)
{
    const char *type;
    nbl__vocab_model *m = &r->tokenizer->model;
    m->prefix = m->suffix = (nbl__slice){"", 0};
    m->unknown = -1;
    NBL_CHECK(r->ctx, value, NBL_ERROR_FORMAT, "%s: \"model\" is missing", r->where);
    NBL_CHECK(r->ctx, value->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT, "%s: \"model\" is not an object",
              r->where);
    if (nbl__json_get(value, "type")) NBL_TRY(nbl__get_type(r, part, value, &type));
    else type = guess_type(value);
    if (strcmp(type, "BPE") == 0) NBL_TRY(read_bpe(r, value));
    else if (strcmp(type, "Unigram") == 0) NBL_TRY(read_unigram(r, value));
    else if (strcmp(type, "WordPiece") == 0) NBL_TRY(read_wordpiece(r, value));
    else if (strcmp(type, "WordLevel") == 0) NBL_TRY(read_wordlevel(r, value));
    else
        return nbl__fail(r->ctx, NBL_ERROR_UNSUPPORTED, "%s: model: the type \"%s\" is not known", r->where,
                         type);
    nbl__vocab_model_finish(m);
    return NBL_OK;
}
