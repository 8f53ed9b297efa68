/* eval.c - `nibble eval`: how well a model predicts the texts of a file. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "commands.h"
#include "model.h"
#include "output.h"
#include "session.h"

typedef struct texts {
    const cli_call *call;
    nbl_context *ctx;
    nbl_chat_template *chat_template; /* of files with conversations */
    const char *path;
    nbl_string *items;
    nbl_rendering **renderings; /* the owners of rendered texts; NULL: the file's own */
    int64_t count;
    bool chats;
} texts;

/* ---- reading ---- */

static nbl_status render(texts *t, json_t *messages, json_t *tools, int64_t row)
{
    char *messages_text = json_dumps(messages, JSON_COMPACT),
         *tools_text = json_is_array(tools) ? json_dumps(tools, JSON_COMPACT) : NULL;
    if (messages_text == NULL) cli_no_memory();
    nbl_chat what = {.messages = {messages_text, strlen(messages_text)},
                     .messages_name = cli_format("%s:%" PRId64, t->path, row)};
    if (tools_text) what.tools = (nbl_string){tools_text, strlen(tools_text)};
    nbl_status code = nbl_chat_template_render(t->chat_template, &what, &t->renderings[t->count]);
    if (code == NBL_OK) t->items[t->count] = nbl_rendering_text(t->renderings[t->count]);
    free(messages_text);
    free(tools_text);
    return code;
}

/* One line of a JSONL file. Returns CLI_DONE or the exit status after an error line. */
static int take_row(texts *t, nbl_string line, int64_t row)
{
    const char *field = cli_get(t->call, "field")->text;
    json_error_t why;
    json_t *object = json_loadb(line.text, line.size, JSON_ALLOW_NUL, &why);
    json_t *text = json_object_get(object, field), *messages = json_object_get(object, "messages");
    bool chat = messages && !cli_get(t->call, "field")->given;
    int status = CLI_DONE;
    if (object == NULL)
        status = cli_error(t->call, NBL_ERROR_FORMAT, NULL, "%s:%" PRId64 ": %s", t->path, row, why.text);
    else if (t->count > 0 && chat != t->chats)
        status = cli_error(t->call, NBL_ERROR_FORMAT, NULL, "%s:%" PRId64 ": %s after rows with %s", t->path,
                           row, chat ? "messages" : "a text", chat ? "texts" : "messages");
    else if (!chat && !json_is_string(text))
        status = cli_error(t->call, NBL_ERROR_FORMAT, "--field names the text's key",
                           "%s:%" PRId64 ": no text \"%s\"", t->path, row, field);
    t->chats = chat;
    if (status == CLI_DONE && chat) {
        nbl_status code = NBL_OK;
        if (t->chat_template == NULL) code = cli_chat_template_open(t->call, t->ctx, NULL, &t->chat_template);
        if (code == NBL_OK) code = render(t, messages, json_object_get(object, "tools"), row);
        if (code != NBL_OK) status = cli_failure(t->call, t->ctx, code);
    } else if (status == CLI_DONE) {
        size_t size = json_string_length(text);
        char *copy = cli_alloc(size + 1);
        memcpy(copy, json_string_value(text), size);
        t->items[t->count] = (nbl_string){copy, size};
    }
    json_decref(object);
    t->count += status == CLI_DONE;
    return status;
}

static bool is_blank(nbl_string line)
{
    for (size_t i = 0; i < line.size; i++)
        if (strchr(" \t\r", line.text[i]) == NULL || line.text[i] == '\0') return false;
    return true;
}

/* A .txt file is one text; anything else has one JSON object per line. */
static int read_texts(texts *t)
{
    nbl_string all;
    size_t name = strlen(t->path);
    if (!cli_read_file(t->call, t->path, &all)) return CLI_FAILED;
    int64_t lines = 1;
    for (size_t i = 0; i < all.size; i++) lines += all.text[i] == '\n';
    t->items = cli_alloc((size_t)lines * sizeof *t->items);
    t->renderings = cli_alloc((size_t)lines * sizeof *t->renderings);
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

/* ---- judging ---- */

typedef struct counts {
    int64_t sequences, truncated, most;
    nbl_evaluation found;
} counts;

static int on_progress(void *user, int64_t done, int64_t total)
{
    (void)user;
    return cli_progress_count("tokens", (uint64_t)done, (uint64_t)total);
}

/* Cuts what is too long and drops what predicts nothing. */
static void fit(nbl_ids *lists, const nbl_ids *owned, int64_t count, counts *c)
{
    for (int64_t i = 0; i < count; i++) {
        nbl_ids it = owned[i];
        if (it.count < 2) continue;
        c->truncated += it.count > c->most;
        if (it.count > c->most) it.count = c->most;
        lists[c->sequences++] = it;
    }
}

static nbl_status evaluate(texts *t, nbl_model *model, nbl_tokenizer *tokenizer, counts *c)
{
    nbl_ids *owned = cli_alloc((size_t)(t->count + 1) * sizeof *owned),
            *lists = cli_alloc((size_t)(t->count + 1) * sizeof *lists);
    nbl_status code = nbl_tokenizer_encode_batch(tokenizer, t->count, t->items, !t->chats, owned);
    if (code != NBL_OK) return code;
    fit(lists, owned, t->count, c);
    nbl_evaluate_options options = {.progress = on_progress};
    if (c->sequences) code = nbl_model_evaluate(model, lists, c->sequences, &options, &c->found);
    for (int64_t i = 0; i < t->count; i++) nbl_ids_free(t->ctx, &owned[i]);
    return code;
}

static int print_result(const cli_call *call, const counts *c)
{
    double tokens = (double)c->found.tokens, loss = c->found.loss_sum / tokens, perplexity = exp(loss),
           accuracy = (double)c->found.hits / tokens;
    if (c->truncated && !call->quiet)
        fprintf(stderr, "nibble: eval: %" PRId64 " of %" PRId64 " texts were cut to %" PRId64 " tokens\n",
                c->truncated, c->sequences, c->most);
    if (call->json) {
        json_t *document = cli_json_object();
        cli_json_set(document, "loss", cli_json_number(loss));
        cli_json_set(document, "perplexity", cli_json_number(perplexity));
        cli_json_set(document, "accuracy", cli_json_number(accuracy));
        cli_json_set(document, "tokens", json_integer(c->found.tokens));
        cli_json_set(document, "sequences", json_integer(c->sequences));
        cli_json_set(document, "truncated", json_integer(c->truncated));
        cli_json_print(document);
    } else {
        fprintf(cli_out(), "perplexity %.6g, loss %.6g, accuracy %.2f %% over %s tokens of %s texts\n",
                perplexity, loss, 100 * accuracy, cli_grouped((uint64_t)c->found.tokens),
                cli_grouped((uint64_t)c->sequences));
    }
    const cli_value *limit = cli_get(call, "fail-above");
    if (!limit->given || perplexity <= limit->number) return CLI_DONE;
    if (!call->quiet) fprintf(stderr, "nibble: eval: perplexity %.6g is above %s\n", perplexity, limit->text);
    return CLI_FAILED;
}

static int run(cli_call *call)
{
    int status;
    texts t = {.call = call, .path = cli_get(call, "data")->text};
    t.ctx = cli_context(call, &status);
    if (t.ctx == NULL) return status;
    nbl_model *model = NULL;
    nbl_tokenizer *tokenizer = NULL;
    counts c = {0};
    status = read_texts(&t);
    if (status == CLI_DONE) {
        nbl_status code = cli_model_open(call, t.ctx, false, &model);
        if (code == NBL_OK) code = nbl_model_tokenizer(model, &tokenizer);
        if (code == NBL_OK) {
            const cli_value *most = cli_get(call, "max-tokens");
            c.most = nbl_model_positions(model);
            if (most->given && most->integer < c.most) c.most = most->integer;
            code = evaluate(&t, model, tokenizer, &c);
            cli_work_end(code); /* the bar goes before anything is said */
        }
        if (code != NBL_OK) status = cli_failure(call, t.ctx, code);
        else if (c.found.tokens == 0)
            status = cli_error(call, NBL_ERROR_FORMAT, NULL, "%s: no text of two or more tokens", t.path);
        else status = print_result(call, &c);
    }
    for (int64_t i = 0; i < t.count; i++) nbl_rendering_free(t.renderings[i]);
    nbl_model_close(model);
    nbl_tokenizer_close(tokenizer);
    nbl_chat_template_close(t.chat_template);
    cli_context_end(t.ctx);
    return status;
}

const cli_command cli_eval = {
    .name = "eval",
    .computes = true,
    .group = "Models",
    .summary = "how well a model predicts the texts of a file",
    .description =
        "Perplexity, mean loss and the share of tokens that are the model's first guess, over every token of "
        "every text but its first. The file has one JSON object per line, with a text or with messages, "
        "which "
        "go through the model's chat template; a .txt file is one text. Texts longer than the model's "
        "positions are cut, and their number is told.\n\n"
        "With --fail-above the exit status is 1 when the perplexity is higher.",
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
            {.name = "max-tokens",
             .argument = "N",
             .kind = CLI_INTEGER,
             .minimum = 2,
             .maximum = 1 << 24,
             .help = "cut texts to so many tokens (default: the model's positions)"},
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
