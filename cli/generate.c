/* generate.c - `nibble generate`: text that a model continues. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "commands.h"
#include "output.h"
#include "session.h"

enum { MOST_ENDS = 64 };

typedef struct job {
    const cli_call *call;
    nbl_context *ctx;
    nbl_tokenizer *tokenizer; /* NULL: ids only */
    nbl_text_stream *stream;  /* one prompt on a terminal: text as it comes */
    cli_ids prompts;
    nbl_generated *results;
    int64_t new_tokens;
    double first, start;
} job;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int on_token(void *user, int64_t sequence, int32_t id)
{
    job *j = user;
    nbl_string piece;
    (void)sequence;
    if (j->new_tokens++ == 0) j->first = now();
    if (j->stream && nbl_text_stream_push(j->stream, id, &piece) == NBL_OK) {
        fwrite(piece.text, 1, piece.size, stdout);
        fflush(stdout);
    }
    return 0;
}

/* The prompt as ids: given, or by the tokenizer, of the text or of its chat. */
static nbl_status read_prompts(job *j)
{
    const char *prompt = cli_get(j->call, "prompt")->text, *chat = cli_get(j->call, "chat")->text;
    if (prompt == NULL && chat == NULL) return NBL_OK;
    j->prompts = (cli_ids){cli_alloc(sizeof *j->prompts.lists), 1};
    if (prompt) return nbl_tokenizer_encode(j->tokenizer, prompt, strlen(prompt), 1, &j->prompts.lists[0]);
    json_t *messages = cli_json_array(), *message = cli_json_object();
    cli_json_set(message, "role", cli_json_text("user"));
    cli_json_set(message, "content", cli_json_text(chat));
    cli_json_add(messages, message);
    char *text = json_dumps(messages, JSON_COMPACT);
    if (text == NULL) cli_no_memory();
    nbl_chat_template *t = NULL;
    nbl_rendering *r = NULL;
    nbl_chat what = {.messages = {text, strlen(text)}, .generation_prompt = 1};
    nbl_status code = nbl_chat_template_open(j->ctx, j->call->arguments[0], NULL, &t);
    if (code == NBL_OK) code = nbl_chat_template_render(t, &what, &r);
    if (code == NBL_OK) {
        nbl_string rendered = nbl_rendering_text(r);
        code = nbl_tokenizer_encode(j->tokenizer, rendered.text, rendered.size, 0, &j->prompts.lists[0]);
    }
    nbl_rendering_free(r);
    nbl_chat_template_close(t);
    json_decref(messages);
    free(text);
    return code;
}

static nbl_status print_results(job *j)
{
    json_t *list = cli_json_array();
    int64_t prompt_tokens = 0;
    for (int64_t i = 0; i < j->prompts.count; i++) {
        const nbl_generated *r = &j->results[i];
        json_t *it = cli_json_object(), *ids = cli_json_array();
        prompt_tokens += j->prompts.lists[i].count;
        for (int64_t t = 0; t < r->ids.count; t++) cli_json_add(ids, json_integer(r->ids.ids[t]));
        cli_json_set(it, "ids", ids);
        if (j->tokenizer) {
            char *text;
            size_t size;
            nbl_status code = nbl_tokenizer_decode(j->tokenizer, r->ids.ids, r->ids.count, 1, &text, &size);
            if (code != NBL_OK) return code;
            cli_json_set(it, "text", json_stringn(text, size));
            nbl_text_free(j->ctx, text, size);
        }
        cli_json_set(it, "finish", cli_json_text(r->stopped ? "stop" : "length"));
        cli_json_add(list, it);
    }
    double end = now(), prefill = (j->new_tokens ? j->first : end) - j->start;
    int64_t decoded = j->new_tokens - j->prompts.count;
    json_t *document = cli_json_object();
    cli_json_set(document, "sequences", list);
    cli_json_set(document, "prefill_tokens_per_second", cli_json_number((double)prompt_tokens / prefill));
    cli_json_set(document, "decode_tokens_per_second",
                 cli_json_number(decoded > 0 && end > j->first ? (double)decoded / (end - j->first) : 0));
    cli_json_print(document);
    return NBL_OK;
}

static nbl_status print_texts(job *j)
{
    for (int64_t i = 0; i < j->prompts.count; i++) {
        const nbl_ids *ids = &j->results[i].ids;
        nbl_string rest;
        char *text;
        size_t size;
        if (j->stream) {
            if (nbl_text_stream_finish(j->stream, &rest) == NBL_OK) fwrite(rest.text, 1, rest.size, stdout);
            fputc('\n', stdout);
        } else if (j->tokenizer) {
            nbl_status code = nbl_tokenizer_decode(j->tokenizer, ids->ids, ids->count, 1, &text, &size);
            if (code != NBL_OK) return code;
            fwrite(text, 1, size, cli_out());
            fputc('\n', cli_out());
            nbl_text_free(j->ctx, text, size);
        } else {
            for (int64_t t = 0; t < ids->count; t++)
                fprintf(cli_out(), "%s%" PRId32, t ? " " : "", ids->ids[t]);
            fputc('\n', cli_out());
        }
    }
    return NBL_OK;
}

static nbl_status generate(job *j, nbl_model *model)
{
    const cli_call *call = j->call;
    int32_t ends[MOST_ENDS];
    nbl_generate_options how = {.max_tokens = cli_get(call, "max-tokens")->integer,
                                .temperature = (float)cli_get(call, "temperature")->number,
                                .top_k = cli_get(call, "top-k")->integer,
                                .top_p = (float)cli_get(call, "top-p")->number,
                                .min_p = (float)cli_get(call, "min-p")->number,
                                .repetition_penalty = (float)cli_get(call, "repetition-penalty")->number,
                                .seed = (uint64_t)cli_get(call, "seed")->integer,
                                .ends = ends,
                                .token = on_token,
                                .user = j};
    how.end_count = nbl_model_ends(model, ends, MOST_ENDS);
    if (how.end_count > MOST_ENDS) how.end_count = MOST_ENDS;
    j->results = cli_alloc((size_t)j->prompts.count * sizeof *j->results);
    for (int64_t i = 0; i < j->prompts.count; i++)
        j->results[i].ids.ids = cli_alloc((size_t)how.max_tokens * sizeof(int32_t));
    j->start = now();
    nbl_status code = nbl_model_generate(model, j->prompts.lists, j->prompts.count, &how, j->results);
    if (code != NBL_OK) return code;
    return call->json ? print_results(j) : print_texts(j);
}

static int run(cli_call *call)
{
    const char *prompt = cli_get(call, "prompt")->text, *chat = cli_get(call, "chat")->text,
               *ids = cli_get(call, "ids")->text;
    if ((prompt != NULL) + (chat != NULL) + (ids != NULL) != 1)
        return cli_usage(call, NULL, "one of --prompt, --chat and --ids is needed");
    job j = {.call = call};
    int status;
    if (ids && !cli_read_ids(call, ids, 0, INT32_MAX, &j.prompts)) return CLI_FAILED;
    j.ctx = cli_context(call, &status);
    if (j.ctx == NULL) return status;
    nbl_model_options options = {.dtype = cli_get(call, "dtype")->text,
                                 .load = cli_get(call, "load")->text,
                                 .adapter = cli_get(call, "adapter")->text};
    nbl_model *model = NULL;
    nbl_status code = nbl_model_open(j.ctx, call->arguments[0], &options, &model);
    /* With ids a folder may be without a tokenizer; then there is no text. */
    if (code == NBL_OK) {
        nbl_status opened = nbl_tokenizer_open(j.ctx, call->arguments[0], &j.tokenizer);
        if (opened != NBL_OK && ids == NULL) code = opened;
    }
    if (code == NBL_OK) code = read_prompts(&j);
    if (code == NBL_OK && j.tokenizer && !call->json && j.prompts.count == 1)
        code = nbl_text_stream_open(j.tokenizer, 1, &j.stream);
    if (code == NBL_OK) code = generate(&j, model);
    status = code == NBL_OK ? CLI_DONE : cli_failure(call, j.ctx, code);
    if (ids == NULL && j.prompts.count) nbl_ids_free(j.ctx, &j.prompts.lists[0]);
    nbl_text_stream_close(j.stream);
    nbl_tokenizer_close(j.tokenizer);
    nbl_model_close(model);
    cli_context_end(j.ctx);
    return status;
}

const cli_command cli_generate = {
    .name = "generate",
    .group = "Models",
    .summary = "text that a model continues",
    .description = "Continues a prompt, the answer to a chat message, or sequences of token ids, which run "
                   "as one batch. Text is "
                   "printed as it comes. Without --temperature the likeliest token is taken each time.",
    .arguments =
        (const cli_argument[]){
            {"MODEL", "a Hugging Face folder or a .gguf file", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "prompt", .argument = "S", .kind = CLI_TEXT, .help = "a text to continue"},
            {.name = "chat",
             .argument = "S",
             .kind = CLI_TEXT,
             .help = "a message, put into the model's chat template"},
            {.name = "ids",
             .argument = "F",
             .kind = CLI_PATH,
             .help = "a JSON file: a list of lists of token ids"},
            {.name = "max-tokens",
             .argument = "N",
             .kind = CLI_INTEGER,
             .fallback = "128",
             .minimum = 1,
             .maximum = 1 << 24,
             .help = "at most so many new tokens"},
            {.name = "temperature",
             .argument = "T",
             .kind = CLI_NUMBER,
             .fallback = "0",
             .minimum = 0,
             .maximum = 100,
             .help = "0 takes the likeliest token, more is more varied"},
            {.name = "top-k",
             .argument = "K",
             .kind = CLI_INTEGER,
             .fallback = "0",
             .minimum = 0,
             .maximum = 1 << 30,
             .help = "only the K likeliest tokens; 0: all"},
            {.name = "top-p",
             .argument = "P",
             .kind = CLI_NUMBER,
             .fallback = "0",
             .minimum = 0,
             .maximum = 1,
             .help = "only the likeliest tokens that together reach P; 0: all"},
            {.name = "min-p",
             .argument = "P",
             .kind = CLI_NUMBER,
             .fallback = "0",
             .minimum = 0,
             .maximum = 1,
             .help = "only tokens at least P times as likely as the likeliest"},
            {.name = "repetition-penalty",
             .argument = "R",
             .kind = CLI_NUMBER,
             .fallback = "1",
             .minimum = 0.01,
             .maximum = 100,
             .help = "above 1: tokens that have occurred become less likely"},
            {.name = "seed",
             .argument = "N",
             .kind = CLI_INTEGER,
             .fallback = "0",
             .minimum = 0,
             .maximum = 9007199254740991.0,
             .help = "of the random choices"},
            {.name = "adapter",
             .argument = "DIR",
             .kind = CLI_PATH,
             .help = "apply an adapter saved by PEFT"},
            {.name = "dtype",
             .argument = "DTYPE",
             .kind = CLI_CHOICE,
             .choices = "f32|f16|bf16",
             .help = "compute in this dtype (default: the checkpoint's)"},
            {.name = "load",
             .argument = "FORMAT",
             .kind = CLI_CHOICE,
             .choices = "nf4|fp4|int8|mxfp4",
             .help = "convert the linear layers to this storage format on arrival"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"an answer", "generate SmolLM2-135M-Instruct --chat 'What is a nibble?'"},
            {"a story, sampled",
             "generate Llama-3.2-1B --prompt 'Once upon a time' --temperature 0.8 --top-p 0.95"},
            {NULL, NULL},
        },
    .run = run,
};
