/* absmax.c - the largest magnitude of a block, ignoring NaN.
 *
 * Magnitudes order like their bits, NaN above infinity: one integer maximum tells whether a block needs
 * the careful pass at all. */
#include "quant/kernels.h"

static float absmax_careful(const float *values, int64_t n, int64_t *non_finite)
{
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t magnitude = nbl__bits_of(values[i]) & 0x7fffffff;
        if (magnitude >= 0x7f800000) ++*non_finite;
        if (magnitude <= 0x7f800000 && magnitude > largest) largest = magnitude;
    }
    return nbl__from_bits(largest);
}

#if defined(__x86_64__)

NBL_TARGET_AVX2 static int64_t largest_avx2(const float *values, int64_t n, uint32_t *largest)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i a = _mm256_setzero_si256(), b = a;
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        const __m256i *from = (const __m256i *)(const void *)(values + i);
        a = _mm256_max_epi32(a, _mm256_and_si256(_mm256_loadu_si256(from), mask));
        b = _mm256_max_epi32(b, _mm256_and_si256(_mm256_loadu_si256(from + 1), mask));
    }
    a = _mm256_max_epi32(a, b);
    __m128i half = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
    half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
    *largest = (uint32_t)_mm_cvtsi128_si32(half);
    return i;
}

NBL_TARGET_AVX512 static int64_t largest_avx512(const float *values, int64_t n, uint32_t *largest)
{
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i a = _mm512_setzero_si512(), b = a;
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        a = _mm512_max_epi32(a, _mm512_and_si512(_mm512_loadu_si512(values + i), mask));
        b = _mm512_max_epi32(b, _mm512_and_si512(_mm512_loadu_si512(values + i + 16), mask));
    }
    *largest = (uint32_t)_mm512_reduce_max_epi32(_mm512_max_epi32(a, b));
    return i;
}

#endif

float nbl__absmax(nbl_isa isa, const float *values, int64_t n, int64_t *non_finite)
{
    uint32_t largest = 0;
    int64_t i = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) i = largest_avx512(values, n, &largest);
    else if (isa >= NBL_ISA_AVX2) i = largest_avx2(values, n, &largest);
#else
    (void)isa;
#endif
    for (; i < n; i++) {
        uint32_t magnitude = nbl__bits_of(values[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest < 0x7f800000 ? nbl__from_bits(largest) : absmax_careful(values, n, non_finite);
}
