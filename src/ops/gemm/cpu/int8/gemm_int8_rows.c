/* gemm_int8_rows.c - LLM.int8's activations: quantizes rows and finds outlier columns. See
 * gemm_int8.h.
 *
 * The definition rounds x · 127 / largest once. Vectors compute x · (127 / largest) in f32, with
 * an error below 1e-4. If a value is so close to a tie that this could change its code, the 8 or
 * 16 values of its vector are computed in f64.
 *
 * Bytes per value: 2 or 4 read twice (largest, codes), 1 written. Limit: memory. */
#include "ops/gemm/cpu/int8/gemm_int8.h"

#include <math.h>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { PIECE = 512 };
#define CERTAIN 0.4999f /* a value closer than this to its nearest code has that code */

/* n values from element i on, as f32: in place, or widened into `room` [PIECE]. */
static const float *piece_at(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t i, int64_t n, float *room)
{
    if (dtype == NBL_DTYPE_F32) return (const float *)x + i;
    nbl__to_f32(isa, dtype, (const uint16_t *)x + i, room, n);
    return room;
}

/* ---- outliers ---- */

static void mark_scalar(const float *x, int64_t n, float limit, uint8_t *outlier)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(x[i]) < limit)) outlier[i] = 1;
}

/* The largest magnitude below the limit. */
static float largest_scalar(const float *x, int64_t n, float limit)
{
    float largest = 0;
    for (int64_t i = 0; i < n; i++) {
        float magnitude = fabsf(x[i]);
        if (magnitude < limit && magnitude > largest) largest = magnitude;
    }
    return largest;
}

static void code_scalar(const float *x, int64_t n, const uint8_t *outlier, float largest, int8_t *codes)
{
    for (int64_t i = 0; i < n; i++) {
        bool stays = !(outlier && outlier[i]) && fabsf(x[i]) < INFINITY && largest > 0;
        codes[i] = stays ? (int8_t)rint((double)x[i] * 127 / (double)largest) : 0;
    }
}

#if defined(__x86_64__)

/* Each vector function does whole vectors, and returns how many values it did. */

NBL_TARGET_AVX2 static int64_t mark_avx2(const float *x, int64_t n, float limit, uint8_t *outlier)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), bound = _mm256_set1_ps(limit);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i));
        if (_mm256_movemask_ps(_mm256_cmp_ps(magnitude, bound, _CMP_NLT_UQ)) != 0)
            mark_scalar(x + i, 8, limit, outlier + i); /* rare */
    }
    return i;
}

/* All bits set in the lanes whose value is finite and not in an outlier column. */
NBL_TARGET_AVX2 static inline __m256 staying_avx2(__m256 x, const uint8_t *outlier)
{
    __m256 magnitude = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
    __m256 finite = _mm256_cmp_ps(magnitude, _mm256_set1_ps(INFINITY), _CMP_LT_OQ);
    if (outlier == NULL) return finite;
    __m256i marks = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)outlier));
    return _mm256_and_ps(finite, _mm256_castsi256_ps(_mm256_cmpeq_epi32(marks, _mm256_setzero_si256())));
}

NBL_TARGET_AVX2 static int64_t largest_avx2(const float *x, int64_t n, float limit, float *largest)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), bound = _mm256_set1_ps(limit);
    __m256 max = _mm256_setzero_ps();
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 magnitude = _mm256_andnot_ps(sign, _mm256_loadu_ps(x + i));
        max = _mm256_max_ps(max, _mm256_and_ps(magnitude, _mm256_cmp_ps(magnitude, bound, _CMP_LT_OQ)));
    }
    float lanes[8];
    _mm256_storeu_ps(lanes, max);
    *largest = largest_scalar(lanes, 8, INFINITY);
    return i;
}

NBL_TARGET_AVX2 static int64_t code_avx2(const float *x, int64_t n, const uint8_t *outlier, float largest,
                                         int8_t *codes)
{
    const __m256 factor = _mm256_set1_ps(127 / largest), sign = _mm256_set1_ps(-0.0f);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint8_t *marks = outlier ? outlier + i : NULL;
        __m256 v = _mm256_loadu_ps(x + i);
        v = _mm256_mul_ps(_mm256_and_ps(v, staying_avx2(v, marks)), factor);
        __m256 whole = _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m256 off = _mm256_andnot_ps(sign, _mm256_sub_ps(v, whole));
        if (_mm256_movemask_ps(_mm256_cmp_ps(off, _mm256_set1_ps(CERTAIN), _CMP_GT_OQ)) != 0) {
            code_scalar(x + i, 8, marks, largest, codes + i);
            continue;
        }
        __m256i code = _mm256_cvtps_epi32(whole);
        __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(code), _mm256_extracti128_si256(code, 1));
        _mm_storel_epi64((__m128i *)(void *)(codes + i), _mm_packs_epi16(words, words));
    }
    return i;
}

NBL_TARGET_AVX512 static int64_t mark_avx512(const float *x, int64_t n, float limit, uint8_t *outlier)
{
    const __m512 bound = _mm512_set1_ps(limit);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 magnitude = _mm512_abs_ps(_mm512_loadu_ps(x + i));
        __mmask16 marks = _mm512_cmp_ps_mask(magnitude, bound, _CMP_NLT_UQ);
        if (marks != 0) _mm_mask_storeu_epi8(outlier + i, marks, _mm_set1_epi8(1));
    }
    return i;
}

NBL_TARGET_AVX512 static inline __mmask16 staying_avx512(__m512 x, const uint8_t *outlier)
{
    __mmask16 finite = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(INFINITY), _CMP_LT_OQ);
    if (outlier == NULL) return finite;
    __m128i marks = _mm_loadu_si128((const __m128i *)(const void *)outlier);
    return finite & _mm_cmpeq_epi8_mask(marks, _mm_setzero_si128());
}

NBL_TARGET_AVX512 static int64_t largest_avx512(const float *x, int64_t n, float limit, float *largest)
{
    const __m512 bound = _mm512_set1_ps(limit);
    __m512 max = _mm512_setzero_ps();
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 magnitude = _mm512_abs_ps(_mm512_loadu_ps(x + i));
        max = _mm512_mask_max_ps(max, _mm512_cmp_ps_mask(magnitude, bound, _CMP_LT_OQ), max, magnitude);
    }
    *largest = _mm512_reduce_max_ps(max);
    return i;
}

NBL_TARGET_AVX512 static int64_t code_avx512(const float *x, int64_t n, const uint8_t *outlier, float largest,
                                             int8_t *codes)
{
    const __m512 factor = _mm512_set1_ps(127 / largest);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const uint8_t *marks = outlier ? outlier + i : NULL;
        __m512 v = _mm512_loadu_ps(x + i);
        v = _mm512_maskz_mul_ps(staying_avx512(v, marks), v, factor);
        __m512 whole = _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        __m512 off = _mm512_abs_ps(_mm512_sub_ps(v, whole));
        if (_mm512_cmp_ps_mask(off, _mm512_set1_ps(CERTAIN), _CMP_GT_OQ) != 0) {
            code_scalar(x + i, 16, marks, largest, codes + i);
            continue;
        }
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(whole)));
    }
    return i;
}

#endif

static void mark(nbl_isa isa, const float *x, int64_t n, float limit, uint8_t *outlier)
{
    int64_t done = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) done = mark_avx512(x, n, limit, outlier);
    else if (isa >= NBL_ISA_AVX2) done = mark_avx2(x, n, limit, outlier);
#endif
    (void)isa;
    mark_scalar(x + done, n - done, limit, outlier + done);
}

static float largest_of(nbl_isa isa, const float *x, int64_t n, float limit)
{
    float largest = 0;
    int64_t done = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) done = largest_avx512(x, n, limit, &largest);
    else if (isa >= NBL_ISA_AVX2) done = largest_avx2(x, n, limit, &largest);
#endif
    (void)isa;
    return fmaxf(largest, largest_scalar(x + done, n - done, limit));
}

static void code(nbl_isa isa, const float *x, int64_t n, const uint8_t *outlier, float largest, int8_t *codes)
{
    int64_t done = 0;
#if defined(__x86_64__)
    if (largest > 0x1p-100f) { /* else 127 / largest may be no f32 */
        if (isa >= NBL_ISA_AVX512) done = code_avx512(x, n, outlier, largest, codes);
        else if (isa >= NBL_ISA_AVX2) done = code_avx2(x, n, outlier, largest, codes);
    }
#endif
    (void)isa;
    code_scalar(x + done, n - done, outlier ? outlier + done : NULL, largest, codes + done);
}

void nbl__int8_outliers(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t stride, int64_t rows,
                        int64_t columns, float threshold, uint8_t *outlier)
{
    float room[PIECE], limit = threshold > 0 ? threshold : INFINITY;
    memset(outlier, 0, (size_t)columns);
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += PIECE) {
            int64_t n = nbl__min_i64(PIECE, columns - c);
            const float *piece = piece_at(isa, dtype, x, r * stride + c, n, room);
            mark(isa, piece, n, limit, outlier + c);
        }
}

void nbl__int8_rows(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t stride, int64_t row_begin,
                    int64_t row_end, int64_t columns, float threshold, const uint8_t *outlier, int8_t *codes,
                    float *scales)
{
    float room[PIECE], limit = threshold > 0 ? threshold : INFINITY;
    for (int64_t r = row_begin; r < row_end; r++) {
        float largest = 0;
        for (int pass = 0; pass < 2; pass++)
            for (int64_t c = 0; c < columns; c += PIECE) {
                int64_t n = nbl__min_i64(PIECE, columns - c);
                const uint8_t *marks = outlier ? outlier + c : NULL;
                const float *piece = piece_at(isa, dtype, x, r * stride + c, n, room);
                if (pass == 0) largest = fmaxf(largest, largest_of(isa, piece, n, limit));
                else code(isa, piece, n, marks, largest, codes + r * columns + c);
            }
        scales[r] = largest;
    }
}
