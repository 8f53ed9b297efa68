/* template.c - `nibble template`: renders a chat into the text that a model reads.
 *
 * --messages renders one chat; --batch one chat per line of a file. In a batch a template's own
 * error is a result of its line; a line that is no JSON ends the command. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands/commands.h"
#include "output.h"
#include "process.h"

/* ---- one rendering ---- */

/* What all renderings of one call share. */
typedef struct work {
    const cli_call *call;
    nbl_context *ctx;
    nbl_chat_template *template;
    nbl_tokenizer *tokenizer; /* NULL until ids are needed */
} work;

/* Encodes a text without adding special tokens. Opens the tokenizer at the first call. *list is the
 * caller's. */
static nbl_status ids_of(work *w, nbl_string text, cli_json **list)
{
    nbl_ids ids;
    if (w->tokenizer == NULL) {
        nbl_status code = nbl_tokenizer_open(w->ctx, w->call->arguments[0], &w->tokenizer);
        if (code != NBL_OK) return code;
    }
    nbl_status code = nbl_tokenizer_encode(w->tokenizer, text.text, text.size, 0, &ids);
    if (code != NBL_OK) return code;
    *list = cli_json_array();
    for (int64_t i = 0; i < ids.count; i++) cli_json_add(*list, cli_json_integer(ids.ids[i]));
    nbl_ids_free(w->ctx, &ids);
    return NBL_OK;
}

/* The spans that {% generation %} covers, as [start, end) in characters. */
static cli_json *spans_of(const nbl_rendering *rendering)
{
    cli_json *list = cli_json_array();
    int64_t start, end;
    for (int64_t i = 0; nbl_rendering_span(rendering, i, &start, &end); i++) {
        cli_json *span = cli_json_array();
        cli_json_add(span, cli_json_integer(start));
        cli_json_add(span, cli_json_integer(end));
        cli_json_add(list, span);
    }
    return list;
}

/* Returns text, ids and spans of a rendering as a JSON object. */
static nbl_status describe(work *w, const nbl_rendering *rendering, cli_json **document)
{
    cli_json *ids = NULL;
    nbl_string text = nbl_rendering_text(rendering);
    nbl_status code = ids_of(w, text, &ids);
    if (code != NBL_OK) return code;
    *document = cli_json_object();
    cli_json_set(*document, "text", cli_json_string(text));
    cli_json_set(*document, "ids", ids);
    cli_json_set(*document, "trained", spans_of(rendering));
    return NBL_OK;
}

/* ---- the request of the command line ---- */

/* Splits each --set KEY=VALUE at its first '='. *wrong is set to a text without key or '='. */
static nbl_chat_variable *variables_of(const cli_value *set, const char **wrong)
{
    nbl_chat_variable *variables = cli_alloc((size_t)(set->count + 1) * sizeof *variables);
    for (int i = 0; i < set->count; i++) {
        const char *equals = strchr(set->all[i], '=');
        if (equals == NULL || equals == set->all[i]) {
            *wrong = set->all[i];
            continue;
        }
        variables[i].name = cli_format("%.*s", (int)(equals - set->all[i]), set->all[i]);
        variables[i].value = (nbl_string){equals + 1, strlen(equals + 1)};
    }
    return variables;
}

/* Renders --messages. Returns the exit status. */
static int run_one(work *w)
{
    const cli_value *messages = cli_get(w->call, "messages"), *tools = cli_get(w->call, "tools");
    const cli_value *set = cli_get(w->call, "set");
    const char *wrong = NULL;
    nbl_chat chat = {
        .messages_name = messages->text,
        .tools_name = tools->text,
        .variables = variables_of(set, &wrong),
        .variable_count = set->count,
        .generation_prompt = cli_get(w->call, "generation-prompt")->given,
    };
    if (wrong) return cli_usage(w->call, NULL, "--set: '%s' is not KEY=VALUE", wrong);
    if (!cli_read_file(w->call, messages->text, &chat.messages)) return CLI_FAILED;
    if (tools->given && !cli_read_file(w->call, tools->text, &chat.tools)) return CLI_FAILED;
    nbl_rendering *rendering;
    nbl_status code = nbl_chat_template_render(w->template, &chat, &rendering);
    if (code != NBL_OK) return cli_failure(w->call, w->ctx, code);
    if (w->call->json) {
        cli_json *document;
        code = describe(w, rendering, &document);
        if (code == NBL_OK) cli_json_print_compact(document);
    } else {
        nbl_string text = nbl_rendering_text(rendering);
        cli_put_text(cli_out(), text);
    }
    nbl_rendering_free(rendering);
    return code == NBL_OK ? CLI_DONE : cli_failure(w->call, w->ctx, code);
}

/* ---- a batch ---- */

/* Renders one line of a batch and adds its result, which may be an error of the template. */
static nbl_status run_line(work *w, const char *where, nbl_string line, cli_json *results)
{
    nbl_rendering *rendering;
    nbl_status code = nbl_chat_template_render_line(w->template, where, line, &rendering);
    if (code != NBL_OK) return code;
    nbl_string error = nbl_rendering_error(rendering);
    cli_json *entry = NULL;
    if (error.text) {
        entry = cli_json_object();
        cli_json_set(entry, "error", cli_json_string(error));
    } else {
        code = describe(w, rendering, &entry);
    }
    if (code == NBL_OK) cli_json_add(results, entry);
    nbl_rendering_free(rendering);
    return code;
}

static bool is_blank(nbl_string line)
{
    return strspn(line.text, " \t\r\n") >= line.size;
}

/* Renders all lines. Nothing is printed if one line cannot be read. */
static int run_batch(work *w)
{
    const char *path = cli_get(w->call, "batch")->text;
    nbl_string all;
    if (!cli_read_file(w->call, path, &all)) return CLI_FAILED;
    cli_json *results = cli_json_array();
    nbl_status code = NBL_OK;
    int64_t number = 0;
    for (size_t at = 0; at < all.size && code == NBL_OK;) {
        const char *end = memchr(all.text + at, '\n', all.size - at);
        nbl_string line = {all.text + at, end ? (size_t)(end - all.text) - at : all.size - at};
        at += line.size + 1;
        number++;
        if (at >= all.size && is_blank(line)) break; /* nothing after the last newline */
        code = run_line(w, cli_format("%s: line %" PRId64, path, number), line, results);
    }
    if (code != NBL_OK) {
        cli_json_free(results);
        return cli_failure(w->call, w->ctx, code);
    }
    if (w->call->json) {
        cli_json *document = cli_json_object();
        cli_json_set(document, "results", results);
        cli_json_print_compact(document);
        return CLI_DONE;
    }
    for (int64_t i = 0; i < cli_json_count(results); i++)
        cli_json_print_compact(cli_json_copy(cli_json_item(results, i)));
    cli_json_free(results);
    return CLI_DONE;
}

static int run(cli_call *call)
{
    bool one = cli_get(call, "messages")->given, batch = cli_get(call, "batch")->given;
    static const char *const with_messages[] = {"tools", "generation-prompt", "set"};
    if (one == batch) return cli_usage(call, NULL, "give either --messages or --batch");
    for (int i = 0; i < 3; i++)
        if (batch && cli_get(call, with_messages[i])->given)
            return cli_usage(call, "each line of the batch carries its own", "--%s does not go with --batch",
                             with_messages[i]);
    int status;
    work w = {.call = call, .ctx = cli_context(call, &status)};
    if (w.ctx == NULL) return status;
    const char *file = cli_get(call, "template")->text;
    nbl_status code = nbl_chat_template_open(w.ctx, call->arguments[0], file, &w.template);
    status = code != NBL_OK ? cli_failure(call, w.ctx, code) : one ? run_one(&w) : run_batch(&w);
    nbl_chat_template_close(w.template);
    nbl_tokenizer_close(w.tokenizer);
    cli_context_end(w.ctx);
    return status;
}

const cli_command cli_template = {
    .name = "template",
    .group = "Text",
    .summary = "render a chat with the model's chat template",
    .description = "Renders messages with the chat template of MODEL, or with another one, character "
                   "for character as apply_chat_template of transformers does. Special tokens of the "
                   "model (bos_token, eos_token, ...) are variables of the template. --set adds "
                   "variables.\n\n"
                   "With --json the result has `text`, `ids` (the text encoded, without added "
                   "special tokens) and `trained` (what {% generation %} covers, as [start, end) in "
                   "characters).\n\n"
                   "--batch reads a file with one JSON object per line. All its keys are optional: "
                   "messages, tools, generation_prompt, set (an object of variables), and template "
                   "(a template of its own). A line that cannot be rendered gives an object with "
                   "`error`.",
    .arguments =
        (const cli_argument[]){
            {"MODEL", "a Hugging Face folder or a .gguf file", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "messages",
             .argument = "FILE",
             .kind = CLI_PATH,
             .help = "the chat: JSON, a list of objects with role and content"},
            {.name = "tools", .argument = "FILE", .kind = CLI_PATH, .help = "tools: JSON, a list of schemas"},
            {.name = "generation-prompt", .help = "end the text where the model's answer begins"},
            {.name = "set",
             .argument = "KEY=VALUE",
             .kind = CLI_TEXT,
             .repeated = true,
             .help = "a variable of the template; VALUE is JSON if it parses, else a "
                     "text; can be repeated"},
            {.name = "batch", .argument = "FILE", .kind = CLI_PATH, .help = "many chats: a JSONL file"},
            {.name = "template",
             .argument = "FILE",
             .kind = CLI_PATH,
             .help = "a template to use instead of the model's: a file, or a built-in name such as llama3"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"what the model reads", "template Qwen3-0.6B --messages chat.json --generation-prompt"},
            {"without thinking", "template Qwen3-0.6B --messages chat.json --set enable_thinking=false"},
            {"many chats", "template Qwen3-0.6B --batch chats.jsonl --json | jq -r '.results[].text'"},
            {NULL, NULL},
        },
    .run = run,
};
