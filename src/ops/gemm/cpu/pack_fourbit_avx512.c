/* pack_fourbit_avx512.c - four-bit weights directly into strips of f32, or of bf16 pairs.
 *
 * As pack_fourbit_avx2.c, with 16 lanes. A register holds the whole table, so that a lookup is one
 * shuffle. A dword of each of 16 rows is a whole strip.
 *
 *   transposed, f32     16 bytes x 16 rows -> 4 registers -> 32 x (shift, look up, scale, store)
 *   transposed, pairs   … -> 16 x (2 shifts, 2 lookups, 2 scales, round to bf16, interleave, store)
 *   straight, pairs     the scaled tables of two rows, one in the lower and one in the upper halves of the lanes:
 *                       2 lookups and an or make 16 pairs
 *
 * Subnormals: vcvtne2ps2bf16 takes them as zero, where nbl__dequantize keeps them. The
 * instructions that multiply pairs do the same, so that no result differs.
 *
 * Bytes per value: 0.5 read, 4 (pairs: 2) written. Cost: 1.5 cycles for 16 values as f32, 5 cycles
 * for 32 as pairs. */
#include "ops/gemm/cpu/pack.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <math.h>

enum { CHUNK = 32 }; /* neighbours in the weight that always share a block */

/* Rounds to bf16, in the upper half of each lane. Not for NaN. */
NBL_TARGET_AVX512 static inline __m512i round_upper_avx512(__m512 value)
{
    __m512i bits = _mm512_castps_si512(value);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    bits = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    return _mm512_and_si512(bits, _mm512_set1_epi32((int)0xffff0000));
}

/* Rounds to the compute dtype and back to f32; finite values only. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline __m512 round_avx512(__m512 value,
                                                                                   nbl_dtype compute)
{
    if (compute == NBL_DTYPE_F16) return _mm512_cvtph_ps(_mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    if (compute == NBL_DTYPE_BF16) return _mm512_castsi512_ps(round_upper_avx512(value));
    return value;
}

/* ---- transposed ---- */

/* out[j]: dword j of each of 16 rows, j < 4. */
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

/* One strip of f32. */
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

/* One strip of pairs. `weave` interleaves the bf16 of k and of k + 1. */
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

/* ---- straight ---- */

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

/* `strips` strips (2 or 4), k rows of the weight. Four strips are 64 columns, which usually share
 * a block: its table is then scaled once. */
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

#define LANES 16
#include "ops/common/vector_macros.inc"
#include "ops/gemm/cpu/pack_fourbit.inc"

/* The scaled table of a row's block, rounded to bf16, in the upper halves of the lanes. */
NBL_TARGET_AVX512 __attribute__((always_inline)) static inline __m512i upper_table(__m512 table, float scale)
{
    return round_upper_avx512(_mm512_mul_ps(table, _mm512_set1_ps(scale)));
}

/* Two rows of the weight at a time, as pairs. */
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
