/* vmath.h - elementary functions of f32 vectors with 8 lanes (AVX2) and 16
 * (AVX-512), and loads and stores of the compute dtypes.
 *
 *   nbl__exp_avx2(__m256), nbl__exp_avx512(__m512); log, tanh, erf and sigmoid alike
 *
 * Max errors against the exact value, over all of f32 and with subnormal results
 * (measured by test_vmath): exp 1 ulp, log 0.8, tanh 1.3, erf 1.1, sigmoid 2.5.
 * NaN gives NaN. Infinities, zeros and overflow give what C's functions give.
 *
 * Cost: about 20 instructions each. No function reads a table, so that no lane
 * waits for another.
 *
 * There are no scalar versions. A tail is loaded into a padded vector (nbl__get),
 * so that an element gets the same bits at any position. */
#ifndef NBL_VMATH_H
#define NBL_VMATH_H

#include "tensor/dtype.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* ---- p·2^n, for whole n; |n| < 300 and subnormal results are fine ---- */

/* 2^n in two factors, because n may be outside of an f32's exponents. */
NBL_TARGET_AVX2 static inline __m256 nbl__scale_avx2(__m256 p, __m256 n)
{
    __m256i k = _mm256_cvtps_epi32(n), half = _mm256_srai_epi32(k, 1), bias = _mm256_set1_epi32(127);
    __m256i first = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
    __m256i second = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, half), bias), 23);
    return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second));
}

NBL_TARGET_AVX512 static inline __m512 nbl__scale_avx512(__m512 p, __m512 n)
{
    return _mm512_scalef_ps(p, n);
}

/* ---- x = 2^e·m with m in [½, 1), for positive finite x; anything for others ---- */

NBL_TARGET_AVX2 static inline __m256 nbl__split_avx2(__m256 x, __m256 *e)
{
    __m256 tiny = _mm256_cmp_ps(x, _mm256_set1_ps(0x1p-126f), _CMP_LT_OQ);
    x = _mm256_blendv_ps(x, _mm256_mul_ps(x, _mm256_set1_ps(0x1p24f)), tiny);
    __m256i bits = _mm256_castps_si256(x);
    __m256i power = _mm256_sub_epi32(_mm256_srli_epi32(bits, 23), _mm256_set1_epi32(126));
    __m256i extra = _mm256_and_si256(_mm256_castps_si256(tiny), _mm256_set1_epi32(24));
    *e = _mm256_cvtepi32_ps(_mm256_sub_epi32(power, extra));
    __m256i mantissa = _mm256_and_si256(bits, _mm256_set1_epi32(0x007fffff));
    return _mm256_castsi256_ps(_mm256_or_si256(mantissa, _mm256_set1_epi32(0x3f000000)));
}

NBL_TARGET_AVX512 static inline __m512 nbl__split_avx512(__m512 x, __m512 *e)
{
    *e = _mm512_add_ps(_mm512_getexp_ps(x), _mm512_set1_ps(1));
    return _mm512_getmant_ps(x, _MM_MANT_NORM_p5_1, _MM_MANT_SIGN_src);
}

/* log of 0 is -inf, of a negative number NaN, of inf and NaN itself. */
NBL_TARGET_AVX2 static inline __m256 nbl__log_edges_avx2(__m256 x, __m256 result)
{
    __m256 zero = _mm256_setzero_ps(), infinity = _mm256_set1_ps(__builtin_inff());
    __m256 ordinary = _mm256_cmp_ps(x, infinity, _CMP_LT_OQ);
    result = _mm256_blendv_ps(_mm256_add_ps(x, x), result, ordinary);
    result = _mm256_blendv_ps(result, _mm256_sub_ps(zero, infinity), _mm256_cmp_ps(x, zero, _CMP_EQ_OQ));
    return _mm256_blendv_ps(result, _mm256_set1_ps(__builtin_nanf("")), _mm256_cmp_ps(x, zero, _CMP_LT_OQ));
}

NBL_TARGET_AVX512 static inline __m512 nbl__log_edges_avx512(__m512 x, __m512 result)
{
    __m512 zero = _mm512_setzero_ps(), infinity = _mm512_set1_ps(__builtin_inff());
    __mmask16 ordinary = _mm512_cmp_ps_mask(x, infinity, _CMP_LT_OQ);
    result = _mm512_mask_blend_ps(ordinary, _mm512_add_ps(x, x), result);
    __mmask16 none = _mm512_cmp_ps_mask(x, zero, _CMP_EQ_OQ), below = _mm512_cmp_ps_mask(x, zero, _CMP_LT_OQ);
    result = _mm512_mask_blend_ps(none, result, _mm512_sub_ps(zero, infinity));
    return _mm512_mask_blend_ps(below, result, _mm512_set1_ps(__builtin_nanf("")));
}

/* ---- n elements (at most the width, zeros behind them) of a compute dtype to f32, and back ---- */

/* A whole vector. */
NBL_TARGET_AVX2 static inline __m256 nbl__get_all_avx2(nbl_dtype dtype, const void *from)
{
    if (dtype == NBL_DTYPE_F32) return _mm256_loadu_ps(from);
    __m128i h = _mm_loadu_si128(from);
    if (dtype == NBL_DTYPE_F16) return _mm256_cvtph_ps(h);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* n < 8 elements go through a padded buffer, so nothing behind them is read. */
NBL_TARGET_AVX2 static inline __m256 nbl__get_avx2(nbl_dtype dtype, const void *from, int64_t n)
{
    uint32_t words[8] = {0};
    if (n >= 8) return nbl__get_all_avx2(dtype, from);
    memcpy(words, from, (size_t)n * nbl__size_of(dtype));
    return nbl__get_all_avx2(dtype, words);
}

/* Rounds to bf16, to nearest even. The upper half of each lane is the bf16. NaN stays NaN. */
NBL_TARGET_AVX2 static inline __m256i nbl__bf16_bits_avx2(__m256 a)
{
    __m256i bits = _mm256_castps_si256(a), one = _mm256_set1_epi32(1);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x00400000));
    __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
    return _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
}

NBL_TARGET_AVX512 static inline __m512i nbl__bf16_bits_avx512(__m512 a)
{
    __m512i bits = _mm512_castps_si512(a);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
}

/* A whole vector. */
NBL_TARGET_AVX2 static inline void nbl__put_all_avx2(nbl_dtype dtype, void *to, __m256 a)
{
    if (dtype == NBL_DTYPE_F32) {
        _mm256_storeu_ps(to, a);
    } else if (dtype == NBL_DTYPE_F16) {
        _mm_storeu_si128(to, _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    } else {
        __m256i rounded = _mm256_srli_epi32(nbl__bf16_bits_avx2(a), 16);
        __m128i low = _mm256_castsi256_si128(rounded), high = _mm256_extracti128_si256(rounded, 1);
        _mm_storeu_si128(to, _mm_packus_epi32(low, high));
    }
}

NBL_TARGET_AVX2 static inline void nbl__put_avx2(nbl_dtype dtype, void *to, __m256 a, int64_t n)
{
    uint32_t words[8];
    if (n >= 8) {
        nbl__put_all_avx2(dtype, to, a);
    } else {
        nbl__put_all_avx2(dtype, words, a);
        memcpy(to, words, (size_t)n * nbl__size_of(dtype));
    }
}

/* The lanes below n. */
static inline uint16_t nbl__lanes_below(int64_t n)
{
    return n >= 16 ? 0xffff : (uint16_t)((1u << n) - 1);
}

/* A whole vector needs no mask, which a loop would make anew each time. */
NBL_TARGET_AVX512 static inline __m512 nbl__get_avx512(nbl_dtype dtype, const void *from, int64_t n)
{
    __mmask16 lanes = nbl__lanes_below(n);
    if (dtype == NBL_DTYPE_F32) return n >= 16 ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(lanes, from);
    __m256i h = n >= 16 ? _mm256_loadu_si256(from) : _mm256_maskz_loadu_epi16(lanes, from);
    if (dtype == NBL_DTYPE_F16) return _mm512_cvtph_ps(h);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

NBL_TARGET_AVX512 static inline void nbl__put_avx512(nbl_dtype dtype, void *to, __m512 a, int64_t n)
{
    __mmask16 lanes = nbl__lanes_below(n);
    if (dtype == NBL_DTYPE_F32) {
        if (n >= 16) _mm512_storeu_ps(to, a);
        else _mm512_mask_storeu_ps(to, lanes, a);
        return;
    }
    __m256i h = dtype == NBL_DTYPE_F16
                    ? _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT)
                    : _mm512_cvtepi32_epi16(_mm512_srli_epi32(nbl__bf16_bits_avx512(a), 16));
    if (n >= 16) _mm256_storeu_si256(to, h);
    else _mm256_mask_storeu_epi16(to, lanes, h);
}

/* ---- rounded to a compute dtype and back ---- */

NBL_TARGET_AVX2 static inline __m256 nbl__round_avx2(nbl_dtype dtype, __m256 a)
{
    if (dtype == NBL_DTYPE_F32) return a;
    if (dtype == NBL_DTYPE_F16) return _mm256_cvtph_ps(_mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    __m256i high = _mm256_set1_epi32((int)0xffff0000);
    return _mm256_castsi256_ps(_mm256_and_si256(nbl__bf16_bits_avx2(a), high));
}

NBL_TARGET_AVX512 static inline __m512 nbl__round_avx512(nbl_dtype dtype, __m512 a)
{
    if (dtype == NBL_DTYPE_F32) return a;
    if (dtype == NBL_DTYPE_F16) return _mm512_cvtph_ps(_mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
    __m512i high = _mm512_set1_epi32((int)0xffff0000);
    return _mm512_castsi512_ps(_mm512_and_si512(nbl__bf16_bits_avx512(a), high));
}

#define KERNELS "ops/common/vmath.inc"
#include "ops/common/x86_widths.inc"

#endif
#endif
