/* kernels.h - small pieces that the formats share. Internal to quant/. */
#ifndef NBL_KERNELS_H
#define NBL_KERNELS_H

#include "quant/quant.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* The largest |x| that is not NaN, 0 when there is none; adds the number of NaN and infinities. */
float nbl__absmax(nbl_isa isa, const float *values, int64_t n, int64_t *non_finite);

#if defined(__x86_64__)

/* ---- 16 f32 to f16 or bf16; the bits of nbl__f32_to_f16 and nbl__f32_to_bf16 ---- */

NBL_TARGET_AVX2 static inline __m256i round_bf16_avx2(__m256i bits)
{
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i nan = _mm256_cmpgt_epi32(magnitude, _mm256_set1_epi32(0x7f800000));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    return _mm256_srli_epi32(_mm256_blendv_epi8(rounded, quiet, nan), 16);
}

NBL_TARGET_AVX2 static inline __m256i narrow_avx2(nbl_dtype dtype, __m256 low, __m256 high)
{
    if (dtype == NBL_DTYPE_F16) {
        __m128i a = _mm256_cvtps_ph(low, _MM_FROUND_TO_NEAREST_INT);
        __m128i b = _mm256_cvtps_ph(high, _MM_FROUND_TO_NEAREST_INT);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    }
    __m256i a = round_bf16_avx2(_mm256_castps_si256(low)), b = round_bf16_avx2(_mm256_castps_si256(high));
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8);
}

NBL_TARGET_AVX512 static inline __m256i narrow_avx512(nbl_dtype dtype, __m512 values)
{
    if (dtype == NBL_DTYPE_F16) return _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT);
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __mmask16 nan = _mm512_cmpgt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f800000));
    rounded = _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
}

/* ---- stores ---- */

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

/* 32 lanes of 32 bits, each in -128 ... 127, to 32 bytes in order. */
NBL_TARGET_AVX2 static inline __m256i bytes_of_avx2(const __m256i lanes[4])
{
    __m256i ab = _mm256_packs_epi32(lanes[0], lanes[1]), cd = _mm256_packs_epi32(lanes[2], lanes[3]);
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(ab, cd), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* ---- how many of 7 ascending thresholds lie below a; 0 for NaN ---- */

NBL_TARGET_AVX2 static inline __m256i rank8_avx2(__m256 a, const float thresholds[7])
{
    const float *t = thresholds;
    __m256 last = _mm256_setr_ps(t[0], t[2], t[4], t[6], t[0], t[2], t[4], t[6]);
    __m256 above = _mm256_cmp_ps(a, _mm256_set1_ps(t[3]), _CMP_GT_OQ);
    __m256 second = _mm256_blendv_ps(_mm256_set1_ps(t[1]), _mm256_set1_ps(t[5]), above);
    __m256i rank = _mm256_castps_si256(above); /* counted as 0, -1, -2 … so far */
    rank = _mm256_add_epi32(_mm256_add_epi32(rank, rank),
                            _mm256_castps_si256(_mm256_cmp_ps(a, second, _CMP_GT_OQ)));
    __m256i index = _mm256_sub_epi32(_mm256_setzero_si256(), rank);
    __m256 third = _mm256_permutevar8x32_ps(last, index);
    __m256i step = _mm256_castps_si256(_mm256_cmp_ps(a, third, _CMP_GT_OQ));
    return _mm256_sub_epi32(_mm256_add_epi32(index, index), step);
}

NBL_TARGET_AVX512 static inline __m512i rank8_avx512(__m512 a, const float thresholds[7])
{
    const float *t = thresholds;
    __m512 table = _mm512_setr_ps(t[0], t[1], t[2], t[3], t[4], t[5], t[6], 0, 0, 0, 0, 0, 0, 0, 0, 0);
    __mmask16 above = _mm512_cmp_ps_mask(a, _mm512_set1_ps(t[3]), _CMP_GT_OQ);
    __m512i rank = _mm512_maskz_set1_epi32(above, 4);
    __m512 next = _mm512_permutexvar_ps(_mm512_add_epi32(rank, _mm512_set1_epi32(1)), table);
    above = _mm512_cmp_ps_mask(a, next, _CMP_GT_OQ);
    rank = _mm512_mask_add_epi32(rank, above, rank, _mm512_set1_epi32(2));
    above = _mm512_cmp_ps_mask(a, _mm512_permutexvar_ps(rank, table), _CMP_GT_OQ);
    return _mm512_mask_add_epi32(rank, above, rank, _mm512_set1_epi32(1));
}

#endif
#endif
