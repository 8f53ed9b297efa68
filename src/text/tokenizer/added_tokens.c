/* added_tokens.c - stores the added tokens and finds them in text; see added_tokens.h.
 *
 * The search has two passes:
 *   1. Tokens with normalized = false are searched in the raw text.
 *   2. The spans between these matches are normalized. Tokens with normalized = true are searched in
 *      the result.
 * In both passes the leftmost match wins, and among matches at the same position the longest. A
 * match that single_word rejects still consumes its text: the search goes on behind it, as upstream
 * does.
 *
 * Cost: O(bytes of the text), plus up to NBL_TRIE_LONGEST steps at each position whose byte begins
 * a token. */
#include "text/tokenizer/added_tokens.h"

#include "text/chars.h"
#include "text/unicode/unicode.h"

nbl_status nbl__added_open(nbl_context *ctx, nbl__added_tokens *a, size_t count)
{
    a->ctx = ctx;
    NBL_TRY(nbl__vocab_open(ctx, &a->vocab, count));
    NBL_TRY(NBL_ALLOC(ctx, a->tokens, count));
    for (int i = 0; i < 2; i++) NBL_TRY(nbl__trie_open(ctx, &a->tries[i]));
    return NBL_OK;
}

void nbl__added_close(nbl__added_tokens *a)
{
    nbl__free(a->ctx, a->tokens, a->vocab.room * sizeof *a->tokens);
    for (int i = 0; i < 2; i++) nbl__trie_close(&a->tries[i]);
    nbl__vocab_close(&a->vocab);
}

/* Adds a token. A text that the model's vocabulary has takes its id; others get ids behind the
 * vocabulary. */
void nbl__added_add(nbl__added_tokens *a, const nbl__vocab_model *model, const nbl__added_token *token,
                    int32_t *next_id)
{
    const char *text = token->content.text;
    size_t size = token->content.size;
    int64_t index = nbl__vocab_index(&a->vocab, text, size);
    if (index >= 0) { /* the same content again: new flags, old id, `special` stays set */
        nbl__added_token *known = &a->tokens[index];
        bool special = known->special || token->special;
        int32_t id = known->id;
        nbl__slice normal = known->normal;
        *known = *token;
        known->id = id;
        known->special = special;
        if (known->normal.text == NULL) known->normal = normal;
        return;
    }
    int32_t id = nbl__vocab_find(&model->vocab, text, size);
    if (id < 0) id = (*next_id)++;
    a->tokens[a->vocab.count] = *token;
    a->tokens[a->vocab.count].id = id;
    nbl__vocab_add(&a->vocab, text, size, id);
}

/* Returns the index of the token whose searched form is exactly `form`, or -1. */
static int32_t exactly(const nbl__trie *trie, const nbl__slice *form)
{
    int64_t node = NBL_TRIE_ROOT;
    for (size_t i = 0; i < form->size && node >= 0; i++)
        node = nbl__trie_step(trie, (uint32_t)node, (unsigned char)form->text[i]);
    return node < 0 ? -1 : trie->values[node];
}

nbl_status nbl__added_finish(nbl__added_tokens *a, const char *where)
{
    for (size_t i = 0; i < a->vocab.count; i++) {
        const nbl__added_token *token = &a->tokens[i];
        int which = token->normalized;
        nbl__slice form = which && token->normal.text ? token->normal : token->content;
        /* Two tokens can have the same normalized form. Upstream finds one of the two by chance,
         * nibble finds the first. */
        if (form.size == 0 || exactly(&a->tries[which], &form) >= 0) continue;
        NBL_TRY(nbl__trie_add(&a->tries[which], where, form.text, form.size, (int32_t)i));
        a->has[which] = true;
        a->starts[which][(unsigned char)form.text[0]] = true;
    }
    return NBL_OK;
}

/* ---- finding them ---- */

/* Returns the index of the longest token that begins at offset `at`, or -1. Sets *end to the offset
 * behind it. */
static int32_t longest(const nbl__trie *trie, const char *text, size_t size, size_t at, size_t *end)
{
    int64_t node = NBL_TRIE_ROOT;
    int32_t found = -1;
    while (at < size) {
        node = nbl__trie_step(trie, (uint32_t)node, (unsigned char)text[at++]);
        if (node < 0) break;
        if (trie->values[node] >= 0) {
            found = trie->values[node];
            *end = at;
        }
    }
    return found;
}

/* True if no word character touches [begin, end). */
static bool stands_alone(const char *text, size_t size, size_t begin, size_t end)
{
    uint32_t c;
    if (begin > 0) {
        nbl__char_get(nbl__char_back(text, text + begin), &c);
        if (nbl__char_is_word(c)) return false;
    }
    if (end < size) {
        nbl__char_get(text + end, &c);
        if (nbl__char_is_word(c)) return false;
    }
    return true;
}

/* Appends the piece [begin, end) unless it is empty. `origin` is relative to the whole text. */
static nbl_status add_piece(nbl_context *ctx, nbl__pieces *pieces, size_t begin, size_t end, size_t origin,
                            int32_t id)
{
    size_t kept = origin > begin ? origin - begin : 0;
    if (kept > end - begin) kept = end - begin;
    return begin == end ? NBL_OK : nbl__pieces_add(ctx, pieces, (nbl__piece){begin, end - begin, kept, id});
}

/* Covers the text with pieces: matches, which have the id of their token, and what is between them
 * (-1). */
nbl_status nbl__added_split(const nbl__added_tokens *a, bool normalized, const char *text, size_t size,
                            size_t origin, nbl__pieces *pieces)
{
    size_t done = 0; /* the pieces so far cover text[0..done) */
    for (size_t at = 0; a->has[normalized] && at < size;) {
        size_t end = at;
        int32_t index = -1;
        if (a->starts[normalized][(unsigned char)text[at]])
            index = longest(&a->tries[normalized], text, size, at, &end);
        if (index < 0) {
            at++;
            continue;
        }
        const nbl__added_token *token = &a->tokens[index];
        size_t begin = at;
        at = end;
        if (token->single_word && !stands_alone(text, size, begin, end)) continue;
        if (token->left_strip) {
            begin = nbl__spaces_before(text, begin);
            if (begin < done) begin = done;
        }
        if (token->right_strip) end = nbl__spaces_after(text, size, end);
        /* The previous token's right_strip took the white space that contains this token, so the
         * token is dropped. Upstream aborts here. */
        if (begin > end) continue;
        if (done < begin) NBL_TRY(add_piece(a->ctx, pieces, done, begin, origin, -1));
        NBL_TRY(add_piece(a->ctx, pieces, begin, end, origin, token->id));
        done = end;
    }
    return done < size ? add_piece(a->ctx, pieces, done, size, origin, -1) : NBL_OK;
}

const nbl__added_token *nbl__added_get(const nbl__added_tokens *a, int32_t id)
{
    const nbl__token *token = nbl__vocab_get(&a->vocab, id);
    return token ? &a->tokens[token - a->vocab.tokens] : NULL;
}

bool nbl__added_is_special(const nbl__added_tokens *a, const char *text, size_t size)
{
    int64_t index = nbl__vocab_index(&a->vocab, text, size);
    return index >= 0 && a->tokens[index].special;
}
