/* kernels.h - vector pieces that several formats share. Internal to quant/.
 *
 * Suffixes: _avx2 works on 8 lanes of f32, _avx512 on 16. */
#ifndef NBL_KERNELS_H
#define NBL_KERNELS_H

#include "quant/quant.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The largest |x| that is not NaN; 0 if there is none. *non_finite grows by the number of NaN
 * and infinities. The values need no alignment. */
float nbl__absmax(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n, int64_t *non_finite);

#if defined(__x86_64__)

/* ---- 16 f32 without NaN to f16 or bf16: the bits of nbl__f32_to_f16 and nbl__f32_to_bf16 ---- */

/* bf16 in the low 16 bits of each lane: add 0x7fff plus the lowest kept bit (ties to even),
 * shift. */
NBL_TARGET_AVX2 static inline __m256i round_bf16_avx2(__m256 values)
{
    __m256i bits = _mm256_castps_si256(values);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd), 16);
}

/* packus works within 128-bit lanes; the permute restores the order. */
NBL_TARGET_AVX2 static inline __m256i narrow_avx2(nbl_dtype dtype, __m256 low, __m256 high)
{
    if (dtype == NBL_DTYPE_F16) {
        __m128i a = _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT);
        __m128i b = _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    }
    __m256i both = _mm256_packus_epi32(round_bf16_avx2(low), round_bf16_avx2(high));
    return _mm256_permute4x64_epi64(both, 0xd8);
}

NBL_TARGET_AVX512 static inline __m256i narrow_avx512(nbl_dtype dtype, __m512 values)
{
    if (dtype == NBL_DTYPE_F16) return _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* ---- stores; `stream`: past the caches, which needs `out` aligned to the vector ---- */

NBL_TARGET_AVX2 static inline void put_avx2(void *out, __m256i bits, bool stream)
{
    if (stream) _mm256_stream_si256(out, bits);
    else _mm256_storeu_si256(out, bits);
}

NBL_TARGET_AVX512 static inline void put_avx512(void *out, __m512i bits, bool stream)
{
    if (stream) _mm512_stream_si512(out, bits);
    else _mm512_storeu_si512(out, bits);
}

/* 32 lanes of 32 bits, each in -128 … 127, to 32 bytes in order. */
NBL_TARGET_AVX2 static inline __m256i bytes_of_avx2(__m256i a, __m256i b, __m256i c, __m256i d)
{
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* ---- rank8: how many of 7 ascending thresholds lie strictly below a; 0 for NaN ----
 *
 * A binary search in three steps: with threshold 3, then 1 or 5, then 0, 2, 4 or 6. `thresholds`
 * are f32 bits, with an eighth element as padding. */

NBL_TARGET_AVX2 static inline __m256 threshold_avx2(uint32_t bits)
{
    return _mm256_castsi256_ps(_mm256_set1_epi32((int)bits));
}

/* 8 lanes. The second threshold is chosen by xor, the third looked up. */
NBL_TARGET_AVX2 static inline __m256i rank8_avx2(__m256 a, const uint32_t thresholds[8])
{
    __m256 table = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)(const void *)thresholds));
    __m256 above = _mm256_cmp_ps(a, threshold_avx2(thresholds[3]), _CMP_GT_OQ);
    __m256 change = _mm256_and_ps(above, threshold_avx2(thresholds[1] ^ thresholds[5]));
    __m256 second = _mm256_xor_ps(threshold_avx2(thresholds[1]), change);
    __m256i four = _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32(4));
    __m256i step = _mm256_castps_si256(_mm256_cmp_ps(a, second, _CMP_GT_OQ)); /* 0 or -1 */
    __m256i rank = _mm256_sub_epi32(four, _mm256_add_epi32(step, step));
    step = _mm256_castps_si256(_mm256_cmp_ps(a, _mm256_permutevar8x32_ps(table, rank), _CMP_GT_OQ));
    return _mm256_sub_epi32(rank, step);
}

/* 16 lanes; all thresholds after the first are looked up. */
NBL_TARGET_AVX512 static inline __m512i rank8_avx512(__m512 a, const uint32_t thresholds[8])
{
    __m256i eight = _mm256_loadu_si256((const __m256i *)(const void *)thresholds);
    __m512 table = _mm512_castsi512_ps(_mm512_castsi256_si512(eight));
    __m512 first = _mm512_castsi512_ps(_mm512_set1_epi32((int)thresholds[3]));
    __m512i rank = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(a, first, _CMP_GT_OQ), 4);
    __m512 next = _mm512_permutexvar_ps(_mm512_add_epi32(rank, _mm512_set1_epi32(1)), table);
    __mmask16 above = _mm512_cmp_ps_mask(a, next, _CMP_GT_OQ);
    rank = _mm512_mask_add_epi32(rank, above, rank, _mm512_set1_epi32(2));
    above = _mm512_cmp_ps_mask(a, _mm512_permutexvar_ps(rank, table), _CMP_GT_OQ);
    return _mm512_mask_add_epi32(rank, above, rank, _mm512_set1_epi32(1));
}

#endif
#endif
