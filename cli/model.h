/* model.h - shared parts of the commands that run a model: the argument MODEL, options, sampling,
 * and the output of text while it is generated. */
#ifndef CLI_MODEL_H
#define CLI_MODEL_H

#include "commands/harmony.h"
#include "output.h"

/* ---- rows of option tables, as macros ---- */

#define CLI_MODEL_ARGUMENT                                                                                   \
    (const cli_argument[])                                                                                   \
    {                                                                                                        \
        {"MODEL", "a Hugging Face folder or a .gguf file", CLI_PATH, NULL, false}, {.name = NULL},           \
    }

/* CLI_ADAPTER_OPTION: --adapter with a help text of the command. CLI_MODEL_OPTIONS: --adapter with
 * the usual help text, --dtype and --load. */
#define CLI_ADAPTER_OPTION(text, needed)                                                                     \
    {                                                                                                        \
        .name = "adapter", .argument = "DIR", .kind = CLI_PATH, .required = needed, .help = text             \
    }
#define CLI_COMPUTE_OPTIONS                                                                                  \
    {.name = "dtype",                                                                                        \
     .argument = "DTYPE",                                                                                    \
     .kind = CLI_CHOICE,                                                                                     \
     .choices = "f32|f16|bf16",                                                                              \
     .help = "compute in this dtype (default: the checkpoint's)"},                                           \
    {                                                                                                        \
        .name = "load", .argument = "FORMAT", .kind = CLI_CHOICE, .choices = "nf4|fp4|int8|mxfp4",           \
        .help = "quantize the linear layers to this format when the model is opened"                         \
    }
#define CLI_MODEL_OPTIONS CLI_ADAPTER_OPTION("apply an adapter saved by PEFT", false), CLI_COMPUTE_OPTIONS

/* Options of commands that have a conversation. */
#define CLI_CHAT_OPTIONS                                                                                     \
    {.name = "system", .argument = "S", .kind = CLI_TEXT, .help = "a system message to begin with"},         \
    {                                                                                                        \
        .name = "template", .argument = "F", .kind = CLI_PATH,                                               \
        .help =                                                                                              \
            "a chat template to use instead of the adapter's or the model's: a file, or a built-in name "    \
            "such as llama3"                                                                                 \
    }

#define CLI_SAMPLING_OPTIONS(max_tokens)                                                                     \
    {.name = "max-tokens",                                                                                   \
     .argument = "N",                                                                                        \
     .kind = CLI_INTEGER,                                                                                    \
     .fallback = max_tokens,                                                                                 \
     .minimum = 1,                                                                                           \
     .maximum = 1 << 24,                                                                                     \
     .help = "the largest number of new tokens"},                                                            \
        {.name = "temperature",                                                                              \
         .argument = "T",                                                                                    \
         .kind = CLI_NUMBER,                                                                                 \
         .fallback = "0",                                                                                    \
         .minimum = 0,                                                                                       \
         .maximum = 100,                                                                                     \
         .help = "0: the likeliest token; higher values vary more"},                                         \
        {.name = "top-k",                                                                                    \
         .argument = "K",                                                                                    \
         .kind = CLI_INTEGER,                                                                                \
         .fallback = "0",                                                                                    \
         .minimum = 0,                                                                                       \
         .maximum = 1 << 30,                                                                                 \
         .help = "only the K likeliest tokens; 0: all"},                                                     \
        {.name = "top-p",                                                                                    \
         .argument = "P",                                                                                    \
         .kind = CLI_NUMBER,                                                                                 \
         .fallback = "0",                                                                                    \
         .minimum = 0,                                                                                       \
         .maximum = 1,                                                                                       \
         .help = "only the likeliest tokens whose probabilities add up to P; 0: all"},                       \
        {.name = "min-p",                                                                                    \
         .argument = "P",                                                                                    \
         .kind = CLI_NUMBER,                                                                                 \
         .fallback = "0",                                                                                    \
         .minimum = 0,                                                                                       \
         .maximum = 1,                                                                                       \
         .help = "only tokens that are at least P times as likely as the likeliest one"},                    \
        {.name = "repetition-penalty",                                                                       \
         .argument = "R",                                                                                    \
         .kind = CLI_NUMBER,                                                                                 \
         .fallback = "1",                                                                                    \
         .minimum = 0.01,                                                                                    \
         .maximum = 100,                                                                                     \
         .help = "a value above 1 makes tokens that have occurred less likely"},                             \
        {.name = "seed",                                                                                     \
         .argument = "N",                                                                                    \
         .kind = CLI_INTEGER,                                                                                \
         .fallback = "0",                                                                                    \
         .minimum = 0,                                                                                       \
         .maximum = 9007199254740991.0,                                                                      \
         .help = "seed of the random choices"},                                                              \
    {                                                                                                        \
        .name = "stop", .argument = "S", .kind = CLI_TEXT, .repeated = true,                                 \
        .help = "end before this text; can be repeated"                                                      \
    }

/* ---- the values of these options ---- */

/* The value of an option with dtypes or formats; the default or NBL_FORMAT_DENSE if it is not given. The
 * parser has checked it. */
nbl_compute_dtype cli_dtype(const cli_call *call, const char *option);
nbl_format cli_format_of(const cli_call *call, const char *option);

/* Opens MODEL with --adapter, --dtype and --load. `plan_only`: the model is only planned, not
 * run. */
nbl_status cli_model_open(const cli_call *call, nbl_context *ctx, bool plan_only, nbl_model **model);

/* Opens the chat template: `file` if it is not NULL, else that of the adapter's folder, else
 * MODEL's. */
nbl_status cli_chat_template_open(const cli_call *call, nbl_context *ctx, const char *file,
                                  nbl_chat_template **chat_template);
/* Adds a message to a conversation. */
void cli_add_message(cli_json *messages, const char *role, const char *text, size_t size);

/* The tokens and the texts that end a sequence. A --stop that is the text of a special token
 * becomes an end token, because special tokens are not in the generated text. */
typedef struct cli_ends {
    int32_t *ids;
    int64_t id_count;
    nbl_string *texts;
    int64_t text_count;
} cli_ends;
/* Collects the ends of a model and of --stop. `tokenizer` may be NULL if there is no --stop. */
nbl_status cli_ends_read(const cli_call *call, nbl_context *ctx, nbl_model *model, nbl_tokenizer *tokenizer,
                         cli_ends *ends);
/* Checks that no --stop is empty. Returns 0, or the exit status after printing an error. */
int cli_stops_check(const cli_call *call);
/* Returns generate options with the sampling options and the ends. The caller sets the callback. */
nbl_generate_options cli_sampling(const cli_call *call, const cli_ends *ends);

/* ---- text while it is generated ----
 *
 * Incomplete characters are held back, and so is text that may be the begin of a stop string. */

typedef struct cli_writing {
    nbl_text_stream *stream;
    nbl_stop_matcher *matcher;
    cli_harmony *harmony; /* takes the answer out of messages; NULL: every text is the answer */
} cli_writing;
nbl_status cli_writing_open(nbl_context *ctx, nbl_tokenizer *tokenizer, const cli_ends *ends, cli_writing *w);
/* Adds a token. *text is the new text, valid until the next call. *stopped: a stop string is
 * complete. */
nbl_status cli_writing_push(cli_writing *w, int32_t id, nbl_string *text, bool *stopped);
/* Passes the text that was held back to `say`, in up to two calls. *stopped becomes true if it
 * completes a stop string. */
nbl_status cli_writing_finish(cli_writing *w, void (*say)(void *user, nbl_string text), void *user,
                              bool *stopped);
void cli_writing_close(cli_writing *w);

/* Writes to standard output at once, as cli_put_text does. Returns 0, or errno. */
int cli_say(nbl_string text);
/* Handles a failed cli_say: prints an error, except if the reader closed the pipe. Returns the exit
 * status. */
int cli_say_failed(const cli_call *call, int error);

#endif
