/* logits_grads.c - `nibble logits` and `nibble grads`: write the logits or gradients of a model
 * into files that other libraries can read.
 *
 * Both check the output file before the model is opened, because opening and computing can take
 * long. The result is one .safetensors file with nibble's mark (docs/ARCHITECTURE.md,
 * Results). */
#include <inttypes.h>
#include <string.h>

#include "commands/commands.h"
#include "model.h"
#include "output.h"
#include "process.h"

/* Computes and writes the logits. Ids out of the vocabulary are refused by the library. */
static int run_logits(cli_call *call)
{
    cli_ids ids;
    int status;
    if (!cli_read_ids(call, cli_get(call, "ids")->text, 0, INT32_MAX, &ids)) return CLI_FAILED;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_model *model = NULL;
    const char *out = cli_get(call, "out")->text;
    int force = (int)cli_get(call, "force")->integer;
    nbl_status code = nbl_result_check(ctx, out, force);
    if (code == NBL_OK) code = cli_model_open(call, ctx, false, &model);
    if (code == NBL_OK) code = nbl_model_write_logits(model, ids.lists, ids.count, out, force);
    status = code == NBL_OK ? CLI_DONE : cli_failure(call, ctx, code);
    if (code == NBL_OK && call->json) {
        cli_json *document = cli_json_object();
        cli_json_set(document, "sequences", cli_json_integer(ids.count));
        cli_json_print(document);
    }
    nbl_model_close(model);
    cli_context_end(ctx);
    return status;
}

/* Computes and writes the gradients. ids and labels have one list per sequence; the library checks
 * that their lengths agree. */
static int run_grads(cli_call *call)
{
    cli_ids ids, labels;
    int status;
    double loss = 0;
    int64_t trained = 0;
    if (!cli_read_ids(call, cli_get(call, "ids")->text, 0, INT32_MAX, &ids)) return CLI_FAILED;
    if (!cli_read_ids(call, cli_get(call, "labels")->text, -100, INT32_MAX, &labels)) return CLI_FAILED;
    if (labels.count != ids.count)
        return cli_error(call, NBL_ERROR_SHAPE, NULL, "%" PRId64 " sequences, but labels of %" PRId64,
                         ids.count, labels.count);
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_model *model = NULL;
    const char *out = cli_get(call, "out")->text;
    int force = (int)cli_get(call, "force")->integer;
    nbl_status code = nbl_result_check(ctx, out, force);
    if (code == NBL_OK) code = cli_model_open(call, ctx, false, &model);
    if (code == NBL_OK)
        code = nbl_model_write_gradients(model, ids.lists, labels.lists, ids.count,
                                         (int)cli_get(call, "pack")->integer,
                                         (int)cli_get(call, "dropout")->integer, out, force, &loss, &trained);
    status = code == NBL_OK ? CLI_DONE : cli_failure(call, ctx, code);
    if (code == NBL_OK && call->json) {
        cli_json *document = cli_json_object();
        cli_json_set(document, "loss", cli_json_number(loss));
        cli_json_set(document, "trained_tokens", cli_json_integer(trained));
        cli_json_print(document);
    } else if (code == NBL_OK && !call->quiet) {
        fprintf(cli_out(), "loss %.7g over %" PRId64 " trained tokens\n", loss, trained);
    }
    nbl_model_close(model);
    cli_context_end(ctx);
    return status;
}

/* Options of both commands. */
#define IDS_OPTION                                                                                           \
    {                                                                                                        \
        .name = "ids", .argument = "F", .kind = CLI_PATH, .required = true,                                  \
        .help = "a JSON file: a list of lists of token ids"                                                  \
    }
#define OUT_OPTION                                                                                           \
    {                                                                                                        \
        .name = "out", .argument = "O.safetensors", .kind = CLI_PATH, .required = true,                      \
        .help = "the file to write"                                                                          \
    }
#define FORCE_OPTION                                                                                         \
    {                                                                                                        \
        .name = "force", .help = "replace O.safetensors if it is an earlier result of logits or grads"       \
    }
const cli_command cli_logits = {
    .name = "logits",
    .computes = true,
    .group = "Models",
    .summary = "compute the logits of every position of token sequences",
    .description = "Writes a file of tensors logits.0, logits.1, ..., one per sequence: "
                   "f32 [tokens, vocabulary].",
    .arguments = CLI_MODEL_ARGUMENT,
    .options =
        (const cli_option[]){
            IDS_OPTION,
            OUT_OPTION,
            FORCE_OPTION,
            CLI_MODEL_OPTIONS,
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"compare two formats", "logits Llama-3.2-1B --ids ids.json --out l.safetensors --load nf4"},
            {NULL, NULL},
        },
    .run = run_logits,
};

const cli_command cli_grads = {
    .name = "grads",
    .computes = true,
    .group = "Models",
    .summary = "compute the loss and the adapter's gradients in one pass",
    .description = "Computes the mean loss over all trained tokens, and writes the "
                   "gradient of each tensor of the adapter: f32, under its name in PEFT's "
                   "file, modules_to_save included. A label of -100 is not trained. The "
                   "label of a token is what the model should predict before it. There is "
                   "no dropout, unless --dropout is given.",
    .arguments = CLI_MODEL_ARGUMENT,
    .options =
        (const cli_option[]){
            IDS_OPTION,
            {.name = "labels",
             .argument = "F",
             .kind = CLI_PATH,
             .required = true,
             .help = "a JSON file: the labels, one per token"},
            CLI_ADAPTER_OPTION("the adapter, as PEFT saves it", true),
            OUT_OPTION,
            FORCE_OPTION,
            {.name = "pack",
             .help = "compute all sequences in one pass; without --dropout the "
                     "result is the same"},
            {.name = "dropout", .help = "apply the adapter's lora_dropout, with the masks of seed 0"},
            CLI_COMPUTE_OPTIONS,
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"judge a training step",
             "grads Llama-3.2-1B --ids ids.json --labels labels.json --adapter lora --out g.safetensors"},
            {NULL, NULL},
        },
    .run = run_grads,
};
