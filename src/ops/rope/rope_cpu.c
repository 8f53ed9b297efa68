/* rope_cpu.c - rope_table, rope and its backward with AVX2 and AVX-512. The kernels are in
 * rope.inc.
 *
 *   rope_table   for each token:              angles -> cos, sin          about 40 instructions per vector
 *   rope         for each token, each head:   rotate                      4 bytes per element in 16 bits
 *
 * Limit: arithmetic for the table, memory for the rotation. */
#include "ops/rope/rope.h"

#if defined(__x86_64__)

#include "ops/common/rows.h"
#include "ops/common/sequences.h"
#include "ops/common/vmath.h"

/* cos, sin [tokens, half] from positions [tokens] and frequencies [half]. */
typedef struct table_job {
    const float *frequencies;
    const nbl__rope *rope; /* query_scale */
    float scaling;
    const int32_t *positions;
    int64_t half;
    float *cos, *sin;
} table_job;

/* from, to [tokens, heads, columns]; the first 2·half columns of a head rotate, as halves or as
 * neighbours (interleaved), the others are copied. */
typedef struct rotate_job {
    nbl_dtype dtype;
    int64_t heads, columns, half;
    int64_t from_stride, to_stride; /* elements from one token to the next */
    const float *cos, *sin;
    float sign; /* -1: rotate by the negative angle (backward) */
    bool interleaved;
    const uint8_t *from;
    uint8_t *to;
} rotate_job;

/* position·frequency = (4·m + quarters)·π/2 + r: returns r, and quarters as 0, 1, 2 or 3. π/2 is a
 * sum of two f64 and the difference is an fma, so that r is right to 1e-16 for any int32 position. */
#define REDUCE(width, position, frequencies, quarters, r)                                                    \
    do {                                                                                                     \
        angle = _mm##width##_mul_pd(_mm##width##_set1_pd(position), frequencies);                            \
        count = ROUND_##width(_mm##width##_mul_pd(angle, _mm##width##_set1_pd(0.63661977236758134)));        \
        r = _mm##width##_fnmadd_pd(count, _mm##width##_set1_pd(1.5707963267948966), angle);                  \
        r = _mm##width##_fnmadd_pd(count, _mm##width##_set1_pd(6.123233995736766e-17), r);                   \
        lap = FLOOR_##width(_mm##width##_mul_pd(count, _mm##width##_set1_pd(0.25)));                         \
        quarters = _mm##width##_fnmadd_pd(_mm##width##_set1_pd(4), lap, count);                              \
    } while (0)
#define ROUND_256(a) _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define FLOOR_256(a) _mm256_floor_pd(a)
#define ROUND_512(a) _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define FLOOR_512(a) _mm512_roundscale_pd(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)

/* 8 frequencies at a time: f64 arithmetic in two halves, results as f32. */
NBL_TARGET_AVX2 static inline __m256 reduce_avx2(double position, __m256 frequencies, __m256 *quarters)
{
    __m256d angle, count, lap, r[2], q[2];
    __m256d f[2] = {_mm256_cvtps_pd(_mm256_castps256_ps128(frequencies)),
                    _mm256_cvtps_pd(_mm256_extractf128_ps(frequencies, 1))};
    for (int i = 0; i < 2; i++) REDUCE(256, position, f[i], q[i], r[i]);
    *quarters = _mm256_set_m128(_mm256_cvtpd_ps(q[1]), _mm256_cvtpd_ps(q[0]));
    return _mm256_set_m128(_mm256_cvtpd_ps(r[1]), _mm256_cvtpd_ps(r[0]));
}

NBL_TARGET_AVX512 static inline __m512 reduce_avx512(double position, __m512 frequencies, __m512 *quarters)
{
    __m512d angle, count, lap, r[2], q[2];
    __m512d f[2] = {_mm512_cvtps_pd(_mm512_castps512_ps256(frequencies)),
                    _mm512_cvtps_pd(_mm512_extractf32x8_ps(frequencies, 1))};
    for (int i = 0; i < 2; i++) REDUCE(512, position, f[i], q[i], r[i]);
    *quarters = _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(q[0])), _mm512_cvtpd_ps(q[1]), 1);
    return _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(r[0])), _mm512_cvtpd_ps(r[1]), 1);
}

#define KERNELS "ops/rope/rope.inc"
#include "ops/common/x86_widths.inc"

typedef struct kernels {
    nbl__rows_fn table, rotate;
} kernels;
static const kernels avx2 = {table_rows_avx2, rotate_avx2}, avx512 = {table_rows_avx512, rotate_avx512};

/* ---- rope_table ---- */

static size_t table_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)((const nbl__rope_table *)arguments)->rope.rotary_dim / 2 * sizeof(float);
}

/* Writes cos and sin of all positions, one run of the thread team per length class. Scratch: the
 * frequencies, [half]. */
static nbl_status make_table(nbl_context *ctx, const nbl__rope_table *a, float *frequencies, float *cos,
                             float *sin, nbl__rows_fn rows)
{
    int64_t half = a->rope.rotary_dim / 2;
    for (nbl__rope_run run = {0}; nbl__rope_next_run(a, &run);) {
        table_job j = {.frequencies = frequencies,
                       .rope = &a->rope,
                       .positions = (const int32_t *)a->positions.data + run.first,
                       .half = half,
                       .cos = cos + run.first * half,
                       .sin = sin + run.first * half};
        nbl__rope_frequencies(&a->rope, 2 * half, run.length, frequencies, &j.scaling);
        NBL_TRY(nbl__rows_run(ctx, run.end - run.first, nbl__rows_per_span(half * 8), rows, &j));
    }
    return NBL_OK;
}

static nbl_status run_table(const nbl__call *call, const void *arguments, const kernels *k)
{
    const nbl__rope_table *a = arguments;
    if (nbl__has_data(&a->cu_seqlens))
        NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "positions", nbl__tensor_elements(&a->positions)));
    return make_table(call->ctx, a, (float *)(void *)call->scratch, a->cos.data, a->sin.data, k->table);
}

/* ---- rope ---- */

typedef struct rope_scratch {
    float *frequencies;
    float *cos, *sin; /* [tokens, half], when they are not given */
} rope_scratch;

/* Cuts the scratch; base NULL: measures it. With a given table only the (unused) frequencies are
 * cut. */
static size_t layout(const nbl__rope_apply *a, uint8_t *base, rope_scratch *s)
{
    nbl__bump bump = {base, 0};
    int64_t half = nbl__rope_dim(&a->rope, nbl__last(&a->x)) / 2;
    int64_t tokens = nbl__has_data(&a->cos) ? 0 : nbl__tensor_elements(&a->positions);
    NBL_BUMP_ALLOC(&bump, s->frequencies, half);
    NBL_BUMP_ALLOC(&bump, s->cos, tokens * half);
    NBL_BUMP_ALLOC(&bump, s->sin, tokens * half);
    return bump.used;
}

static size_t apply_scratch(const nbl_context *ctx, const void *arguments)
{
    rope_scratch s;
    (void)ctx;
    return layout(arguments, NULL, &s);
}

/* Rotates `from` into `to`, forward (sign 1) or backward (sign -1). Without a table, makes it
 * first. */
static nbl_status apply(const nbl__call *call, const nbl__rope_apply *a, const nbl_tensor *from,
                        const nbl_tensor *to, float sign, const kernels *k)
{
    rope_scratch s;
    layout(a, call->scratch, &s);
    rotate_job j = {.dtype = a->dtype,
                    .heads = a->x.shape[a->x.rank - 2],
                    .columns = nbl__last(&a->x),
                    .half = nbl__rope_dim(&a->rope, nbl__last(&a->x)) / 2,
                    .cos = a->cos.data,
                    .sin = a->sin.data,
                    .sign = sign,
                    .interleaved = a->rope.interleaved,
                    .from_stride = nbl__token_stride(from),
                    .to_stride = nbl__token_stride(to),
                    .from = from->data,
                    .to = to->data};
    assert(j.half >= 0 && 2 * j.half <= j.columns && from->rank == to->rank);
    int64_t tokens = 1;
    for (int i = 0; i < a->x.rank - 2; i++) tokens *= a->x.shape[i];
    if (!nbl__has_data(&a->cos)) {
        nbl__rope_table table = {.rope = a->rope, .positions = a->positions};
        table.rope.rotary_dim = 2 * j.half;
        NBL_TRY(make_table(call->ctx, &table, s.frequencies, s.cos, s.sin, k->table));
        j.cos = s.cos;
        j.sin = s.sin;
    }
    return nbl__rows_run(call->ctx, tokens, nbl__rows_per_span(j.heads * j.columns), k->rotate, &j);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments, const kernels *k)
{
    const nbl__rope_apply *a = arguments;
    return apply(call, a, &a->x, &a->y, 1, k);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments, const kernels *k)
{
    const nbl__rope_apply *a = arguments;
    return nbl__has_data(&a->dx) ? apply(call, a, &a->dy, &a->dx, -1, k) : NBL_OK;
}

/* Defines a row of dispatch for one operator and instruction set. */
#define IMPL(op, level, LEVEL, scratch, function)                                                            \
    static nbl_status function##_##level(const nbl__call *call, const void *arguments)                       \
    {                                                                                                        \
        return function(call, arguments, &level);                                                            \
    }                                                                                                        \
    const nbl__impl nbl__##op##_##level = {#op "_" #level, NBL_ISA_##LEVEL, NULL, scratch,                   \
                                           function##_##level};
IMPL(rope_table, avx2, AVX2, table_scratch, run_table)
IMPL(rope_table, avx512, AVX512, table_scratch, run_table)
IMPL(rope, avx2, AVX2, apply_scratch, run_forward)
IMPL(rope, avx512, AVX512, apply_scratch, run_forward)
IMPL(rope_backward, avx2, AVX2, apply_scratch, run_backward)
IMPL(rope_backward, avx512, AVX512, apply_scratch, run_backward)
#undef IMPL

#endif
