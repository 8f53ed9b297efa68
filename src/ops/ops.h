/* ops.h - operators: one table row each, checked once, dispatched by what the machine can do.
 *
 * An operator is a struct of arguments (in its family's header) and a row:
 *
 *     infer   checks dtypes and shapes and fills in those of the outputs. It reads no data, so that a
 *             graph can plan without any, and a backend's pointers need not be readable here.
 *     impls   implementations, best first, ending in the scalar reference (ops/ref).
 *
 * nbl__op_run infers, takes the first implementation that the machine has and that can do these
 * arguments, checks the scratch it was given, and runs it. Nothing here allocates. The dtype of a
 * result follows from the arguments alone, never from earlier calls. */
#ifndef NBL_OPS_H
#define NBL_OPS_H

#include "quant/weight.h"
#include "tensor/dtype.h"

/* An activation, gradient or parameter: dense, row-major. `data` NULL: absent (optional inputs), or
 * not there yet (outputs before the call). */
typedef struct nbl_tensor {
    nbl_dtype dtype;
    int rank;
    int64_t shape[NBL_MAX_RANK];
    void *data;
} nbl_tensor;

typedef struct nbl__call {
    nbl_context *ctx;
    const char *op;   /* its name, for messages */
    uint8_t *scratch; /* aligned to 64 bytes; dies with the call */
    size_t scratch_bytes;
} nbl__call;

typedef struct nbl__impl {
    const char *name; /* "rmsnorm_avx2": operator, then what makes it different */
    nbl_isa needs;
    const char *(*can)(const void *arguments);                        /* NULL: yes; else why not */
    size_t (*scratch)(const nbl_context *ctx, const void *arguments); /* NULL: none */
    nbl_status (*run)(const nbl__call *call, const void *arguments);
} nbl__impl;

typedef struct nbl__op {
    const char *name;
    nbl_status (*infer)(nbl_context *ctx, void *arguments);
    const nbl__impl *impls;
    int impl_count;
} nbl__op;

/* All operators, in the order of the table in ops.c. NULL past the end. */
const nbl__op *nbl__op_at(int index);
const nbl__op *nbl__op_find(const char *name);

/* The implementation that nbl__op_run would take; `force` names one that must be taken (NULL: any).
 * `arguments` must have passed infer. Declines are logged at debug level. */
nbl_status nbl__op_choose(nbl_context *ctx, const nbl__op *op, const void *arguments, const char *force,
                          const nbl__impl **impl);
size_t nbl__op_scratch(const nbl_context *ctx, const nbl__impl *impl, const void *arguments);
/* Runs an implementation that was chosen; outputs have their data by now. */
nbl_status nbl__op_run(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl, const void *arguments,
                       void *scratch, size_t scratch_bytes);

/* ---- checks that infer functions share; each failure names operator, tensor, dtypes and shapes ---- */

static inline bool nbl__given(const nbl_tensor *t)
{
    return t->data != NULL;
}
int64_t nbl__tensor_elements(const nbl_tensor *t);
/* Product of all dimensions but the last; rank 1 is one row. */
int64_t nbl__tensor_rows(const nbl_tensor *t);
static inline int64_t nbl__last(const nbl_tensor *t)
{
    return t->rank > 0 ? t->shape[t->rank - 1] : 1;
}
nbl_status nbl__check_dtype(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                            nbl_dtype expected);
nbl_status nbl__check_float(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t);
/* Exactly this shape. */
nbl_status nbl__check_dims(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t, int rank,
                           const int64_t *shape);
/* rows x columns after flattening, any rank >= 1. */
nbl_status nbl__check_matrix(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                             int64_t rows, int64_t columns);
/* An output like another tensor, with another last dimension and dtype. */
void nbl__output_like(nbl_tensor *out, const nbl_tensor *like, int64_t last, nbl_dtype dtype);
void nbl__output_vector(nbl_tensor *out, nbl_dtype dtype, int rank, int64_t first, int64_t second);

#endif
