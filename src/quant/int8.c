/* int8.c - LLM.int8()'s format: one f32 scale per row, the row's absmax.
 *
 *     encode      a = f16(x); scale = max |a|; code = RN(a * ((1 / scale) * 127)), ties to even
 *     dequantize  w = RN_T(RN_32(RN_32(code * scale) * RN_32(1/127))), in this order
 *
 * The factor is a reciprocal times 127, not 127 / scale: torch computes it so, and about one
 * code in 10^4 differs. Rounding to f16 keeps the order of values, so absmax is computed on the
 * stored values and rounded afterwards. A row is read twice, the second time from a cache unless
 * it is very long. Both directions are memory-bound: 3 to 5 bytes per value. */
#include "quant/kernels.h"

#include <math.h>

#define INVERSE_127 0x1.020408p-7f /* bits 3c010204 */

/* ---- dequantize ---- */

/* Elements [begin, n) of a row. */
static void dequantize_int8_scalar(nbl_dtype dtype, const int8_t *codes, float scale, void *out,
                                   int64_t begin, int64_t n)
{
    for (int64_t i = begin; i < n; i++) {
        float value = (float)codes[i] * scale * INVERSE_127;
        if (dtype == NBL_DTYPE_F32) ((float *)out)[i] = value;
        else ((uint16_t *)out)[i] = dtype == NBL_DTYPE_F16 ? nbl__f32_to_f16(value) : nbl__f32_to_bf16(value);
    }
}

#if defined(__x86_64__)

/* Eight codes to f32, times scale, times 1/127: two roundings. */
NBL_TARGET_AVX2 static inline __m256 eight_avx2(const int8_t *codes, __m256 scale)
{
    __m256 code = _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes)));
    return _mm256_mul_ps(_mm256_mul_ps(code, scale), _mm256_set1_ps(INVERSE_127));
}

/* The AVX2 and AVX-512 functions return how many values they did. The scale is finite, so no
 * value is NaN. */
NBL_TARGET_AVX2 static int64_t dequantize_int8_avx2(nbl_dtype dtype, const int8_t *codes, float scale,
                                                    void *out, int64_t n, bool stream)
{
    const __m256 factor = _mm256_set1_ps(scale);
    uint8_t *to = out;
    int64_t i = 0;
    if (dtype == NBL_DTYPE_F32) {
        for (; i + 8 <= n; i += 8)
            put_avx2(to + 4 * i, _mm256_castps_si256(eight_avx2(codes + i, factor)), stream);
        return i;
    }
    for (; i + 16 <= n; i += 16) {
        __m256 a = eight_avx2(codes + i, factor), b = eight_avx2(codes + i + 8, factor);
        put_avx2(to + 2 * i, narrow_avx2(dtype, a, b), stream);
    }
    return i;
}

/* The same in 16 lanes. */
NBL_TARGET_AVX512 static inline __m512 sixteen_avx512(const int8_t *codes, __m512 scale)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)codes);
    __m512 code = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    return _mm512_mul_ps(_mm512_mul_ps(code, scale), _mm512_set1_ps(INVERSE_127));
}

NBL_TARGET_AVX512 static int64_t dequantize_int8_avx512(nbl_dtype dtype, const int8_t *codes, float scale,
                                                        void *out, int64_t n, bool stream)
{
    const __m512 factor = _mm512_set1_ps(scale);
    uint8_t *to = out;
    int64_t i = 0;
    if (dtype == NBL_DTYPE_F32) {
        for (; i + 16 <= n; i += 16)
            put_avx512(to + 4 * i, _mm512_castps_si512(sixteen_avx512(codes + i, factor)), stream);
        return i;
    }
    for (; i + 32 <= n; i += 32) {
        __m256i a = narrow_avx512(dtype, sixteen_avx512(codes + i, factor));
        __m256i b = narrow_avx512(dtype, sixteen_avx512(codes + i + 16, factor));
        put_avx512(to + 2 * i, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1), stream);
    }
    return i;
}

#endif

/* Decodes a row or a part of it. */
static void dequantize_row(nbl_isa isa, nbl_dtype dtype, const int8_t *codes, float scale, void *out,
                           int64_t n, bool stream)
{
    int64_t done = 0;
#if defined(__x86_64__)
    stream = stream && (uintptr_t)out % 64 == 0;
    if (isa >= NBL_ISA_AVX512 && isfinite(scale))
        done = dequantize_int8_avx512(dtype, codes, scale, out, n, stream);
    else if (isa >= NBL_ISA_AVX2 && isfinite(scale))
        done = dequantize_int8_avx2(dtype, codes, scale, out, n, stream);
#else
    (void)isa, (void)stream;
#endif
    dequantize_int8_scalar(dtype, codes, scale, out, done, n);
}

void nbl__int8_dequantize(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                          void *out, bool stream)
{
    if (begin >= end) return;
    /* The range may begin and end within a row. */
    int64_t columns = weight->shape[weight->rank - 1], row = begin / columns;
    assert(begin >= 0 && weight->scales);
    const int8_t *codes = weight->data;
    uint8_t *target = out;
    for (int64_t i = begin, stop; i < end; i = stop, row++) {
        stop = nbl__min_i64(end, (row + 1) * columns);
        dequantize_row(isa, dtype, codes + i, weight->scales[row],
                       target + (size_t)(i - begin) * nbl__size_of(dtype), stop - i, stream);
    }
#if defined(__x86_64__)
    if (stream) _mm_sfence();
#endif
}

/* ---- encode ---- */

/* The value that bitsandbytes computes with: it encodes from f16. */
static float through_f16(float value)
{
    return nbl__f16_to_f32(nbl__f32_to_f16(value));
}

/* Value i, rounded to f16. */
static float value_of(nbl_dtype dtype, const uint8_t *values, int64_t i)
{
    float value;
    nbl__to_f32(NBL_ISA_SCALAR, dtype, values + (size_t)i * nbl__size_of(dtype), &value, 1);
    return through_f16(value);
}

/* Elements [begin, n) of a row. */
static void encode_int8_scalar(nbl_dtype dtype, const uint8_t *values, float factor, int8_t *codes,
                               int64_t begin, int64_t n)
{
    for (int64_t i = begin; i < n; i++) {
        float y = value_of(dtype, values, i) * factor;
        codes[i] = y == y ? (int8_t)lrintf(y) : 0; /* NaN, also from infinity · 0: code 0 */
    }
}

#if defined(__x86_64__)

/* Loads 8 values, rounded to f16. */
NBL_TARGET_AVX2 static inline __m256 load_f16_avx2(nbl_dtype dtype, const uint8_t *values, int64_t i)
{
    __m256 wide;
    if (dtype == NBL_DTYPE_F32) {
        wide = _mm256_loadu_ps((const float *)(const void *)(values + 4 * i));
    } else {
        __m128i half = _mm_loadu_si128((const __m128i *)(const void *)(values + 2 * i));
        if (dtype == NBL_DTYPE_F16) return _mm256_cvtph_ps(half);
        wide = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
    }
    return _mm256_cvtph_ps(_mm256_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT));
}

/* cvtps rounds to nearest even; lanes with NaN become 0. */
NBL_TARGET_AVX2 static inline __m256i int8_codes_avx2(nbl_dtype dtype, const uint8_t *values, int64_t i,
                                                      __m256 factor)
{
    __m256 y = _mm256_mul_ps(load_f16_avx2(dtype, values, i), factor);
    return _mm256_and_si256(_mm256_cvtps_epi32(y), _mm256_castps_si256(_mm256_cmp_ps(y, y, _CMP_ORD_Q)));
}

/* Whole groups of 32 values; returns how many were encoded. Inlined with a constant dtype, so the
 * loop has no branch. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline int64_t
encode_int8_avx2(nbl_dtype dtype, const uint8_t *values, float scale, int8_t *codes, int64_t n)
{
    const __m256 f = _mm256_set1_ps(scale);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i bytes = bytes_of_avx2(
            int8_codes_avx2(dtype, values, i, f), int8_codes_avx2(dtype, values, i + 8, f),
            int8_codes_avx2(dtype, values, i + 16, f), int8_codes_avx2(dtype, values, i + 24, f));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes);
    }
    return i;
}

/* One specialised loop per dtype. */
NBL_TARGET_AVX2 static int64_t encode_int8_any_avx2(nbl_dtype dtype, const uint8_t *values, float scale,
                                                    int8_t *codes, int64_t n)
{
    if (dtype == NBL_DTYPE_F32) return encode_int8_avx2(NBL_DTYPE_F32, values, scale, codes, n);
    if (dtype == NBL_DTYPE_F16) return encode_int8_avx2(NBL_DTYPE_F16, values, scale, codes, n);
    return encode_int8_avx2(NBL_DTYPE_BF16, values, scale, codes, n);
}

/* The same in 16 lanes. */
NBL_TARGET_AVX512 static inline __m512 load_f16_avx512(nbl_dtype dtype, const uint8_t *values, int64_t i)
{
    __m512 wide;
    if (dtype == NBL_DTYPE_F32) {
        wide = _mm512_loadu_ps(values + 4 * i);
    } else {
        __m256i half = _mm256_loadu_si256((const __m256i *)(const void *)(values + 2 * i));
        if (dtype == NBL_DTYPE_F16) return _mm512_cvtph_ps(half);
        wide = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
    }
    return _mm512_cvtph_ps(_mm512_cvtps_ph(wide, _MM_FROUND_TO_NEAREST_INT));
}

/* Whole groups of 16 values; returns how many were encoded. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline int64_t
encode_int8_avx512(nbl_dtype dtype, const uint8_t *values, float scale, int8_t *codes, int64_t n)
{
    const __m512 factor = _mm512_set1_ps(scale);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 y = _mm512_mul_ps(load_f16_avx512(dtype, values, i), factor);
        __m512i code = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(y, y, _CMP_ORD_Q), y);
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return i;
}

NBL_TARGET_AVX512 static int64_t encode_int8_any_avx512(nbl_dtype dtype, const uint8_t *values, float scale,
                                                        int8_t *codes, int64_t n)
{
    if (dtype == NBL_DTYPE_F32) return encode_int8_avx512(NBL_DTYPE_F32, values, scale, codes, n);
    if (dtype == NBL_DTYPE_F16) return encode_int8_avx512(NBL_DTYPE_F16, values, scale, codes, n);
    return encode_int8_avx512(NBL_DTYPE_BF16, values, scale, codes, n);
}

#endif

/* The row's scale. *non_finite grows by the number of its values that are non-finite in f16. The
 * second count is needed for f32 and bf16 values that are finite, but too large for f16. */
static float row_scale(nbl_isa isa, nbl_dtype dtype, const uint8_t *values, int64_t columns,
                       int64_t *non_finite)
{
    int64_t bad = 0;
    float scale = through_f16(nbl__absmax(isa, dtype, values, columns, &bad));
    if (scale == INFINITY) { /* count again in f16, where values of 65520 and more are infinite */
        bad = 0;
        for (int64_t i = 0; i < columns; i++) bad += !isfinite(value_of(dtype, values, i));
    }
    *non_finite += bad;
    return scale;
}

int64_t nbl__int8_encode(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t rows, int64_t columns,
                         int8_t *codes, float *scales)
{
    int64_t non_finite = 0;
    for (int64_t r = 0; r < rows; r++, codes += columns) {
        const uint8_t *row = (const uint8_t *)values + (size_t)(r * columns) * nbl__size_of(dtype);
        scales[r] = row_scale(isa, dtype, row, columns, &non_finite);
        /* a row of zeros, or of values that f16 rounds to zero */
        if (scales[r] == 0) {
            if (columns > 0) memset(codes, 0, (size_t)columns);
            continue;
        }
        /* torch's order of operations; see the head of the file */
        float factor = 1 / scales[r] * 127;
        int64_t done = 0;
#if defined(__x86_64__)
        if (isa >= NBL_ISA_AVX512) done = encode_int8_any_avx512(dtype, row, factor, codes, columns);
        else if (isa >= NBL_ISA_AVX2) done = encode_int8_any_avx2(dtype, row, factor, codes, columns);
#endif
        encode_int8_scalar(dtype, row, factor, codes, done, columns);
    }
    return non_finite;
}
