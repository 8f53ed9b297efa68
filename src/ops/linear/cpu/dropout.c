/* dropout.c - see dropout.h.
 *
 * One counter of the generator yields four words, for the elements 4c … 4c + 3. The AVX2 code
 * computes eight counters, one per lane, and transposes words by counters into the order of the
 * elements:
 *
 *   w0: c0 c1 … c7
 *   w1: c0 c1 … c7      ->  c0w0 c0w1 c0w2 c0w3 c1w0 …      32 elements
 *   w2, w3 */
#include "ops/linear/cpu/dropout.h"

#include "base/philox.h"

/* An element's index alone decides its counter and word, so that a range may begin and end
 * anywhere. */
static void drop_scalar(uint64_t seed, float dropout, int64_t index, int64_t count, float *values)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    float factor = 1 / (1 - dropout);
    for (int64_t i = index, end = index + count; i < end;) {
        uint32_t words[4];
        nbl__philox((uint32_t[4]){(uint32_t)(i >> 2), (uint32_t)(i >> 34), 0, 0}, key, words);
        for (int64_t stop = nbl__min_i64(end, (i | 3) + 1); i < stop; i++) {
            float *v = &values[i - index];
            *v = nbl__uniform(words[i & 3]) >= dropout ? *v * factor : 0;
        }
    }
}

#if defined(__x86_64__)
#include <immintrin.h>

/* Eight products of 32 by 32 bits, as low and high halves. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline void multiply_avx2(__m256i a, __m256i factor,
                                                                                __m256i *low, __m256i *high)
{
    __m256i even = _mm256_mul_epu32(a, factor), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), factor);
    *low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

/* The words of the eight counters from `counter` on, in the order of the elements. No counter may
 * carry into the upper 32 bits. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline void philox_avx2(int64_t counter, uint64_t seed,
                                                                              __m256i out[4])
{
    const __m256i m0 = _mm256_set1_epi32((int)0xD2511F53u), m1 = _mm256_set1_epi32((int)0xCD9E8D57u);
    __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)counter),
                                  _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    __m256i c1 = _mm256_set1_epi32((int)(uint32_t)(counter >> 32));
    __m256i c2 = _mm256_setzero_si256(), c3 = c2;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        __m256i low0, high0, low1, high1;
        multiply_avx2(c0, m0, &low0, &high0);
        multiply_avx2(c2, m1, &low1, &high1);
        c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32((int)k0));
        c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32((int)k1));
        c1 = low1;
        c3 = low0;
    }
    /* Transpose: two steps within the 128-bit halves, one across them. */
    __m256i a = _mm256_unpacklo_epi32(c0, c1), b = _mm256_unpacklo_epi32(c2, c3);
    __m256i c = _mm256_unpackhi_epi32(c0, c1), d = _mm256_unpackhi_epi32(c2, c3);
    __m256i e = _mm256_unpacklo_epi64(a, b), f = _mm256_unpackhi_epi64(a, b);
    __m256i g = _mm256_unpacklo_epi64(c, d), h = _mm256_unpackhi_epi64(c, d);
    out[0] = _mm256_permute2x128_si256(e, f, 0x20);
    out[1] = _mm256_permute2x128_si256(g, h, 0x20);
    out[2] = _mm256_permute2x128_si256(e, f, 0x31);
    out[3] = _mm256_permute2x128_si256(g, h, 0x31);
}

/* Groups of 32 elements, from an index that is a multiple of 4. Returns how many elements were
 * done. A group whose counters would carry falls back to the scalar code. */
NBL_TARGET_AVX2 static int64_t drop_avx2(uint64_t seed, float dropout, int64_t index, int64_t count,
                                         float *values)
{
    const __m256 factor = _mm256_set1_ps(1 / (1 - dropout)), rate = _mm256_set1_ps(dropout);
    assert(index % 4 == 0 || count < 32);
    int64_t i = 0;
    for (; i + 32 <= count; i += 32) {
        int64_t counter = (index + i) >> 2;
        if ((uint32_t)counter > UINT32_MAX - 8) {
            drop_scalar(seed, dropout, index + i, 32, values + i);
            continue;
        }
        __m256i words[4];
        philox_avx2(counter, seed, words);
#pragma GCC unroll 4
        for (int w = 0; w < 4; w++) {
            __m256 uniform = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(words[w], 8)),
                                           _mm256_set1_ps(0x1p-24f));
            __m256 keep = _mm256_cmp_ps(uniform, rate, _CMP_GE_OQ);
            __m256 v = _mm256_mul_ps(_mm256_loadu_ps(values + i + 8 * w), factor);
            _mm256_storeu_ps(values + i + 8 * w, _mm256_and_ps(v, keep));
        }
    }
    return i;
}

#endif

void nbl__drop_f32(nbl_isa isa, uint64_t seed, float dropout, int64_t index, int64_t count, float *values)
{
    int64_t done = 0;
    assert(index >= 0 && dropout >= 0 && dropout < 1);
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX2) {
        done = nbl__min_i64(count, -index & 3);
        drop_scalar(seed, dropout, index, done, values);
        done += drop_avx2(seed, dropout, index + done, count - done, values + done);
    }
#else
    (void)isa;
#endif
    drop_scalar(seed, dropout, index + done, count - done, values + done);
}
