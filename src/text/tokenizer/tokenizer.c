/* tokenizer.c - opens a tokenizer and turns text into ids. detokenize.c turns ids into text.
 *
 *     "Hi <|im_end|> you"
 *       added tokens       "Hi ", <|im_end|>, " you"           added_tokens.c
 *       normalizer         "Hi ", <|im_end|>, " you"           normalizer.c
 *       pre-tokenizer      "Hi", "Ġ", <|im_end|>, "Ġyou"       pre_tokenizer.c
 *       model              the ids of each piece              vocab_*.c
 *       truncation, frame, padding                             this file
 *
 * A piece is a span of text, or an added token whose id is known. Every step maps a list of pieces
 * to another, and leaves added tokens alone.
 *
 * A batch is encoded in parallel, one text per work item. Each list of ids is allocated on its own
 * and belongs to the caller (nbl_ids_free). Padding comes last, because it depends on the longest
 * list.
 *
 * Threads: a tokenizer has one worker (scratch memory) per thread of its context. One call at a
 * time may use it. */
#include "text/tokenizer/tokenizer.h"

#include "base/file/file.h"
#include "base/file/hub.h"
#include "base/team.h"
#include "text/chars.h"
#include "text/files/tokenizer_files.h"

/* ---- open and close ---- */

/* Gives a regex to the tokenizer, which frees it. On an error it is freed at once. */
nbl_status nbl__tokenizer_keep(nbl_tokenizer *t, nbl__regex *regex)
{
    if (t->regex_count == t->regex_room) {
        int room = t->regex_room * 2 + 8;
        nbl__regex **list = nbl__alloc_array(t->ctx, (size_t)room, sizeof *list);
        if (list == NULL) {
            nbl__regex_free(t->ctx, regex);
            return NBL_ERROR_MEMORY;
        }
        if (t->regex_count) memcpy(list, t->regexes, (size_t)t->regex_count * sizeof *list);
        nbl__free(t->ctx, t->regexes, (size_t)t->regex_room * sizeof *list);
        t->regexes = list;
        t->regex_room = room;
    }
    t->regexes[t->regex_count++] = regex;
    return NBL_OK;
}

/* Gives the parts of a zeroed worker their context. All of them share its one matcher. */
static void open_worker(nbl_context *ctx, nbl__tokenizer_worker *w)
{
    w->matcher.ctx = w->normalizer.ctx = w->pre.ctx = w->decode.ctx = w->model.ctx = ctx;
    w->normalizer.matcher = w->pre.matcher = w->decode.matcher = &w->matcher;
}

static void close_worker(nbl_context *ctx, nbl__tokenizer_worker *w)
{
    nbl__matcher_free(&w->matcher);
    nbl__normalizer_scratch_free(&w->normalizer);
    nbl__pre_scratch_free(&w->pre);
    nbl__detokenize_scratch_free(&w->decode);
    nbl__vocab_scratch_free(&w->model);
    nbl__pieces_free(ctx, &w->found);
    nbl__ids_free(ctx, &w->ids);
}

/* Reads a tokenizer.json, or a file that becomes the text of one (tokenizer_files.h). The tokenizer
 * keeps nothing of the text, only what the parser has copied. */
static nbl_status read_text_file(nbl_tokenizer *t, const char *path)
{
    nbl__text json = {.ctx = t->ctx};
    nbl_status status = nbl__tokenizer_text(t->ctx, path, &json);
    if (status == NBL_OK) status = nbl__tokenizer_read_json(t, path, json.text, json.size);
    nbl__text_free(&json);
    return status;
}

/* True for a file name in .gguf and for a file that begins with the magic "GGUF". */
static nbl_status is_gguf(nbl_context *ctx, const char *path, bool *yes)
{
    nbl__file file;
    NBL_TRY(nbl__file_map(ctx, path, &file));
    *yes = nbl__ends_with(path, ".gguf") || (file.size >= 4 && memcmp(file.data, "GGUF", 4) == 0);
    nbl__file_unmap(&file);
    return NBL_OK;
}

/* Reads the tokenizer from `path`: a folder with one of the files of tokenizer_files.h, a GGUF file,
 * or such a file. */
static nbl_status fill(nbl_tokenizer *t, const char *path)
{
    bool gguf;
    NBL_TRY(NBL_ALLOC(t->ctx, t->workers, nbl_threads(t->ctx)));
    t->worker_count = nbl_threads(t->ctx);
    for (int i = 0; i < t->worker_count; i++) open_worker(t->ctx, &t->workers[i]);
    if (nbl__is_folder(path)) {
        const char *inner;
        NBL_TRY(nbl__tokenizer_find(&t->arena, path, &inner));
        NBL_CHECK(
            t->ctx, inner, NBL_ERROR_NOT_FOUND,
            "%s/tokenizer.json: no such file; nor is there a tekken.json, tokenizer.model, tiktoken.model "
            "or vocab.json",
            path);
        return read_text_file(t, inner);
    }
    if (!nbl__exists(path))
        return nbl__hub_hint(t->ctx,
                             nbl__fail(t->ctx, NBL_ERROR_NOT_FOUND,
                                       "%s: no such folder or file to read a tokenizer from", path),
                             path, NBL_HUB_MODEL);
    NBL_TRY(is_gguf(t->ctx, path, &gguf));
    return gguf ? nbl__tokenizer_read_gguf(t, path) : read_text_file(t, path);
}

/* Makes a tokenizer without parts. Everything in it can be closed from here on. */
static nbl_tokenizer *create(nbl_context *ctx)
{
    nbl_tokenizer *t = nbl__alloc(ctx, sizeof *t);
    if (t == NULL) return NULL;
    t->ctx = t->model.ctx = t->added.ctx = ctx;
    t->model.vocab.ctx = t->added.vocab.ctx = ctx;
    t->arena = nbl__arena_make(ctx);
    t->bos = t->eos = -1;
    return t;
}

nbl_status nbl_tokenizer_open(nbl_context *ctx, const char *path, nbl_tokenizer **tokenizer)
{
    NBL_CHECK(ctx, path && tokenizer, NBL_ERROR_ARGUMENT, "nbl_tokenizer_open: a NULL argument");
    *tokenizer = NULL;
    nbl_tokenizer *t = create(ctx);
    if (t == NULL) return NBL_ERROR_MEMORY;
    nbl_status status = fill(t, path);
    if (status != NBL_OK) nbl_tokenizer_close(t);
    else *tokenizer = t;
    return status;
}

nbl_status nbl_tokenizer_parse(nbl_context *ctx, const char *name, const char *text, size_t size,
                               nbl_tokenizer **tokenizer)
{
    NBL_CHECK(ctx, name && text && tokenizer, NBL_ERROR_ARGUMENT, "nbl_tokenizer_parse: a NULL argument");
    *tokenizer = NULL;
    nbl_tokenizer *t = create(ctx);
    if (t == NULL) return NBL_ERROR_MEMORY;
    nbl_status status = NBL_ALLOC(ctx, t->workers, nbl_threads(ctx));
    if (status == NBL_OK) {
        t->worker_count = nbl_threads(ctx);
        for (int i = 0; i < t->worker_count; i++) open_worker(ctx, &t->workers[i]);
        status = nbl__tokenizer_read_json(t, name, text, size);
    }
    if (status != NBL_OK) nbl_tokenizer_close(t);
    else *tokenizer = t;
    return status;
}

void nbl_tokenizer_close(nbl_tokenizer *t)
{
    if (t == NULL) return;
    nbl_context *ctx = t->ctx;
    for (int i = 0; i < t->worker_count; i++) close_worker(ctx, &t->workers[i]);
    nbl__free(ctx, t->workers, (size_t)t->worker_count * sizeof *t->workers);
    for (int i = 0; i < t->regex_count; i++) nbl__regex_free(ctx, t->regexes[i]);
    nbl__free(ctx, t->regexes, (size_t)t->regex_room * sizeof *t->regexes);
    nbl__added_close(&t->added);
    nbl__vocab_model_close(&t->model);
    nbl__arena_free(&t->arena);
    nbl__free(ctx, t, sizeof *t);
}

/* ---- one text ---- */

/* Normalizes one span between added tokens. Then cuts it along the added tokens that are searched
 * in normalized text. The result is appended to w->pre.text[0] and w->pre.pieces[0]. */
static nbl_status add_span(const nbl_tokenizer *t, nbl__tokenizer_worker *w, const char *text,
                           const nbl__piece *piece)
{
    nbl__normal normal = {text + piece->begin, piece->size, piece->origin};
    nbl__pieces *pieces = &w->pre.pieces[0];
    nbl__bytes *all = &w->pre.text[0];
    NBL_TRY(nbl__normalize(t->normalizers, t->normalizer_count, &w->normalizer, &normal));
    size_t first = pieces->count, base = all->size;
    NBL_TRY(nbl__added_split(&t->added, true, normal.text, normal.size, normal.origin, pieces));
    NBL_TRY(nbl__bytes_add(t->ctx, all, normal.text, normal.size));
    /* The offsets were relative to normal.text; now they are relative to w->pre.text[0]. */
    for (size_t i = first; i < pieces->count; i++) pieces->items[i].begin += base;
    return NBL_OK;
}

/* Cuts a text into pieces for the model: added tokens, normalizer, pre-tokenizer. The pieces are in
 * w->pre.pieces[w->pre.now]. */
static nbl_status cut_text(const nbl_tokenizer *t, nbl__tokenizer_worker *w, const char *text, size_t size)
{
    size_t origin = size ? (size_t)nbl__char_length(text) : 0;
    w->found.count = 0;
    NBL_TRY(nbl__added_split(&t->added, false, text, size, origin, &w->found));
    w->pre.now = 0;
    w->pre.text[0].size = w->pre.pieces[0].count = 0;
    for (size_t i = 0; i < w->found.count; i++) {
        const nbl__piece *piece = &w->found.items[i];
        if (piece->id >= 0)
            NBL_TRY(nbl__pieces_add(t->ctx, &w->pre.pieces[0], (nbl__piece){0, 0, 0, piece->id}));
        else NBL_TRY(add_span(t, w, text, piece));
    }
    return nbl__pre_tokenize(t->pre_tokenizers, t->pre_tokenizer_count, &w->pre);
}

/* Encodes one text without frame and truncation. The ids are in w->ids. */
nbl_status nbl__tokenizer_pieces(const nbl_tokenizer *t, nbl__tokenizer_worker *w, const char *text,
                                 size_t size)
{
    NBL_TRY(nbl__bytes_reserve(t->ctx, &w->pre.text[0], size + 1));
    NBL_TRY(cut_text(t, w, text, size));
    const nbl__pieces *pieces = &w->pre.pieces[w->pre.now];
    const char *base = w->pre.text[w->pre.now].data;
    w->ids.count = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        const nbl__piece *piece = &pieces->items[i];
        if (i % 4096 == 4095) NBL_TRY(nbl__progress_poll_here(t->ctx, "tokenizing"));
        assert(piece->id >= 0 || piece->begin + piece->size <= w->pre.text[w->pre.now].size);
        if (piece->id >= 0) NBL_TRY(nbl__ids_add(t->ctx, &w->ids, piece->id));
        else NBL_TRY(nbl__vocab_model_run(&t->model, &w->model, base + piece->begin, piece->size, &w->ids));
    }
    return NBL_OK;
}

/* ---- truncation, frame, padding ---- */

/* Cuts w->ids to the length of the part "truncation", less the special tokens that the frame
 * adds. */
static nbl_status truncate(const nbl_tokenizer *t, nbl__tokenizer_worker *w, bool special)
{
    const nbl__truncation *cut = &t->truncation;
    if (!cut->on || !t->limits) return NBL_OK;
    uint64_t max = cut->max, count = w->ids.count;
    if (special) max -= t->frame_tokens; /* as upstream: max < frame_tokens wraps, nothing is cut */
    if (count <= max) return NBL_OK;
    NBL_CHECK(t->ctx, max == 0 || cut->of != NBL_TRUNCATE_SECOND, NBL_ERROR_ARGUMENT,
              "the text must be truncated, but truncation's strategy cuts only the second of two texts");
    NBL_CHECK(t->ctx, max == 0 || cut->stride < max, NBL_ERROR_FORMAT,
              "tokenizer.json: truncation: the stride %" PRIu64 " is not less than the length %" PRIu64,
              cut->stride, max);
    if (cut->side == NBL_SIDE_LEFT)
        memmove(w->ids.items, w->ids.items + (count - max), (size_t)max * sizeof *w->ids.items);
    w->ids.count = (size_t)max;
    return NBL_OK;
}

/* Returns the length in tokens that padding brings a list to. */
static uint64_t padded_length(const nbl__padding *pad, uint64_t longest)
{
    uint64_t length = pad->is_fixed ? pad->fixed : longest;
    if (pad->multiple && length % pad->multiple) length += pad->multiple - length % pad->multiple;
    return length;
}

/* Encodes one text into *list: checks UTF-8, encodes, truncates, and copies the ids into the
 * frame. */
static nbl_status make_list(const nbl_tokenizer *t, nbl__tokenizer_worker *w, const char *text, size_t size,
                            bool special, nbl_ids *list)
{
    size_t good = nbl__utf8_check(text, size);
    NBL_CHECK(t->ctx, good == size, NBL_ERROR_FORMAT, "the text is not valid UTF-8 (at byte %zu)", good);
    NBL_TRY(nbl__tokenizer_pieces(t, w, text, size));
    NBL_TRY(truncate(t, w, special));
    const nbl__frame *frame = special ? &t->framed : &t->plain;
    size_t count = 0, at = 0;
    for (int64_t i = 0; i < frame->count; i++) count += frame->items[i] < 0 ? w->ids.count : 1;
    NBL_TRY(NBL_ALLOC(t->ctx, list->ids, count));
    list->count = (int64_t)count;
    for (int64_t i = 0; i < frame->count; i++) {
        if (frame->items[i] >= 0) {
            list->ids[at++] = frame->items[i];
        } else if (w->ids.count) {
            memcpy(list->ids + at, w->ids.items, w->ids.count * sizeof *list->ids);
            at += w->ids.count;
        }
    }
    assert(at == count);
    return NBL_OK;
}

/* Replaces *list by a list of `length` ids. A list that is long enough is left alone. */
static nbl_status pad_list(const nbl_tokenizer *t, nbl_ids *list, uint64_t length)
{
    int64_t count = (int64_t)length, more = count - list->count;
    if (more <= 0) return NBL_OK;
    int32_t *ids = nbl__alloc_array(t->ctx, (size_t)count, sizeof *ids);
    if (ids == NULL) return NBL_ERROR_MEMORY;
    int64_t begin = t->padding.side == NBL_SIDE_LEFT ? more : 0;
    for (int64_t i = 0; i < count; i++) ids[i] = t->padding.id;
    if (list->count) memcpy(ids + begin, list->ids, (size_t)list->count * sizeof *ids);
    nbl__free(t->ctx, list->ids, (size_t)list->count * sizeof *ids);
    *list = (nbl_ids){ids, count};
    return NBL_OK;
}

/* Pads all lists to one length, if the part "padding" is there and limits are on. */
static nbl_status pad_all(const nbl_tokenizer *t, int64_t count, nbl_ids *lists)
{
    int64_t longest = 0;
    if (!t->padding.on || !t->limits) return NBL_OK;
    for (int64_t i = 0; i < count; i++) longest = nbl__max_i64(longest, lists[i].count);
    for (int64_t i = 0; i < count; i++)
        NBL_TRY(pad_list(t, &lists[i], padded_length(&t->padding, (uint64_t)longest)));
    return NBL_OK;
}

/* ---- the public interface ---- */

void nbl_tokenizer_set_truncation_and_padding(nbl_tokenizer *t, bool on)
{
    t->limits = on;
}

void nbl_ids_free(nbl_context *ctx, nbl_ids *ids)
{
    if (ids == NULL) return;
    nbl__free(ctx, ids->ids, (size_t)ids->count * sizeof *ids->ids);
    *ids = (nbl_ids){NULL, 0};
}

typedef struct batch {
    const nbl_tokenizer *tokenizer;
    const nbl_string *texts;
    nbl_ids *lists;
    bool special;
} batch;

/* Bytes. Texts longer than this are encoded one after the other by the calling thread, before the
 * parallel part. Only the calling thread can call the progress function, and so stop early. */
enum { LONG_TEXT = 1 << 20 };

/* Thread task: encodes one text. */
static nbl_status encode_item(void *argument, int64_t item, int worker)
{
    const batch *b = argument;
    assert(worker < b->tokenizer->worker_count); /* one per thread of the context */
    if (b->lists[item].ids) return NBL_OK;       /* a long text: encoded already */
    nbl_status status = make_list(b->tokenizer, &b->tokenizer->workers[worker], b->texts[item].text,
                                  b->texts[item].size, b->special, &b->lists[item]);
    return status;
}

/* On an error no list is left: the caller has nothing to free. */
nbl_status nbl_tokenizer_encode_batch(nbl_tokenizer *t, int64_t count, const nbl_string *texts, bool special,
                                      nbl_ids *lists)
{
    NBL_CHECK(t->ctx, count >= 0 && (count == 0 || (texts && lists)), NBL_ERROR_ARGUMENT,
              "nbl_tokenizer_encode_batch: bad arguments");
    if (count) memset(lists, 0, (size_t)count * sizeof *lists);
    for (int64_t i = 0; i < count; i++)
        NBL_CHECK(t->ctx, texts[i].text || texts[i].size == 0, NBL_ERROR_ARGUMENT, "text %" PRId64 " is NULL",
                  i);
    batch b = {t, texts, lists, special != 0};
    nbl_status status = NBL_OK;
    for (int64_t i = 0; i < count && status == NBL_OK; i++)
        if (texts[i].size > LONG_TEXT) status = encode_item(&b, i, 0);
    if (status == NBL_OK) status = nbl__team_run(t->ctx, count, encode_item, &b, "tokenizing");
    if (status == NBL_OK) status = pad_all(t, count, lists);
    for (int64_t i = 0; status != NBL_OK && i < count; i++) nbl_ids_free(t->ctx, &lists[i]);
    return status;
}

nbl_status nbl_tokenizer_encode(nbl_tokenizer *t, const char *text, size_t size, bool special, nbl_ids *ids)
{
    NBL_CHECK(t->ctx, ids && (text || size == 0), NBL_ERROR_ARGUMENT,
              "nbl_tokenizer_encode: a NULL argument");
    nbl_string one = {text ? text : "", size};
    return nbl_tokenizer_encode_batch(t, 1, &one, special, ids);
}
