/* inspect.c - `nibble inspect`: what is in a checkpoint, from its headers alone; no weight is read. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands.h"
#include "output.h"
#include "session.h"

/* ---- what the library tells, in the words of this tool ---- */

/* Dense weights are named by their dtype, packed ones by their format. */
static const char *storage_name(const nbl_weight *weight)
{
    return weight->format == NBL_FORMAT_DENSE ? nbl_dtype_name(weight->dtype)
                                              : nbl_format_name(weight->format);
}

/* NULL when the file does not tell what a packed weight was made from. */
static const char *dtype_name(const nbl_weight *weight)
{
    return (unsigned)weight->dtype < NBL_DTYPE_COUNT ? nbl_dtype_name(weight->dtype) : NULL;
}

/* "torch.bfloat16" and "bfloat16" are our bf16; NULL and unknown names stay. */
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

static uint64_t elements(const nbl_weight *weight)
{
    uint64_t n = 1;
    for (int i = 0; i < weight->rank; i++) n *= (uint64_t)weight->shape[i];
    return n;
}

/* Totals of one storage format. There are few formats, so a short list will do. */
typedef struct total {
    const char *name;
    int64_t tensors;
    uint64_t parameters, bytes;
} total;

enum { MOST_FORMATS = 64 };

typedef struct totals {
    total rows[MOST_FORMATS];
    int count, files;
} totals;

static int by_bytes(const void *a, const void *b)
{
    const total *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return strcmp(x->name, y->name);
}

static totals count_formats(const nbl_checkpoint *checkpoint)
{
    totals all = {.count = 0};
    const char *file = NULL;
    const nbl_tensor_info *tensor;
    for (int64_t i = 0; (tensor = nbl_checkpoint_get_tensor(checkpoint, i)) != NULL; i++) {
        const char *name = storage_name(&tensor->weight);
        int at = 0;
        while (at < all.count && strcmp(all.rows[at].name, name) != 0) at++;
        if (at == MOST_FORMATS) continue;
        if (at == all.count) all.rows[all.count++].name = name;
        all.rows[at].tensors++;
        all.rows[at].parameters += elements(&tensor->weight);
        all.rows[at].bytes += tensor->bytes;
        all.files += file == NULL || strcmp(file, tensor->file) != 0; /* tensors come file by file */
        file = tensor->file;
    }
    qsort(all.rows, (size_t)all.count, sizeof *all.rows, by_bytes);
    return all;
}

/* ---- for scripts ---- */

static json_t *shape_of(const nbl_weight *weight)
{
    json_t *shape = cli_json_array();
    for (int i = 0; i < weight->rank; i++) cli_json_add(shape, cli_json_unsigned((uint64_t)weight->shape[i]));
    return shape;
}

static json_t *describe_tensor(const nbl_tensor_info *tensor)
{
    json_t *entry = cli_json_object();
    cli_json_set(entry, "name", cli_json_text(tensor->name));
    cli_json_set(entry, "format", cli_json_text(storage_name(&tensor->weight)));
    cli_json_set(entry, "dtype", cli_json_text(dtype_name(&tensor->weight)));
    cli_json_set(entry, "shape", shape_of(&tensor->weight));
    cli_json_set(entry, "bytes", cli_json_unsigned(tensor->bytes));
    cli_json_set(entry, "file", cli_json_text(tensor->file));
    return entry;
}

static json_t *describe_quantization(const nbl_checkpoint *checkpoint, const nbl_checkpoint_summary *summary)
{
    if (summary->quantization == NULL) return json_null();
    json_t *entry = cli_json_object(), *skipped = cli_json_array();
    cli_json_set(entry, "format", cli_json_text(summary->quantization));
    cli_json_set(entry, "block", summary->block ? cli_json_unsigned((uint64_t)summary->block) : json_null());
    cli_json_set(entry, "nested", json_boolean(summary->nested));
    cli_json_set(entry, "compute_dtype", cli_json_text(our_dtype(summary->compute_dtype)));
    const char *name;
    for (int64_t i = 0; (name = nbl_checkpoint_get_skipped(checkpoint, i)) != NULL; i++)
        cli_json_add(skipped, cli_json_text(name));
    cli_json_set(entry, "skipped", skipped);
    return entry;
}

static void print_document(const nbl_checkpoint *checkpoint, bool with_tensors)
{
    const nbl_checkpoint_summary *summary = nbl_checkpoint_get_summary(checkpoint);
    totals all = count_formats(checkpoint);
    json_t *document = cli_json_object(), *formats = cli_json_object(), *problems = cli_json_array();
    cli_json_set(document, "architecture", cli_json_text(summary->architecture));
    cli_json_set(document, "parameters", cli_json_unsigned((uint64_t)summary->parameters));
    cli_json_set(document, "bytes", cli_json_unsigned(summary->bytes));
    cli_json_set(document, "files", cli_json_unsigned((uint64_t)all.files));
    for (int i = 0; i < all.count; i++) {
        json_t *entry = cli_json_object();
        cli_json_set(entry, "tensors", cli_json_unsigned((uint64_t)all.rows[i].tensors));
        cli_json_set(entry, "parameters", cli_json_unsigned(all.rows[i].parameters));
        cli_json_set(entry, "bytes", cli_json_unsigned(all.rows[i].bytes));
        cli_json_set(formats, all.rows[i].name, entry);
    }
    cli_json_set(document, "formats", formats);
    cli_json_set(document, "quantization", describe_quantization(checkpoint, summary));
    const char *problem;
    for (int64_t i = 0; (problem = nbl_checkpoint_get_problem(checkpoint, i)) != NULL; i++)
        cli_json_add(problems, cli_json_text(problem));
    cli_json_set(document, "problems", problems);
    if (with_tensors) {
        json_t *tensors = cli_json_array();
        const nbl_tensor_info *tensor;
        for (int64_t i = 0; (tensor = nbl_checkpoint_get_tensor(checkpoint, i)) != NULL; i++)
            cli_json_add(tensors, describe_tensor(tensor));
        cli_json_set(document, "tensors", tensors);
    }
    cli_json_print(document);
}

/* ---- for people ---- */

static void fact(const char *name, const char *text)
{
    fprintf(cli_out(), "  %s%-13s%s ", cli_styled(CLI_BOLD), name, cli_styled(CLI_PLAIN));
    cli_wrap(cli_out(), text, 16, 16);
}

static void print_quantization(const nbl_checkpoint *checkpoint, const nbl_checkpoint_summary *summary)
{
    if (summary->quantization == NULL) return;
    const char *block = summary->block ? cli_format(", blocks of %" PRId64, summary->block) : "";
    const char *dtype = our_dtype(summary->compute_dtype);
    fact("quantised", cli_format("%s%s%s%s%s", cli_clean(summary->quantization), block,
                                 summary->nested ? ", scales quantised as well" : "",
                                 dtype ? ", to be computed in " : "", dtype ? cli_clean(dtype) : ""));
    enum { SHOWN = 6 };
    const char *list = "";
    const char *name;
    int64_t count = 0;
    for (; (name = nbl_checkpoint_get_skipped(checkpoint, count)) != NULL; count++)
        if (count < SHOWN) list = cli_format("%s%s%s", list, count ? ", " : "", cli_clean(name));
    if (count > SHOWN) list = cli_format("%s and %" PRId64 " more", list, count - SHOWN);
    if (count) fact("left alone", list);
}

static void print_problems(const nbl_checkpoint *checkpoint)
{
    const char *problem;
    for (int64_t i = 0; (problem = nbl_checkpoint_get_problem(checkpoint, i)) != NULL; i++) {
        if (i == 0) fprintf(cli_out(), "\n  %sproblems%s\n", cli_styled(CLI_RED), cli_styled(CLI_PLAIN));
        fputs("  - ", cli_out());
        cli_wrap(cli_out(), cli_clean(problem), 4, 4);
    }
}

static void print_format_row(const char *name, const total *row)
{
    double bits = row->parameters ? 8.0 * (double)row->bytes / (double)row->parameters : 0;
    fprintf(cli_out(), "  %-12s %8" PRId64 " %19s %19s %7.2f\n", name, row->tensors,
            cli_grouped(row->parameters), cli_grouped(row->bytes), bits);
}

static void print_summary(const char *path, const nbl_checkpoint *checkpoint)
{
    const nbl_checkpoint_summary *summary = nbl_checkpoint_get_summary(checkpoint);
    totals all = count_formats(checkpoint);
    fprintf(cli_out(), "%s%s%s\n", cli_styled(CLI_BOLD), cli_clean(path), cli_styled(CLI_PLAIN));
    fact("architecture", summary->architecture ? cli_clean(summary->architecture) : "not told");
    fact("parameters", cli_format("%s (%s)", cli_short((double)summary->parameters),
                                  cli_grouped((uint64_t)summary->parameters)));
    fact("size", cli_format("%s in %d %s, %s %s", cli_bytes((double)summary->bytes), all.files,
                            all.files == 1 ? "file" : "files", cli_grouped((uint64_t)summary->tensors),
                            summary->tensors == 1 ? "tensor" : "tensors"));
    print_quantization(checkpoint, summary);
    if (all.count) {
        fprintf(cli_out(), "\n  %s%-12s %8s %19s %19s %7s%s\n", cli_styled(CLI_BOLD), "format", "tensors",
                "parameters", "bytes", "bits", cli_styled(CLI_PLAIN));
        total sum = {.tensors = 0};
        for (int i = 0; i < all.count; i++) {
            print_format_row(all.rows[i].name, &all.rows[i]);
            sum.tensors += all.rows[i].tensors;
            sum.parameters += all.rows[i].parameters;
            sum.bytes += all.rows[i].bytes;
        }
        if (all.count > 1) print_format_row("all", &sum);
    }
    print_problems(checkpoint);
}

static const char *shape_text(const nbl_weight *weight)
{
    const char *text = "";
    for (int i = 0; i < weight->rank; i++)
        text = cli_format("%s%s%" PRId64, text, i ? " x " : "", weight->shape[i]);
    return weight->rank ? text : "scalar";
}

static void print_tensors(const nbl_checkpoint *checkpoint)
{
    enum { WIDEST = 100 }; /* longer names push their row to the right */
    int name_width = 4, shape_width = 5;
    const nbl_tensor_info *tensor;
    for (int64_t i = 0; (tensor = nbl_checkpoint_get_tensor(checkpoint, i)) != NULL; i++) {
        int name = cli_columns(cli_clean(tensor->name)), shape = cli_columns(shape_text(&tensor->weight));
        if (name > name_width) name_width = name > WIDEST ? WIDEST : name;
        if (shape > shape_width) shape_width = shape;
    }
    fprintf(cli_out(), "\n  %s%-*s  %-8s  %-*s  %14s  %s%s\n", cli_styled(CLI_BOLD), name_width, "name",
            "format", shape_width, "shape", "bytes", "file", cli_styled(CLI_PLAIN));
    for (int64_t i = 0; (tensor = nbl_checkpoint_get_tensor(checkpoint, i)) != NULL; i++) {
        const char *name = cli_clean(tensor->name);
        int pad = name_width - cli_columns(name);
        fprintf(cli_out(), "  %s%*s  %-8s  %-*s  %14s  %s\n", name, pad > 0 ? pad : 0, "",
                storage_name(&tensor->weight), shape_width, shape_text(&tensor->weight),
                cli_grouped(tensor->bytes), cli_clean(tensor->file));
    }
}

static int run(cli_call *call)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    bool with_tensors = cli_get(call, "tensors")->given;
    nbl_checkpoint *checkpoint = NULL;
    nbl_status code = nbl_checkpoint_open(ctx, call->arguments[0], NBL_OPEN_TOLERANT, &checkpoint);
    if (code != NBL_OK) {
        status = cli_failure(call, ctx, code);
    } else if (call->json) {
        print_document(checkpoint, with_tensors);
    } else {
        print_summary(call->arguments[0], checkpoint);
        if (with_tensors) print_tensors(checkpoint);
    }
    if (code == NBL_OK) nbl_checkpoint_close(checkpoint);
    cli_context_end(ctx);
    return status;
}

const cli_command cli_inspect = {
    .name = "inspect",
    .group = "Look",
    .summary = "what is in a checkpoint",
    .description = "Tells the architecture, the number of parameters, the size, the storage formats and how "
                   "a checkpoint was "
                   "quantised, and lists what is wrong with it. A packed weight is one tensor, with its "
                   "logical shape; its bytes "
                   "include its scales and state. Only headers are read, so this is quick for any size.\n\n"
                   "A checkpoint with problems that can still be listed gives exit status 0; the problems "
                   "are in the listing.",
    .arguments =
        (const cli_argument[]){
            {"PATH", "a folder in Hugging Face layout, or one .safetensors file", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "tensors", .help = "list every tensor: name, format, shape, bytes, file"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"the summary", "inspect Llama-3.2-1B"},
            {"the parameters of a model, for a script", "inspect Llama-3.2-1B --json | jq .parameters"},
            {"the ten largest tensors",
             "inspect Llama-3.2-1B --tensors --json | jq -r '.tensors | sort_by(-.bytes)[:10][] | .name'"},
            {NULL, NULL},
        },
    .run = run,
};
