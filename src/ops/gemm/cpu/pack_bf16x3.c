/* pack_bf16x3.c - f32 values as sums of three bf16, for AMX tiles. The layout is in
 * gemm_kernels.h.
 *
 *   v0 = bf16(v)    v1 = bf16(v - v0)    v2 = v - v0 - v1
 *
 * The differences are exact in f32, and v2 is a bf16. v0 is clamped to the largest bf16, so that a
 * value that would round to infinity keeps its sum.
 *
 * Bytes: 4 read and 6 written per value. Cost: about 20 instructions for 32 values. */
#include "ops/gemm/cpu/pack.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { WIDE = 32, TILE = 512 /* values of bf16 */ };

/* 32 values. */
typedef struct two {
    __m512 low, high;
} two;

/* Clamps to ± the largest bf16. NaN stays, as the second operand of min and max. */
NBL_TARGET_AVX512BF16 static inline __m512 clamp(__m512 v)
{
    const __m512 max = _mm512_castsi512_ps(_mm512_set1_epi32(0x7f7f0000));
    const __m512 min = _mm512_castsi512_ps(_mm512_set1_epi32((int)0xff7f0000));
    return _mm512_max_ps(min, _mm512_min_ps(max, v));
}

/* 32 values as bf16, rounded to nearest. */
NBL_TARGET_AVX512BF16 static inline __m512i rounded(__m512 low, __m512 high)
{
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* v minus its bf16, for 32 consecutive values. */
NBL_TARGET_AVX512BF16 static inline two rest_of_row(two v, __m512i halves)
{
    __m512i low = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(halves));
    __m512i high = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(halves, 1));
    v.low = _mm512_sub_ps(v.low, _mm512_castsi512_ps(_mm512_slli_epi32(low, 16)));
    v.high = _mm512_sub_ps(v.high, _mm512_castsi512_ps(_mm512_slli_epi32(high, 16)));
    return v;
}

NBL_TARGET_AVX512BF16 void nbl__split_row_amx(const float *row, int64_t n, uint16_t *to)
{
    for (; n > 0; n -= WIDE, row += WIDE, to += NBL_SPLIT_PARTS * TILE) {
        two v;
        if (n >= WIDE) {
            v = (two){_mm512_loadu_ps(row), _mm512_loadu_ps(row + 16)};
        } else {
            uint32_t mask = (1u << n) - 1;
            v = (two){_mm512_maskz_loadu_ps((__mmask16)mask, row),
                      _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), row + 16)};
        }
        __m512i part = rounded(clamp(v.low), clamp(v.high));
        _mm512_storeu_si512(to, part);
        v = rest_of_row(v, part);
        part = rounded(v.low, v.high);
        _mm512_storeu_si512(to + TILE, part);
        v = rest_of_row(v, part);
        _mm512_storeu_si512(to + 2 * TILE, rounded(v.low, v.high));
    }
}

/* The same for two lines of a strip, whose bf16 are side by side in pairs. */
NBL_TARGET_AVX512BF16 static inline two rest_of_pairs(two v, __m512i pairs)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    v.low = _mm512_sub_ps(v.low, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
    v.high = _mm512_sub_ps(v.high, _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)));
    return v;
}

NBL_TARGET_AVX512BF16 void nbl__split_strip_amx(const float *strip, int64_t k, uint16_t *to)
{
    uint16_t positions[WIDE];
    for (int i = 0; i < NBL_STRIP; i++)
        positions[2 * i] = (uint16_t)i, positions[2 * i + 1] = (uint16_t)(i + NBL_STRIP);
    const __m512i side_by_side = _mm512_loadu_si512(positions);
    for (int64_t i = 0; i < k; i += WIDE, to += (NBL_SPLIT_PARTS - 1) * TILE)
        for (int64_t h = i; h < i + WIDE; h += 2, to += WIDE) {
            two v = {_mm512_setzero_ps(), _mm512_setzero_ps()};
            if (h < k) v.low = _mm512_loadu_ps(strip + h * NBL_STRIP);
            if (h + 1 < k) v.high = _mm512_loadu_ps(strip + (h + 1) * NBL_STRIP);
            __m512i part = _mm512_permutexvar_epi16(side_by_side, rounded(clamp(v.low), clamp(v.high)));
            _mm512_storeu_si512(to, part);
            v = rest_of_pairs(v, part);
            part = _mm512_permutexvar_epi16(side_by_side, rounded(v.low, v.high));
            _mm512_storeu_si512(to + TILE, part);
            v = rest_of_pairs(v, part);
            part = _mm512_permutexvar_epi16(side_by_side, rounded(v.low, v.high));
            _mm512_storeu_si512(to + 2 * TILE, part);
        }
}

#endif
