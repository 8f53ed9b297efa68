/* diff.c - `nibble diff`: two checkpoints compared weight by weight.
 *
 * The library compares; this file sorts and prints. Exit status: 0 if all is within --tol, 1 if not
 * (CLI_FAILED, also of errors). */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "commands/commands.h"
#include "output.h"
#include "process.h"

/* Returns the name of the index-th weight that one of the two lacks. NULL: past the end. */
typedef const char *(*missing_fn)(const nbl_diff *diff, int64_t index);

/* ---- for scripts ---- */

static cli_json *names_of(const nbl_diff *diff, missing_fn get)
{
    cli_json *list = cli_json_array();
    const char *name;
    for (int64_t i = 0; (name = get(diff, i)) != NULL; i++) cli_json_add(list, cli_json_text(name));
    return list;
}

/* Prints every tensor, equal ones included. The figures of tensors of different shapes are null. */
static void print_document(const nbl_diff *diff, bool within)
{
    cli_json *document = cli_json_object(), *tensors = cli_json_array();
    cli_json_set(document, "equal", cli_json_boolean(nbl_diff_equal(diff)));
    cli_json_set(document, "within", cli_json_boolean(within));
    cli_json_set(document, "missing_in_a", names_of(diff, nbl_diff_get_missing_in_a));
    cli_json_set(document, "missing_in_b", names_of(diff, nbl_diff_get_missing_in_b));
    const nbl_tensor_diff *tensor;
    for (int64_t i = 0; (tensor = nbl_diff_get_tensor(diff, i)) != NULL; i++) {
        cli_json *entry = cli_json_object();
        bool figures = tensor->same_shape;
        cli_json_set(entry, "name", cli_json_text(tensor->name));
        cli_json_set(entry, "equal", cli_json_boolean(tensor->equal));
        cli_json_set(entry, "max_abs", figures ? cli_json_number(tensor->max_abs) : cli_json_null());
        cli_json_set(entry, "rel_norm", figures ? cli_json_number(tensor->rel_norm) : cli_json_null());
        cli_json_set(entry, "cosine", figures ? cli_json_number(tensor->cosine) : cli_json_null());
        if (!figures) cli_json_set(entry, "shape_differs", cli_json_boolean(true));
        cli_json_add(tensors, entry);
    }
    cli_json_set(document, "tensors", tensors);
    cli_json_print(document);
}

/* ---- for people ---- */

/* Order of the rows: different shapes first, then non-finite distances, then by distance. */
static double badness(const nbl_tensor_diff *tensor)
{
    if (!tensor->same_shape) return HUGE_VAL;
    return isnan(tensor->rel_norm) ? HUGE_VAL : tensor->rel_norm;
}

/* Sorts the worst first; ties by name, so the output does not depend on qsort. */
static int by_badness(const void *a, const void *b)
{
    const nbl_tensor_diff *x = *(const nbl_tensor_diff *const *)a, *y = *(const nbl_tensor_diff *const *)b;
    if (x->same_shape != y->same_shape) return x->same_shape ? 1 : -1;
    double p = badness(x), q = badness(y);
    return p > q ? -1 : p < q ? 1 : strcmp(x->name, y->name);
}

/* Four digits, or "nan" and "inf" on every C library. */
static const char *figure(double value)
{
    return isnan(value) ? "nan" : isinf(value) ? "inf" : cli_format("%.4g", value);
}

enum { SHOWN = 20 };

/* Prints the weights that only the checkpoint `other` has, at most SHOWN of them. */
static void print_missing(const nbl_diff *diff, missing_fn get, const char *other)
{
    const char *name;
    int64_t count = 0;
    for (; (name = get(diff, count)) != NULL; count++)
        if (count < SHOWN) fprintf(cli_out(), "only in %s: %s\n", cli_clean(other), cli_clean(name));
    if (count > SHOWN) fprintf(cli_out(), "... and %" PRId64 " more only there\n", count - SHOWN);
}

/* Prints the first SHOWN rows. The column of names is as wide as the longest shown one, at most
 * 100. Padding counts columns of the terminal, not bytes. */
static void print_table(const nbl_tensor_diff **rows, int64_t count)
{
    int width = 6;
    for (int64_t i = 0; i < count && i < SHOWN; i++) {
        int columns = cli_columns(cli_clean(rows[i]->name));
        if (columns > width) width = columns > 100 ? 100 : columns;
    }
    fprintf(cli_out(), "%s%-*s  %10s  %10s  %10s%s\n", cli_styled(CLI_BOLD), width, "tensor", "rel_norm",
            "max_abs", "cosine", cli_styled(CLI_PLAIN));
    for (int64_t i = 0; i < count && i < SHOWN; i++) {
        const char *name = cli_clean(rows[i]->name);
        int pad = width - cli_columns(name);
        fprintf(cli_out(), "%s%*s  ", name, pad > 0 ? pad : 0, "");
        if (!rows[i]->same_shape) fputs("another shape\n", cli_out());
        else
            fprintf(cli_out(), "%10s  %10s  %10s\n", figure(rows[i]->rel_norm), figure(rows[i]->max_abs),
                    isfinite(rows[i]->cosine) ? cli_format("%.6f", rows[i]->cosine)
                                              : figure(rows[i]->cosine));
    }
    if (count > SHOWN) fprintf(cli_out(), "... and %" PRId64 " more that differ\n", count - SHOWN);
}

/* Prints tensors that differ, missing ones, and one line with the verdict. */
static void print_comparison(const cli_call *call, const nbl_diff *diff, bool within)
{
    int64_t all = 0, count = 0;
    while (nbl_diff_get_tensor(diff, all)) all++;
    const nbl_tensor_diff **rows = cli_alloc((size_t)(all + 1) * sizeof *rows);
    for (int64_t i = 0; i < all; i++) {
        const nbl_tensor_diff *tensor = nbl_diff_get_tensor(diff, i);
        if (!tensor->equal) rows[count++] = tensor;
    }
    qsort(rows, (size_t)count, sizeof *rows, by_badness);
    if (count) print_table(rows, count);
    print_missing(diff, nbl_diff_get_missing_in_b, call->arguments[0]);
    print_missing(diff, nbl_diff_get_missing_in_a, call->arguments[1]);

    const char *total = cli_grouped((uint64_t)all), *differ = cli_grouped((uint64_t)count);
    const char *good = cli_styled(CLI_GREEN), *bad = cli_styled(CLI_RED), *plain = cli_styled(CLI_PLAIN);
    if (nbl_diff_equal(diff))
        fprintf(cli_out(), "%sequal%s: all %s tensors, bit for bit\n", good, plain, total);
    else if (within)
        fprintf(cli_out(), "%swithin%s the tolerance of %s: %s of %s tensors differ, rel_norm at most %s\n",
                good, plain, cli_get(call, "tol")->text, differ, total,
                count ? figure(rows[0]->rel_norm) : "0");
    else fprintf(cli_out(), "%sdifferent%s: %s of %s tensors differ\n", bad, plain, differ, total);
}

static int run(cli_call *call)
{
    int status;
    nbl_context *ctx = cli_context(call, &status);
    if (ctx == NULL) return status;
    nbl_diff *diff = NULL;
    cli_work_begin("");
    nbl_status code = nbl_checkpoint_diff(ctx, call->arguments[0], call->arguments[1], &diff);
    cli_work_end(code);
    if (code != NBL_OK) {
        status = cli_failure(call, ctx, code);
    } else {
        bool within = nbl_diff_within(diff, cli_get(call, "tol")->number);
        status = within ? CLI_DONE : CLI_FAILED;
        if (call->json) print_document(diff, within);
        else print_comparison(call, diff, within);
        nbl_diff_free(diff);
    }
    cli_context_end(ctx);
    return status;
}

const cli_command cli_diff = {
    .name = "diff",
    .group = "Look",
    .summary = "compare the weights of two checkpoints",
    .description = "Compares two checkpoints weight by weight, by value. Formats, dtypes "
                   "and files may differ: packed weights are dequantized first. Shows for "
                   "each tensor the largest difference (max_abs), the norm of the "
                   "difference over the norm of B's tensor (rel_norm), and the cosine "
                   "between the two.\n\n"
                   "The exit status is 0 if nothing is missing, shapes agree, and each "
                   "rel_norm is at most the tolerance. Otherwise it is 1. 'equal' is "
                   "stricter than tolerance 0: zeros of different sign are not equal.",
    .arguments =
        (const cli_argument[]){
            {"A", "a checkpoint: a folder or one .safetensors file", CLI_PATH, NULL, false},
            {"B", "the checkpoint to compare it with", CLI_PATH, NULL, false},
            {.name = NULL},
        },
    .options =
        (const cli_option[]){
            {.name = "tol",
             .argument = "R",
             .kind = CLI_NUMBER,
             .minimum = 0,
             .maximum = INFINITY,
             .fallback = "0",
             .help = "the largest rel_norm that still counts as the same"},
            {.name = NULL},
        },
    .examples =
        (const cli_example[]){
            {"how far quantization moved the weights", "diff Llama-3.2-1B Llama-3.2-1B-nf4 --tol 0.2"},
            {"whether a copy is exact", "diff Llama-3.2-1B copy-of-it && echo the same"},
            {NULL, NULL},
        },
    .run = run,
};
