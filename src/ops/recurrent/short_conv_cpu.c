/* short_conv_cpu.c - short_conv, its backward and short_conv_step with AVX2 and AVX-512. The kernels
 * are in short_conv.inc.
 *
 *   forward    for each row (items of the team: spans of rows), for each vector of channels: K products
 *   backward   for each vector of channels: dc of a few rows, kept in the cache; then dx and dw from these
 *
 * Bytes per element in 16 bits: forward 4, backward 6 (rows of x and dy come from the cache K times).
 * Limit: the exponential on one core, memory on more. */
#include "ops/recurrent/short_conv.h"

#if defined(__x86_64__)

#include "ops/common/rows.h"
#include "ops/common/sequences.h"
#include "ops/common/vmath.h"

enum { CONV_ROWS = 32 }; /* rows of backward whose dc is kept at a time */

typedef struct conv_job {
    const nbl__short_conv *a;
    const nbl__short_conv_step *step;
    nbl_dtype dtype;
    int64_t channels, taps;
    const float *w; /* [K, channels] */
    float *dw;      /* [blocks, K, channels]: sums by block of rows; NULL: not wanted */
} conv_job;

static uint8_t *at(const nbl_tensor *t, int64_t row, int64_t column)
{
    return (uint8_t *)t->data + (size_t)(row * nbl__row_stride(t) + column) * nbl__size_of(t->dtype);
}

#define KERNELS "ops/recurrent/short_conv.inc"
#include "ops/common/x86_widths.inc"

/* The weights, transposed; in backward also the blocks of dw, and their sum. */
typedef struct pieces {
    float *w, *dw, *sum;
    size_t used;
} pieces;

/* blocks -1: no dw */
static pieces lay_out(const nbl_tensor *w, int64_t blocks, uint8_t *base)
{
    nbl__bump bump = {base, 0};
    pieces p;
    int64_t n = nbl__tensor_elements(w);
    NBL_BUMP_ALLOC(&bump, p.w, n);
    NBL_BUMP_ALLOC(&bump, p.dw, nbl__max_i64(blocks, 0) * n);
    NBL_BUMP_ALLOC(&bump, p.sum, blocks >= 0 ? n : 0);
    p.used = bump.used;
    return p;
}

/* w [channels, 1, K] as f32 [K, channels]. */
static void transpose(nbl_isa isa, const nbl_tensor *w, float *to)
{
    int64_t channels = w->shape[0], taps = w->shape[2];
    float row[NBL_SHORT_CONV_MAX];
    for (int64_t c = 0; c < channels; c++) {
        nbl__to_f32(isa, w->dtype, (const uint8_t *)w->data + (size_t)(c * taps) * nbl__size_of(w->dtype),
                    row, taps);
        for (int64_t j = 0; j < taps; j++) to[j * channels + c] = row[j];
    }
}

static conv_job job_of(const nbl__call *call, const nbl__short_conv *a, const pieces *p)
{
    transpose(nbl__isa(call->ctx), &a->w, p->w);
    return (conv_job){.a = a, .dtype = a->dtype, .channels = a->x.shape[1], .taps = a->w.shape[2], .w = p->w};
}

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return lay_out(&((const nbl__short_conv *)arguments)->w, -1, NULL).used;
}

static nbl_status run_forward(const nbl__call *call, const nbl__short_conv *a, nbl__rows_fn rows)
{
    pieces p = lay_out(&a->w, -1, call->scratch);
    NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "x", a->x.shape[0]));
    conv_job job = job_of(call, a, &p);
    NBL_TRY(nbl__rows_run(call->ctx, a->x.shape[0], nbl__rows_per_span(job.channels), rows, &job));
    nbl__short_conv_keep(a);
    return NBL_OK;
}

/* Fewer rows may have more blocks, but never more than those of 1024. */
static int64_t max_blocks(int64_t rows)
{
    return nbl__block_count(nbl__min_i64(rows, 1024));
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__short_conv *a = arguments;
    (void)ctx;
    return lay_out(&a->w, nbl__has_data(&a->dw) ? max_blocks(a->x.shape[0]) : -1, NULL).used;
}

static nbl_status run_backward(const nbl__call *call, const nbl__short_conv *a, nbl__rows_fn rows)
{
    bool sums = nbl__has_data(&a->dw);
    int64_t tokens = a->x.shape[0], n = nbl__tensor_elements(&a->w);
    pieces p = lay_out(&a->w, sums ? nbl__block_count(tokens) : -1, call->scratch);
    NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "x", tokens));
    conv_job job = job_of(call, a, &p);
    if (!sums) return nbl__rows_run(call->ctx, tokens, nbl__rows_per_span(job.channels), rows, &job);
    job.dw = p.dw;
    NBL_TRY(nbl__rows_run(call->ctx, tokens, nbl__block_rows(tokens), rows, &job));
    NBL_TRY(nbl__blocks_add(call->ctx, p.dw, nbl__block_count(tokens), n, n, p.sum, false));
    float *dw = a->dw.data;
    for (int64_t c = 0; c < job.channels; c++)
        for (int64_t j = 0; j < job.taps; j++) {
            float sum = p.sum[j * job.channels + c], *to = dw + c * job.taps + j;
            *to = a->accumulate ? *to + sum : sum;
        }
    return NBL_OK;
}

static size_t step_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return lay_out(&((const nbl__short_conv_step *)arguments)->w, -1, NULL).used;
}

static nbl_status run_step(const nbl__call *call, const nbl__short_conv_step *a, nbl__rows_fn rows)
{
    pieces p = lay_out(&a->w, -1, call->scratch);
    transpose(nbl__isa(call->ctx), &a->w, p.w);
    conv_job job = {.step = a, .dtype = a->dtype, .channels = a->x.shape[1], .taps = a->w.shape[2], .w = p.w};
    NBL_TRY(nbl__rows_run(call->ctx, a->x.shape[0], nbl__rows_per_span(job.channels), rows, &job));
    nbl__short_conv_shift(a);
    return NBL_OK;
}

/* Defines a row of dispatch for one operator and instruction set. */
#define IMPL(op, level, LEVEL, run_op, kernel, scratch)                                                      \
    static nbl_status run_##op##_##level(const nbl__call *call, const void *arguments)                       \
    {                                                                                                        \
        return run_op(call, arguments, kernel##_##level);                                                    \
    }                                                                                                        \
    const nbl__impl nbl__##op##_##level = {#op "_" #level, NBL_ISA_##LEVEL, NULL, scratch,                   \
                                           run_##op##_##level};
IMPL(short_conv, avx2, AVX2, run_forward, forward, forward_scratch)
IMPL(short_conv, avx512, AVX512, run_forward, forward, forward_scratch)
IMPL(short_conv_backward, avx2, AVX2, run_backward, backward, backward_scratch)
IMPL(short_conv_backward, avx512, AVX512, run_backward, backward, backward_scratch)
IMPL(short_conv_step, avx2, AVX2, run_step, step, step_scratch)
IMPL(short_conv_step, avx512, AVX512, run_step, step, step_scratch)
#undef IMPL

#endif
