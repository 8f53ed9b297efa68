/* pack_fourbit_avx2.c - four-bit weights directly into strips of f32.
 *
 *   transposed (x·Wᵀ)   16 bytes x 8 rows -> 4 registers of dwords -> 32 x (shift, look up, scale, store)
 *
 * Eight rows give one register per four bytes: a dword of eight codes from each row. A shift
 * brings code i of all eight rows to the front. A lookup and a product with the rows' scales make
 * eight lanes of the panel's row.
 *
 *   straight (dy·W)     8 codes -> 8 lanes (a shift per lane) -> look up -> store
 *
 * The table is scaled once per block, so that the lookup yields the value.
 *
 * Lookup: the low three bits of a code choose in both halves of the table, and bit 3 chooses
 * between them. Bytes per value: 0.5 read, 4 written. Limit: the shuffles, about 2.5 cycles for
 * eight values. */
#include "ops/gemm/cpu/pack.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <math.h>

enum { CHUNK = 32 }; /* neighbours in the weight that always share a block */

/* Rounds to the compute dtype and back to f32; finite values only. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline __m256 round_avx2(__m256 value,
                                                                               nbl_dtype compute)
{
    if (compute == NBL_DTYPE_F16) return _mm256_cvtph_ps(_mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
    if (compute == NBL_DTYPE_BF16) {
        __m256i bits = _mm256_castps_si256(value);
        __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        bits = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        return _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32((int)0xffff0000)));
    }
    return value;
}

/* table[index & 15] for eight lanes; bit 3 of the index is given in the sign bits of `bit3`. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline __m256 look_up_avx2(__m256 low, __m256 high,
                                                                                 __m256i index, __m256i bit3)
{
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, index), _mm256_permutevar8x32_ps(high, index),
                            _mm256_castsi256_ps(bit3));
}

/* ---- transposed ---- */

/* Eight rows: dword j of each, j < 4. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline void load_dwords_avx2(const uint8_t *const *rows,
                                                                                   int64_t at, __m256i out[4])
{
    __m256i v[4];
#pragma GCC unroll 4
    for (int r = 0; r < 4; r++) {
        __m128i first = _mm_loadu_si128((const void *)(rows[r] + at));
        __m128i fifth = _mm_loadu_si128((const void *)(rows[r + 4] + at));
        v[r] = _mm256_inserti128_si256(_mm256_castsi128_si256(first), fifth, 1);
    }
    __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpacklo_epi32(v[2], v[3]);
    __m256i c = _mm256_unpackhi_epi32(v[0], v[1]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    out[0] = _mm256_unpacklo_epi64(a, b);
    out[1] = _mm256_unpackhi_epi64(a, b);
    out[2] = _mm256_unpacklo_epi64(c, d);
    out[3] = _mm256_unpackhi_epi64(c, d);
}

/* One strip. `compute` and `low_first` are constants in each inlined copy. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline bool
transposed(const nbl__fourbit_source *s, nbl_dtype compute, bool low_first, int64_t row, int64_t row_end,
           int64_t k_begin, int64_t k, float *to)
{
    const __m256 low = _mm256_loadu_ps(s->table), high = _mm256_loadu_ps(s->table + 8);
    const __m256 infinity = _mm256_set1_ps(INFINITY), sign = _mm256_set1_ps(-0.0f);
    _Alignas(32) float scales[NBL_MAX_K_BLOCK / CHUNK * NBL_STRIP];
    const uint8_t *rows[NBL_STRIP];
    nbl__strip_rows(s, row, row_end, k_begin, rows);
    int step = nbl__strip_scales(s, row, row_end, k_begin, k, scales);
    for (int64_t i = 0; i < k; i += CHUNK, to += CHUNK * NBL_STRIP) {
        int64_t column = k_begin + i;
        const float *factors = scales + ((column >> step) - (k_begin >> step)) * NBL_STRIP;
        for (int half = 0; half < 2; half++) {
            __m256i dwords[4];
            /* out[j]: dword j of each of eight rows, j < 4. */
            load_dwords_avx2(rows + 8 * half, i / 2, dwords);
            __m256 scale = _mm256_load_ps(factors + 8 * half);
            if (compute != NBL_DTYPE_F32) {
                __m256 size = _mm256_andnot_ps(sign, scale);
                if (_mm256_movemask_ps(_mm256_cmp_ps(size, infinity, _CMP_NLT_UQ))) return false;
            }
            float *out = to + 8 * half;
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
#pragma GCC unroll 8
                for (int c = 0; c < 8; c++) {
                    int shift = 4 * (low_first ? c : c ^ 1);
                    __m256i index = _mm256_srli_epi32(dwords[j], shift);
                    __m256i bit3 = _mm256_slli_epi32(dwords[j], 28 - shift);
                    __m256 value = _mm256_mul_ps(look_up_avx2(low, high, index, bit3), scale);
                    _mm256_store_ps(out + (8 * j + c) * NBL_STRIP, round_avx2(value, compute));
                }
        }
    }
    return true;
}

/* ---- straight ---- */

/* `strips` strips (2 or 4), k rows of the weight. Four strips are 64 columns, which usually share
 * a block: its table is then scaled once. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline bool straight(const nbl__fourbit_source *s,
                                                                           nbl_dtype compute, int strips,
                                                                           int64_t n, int64_t k_begin,
                                                                           int64_t k, float *to)
{
    const __m256 low = _mm256_loadu_ps(s->table), high = _mm256_loadu_ps(s->table + 8);
    const __m256i shift = s->low_first ? _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28)
                                       : _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
    for (int64_t i = 0; i < k; i++, to += NBL_STRIP) {
        int64_t at = (k_begin + i) * s->columns + n;
        const uint8_t *codes = s->codes + at / 2;
        __builtin_prefetch(codes + 8 * s->columns); /* 16 rows ahead */
        __m256 l = low, h = high;
#pragma GCC unroll 4
        for (int t = 0; t < strips; t++) {
            int64_t block = (at + t * NBL_STRIP) >> s->block_shift;
            if (t == 0 || (t == 2 && block != at >> s->block_shift)) {
                float scale = nbl__block_scale(s->weight, block);
                if (compute != NBL_DTYPE_F32 && !isfinite(scale)) return false;
                l = round_avx2(_mm256_mul_ps(low, _mm256_set1_ps(scale)), compute);
                h = round_avx2(_mm256_mul_ps(high, _mm256_set1_ps(scale)), compute);
            }
#pragma GCC unroll 2
            for (int c = 0; c < 2; c++) {
                int32_t eight;
                memcpy(&eight, codes + 8 * t + 4 * c, 4);
                __m256i index = _mm256_srlv_epi32(_mm256_set1_epi32(eight), shift);
                __m256 value = look_up_avx2(l, h, index, _mm256_slli_epi32(index, 28));
                _mm256_store_ps(to + t * k * NBL_STRIP + c * 8, value);
            }
        }
    }
    return true;
}

#define LANES 8
#include "ops/common/vector_macros.inc"
#include "ops/gemm/cpu/pack_fourbit.inc"

#endif
