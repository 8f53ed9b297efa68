/* attention_vmath.h - vectors of 2^x and tanh, for the softmax of attention.
 *
 *   exp2   |error| <= 1 ulp; 0 below -126 (subnormals would slow down the products that follow);
 *          NaN stays; AVX2: at most 2^127
 *   tanh   |error| <= 3 ulp; NaN stays; ±1 at infinity
 *
 * exp2: x = n + f with n whole and |f| <= 1/2; a polynomial in f, scaled by 2^n.
 * tanh: an odd polynomial below 0.625 (Cephes), above it 1 - 2 / (e^2|x| + 1). */
#ifndef NBL_ATTENTION_VMATH_H
#define NBL_ATTENTION_VMATH_H

#if defined(__x86_64__)

#include <immintrin.h>

#include "base/cpu.h"

/* 2^f - 1 over f, |f| <= 1/2: minimax in the relative error of 2^f, highest power first. */
#define NBL_EXP2_C6 1.5353361959569156e-4f
#define NBL_EXP2_C5 1.3398875016719103e-3f
#define NBL_EXP2_C4 9.61843691766262e-3f
#define NBL_EXP2_C3 5.5503323674201965e-2f
#define NBL_EXP2_C2 2.4022647738456726e-1f
#define NBL_EXP2_C1 6.931471824645996e-1f

#define NBL_TANH_C4 -5.70498872745e-3f
#define NBL_TANH_C3 2.06390887954e-2f
#define NBL_TANH_C2 -5.37397155531e-2f
#define NBL_TANH_C1 1.33314422036e-1f
#define NBL_TANH_C0 -3.33332819422e-1f

#define NBL_VMATH_INLINE static inline __attribute__((always_inline))

NBL_VMATH_INLINE NBL_TARGET_AVX2 __m256 nbl__exp2_avx2(__m256 x)
{
    __m256 keep = _mm256_cmp_ps(x, _mm256_set1_ps(-126), _CMP_NLT_UQ);
    x = _mm256_min_ps(_mm256_set1_ps(127), x);
    __m256 n = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 f = _mm256_sub_ps(x, n), p = _mm256_set1_ps(NBL_EXP2_C6);
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(NBL_EXP2_C5));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(NBL_EXP2_C4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(NBL_EXP2_C3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(NBL_EXP2_C2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(NBL_EXP2_C1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_and_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(power)), keep);
}

NBL_VMATH_INLINE NBL_TARGET_AVX512 __m512 nbl__exp2_avx512(__m512 x)
{
    __mmask16 keep = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    __m512 n = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m512 f = _mm512_sub_ps(x, n), p = _mm512_set1_ps(NBL_EXP2_C6);
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(NBL_EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(NBL_EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(NBL_EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(NBL_EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(NBL_EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1));
    return _mm512_maskz_scalef_ps(keep, p, n);
}

NBL_VMATH_INLINE NBL_TARGET_AVX2 __m256 nbl__tanh_avx2(__m256 x)
{
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1);
    __m256 magnitude = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(x, x);
    __m256 p = _mm256_set1_ps(NBL_TANH_C4);
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(NBL_TANH_C3));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(NBL_TANH_C2));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(NBL_TANH_C1));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(NBL_TANH_C0));
    __m256 small = _mm256_fmadd_ps(_mm256_mul_ps(p, z), x, x);
    __m256 e = nbl__exp2_avx2(_mm256_mul_ps(magnitude, _mm256_set1_ps(2.88539008f))); /* 2 log2(e) */
    __m256 large = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), _mm256_add_ps(e, one)));
    large = _mm256_or_ps(large, _mm256_and_ps(sign, x));
    return _mm256_blendv_ps(large, small, _mm256_cmp_ps(magnitude, _mm256_set1_ps(0.625f), _CMP_NGT_UQ));
}

NBL_VMATH_INLINE NBL_TARGET_AVX512 __m512 nbl__tanh_avx512(__m512 x)
{
    const __m512 sign = _mm512_set1_ps(-0.0f), one = _mm512_set1_ps(1);
    __m512 magnitude = _mm512_andnot_ps(sign, x), z = _mm512_mul_ps(x, x);
    __m512 p = _mm512_set1_ps(NBL_TANH_C4);
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(NBL_TANH_C3));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(NBL_TANH_C2));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(NBL_TANH_C1));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(NBL_TANH_C0));
    __m512 small = _mm512_fmadd_ps(_mm512_mul_ps(p, z), x, x);
    __m512 e = nbl__exp2_avx512(_mm512_mul_ps(magnitude, _mm512_set1_ps(2.88539008f)));
    __m512 large = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), _mm512_add_ps(e, one)));
    large = _mm512_or_ps(large, _mm512_and_ps(sign, x));
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(magnitude, _mm512_set1_ps(0.625f), _CMP_NGT_UQ), large,
                                small);
}

#endif
#endif
