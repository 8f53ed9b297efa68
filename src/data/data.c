/* data.c - reads all rows of a run's datasets, and gives examples by index. See data.h.
 *
 * Opening reads a file in batches of at most BATCH_ROWS rows:
 *
 *     parse rows → example texts    one thread, fill_batch
 *     tokenize all parts            all threads, encode
 *     label, check, count           one thread, finish_batch
 *
 * Every example gets an entry with offset and size of its row. Its tokens are kept too, while all
 * kept tokens together are at most KEPT_TOKENS (64 MiB). So ordinary data is never tokenized twice.
 *
 * One row is encoded at a time into d->row. Examples handed out point into it. */
#include <stdio.h>

#include "data/data_parts.h"
#include "data/data_split.h"

enum { BATCH_ROWS = 256, BATCH_BYTES = 4 << 20, KEPT_TOKENS = 16 << 20 };

/* ---- one row ---- */

/* Puts file and line in front of the message of an error. */
static nbl_status at_row(nbl__data *d, const nbl__rows *rows, const nbl__row *row, nbl_status code)
{
    return nbl__fail_within(d->ctx, code, "%s: line %" PRId64, rows->path, row->line);
}

/* True if an error is about one row and skip_bad_rows allows going on. */
static bool can_skip(const nbl__data *d, nbl_status code)
{
    return d->config->skip_bad_rows && (code == NBL_ERROR_FORMAT || code == NBL_ERROR_UNSUPPORTED);
}

/* Parses a row to its example text. */
static nbl_status example_row(nbl__data *d, int64_t source, nbl__arena *arena, const nbl__row *row,
                              nbl__example_text *example_text)
{
    const nbl__rows *rows = &d->sources[source];
    const nbl__json *object;
    NBL_TRY(nbl__rows_parse(rows, arena, row, &object)); /* its errors name file and line already */
    nbl_status status = nbl__example_row(&d->encoder, &d->config->datasets[source], arena, object,
                                         example_text);
    return status == NBL_OK ? NBL_OK : at_row(d, rows, row, status);
}

/* ---- examples ---- */

/* Appends an entry; the list doubles when it is full. */
static nbl_status push(nbl__data *d, const nbl__example_entry *entry)
{
    if (d->count == d->room) {
        int64_t room = d->room * 2 + 1024;
        nbl__example_entry *entries;
        NBL_TRY(NBL_ALLOC(d->ctx, entries, room));
        if (d->count) memcpy(entries, d->entries, (size_t)d->count * sizeof *entries);
        nbl__free(d->ctx, d->entries, (size_t)d->room * sizeof *entries);
        d->entries = entries;
        d->room = room;
    }
    d->entries[d->count++] = *entry;
    return NBL_OK;
}

/* Mixes a list of ids or labels, and its length, into the identity. */
static void identify(nbl__data *d, const int32_t *words, int64_t count)
{
    uint64_t h = d->identity ^ (uint64_t)count;
    for (int64_t i = 0; i < count; i++) {
        h = (h ^ (uint32_t)words[i]) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    d->identity = h;
}

/* *kept: a copy of the tokens in the format of nbl__example_entry.kept; NULL: KEPT_TOKENS is
 * reached, or a label is neither -100 nor its own id, which pretokenized rows may have. */
static nbl_status keep(nbl__data *d, const int32_t *ids, const int32_t *labels, int64_t count, int32_t **kept)
{
    *kept = NULL;
    if (d->kept_tokens + count > KEPT_TOKENS) return NBL_OK;
    for (int64_t i = 0; i < count; i++)
        if (labels[i] != -100 && labels[i] != ids[i]) return NBL_OK;
    *kept = nbl__arena_alloc(&d->kept, (size_t)count * sizeof **kept);
    if (*kept == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < count; i++)
        (*kept)[i] = labels[i] == -100 ? ids[i] : (int32_t)((uint32_t)ids[i] | 0x80000000u);
    d->kept_tokens += count;
    return NBL_OK;
}

/* Counts a row or example that is not used. reason: one of the counts in d->counts. */
static void drop(nbl__data *d, int64_t *reason)
{
    d->counts.dropped++;
    ++*reason;
}

/* Adds the tokens [begin, begin + count) of d->row as one example, unless a filter drops it: too
 * short, nothing trained, or a duplicate. Label 0 does not count, because no token predicts it. */
static nbl_status add_example(nbl__data *d, nbl__example_entry entry, int64_t begin, int64_t count)
{
    const int32_t *ids = d->row.ids + begin, *labels = d->row.labels + begin;
    int64_t trained = 0;
    for (int64_t i = 1; i < count; i++) trained += labels[i] != -100;
    if (count < d->config->min_sample_len) return drop(d, &d->counts.too_short), NBL_OK;
    if (trained == 0) return drop(d, &d->counts.untrained), NBL_OK;
    if (d->config->deduplicate) {
        bool fresh;
        NBL_TRY(nbl__duplicates_add(&d->seen, d->ctx, ids, labels, count, &fresh));
        if (!fresh) return drop(d, &d->counts.duplicates), NBL_OK;
    }
    entry.tokens = (int32_t)count;
    NBL_TRY(keep(d, ids, labels, count, &entry.kept));
    NBL_TRY(push(d, &entry));
    identify(d, ids, count);
    identify(d, labels, count);
    d->counts.examples++;
    d->counts.tokens += count;
    d->counts.trained_tokens += trained;
    return NBL_OK;
}

/* Adds the examples of the row in d->row. A row of the type completion is cut into examples of
 * sequence_len tokens. Any other row is one example; excess_length_strategy decides about longer
 * ones. */
static nbl_status add_row(nbl__data *d, int64_t source, const nbl__row *row)
{
    const nbl__rows *rows = &d->sources[source];
    int64_t max = d->config->sequence_len, count = d->row.count, dropped = d->counts.dropped;
    nbl__example_entry entry = {
        .offset = row->offset, .line = row->line, .size = (uint32_t)row->size, .source = (int32_t)source};
    if (d->config->datasets[source].type == NBL_DATA_COMPLETION) {
        for (int64_t begin = 0; begin < count; begin += max, entry.piece++)
            NBL_TRY(add_example(d, entry, begin, nbl__min_i64(max, count - begin)));
        if (count == 0) drop(d, &d->counts.untrained);
        return NBL_OK;
    }
    if (count > max && d->config->excess == NBL_EXCESS_RAISE)
        return nbl__hint(d->ctx,
                         nbl__fail(d->ctx, NBL_ERROR_FORMAT,
                                   "%s: line %" PRId64 ": %" PRId64 " tokens, sequence_len is %" PRId64,
                                   rows->path, row->line, count, max),
                         "excess_length_strategy: drop or truncate goes on without such rows or their ends");
    if (count > max && d->config->excess == NBL_EXCESS_DROP) return drop(d, &d->counts.too_long), NBL_OK;
    NBL_TRY(add_example(d, entry, 0, nbl__min_i64(max, count)));
    d->counts.truncated += count > max && d->counts.dropped == dropped;
    return NBL_OK;
}

/* ---- batches of rows ---- */

/* Rows whose parts are tokenized together. */
typedef struct batch {
    nbl__arena arena;
    nbl__row rows[BATCH_ROWS];
    nbl__example_text drafts[BATCH_ROWS];
    int64_t count, parts; /* rows; parts of all rows together */
} batch;

/* Tokenizes the parts of all rows, on all threads. *lists: one list of ids per part, in order. */
static nbl_status encode(nbl__data *d, batch *b, nbl_ids **lists)
{
    nbl_string *texts = nbl__arena_alloc(&b->arena, (size_t)b->parts * sizeof *texts);
    *lists = nbl__arena_alloc(&b->arena, (size_t)b->parts * sizeof **lists);
    if (texts == NULL || *lists == NULL) return NBL_ERROR_MEMORY;
    int64_t at = 0;
    for (int64_t i = 0; i < b->count; i++)
        for (int64_t p = 0; p < b->drafts[i].part_count; p++, at++)
            texts[at] = (nbl_string){b->drafts[i].parts[p].text, b->drafts[i].parts[p].size};
    return at ? nbl_tokenizer_encode_batch(d->encoder.tokenizer, at, texts, 0, *lists) : NBL_OK;
}

/* Writes tokens and labels of row i of the batch to d->row. `lists`: the ids of its parts. */
static nbl_status label(nbl__data *d, int64_t source, batch *b, int64_t i, const nbl_ids *lists)
{
    nbl_status status = nbl__example_label(&d->encoder, &d->config->datasets[source], &b->arena,
                                           &b->drafts[i], lists, &d->row);
    return status == NBL_OK ? NBL_OK : at_row(d, &d->sources[source], &b->rows[i], status);
}

/* Tokenizes and labels the rows of a batch and adds their examples. */
static nbl_status finish_batch(nbl__data *d, int64_t source, batch *b)
{
    nbl_ids *lists;
    int64_t at = 0;
    NBL_TRY(encode(d, b, &lists));
    nbl_status status = NBL_OK;
    for (int64_t i = 0; i < b->count && status == NBL_OK; i++) {
        status = label(d, source, b, i, lists + at);
        at += b->drafts[i].part_count;
        if (status == NBL_OK) {
            d->turns += d->row.turns;
            d->ended += d->row.ended;
            status = add_row(d, source, &b->rows[i]);
        } else if (can_skip(d, status)) {
            drop(d, &d->counts.bad);
            status = NBL_OK;
        }
    }
    for (int64_t i = 0; i < b->parts; i++) nbl_ids_free(d->ctx, &lists[i]);
    return status;
}

/* Progress in one file. */
typedef struct reading {
    int64_t index, first, last; /* rows read so far; the split selects rows [first, last) */
    bool end;
} reading;

/* Reads rows until the batch has BATCH_ROWS rows or BATCH_BYTES bytes, or the selected rows end. */
static nbl_status fill_batch(nbl__data *d, int64_t source, batch *b, reading *r)
{
    nbl__rows *rows = &d->sources[source];
    uint64_t bytes = 0;
    b->count = b->parts = 0;
    while (b->count < BATCH_ROWS && bytes < BATCH_BYTES) {
        nbl__row row;
        bool found;
        NBL_TRY(nbl__rows_next(rows, &row, &found));
        if (!found || r->index >= r->last) return r->end = true, NBL_OK;
        if (r->index++ < r->first) continue;
        NBL_TRY(nbl__progress_poll(d->ctx, "reading data"));
        bytes += row.size;
        nbl_status status = example_row(d, source, &b->arena, &row, &b->drafts[b->count]);
        if (status != NBL_OK && can_skip(d, status)) {
            drop(d, &d->counts.bad);
            continue;
        }
        NBL_TRY(status);
        b->rows[b->count] = row;
        b->parts += b->drafts[b->count++].part_count;
    }
    return NBL_OK;
}

/* Counts the rows of a file by scanning, then rewinds. A split with bounds needs the number. */
static nbl_status count_rows(nbl__rows *rows, int64_t *count)
{
    nbl__row row;
    bool found = true;
    for (*count = 0; found; *count += found) {
        NBL_TRY(nbl__progress_poll(rows->ctx, "reading the data"));
        NBL_TRY(nbl__rows_next(rows, &row, &found));
    }
    return nbl__rows_rewind(rows);
}

/* Reads all batches of a file. Pages of the file are given back after each batch. */
static nbl_status read_batches(nbl__data *d, int64_t source, batch *b, reading *r)
{
    nbl__rows *rows = &d->sources[source];
    while (!r->end) {
        uint64_t begin = rows->at;
        nbl_status status = fill_batch(d, source, b, r);
        if (status == NBL_OK) status = finish_batch(d, source, b);
        nbl__arena_free(&b->arena);
        NBL_TRY(status);
        uint64_t passed = rows->at > begin ? rows->at - begin : 0;
        nbl__file_drop(&rows->file, rows->file.data + begin, passed);
        nbl__progress_add(d->ctx, passed);
        NBL_TRY(nbl__progress_poll(d->ctx, "reading data"));
    }
    return NBL_OK;
}

/* Reads the selected rows of one dataset. */
static nbl_status read_source(nbl__data *d, int64_t source)
{
    const nbl__dataset_config *dataset = &d->config->datasets[source];
    nbl__rows *rows = &d->sources[source];
    reading r = {.last = INT64_MAX};
    batch *b;
    if (dataset->split && strchr(dataset->split, '[')) NBL_TRY(count_rows(rows, &r.last));
    NBL_TRY(nbl__data_split(d->ctx, rows->path, dataset->split, r.last, &r.first, &r.last));
    NBL_TRY(NBL_ALLOC(d->ctx, b, 1));
    b->arena = nbl__arena_make(d->ctx);
    nbl_status status = read_batches(d, source, b, &r);
    nbl__free(d->ctx, b, sizeof *b);
    NBL_TRY(status);
    NBL_CHECK(d->ctx, r.index > 0, NBL_ERROR_FORMAT, "%s: no row in the file", rows->path);
    return NBL_OK;
}

/* ---- open and close ---- */

static nbl_status open_source(nbl__data *d, int64_t i)
{
    const nbl__dataset_config *dataset = &d->config->datasets[i];
    NBL_TRY(nbl__rows_open(d->ctx, dataset->path, dataset->file,
                           dataset->field_text ? dataset->field_text : "text", &d->sources[i]));
    NBL_CHECK(d->ctx, d->sources[i].form != NBL_ROWS_TEXT || dataset->type == NBL_DATA_COMPLETION,
              NBL_ERROR_ARGUMENT, "%s: lines of plain text are for the type completion alone", dataset->path);
    return NBL_OK;
}

/* Opens all files, so that a missing one is reported before any is read; then reads them and
 * divides the examples. */
static nbl_status fill(nbl__data *d, int64_t vocabulary)
{
    const nbl__run_config *config = d->config;
    uint64_t bytes = 0;
    char dropped[NBL_DROPPED_TEXT];
    NBL_CHECK(d->ctx,
              config->dataset_count > 0 && config->sequence_len > 0 && config->sequence_len <= INT32_MAX &&
                  config->micro_batch_size > 0,
              NBL_ERROR_ARGUMENT, "%s: datasets, sequence_len or micro_batch_size is not set", config->file);
    NBL_TRY(NBL_ALLOC(d->ctx, d->sources, config->dataset_count));
    for (int64_t i = 0; i < config->dataset_count; i++) NBL_TRY(open_source(d, i));
    NBL_TRY(nbl__row_encoder_open(d->ctx, config, vocabulary, &d->encoder));
    for (int64_t i = 0; i < config->dataset_count; i++) bytes += d->sources[i].file.size;
    nbl__progress_begin(d->ctx, bytes);
    for (int64_t i = 0; i < config->dataset_count; i++) NBL_TRY(read_source(d, i));
    nbl__duplicates_free(&d->seen, d->ctx);
    NBL_CHECK(d->ctx, d->count > 0, NBL_ERROR_FORMAT,
              "%s: nothing to train on: %" PRId64 " rows were dropped (%s)", config->datasets[0].path,
              d->counts.dropped, nbl__data_dropped(&d->counts, dropped));
    if (d->turns && d->ended == 0)
        nbl__log(d->ctx, NBL_LOG_WARNING,
                 "%s: no end of a turn is trained, so the model does not learn to stop; eot_tokens names the "
                 "token "
                 "that ends a turn in the chat template",
                 config->file);
    NBL_TRY(nbl__data_split_validation(d));
    return nbl__data_measure(d);
}

nbl_status nbl__data_open(nbl_context *ctx, const nbl__run_config *config, int64_t vocabulary,
                          nbl__data **data)
{
    nbl__data *d;
    *data = NULL;
    NBL_TRY(NBL_ALLOC(ctx, d, 1));
    *d = (nbl__data){.ctx = ctx,
                     .config = config,
                     .kept = nbl__arena_make(ctx),
                     .row = {.ctx = ctx},
                     .row_source = -1,
                     .identity = 0x9e3779b97f4a7c15u};
    nbl_status status = fill(d, vocabulary);
    /* a changed file explains malformed rows: reported instead */
    nbl_status changed = nbl__files_check(ctx);
    if (changed != NBL_OK) status = changed;
    d->row_source = -1;
    if (status == NBL_OK) return *data = d, NBL_OK;
    nbl__data_close(d);
    return status;
}

void nbl__data_close(nbl__data *d)
{
    if (d == NULL) return;
    nbl_context *ctx = d->ctx;
    for (int64_t i = 0; d->sources && i < d->config->dataset_count; i++) nbl__rows_close(&d->sources[i]);
    if (d->sources) nbl__free(ctx, d->sources, (size_t)d->config->dataset_count * sizeof *d->sources);
    nbl__row_encoder_close(&d->encoder);
    nbl__free(ctx, d->entries, (size_t)d->room * sizeof *d->entries);
    nbl__duplicates_free(&d->seen, ctx);
    nbl__free(ctx, d->is_validation, (size_t)d->count * sizeof *d->is_validation);
    nbl__labelled_free(&d->row);
    nbl__arena_free(&d->kept);
    nbl__free(ctx, d, sizeof *d);
}

nbl__data_counts nbl__data_count(const nbl__data *d)
{
    return d->counts;
}

const char *nbl__data_dropped(const nbl__data_counts *c, char text[NBL_DROPPED_TEXT])
{
    const struct {
        int64_t count;
        const char *why;
    } reasons[] = {{c->too_long, "too long"},
                   {c->too_short, "too short"},
                   {c->bad, "bad"},
                   {c->untrained, "with nothing trained"},
                   {c->duplicates, "seen before"}};
    size_t at = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].count)
            at += (size_t)snprintf(text + at, NBL_DROPPED_TEXT - at, "%s%" PRId64 " %s", at ? ", " : "",
                                   reasons[i].count, reasons[i].why);
    return text;
}

int64_t nbl__data_held_count(const nbl__data *d)
{
    return d->validation_count;
}

nbl__example_kind nbl__data_kind(const nbl__data *d, int64_t index)
{
    return (nbl__example_kind){.is_validation = d->validation_count && d->is_validation[index],
                               .text = d->config->datasets[d->entries[index].source].type != NBL_DATA_TOKENS};
}

nbl_tokenizer *nbl__data_tokenizer(const nbl__data *d, const int32_t **ends, int64_t *end_count)
{
    *ends = d->encoder.ends;
    *end_count = d->encoder.end_count;
    return d->encoder.tokenizer;
}

uint64_t nbl__data_identity(const nbl__data *d)
{
    return d->identity;
}

/* ---- one example ---- */

/* Reads a row again and encodes it into d->row, as a batch of one. */
static nbl_status make_row(nbl__data *d, const nbl__example_entry *entry)
{
    nbl__row row = {entry->offset, entry->size, entry->line};
    batch *b;
    nbl_ids *lists = NULL;
    d->row_source = -1;
    NBL_TRY(NBL_ALLOC(d->ctx, b, 1));
    b->arena = nbl__arena_make(d->ctx);
    b->rows[0] = row;
    b->count = 1;
    nbl_status status = example_row(d, entry->source, &b->arena, &row, &b->drafts[0]);
    b->parts = b->drafts[0].part_count;
    if (status == NBL_OK) status = encode(d, b, &lists);
    if (status == NBL_OK) status = label(d, entry->source, b, 0, lists);
    for (int64_t i = 0; lists && i < b->parts; i++) nbl_ids_free(d->ctx, &lists[i]);
    nbl__arena_free(&b->arena);
    nbl__free(d->ctx, b, sizeof *b);
    NBL_TRY(status);
    d->row_source = entry->source;
    d->row_offset = entry->offset;
    return NBL_OK;
}

/* Writes the kept tokens of an example to d->row. */
static nbl_status show_kept(nbl__data *d, const nbl__example_entry *entry)
{
    d->row_source = -1;
    d->row.count = 0;
    for (int64_t i = 0; i < entry->tokens; i++)
        NBL_TRY(nbl__labelled_add(&d->row, entry->kept[i] & INT32_MAX, entry->kept[i] < 0));
    return NBL_OK;
}

nbl_status nbl__data_example(nbl__data *d, int64_t index, nbl__example *example)
{
    NBL_CHECK(d->ctx, index >= 0 && index < d->count, NBL_ERROR_ARGUMENT, "there is no example %" PRId64,
              index);
    const nbl__example_entry *entry = &d->entries[index];
    int64_t begin = entry->kept ? 0 : entry->piece * d->config->sequence_len;
    if (entry->kept) NBL_TRY(show_kept(d, entry));
    else if (d->row_source != entry->source || d->row_offset != entry->offset) NBL_TRY(make_row(d, entry));
    NBL_CHECK(d->ctx, begin + entry->tokens <= d->row.count, NBL_ERROR_IO,
              "%s: line %" PRId64 ": the file has changed since it was opened",
              d->sources[entry->source].path, entry->line);
    *example = (nbl__example){d->row.ids + begin, d->row.labels + begin, entry->tokens};
    return NBL_OK;
}
