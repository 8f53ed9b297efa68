/* model.c - shared parts of the commands that run a model; see model.h. Option names that the
 * functions read ("dtype", "load", "adapter", ...) are those of the macros in model.h, so a command
 * that calls one must have the options in its table. */
#include "model.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "output.h"

enum { MAX_ENDS = 64 }; /* end tokens of a model; published models have fewer than ten */

/* The parsers of the library leave the default if the option was not given. The names of choices
 * are the library's, so parsing cannot fail. */
nbl_compute_dtype cli_dtype(const cli_call *call, const char *option)
{
    nbl_compute_dtype dtype = NBL_COMPUTE_DEFAULT;
    nbl_compute_dtype_parse(cli_get(call, option)->text, &dtype);
    return dtype;
}

nbl_format cli_format_of(const cli_call *call, const char *option)
{
    nbl_format format = NBL_FORMAT_DENSE;
    nbl_format_parse(cli_get(call, option)->text, &format);
    return format;
}

nbl_status cli_model_open(const cli_call *call, nbl_context *ctx, bool plan_only, nbl_model **model)
{
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = cli_dtype(call, "dtype"),
                                 .load = cli_format_of(call, "load"),
                                 .adapter = cli_get(call, "adapter")->text, .plan_only = plan_only};
    return nbl_model_open(ctx, call->arguments[0], &options, model);
}

/* ---- conversations ---- */

nbl_status cli_chat_template_open(const cli_call *call, nbl_context *ctx, const char *file,
                                  nbl_chat_template **chat_template)
{
    return nbl_chat_template_open_adapted(ctx, call->arguments[0], cli_get(call, "adapter")->text, file,
                                          chat_template);
}

void cli_add_message(cli_json *messages, const char *role, const char *text, size_t size)
{
    cli_json *message = cli_json_object();
    cli_json_set(message, "role", cli_json_text(role));
    cli_json_set(message, "content", cli_json_string((nbl_string){text, size}));
    cli_json_add(messages, message);
}

/* ---- sampling ---- */

int cli_stops_check(const cli_call *call)
{
    const cli_value *stops = cli_get(call, "stop");
    for (int i = 0; i < stops->count; i++)
        if (*stops->all[i] == '\0') return cli_usage(call, NULL, "--stop is empty");
    return CLI_DONE;
}

/* *id: the special token with this text, or -1 if there is none. A special token is dropped by
 * decoding, so it would never be found as a stop string in the generated text. */
static nbl_status special_token(nbl_context *ctx, nbl_tokenizer *tokenizer, const char *spelled, int32_t *id)
{
    char *text;
    size_t size;
    *id = nbl_tokenizer_find(tokenizer, spelled, strlen(spelled));
    if (*id < 0) return NBL_OK;
    nbl_status code = nbl_tokenizer_decode(tokenizer, id, 1, 1, &text, &size);
    if (code != NBL_OK) return code;
    nbl_text_free(ctx, text, size);
    if (size > 0) *id = -1;
    return NBL_OK;
}

/* End tokens: the model's, those of harmony (transformers' generation_config.json of GPT-OSS has them;
 * config.json alone has one of the three), the one that the adapter was trained to end with, and --stop texts that
 * are special tokens. All other --stop texts are matched in the generated text. */
nbl_status cli_ends_read(const cli_call *call, nbl_context *ctx, nbl_model *model, nbl_tokenizer *tokenizer,
                         cli_ends *ends)
{
    const cli_value *stops = cli_get(call, "stop");
    *ends = (cli_ends){
        .ids = cli_alloc((size_t)(MAX_ENDS + CLI_HARMONY_ENDS + 1 + stops->count) * sizeof *ends->ids),
        .texts = cli_alloc((size_t)(stops->count + 1) * sizeof *ends->texts)};
    ends->id_count = nbl_model_eos_ids(model, ends->ids, MAX_ENDS);
    if (ends->id_count > MAX_ENDS) ends->id_count = MAX_ENDS;
    if (tokenizer) {
        int32_t harmony[CLI_HARMONY_ENDS];
        int count = cli_harmony_ends(tokenizer, harmony);
        for (int i = 0; i < count; i++) ends->ids[ends->id_count++] = harmony[i];
    }
    int32_t trained = tokenizer ? nbl_model_adapter_eos_id(model, tokenizer) : -1;
    if (trained >= 0) ends->ids[ends->id_count++] = trained;
    for (int i = 0; i < stops->count; i++) {
        int32_t id;
        nbl_status code = special_token(ctx, tokenizer, stops->all[i], &id);
        if (code != NBL_OK) return code;
        if (id >= 0) ends->ids[ends->id_count++] = id;
        else ends->texts[ends->text_count++] = (nbl_string){stops->all[i], strlen(stops->all[i])};
    }
    return NBL_OK;
}

nbl_generate_options cli_sampling(const cli_call *call, const cli_ends *ends)
{
    return (nbl_generate_options){NBL_OPTIONS(nbl_generate_options),
                                  .max_tokens = cli_get(call, "max-tokens")->integer,
                                  .temperature = (float)cli_get(call, "temperature")->number,
                                  .top_k = cli_get(call, "top-k")->integer,
                                  .top_p = (float)cli_get(call, "top-p")->number,
                                  .min_p = (float)cli_get(call, "min-p")->number,
                                  .repetition_penalty = (float)cli_get(call, "repetition-penalty")->number,
                                  .seed = (uint64_t)cli_get(call, "seed")->integer,
                                  .ends = ends->ids,
                                  .end_count = ends->id_count};
}

/* ---- text while it is generated ---- */

nbl_status cli_writing_open(nbl_context *ctx, nbl_tokenizer *tokenizer, const cli_ends *ends, cli_writing *w)
{
    nbl_status code = nbl_text_stream_open(tokenizer, 1, &w->stream);
    return code == NBL_OK ? nbl_stop_matcher_open(ctx, ends->texts, ends->text_count, &w->matcher) : code;
}

/* Passes a piece of the answer through the matcher; keeps a piece of another part. */
static nbl_status take_piece(cli_writing *w, cli_harmony_part part, nbl_string piece, nbl_string *text,
                             bool *stopped)
{
    if (part == CLI_HARMONY_ANSWER) return nbl_stop_matcher_push(w->matcher, piece, text, stopped);
    if (part == CLI_HARMONY_HEADER) cli_harmony_header(w->harmony, piece);
    else cli_growing_add(&w->harmony->thinking, piece);
    *text = (nbl_string){"", 0};
    return NBL_OK;
}

nbl_status cli_writing_push(cli_writing *w, int32_t id, nbl_string *text, bool *stopped)
{
    nbl_string piece;
    cli_harmony_part part = w->harmony ? cli_harmony_token(w->harmony, id) : CLI_HARMONY_ANSWER;
    nbl_status code = nbl_text_stream_push(w->stream, id, &piece);
    return code == NBL_OK ? take_piece(w, part, piece, text, stopped) : code;
}

/* The text stream may hold back bytes of a character, the matcher a begin of a stop string. Both
 * are given out here. *stopped is only ever set. */
nbl_status cli_writing_finish(cli_writing *w, void (*say)(void *user, nbl_string text), void *user,
                              bool *stopped)
{
    nbl_string piece, text;
    bool found = false;
    nbl_status code = nbl_text_stream_finish(w->stream, &piece);
    cli_harmony_part part = w->harmony && w->harmony->on ? w->harmony->part : CLI_HARMONY_ANSWER;
    if (code == NBL_OK) code = take_piece(w, part, piece, &text, &found);
    if (code != NBL_OK) return code;
    *stopped |= found;
    say(user, text);
    say(user, nbl_stop_matcher_finish(w->matcher));
    return NBL_OK;
}

void cli_writing_close(cli_writing *w)
{
    nbl_text_stream_close(w->stream);
    nbl_stop_matcher_close(w->matcher);
    *w = (cli_writing){0};
}

int cli_say(nbl_string text)
{
    cli_put_text(stdout, text);
    return fflush(stdout) == 0 && !ferror(stdout) ? 0 : errno ? errno : EIO;
}

int cli_say_failed(const cli_call *call, int error)
{
    if (error != EPIPE)
        cli_error(call, error == ENOSPC ? NBL_ERROR_NO_SPACE : NBL_ERROR_IO, NULL,
                  "cannot write standard output: %s", strerror(error));
    return CLI_FAILED;
}
