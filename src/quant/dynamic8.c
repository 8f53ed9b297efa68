/* dynamic8.c - 8-bit block-wise quantization with bitsandbytes' dynamic maps: 256 values whose
 * spacing grows with their magnitude, over seven decades from 1e-6 to 1.
 *
 *     scale = absmax of the block; code = nearest map entry of x * (1 / scale)
 *
 * Nearest by the f32 mid-points m[i] = (map[i] + map[i+1]) * 0.5; an exact tie takes the even
 * index. That is bitsandbytes' rule on CUDA. Its CPU code looks up a 16-bit grid instead and
 * never reaches the entries around zero. */
#include "quant/kernels.h"

#include <float.h>

#include "quant/dynamic8_maps.h"

const float nbl__dynamic_map_signed[256] = {NBL_DYNAMIC_MAP_SIGNED};
const float nbl__dynamic_map_unsigned[256] = {NBL_DYNAMIC_MAP_UNSIGNED};

/* m[i]: values above it have a code above i. */
static void make_midpoints(const float *map, float midpoints[256])
{
    for (int i = 0; i < 255; i++) midpoints[i] = (map[i] + map[i + 1]) * 0.5f;
    midpoints[255] = __builtin_nanf(""); /* NaN equals nothing: the last code has no tie above it */
}

/* Binary search over the mid-points in eight steps, then the tie. */
static inline uint8_t nearest(const float midpoints[256], float value)
{
    unsigned code = 0;
    for (unsigned step = 128; step > 0; step /= 2) code += value > midpoints[code + step - 1] ? step : 0;
    code += value == midpoints[code] ? code & 1 : 0;
    return (uint8_t)code;
}

uint8_t nbl__dynamic8_code(const float *map, float value)
{
    float midpoints[256];
    make_midpoints(map, midpoints);
    return nearest(midpoints, value);
}

/* Elements [begin, n) of a block. */
static void encode_dynamic8_scalar(const float *values, const float midpoints[256], float reciprocal,
                                   uint8_t *codes, int64_t begin, int64_t n)
{
    for (int64_t i = begin; i < n; i++) codes[i] = nearest(midpoints, values[i] * reciprocal);
}

#if defined(__x86_64__)

/* `nearest` in 8 lanes: three steps by register lookups, then five steps and the tie by gathers. */
NBL_TARGET_AVX2 static inline __m256i dynamic8_codes_avx2(const float *values, const float *m, __m256 factor)
{
    const __m256 third = _mm256_setr_ps(m[31], m[95], m[159], m[223], 0, 0, 0, 0);
    __m256 y = _mm256_mul_ps(_mm256_loadu_ps(values), factor);
    __m256 above = _mm256_cmp_ps(y, _mm256_set1_ps(m[127]), _CMP_GT_OQ);
    __m256 second = _mm256_blendv_ps(_mm256_set1_ps(m[63]), _mm256_set1_ps(m[191]), above);
    __m256i code = _mm256_and_si256(_mm256_castps_si256(above), _mm256_set1_epi32(2));
    code = _mm256_sub_epi32(code, _mm256_castps_si256(_mm256_cmp_ps(y, second, _CMP_GT_OQ)));
    __m256i step = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_permutevar8x32_ps(third, code), _CMP_GT_OQ));
    code = _mm256_slli_epi32(_mm256_sub_epi32(_mm256_add_epi32(code, code), step), 5);
    for (int width = 16; width > 0; width /= 2) {
        __m256 next = _mm256_i32gather_ps(m + width - 1, code, 4);
        step = _mm256_castps_si256(_mm256_cmp_ps(y, next, _CMP_GT_OQ));
        code = _mm256_add_epi32(code, _mm256_and_si256(step, _mm256_set1_epi32(width)));
    }
    __m256i tie = _mm256_castps_si256(_mm256_cmp_ps(y, _mm256_i32gather_ps(m, code, 4), _CMP_EQ_OQ));
    code = _mm256_add_epi32(code, _mm256_and_si256(_mm256_and_si256(tie, code), _mm256_set1_epi32(1)));
    /* into the range -128 … 127 of bytes_of_avx2; undone after packing */
    return _mm256_sub_epi32(code, _mm256_set1_epi32(128));
}

/* Whole groups of 32 values; returns how many were encoded. */
NBL_TARGET_AVX2 static int64_t encode_dynamic8_avx2(const float *values, const float midpoints[256],
                                                    float reciprocal, uint8_t *codes, int64_t n)
{
    const __m256 f = _mm256_set1_ps(reciprocal);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const float *v = values + i, *m = midpoints;
        __m256i bytes = bytes_of_avx2(dynamic8_codes_avx2(v, m, f), dynamic8_codes_avx2(v + 8, m, f),
                                      dynamic8_codes_avx2(v + 16, m, f), dynamic8_codes_avx2(v + 24, m, f));
        bytes = _mm256_xor_si256(bytes, _mm256_set1_epi8(-128));
        _mm256_storeu_si256((__m256i *)(void *)(codes + i), bytes);
    }
    return i;
}

/* ---- AVX-512: the search by register lookups; five dependent gathers would take three times as
 * long ---- */

/* Lanes of b where bit `bit` of the index is set, else lanes of a. */
NBL_TARGET_AVX512 static inline __m512 choose_avx512(__m512i index, int bit, __m512 a, __m512 b)
{
    return _mm512_mask_blend_ps(_mm512_test_epi32_mask(index, _mm512_set1_epi32(1 << bit)), a, b);
}

/* lookup32 / 64 / 128: table[index & 31], [index & 63], [index & 127]. */
NBL_TARGET_AVX512 static inline __m512 lookup32_avx512(const float *table, __m512i index)
{
    return _mm512_permutex2var_ps(_mm512_loadu_ps(table), index, _mm512_loadu_ps(table + 16));
}
NBL_TARGET_AVX512 static inline __m512 lookup64_avx512(const float *table, __m512i index)
{
    return choose_avx512(index, 5, lookup32_avx512(table, index), lookup32_avx512(table + 32, index));
}
NBL_TARGET_AVX512 static inline __m512 lookup128_avx512(const float *table, __m512i index)
{
    return choose_avx512(index, 6, lookup64_avx512(table, index), lookup64_avx512(table + 64, index));
}

/* The mid-points as a binary search tree in level order: the root is node 1, node k has children
 * 2k and 2k + 1. Level l is tree[2^l … 2^(l+1) - 1]. */
static void make_tree(const float midpoints[256], float tree[256])
{
    tree[0] = 0;
    for (int width = 256, nodes = 1; nodes < 256; width /= 2, nodes *= 2)
        for (int i = 0; i < nodes; i++) tree[nodes + i] = midpoints[i * width + width / 2 - 1];
}

/* `nearest` by eight steps down the tree. The last mid-point that was not below y is the one
 * just above the code: the only one that can be a tie. */
NBL_TARGET_AVX512 static inline __m512i dynamic8_codes_avx512(const float tree[256], __m512 y)
{
    __m512i node = _mm512_set1_epi32(1), one = node;
    __m512 not_below = _mm512_set1_ps(__builtin_nanf(""));
#define STEP(lookup)                                                                                         \
    do {                                                                                                     \
        __m512 middle = (lookup);                                                                            \
        __mmask16 above = _mm512_cmp_ps_mask(y, middle, _CMP_GT_OQ);                                         \
        not_below = _mm512_mask_mov_ps(middle, above, not_below);                                            \
        node = _mm512_add_epi32(node, node);                                                                 \
        node = _mm512_mask_add_epi32(node, above, node, one);                                                \
    } while (0)
    for (int level = 0; level < 4; level++) STEP(_mm512_permutexvar_ps(node, _mm512_loadu_ps(tree)));
    STEP(_mm512_permutexvar_ps(node, _mm512_loadu_ps(tree + 16)));
    STEP(lookup32_avx512(tree + 32, node));
    STEP(lookup64_avx512(tree + 64, node));
    STEP(lookup128_avx512(tree + 128, node));
#undef STEP
    __m512i code = _mm512_sub_epi32(node, _mm512_set1_epi32(256));
    __mmask16 tie = _mm512_cmp_ps_mask(y, not_below, _CMP_EQ_OQ);
    return _mm512_mask_add_epi32(code, tie, code, _mm512_and_si512(code, one));
}

/* Whole groups of 16 values; returns how many were encoded. */
NBL_TARGET_AVX512 static int64_t encode_dynamic8_avx512(const float *values, const float tree[256],
                                                        float reciprocal, uint8_t *codes, int64_t n)
{
    const __m512 factor = _mm512_set1_ps(reciprocal);
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i code = dynamic8_codes_avx512(tree, _mm512_mul_ps(_mm512_loadu_ps(values + i), factor));
        _mm_storeu_si128((__m128i *)(void *)(codes + i), _mm512_cvtepi32_epi8(code));
    }
    return i;
}

/* Whole groups of 8 values: the map is looked up by a gather. */
NBL_TARGET_AVX2 static int64_t dequantize_dynamic8_avx2(const uint8_t *codes, const float *map, float scale,
                                                        int64_t n, float *values)
{
    const __m256 factor = _mm256_set1_ps(scale);
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i index = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)(codes + i)));
        _mm256_storeu_ps(values + i, _mm256_mul_ps(_mm256_i32gather_ps(map, index, 4), factor));
    }
    return i;
}

#endif

void nbl__dynamic8_encode(nbl_isa isa, const float *map, int64_t block, const float *values, int64_t n,
                          uint8_t *codes, float *scales)
{
    /* made once per call, not per block */
    float midpoints[256];
    make_midpoints(map, midpoints);
#if defined(__x86_64__)
    float tree[256];
    if (isa >= NBL_ISA_AVX512) make_tree(midpoints, tree);
#endif
    for (int64_t b = 0; b < n; b += block) {
        int64_t length = nbl__min_i64(block, n - b), non_finite = 0, done = 0;
        float absmax = nbl__absmax(isa, NBL_DTYPE_F32, values + b, length, &non_finite);
        if (absmax < FLT_MIN) { /* as in fourbit.c */
            *scales++ = 0;
            memset(codes + b, 0, (size_t)length);
            continue;
        }
        *scales++ = absmax;
#if defined(__x86_64__)
        if (isa >= NBL_ISA_AVX512)
            done = encode_dynamic8_avx512(values + b, tree, 1 / absmax, codes + b, length);
        else if (isa >= NBL_ISA_AVX2)
            done = encode_dynamic8_avx2(values + b, midpoints, 1 / absmax, codes + b, length);
#endif
        encode_dynamic8_scalar(values + b, midpoints, 1 / absmax, codes + b, done, length);
    }
}

void nbl__dynamic8_dequantize(nbl_isa isa, const float *map, int64_t block, const uint8_t *codes,
                              const float *scales, int64_t n, float *values)
{
    for (int64_t b = 0; b < n; b += block) {
        int64_t length = nbl__min_i64(block, n - b), i = 0;
        float scale = *scales++;
#if defined(__x86_64__)
        if (isa >= NBL_ISA_AVX2) i = dequantize_dynamic8_avx2(codes + b, map, scale, length, values + b);
#else
        (void)isa;
#endif
        for (; i < length; i++) values[b + i] = map[codes[b + i]] * scale;
    }
}
