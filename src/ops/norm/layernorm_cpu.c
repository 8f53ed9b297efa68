/* layernorm_cpu.c - layernorm and its backward with AVX2 and AVX-512. The kernels are in
 * layernorm.inc.
 *
 *   for each span of rows (an item), for each row:    mean, variance, result; backward: partial sums of dw and db
 *
 * Bytes per element in 16 bits: forward 4, backward 6. The partial rows of dw and db stay in the
 * cache. Limit: memory. */
#include "ops/norm/layernorm.h"

#if defined(__x86_64__)

#include <math.h>

#include "ops/common/rows.h"
#include "ops/common/vmath.h"

typedef struct norm_job {
    const nbl__layernorm *a;
    float *w, *bias; /* [columns]: both times scale */
    float *partial;  /* [blocks, 2, columns]: dw and db of each block of rows; NULL: not wanted */
} norm_job;

#define KERNELS "ops/norm/layernorm.inc"
#include "ops/common/x86_widths.inc"

/* Cuts the scratch; base NULL: measures it. Scratch: 8 bytes per column, and in backward 8 more per
 * column and block of rows. */
static size_t layout(const nbl__layernorm *a, bool backward, uint8_t *base, norm_job *j)
{
    nbl__bump bump = {base, 0};
    int64_t columns = nbl__last(&a->x);
    j->a = a;
    NBL_BUMP_ALLOC(&bump, j->w, columns);
    NBL_BUMP_ALLOC(&bump, j->bias, columns);
    j->partial = NULL;
    if (backward) NBL_BUMP_ALLOC(&bump, j->partial, nbl__block_count(nbl__tensor_rows(&a->x)) * 2 * columns);
    return bump.used;
}

/* Converts w and b to f32 and multiplies them by the scale, once per call. Without a bias, b is 0. */
static void read_weights(const nbl_context *ctx, const norm_job *j)
{
    const nbl__layernorm *a = j->a;
    int64_t columns = nbl__last(&a->x);
    nbl__to_f32(nbl__isa(ctx), a->w.dtype, a->w.data, j->w, columns);
    if (nbl__has_data(&a->bias)) nbl__to_f32(nbl__isa(ctx), a->bias.dtype, a->bias.data, j->bias, columns);
    else memset(j->bias, 0, (size_t)columns * sizeof *j->bias);
    float scale = nbl__norm_scale(a->scale);
    for (int64_t k = 0; k < columns; k++) j->w[k] *= scale, j->bias[k] *= scale;
}

static nbl_status run_forward(const nbl__call *call, const void *arguments, nbl__rows_fn rows)
{
    const nbl__layernorm *a = arguments;
    norm_job j;
    layout(a, false, call->scratch, &j);
    read_weights(call->ctx, &j);
    return nbl__rows_run(call->ctx, nbl__tensor_rows(&a->x), nbl__rows_per_span(nbl__last(&a->x)), rows, &j);
}

/* A block of rows is an item with its own partial sums. nbl__blocks_add adds them in the order of
 * blocks, so the bits do not depend on the number of threads. */
static nbl_status run_backward(const nbl__call *call, const void *arguments, nbl__rows_fn rows)
{
    const nbl__layernorm *a = arguments;
    int64_t count = nbl__tensor_rows(&a->x), columns = nbl__last(&a->x), blocks = nbl__block_count(count);
    norm_job j;
    layout(a, true, call->scratch, &j);
    if (!nbl__has_data(&a->dw) && !nbl__has_data(&a->dbias)) j.partial = NULL;
    read_weights(call->ctx, &j);
    NBL_TRY(nbl__rows_run(call->ctx, count, nbl__block_rows(count), rows, &j));
    if (nbl__has_data(&a->dw))
        NBL_TRY(
            nbl__blocks_add(call->ctx, j.partial, blocks, 2 * columns, columns, a->dw.data, a->accumulate));
    if (nbl__has_data(&a->dbias))
        NBL_TRY(nbl__blocks_add(call->ctx, j.partial + columns, blocks, 2 * columns, columns, a->dbias.data,
                                a->accumulate));
    return NBL_OK;
}

#define NORM(name) nbl__layernorm##name
#define NORM_NAME "layernorm"
#include "ops/norm/norm_impls.inc"

#endif
