/* generate.c - `nibble generate`: continues a text with a model.
 *
 * A stop string ends a sequence when the text of the sequence contains it. In the result `ids` are
 * all generated tokens, with the token that completed the stop string. `text` is cut before the
 * stop string. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands/commands.h"
#include "model.h"
#include "output.h"
#include "process.h"

/* One call of the command. It generates all sequences as one batch. A single text is printed while
 * it is generated (`streaming`); anything else after the end. */
typedef struct job {
    const cli_call *call;
    nbl_context *ctx;
    nbl_tokenizer *tokenizer; /* NULL: ids only */
    cli_ends ends;
    cli_writing
        *writing; /* per sequence: one that is shown as it comes, or that stop strings may end; or NULL */
    bool streaming;
    cli_harmony harmony; /* --chat with GPT-OSS: takes the answer out of what the model writes */
    cli_growing answer;  /* that answer */
    cli_ids prompts;
    nbl_generated *results;
    int64_t new_tokens;
    double first, start;
    nbl_status code; /* the failure in on_token */
    int write_error;
} job;

/* Prints a piece of text while it is generated. The first failed write is remembered. */
static void say(void *user, nbl_string text)
{
    job *j = user;
    if (j->harmony.on) cli_growing_add(&j->answer, text);
    if (j->streaming && j->write_error == 0) j->write_error = cli_say(text);
}

/* Called by the library for each token. Returns true to end its sequence: at a stop string, or
 * after a failure in any sequence. */
static bool on_token(void *user, int64_t sequence, int32_t id)
{
    job *j = user;
    nbl_string text;
    bool stopped = false;
    if (j->new_tokens++ == 0) j->first = cli_now();
    if (j->writing == NULL || j->code != NBL_OK) return j->code != NBL_OK;
    j->code = cli_writing_push(&j->writing[sequence], id, &text, &stopped);
    if (j->code == NBL_OK) say(j, text);
    return stopped || j->code != NBL_OK || j->write_error;
}

/* Makes the ids of the prompt: given as ids, or tokenized from a text or a rendered chat. */
static nbl_status read_prompts(job *j)
{
    const char *prompt = cli_get(j->call, "prompt")->text, *chat = cli_get(j->call, "chat")->text;
    if (prompt == NULL && chat == NULL) return NBL_OK;
    j->prompts = (cli_ids){cli_alloc(sizeof *j->prompts.lists), 1};
    if (prompt) return nbl_tokenizer_encode(j->tokenizer, prompt, strlen(prompt), 1, &j->prompts.lists[0]);
    const char *system = cli_get(j->call, "system")->text;
    cli_json *messages = cli_json_array();
    if (system) cli_add_message(messages, "system", system, strlen(system));
    cli_add_message(messages, "user", chat, strlen(chat));
    char *text = cli_json_line(messages);
    nbl_chat_template *t = NULL;
    nbl_rendering *r = NULL;
    nbl_chat what = {.messages = {text, strlen(text)}, .generation_prompt = 1};
    nbl_status code = cli_chat_template_open(j->call, j->ctx, cli_get(j->call, "template")->text, &t);
    if (code == NBL_OK) code = nbl_chat_template_render(t, &what, &r);
    if (code == NBL_OK) {
        nbl_string rendered = nbl_rendering_text(r);
        code = nbl_tokenizer_encode(j->tokenizer, rendered.text, rendered.size, 0, &j->prompts.lists[0]);
    }
    nbl_rendering_free(r);
    nbl_chat_template_close(t);
    cli_json_free(messages);
    free(text);
    return code;
}

/* Returns the text of a result up to a stop string; *stopped: there was one. The caller frees
 * it. */
static nbl_status text_of(job *j, const nbl_ids *ids, char **text, size_t *size, size_t *shown, bool *stopped)
{
    nbl_status code = nbl_tokenizer_decode(j->tokenizer, ids->ids, ids->count, 1, text, size);
    if (code != NBL_OK) return code;
    *shown = *size;
    if (j->ends.text_count == 0) return NBL_OK;
    nbl_stop_matcher *matcher;
    nbl_string before;
    bool found = false;
    code = nbl_stop_matcher_open(j->ctx, j->ends.texts, j->ends.text_count, &matcher);
    if (code == NBL_OK) code = nbl_stop_matcher_push(matcher, (nbl_string){*text, *size}, &before, &found);
    if (code == NBL_OK && found) *shown = before.size; /* `before` is a beginning of the text */
    *stopped |= found;
    nbl_stop_matcher_close(matcher);
    if (code != NBL_OK) nbl_text_free(j->ctx, *text, *size);
    return code;
}

/* Sets the answer and the thinking of GPT-OSS as members of a result. */
static nbl_status set_parts(job *j, cli_json *it, bool *stopped)
{
    nbl_status code = cli_writing_finish(&j->writing[0], say, j, stopped);
    if (code != NBL_OK) return code;
    cli_json_set(it, "text", cli_json_string((nbl_string){j->answer.text, j->answer.size}));
    cli_json_set(it, "thinking",
                 cli_json_string((nbl_string){j->harmony.thinking.text, j->harmony.thinking.size}));
    return NBL_OK;
}

/* Prints the JSON document: ids, text and finish of each sequence, and the speeds. Prefill lasts
 * until the first token; the first token of each sequence does not count as decoded. */
static nbl_status print_results(job *j)
{
    cli_json *list = cli_json_array();
    int64_t prompt_tokens = 0;
    for (int64_t i = 0; i < j->prompts.count; i++) {
        const nbl_generated *r = &j->results[i];
        cli_json *it = cli_json_object(), *ids = cli_json_array();
        bool stopped = r->stopped;
        prompt_tokens += j->prompts.lists[i].count;
        for (int64_t t = 0; t < r->ids.count; t++) cli_json_add(ids, cli_json_integer(r->ids.ids[t]));
        cli_json_set(it, "ids", ids);
        if (j->harmony.on) {
            nbl_status code = set_parts(j, it, &stopped);
            if (code != NBL_OK) {
                cli_json_free(it);
                cli_json_free(list);
                return code;
            }
        } else if (j->tokenizer) {
            char *text;
            size_t size, shown;
            nbl_status code = text_of(j, &r->ids, &text, &size, &shown, &stopped);
            if (code != NBL_OK) {
                cli_json_free(it);
                cli_json_free(list);
                return code;
            }
            cli_json_set(it, "text", cli_json_string((nbl_string){text, shown}));
            nbl_text_free(j->ctx, text, size);
        }
        cli_json_set(it, "finish", cli_json_text(stopped ? "stop" : "length"));
        cli_json_add(list, it);
    }
    double end = cli_now(), prefill = (j->new_tokens ? j->first : end) - j->start;
    int64_t decoded = j->new_tokens - j->prompts.count;
    cli_json *document = cli_json_object();
    cli_json_set(document, "sequences", list);
    cli_json_set(document, "prefill_tokens_per_second", cli_json_number((double)prompt_tokens / prefill));
    cli_json_set(document, "decode_tokens_per_second",
                 cli_json_number(decoded > 0 && end > j->first ? (double)decoded / (end - j->first) : 0));
    cli_json_print(document);
    return NBL_OK;
}

/* Prints texts, or ids if there is no tokenizer. Ends the line of a streamed text. */
static nbl_status print_texts(job *j)
{
    if (j->streaming) {
        bool stopped = false;
        nbl_status code = cli_writing_finish(&j->writing[0], say, j, &stopped);
        say(j, (nbl_string){"\n", 1});
        return code;
    }
    for (int64_t i = 0; i < j->prompts.count; i++) {
        const nbl_ids *ids = &j->results[i].ids;
        char *text;
        size_t size, shown;
        bool stopped = false;
        if (j->tokenizer) {
            nbl_status code = text_of(j, ids, &text, &size, &shown, &stopped);
            if (code != NBL_OK) return code;
            cli_put_text(cli_out(), (nbl_string){text, shown});
            nbl_text_free(j->ctx, text, size);
        } else {
            for (int64_t t = 0; t < ids->count; t++)
                fprintf(cli_out(), "%s%" PRId32, t ? " " : "", ids->ids[t]);
        }
        fputc('\n', cli_out());
    }
    return NBL_OK;
}

static nbl_status generate(job *j, nbl_model *model)
{
    const cli_call *call = j->call;
    int64_t count = j->prompts.count;
    nbl_status code = cli_ends_read(call, j->ctx, model, j->tokenizer, &j->ends);
    nbl_generate_options how = cli_sampling(call, &j->ends);
    how.token = on_token;
    how.user = j;
    j->streaming = j->tokenizer && !call->json && count == 1;
    if (cli_get(call, "chat")->text) {
        cli_harmony_open(&j->harmony, j->tokenizer);
        cli_harmony_begin(&j->harmony, &j->prompts.lists[0]);
        cli_growing_add(&j->answer, (nbl_string){"", 0});
    }
    if (j->streaming || j->ends.text_count || j->harmony.on)
        j->writing = cli_alloc((size_t)(count + 1) * sizeof *j->writing);
    j->results = cli_alloc((size_t)(count + 1) * sizeof *j->results);
    for (int64_t i = 0; i < count && code == NBL_OK; i++) {
        j->results[i].ids.ids = cli_alloc((size_t)how.max_tokens * sizeof(int32_t));
        if (j->writing) code = cli_writing_open(j->ctx, j->tokenizer, &j->ends, &j->writing[i]);
        if (j->harmony.on) j->writing[i].harmony = &j->harmony; /* --chat: there is one sequence */
    }
    j->start = cli_now();
    if (code == NBL_OK) code = nbl_model_generate(model, j->prompts.lists, count, &how, j->results);
    if (code == NBL_OK) code = j->code;
    if (code == NBL_OK && j->write_error == 0) code = call->json ? print_results(j) : print_texts(j);
    for (int64_t i = 0; j->writing && i < count; i++) cli_writing_close(&j->writing[i]);
    return code;
}

static int run(cli_call *call)
{
    const char *prompt = cli_get(call, "prompt")->text, *chat = cli_get(call, "chat")->text,
               *ids = cli_get(call, "ids")->text;
    if ((prompt != NULL) + (chat != NULL) + (ids != NULL) != 1)
        return cli_usage(call, NULL, "one of --prompt, --chat and --ids is needed");
    static const char *const with_chat[] = {"system", "template"};
    for (int i = 0; i < 2; i++)
        if (chat == NULL && cli_get(call, with_chat[i])->given)
            return cli_usage(call, NULL, "--%s goes with --chat", with_chat[i]);
    job j = {.call = call};
    int status = cli_stops_check(call);
    if (status != CLI_DONE) return status;
    if (ids && !cli_read_ids(call, ids, 0, INT32_MAX, &j.prompts)) return CLI_FAILED;
    j.ctx = cli_context(call, &status);
    if (j.ctx == NULL) return status;
    nbl_model *model = NULL;
    nbl_status code = cli_model_open(call, j.ctx, false, &model);
    /* With ids as input the folder may lack a tokenizer. Then there is no text, and no stop
     * strings. */
    if (code == NBL_OK) {
        nbl_status opened = nbl_model_tokenizer(model, &j.tokenizer);
        if (opened != NBL_OK && (ids == NULL || cli_get(call, "stop")->count)) code = opened;
    }
    if (code == NBL_OK) code = read_prompts(&j);
    if (code == NBL_OK) code = generate(&j, model);
    status = code != NBL_OK ? cli_failure(call, j.ctx, code) : CLI_DONE;
    if (j.write_error) status = cli_say_failed(call, j.write_error);
    cli_harmony_close(&j.harmony);
    free(j.answer.text);
    if (ids == NULL && j.prompts.count) nbl_ids_free(j.ctx, &j.prompts.lists[0]);
    nbl_tokenizer_close(j.tokenizer);
    nbl_model_close(model);
    cli_context_end(j.ctx);
    return status;
}

const cli_command cli_generate = {
    .name = "generate",
    .computes = true,
    .group = "Models",
    .summary = "continue a text, or answer a message",
    .description = "Continues a prompt, or answers a chat message, or continues sequences of token "
                   "ids in one batch. Text is printed while it is generated. Without --temperature "
                   "each token is the likeliest one. On a terminal, control characters that the "
                   "model writes are shown as text (\\x1b, \\u202e). A pipe or file gets its "
                   "bytes.\n\n"
                   "--stop ends a sequence whose text contains S, and cuts the text before S. With "
                   "--json the ids are all tokens that were generated, those of S included. If S "
                   "spells a special token, the sequence ends at that token.\n\n"
                   "With --chat, the text of GPT-OSS is that of its channel final; with --json the "
                   "other channels are under thinking.",
    .arguments = CLI_MODEL_ARGUMENT,
    .options =
        (const cli_option[]){
            {.name = "prompt", .argument = "S", .kind = CLI_TEXT, .help = "a text to continue"},
            {.name = "chat",
             .argument = "S",
             .kind = CLI_TEXT,
             .help = "a message, put into the chat template of the adapter or of the model"},
            CLI_CHAT_OPTIONS,
            {.name = "ids",
             .argument = "F",
             .kind = CLI_PATH,
             .help = "a JSON file: a list of lists of token ids"},
            CLI_SAMPLING_OPTIONS("128"),
            CLI_MODEL_OPTIONS,
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"an answer", "generate SmolLM2-135M-Instruct --chat 'What is a nibble?'"},
            {"a story, sampled",
             "generate Llama-3.2-1B --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95"},
            {"one line", "generate Llama-3.2-1B --prompt 'The capital of France is' --stop $'\\n'"},
            {NULL, NULL},
        },
    .run = run,
};
