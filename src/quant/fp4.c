/* fp4.c - bitsandbytes' 4-bit float: table and encoding. See fourbit.c for the layout.
 *
 *     bit 3       sign, set for y < 0 only: -0 and NaN give code 0, a tiny negative value
 *                 gives code 8 (-0)
 *     bits 0 … 2  magnitude, not in order: by increasing magnitude the codes are 0 1 6 7 4 5 2 3
 *
 * A tie takes the smaller value. For positive y that is the smaller magnitude. For negative y it
 * is the larger one, so there |y| is replaced by the next larger f32 before it is compared. */
#include "quant/kernels.h"

const float nbl__fp4_table[16] = {
    0.0f,
    0.0052083334885537624f,
    0.6666666865348816f,
    1.0f,
    0.3333333432674408f,
    0.5f,
    0.1666666716337204f,
    0.25f,
    -0.0f,
    -0.0052083334885537624f,
    -0.6666666865348816f,
    -1.0f,
    -0.3333333432674408f,
    -0.5f,
    -0.1666666716337204f,
    -0.25f,
};

/* Mid-points of neighbouring magnitudes, as f32 bits. The literals in bitsandbytes' CUDA code
 * differ by up to 14 ulp. */
static const uint32_t thresholds[8] = {
    0x3b2aaaab, 0x3db00000, 0x3e555556, 0x3e955556, 0x3ed55556, 0x3f155556, 0x3f555556,
};
/* Codes of the magnitudes, ascending. */
static const uint8_t by_rank[8] = {0, 1, 6, 7, 4, 5, 2, 3};

/* The next larger f32 of a positive one. */
static inline float next_after(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits++;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Elements [begin, n) of a block. */
static void encode_fp4_scalar(const float *values, int64_t begin, int64_t n, float reciprocal, uint8_t *codes)
{
    float t[7];
    memcpy(t, thresholds, sizeof t);
    for (int64_t i = begin; i < n; i++) {
        float y = values[i] * reciprocal, magnitude = y < 0 ? next_after(-y) : y;
        unsigned rank = magnitude > t[3] ? 4 : 0;
        rank += magnitude > t[rank + 1] ? 2 : 0;
        rank += magnitude > t[rank] ? 1 : 0;
        codes[i] = (uint8_t)(by_rank[rank] | (y < 0 ? 8 : 0));
    }
}

#if defined(__x86_64__)

/* 8 codes. Adding 1 to the bits of a float is next_after; `negative` is -1 in lanes with y < 0. */
NBL_TARGET_AVX2 static inline __m256i fp4_codes_avx2(const float *values, __m256 factor, __m256i order)
{
    __m256 y = _mm256_mul_ps(_mm256_loadu_ps(values), factor);
    __m256i negative = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_setzero_ps(), _CMP_LT_OQ)); /* -1 */
    __m256i magnitude = _mm256_castps_si256(_mm256_andnot_ps(_mm256_set1_ps(-0.0f), y));
    __m256i rank = rank8_avx2(_mm256_castsi256_ps(_mm256_sub_epi32(magnitude, negative)), thresholds);
    return _mm256_or_si256(_mm256_permutevar8x32_epi32(order, rank),
                           _mm256_and_si256(negative, _mm256_set1_epi32(8)));
}

/* Whole groups of 32 values; returns how many were encoded. */
NBL_TARGET_AVX2 static int64_t encode_fp4_avx2(const float *values, int64_t n, float reciprocal,
                                               uint8_t *codes)
{
    const __m256 f = _mm256_set1_ps(reciprocal);
    const __m256i order = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)by_rank));
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const float *v = values + i;
        __m256i bytes = bytes_of_avx2(fp4_codes_avx2(v, f, order), fp4_codes_avx2(v + 8, f, order),
                                      fp4_codes_avx2(v + 16, f, order), fp4_codes_avx2(v + 24, f, order));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes);
    }
    return i;
}

/* Whole groups of 16 values; returns how many were encoded. */
NBL_TARGET_AVX512 static int64_t encode_fp4_avx512(const float *values, int64_t n, float reciprocal,
                                                   uint8_t *codes)
{
    const __m512 factor = _mm512_set1_ps(reciprocal);
    const __m512i order = _mm512_setr_epi32(0, 1, 6, 7, 4, 5, 2, 3, 0, 0, 0, 0, 0, 0, 0, 0); /* by_rank */
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 y = _mm512_mul_ps(_mm512_loadu_ps(values + i), factor);
        __mmask16 negative = _mm512_cmp_ps_mask(y, _mm512_setzero_ps(), _CMP_LT_OQ);
        __m512i magnitude = _mm512_castps_si512(_mm512_abs_ps(y));
        magnitude = _mm512_mask_add_epi32(magnitude, negative, magnitude, _mm512_set1_epi32(1));
        __m512i code = _mm512_permutexvar_epi32(rank8_avx512(_mm512_castsi512_ps(magnitude), thresholds),
                                                order);
        code = _mm512_mask_or_epi32(code, negative, code, _mm512_set1_epi32(8));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return i;
}

#endif

/* The vector code does whole groups, the scalar code the rest. */
void nbl__fp4_encode_block(nbl_isa isa, const float *values, int64_t n, float reciprocal, uint8_t *codes)
{
    int64_t done = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) done = encode_fp4_avx512(values, n, reciprocal, codes);
    else if (isa >= NBL_ISA_AVX2) done = encode_fp4_avx2(values, n, reciprocal, codes);
#else
    (void)isa;
#endif
    encode_fp4_scalar(values, done, n, reciprocal, codes);
}
