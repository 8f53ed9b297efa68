/* merge.c - `nibble merge`: the command's table, and its call of the library. It writes folder OUT;
 * --verify computes logits of the result and of BASE with ADAPTER and compares them. */
#include "commands/commands.h"
#include "model.h"
#include "output.h"
#include "process.h"

/* Prints the result for --json. The deviations are null without --verify. */
static void print_document(const cli_call *call, const nbl_merge_report *report, double seconds)
{
    bool verified = report->verified;
    cli_json *document = cli_json_object();
    cli_json_set(document, "out", cli_json_text(call->arguments[2]));
    cli_json_set(document, "dtype", cli_json_text(nbl_dtype_name(report->dtype)));
    cli_json_set(document, "tensors", cli_json_unsigned((uint64_t)report->tensors));
    cli_json_set(document, "merged", cli_json_unsigned((uint64_t)report->changed));
    cli_json_set(document, "bytes_in", cli_json_unsigned(report->bytes_in));
    cli_json_set(document, "bytes_out", cli_json_unsigned(report->bytes_out));
    cli_json_set(document, "files", cli_json_unsigned((uint64_t)report->files));
    cli_json_set(document, "verified", cli_json_boolean(verified));
    cli_json_set(document, "max_logit_deviation",
                 verified ? cli_json_number(report->max_logit_deviation) : cli_json_null());
    cli_json_set(document, "relative_deviation",
                 verified ? cli_json_number(report->relative_deviation) : cli_json_null());
    cli_json_set(document, "allowed_deviation",
                 verified ? cli_json_number(report->allowed_deviation) : cli_json_null());
    cli_json_set(document, "seconds", cli_json_number(seconds));
    cli_json_print(document);
}

/* Prints the result for people, with the command to type next. */
static void print_summary(const cli_call *call, const nbl_merge_report *report, double seconds)
{
    FILE *to = cli_out();
    const char *out = call->arguments[2];
    fprintf(to, "%s%s%s: %s of %s weights changed, all in %s, %s\n", cli_styled(CLI_BOLD), cli_clean(out),
            cli_styled(CLI_PLAIN), cli_grouped((uint64_t)report->changed),
            cli_grouped((uint64_t)report->tensors), nbl_dtype_name(report->dtype),
            cli_bytes((double)report->bytes_out));
    fprintf(to, "%d %s in %s\n", report->files, report->files == 1 ? "file" : "files", cli_duration(seconds));
    if (report->verified)
        fprintf(to, "verified: logits deviate by at most %.2g, %.2g of their size; %s explains %.2g\n",
                report->max_logit_deviation, report->relative_deviation, nbl_dtype_name(report->dtype),
                report->allowed_deviation);
    fprintf(to, "next: nibble generate %s --prompt \"...\"\n", cli_shell_word(out));
}

static int run_merge(cli_call *call)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_merge_options how = {NBL_OPTIONS(nbl_merge_options), .dtype = cli_dtype(call, "dtype"),
                             .verify = cli_get(call, "verify")->given,
                             .shard_size = cli_get(call, "shard-size")->size,
                             .allow_non_finite = cli_get(call, "allow-non-finite")->given};
    nbl_merge_report report = {NBL_RESULT(nbl_merge_report)};
    double began = cli_now();
    cli_work_begin("nothing was written");
    nbl_status code = nbl_merge(ctx, call->arguments[0], call->arguments[1], call->arguments[2], &how,
                                &report);
    cli_work_end(code);
    if (code != NBL_OK) status = cli_failure(call, ctx, code);
    else if (call->json) print_document(call, &report, cli_now() - began);
    else if (!call->quiet) print_summary(call, &report, cli_now() - began);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_merge = {
    .name = "merge",
    .group = "Convert",
    .summary = "make one model of a base and its adapter",
    .description = "Writes folder OUT: the weights of BASE with ADAPTER merged into them. ADAPTER is "
                   "a folder as PEFT saves it: LoRA, rsLoRA, DoRA, modules_to_save. Packed weights "
                   "are dequantized to f32. Each weight is summed once and rounded once. All other "
                   "files are copied. The tokenizer and the chat template are those of ADAPTER, if "
                   "it has its own. A link that leads out of a folder is refused, except weights and "
                   "the cache of the Hugging Face hub.\n\n"
                   "BASE is not changed. OUT must not exist. It appears complete or not at all.",
    .arguments =
        (const cli_argument[]){
            {"BASE", "the model that was adapted: 16-bit or quantized", CLI_PATH, NULL, false},
            {"ADAPTER", "the adapter's folder", CLI_PATH, NULL, false},
            {"OUT", "the folder to write", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "dtype",
             .argument = "DTYPE",
             .kind = CLI_CHOICE,
             .choices = "f32|f16|bf16",
             .help = "dtype of all weights (default: the one that BASE names in config.json, else bf16)"},
            {.name = "verify",
             .help = "compare logits of the result with those of BASE with ADAPTER; fail "
                     "if they differ by more than the dtype explains"},
            {.name = "shard-size",
             .argument = "SIZE",
             .kind = CLI_SIZE,
             .fallback = "5G",
             .help = "largest size of a file of weights"},
            {.name = "allow-non-finite",
             .help = "accept weights with NaN or infinities, with a warning; otherwise "
                     "they are refused"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"a model that stands alone", "merge Llama-3.2-1B-nf4 out merged --verify"},
            {NULL, NULL},
        },
    .run = run_merge,
};
