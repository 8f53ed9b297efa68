/* dropout.c - see dropout.h.
 *
 * Philox gives four words per counter: lane l of the vectors c0 … c3 holds the words of elements 4l … 4l + 3,
 * which a 4x4 transposition brings into order. Counters are whole 64-bit numbers (index / 4), split in two. */
#include "ops/cpu/dropout.h"

#include "base/philox.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void apply_scalar(uint64_t seed, float dropout, int64_t index, float *values, int64_t n)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, words[4];
    float kept = 1 / (1 - dropout);
    for (int64_t i = 0; i < n; i++, index++) {
        if (i == 0 || (index & 3) == 0)
            nbl__philox((uint32_t[4]){(uint32_t)(index >> 2), (uint32_t)(index >> 34), 0, 0}, key, words);
        values[i] = nbl__uniform(words[index & 3]) >= dropout ? values[i] * kept : 0;
    }
}

#if defined(__x86_64__)

/* The low and high halves of 16 products with a constant. */
NBL_TARGET_AVX512 static inline __m512i multiply_avx512(__m512i a, uint32_t constant, __m512i *high)
{
    __m512i b = _mm512_set1_epi64(constant);
    __m512i even = _mm512_mul_epu32(a, b), odd = _mm512_mul_epu32(_mm512_srli_epi64(a, 32), b);
    *high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64(even, 32), odd);
    return _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64(odd, 32));
}

NBL_TARGET_AVX512 static inline void philox_avx512(__m512i c[4], const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        __m512i high0, high1, low0 = multiply_avx512(c[0], 0xD2511F53u, &high0);
        __m512i low1 = multiply_avx512(c[2], 0xCD9E8D57u, &high1);
        c[0] = _mm512_xor_si512(_mm512_xor_si512(high1, c[1]), _mm512_set1_epi32((int)k0));
        c[2] = _mm512_xor_si512(_mm512_xor_si512(high0, c[3]), _mm512_set1_epi32((int)k1));
        c[1] = low1;
        c[3] = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/* `index` is a multiple of 4, n one of 64. */
NBL_TARGET_AVX512 static void apply_avx512(uint64_t seed, float dropout, int64_t index, float *values,
                                           int64_t n)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const __m512 kept = _mm512_set1_ps(1 / (1 - dropout)), limit = _mm512_set1_ps(dropout);
    const __m512i low_lanes = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    const __m512i halves = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for (int64_t i = 0; i < n; i += 64) {
        __m512i first = _mm512_add_epi64(_mm512_set1_epi64((index + i) >> 2), low_lanes);
        __m512i second = _mm512_add_epi64(first, _mm512_set1_epi64(8)), zero = _mm512_setzero_si512();
        __m512i c[4] = {
            _mm512_permutex2var_epi32(first, halves, second),
            _mm512_permutex2var_epi32(_mm512_srli_epi64(first, 32), halves, _mm512_srli_epi64(second, 32)),
            zero, zero};
        philox_avx512(c, key);
        __m512i a = _mm512_unpacklo_epi32(c[0], c[1]), b = _mm512_unpackhi_epi32(c[0], c[1]);
        __m512i d = _mm512_unpacklo_epi32(c[2], c[3]), e = _mm512_unpackhi_epi32(c[2], c[3]);
        /* rows[r]: in each quarter q, the words of counter 4q + r */
        __m512i rows[4] = {_mm512_unpacklo_epi64(a, d), _mm512_unpackhi_epi64(a, d),
                           _mm512_unpacklo_epi64(b, e), _mm512_unpackhi_epi64(b, e)};
        __m512i p = _mm512_shuffle_i32x4(rows[0], rows[1], 0x44),
                q = _mm512_shuffle_i32x4(rows[0], rows[1], 0xee);
        __m512i r = _mm512_shuffle_i32x4(rows[2], rows[3], 0x44),
                s = _mm512_shuffle_i32x4(rows[2], rows[3], 0xee);
        __m512i words[4] = {_mm512_shuffle_i32x4(p, r, 0x88), _mm512_shuffle_i32x4(p, r, 0xdd),
                            _mm512_shuffle_i32x4(q, s, 0x88), _mm512_shuffle_i32x4(q, s, 0xdd)};
        for (int j = 0; j < 4; j++) {
            __m512 uniform = _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srli_epi32(words[j], 8)),
                                           _mm512_set1_ps(0x1p-24f));
            __mmask16 keep = _mm512_cmp_ps_mask(uniform, limit, _CMP_GE_OQ);
            float *to = values + i + 16 * j;
            _mm512_storeu_ps(to, _mm512_maskz_mul_ps(keep, _mm512_loadu_ps(to), kept));
        }
    }
}

NBL_TARGET_AVX2 static inline __m256i multiply_avx2(__m256i a, uint32_t constant, __m256i *high)
{
    __m256i b = _mm256_set1_epi64x(constant);
    __m256i even = _mm256_mul_epu32(a, b), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), b);
    *high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
    return _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
}

/* `index` is a multiple of 4, n one of 32, and all counters of a step have the same upper half. */
NBL_TARGET_AVX2 static void apply_avx2(uint64_t seed, float dropout, int64_t index, float *values, int64_t n)
{
    const __m256 kept = _mm256_set1_ps(1 / (1 - dropout)), limit = _mm256_set1_ps(dropout);
    for (int64_t i = 0; i < n; i += 32) {
        uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
        int64_t counter = (index + i) >> 2;
        __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32((int)(uint32_t)counter),
                                      _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
        __m256i c1 = _mm256_set1_epi32((int)(counter >> 32)), c2 = _mm256_setzero_si256(), c3 = c2;
        for (int round = 0; round < 10; round++) {
            __m256i high0, high1, low0 = multiply_avx2(c0, 0xD2511F53u, &high0);
            __m256i low1 = multiply_avx2(c2, 0xCD9E8D57u, &high1);
            c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32((int)k0));
            c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32((int)k1));
            c1 = low1;
            c3 = low0;
            k0 += 0x9E3779B9u;
            k1 += 0xBB67AE85u;
        }
        __m256i a = _mm256_unpacklo_epi32(c0, c1), b = _mm256_unpackhi_epi32(c0, c1);
        __m256i d = _mm256_unpacklo_epi32(c2, c3), e = _mm256_unpackhi_epi32(c2, c3);
        __m256i r0 = _mm256_unpacklo_epi64(a, d), r1 = _mm256_unpackhi_epi64(a, d);
        __m256i r2 = _mm256_unpacklo_epi64(b, e), r3 = _mm256_unpackhi_epi64(b, e);
        __m256i words[4] = {_mm256_permute2x128_si256(r0, r1, 0x20), _mm256_permute2x128_si256(r2, r3, 0x20),
                            _mm256_permute2x128_si256(r0, r1, 0x31), _mm256_permute2x128_si256(r2, r3, 0x31)};
        for (int j = 0; j < 4; j++) {
            __m256 uniform = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_srli_epi32(words[j], 8)),
                                           _mm256_set1_ps(0x1p-24f));
            __m256 keep = _mm256_cmp_ps(uniform, limit, _CMP_GE_OQ);
            float *to = values + i + 8 * j;
            _mm256_storeu_ps(to, _mm256_and_ps(keep, _mm256_mul_ps(_mm256_loadu_ps(to), kept)));
        }
    }
}

#endif

void nbl__dropout_apply(nbl_isa isa, uint64_t seed, float dropout, int64_t index, float *values, int64_t n)
{
    int64_t done = 0;
#if defined(__x86_64__)
    int64_t head = nbl__min_i64(n, -index & 3), whole = (n - head) / 64 * 64;
    int64_t first = (index + head) >> 2, last = (index + head + whole) >> 2;
    if (isa >= NBL_ISA_AVX512 || (isa >= NBL_ISA_AVX2 && first >> 32 == last >> 32)) {
        apply_scalar(seed, dropout, index, values, head);
        if (isa >= NBL_ISA_AVX512) apply_avx512(seed, dropout, index + head, values + head, whole);
        else apply_avx2(seed, dropout, index + head, values + head, whole);
        done = head + whole;
    }
#endif
    (void)isa;
    apply_scalar(seed, dropout, index + done, values + done, n - done);
}
