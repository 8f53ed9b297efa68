/* convert.c - `nibble quantize` and `nibble dequantize`.
 *
 * Both read checkpoint IN and write folder OUT. They differ in their options and in one call of the
 * library. convert() runs either and prints the same summary or JSON document. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands/commands.h"
#include "model.h"
#include "output.h"
#include "process.h"

/* ---- the report ---- */

/* Prints the result for --json: what was written, with exact byte counts. */
static void print_document(const char *out, const char *storage, const nbl_convert_report *report,
                           double seconds)
{
    cli_json *document = cli_json_object();
    cli_json_set(document, "out", cli_json_text(out));
    cli_json_set(document, "format", cli_json_text(storage));
    cli_json_set(document, "tensors", cli_json_unsigned((uint64_t)report->tensors));
    cli_json_set(document, "converted", cli_json_unsigned((uint64_t)report->converted));
    cli_json_set(document, "bytes_in", cli_json_unsigned(report->bytes_in));
    cli_json_set(document, "bytes_out", cli_json_unsigned(report->bytes_out));
    cli_json_set(document, "files", cli_json_unsigned((uint64_t)report->files));
    cli_json_set(document, "non_finite", cli_json_unsigned((uint64_t)report->non_finite));
    cli_json_set(document, "seconds", cli_json_number(seconds));
    cli_json_print(document);
}

/* Prints the result for people. `next` is a command to type next. */
static void print_summary(const char *out, const char *storage, const nbl_convert_report *report,
                          double seconds, const char *next)
{
    FILE *to = cli_out();
    double in_bytes = (double)report->bytes_in, out_bytes = (double)report->bytes_out;
    fprintf(to, "%s%s%s: %s of %s weights to %s, %s -> %s", cli_styled(CLI_BOLD), cli_clean(out),
            cli_styled(CLI_PLAIN), cli_grouped((uint64_t)report->converted),
            cli_grouped((uint64_t)report->tensors), storage, cli_bytes(in_bytes), cli_bytes(out_bytes));
    if (out_bytes > 0 && in_bytes > 0)
        fprintf(to, " (%.2fx %s)", in_bytes > out_bytes ? in_bytes / out_bytes : out_bytes / in_bytes,
                in_bytes > out_bytes ? "smaller" : "larger");
    fprintf(to, "\n%d %s in %s", report->files, report->files == 1 ? "file" : "files", cli_duration(seconds));
    if (seconds > 0) fprintf(to, ", %s/s", cli_bytes(in_bytes / seconds));
    fputc('\n', to);
    if (report->non_finite)
        fprintf(to, "%s%s NaN or infinite values%s in the weights\n", cli_styled(CLI_RED),
                cli_grouped((uint64_t)report->non_finite), cli_styled(CLI_PLAIN));
    fprintf(to, "next: %s\n", next);
}

/* The call of the library that makes OUT. Fills the report. */
typedef nbl_status (*convert_fn)(nbl_context *ctx, const cli_call *call, nbl_convert_report *report);

/* Runs a conversion with a progress bar and prints its result. storage: the format or dtype in the
 * output. Returns the exit status. */
static int convert(const cli_call *call, convert_fn work, const char *storage, const char *next)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_convert_report report = {NBL_RESULT(nbl_convert_report)};
    double began = cli_now();
    cli_work_begin("nothing was written");
    nbl_status code = work(ctx, call, &report);
    cli_work_end(code);
    double seconds = cli_now() - began;
    if (code != NBL_OK) status = cli_failure(call, ctx, code);
    else if (call->json) print_document(call->arguments[1], storage, &report, seconds);
    else if (!call->quiet) print_summary(call->arguments[1], storage, &report, seconds, next);
    cli_context_end(ctx);
    return status;
}

/* An option of both commands. */
#define SHARD_SIZE_OPTION                                                                                    \
    {                                                                                                        \
        .name = "shard-size", .argument = "SIZE", .kind = CLI_SIZE, .fallback = "5G",                        \
        .help = "largest size of a file of weights; 5G and 5GB are powers of 1000, 5GiB of "                 \
                "1024"                                                                                       \
    }

/* ---- quantize ---- */

static nbl_status quantize(nbl_context *ctx, const cli_call *call, nbl_convert_report *report)
{
    nbl_format format = cli_format_of(call, "format");
    bool four_bit = format == NBL_FORMAT_NF4 || format == NBL_FORMAT_FP4;
    nbl_quantize_options how = {
        NBL_OPTIONS(nbl_quantize_options),
        .format = format,
        .block = four_bit ? cli_get(call, "block")->integer : 0,
        .nested = cli_get(call, "double")->given ? NBL_NESTED_NEAREST : NBL_NESTED_NONE,
        .skip = cli_get(call, "skip")->text,
        .compute_dtype = cli_dtype(call, "compute-dtype"),
        .shard_size = cli_get(call, "shard-size")->size,
        .allow_non_finite = cli_get(call, "allow-non-finite")->given,
    };
    return nbl_checkpoint_quantize(ctx, call->arguments[0], call->arguments[1], &how, report);
}

/* Checks what the table cannot say: options that go with one format only, and the power of two. */
static int run_quantize(cli_call *call)
{
    nbl_format format = cli_format_of(call, "format");
    const char *name = cli_get(call, "format")->text;
    if (format != NBL_FORMAT_NF4 && format != NBL_FORMAT_FP4) {
        const char *only = cli_get(call, "block")->given    ? "block"
                           : cli_get(call, "double")->given ? "double"
                                                            : NULL;
        if (only) return cli_usage(call, NULL, "--%s is for nf4 and fp4, not for %s", only, name);
    }
    int64_t block = cli_get(call, "block")->integer;
    if ((block & (block - 1)) != 0)
        return cli_usage(call, NULL, "--block: %" PRId64 " is not a power of two from 32 to 4096", block);
    const char *next = cli_format("nibble diff %s %s --tol 0.2", cli_shell_word(call->arguments[0]),
                                  cli_shell_word(call->arguments[1]));
    return convert(call, quantize, name, next);
}

const cli_command cli_quantize = {
    .name = "quantize",
    .group = "Convert",
    .summary = "quantize the weights of a checkpoint to 4 or 8 bits",
    .description = "Writes folder OUT with the matrices of IN quantized, in the layout "
                   "that transformers and bitsandbytes load (mxfp4: that transformers "
                   "loads). Embeddings, norms, biases, the output head, and all else that "
                   "those libraries leave alone keep their bytes. So do the tokenizer and "
                   "all other files. A link that leads out of IN is refused, except "
                   "weights and the cache of the Hugging Face hub.\n\n"
                   "IN is not changed. OUT must not exist. It appears complete or not at "
                   "all. The result does not depend on the number of threads or the "
                   "instruction set.",
    .arguments =
        (const cli_argument[]){
            {"IN", "the checkpoint to read, a folder in Hugging Face layout", CLI_PATH, NULL, false},
            {"OUT", "the folder to write", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "format",
             .argument = "FORMAT",
             .kind = CLI_CHOICE,
             .choices = "nf4|fp4|int8|mxfp4",
             .required = true,
             .help = "how to store the weights"},
            {.name = "block",
             .argument = "N",
             .kind = CLI_INTEGER,
             .minimum = 32,
             .maximum = 4096,
             .fallback = "64",
             .help = "nf4 and fp4: values that share a scale, a power of two from 32 to "
                     "4096"},
            {.name = "double",
             .help = "nf4 and fp4: quantize the scales as well; with blocks of 64 this saves 0.37 bits per "
                     "weight"},
            {.name = "skip",
             .argument = "REGEX",
             .kind = CLI_TEXT,
             .help = "leave weights alone if this regular expression (PCRE2) matches in "
                     "their name"},
            {.name = "compute-dtype",
             .argument = "DTYPE",
             .kind = CLI_CHOICE,
             .choices = "f32|f16|bf16",
             .fallback = "bf16",
             .help = "what programs that load OUT compute in; written to its config.json"},
            SHARD_SIZE_OPTION,
            {.name = "allow-non-finite",
             .help = "accept weights with NaN or infinities, with a warning; otherwise "
                     "they are refused"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"four bits, as QLoRA uses them", "quantize Llama-3.2-1B Llama-3.2-1B-nf4 --format nf4 --double"},
            {"eight bits, the last layer untouched",
             "quantize Llama-3.2-1B Llama-3.2-1B-int8 --format int8 --skip 'layers\\.15\\.'"},
            {"the experts of GPT-OSS", "quantize gpt-oss-20b-bf16 gpt-oss-20b --format mxfp4"},
            {NULL, NULL},
        },
    .run = run_quantize,
};

/* ---- dequantize ---- */

static nbl_status dequantize(nbl_context *ctx, const cli_call *call, nbl_convert_report *report)
{
    nbl_dequantize_options how = {
        NBL_OPTIONS(nbl_dequantize_options),
        .dtype = cli_dtype(call, "dtype"),
        .shard_size = cli_get(call, "shard-size")->size,
    };
    return nbl_checkpoint_dequantize(ctx, call->arguments[0], call->arguments[1], &how, report);
}

static int run_dequantize(cli_call *call)
{
    const char *next = cli_format("nibble inspect %s", cli_shell_word(call->arguments[1]));
    return convert(call, dequantize, cli_get(call, "dtype")->text, next);
}

const cli_command cli_dequantize = {
    .name = "dequantize",
    .group = "Convert",
    .summary = "make a 16- or 32-bit checkpoint of a quantized one",
    .description = "Writes folder OUT with every packed weight of IN (nf4, fp4, int8, mxfp4) "
                   "dequantized, bit for bit as bitsandbytes and transformers dequantize it. All "
                   "other tensors and files keep their bytes. A warning names each tensor with NaN "
                   "or infinities.\n\n"
                   "IN is not changed. OUT must not exist. It appears complete or not at all.",
    .arguments =
        (const cli_argument[]){
            {"IN", "the quantized checkpoint to read", CLI_PATH, NULL, false},
            {"OUT", "the folder to write", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "dtype",
             .argument = "DTYPE",
             .kind = CLI_CHOICE,
             .choices = "f32|f16|bf16",
             .fallback = "bf16",
             .help = "dtype of the dequantized weights"},
            SHARD_SIZE_OPTION,
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"back to 16 bits", "dequantize Llama-3.2-1B-nf4 Llama-3.2-1B-plain"},
            {"without any rounding", "dequantize Llama-3.2-1B-nf4 Llama-3.2-1B-f32 --dtype f32"},
            {NULL, NULL},
        },
    .run = run_dequantize,
};
