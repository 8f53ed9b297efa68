/* gated_norm_cpu.c - gated_norm and its backward with AVX2 and AVX-512. The kernels are in
 * gated_norm.inc.
 *
 *   for each token (items of the team), for each head:    sums of the head, then its results
 *
 * Bytes per element in 16 bits: forward 6, backward 10. Limit: the exponentials of the gate on one
 * core, memory on more. */
#include "ops/gate/gated_norm.h"

#if defined(__x86_64__)

#include <math.h>

#include "ops/common/rows.h"
#include "ops/common/vmath.h"

typedef struct head_job {
    const nbl__gated_norm *a;
    bool backward;
    float eps;
    int64_t heads, columns;
    const float *w; /* [columns] */
    float *dw;      /* [blocks, columns]: sums of dw by block of tokens; NULL: not wanted */
} head_job;

/* The address of a token's heads; NULL for a gradient that is not wanted. */
static uint8_t *token_at(const nbl_tensor *t, int64_t token)
{
    return t->data ? (uint8_t *)t->data + (size_t)(token * nbl__row_stride(t)) * nbl__size_of(t->dtype)
                   : NULL;
}

#define KERNELS "ops/gate/gated_norm.inc"
#include "ops/common/x86_widths.inc"

/* The weight in f32, and in backward the sums of dw. */
static size_t layout(const nbl__gated_norm *a, bool backward, uint8_t *base, float **w, float **dw)
{
    nbl__bump bump = {base, 0};
    int64_t columns = a->x.shape[2];
    NBL_BUMP_ALLOC(&bump, *w, columns);
    NBL_BUMP_ALLOC(&bump, *dw, backward ? nbl__block_count(a->x.shape[0]) * columns : 0);
    return bump.used;
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    float *w, *dw;
    (void)ctx;
    return layout(arguments, false, NULL, &w, &dw);
}

/* At most 64 blocks: fewer tokens may have more blocks, but never more than these. */
static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    nbl__gated_norm a = *(const nbl__gated_norm *)arguments;
    float *w, *dw;
    (void)ctx;
    a.x.shape[0] = nbl__min_i64(a.x.shape[0], 1024);
    return layout(&a, true, NULL, &w, &dw);
}

static nbl_status run(const nbl__call *call, const nbl__gated_norm *a, bool backward, nbl__rows_fn heads)
{
    float *w, *dw;
    int64_t columns = a->x.shape[2], tokens = a->x.shape[0];
    layout(a, backward, call->scratch, &w, &dw);
    nbl__to_f32(nbl__isa(call->ctx), a->w.dtype, a->w.data, w, columns);
    bool sums = backward && nbl__has_data(&a->dw);
    head_job j = {a, backward, a->eps, a->x.shape[1], columns, w, sums ? dw : NULL};
    if (!sums) return nbl__rows_run(call->ctx, tokens, nbl__rows_per_span(j.heads * columns), heads, &j);
    NBL_TRY(nbl__rows_run(call->ctx, tokens, nbl__block_rows(tokens), heads, &j));
    return nbl__blocks_add(call->ctx, dw, nbl__block_count(tokens), columns, columns, a->dw.data,
                           a->accumulate);
}

/* Defines a row of dispatch for one operator and instruction set. */
#define IMPL(op, level, LEVEL, backward, scratch)                                                            \
    static nbl_status run_##op##_##level(const nbl__call *call, const void *arguments)                       \
    {                                                                                                        \
        return run(call, arguments, backward, heads_##level);                                                \
    }                                                                                                        \
    const nbl__impl nbl__##op##_##level = {#op "_" #level, NBL_ISA_##LEVEL, NULL, scratch,                   \
                                           run_##op##_##level};
IMPL(gated_norm, avx2, AVX2, false, forward_scratch)
IMPL(gated_norm, avx512, AVX512, false, forward_scratch)
IMPL(gated_norm_backward, avx2, AVX2, true, backward_scratch)
IMPL(gated_norm_backward, avx512, AVX512, true, backward_scratch)
#undef IMPL

#endif
