/* grad_norm_cpu.c - grad_norm on the CPU.
 *
 *   1. for each span of 16384 elements (an item):   its sum of squares, f64
 *   2. the sums in order -> norm, factor
 *   3. with clipping, for each span:                 g = g·factor
 *
 * The order of the sums does not depend on the threads, and neither do the bits. Bytes: one read;
 * with clipping one more read and a write. Limit: memory. */
#include "ops/optimizer/grad_norm.h"

#include "base/team.h"
#include "ops/optimizer/tensor_spans.h"
#include "ops/common/vmath.h"

typedef struct job {
    const nbl__grad_norm *a;
    nbl_isa isa;
    int64_t *first;  /* [count + 1], see tensor_spans.h */
    double *squares; /* [spans] */
    float factor;
} job;

static double squares_scalar(nbl_dtype dtype, const uint8_t *g, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        float value;
        nbl__to_f32(NBL_ISA_SCALAR, dtype, g + (size_t)i * nbl__size_of(dtype), &value, 1);
        sum += (double)value * (double)value;
    }
    return sum;
}

static void scale_scalar(nbl_dtype dtype, uint8_t *g, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i++) {
        float value;
        nbl__to_f32(NBL_ISA_SCALAR, dtype, g + (size_t)i * nbl__size_of(dtype), &value, 1);
        value *= factor;
        nbl__from_f32(NBL_ISA_SCALAR, &value, dtype, g + (size_t)i * nbl__size_of(dtype), 1);
    }
}

#if defined(__x86_64__)

NBL_TARGET_AVX2 static double squares_avx2(nbl_dtype dtype, const uint8_t *g, int64_t n)
{
    __m256d a = _mm256_setzero_pd(), b = a;
    double lanes[4];
    for (int64_t i = 0; i < n; i += 8) {
        __m256 x = nbl__get_avx2(dtype, g + (size_t)i * nbl__size_of(dtype), n - i);
        __m256d low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
        __m256d high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
        a = _mm256_fmadd_pd(low, low, a);
        b = _mm256_fmadd_pd(high, high, b);
    }
    _mm256_storeu_pd(lanes, _mm256_add_pd(a, b));
    return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]);
}

NBL_TARGET_AVX512 static double squares_avx512(nbl_dtype dtype, const uint8_t *g, int64_t n)
{
    __m512d a = _mm512_setzero_pd(), b = a;
    for (int64_t i = 0; i < n; i += 16) {
        __m512 x = nbl__get_avx512(dtype, g + (size_t)i * nbl__size_of(dtype), n - i);
        __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x));
        __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x, 1));
        a = _mm512_fmadd_pd(low, low, a);
        b = _mm512_fmadd_pd(high, high, b);
    }
    return _mm512_reduce_add_pd(_mm512_add_pd(a, b));
}

NBL_TARGET_AVX2 static void scale_avx2(nbl_dtype dtype, uint8_t *g, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += 8) {
        uint8_t *at = g + (size_t)i * nbl__size_of(dtype);
        nbl__put_avx2(dtype, at, _mm256_mul_ps(nbl__get_avx2(dtype, at, n - i), _mm256_set1_ps(factor)),
                      n - i);
    }
}

NBL_TARGET_AVX512 static void scale_avx512(nbl_dtype dtype, uint8_t *g, int64_t n, float factor)
{
    for (int64_t i = 0; i < n; i += 16) {
        uint8_t *at = g + (size_t)i * nbl__size_of(dtype);
        __m512 scaled = _mm512_mul_ps(nbl__get_avx512(dtype, at, n - i), _mm512_set1_ps(factor));
        nbl__put_avx512(dtype, at, scaled, n - i);
    }
}

#endif

static uint8_t *span_data(const job *j, int64_t item, nbl_dtype *dtype, int64_t *n)
{
    const nbl_tensor *all = j->a->gradients;
    nbl__tensor_span s = nbl__tensor_span_at(j->first, j->a->count, item, all, sizeof *all);
    *dtype = all[s.tensor].dtype;
    *n = s.n;
    return (uint8_t *)all[s.tensor].data + (size_t)s.begin * nbl__size_of(*dtype);
}

static nbl_status sum_span(void *argument, int64_t item, int worker)
{
    job *j = argument;
    nbl_dtype dtype;
    int64_t n;
    const uint8_t *g = span_data(j, item, &dtype, &n);
    (void)worker;
#if defined(__x86_64__)
    if (j->isa >= NBL_ISA_AVX512) {
        j->squares[item] = squares_avx512(dtype, g, n);
        return NBL_OK;
    }
    if (j->isa >= NBL_ISA_AVX2) {
        j->squares[item] = squares_avx2(dtype, g, n);
        return NBL_OK;
    }
#endif
    j->squares[item] = squares_scalar(dtype, g, n);
    return NBL_OK;
}

static nbl_status scale_span(void *argument, int64_t item, int worker)
{
    job *j = argument;
    nbl_dtype dtype;
    int64_t n;
    uint8_t *g = span_data(j, item, &dtype, &n);
    (void)worker;
#if defined(__x86_64__)
    if (j->isa >= NBL_ISA_AVX512) {
        scale_avx512(dtype, g, n, j->factor);
        return NBL_OK;
    }
    if (j->isa >= NBL_ISA_AVX2) {
        scale_avx2(dtype, g, n, j->factor);
        return NBL_OK;
    }
#endif
    scale_scalar(dtype, g, n, j->factor);
    return NBL_OK;
}

static size_t layout(const nbl__grad_norm *a, uint8_t *base, job *j)
{
    nbl__bump bump = {base, 0};
    NBL_BUMP_ALLOC(&bump, j->first, a->count + 1);
    NBL_BUMP_ALLOC(&bump, j->squares, nbl__tensor_spans(a->gradients, sizeof *a->gradients, a->count, NULL));
    return bump.used;
}

static size_t scratch(const nbl_context *ctx, const void *arguments)
{
    job j;
    (void)ctx;
    return layout(arguments, NULL, &j);
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__grad_norm *a = arguments;
    job j = {.a = a, .isa = nbl__isa(call->ctx)};
    layout(a, call->scratch, &j);
    int64_t items = nbl__tensor_spans(a->gradients, sizeof *a->gradients, a->count, j.first), blamed = -1;
    NBL_TRY(nbl__team_run(call->ctx, items, sum_span, &j, NULL));
    double sum = 0;
    for (int64_t i = 0; i < items; i++) {
        if (blamed < 0 && !isfinite(j.squares[i])) blamed = nbl__tensor_span_tensor(j.first, a->count, i);
        /* Squares of f32 cannot overflow f64: a non-finite sum means a non-finite gradient. */
        sum += j.squares[i];
    }
    double norm = sqrt(sum);
    *(float *)a->norm.data = (float)norm;
    if (a->non_finite) *a->non_finite = blamed;
    j.factor = (float)nbl__clip_factor(norm, a->max_norm);
    if (a->factor) {
        *a->factor = blamed < 0 ? j.factor : NAN;
        return NBL_OK;
    }
    return j.factor == 1 ? NBL_OK : nbl__team_run(call->ctx, items, scale_span, &j, NULL);
}

const nbl__impl nbl__grad_norm_cpu = {"grad_norm_cpu", NBL_ISA_SCALAR, NULL, scratch, run};
