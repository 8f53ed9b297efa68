/* pack_fourbit_avx512.c - four-bit weights straight into strips of f32 or of bf16 pairs.
 *
 * As pack_fourbit_avx2.c, sixteen lanes wide: a register holds the whole table, so a lookup is one shuffle, and
 * a dword of sixteen rows is a whole strip.
 *
 *     turned, f32      16 bytes x 16 rows -> 4 registers -> 32 x (shift, lookup, scale, store)
 *     turned, pairs    … -> 16 x (2 shifts, 2 lookups, 2 scales, round both to bf16, weave, store)
 *     as stored, pairs the scaled tables of two rows, rounded, one in the lower, one in the upper halves of
 *                      the lanes: 2 lookups and an or make a row of pairs
 *
 * vcvtne2ps2bf16 takes subnormals as zero where nbl__dequantize keeps them; so do the instructions that multiply
 * pairs, hence no result shows it. Cost: 1.5 cycles for 16 values as f32, 5 for 32 as pairs. */
#include "ops/gemm/cpu/pack.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <math.h>

enum { CHUNK = 32 }; /* neighbours in the weight that always share a block */

/* bf16 in the upper half of each lane; no NaN. */
NBL_TARGET_AVX512 static inline __m512i round_upper_avx512(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000));
}

NBL_TARGET_AVX512 __attribute__((always_inline)) static inline __m512 round_avx512(__m512 value,
                                                                                   nbl_dtype compute)
{
    if (compute == NBL_DTYPE_F16) return _mm512_cvtph_ps(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    if (compute == NBL_DTYPE_BF16) return _mm512_castsi512_ps(round_upper_avx512(value));
    return value;
}

/* ---- turned ---- */

/* Sixteen rows: dword j of each, j < 4. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline void
load_dwords_avx512(const uint8_t *const *rows, int64_t at, __m512i out[4])
{
    __m512i v[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        v[r] = _mm512_castsi128_si512(_mm_loadu_si128((const void *)(rows[r] + at)));
        v[r] = _mm512_inserti32x4(v[r], _mm_loadu_si128((const void *)(rows[r + 4] + at)), 1);
        v[r] = _mm512_inserti32x4(v[r], _mm_loadu_si128((const void *)(rows[r + 8] + at)), 2);
        v[r] = _mm512_inserti32x4(v[r], _mm_loadu_si128((const void *)(rows[r + 12] + at)), 3);
    }
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
    __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm512_unpacklo_epi64(a, b);
    out[1] = _mm512_unpackhi_epi64(a, b);
    out[2] = _mm512_unpacklo_epi64(c, d);
    out[3] = _mm512_unpackhi_epi64(c, d);
}

NBL_TARGET_AVX512 static inline bool all_finite(__m512 scale)
{
    return _mm512_cmp_ps_mask(_mm512_abs_ps(scale), _mm512_set1_ps(INFINITY), _CMP_NLT_UQ) == 0;
}

NBL_TARGET_AVX512 __attribute__((always_inline)) static inline bool
transposed(const nbl__fourbit_source *s, nbl_dtype compute, bool low_first, int64_t row, int64_t row_end,
           int64_t k_begin, int64_t k, float *to)
{
    const __m512 table = _mm512_loadu_ps(s->table);
    _Alignas(64) float scales[NBL_MAX_K_BLOCK / CHUNK * NBL_STRIP];
    const uint8_t *rows[NBL_STRIP];
    nbl__strip_rows(s, row, row_end, k_begin, rows);
    int step = nbl__strip_scales(s, row, row_end, k_begin, k, scales);
    for (int64_t i = 0; i < k; i += CHUNK, to += CHUNK * NBL_STRIP) {
        __m512 scale = _mm512_load_ps(scales + (((k_begin + i) >> step) - (k_begin >> step)) * NBL_STRIP);
        if (compute != NBL_DTYPE_F32 && !all_finite(scale)) return false;
        __m512i dwords[4];
        load_dwords_avx512(rows, i / 2, dwords);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
#pragma GCC unroll 8
            for (int c = 0; c < 8; c++) {
                __m512i index = _mm512_srli_epi32(dwords[j], 4 * (unsigned)(low_first ? c : c ^ 1));
                __m512 value = _mm512_mul_ps(_mm512_permutexvar_ps(index, table), scale);
                _mm512_store_ps(to + (8 * j + c) * NBL_STRIP, round_avx512(value, compute));
            }
    }
    return true;
}

NBL_TARGET_AVX512 bool nbl__pack_fourbit_t16_f32_avx512(const nbl__fourbit_source *s, int64_t row,
                                                        int64_t row_end, int64_t k_begin, int64_t k,
                                                        float *to)
{
    if (s->low_first) {
        if (s->compute == NBL_DTYPE_F32)
            return transposed(s, NBL_DTYPE_F32, true, row, row_end, k_begin, k, to);
        if (s->compute == NBL_DTYPE_F16)
            return transposed(s, NBL_DTYPE_F16, true, row, row_end, k_begin, k, to);
        return transposed(s, NBL_DTYPE_BF16, true, row, row_end, k_begin, k, to);
    }
    if (s->compute == NBL_DTYPE_F32) return transposed(s, NBL_DTYPE_F32, false, row, row_end, k_begin, k, to);
    if (s->compute == NBL_DTYPE_F16) return transposed(s, NBL_DTYPE_F16, false, row, row_end, k_begin, k, to);
    return transposed(s, NBL_DTYPE_BF16, false, row, row_end, k_begin, k, to);
}

NBL_TARGET_AVX512BF16 __attribute__((always_inline)) static inline bool
transposed_pairs(const nbl__fourbit_source *s, bool low_first, int64_t row, int64_t row_end, int64_t k_begin,
                 int64_t k, uint32_t *to)
{
    const __m512 table = _mm512_loadu_ps(s->table);
    const __m512i weave = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    _Alignas(64) float scales[NBL_MAX_K_BLOCK / CHUNK * NBL_STRIP];
    const uint8_t *rows[NBL_STRIP];
    nbl__strip_rows(s, row, row_end, k_begin, rows);
    int step = nbl__strip_scales(s, row, row_end, k_begin, k, scales);
    for (int64_t i = 0; i < k; i += CHUNK, to += CHUNK / 2 * NBL_STRIP) {
        __m512 scale = _mm512_load_ps(scales + (((k_begin + i) >> step) - (k_begin >> step)) * NBL_STRIP);
        if (!all_finite(scale)) return false;
        __m512i dwords[4];
        load_dwords_avx512(rows, i / 2, dwords);
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
#pragma GCC unroll 4
            for (unsigned c = 0; c < 4; c++) {
                __m512i first = _mm512_srli_epi32(dwords[j], 8 * c + (low_first ? 0 : 4));
                __m512i second = _mm512_srli_epi32(dwords[j], 8 * c + (low_first ? 4 : 0));
                __m512 even = _mm512_mul_ps(_mm512_permutexvar_ps(first, table), scale);
                __m512 odd = _mm512_mul_ps(_mm512_permutexvar_ps(second, table), scale);
                __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even); /* even below odd */
                _mm512_store_si512(to + (4 * j + (int)c) * NBL_STRIP, _mm512_permutexvar_epi16(weave, both));
            }
    }
    return true;
}

NBL_TARGET_AVX512BF16 bool nbl__pack_fourbit_t16_pairs_avx512(const nbl__fourbit_source *s, int64_t row,
                                                              int64_t row_end, int64_t k_begin, int64_t k,
                                                              uint32_t *to)
{
    if (s->low_first) return transposed_pairs(s, true, row, row_end, k_begin, k, to);
    return transposed_pairs(s, false, row, row_end, k_begin, k, to);
}

/* ---- as stored ---- */

/* Sixteen codes, one per lane in the low four bits. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline __m512i spread(const uint8_t *codes,
                                                                              __m512i shift)
{
    int32_t first, second;
    memcpy(&first, codes, 4);
    memcpy(&second, codes + 4, 4);
    __m512i both = _mm512_mask_set1_epi32(_mm512_set1_epi32(first), 0xff00, second);
    return _mm512_srlv_epi32(both, shift);
}

NBL_TARGET_AVX512 static inline __m512i lane_shifts(bool low_first)
{
    return low_first ? _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28)
                     : _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
}

/* `strips` strips (2 or 4), k steps down. Four are 64 columns, which mostly share a block: its table then is scaled
 * once. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline bool straight(const nbl__fourbit_source *s,
                                                                             nbl_dtype compute, int strips,
                                                                             int64_t n, int64_t k_begin,
                                                                             int64_t k, float *to)
{
    const __m512 table = _mm512_loadu_ps(s->table);
    const __m512i shift = lane_shifts(s->low_first);
    for (int64_t i = 0; i < k; i++, to += NBL_STRIP) {
        int64_t at = (k_begin + i) * s->columns + n;
        const uint8_t *codes = s->codes + at / 2;
        __builtin_prefetch(codes + 8 * s->columns); /* 16 rows ahead */
        __m512 values = table;
#pragma GCC unroll 4
        for (int t = 0; t < strips; t++) {
            int64_t block = (at + t * NBL_STRIP) >> s->block_shift;
            if (t == 0 || (t == 2 && block != at >> s->block_shift)) {
                float scale = nbl__block_scale(s->weight, block);
                if (compute != NBL_DTYPE_F32 && !isfinite(scale)) return false;
                values = round_avx512(_mm512_mul_ps(table, _mm512_set1_ps(scale)), compute);
            }
            _mm512_store_ps(to + t * k * NBL_STRIP,
                            _mm512_permutexvar_ps(spread(codes + 8 * t, shift), values));
        }
    }
    return true;
}

NBL_TARGET_AVX512 __attribute__((always_inline)) static inline bool
straight_of(const nbl__fourbit_source *s, nbl_dtype compute, int64_t n, int64_t strips, int64_t k_begin,
            int64_t k, float *to)
{
    int64_t t = 0;
    for (; t + 4 <= strips; t += 4)
        if (!straight(s, compute, 4, n + t * NBL_STRIP, k_begin, k, to + t * k * NBL_STRIP)) return false;
    return t == strips || straight(s, compute, 2, n + t * NBL_STRIP, k_begin, k, to + t * k * NBL_STRIP);
}

NBL_TARGET_AVX512 bool nbl__pack_fourbit_n16_f32_avx512(const nbl__fourbit_source *s, int64_t n_begin,
                                                        int64_t strips, int64_t k_begin, int64_t k, float *to)
{
    if (s->compute == NBL_DTYPE_F32) return straight_of(s, NBL_DTYPE_F32, n_begin, strips, k_begin, k, to);
    if (s->compute == NBL_DTYPE_F16) return straight_of(s, NBL_DTYPE_F16, n_begin, strips, k_begin, k, to);
    return straight_of(s, NBL_DTYPE_BF16, n_begin, strips, k_begin, k, to);
}

/* The table of a row's block, rounded to bf16, in the upper halves. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline __m512i upper_table(__m512 table, float scale)
{
    return round_upper_avx512(_mm512_mul_ps(table, _mm512_set1_ps(scale)));
}

/* As above for two rows of the weight at a time. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline bool
straight_pairs(const nbl__fourbit_source *s, int strips, int64_t n, int64_t k_begin, int64_t k,
               int64_t padded, uint32_t *to)
{
    const __m512 table = _mm512_loadu_ps(s->table);
    const __m512i shift = lane_shifts(s->low_first);
    for (int64_t i = 0; i < k; i += 2, to += NBL_STRIP) {
        int64_t at = (k_begin + i) * s->columns + n, under = at + s->columns;
        const uint8_t *codes = s->codes + at / 2, *below = s->codes + under / 2;
        __builtin_prefetch(codes + 8 * s->columns); /* 16 rows ahead */
        __builtin_prefetch(below + 8 * s->columns);
        __m512i even = _mm512_setzero_si512(), odd = even;
#pragma GCC unroll 4
        for (int t = 0; t < strips; t++) {
            int64_t block = (at + t * NBL_STRIP) >> s->block_shift;
            int64_t block_under = (under + t * NBL_STRIP) >> s->block_shift;
            if (t == 0 ||
                (t == 2 && (block != at >> s->block_shift || block_under != under >> s->block_shift))) {
                float scale = nbl__block_scale(s->weight, block);
                float scale_under = nbl__block_scale(s->weight, block_under);
                if (!isfinite(scale) || !isfinite(scale_under)) return false;
                even = _mm512_srli_epi32(upper_table(table, scale), 16);
                odd = upper_table(table, scale_under);
            }
            __m512i a = _mm512_permutexvar_epi32(spread(codes + 8 * t, shift), even);
            __m512i b = _mm512_permutexvar_epi32(spread(below + 8 * t, shift), odd);
            _mm512_store_si512(to + t * padded * NBL_STRIP, _mm512_or_si512(a, b));
        }
    }
    return true;
}

NBL_TARGET_AVX512 bool nbl__pack_fourbit_n16_pairs_avx512(const nbl__fourbit_source *s, int64_t n_begin,
                                                          int64_t strips, int64_t k_begin, int64_t k,
                                                          int64_t padded, uint32_t *to)
{
    int64_t t = 0, n = n_begin;
    for (; t + 4 <= strips; t += 4, n += 4 * NBL_STRIP, to += 4 * padded * NBL_STRIP)
        if (!straight_pairs(s, 4, n, k_begin, k, padded, to)) return false;
    return t == strips || straight_pairs(s, 2, n, k_begin, k, padded, to);
}

#endif
