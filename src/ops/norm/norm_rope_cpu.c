/* norm_rope_cpu.c - norm_rope and its backward with AVX2 and AVX-512. The kernels are in
 * norm_rope.inc.
 *
 *   for each token (items of the team), for each head:    sums of the head, then its results
 *
 * Bytes per element in 16 bits: forward 4, backward 6. Limit: memory. */
#include "ops/norm/norm_rope.h"

#if defined(__x86_64__)

#include <math.h>

#include "ops/common/rows.h"
#include "ops/common/vmath.h"
#include "ops/rope/rope.h"

typedef struct head_job {
    nbl_dtype dtype;
    bool before_weight;
    float eps;
    int64_t heads, columns, half;           /* the first 2·half columns of a head rotate */
    int64_t x_stride, dy_stride, to_stride; /* elements from one token to the next */
    const float *w;                         /* [columns]: weight + offset */
    const float *cos, *sin;                 /* [tokens, half] */
    const uint8_t *x, *dy;                  /* dy: NULL in forward */
    uint8_t *to;                            /* y, or dx */
} head_job;

#define KERNELS "ops/norm/norm_rope.inc"
#include "ops/common/x86_widths.inc"

/* The weight in f32. */
static size_t scratch_of(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)nbl__last(&((const nbl__norm_rope *)arguments)->x) * sizeof(float);
}

/* `dy` and `to`: NULL and y, or dy and dx. */
static nbl_status run(const nbl__call *call, const nbl__norm_rope *a, const nbl_tensor *dy,
                      const nbl_tensor *to, nbl__rows_fn heads)
{
    float *w = (float *)(void *)call->scratch;
    int64_t columns = nbl__last(&a->x), tokens = 1;
    for (int i = 0; i < a->x.rank - 2; i++) tokens *= a->x.shape[i];
    nbl__to_f32(nbl__isa(call->ctx), a->w.dtype, a->w.data, w, columns);
    for (int64_t k = 0; k < columns; k++) w[k] += a->offset;
    head_job j = {.dtype = a->dtype,
                  .before_weight = a->round == NBL_ROUND_BEFORE_WEIGHT,
                  .eps = a->eps,
                  .heads = a->x.shape[a->x.rank - 2],
                  .columns = columns,
                  .half = nbl__last(&a->cos),
                  .x_stride = nbl__token_stride(&a->x),
                  .dy_stride = dy ? nbl__token_stride(dy) : 0,
                  .to_stride = nbl__token_stride(to),
                  .w = w,
                  .cos = a->cos.data,
                  .sin = a->sin.data,
                  .x = a->x.data,
                  .dy = dy ? dy->data : NULL,
                  .to = to->data};
    assert(2 * j.half <= columns);
    return nbl__rows_run(call->ctx, tokens, nbl__rows_per_span(j.heads * columns), heads, &j);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments, nbl__rows_fn heads)
{
    const nbl__norm_rope *a = arguments;
    return run(call, a, NULL, &a->y, heads);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments, nbl__rows_fn heads)
{
    const nbl__norm_rope *a = arguments;
    return nbl__has_data(&a->dx) ? run(call, a, &a->dy, &a->dx, heads) : NBL_OK;
}

/* Defines a row of dispatch for one operator and instruction set. */
#define IMPL(op, level, LEVEL, function)                                                                     \
    static nbl_status function##_##level(const nbl__call *call, const void *arguments)                       \
    {                                                                                                        \
        return function(call, arguments, heads_##level);                                                     \
    }                                                                                                        \
    const nbl__impl nbl__##op##_##level = {#op "_" #level, NBL_ISA_##LEVEL, NULL, scratch_of,                \
                                           function##_##level};
IMPL(norm_rope, avx2, AVX2, run_forward)
IMPL(norm_rope, avx512, AVX512, run_forward)
IMPL(norm_rope_backward, avx2, AVX2, run_backward)
IMPL(norm_rope_backward, avx512, AVX512, run_backward)
#undef IMPL

#endif
