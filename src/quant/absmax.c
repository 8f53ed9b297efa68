/* absmax.c - the largest magnitude of a block, ignoring NaN.
 *
 * Without its sign bit, a float compares like an integer, in f32, f16 and bf16 alike, with infinity
 * above all numbers and NaN above infinity:
 *
 *     0 < subnormals < normal numbers < infinity (f32: 7f800000) < NaN
 *
 * So one integer maximum over the stored bits gives the answer, unless it is NaN or infinity: then
 * a second, scalar pass counts these and skips NaN.
 *
 * The vector functions use two accumulators, so that two maxima are under way at a time. The rest
 * of a block is done one by one. Cost: memory-bound, one read of the values. */
#include "quant/kernels.h"

/* The f32 with these bits of a dtype. */
static float widen(nbl_dtype dtype, uint32_t bits)
{
    if (dtype == NBL_DTYPE_F32) return nbl__from_bits(bits);
    return dtype == NBL_DTYPE_F16 ? nbl__f16_to_f32((uint16_t)bits) : nbl__from_bits(bits << 16);
}

/* Bits of value i without its sign. */
static inline uint32_t magnitude_at(nbl_dtype dtype, const uint8_t *values, int64_t i)
{
    uint32_t wide;
    uint16_t half;
    if (dtype == NBL_DTYPE_F32) {
        memcpy(&wide, values + 4 * i, 4);
        return wide & 0x7fffffff;
    }
    memcpy(&half, values + 2 * i, 2);
    return half & 0x7fffu;
}

/* The scalar pass for blocks that hold NaN or infinities. */
static float absmax_careful(nbl_dtype dtype, const uint8_t *values, int64_t n, uint32_t infinity,
                            int64_t *non_finite)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = magnitude_at(dtype, values, i);
        if (magnitude >= infinity) ++*non_finite;
        if (magnitude <= infinity && magnitude > largest) largest = magnitude;
    }
    return widen(dtype, largest);
}

#if defined(__x86_64__)

/* Unaligned load. */
NBL_TARGET_AVX2 static inline __m256i load_avx2(const uint8_t *from)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

/* Maximum over 32-bit values; returns how many values it read. */
NBL_TARGET_AVX2 static int64_t largest_32_avx2(const uint8_t *values, int64_t n, uint32_t *largest)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i a = _mm256_setzero_si256(), b = a;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        a = _mm256_max_epi32(a, _mm256_and_si256(load_avx2(values + 4 * i), mask));
        b = _mm256_max_epi32(b, _mm256_and_si256(load_avx2(values + 4 * i + 32), mask));
    }
    a = _mm256_max_epi32(a, b);
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
    *largest = (uint32_t)_mm_cvtsi128_si32(half);
    return i;
}

/* The same over 16-bit values (f16, bf16). */
NBL_TARGET_AVX2 static int64_t largest_16_avx2(const uint8_t *values, int64_t n, uint32_t *largest)
{
    const __m256i mask = _mm256_set1_epi16(0x7fff);
    __m256i a = _mm256_setzero_si256(), b = a;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        a = _mm256_max_epi16(a, _mm256_and_si256(load_avx2(values + 2 * i), mask));
        b = _mm256_max_epi16(b, _mm256_and_si256(load_avx2(values + 2 * i + 32), mask));
    }
    a = _mm256_max_epi16(a, b);
    __m128i half = _mm_max_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    half = _mm_minpos_epu16(
        /* minpos is the only horizontal minimum there is */
        _mm_sub_epi16(_mm_set1_epi16(0x7fff), half));
    *largest = 0x7fffu - ((uint32_t)_mm_cvtsi128_si32(half) & 0xffff);
    return i;
}

/* 16 lanes. 16-bit values stay with AVX2, which has a horizontal minimum for them. */
NBL_TARGET_AVX512 static int64_t largest_32_avx512(const uint8_t *values, int64_t n, uint32_t *largest)
{
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_setzero_si512(), b = a;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        a = _mm512_max_epi32(a, _mm512_and_si512(_mm512_loadu_si512(values + 4 * i), mask));
        b = _mm512_max_epi32(b, _mm512_and_si512(_mm512_loadu_si512(values + 4 * i + 64), mask));
    }
    *largest = (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
    return i;
}

#endif

float nbl__absmax(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n, int64_t *non_finite)
{
    assert(n >= 0 && nbl__is_compute(dtype));
    uint32_t largest = 0, infinity = dtype == NBL_DTYPE_F32   ? 0x7f800000
                                     : dtype == NBL_DTYPE_F16 ? 0x7c00
                                                              : 0x7f80;
    int64_t i = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX2 && dtype != NBL_DTYPE_F32) i = largest_16_avx2(values, n, &largest);
    else if (isa >= NBL_ISA_AVX512) i = largest_32_avx512(values, n, &largest);
    else if (isa >= NBL_ISA_AVX2) i = largest_32_avx2(values, n, &largest);
#else
    (void)isa;
#endif
    /* the rest; on other machines, everything */
    for (; i < n; i++) {
        uint32_t magnitude = magnitude_at(dtype, values, i);
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest < infinity ? widen(dtype, largest)
                              : absmax_careful(dtype, values, n, infinity, non_finite);
}

bool nbl__all_finite(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n)
{
    int64_t non_finite = 0;
    (void)nbl__absmax(isa, dtype, values, n, &non_finite);
    return non_finite == 0;
}
