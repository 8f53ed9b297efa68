/* run.h - one operator on the tensors of a file: what a binding needs.
 *
 *     IN.safetensors   tensors, metadata "op" and "attrs"
 *       ─▶ binding     arguments of the operator
 *       ─▶ infer       shapes of the outputs
 *       ─▶ run         forward, and backward if a gradient of an output is given
 *       ─▶ OUT.safetensors   the outputs
 *
 * A binding turns the named tensors and attributes of IN into an operator's arguments, runs it, and
 * names its outputs. Everything that is missing, of the wrong kind or not understood is an error
 * that names it; an attribute or tensor that no binding asked for is refused at the end.
 *
 * Memory: everything is in the arena of the run. Outputs are filled with NaN bytes before the
 * operator runs, so a value that it does not write is seen. */
#ifndef NIBBLE_OPS_RUN_H
#define NIBBLE_OPS_RUN_H

#include "base/json/json.h"
#include "format/hf/safetensors.h"
#include "ops/ops.h"

enum { RUN_MAX_OUTPUTS = 1024, RUN_MAX_ATTRIBUTES = 64 };

/* One run. A binding fills outputs; run_file writes them. */
typedef struct run {
    nbl_context *ctx;
    nbl__arena arena;
    const char *op;    /* as the file names it */
    const char *force; /* an implementation, or NULL */
    const char *impl;  /* the one that ran last */
    nbl__stored *stored;
    int64_t stored_count;
    const nbl__json *metadata; /* of the file */
    const nbl__json *attrs;
    bool used[RUN_MAX_ATTRIBUTES];
    bool *read; /* [stored_count]: some binding asked for it */
    nbl__stored outputs[RUN_MAX_OUTPUTS];
    int output_count;
} run;

bool run_has(const run *r, const char *name);
nbl_status run_tensor(run *r, const char *name, nbl_tensor *tensor);   /* must be there */
nbl_status run_optional(run *r, const char *name, nbl_tensor *tensor); /* data NULL when it is not */
nbl_status run_weight(run *r, const char *name, nbl_weight *weight);
bool run_has_weight(const run *r, const char *name); /* in any format */

/* Attributes. `missing` is the value of one that is absent or null. */
nbl_status run_number(run *r, const char *name, double missing, double *value);
nbl_status run_flag(run *r, const char *name, bool missing, bool *value);
nbl_status run_word(run *r, const char *name, const char *missing, const char **value);
nbl_status run_integer(run *r, const char *name, double missing, double min, double *value);
nbl_status run_dtype(run *r, const char *name, nbl_dtype *dtype); /* required */
/* One of `words` (NULL at the end); *value is its index. */
nbl_status run_choice(run *r, const char *name, const char *const *words, int missing, int *value);
/* An attribute's JSON, or NULL when it is absent or null. */
const nbl__json *run_attribute(run *r, const char *name);

/* Gives an output its memory (filled with NaN bytes) and its name; after infer. */
nbl_status run_output(run *r, const char *name, nbl_tensor *tensor);
/* The same without a name in OUT. */
nbl_status run_memory(run *r, const char *name, nbl_tensor *tensor);
/* Chooses and runs, with scratch that is filled with NaN bytes; on the device of the context, where
 * it has one. */
nbl_status run_op(run *r, const nbl__family *family, const nbl__op *op, const void *arguments);

/* Reads attributes and slots, infers, runs forward and, when a gradient is given, backward.
 * Attributes and slots that a special binding has filled in are not in the family's tables. */
nbl_status run_family(run *r, const nbl__family *family, void *arguments);
/* Bindings of their own: bindings_quantize.c, bindings_train.c. */
nbl_status bind_quantize(run *r);
nbl_status bind_adamw(run *r);
nbl_status bind_grad_norm(run *r);
/* The binding of r->op. */
nbl_status run_bound(run *r);
/* Names that begin so are results that `check` compares with; no binding sees them. */
#define RUN_EXPECT "expect."
/* Everything but the writing of outputs: parses IN, runs its operator, refuses what nobody read. */
nbl_status run_input(run *r, const char *in, const nbl__file *file);
nbl_status run_pair(nbl_context *ctx, const char *in, const char *out, const char *force, char op[64],
                    char impl[64]);

/* Runs each file and compares its outputs with what it expects; see check.c. The exit status. */
int check_files(nbl_context *ctx, char **files, int count, const char *force);

#endif
