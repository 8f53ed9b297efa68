/* eval.c - `nibble eval`: measures how well a model predicts the texts of a file, or the answers of
 * its conversations.
 *
 *   file ─▶ texts (lines, or one text) ─▶ rows (ids, labels) ─▶ fit (cut, drop)
 *        ─▶ nbl_model_evaluate
 *
 * The whole file and all ids are in memory. Every row ends up evaluated or counted in one reason
 * for being dropped. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "commands/commands.h"
#include "model.h"
#include "output.h"
#include "process.h"

/* The file's contents. Either all rows are texts or all are conversations. */
typedef struct texts {
    const cli_call *call;
    const char *path;
    nbl_string *items; /* texts, or conversations as JSON */
    int64_t *lines;    /* line numbers of the items in the file */
    int64_t count;
    bool chats;
} texts;

/* ---- reading ---- */

/* Reads one line of a JSONL file. Returns CLI_DONE, or the exit status after printing an error. */
static int take_row(texts *t, nbl_string line, int64_t row)
{
    const char *field = cli_get(t->call, "field")->text;
    nbl_string text;
    cli_json_document document = cli_json_read(line);
    bool is_text = cli_json_is_string(cli_json_member(document.root, field), &text);
    bool chat = cli_json_member(document.root, "messages") && !cli_get(t->call, "field")->given;
    int status = CLI_DONE;
    if (document.wrong)
        status = cli_error(t->call, NBL_ERROR_FORMAT, NULL, "%s:%" PRId64 ": %s", t->path, row,
                           document.wrong);
    else if (t->count > 0 && chat != t->chats)
        status = cli_error(t->call, NBL_ERROR_FORMAT, NULL, "%s:%" PRId64 ": %s after rows with %s", t->path,
                           row, chat ? "messages" : "a text", chat ? "texts" : "messages");
    else if (!chat && !is_text)
        status = cli_error(t->call, NBL_ERROR_FORMAT, "--field names the text's key",
                           "%s:%" PRId64 ": no text \"%s\"", t->path, row, field);
    t->chats = chat;
    if (status == CLI_DONE && chat) {
        t->items[t->count] = line;
    } else if (status == CLI_DONE) {
        char *copy = cli_alloc(text.size + 1);
        memcpy(copy, text.text, text.size);
        t->items[t->count] = (nbl_string){copy, text.size};
    }
    cli_json_forget(&document);
    t->lines[t->count] = row;
    t->count += status == CLI_DONE;
    return status;
}

/* True for a line of spaces only. Such lines are skipped but count as lines. */
static bool is_blank(nbl_string line)
{
    for (size_t i = 0; i < line.size; i++)
        if (strchr(" \t\r", line.text[i]) == NULL || line.text[i] == '\0') return false;
    return true;
}

/* Reads the file. A .txt file is one text; any other file has one JSON object per line. */
static int read_texts(texts *t)
{
    nbl_string all;
    size_t name = strlen(t->path);
    if (!cli_read_file(t->call, t->path, &all)) return CLI_FAILED;
    int64_t lines = 1;
    for (size_t i = 0; i < all.size; i++) lines += all.text[i] == '\n';
    t->items = cli_alloc((size_t)lines * sizeof *t->items);
    t->lines = cli_alloc((size_t)lines * sizeof *t->lines);
    if (name >= 4 && strcmp(t->path + name - 4, ".txt") == 0) {
        t->items[t->count++] = all;
        return CLI_DONE;
    }
    int64_t row = 1;
    for (const char *at = all.text, *end = at + all.size; at < end; row++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        nbl_string line = {at, (size_t)((stop ? stop : end) - at)};
        int status = is_blank(line) ? CLI_DONE : take_row(t, line, row);
        if (status != CLI_DONE) return status;
        at = stop ? stop + 1 : end;
    }
    return CLI_DONE;
}

/* ---- tokens ---- */

/* What is evaluated: sequences, and for conversations their labels. */
typedef struct rows {
    nbl_ids *ids, *labels; /* labels: all empty unless `answers` */
    int64_t count;
    bool answers; /* only labels other than -100 are counted */
} rows;

/* Encodes conversations with the chat template. An error names the file and the line. r->count is
 * the number of rows that were tried. The caller frees them, also after an error. */
static nbl_status encode_chats(const texts *t, nbl_context *ctx, nbl_model *model, nbl_tokenizer *tokenizer,
                               rows *r)
{
    nbl_chat_template *chat_template = NULL;
    nbl_chat_encoder *encoder = NULL;
    nbl_status code = cli_chat_template_open(t->call, ctx, NULL, &chat_template);
    if (code == NBL_OK) code = nbl_chat_encoder_open(model, tokenizer, chat_template, &encoder);
    for (; code == NBL_OK && r->count < t->count; r->count++) {
        const char *where = cli_format("%s:%" PRId64, t->path, t->lines[r->count]);
        code = nbl_chat_encoder_row(encoder, where, t->items[r->count], &r->ids[r->count],
                                    &r->labels[r->count]);
    }
    nbl_chat_encoder_close(encoder);
    nbl_chat_template_close(chat_template);
    return code;
}

/* Encodes all items. On failure the rows up to r->count are to be freed. */
static nbl_status encode(const texts *t, nbl_context *ctx, nbl_model *model, nbl_tokenizer *tokenizer,
                         rows *r)
{
    *r = (rows){.ids = cli_alloc((size_t)(t->count + 1) * sizeof *r->ids),
                .labels = cli_alloc((size_t)(t->count + 1) * sizeof *r->labels),
                .answers = t->chats && !cli_get(t->call, "all")->given};
    if (t->chats) return encode_chats(t, ctx, model, tokenizer, r);
    nbl_status code = nbl_tokenizer_encode_batch(tokenizer, t->count, t->items, 1, r->ids);
    if (code == NBL_OK) r->count = t->count;
    return code;
}

/* ---- evaluation ---- */

/* The counts of an evaluation, for the report. */
typedef struct counts {
    bool chats, answers;
    int64_t sequences, predicted; /* evaluated sequences; their tokens without each first one */
    int64_t max;                  /* max tokens of a sequence */
    int64_t truncated;
    int64_t too_short, unanswered, too_long; /* rows that were dropped */
    nbl_evaluation found;
} counts;

static bool on_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    return cli_progress_count("tokens", (uint64_t)done, (uint64_t)total);
}

/* Returns true if any of the first `count` tokens is counted. */
static bool has_answer(const nbl_ids *labels, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (labels->ids[i] != -100) return true;
    return false;
}

/* Cuts sequences that are too long, and drops sequences without a counted token. */
static void fit(rows *r, nbl_ids *ids, nbl_ids *labels, counts *c)
{
    for (int64_t i = 0; i < r->count; i++) {
        nbl_ids it = r->ids[i];
        bool cut = it.count > c->max;
        if (cut) it.count = c->max;
        if (it.count < 2) c->too_short++;
        else if (r->answers && !has_answer(&r->labels[i], r->ids[i].count)) c->unanswered++;
        else if (r->answers && !has_answer(&r->labels[i], it.count)) c->too_long++;
        else {
            c->truncated += cut;
            c->predicted += it.count - 1;
            labels[c->sequences] = (nbl_ids){r->labels[i].ids, it.count};
            ids[c->sequences++] = it;
        }
    }
}

/* Tokenizes, fits and evaluates. Frees all ids. labels[i] and ids[i] of `fit` are views into r. */
static nbl_status evaluate(const texts *t, nbl_context *ctx, nbl_model *model, nbl_tokenizer *tokenizer,
                           counts *c)
{
    rows r;
    nbl_ids *ids = cli_alloc((size_t)(t->count + 1) * sizeof *ids),
            *labels = cli_alloc((size_t)(t->count + 1) * sizeof *labels);
    nbl_status code = encode(t, ctx, model, tokenizer, &r);
    c->chats = t->chats;
    c->answers = r.answers;
    if (code == NBL_OK) fit(&r, ids, labels, c);
    nbl_evaluate_options options = {NBL_OPTIONS(nbl_evaluate_options), .progress = on_progress,
                                    .labels = r.answers ? labels : NULL};
    if (code == NBL_OK && c->sequences)
        code = nbl_model_evaluate(model, ids, c->sequences, &options, &c->found);
    for (int64_t i = 0; i < r.count; i++) {
        nbl_ids_free(ctx, &r.ids[i]);
        nbl_ids_free(ctx, &r.labels[i]);
    }
    return code;
}

/* ---- the report ---- */

/* Returns "3 rows were dropped: 1 of fewer than two tokens, 2 without an answer", or NULL. */
static const char *dropped_text(const counts *c)
{
    const struct {
        int64_t count;
        const char *what;
    } reasons[] = {
        {c->too_short, "of fewer than two tokens"},
        {c->unanswered, "without an answer"},
        {c->too_long, cli_format("whose answers begin after the first %" PRId64 " tokens", c->max)}};
    int64_t dropped = c->too_short + c->unanswered + c->too_long;
    const char *text = dropped == 1 ? "1 row was dropped"
                                    : cli_format("%" PRId64 " rows were dropped", dropped);
    int told = 0;
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].count)
            text = cli_format("%s%s%" PRId64 " %s", text, told++ ? ", " : ": ", reasons[i].count,
                              reasons[i].what);
    return dropped ? text : NULL;
}

/* Says on standard error how many rows were cut and dropped. */
static void print_rows(const counts *c)
{
    const char *dropped = dropped_text(c);
    if (c->truncated)
        fprintf(stderr, "nibble: eval: %" PRId64 " of %" PRId64 " %s were cut to %" PRId64 " tokens\n",
                c->truncated, c->sequences, c->chats ? "conversations" : "texts", c->max);
    if (dropped) fprintf(stderr, "nibble: eval: %s\n", dropped);
}

/* The result for --json. "tokens" are those that counted, "all_tokens" all predicted ones. */
static cli_json *describe(const counts *c, double loss)
{
    cli_json *document = cli_json_object();
    cli_json_set(document, "loss", cli_json_number(loss));
    cli_json_set(document, "perplexity", cli_json_number(exp(loss)));
    cli_json_set(document, "accuracy", cli_json_number((double)c->found.hits / (double)c->found.tokens));
    cli_json_set(document, "counted", cli_json_text(c->answers ? "answers" : "all"));
    cli_json_set(document, "tokens", cli_json_integer(c->found.tokens));
    cli_json_set(document, "all_tokens", cli_json_integer(c->predicted));
    cli_json_set(document, "sequences", cli_json_integer(c->sequences));
    cli_json_set(document, "truncated", cli_json_integer(c->truncated));
    cli_json_set(document, "dropped", cli_json_integer(c->too_short + c->unanswered + c->too_long));
    cli_json_set(document, "dropped_too_short", cli_json_integer(c->too_short));
    cli_json_set(document, "dropped_unanswered", cli_json_integer(c->unanswered));
    cli_json_set(document, "dropped_too_long", cli_json_integer(c->too_long));
    return document;
}

/* Prints the result. Returns CLI_FAILED if --fail-above is exceeded; a NaN perplexity exceeds
 * it. */
static int print_result(const cli_call *call, const counts *c)
{
    double tokens = (double)c->found.tokens, loss = c->found.loss_sum / tokens, perplexity = exp(loss);
    if (!call->quiet) print_rows(c);
    if (call->json) {
        cli_json_print(describe(c, loss));
    } else {
        const char *kind = c->chats ? "conversation" : "text", *plural = c->sequences == 1 ? "" : "s",
                   *counted = cli_grouped((uint64_t)c->found.tokens),
                   *sequences = cli_grouped((uint64_t)c->sequences);
        fprintf(cli_out(), "perplexity %.6g, loss %.6g, accuracy %.2f %% over ", perplexity, loss,
                100 * (double)c->found.hits / tokens);
        if (c->answers)
            fprintf(cli_out(), "the answers: %s of the %s tokens", counted,
                    cli_grouped((uint64_t)c->predicted));
        else fprintf(cli_out(), "%s%s tokens", c->chats ? "all " : "", counted);
        fprintf(cli_out(), " of %s %s%s\n", sequences, kind, plural);
    }
    const cli_value *limit = cli_get(call, "fail-above");
    if (!limit->given || perplexity <= limit->number) return CLI_DONE;
    if (!call->quiet) fprintf(stderr, "nibble: eval: perplexity %.6g is above %s\n", perplexity, limit->text);
    return CLI_FAILED;
}

/* Prints the error that no sequence is left. */
static int fail_without_tokens(const cli_call *call, const texts *t, const counts *c)
{
    if (!t->chats)
        return cli_error(call, NBL_ERROR_FORMAT, NULL, "%s: no text of two or more tokens", t->path);
    const char *dropped = dropped_text(c);
    return cli_error(call, NBL_ERROR_FORMAT, c->unanswered || c->too_long ? "--all counts every token" : NULL,
                     "%s: nothing to count%s%s", t->path, dropped ? ": " : "", dropped ? dropped : "");
}

static int run(cli_call *call)
{
    int status;
    texts t = {.call = call, .path = cli_get(call, "data")->text};
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_model *model = NULL;
    nbl_tokenizer *tokenizer = NULL;
    counts c = {.found = {NBL_RESULT(nbl_evaluation)}};
    status = read_texts(&t);
    if (status == CLI_DONE) {
        nbl_status code = cli_model_open(call, ctx, false, &model);
        if (code == NBL_OK) code = nbl_model_tokenizer(model, &tokenizer);
        if (code == NBL_OK) {
            const cli_value *max = cli_get(call, "max-tokens");
            c.max = nbl_model_max_positions(model);
            if (max->given && max->integer < c.max) c.max = max->integer;
            code = evaluate(&t, ctx, model, tokenizer, &c);
            cli_work_end(code); /* remove the bar before anything is printed */
        }
        if (code != NBL_OK) status = cli_failure(call, ctx, code);
        else status = c.found.tokens ? print_result(call, &c) : fail_without_tokens(call, &t, &c);
    }
    nbl_model_close(model);
    nbl_tokenizer_close(tokenizer);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_eval = {
    .name = "eval",
    .computes = true,
    .group = "Models",
    .summary = "measure how well a model predicts texts, or the answers of conversations",
    .description = "Measures perplexity, mean loss, and the share of tokens that are the model's "
                   "first choice. The file has one JSON object per line, with a text or with "
                   "messages. A .txt file is one text.\n\n"
                   "In texts every token but the first counts. Messages go through the chat template "
                   "of the adapter or of the model, and the answers count: the tokens that a run "
                   "with roles_to_train: [assistant] would train on (see docs/DATA.md). With --all "
                   "every token of a conversation but its first counts. The output says how many "
                   "tokens counted.\n\n"
                   "Sequences longer than the model's positions are cut. A row in which no token "
                   "counts is dropped. The output says how many were cut, and how many were dropped "
                   "for which reason.\n\n"
                   "With --fail-above the exit status is 1 if the perplexity is higher.",
    .arguments = CLI_MODEL_ARGUMENT,
    .options =
        (const cli_option[]){
            {.name = "data",
             .argument = "F",
             .kind = CLI_PATH,
             .required = true,
             .help = "the texts: JSONL or .txt; - reads JSONL from standard input"},
            {.name = "field",
             .argument = "KEY",
             .kind = CLI_TEXT,
             .fallback = "text",
             .help = "the key of the text in each object"},
            {.name = "all", .help = "count every token of conversations, not only the answers"},
            {.name = "max-tokens",
             .argument = "N",
             .kind = CLI_INTEGER,
             .minimum = 2,
             .maximum = 1 << 24,
             .help = "cut texts and conversations to N tokens (default: the model's "
                     "positions)"},
            {.name = "fail-above",
             .argument = "PPL",
             .kind = CLI_NUMBER,
             .minimum = 0,
             .maximum = 1e300,
             .help = "exit 1 when the perplexity is above this"},
            CLI_MODEL_OPTIONS,
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"what 4 bits cost", "eval Llama-3.2-1B --data wiki.jsonl --load nf4"},
            {"guard an adapter",
             "eval Llama-3.2-1B --adapter my-lora --data held-out.jsonl --fail-above 9.5"},
            {NULL, NULL},
        },
    .run = run,
};
