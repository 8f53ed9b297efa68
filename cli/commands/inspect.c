/* inspect.c - `nibble inspect`: lists the contents of a checkpoint. Only headers are read, unless
 * --values is given. inspect_gguf.c does this for GGUF files, inspect_adapter.c for adapters. */
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "commands/commands.h"
#include "commands/inspect.h"
#include "output.h"
#include "process.h"

/* ---- names ---- */

/* Returns the name of a weight's format: the dtype of a dense weight, the format of a packed
 * one. */
static const char *storage_name(const nbl_weight *weight)
{
    return weight->format == NBL_FORMAT_DENSE ? nbl_dtype_name(weight->dtype)
                                              : nbl_format_name(weight->format);
}

/* Returns the dtype that a packed weight was made from, or NULL if the file does not have it. */
static const char *dtype_name(const nbl_weight *weight)
{
    return (unsigned)weight->dtype < NBL_DTYPE_COUNT ? nbl_dtype_name(weight->dtype) : NULL;
}

/* Turns "torch.bfloat16" and "bfloat16" into "bf16". NULL and unknown names stay as they are. */
static const char *our_dtype(const char *name)
{
    static const char *const torch[][2] = {
        {"float32", "f32"}, {"float16", "f16"}, {"half", "f16"}, {"bfloat16", "bf16"}};
    if (name == NULL) return NULL;
    if (strncmp(name, "torch.", 6) == 0) name += 6;
    for (size_t i = 0; i < sizeof torch / sizeof *torch; i++)
        if (strcmp(name, torch[i][0]) == 0) return torch[i][1];
    return name;
}

/* The number of elements of a weight's logical shape. */
static uint64_t elements(const nbl_weight *weight)
{
    uint64_t n = 1;
    for (int i = 0; i < weight->rank; i++) n *= (uint64_t)weight->shape[i];
    return n;
}

/* Sums parameters and bytes by storage format, and counts the files. */
static cli_totals count_formats(const nbl_checkpoint *checkpoint, int *files)
{
    cli_totals all = {.count = 0};
    const char *file = NULL;
    const nbl_tensor_info *tensor;
    *files = 0;
    for (int64_t i = 0; (tensor = nbl_checkpoint_get_tensor(checkpoint, i)) != NULL; i++) {
        cli_totals_add(&all, storage_name(&tensor->weight), elements(&tensor->weight), tensor->bytes);
        *files += file == NULL || strcmp(file, tensor->file) != 0; /* tensors are in the order of files */
        file = tensor->file;
    }
    cli_totals_sort(&all);
    return all;
}

static const char *problem_at(const void *checkpoint, int64_t index)
{
    return nbl_checkpoint_get_problem(checkpoint, index);
}

/* ---- for scripts ---- */

/* Returns one row of "tensors". A packed weight has its logical shape. */
static cli_json *describe_tensor(const nbl_tensor_info *tensor)
{
    cli_json *entry = cli_json_object();
    cli_json_set(entry, "name", cli_json_text(tensor->name));
    cli_json_set(entry, "format", cli_json_text(storage_name(&tensor->weight)));
    cli_json_set(entry, "dtype", cli_json_text(dtype_name(&tensor->weight)));
    cli_json_set(entry, "shape", cli_shape_json(tensor->weight.rank, tensor->weight.shape));
    cli_json_set(entry, "bytes", cli_json_unsigned(tensor->bytes));
    cli_json_set(entry, "file", cli_json_text(tensor->file));
    return entry;
}

/* Returns how the checkpoint was quantized, from its config.json; null: it was not. */
static cli_json *describe_quantization(const nbl_checkpoint *checkpoint,
                                       const nbl_checkpoint_summary *summary)
{
    if (summary->quantization == NULL) return cli_json_null();
    cli_json *entry = cli_json_object(), *skipped = cli_json_array();
    cli_json_set(entry, "format", cli_json_text(summary->quantization));
    cli_json_set(entry, "block",
                 summary->block ? cli_json_unsigned((uint64_t)summary->block) : cli_json_null());
    cli_json_set(entry, "nested", cli_json_boolean(summary->nested));
    cli_json_set(entry, "compute_dtype", cli_json_text(our_dtype(summary->compute_dtype)));
    const char *name;
    for (int64_t i = 0; (name = nbl_checkpoint_get_skipped(checkpoint, i)) != NULL; i++)
        cli_json_add(skipped, cli_json_text(name));
    cli_json_set(entry, "skipped", skipped);
    return entry;
}

/* Prints the document for --json. `problems` is always there and empty if nothing is wrong. */
static void print_document(const nbl_checkpoint *checkpoint, bool with_tensors)
{
    const nbl_checkpoint_summary *summary = nbl_checkpoint_get_summary(checkpoint);
    int files;
    cli_totals all = count_formats(checkpoint, &files);
    cli_json *document = cli_json_object();
    cli_json_set(document, "architecture", cli_json_text(summary->architecture));
    cli_json_set(document, "parameters", cli_json_unsigned((uint64_t)summary->parameters));
    cli_json_set(document, "bytes", cli_json_unsigned(summary->bytes));
    cli_json_set(document, "files", cli_json_unsigned((uint64_t)files));
    cli_json_set(document, "formats", cli_totals_json(&all));
    cli_json_set(document, "quantization", describe_quantization(checkpoint, summary));
    cli_json_set(document, "problems", cli_problems_json(problem_at, checkpoint));
    if (with_tensors) {
        cli_json *tensors = cli_json_array();
        const nbl_tensor_info *tensor;
        for (int64_t i = 0; (tensor = nbl_checkpoint_get_tensor(checkpoint, i)) != NULL; i++)
            cli_json_add(tensors, describe_tensor(tensor));
        cli_json_set(document, "tensors", tensors);
    }
    cli_json_print(document);
}

/* ---- for people ---- */

static void print_quantization(const nbl_checkpoint *checkpoint, const nbl_checkpoint_summary *summary)
{
    if (summary->quantization == NULL) return;
    const char *block = summary->block ? cli_format(", blocks of %" PRId64, summary->block) : "";
    const char *dtype = our_dtype(summary->compute_dtype);
    cli_fact("quantized", cli_format("%s%s%s%s%s", cli_clean(summary->quantization), block,
                                     summary->nested ? ", scales quantized as well" : "",
                                     dtype ? ", to be computed in " : "", dtype ? cli_clean(dtype) : ""));
    enum { SHOWN = 6 };
    const char *list = "";
    const char *name;
    int64_t count = 0;
    for (; (name = nbl_checkpoint_get_skipped(checkpoint, count)) != NULL; count++)
        if (count < SHOWN) list = cli_format("%s%s%s", list, count ? ", " : "", cli_clean(name));
    if (count > SHOWN) list = cli_format("%s and %" PRId64 " more", list, count - SHOWN);
    if (count) cli_fact("left alone", list);
}

/* Prints facts, totals by format, and problems. */
static void print_summary(const char *path, const nbl_checkpoint *checkpoint)
{
    const nbl_checkpoint_summary *summary = nbl_checkpoint_get_summary(checkpoint);
    int files;
    cli_totals all = count_formats(checkpoint, &files);
    cli_heading(path);
    cli_fact("architecture", summary->architecture ? cli_clean(summary->architecture) : "not stated");
    cli_fact("parameters", cli_format("%s (%s)", cli_short((double)summary->parameters),
                                      cli_grouped((uint64_t)summary->parameters)));
    cli_fact("size", cli_format("%s in %d %s, %s %s", cli_bytes((double)summary->bytes), files,
                                files == 1 ? "file" : "files", cli_grouped((uint64_t)summary->tensors),
                                summary->tensors == 1 ? "tensor" : "tensors"));
    print_quantization(checkpoint, summary);
    cli_totals_print(&all);
    cli_problems_print(problem_at, checkpoint);
}

/* Fills the row of tensor `index`. Returns false past the end. */
static bool tensor_row(void *checkpoint, int64_t index, cli_tensor_row *row)
{
    const nbl_tensor_info *tensor = nbl_checkpoint_get_tensor(checkpoint, index);
    if (tensor == NULL) return false;
    *row = (cli_tensor_row){.name = tensor->name,
                            .format = storage_name(&tensor->weight),
                            .shape = cli_shape_text(tensor->weight.rank, tensor->weight.shape),
                            .bytes = tensor->bytes,
                            .file = tensor->file};
    return true;
}

/* Inspects a folder or a .safetensors file. Problems are listed and do not change the exit
 * status. */
static int inspect_checkpoint(const cli_call *call, nbl_context *ctx, const char *path)
{
    nbl_checkpoint *checkpoint;
    nbl_status code = nbl_checkpoint_open(ctx, path, NBL_OPEN_TOLERANT, &checkpoint);
    bool with_tensors = cli_get(call, "tensors")->given;
    if (code == NBL_OK && cli_get(call, "values")->given) {
        cli_work_begin("");
        code = nbl_checkpoint_check_values(checkpoint);
        cli_work_end(code);
        if (code != NBL_OK) nbl_checkpoint_close(checkpoint);
    }
    if (code != NBL_OK) return cli_failure(call, ctx, code);
    if (call->json) {
        print_document(checkpoint, with_tensors);
    } else {
        print_summary(path, checkpoint);
        if (with_tensors) cli_tensors_print(tensor_row, checkpoint);
    }
    nbl_checkpoint_close(checkpoint);
    return CLI_DONE;
}

/* ---- checkpoint, GGUF file or adapter ---- */

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static bool has_file(const char *folder, const char *name)
{
    return access(cli_format("%s/%s", folder, name), F_OK) == 0;
}

/* Returns the adapter's folder, or NULL if the path is no adapter. An adapter is a folder that has
 * an adapter's settings and no model, or the file in such a folder. */
static const char *adapter_folder(const char *path)
{
    static const char weights[] = "adapter_model.safetensors";
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (strcmp(name, weights) == 0 && access(path, F_OK) == 0)
        return slash == NULL ? "." : slash == path ? "/" : cli_format("%.*s", (int)(slash - path), path);
    bool adapter = has_file(path, "adapter_config.json") || has_file(path, weights) ||
                   has_file(path, "adapter_model.bin");
    return adapter && !has_file(path, "config.json") ? path : NULL;
}

static int run(cli_call *call)
{
    int status;
    if (cli_get(call, "base")->given && adapter_folder(call->arguments[0]) == NULL)
        return cli_usage(call, NULL, "--base is for adapters, and %s is none", cli_clean(call->arguments[0]));
    if (cli_get(call, "values")->given && ends_with(call->arguments[0], ".gguf"))
        return cli_usage(call, NULL, "--values is for folders and .safetensors files, not for .gguf files");
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    const char *path = call->arguments[0], *adapter = adapter_folder(path),
               *base = cli_get(call, "base")->text;
    if (ends_with(path, ".gguf")) status = cli_inspect_gguf(call, ctx, path);
    else if (adapter) status = cli_inspect_adapter(call, ctx, adapter, base);
    else status = inspect_checkpoint(call, ctx, path);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_inspect = {
    .name = "inspect",
    .group = "Look",
    .summary = "show what is in a checkpoint, a GGUF file or an adapter",
    .description = "Shows the architecture, the number of parameters, the size, the storage formats, "
                   "and how a checkpoint was quantized. Lists what is wrong with it. A packed weight "
                   "is one tensor with its logical shape. Its bytes include its scales and its "
                   "state. Only headers are read, so this is quick for any size. --values reads all "
                   "values.\n\n"
                   "For a GGUF file, also shows the tokenizer and the metadata: numbers, texts cut "
                   "to 200 bytes, and the first values of arrays.\n\n"
                   "For an adapter saved by PEFT (a folder, or adapter_model.safetensors in it), "
                   "shows the settings. All values are read, and those that are not finite are "
                   "counted. With --base the adapter is compared with a model: modules, shapes, and "
                   "what the settings need.\n\n"
                   "The exit status is 0 if the problems could be listed. All of them are listed.",
    .arguments =
        (const cli_argument[]){
            {"PATH", "a folder in Hugging Face layout, a .safetensors or .gguf file, or an adapter", CLI_PATH,
             NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "tensors", .help = "list every tensor: name, format, shape, bytes, file"},
            {.name = "values", .help = "read all values, too: a tensor with NaN or infinities is a problem"},
            {.name = "base",
             .argument = "DIR",
             .kind = CLI_PATH,
             .help = "compare an adapter with this model, a folder or a .gguf file"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"the summary", "inspect Llama-3.2-1B"},
            {"the parameters of a model, for a script", "inspect Llama-3.2-1B --json | jq .parameters"},
            {"the ten largest tensors",
             "inspect Llama-3.2-1B --tensors --json | jq -r '.tensors | sort_by(-.bytes)[:10][] | .name'"},
            {"does this adapter fit that model?", "inspect my-lora --base Llama-3.2-1B"},
            {"the metadata of a GGUF file, for a script", "inspect model.gguf --json | jq .metadata"},
            {NULL, NULL},
        },
    .run = run,
};
