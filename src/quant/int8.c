/* int8.c - LLM.int8's row-wise format: one f32 scale per row, the row's absmax.
 *
 *   encode  a = f16(x); scale = max |a|; code = RN(a * (127 / scale)), ties to even
 *   decode  w = RN_T(RN_32(RN_32(code * scale) * RN_32(1/127))), in this order
 *
 * Rounding to f16 keeps order, so the row's absmax is found before it. A row is read twice; the second
 * time from a cache unless it is huge. */
#include "quant/kernels.h"

#include <math.h>

#define INVERSE_127 0x1.020408p-7f /* bits 3c010204 */

enum { PIECE = 4096 };

#if defined(__x86_64__)

NBL_TARGET_AVX2 static inline __m256 eight_avx2(const int8_t *codes, __m256 scale)
{
    __m256 code = _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)codes)));
    return _mm256_mul_ps(_mm256_mul_ps(code, scale), _mm256_set1_ps(INVERSE_127));
}

NBL_TARGET_AVX2 static int64_t decode_int8_avx2(const int8_t *codes, float scale, nbl_dtype dtype, void *out,
                                                int64_t n, bool stream)
{
    const __m256 factor = _mm256_set1_ps(scale);
    uint8_t *to = out;
    int64_t i = 0;
    if (dtype == NBL_DTYPE_F32)
        for (; i + 8 <= n; i += 8)
            put_avx2(to + 4 * i, _mm256_castps_si256(eight_avx2(codes + i, factor)), stream);
    else
        for (; i + 16 <= n; i += 16)
            put_avx2(to + 2 * i,
                     narrow_avx2(dtype, eight_avx2(codes + i, factor), eight_avx2(codes + i + 8, factor)),
                     stream);
    return i;
}

NBL_TARGET_AVX512 static inline __m512 sixteen_avx512(const int8_t *codes, __m512 scale)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)codes);
    __m512 code = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
    return _mm512_mul_ps(_mm512_mul_ps(code, scale), _mm512_set1_ps(INVERSE_127));
}

NBL_TARGET_AVX512 static int64_t decode_int8_avx512(const int8_t *codes, float scale, nbl_dtype dtype,
                                                    void *out, int64_t n, bool stream)
{
    const __m512 factor = _mm512_set1_ps(scale);
    uint8_t *to = out;
    int64_t i = 0;
    if (dtype == NBL_DTYPE_F32) {
        for (; i + 16 <= n; i += 16)
            put_avx512(to + 4 * i, _mm512_castps_si512(sixteen_avx512(codes + i, factor)), stream);
    } else {
        for (; i + 32 <= n; i += 32) {
            __m256i a = narrow_avx512(dtype, sixteen_avx512(codes + i, factor));
            __m256i b = narrow_avx512(dtype, sixteen_avx512(codes + i + 16, factor));
            put_avx512(to + 2 * i, _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1), stream);
        }
    }
    return i;
}

#endif

/* A row, or a part of one. */
static void decode_row(nbl_isa isa, const int8_t *codes, float scale, nbl_dtype dtype, void *out, int64_t n,
                       bool stream)
{
    int64_t done = 0;
#if defined(__x86_64__)
    stream = stream && (uintptr_t)out % 64 == 0;
    if (isa >= NBL_ISA_AVX512) done = decode_int8_avx512(codes, scale, dtype, out, n, stream);
    else if (isa >= NBL_ISA_AVX2) done = decode_int8_avx2(codes, scale, dtype, out, n, stream);
#else
    (void)isa, (void)stream;
#endif
    for (int64_t i = done; i < n; i++) {
        float value = (float)codes[i] * scale * INVERSE_127;
        if (dtype == NBL_DTYPE_F32) ((float *)out)[i] = value;
        else ((uint16_t *)out)[i] = dtype == NBL_DTYPE_F16 ? nbl__f32_to_f16(value) : nbl__f32_to_bf16(value);
    }
}

void nbl__int8_decode(nbl_isa isa, const nbl_weight *weight, int64_t begin, int64_t end, nbl_dtype dtype,
                      void *out, bool stream)
{
    if (begin >= end) return;
    int64_t columns = weight->shape[weight->rank - 1], row = begin / columns;
    const int8_t *codes = weight->data;
    uint8_t *target = out;
    for (int64_t i = begin, stop; i < end; i = stop, row++) {
        stop = nbl__min_i64(end, (row + 1) * columns);
        decode_row(isa, codes + i, weight->scales[row], dtype,
                   target + (size_t)(i - begin) * nbl__size_of(dtype), stop - i, stream);
    }
}

static float through_f16(float value)
{
    return nbl__f16_to_f32(nbl__f32_to_f16(value));
}

static void encode_int8_scalar(const float *values, float factor, int8_t *codes, int64_t begin, int64_t n)
{
    for (int64_t i = begin; i < n; i++) {
        float y = through_f16(values[i]) * factor;
        codes[i] = y == y ? (int8_t)lrintf(y) : 0; /* infinity only occurs times 0 */
    }
}

#if defined(__x86_64__)

NBL_TARGET_AVX2 static int64_t encode_int8_avx2(const float *values, float scale, int8_t *codes, int64_t n)
{
    const __m256 factor = _mm256_set1_ps(scale);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i lanes[4];
        for (int k = 0; k < 4; k++) {
            __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(values + i + 8 * k), _MM_FROUND_TO_NEAREST_INT);
            __m256 y = _mm256_mul_ps(_mm256_cvtph_ps(half), factor);
            __m256i number = _mm256_castps_si256(_mm256_cmp_ps(y, y, _CMP_ORD_Q));
            lanes[k] = _mm256_and_si256(_mm256_cvtps_epi32(y), number);
        }
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes_of_avx2(lanes));
    }
    return i;
}

NBL_TARGET_AVX512 static int64_t encode_int8_avx512(const float *values, float scale, int8_t *codes,
                                                    int64_t n)
{
    const __m512 factor = _mm512_set1_ps(scale);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i half = _mm512_cvtps_ph(_mm512_loadu_ps(values + i), _MM_FROUND_TO_NEAREST_INT);
        __m512 y = _mm512_mul_ps(_mm512_cvtph_ps(half), factor);
        __m512i code = _mm512_maskz_cvtps_epi32(_mm512_cmp_ps_mask(y, y, _CMP_ORD_Q), y);
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return i;
}

#endif

static void encode_piece(nbl_isa isa, const float *values, float factor, int8_t *codes, int64_t n)
{
    int64_t done = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) done = encode_int8_avx512(values, factor, codes, n);
    else if (isa >= NBL_ISA_AVX2) done = encode_int8_avx2(values, factor, codes, n);
#else
    (void)isa;
#endif
    encode_int8_scalar(values, factor, codes, done, n);
}

/* The row's scale, and how many of its values are not finite in f16. */
static float row_scale(nbl_isa isa, nbl_dtype dtype, const uint8_t *values, int64_t columns,
                       int64_t *non_finite)
{
    float piece[PIECE], scale = 0;
    for (int64_t i = 0; i < columns; i += PIECE) {
        int64_t count = nbl__min_i64(PIECE, columns - i), bad = 0;
        nbl__to_f32(isa, dtype, values + (size_t)i * nbl__size_of(dtype), piece, count);
        float absmax = through_f16(nbl__absmax(isa, piece, count, &bad));
        if (absmax == INFINITY) { /* also values that only f16 cannot hold */
            bad = 0;
            for (int64_t k = 0; k < count; k++) bad += !isfinite(through_f16(piece[k]));
        }
        *non_finite += bad;
        if (absmax > scale) scale = absmax;
    }
    return scale;
}

int64_t nbl__int8_encode(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t rows, int64_t columns,
                         int8_t *codes, float *scales)
{
    float piece[PIECE];
    int64_t non_finite = 0;
    for (int64_t r = 0; r < rows; r++) {
        const uint8_t *row = (const uint8_t *)values + (size_t)(r * columns) * nbl__size_of(dtype);
        scales[r] = row_scale(isa, dtype, row, columns, &non_finite);
        if (scales[r] == 0) {
            if (columns > 0) memset(codes + r * columns, 0, (size_t)columns);
            continue;
        }
        float factor = 127 / scales[r];
        for (int64_t i = 0; i < columns; i += PIECE) {
            int64_t count = nbl__min_i64(PIECE, columns - i);
            nbl__to_f32(isa, dtype, row + (size_t)i * nbl__size_of(dtype), piece, count);
            encode_piece(isa, piece, factor, codes + r * columns + i, count);
        }
    }
    return non_finite;
}
