/* convert.c - converts arrays between f32, f16 and bf16. Scalar, AVX2 and AVX-512 code give the
 * same bits.
 *
 * bf16 is rounded in integer arithmetic: bits + 0x7fff + (lowest bit that is kept), then >> 16.
 * The AVX512-BF16 instruction is not used because it flushes subnormals to zero. Cost:
 * memory-bound, 6 bytes per element.
 *
 * The vector functions convert whole vectors and return how many elements they did; the scalar
 * functions convert the rest, from `begin` on. */
#include "tensor/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* f16: sign, 5 bits of exponent with bias 15, 10 of mantissa. f32 has bias 127: 112 more. */
float nbl__f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    if (exponent == 31) /* infinity, or NaN, which becomes quiet */
        return nbl__from_bits(sign | 0x7f800000 | mantissa << 13 | (mantissa ? 0x00400000 : 0));
    if (exponent == 0) { /* subnormal: mantissa * 2^-24, exact in f32 */
        float value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    return nbl__from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

/* Four ranges by magnitude: NaN; 65520 and more; normal in f16; subnormal in f16. */
uint16_t nbl__f32_to_f16(float value)
{
    uint32_t bits = nbl__bits_of(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more: infinity */
    if (magnitude >= 0x38800000) {                                 /* normal in f16 */
        uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
        return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
    }
    /* Subnormal in f16: its unit is 2^-24. The unit of f32 numbers in [0.5, 1) is 2^-24 too, so
     * adding 0.5 rounds to it, to nearest even. */
    float shifted = nbl__from_bits(magnitude) + 0.5f;
    return (uint16_t)(sign | (nbl__bits_of(shifted) - 0x3f000000));
}

/* Elements [begin, n); memcpy because the arrays may be unaligned. */
static void to_f32_scalar(nbl_dtype dtype, const void *from, float *to, int64_t begin, int64_t n)
{
    const uint8_t *bytes = from;
    for (int64_t i = begin; i < n; i++) {
        uint16_t h;
        memcpy(&h, bytes + 2 * i, 2);
        to[i] = dtype == NBL_DTYPE_F16 ? nbl__f16_to_f32(h) : nbl__bf16_to_f32(h);
    }
}

/* Elements [begin, n) in the other direction. */
static void from_f32_scalar(const float *from, nbl_dtype dtype, void *to, int64_t begin, int64_t n)
{
    uint8_t *bytes = to;
    for (int64_t i = begin; i < n; i++) {
        uint16_t h = dtype == NBL_DTYPE_F16 ? nbl__f32_to_f16(from[i]) : nbl__f32_to_bf16(from[i]);
        memcpy(bytes + 2 * i, &h, 2);
    }
}

#if defined(__x86_64__)

/* Makes NaN quiet in lanes of f32 bits, as the scalar code does. */
NBL_TARGET_AVX2 static inline __m256i quiet_avx2(__m256i bits)
{
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    return _mm256_or_si256(bits, _mm256_and_si256(nan, _mm256_set1_epi32(0x00400000)));
}

/* 8 elements at a time. f16 is converted by F16C; bf16 is f32 without its low 16 bits. */
NBL_TARGET_AVX2 static int64_t to_f32_avx2(nbl_dtype dtype, const void *from, float *to, int64_t n)
{
    const uint16_t *source = from; /* read through unaligned loads only */
    int64_t i = 0;
    if (dtype == NBL_DTYPE_F16) {
        for (; i + 8 <= n; i += 8) {
            __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(source + i));
            _mm256_storeu_ps(to + i, _mm256_cvtph_ps(h));
        }
    } else {
        for (; i + 8 <= n; i += 8) {
            __m128i h = _mm_loadu_si128((const __m128i *)(const void *)(source + i));
            __m256i bits = _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
            _mm256_storeu_si256((__m256i *)(void *)(to + i), quiet_avx2(bits));
        }
    }
    return i;
}

/* nbl__f32_to_bf16 in 8 lanes: rounded bits, or quiet NaN, in the low 16 bits of each. */
NBL_TARGET_AVX2 static inline __m256i round_bf16_avx2(__m256i bits)
{
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

/* f16: 8 elements at a time. bf16: 16, as two vectors that are packed into one; packus works within
 * the 128-bit halves, so the permutation 0xd8 (0, 2, 1, 3) restores the order. */
NBL_TARGET_AVX2 static int64_t from_f32_avx2(const float *from, nbl_dtype dtype, void *to, int64_t n)
{
    uint16_t *target = to;
    int64_t i = 0;
    if (dtype == NBL_DTYPE_F16) {
        for (; i + 8 <= n; i += 8) {
            __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
            _mm_storeu_si128((__m128i *)(void *)(target + i), h);
        }
    } else {
        for (; i + 16 <= n; i += 16) {
            __m256i a = round_bf16_avx2(_mm256_loadu_si256((const __m256i *)(const void *)(from + i)));
            __m256i b = round_bf16_avx2(_mm256_loadu_si256((const __m256i *)(const void *)(from + i + 8)));
            __m256i both = _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
            _mm256_storeu_si256((__m256i *)(void *)(target + i), both);
        }
    }
    return i;
}

/* The same in 16 lanes. */
NBL_TARGET_AVX512 static int64_t to_f32_avx512(nbl_dtype dtype, const void *from, float *to, int64_t n)
{
    const uint16_t *source = from;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)(source + i));
        if (dtype == NBL_DTYPE_F16) {
            _mm512_storeu_ps(to + i, _mm512_cvtph_ps(h));
        } else {
            __m512i bits = _mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
            __mmask16 nan = _mm512_cmpgt_epi32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                                                    _mm512_set1_epi32(0x7f800000));
            bits = _mm512_mask_or_epi32(bits, nan, bits, _mm512_set1_epi32(0x00400000));
            _mm512_storeu_si512(to + i, bits);
        }
    }
    return i;
}

/* The same in 16 lanes; cvtepi32_epi16 truncates, so no order needs to be restored. */
NBL_TARGET_AVX512 static int64_t from_f32_avx512(const float *from, nbl_dtype dtype, void *to, int64_t n)
{
    uint16_t *target = to;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i h;
        if (dtype == NBL_DTYPE_F16) {
            h = _mm512_cvtps_ph(_mm512_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT);
        } else {
            __m512i bits = _mm512_loadu_si512(from + i);
            __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
            __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
            __mmask16 nan = _mm512_cmpgt_epi32_mask(_mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff)),
                                                    _mm512_set1_epi32(0x7f800000));
            rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
            h = _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
        }
        _mm256_storeu_si256((__m256i *)(void *)(target + i), h);
    }
    return i;
}

#endif

void nbl__to_f32(nbl_isa isa, nbl_dtype from_dtype, const void *from, float *to, int64_t n)
{
    (void)isa; /* where no instruction set has a fast way */
    assert(nbl__is_compute(from_dtype));
    if (n <= 0) return;
    if (from_dtype == NBL_DTYPE_F32) {
        memmove(to, from, (size_t)n * 4);
        return;
    }
    int64_t done = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) done = to_f32_avx512(from_dtype, from, to, n);
    else if (isa >= NBL_ISA_AVX2) done = to_f32_avx2(from_dtype, from, to, n);
#endif
    to_f32_scalar(from_dtype, from, to, done, n);
}

void nbl__from_f32(nbl_isa isa, const float *from, nbl_dtype to_dtype, void *to, int64_t n)
{
    (void)isa;
    assert(nbl__is_compute(to_dtype));
    if (n <= 0) return;
    if (to_dtype == NBL_DTYPE_F32) {
        memmove(to, from, (size_t)n * 4);
        return;
    }
    int64_t done = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) done = from_f32_avx512(from, to_dtype, to, n);
    else if (isa >= NBL_ISA_AVX2) done = from_f32_avx2(from, to_dtype, to, n);
#endif
    from_f32_scalar(from, to_dtype, to, done, n);
}

/* Between f16 and bf16 values go through f32, which holds both exactly: they are rounded once. */
nbl_status nbl_convert(nbl_context *ctx, nbl_dtype from_dtype, const void *from, nbl_dtype to_dtype, void *to,
                       int64_t n)
{
    NBL_CHECK(ctx, nbl__is_compute(from_dtype) && nbl__is_compute(to_dtype), NBL_ERROR_DTYPE,
              "convert: %s to %s is not a conversion between f32, f16 and bf16", nbl_dtype_name(from_dtype),
              nbl_dtype_name(to_dtype));
    NBL_CHECK(ctx, n >= 0 && (n == 0 || (from && to)), NBL_ERROR_ARGUMENT,
              "convert: %" PRId64 " elements, or from or to is NULL", n);
    if (from_dtype == to_dtype) {
        if (n > 0) memmove(to, from, (size_t)n * nbl__size_of(to_dtype));
        return NBL_OK;
    }
    enum { PIECE = 1024 };
    float piece[PIECE];
    size_t from_size = nbl__size_of(from_dtype), to_size = nbl__size_of(to_dtype);
    for (int64_t i = 0; i < n; i += PIECE) {
        int64_t count = nbl__min_i64(PIECE, n - i);
        nbl__to_f32(nbl__isa(ctx), from_dtype, (const char *)from + (size_t)i * from_size, piece, count);
        nbl__from_f32(nbl__isa(ctx), piece, to_dtype, (char *)to + (size_t)i * to_size, count);
    }
    return NBL_OK;
}
