/* nf4.c - 4-bit NormalFloat: table and encoding. See fourbit.c for the layout.
 *
 *     code = number of the 15 thresholds strictly below y = value · (1 / absmax)
 *
 * A value on a threshold takes the lower code; NaN takes 0. The thresholds are the mid-points of
 * neighbouring table values, rounded to f32. */
#include "quant/kernels.h"

const float nbl__nf4_table[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

/* Bit patterns, because a decimal literal that is one ulp off would not be noticed. Padded to 19
 * elements, so that 16 can be loaded from element 3 on. */
static const uint32_t thresholds[19] = {
    0xbf591cd8, 0xbf1c5270, 0xbeeb8480, 0xbeadea76, 0xbe703cec, 0xbe0d38bc, 0xbd3a7871, 0x3d22faff,
    0x3df64862, 0x3e5067e0, 0x3e9582d4, 0x3ec753f9, 0x3f006d04, 0x3f248daf, 0x3f5c89da,
};

/* Elements [begin, n) of a block: a binary search over 15 thresholds in four steps. */
static void encode_nf4_scalar(const float *values, int64_t begin, int64_t n, float reciprocal, uint8_t *codes)
{
    float t[15];
    memcpy(t, thresholds, sizeof t);
    for (int64_t i = begin; i < n; i++) {
        float y = values[i] * reciprocal;
        unsigned code = y > t[7] ? 8 : 0;
        code += y > t[code + 3] ? 4 : 0;
        code += y > t[code + 1] ? 2 : 0;
        code += y > t[code] ? 1 : 0;
        codes[i] = (uint8_t)code;
    }
}

#if defined(__x86_64__)

/* Binary search in four steps. The second threshold is one of two, chosen by xor; the later ones
 * are looked up by the steps taken so far. */
typedef struct search_avx2 {
    /* second_change: the bits in which the second threshold differs if y is above the first */
    __m256 factor, first, second, second_change;
    /* thresholds 1, 3, … 13 (third step) and 0, 2, … 14 (fourth step) */
    __m256 odds, evens;
} search_avx2;

/* 8 codes. A comparison gives -1 or 0 per lane, so subtracting it adds the step. */
NBL_TARGET_AVX2 static inline __m256i nf4_codes_avx2(const float *values, const search_avx2 *s)
{
    __m256 y = _mm256_mul_ps(_mm256_loadu_ps(values), s->factor);
    __m256 above = _mm256_cmp_ps(y, s->first, _CMP_GT_OQ);
    __m256 second = _mm256_xor_ps(s->second, _mm256_and_ps(above, s->second_change));
    __m256i half = _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32(4)); /* half the code */
    __m256i step = _mm256_castps_si256(_mm256_cmp_ps(y, second, _CMP_GT_OQ));          /* 0 or -1 */
    half = _mm256_sub_epi32(half, _mm256_add_epi32(step, step));
    step = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_permutevar8x32_ps(s->odds, half), _CMP_GT_OQ));
    half = _mm256_sub_epi32(half, step);
    step = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_permutevar8x32_ps(s->evens, half), _CMP_GT_OQ));
    return _mm256_sub_epi32(_mm256_add_epi32(half, half), step);
}

NBL_TARGET_AVX2 static int64_t encode_nf4_avx2(const float *values, int64_t n, float reciprocal,
                                               uint8_t *codes)
{
    __m256 a = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)(const void *)thresholds));
    __m256 b = _mm256_castsi256_ps(_mm256_loadu_si256((const __m256i *)(const void *)(thresholds + 8)));
    /* thresholds 0, 2, … and 1, 3, … for the lookups of the last two steps */
    __m256d even = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0x88));
    __m256d odd = _mm256_castps_pd(_mm256_shuffle_ps(a, b, 0xdd));
    const search_avx2 s = {
        .factor = _mm256_set1_ps(reciprocal),
        .first = threshold_avx2(thresholds[7]),
        .second = threshold_avx2(thresholds[3]),
        .second_change = threshold_avx2(thresholds[3] ^ thresholds[11]),
        .odds = _mm256_castpd_ps(_mm256_permute4x64_pd(odd, 0xd8)),
        .evens = _mm256_castpd_ps(_mm256_permute4x64_pd(even, 0xd8)),
    };
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i bytes = bytes_of_avx2(nf4_codes_avx2(values + i, &s), nf4_codes_avx2(values + i + 8, &s),
                                      nf4_codes_avx2(values + i + 16, &s),
                                      nf4_codes_avx2(values + i + 24, &s));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes);
    }
    return i;
}

/* Whole groups of 16 values. The tables of the last three steps are the thresholds from an offset
 * on: step 2 looks up thresholds[code + 3], step 3 thresholds[code + 1], step 4
 * thresholds[code]. */
NBL_TARGET_AVX512 static int64_t encode_nf4_avx512(const float *values, int64_t n, float reciprocal,
                                                   uint8_t *codes)
{
    const __m512 factor = _mm512_set1_ps(reciprocal);
    const __m512 first = _mm512_castsi512_ps(_mm512_set1_epi32((int)thresholds[7]));
    const __m512 second = _mm512_castsi512_ps(_mm512_loadu_si512(thresholds + 3));
    const __m512 third = _mm512_castsi512_ps(_mm512_loadu_si512(thresholds + 1));
    const __m512 fourth = _mm512_castsi512_ps(_mm512_loadu_si512(thresholds));
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 y = _mm512_mul_ps(_mm512_loadu_ps(values + i), factor);
        __m512i code = _mm512_maskz_set1_epi32(_mm512_cmp_ps_mask(y, first, _CMP_GT_OQ), 8);
        __mmask16 above = _mm512_cmp_ps_mask(y, _mm512_permutexvar_ps(code, second), _CMP_GT_OQ);
        code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(4));
        above = _mm512_cmp_ps_mask(y, _mm512_permutexvar_ps(code, third), _CMP_GT_OQ);
        code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(2));
        above = _mm512_cmp_ps_mask(y, _mm512_permutexvar_ps(code, fourth), _CMP_GT_OQ);
        code = _mm512_mask_add_epi32(code, above, code, _mm512_set1_epi32(1));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return i;
}

#endif

/* The vector code does whole groups, the scalar code the rest. */
void nbl__nf4_encode_block(nbl_isa isa, const float *values, int64_t n, float reciprocal, uint8_t *codes)
{
    int64_t done = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) done = encode_nf4_avx512(values, n, reciprocal, codes);
    else if (isa >= NBL_ISA_AVX2) done = encode_nf4_avx2(values, n, reciprocal, codes);
#else
    (void)isa;
#endif
    encode_nf4_scalar(values, done, n, reciprocal, codes);
}
