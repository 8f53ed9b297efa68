/* inspect_parts.c - shared parts of `nibble inspect`; see inspect.h. All texts from files go
 * through cli_clean before they are printed. JSON documents have them unchanged (json.h). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "commands/inspect.h"

/* ---- totals ---- */

void cli_totals_add(cli_totals *all, const char *name, uint64_t parameters, uint64_t bytes)
{
    int at = 0;
    while (at < all->count && strcmp(all->rows[at].name, name) != 0) at++;
    if (at == CLI_MAX_FORMATS) at--; /* more formats than exist: the last row takes the rest */
    if (at == all->count)
        all->rows[all->count++].name = at == CLI_MAX_FORMATS - 1 ? "others" : cli_format("%s", name);
    all->rows[at].tensors++;
    all->rows[at].parameters += parameters;
    all->rows[at].bytes += bytes;
}

/* Sorts by bytes, descending; ties by name. */
static int by_bytes(const void *a, const void *b)
{
    const struct cli_total *x = a, *y = b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    return strcmp(x->name, y->name);
}

void cli_totals_sort(cli_totals *all)
{
    qsort(all->rows, (size_t)all->count, sizeof *all->rows, by_bytes);
}

cli_json *cli_totals_json(const cli_totals *all)
{
    cli_json *formats = cli_json_object();
    for (int i = 0; i < all->count; i++) {
        cli_json *entry = cli_json_object();
        cli_json_set(entry, "tensors", cli_json_unsigned((uint64_t)all->rows[i].tensors));
        cli_json_set(entry, "parameters", cli_json_unsigned(all->rows[i].parameters));
        cli_json_set(entry, "bytes", cli_json_unsigned(all->rows[i].bytes));
        cli_json_set(formats, all->rows[i].name, entry);
    }
    return formats;
}

/* Prints a row of the table. bits: stored bits per parameter, scales included. */
static void print_row(const char *name, const struct cli_total *row)
{
    double bits = row->parameters ? 8.0 * (double)row->bytes / (double)row->parameters : 0;
    fprintf(cli_out(), "  %-12s %8" PRId64 " %19s %19s %7.2f\n", name, row->tensors,
            cli_grouped(row->parameters), cli_grouped(row->bytes), bits);
}

void cli_totals_print(const cli_totals *all)
{
    if (all->count == 0) return;
    fprintf(cli_out(), "\n  %s%-12s %8s %19s %19s %7s%s\n", cli_styled(CLI_BOLD), "format", "tensors",
            "parameters", "bytes", "bits", cli_styled(CLI_PLAIN));
    struct cli_total sum = {.tensors = 0};
    for (int i = 0; i < all->count; i++) {
        print_row(all->rows[i].name, &all->rows[i]);
        sum.tensors += all->rows[i].tensors;
        sum.parameters += all->rows[i].parameters;
        sum.bytes += all->rows[i].bytes;
    }
    if (all->count > 1) print_row("all", &sum);
}

/* ---- facts and problems ---- */

void cli_heading(const char *path)
{
    fprintf(cli_out(), "%s%s%s\n", cli_styled(CLI_BOLD), cli_clean(path), cli_styled(CLI_PLAIN));
}

void cli_fact(const char *name, const char *text)
{
    fprintf(cli_out(), "  %s%-13s%s ", cli_styled(CLI_BOLD), name, cli_styled(CLI_PLAIN));
    cli_wrap(cli_out(), text, 16, 16);
}

cli_json *cli_problems_json(cli_problem_fn *problem, const void *from)
{
    cli_json *problems = cli_json_array();
    const char *text;
    for (int64_t i = 0; (text = problem(from, i)) != NULL; i++) cli_json_add(problems, cli_json_text(text));
    return problems;
}

void cli_problems_print(cli_problem_fn *problem, const void *from)
{
    const char *text;
    for (int64_t i = 0; (text = problem(from, i)) != NULL; i++) {
        if (i == 0) fprintf(cli_out(), "\n  %sproblems%s\n", cli_styled(CLI_RED), cli_styled(CLI_PLAIN));
        fputs("  - ", cli_out());
        cli_wrap(cli_out(), cli_clean(text), 4, 4);
    }
}

/* ---- tensors ---- */

cli_json *cli_shape_json(int rank, const int64_t *shape)
{
    cli_json *array = cli_json_array();
    for (int i = 0; i < rank; i++) cli_json_add(array, cli_json_unsigned((uint64_t)shape[i]));
    return array;
}

const char *cli_shape_text(int rank, const int64_t *shape)
{
    const char *text = "";
    for (int i = 0; i < rank; i++) text = cli_format("%s%s%" PRId64, text, i ? " x " : "", shape[i]);
    return rank ? text : "scalar";
}

/* Two passes over the tensors: widths of the columns, then rows. The column `file` is left out if
 * no tensor names a file. */
void cli_tensors_print(cli_tensor_fn *tensor, void *from)
{
    enum { WIDEST = 100 }; /* longer names push their row to the right */
    int name_width = 4, shape_width = 5;
    bool files = false;
    cli_tensor_row row;
    for (int64_t i = 0; tensor(from, i, &row); i++) {
        int name = cli_columns(cli_clean(row.name)), shape = cli_columns(row.shape);
        if (name > name_width) name_width = name > WIDEST ? WIDEST : name;
        if (shape > shape_width) shape_width = shape;
        files |= row.file != NULL;
    }
    fprintf(cli_out(), "\n  %s%-*s  %-8s  %-*s  %14s%s%s\n", cli_styled(CLI_BOLD), name_width, "name",
            "format", shape_width, "shape", "bytes", files ? "  file" : "", cli_styled(CLI_PLAIN));
    for (int64_t i = 0; tensor(from, i, &row); i++) {
        const char *name = cli_clean(row.name);
        int pad = name_width - cli_columns(name);
        fprintf(cli_out(), "  %s%*s  %-8s  %-*s  %14s%s%s\n", name, pad > 0 ? pad : 0, "", row.format,
                shape_width, row.shape, cli_grouped(row.bytes), row.file ? "  " : "",
                row.file ? cli_clean(row.file) : "");
    }
}
