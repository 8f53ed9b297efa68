/* detokenize.c - turns ids into text: a whole list at once, or id by id while a model generates.
 *
 * Threads: all functions here use the worker of thread 0, so one tokenizer detokenizes in one
 * thread at a time. */
#include "text/chars.h"
#include "text/tokenizer/tokenizer.h"

/* Sets *text to the text of an id as the detokenizer sees it. Returns false for an unknown id. An
 * added token with normalized = true has its normalized form here, as upstream. */
static bool token_text(const nbl_tokenizer *t, int32_t id, nbl__slice *text)
{
    const nbl__added_token *added = nbl__added_get(&t->added, id);
    if (added) {
        *text = added->normal.text ? added->normal : added->content;
        return true;
    }
    const nbl__token *token = nbl__vocab_get(&t->model.vocab, id);
    if (token) *text = (nbl__slice){token->text, token->size};
    return token != NULL;
}

/* Detokenizes `count` ids. *text lies in the worker's memory and is valid until the next call.
 * Unknown ids are skipped, as upstream does. */
static nbl_status decode(const nbl_tokenizer *t, nbl__tokenizer_worker *w, const int32_t *ids, int64_t count,
                         bool skip_special, nbl__slice *text)
{
    nbl__detokenize_scratch *s = &w->decode;
    s->now = 0;
    s->text[0].size = s->tokens[0].count = 0;
    NBL_TRY(nbl__bytes_reserve(t->ctx, &s->text[0], 1));
    NBL_TRY(nbl__bytes_reserve(t->ctx, &s->text[1], 1));
    for (int64_t i = 0; i < count; i++) {
        nbl__slice token;
        if (!token_text(t, ids[i], &token)) continue;
        if (skip_special && nbl__added_is_special(&t->added, token.text, token.size)) continue;
        if (!t->has_detokenizer && s->tokens[0].count) NBL_TRY(nbl__bytes_add(t->ctx, &s->text[0], " ", 1));
        nbl__piece piece = {s->text[0].size, token.size, 0, -1};
        NBL_TRY(nbl__bytes_add(t->ctx, &s->text[0], token.text, token.size));
        NBL_TRY(nbl__pieces_add(t->ctx, &s->tokens[0], piece));
    }
    NBL_TRY(nbl__detokenize_steps(t->detokenizers, t->detokenizer_count, s));
    *text = (nbl__slice){s->text[s->now].data, s->text[s->now].size};
    return NBL_OK;
}

nbl_status nbl_tokenizer_decode(nbl_tokenizer *t, const int32_t *ids, int64_t count, bool skip_special,
                                char **text, size_t *size)
{
    NBL_CHECK(t->ctx, count >= 0 && (ids || count == 0) && text && size, NBL_ERROR_ARGUMENT,
              "nbl_tokenizer_decode: bad arguments");
    nbl__slice result;
    NBL_TRY(decode(t, &t->workers[0], ids, count, skip_special != 0, &result));
    char *copy = nbl__alloc(t->ctx, result.size + 1);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    memcpy(copy, result.text, result.size);
    *text = copy;
    *size = result.size;
    return NBL_OK;
}

void nbl_text_free(nbl_context *ctx, char *text, size_t size)
{
    nbl__free(ctx, text, size + 1);
}

int32_t nbl_tokenizer_find(const nbl_tokenizer *t, const char *text, size_t size)
{
    int32_t id = nbl__vocab_find(&t->added.vocab, text, size);
    return id >= 0 ? id : nbl__vocab_find(&t->model.vocab, text, size);
}

nbl_string nbl_tokenizer_token(const nbl_tokenizer *t, int32_t id)
{
    const nbl__added_token *added = nbl__added_get(&t->added, id);
    if (added) return (nbl_string){added->content.text, added->content.size};
    const nbl__token *token = nbl__vocab_get(&t->model.vocab, id);
    return token ? (nbl_string){token->text, token->size} : (nbl_string){NULL, 0};
}

int64_t nbl_tokenizer_size(const nbl_tokenizer *t)
{
    int64_t size = t->model.size;
    for (size_t i = 0; i < t->added.vocab.count; i++) {
        const nbl__token *token = &t->added.vocab.tokens[i];
        size += nbl__vocab_find(&t->model.vocab, token->text, token->size) < 0;
    }
    return size;
}

/* ---- streaming ----
 *
 * The text that an id adds may depend on the ids before it (a leading space, half a character). So
 * the stream keeps a window of ids and detokenizes the whole window with each new id:
 *
 *     ids:   [ ids of the last output | ids since then ]
 *             0 .. said_ids             said_ids .. ids.count
 *     text:  [ said                   | new text       ]
 *
 * The new text is returned at once, except when it ends with U+FFFD. A U+FFFD may be the first
 * bytes of a character whose other bytes are in later ids. Then the stream waits for up to PATIENCE
 * ids, and returns the U+FFFD if the character is still incomplete. After an output the window
 * drops the ids before said_ids, so the cost per id does not grow with the length of the text. */
struct nbl_text_stream {
    nbl_tokenizer *tokenizer; /* borrowed */
    bool skip_special;
    nbl__ids ids;     /* the window */
    size_t said_ids;  /* the text of the first said_ids ids was returned */
    nbl__bytes said;  /* the text of these ids */
    nbl__bytes fresh; /* the text that the last call returned */
};

enum { PATIENCE = 16 }; /* ids; a character has at most 4 bytes */

nbl_status nbl_text_stream_open(nbl_tokenizer *t, bool skip_special, nbl_text_stream **stream)
{
    NBL_CHECK(t->ctx, stream, NBL_ERROR_ARGUMENT, "nbl_text_stream_open: a NULL argument");
    NBL_TRY(NBL_ALLOC(t->ctx, *stream, 1));
    (*stream)->tokenizer = t;
    (*stream)->skip_special = skip_special != 0;
    return NBL_OK;
}

void nbl_text_stream_close(nbl_text_stream *s)
{
    if (s == NULL) return;
    nbl_context *ctx = s->tokenizer->ctx;
    nbl__ids_free(ctx, &s->ids);
    nbl__bytes_free(ctx, &s->said);
    nbl__bytes_free(ctx, &s->fresh);
    nbl__free(ctx, s, sizeof *s);
}

/* Sets *text to the new text of the window. *text is empty if the new text may end in an incomplete
 * character and `last` is false. */
static nbl_status say(nbl_text_stream *s, bool last, nbl_string *text)
{
    nbl_tokenizer *t = s->tokenizer;
    nbl__slice whole;
    *text = (nbl_string){"", 0};
    NBL_TRY(decode(t, &t->workers[0], s->ids.items, (int64_t)s->ids.count, s->skip_special, &whole));
    bool unfinished = whole.size >= 3 && memcmp(whole.text + whole.size - 3, "\xef\xbf\xbd", 3) == 0;
    if (unfinished && !last && s->ids.count - s->said_ids < PATIENCE) return NBL_OK;
    /* `same`: bytes that were returned before. Compared, not assumed: with more ids a detokenizer
     * may change the end of the earlier text. */
    size_t same = 0;
    while (same < whole.size && same < s->said.size && whole.text[same] == s->said.data[same]) same++;
    while (same > 0 && same < whole.size && !nbl__is_char_start(whole.text[same])) same--;
    if (whole.size == same) return NBL_OK;
    s->fresh.size = 0;
    NBL_TRY(nbl__bytes_add(t->ctx, &s->fresh, whole.text + same, whole.size - same));
    *text = (nbl_string){s->fresh.data, s->fresh.size};
    /* Drop the ids of the previous output. The ids of this output become the context of the
     * next. */
    size_t kept = s->ids.count - s->said_ids;
    memmove(s->ids.items, s->ids.items + s->said_ids, kept * sizeof *s->ids.items);
    s->ids.count = s->said_ids = kept;
    NBL_TRY(decode(t, &t->workers[0], s->ids.items, (int64_t)kept, s->skip_special, &whole));
    s->said.size = 0;
    return nbl__bytes_add(t->ctx, &s->said, whole.text, whole.size);
}

nbl_status nbl_text_stream_push(nbl_text_stream *s, int32_t id, nbl_string *text)
{
    NBL_CHECK(s->tokenizer->ctx, text, NBL_ERROR_ARGUMENT, "nbl_text_stream_push: a NULL argument");
    NBL_TRY(nbl__ids_add(s->tokenizer->ctx, &s->ids, id));
    return say(s, false, text);
}

nbl_status nbl_text_stream_finish(nbl_text_stream *s, nbl_string *text)
{
    NBL_CHECK(s->tokenizer->ctx, text, NBL_ERROR_ARGUMENT, "nbl_text_stream_finish: a NULL argument");
    NBL_TRY(say(s, true, text));
    s->ids.count = s->said_ids = 0;
    s->said.size = 0;
    return NBL_OK;
}
