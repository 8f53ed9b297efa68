/* inspect.h - shared parts of `nibble inspect` for checkpoints, GGUF files and adapters: totals by
 * format, facts, problems, and tables of tensors. */
#ifndef CLI_INSPECT_H
#define CLI_INSPECT_H

#include "output.h"

/* `nibble inspect` of a GGUF file and of an adapter. They return the exit status. */
int cli_inspect_gguf(const cli_call *call, nbl_context *ctx, const char *path);
int cli_inspect_adapter(const cli_call *call, nbl_context *ctx, const char *folder, const char *base);

/* ---- totals by format; searched linearly, because there are few formats ---- */

enum { CLI_MAX_FORMATS = 64 };

typedef struct cli_totals {
    struct cli_total {
        const char *name; /* of the format; valid until the tool ends */
        int64_t tensors;
        uint64_t parameters, bytes;
    } rows[CLI_MAX_FORMATS];
    int count;
} cli_totals;

void cli_totals_add(cli_totals *totals, const char *name, uint64_t parameters, uint64_t bytes);
void cli_totals_sort(cli_totals *totals); /* by bytes, descending */
cli_json *cli_totals_json(const cli_totals *totals);
void cli_totals_print(const cli_totals *totals);

/* ---- facts and problems ---- */

void cli_heading(const char *path);
void cli_fact(const char *name, const char *text); /* `text` must be clean (cli_clean) */

typedef const char *cli_problem_fn(const void *from, int64_t index);
cli_json *cli_problems_json(cli_problem_fn *problem, const void *from);
void cli_problems_print(cli_problem_fn *problem, const void *from);

/* ---- tensors ---- */

cli_json *cli_shape_json(int rank, const int64_t *shape);
const char *cli_shape_text(int rank, const int64_t *shape); /* "256 x 64", "scalar" */

typedef struct cli_tensor_row {
    const char *name, *format, *shape, *file; /* file: NULL if there is only one file */
    uint64_t bytes;
} cli_tensor_row;

/* Fills the row of tensor `index`. Returns false past the end. */
typedef bool cli_tensor_fn(void *from, int64_t index, cli_tensor_row *row);
void cli_tensors_print(cli_tensor_fn *tensor, void *from);

#endif
