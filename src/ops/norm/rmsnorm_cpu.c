/* rmsnorm_cpu.c - rmsnorm and its backward with AVX2 and AVX-512. The kernels are in rmsnorm.inc.
 *
 *   for each span of rows (an item), for each row:    sum of squares, then the result; backward: partial sums of dw
 *
 * Bytes per element in 16 bits: forward 4 (8 with a residual), backward 6 (10). The partial rows
 * of dw stay in the cache. Limit: memory. */
#include "ops/norm/rmsnorm.h"

#if defined(__x86_64__)

#include <math.h>

#include "ops/common/rows.h"
#include "ops/common/vmath.h"

typedef struct norm_job {
    const nbl__rmsnorm *a;
    float *w;       /* [columns]: (weight + offset)·scale */
    float *partial; /* [blocks, columns]: dw of each block of rows; NULL: not wanted */
} norm_job;

/* The addresses of one row's tensors; NULL: absent. */
typedef struct rms_row {
    const uint8_t *x, *residual, *dy, *dresidual;
    uint8_t *y, *residual_out, *dx;
} rms_row;

static uint8_t *offset(const nbl_tensor *t, size_t bytes)
{
    return t->data ? (uint8_t *)t->data + bytes : NULL;
}

/* The row that begins `bytes` bytes into the tensors. */
static rms_row row_of(const nbl__rmsnorm *a, size_t bytes)
{
    return (rms_row){.x = offset(&a->x, bytes),
                     .residual = offset(&a->residual, bytes),
                     .dy = offset(&a->dy, bytes),
                     .dresidual = offset(&a->dresidual, bytes),
                     .y = offset(&a->y, bytes),
                     .residual_out = offset(&a->residual_out, bytes),
                     .dx = offset(&a->dx, bytes)};
}

#define KERNELS "ops/norm/rmsnorm.inc"
#include "ops/common/x86_widths.inc"

/* Cuts the scratch; base NULL: measures it. */
static size_t layout(const nbl__rmsnorm *a, bool backward, uint8_t *base, norm_job *j)
{
    nbl__bump bump = {base, 0};
    int64_t columns = nbl__last(&a->x);
    j->a = a;
    NBL_BUMP_ALLOC(&bump, j->w, columns);
    j->partial = NULL;
    if (backward) NBL_BUMP_ALLOC(&bump, j->partial, nbl__block_count(nbl__tensor_rows(&a->x)) * columns);
    return bump.used;
}

/* Converts w to f32, adds the offset and multiplies by the scale, once per call. */
static void read_weight(const nbl_context *ctx, const norm_job *j)
{
    int64_t columns = nbl__last(&j->a->x);
    if (!nbl__has_data(&j->a->w)) {
        for (int64_t k = 0; k < columns; k++) j->w[k] = nbl__norm_scale(j->a->scale);
        return;
    }
    nbl__to_f32(nbl__isa(ctx), j->a->w.dtype, j->a->w.data, j->w, columns);
    for (int64_t k = 0; k < columns; k++) j->w[k] = (j->w[k] + j->a->offset) * nbl__norm_scale(j->a->scale);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments, nbl__rows_fn rows)
{
    const nbl__rmsnorm *a = arguments;
    norm_job j;
    layout(a, false, call->scratch, &j);
    read_weight(call->ctx, &j);
    return nbl__rows_run(call->ctx, nbl__tensor_rows(&a->x), nbl__rows_per_span(nbl__last(&a->x)), rows, &j);
}

/* A block of rows is an item with its own partial sum. nbl__blocks_add adds them in the order of
 * blocks, so the bits do not depend on the number of threads. */
static nbl_status run_backward(const nbl__call *call, const void *arguments, nbl__rows_fn rows)
{
    nbl__rmsnorm sum = nbl__rmsnorm_from_sum(arguments), *a = &sum;
    int64_t count = nbl__tensor_rows(&a->x), columns = nbl__last(&a->x);
    norm_job j;
    layout(a, true, call->scratch, &j);
    if (!nbl__has_data(&a->dw)) j.partial = NULL;
    read_weight(call->ctx, &j);
    NBL_TRY(nbl__rows_run(call->ctx, count, nbl__block_rows(count), rows, &j));
    if (j.partial == NULL) return NBL_OK;
    return nbl__blocks_add(call->ctx, j.partial, nbl__block_count(count), columns, columns, a->dw.data,
                           a->accumulate);
}

#define NORM(name) nbl__rmsnorm##name
#define NORM_NAME "rmsnorm"
#include "ops/norm/norm_impls.inc"

#endif
