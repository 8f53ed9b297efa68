/* pack_transpose.c - transposes rows into panels of f32, joins f32 panels into pairs of bf16, and
 * transposes rows of bf16 as pairs.
 *
 *   rows[r][i]  ->  to[i][r]        blocks of 8 x 8 through registers
 *
 * A panel of A may have any number of rows up to 16. A step of k is stored with whole vectors,
 * whose excess the next step overwrites. Only the last step is stored exactly, because the memory
 * behind it may belong to another thread.
 *
 * Bytes: each value is read once and written once. Limit: the shuffles, 24 per 64 values. */
#include "ops/gemm/cpu/pack.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* Eight values of a row as f32. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline __m256 load_avx2(nbl_dtype dtype,
                                                                              const void *row, int64_t i)
{
    if (dtype == NBL_DTYPE_F32) return _mm256_loadu_ps((const float *)row + i);
    __m128i half = _mm_loadu_si128((const void *)((const uint16_t *)row + i));
    if (dtype == NBL_DTYPE_F16) return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* Transposes eight rows by eight columns. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline void
square_avx2(nbl_dtype dtype, const void *const *rows, int64_t i, __m256 out[8])
{
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int r = 0; r < 8; r++) a[r] = load_avx2(dtype, rows[r], i);
#pragma GCC unroll 8
    for (int r = 0; r < 8; r += 2) {
        b[r] = _mm256_unpacklo_ps(a[r], a[r + 1]);
        b[r + 1] = _mm256_unpackhi_ps(a[r], a[r + 1]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < 8; r += 4) {
        a[r] = _mm256_shuffle_ps(b[r], b[r + 2], 0x44);
        a[r + 1] = _mm256_shuffle_ps(b[r], b[r + 2], 0xee);
        a[r + 2] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0x44);
        a[r + 3] = _mm256_shuffle_ps(b[r + 1], b[r + 3], 0xee);
    }
#pragma GCC unroll 8
    for (int r = 0; r < 4; r++) {
        out[r] = _mm256_permute2f128_ps(a[r], a[r + 4], 0x20);
        out[r + 4] = _mm256_permute2f128_ps(a[r], a[r + 4], 0x31);
    }
}

/* Stores the first `count` of 16 values. */
NBL_TARGET_AVX2 static inline void put_exactly(__m256 low, __m256 high, int count, float *to)
{
    float values[16];
    _mm256_storeu_ps(values, low);
    _mm256_storeu_ps(values + 8, high);
    memcpy(to, values, (size_t)count * sizeof *to);
}

/* Returns how many steps of k were transposed, a multiple of 8. count >= 4: the excess of one step
 * must fit into the steps that follow it. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline int64_t
transpose_avx2(nbl_dtype dtype, const void *const *rows, int count, int64_t k, float *to)
{
    const void *all[NBL_MAX_PANEL_ROWS];
    for (int r = 0; r < NBL_MAX_PANEL_ROWS; r++) all[r] = rows[r < count ? r : count - 1];
    int64_t i = 0;
    for (; i + 8 <= k; i += 8) {
        __m256 low[8], high[8];
        square_avx2(dtype, all, i, low);
        if (count <= 8) {
#pragma GCC unroll 8
            for (int s = 0; s < 7; s++, to += count) _mm256_storeu_ps(to, low[s]);
            high[7] = low[7];
        } else {
            square_avx2(dtype, all + 8, i, high);
#pragma GCC unroll 8
            for (int s = 0; s < 7; s++, to += count) {
                _mm256_storeu_ps(to, low[s]);
                _mm256_storeu_ps(to + 8, high[s]);
            }
        }
        if (i + 8 == k && count != 8 && count != 16) {
            put_exactly(low[7], high[7], count, to);
        } else {
            _mm256_storeu_ps(to, low[7]);
            if (count > 8) _mm256_storeu_ps(to + 8, high[7]);
        }
        to += count;
    }
    return i;
}

/* One copy of the loop per dtype. */
NBL_TARGET_AVX2 static int64_t transpose_any_avx2(nbl_dtype dtype, const void *const *rows, int count,
                                                  int64_t k, float *to)
{
    if (dtype == NBL_DTYPE_F32) return transpose_avx2(NBL_DTYPE_F32, rows, count, k, to);
    if (dtype == NBL_DTYPE_F16) return transpose_avx2(NBL_DTYPE_F16, rows, count, k, to);
    return transpose_avx2(NBL_DTYPE_BF16, rows, count, k, to);
}

/* A pair of bf16 moves as one f32 lane. */
NBL_TARGET_AVX2 static int64_t transpose_pairs_avx2(const void *const *rows, int64_t pairs, uint32_t *to)
{
    return transpose_avx2(NBL_DTYPE_F32, rows, NBL_STRIP, pairs,
                          (float *)(void *)to); /* lanes are only moved */
}

/* Two rows side by side, 16 columns at a time. Returns how many columns were done. */
NBL_TARGET_AVX2 static int64_t join_avx2(const uint16_t *even, const uint16_t *odd, int64_t n, uint32_t *to,
                                         int64_t strip)
{
    int64_t i = 0;
    for (; i + NBL_STRIP <= n; i += NBL_STRIP, to += strip)
        for (int h = 0; h < NBL_STRIP; h += 8) {
            __m128i a = _mm_loadu_si128((const void *)(even + i + h));
            __m128i b = _mm_loadu_si128((const void *)(odd + i + h));
            _mm_storeu_si128((void *)(to + h), _mm_unpacklo_epi16(a, b));
            _mm_storeu_si128((void *)(to + h + 4), _mm_unpackhi_epi16(a, b));
        }
    return i;
}

/* bf16 in the upper half of each lane, the bits of nbl__f32_to_bf16. */
NBL_TARGET_AVX512 static inline __m512i round_upper_avx512(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, nan, bits, _mm512_set1_epi32(0x00400000));
}

/* nbl__pair_bf16 with masks at the edge. */
NBL_TARGET_AVX512 static void pair_avx512(const float *from, int64_t width, int64_t k, uint16_t *to)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    for (int64_t i = 0; i < k; i += 2, from += 2 * width, to += 2 * width)
        for (int64_t r = 0; r < width; r += 16) {
            __mmask16 mask = width - r >= 16 ? 0xffff : (__mmask16)((1u << (width - r)) - 1);
            __m512i a = round_upper_avx512(_mm512_maskz_loadu_ps(mask, from + r)), b = _mm512_setzero_si512();
            if (i + 1 < k) b = round_upper_avx512(_mm512_maskz_loadu_ps(mask, from + width + r));
            __m512i both = _mm512_or_si512(_mm512_srli_epi32(a, 16), _mm512_and_si512(b, upper));
            _mm512_mask_storeu_epi32(to + 2 * r, mask, both);
        }
}
#endif

/* Element i of a row as f32. */
static float widened(nbl_dtype dtype, const void *row, int64_t i)
{
    if (dtype == NBL_DTYPE_F32) return ((const float *)row)[i];
    uint16_t half = ((const uint16_t *)row)[i];
    return dtype == NBL_DTYPE_F16 ? nbl__f16_to_f32(half) : nbl__bf16_to_f32(half);
}

void nbl__transpose_f32(nbl_isa isa, nbl_dtype dtype, const void *const *rows, int count, int64_t k,
                        float *to)
{
    int64_t i = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX2 && count >= 4) i = transpose_any_avx2(dtype, rows, count, k, to);
#else
    (void)isa;
#endif
    for (to += i * count; i < k; i++, to += count)
        for (int r = 0; r < count; r++) to[r] = widened(dtype, rows[r], i);
}

void nbl__transpose_pairs(nbl_isa isa, const void *const *rows, int64_t k, uint32_t *to)
{
    int64_t pairs = k / 2, i = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX2) i = transpose_pairs_avx2(rows, pairs, to);
#else
    (void)isa;
#endif
    for (; i < pairs + (k & 1); i++)
        for (int r = 0; r < NBL_STRIP; r++) {
            uint16_t both[2] = {0};
            memcpy(both, (const uint16_t *)rows[r] + 2 * i, i < pairs ? 4 : 2);
            to[i * NBL_STRIP + r] = (uint32_t)both[1] << 16 | both[0];
        }
}

void nbl__join_pairs(nbl_isa isa, const uint16_t *even, const uint16_t *odd, int64_t n, uint32_t *to,
                     int64_t strip)
{
    int64_t i = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX2) i = join_avx2(even, odd, n, to, strip);
#else
    (void)isa;
#endif
    if (i == n) return;
    memset(to + i / NBL_STRIP * strip, 0, NBL_STRIP * sizeof *to);
    for (; i < n; i++) to[i / NBL_STRIP * strip + i % NBL_STRIP] = (uint32_t)odd[i] << 16 | even[i];
}

void nbl__pair_bf16(nbl_isa isa, const float *from, int64_t width, int64_t k, uint16_t *to)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) {
        pair_avx512(from, width, k, to);
        return;
    }
#else
    (void)isa;
#endif
    for (int64_t i = 0; i < k; i++)
        for (int64_t r = 0; r < width; r++)
            to[(i / 2 * width + r) * 2 + (i & 1)] = nbl__f32_to_bf16(from[i * width + r]);
    if (k & 1)
        for (int64_t r = 0; r < width; r++) to[(k / 2 * width + r) * 2 + 1] = 0;
}
