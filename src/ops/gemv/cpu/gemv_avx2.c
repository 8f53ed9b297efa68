/* gemv_avx2.c - gemv on AVX2; the loops are drawn in gemv_kernels.h.
 *
 * Four bits: vpshufb is a table lookup of 16 bytes. A value is looked up byte by byte, 32 codes at
 * a time, and the bytes are interleaved. Two vpermps of eight entries and a blend would need the
 * one port for moves across lanes four times as often.
 *
 *   16 bytes -> both halves of a register, one of them >> 4 -> 32 codes, & 15
 *   f32    4 lookups (bytes 0 … 3 of the table), 8 unpacks                           -> 4 registers of f32
 *   bf16   2 lookups (of the block's rounded products), 2 unpacks, 4 shifts or masks -> the same
 *   f16    2 lookups, 2 unpacks, 4 conversions                                       -> the same
 *
 * With f32 and one row the scale multiplies the sum of a block, else the weights. Speed: 5 to 7
 * weights per cycle. Bytes per weight: 0.5 and the scales. */
#include "ops/gemv/cpu/gemv_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 8
#include "ops/common/vector_macros.inc"

/* The sum of eight lanes. */
NBL_TARGET_AVX2 NBL_INLINE float sum_of(__m256 v)
{
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* tile[i, n] += alpha · factor · (sum of sums[i]), for the rows that exist. */
NBL_TARGET_AVX2 NBL_INLINE void add_to_tile(const nbl__gemv_job *job, int rows, int64_t n, const __m256 *sums,
                                            float factor)
{
    float *tile = job->tile + n - job->n_begin;
    NBL_UNROLL for (int i = 0; i < rows; i++)
    {
        if (i < job->m) tile[i * job->tile_stride] += job->term->alpha * (sum_of(sums[i]) * factor);
    }
}

/* Rounds to dtype and back to f32. NaN stays. */
NBL_TARGET_AVX2 NBL_INLINE __m256 round_to(nbl_dtype dtype, __m256 values)
{
    if (dtype == NBL_DTYPE_F32) return values;
    if (dtype == NBL_DTYPE_F16) return _mm256_cvtph_ps(_mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    __m256i bits = _mm256_castps_si256(values);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    __m256 cut = _mm256_castsi256_ps(_mm256_and_si256(sum, _mm256_set1_epi32((int)0xffff0000)));
    return _mm256_blendv_ps(cut, values, _mm256_cmp_ps(values, values, _CMP_UNORD_Q));
}

/* ---- 4 bits ---- */

/* The lookup tables of a format or of a block: byte b of all 16 values, in both lanes. */
typedef struct tables {
    __m256i byte[4]; /* f32: bytes 0 … 3 of the values; 16 bits: two */
} tables;

/* The 16 values of a format, four to a lane: even has 0 … 3 and 8 … 11, odd has 4 … 7 and 12 … 15. */
typedef struct entries {
    __m256 even, odd;
} entries;

NBL_TARGET_AVX2 NBL_INLINE entries entries_of(const float *table)
{
    return (entries){_mm256_set_m128(_mm_loadu_ps(table + 8), _mm_loadu_ps(table)),
                     _mm256_set_m128(_mm_loadu_ps(table + 12), _mm_loadu_ps(table + 4))};
}

/* Bytes `from` and `from` + 1 of the 16 words of 32 bits, each as a table in both lanes. */
NBL_TARGET_AVX2 NBL_INLINE void weave(__m256i even, __m256i odd, int from, __m256i *low, __m256i *high)
{
    const int all = 0x0c080400;
    const int a = all + 0x01010101 * from, b = a + 0x01010101, none = (int)0x80808080;
    __m256i left = _mm256_shuffle_epi8(even, _mm256_setr_epi32(a, none, b, none, a, none, b, none));
    __m256i right = _mm256_shuffle_epi8(odd, _mm256_setr_epi32(none, a, none, b, none, a, none, b));
    __m256i both = _mm256_or_si256(left, right);
    *low = _mm256_permute4x64_epi64(both, 0x88);
    *high = _mm256_permute4x64_epi64(both, 0xdd);
}

/* The format's values: no scale. */
NBL_TARGET_AVX2 NBL_INLINE tables tables_f32(entries e)
{
    tables t;
    __m256i even = _mm256_castps_si256(e.even), odd = _mm256_castps_si256(e.odd);
    weave(even, odd, 0, &t.byte[0], &t.byte[1]);
    weave(even, odd, 2, &t.byte[2], &t.byte[3]);
    return t;
}

/* The products of a block's scale with the values, rounded to f16 or bf16. */
NBL_TARGET_AVX2 NBL_INLINE tables tables_16(nbl_dtype dtype, entries e, float block_scale)
{
    tables t = {0};
    const __m256 scale = _mm256_set1_ps(block_scale);
    __m256i even = _mm256_castps_si256(_mm256_mul_ps(e.even, scale));
    __m256i odd = _mm256_castps_si256(_mm256_mul_ps(e.odd, scale));
    if (dtype == NBL_DTYPE_F16) {
        even = _mm256_cvtepu16_epi32(_mm256_cvtps_ph(_mm256_castsi256_ps(even), _MM_FROUND_TO_NEAREST_INT));
        odd = _mm256_cvtepu16_epi32(_mm256_cvtps_ph(_mm256_castsi256_ps(odd), _MM_FROUND_TO_NEAREST_INT));
        weave(even, odd, 0, &t.byte[0], &t.byte[1]);
        return t;
    }
    if (__builtin_isfinite(block_scale)) { /* else only quiet NaN and infinities, which truncation keeps */
        const __m256i one = _mm256_set1_epi32(1), half = _mm256_set1_epi32(0x7fff);
        __m256i lowest = _mm256_and_si256(_mm256_srli_epi32(even, 16), one);
        even = _mm256_add_epi32(_mm256_add_epi32(even, half), lowest);
        lowest = _mm256_and_si256(_mm256_srli_epi32(odd, 16), one);
        odd = _mm256_add_epi32(_mm256_add_epi32(odd, half), lowest);
    }
    weave(even, odd, 2, &t.byte[0], &t.byte[1]);
    return t;
}

/* 32 weights as four registers of f32. The transpose_* functions below state which lane gets which
 * weight. */
NBL_TARGET_AVX2 NBL_INLINE void look_up(nbl_dtype dtype, const tables *t, __m256i shift, const uint8_t *codes,
                                        __m256 *w)
{
    __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)codes));
    __m256i index = _mm256_and_si256(_mm256_srlv_epi32(v, shift), _mm256_set1_epi8(15));
    __m256i b0 = _mm256_shuffle_epi8(t->byte[0], index), b1 = _mm256_shuffle_epi8(t->byte[1], index);
    __m256i low = _mm256_unpacklo_epi8(b0, b1), high = _mm256_unpackhi_epi8(b0, b1);
    if (dtype == NBL_DTYPE_F32) {
        __m256i b2 = _mm256_shuffle_epi8(t->byte[2], index), b3 = _mm256_shuffle_epi8(t->byte[3], index);
        __m256i low2 = _mm256_unpacklo_epi8(b2, b3), high2 = _mm256_unpackhi_epi8(b2, b3);
        w[0] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(low, low2));
        w[1] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, low2));
        w[2] = _mm256_castsi256_ps(_mm256_unpacklo_epi16(high, high2));
        w[3] = _mm256_castsi256_ps(_mm256_unpackhi_epi16(high, high2));
    } else if (dtype == NBL_DTYPE_F16) {
        w[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(low));
        w[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(low, 1));
        w[2] = _mm256_cvtph_ps(_mm256_castsi256_si128(high));
        w[3] = _mm256_cvtph_ps(_mm256_extracti128_si256(high, 1));
    } else {
        const __m256i upper = _mm256_set1_epi32((int)0xffff0000);
        w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
        w[1] = _mm256_castsi256_ps(_mm256_and_si256(low, upper));
        w[2] = _mm256_castsi256_ps(_mm256_slli_epi32(high, 16));
        w[3] = _mm256_castsi256_ps(_mm256_and_si256(high, upper));
    }
}

/* Kernel order of A for f32: of 8 elements the even ones, then the odd ones. */
NBL_TARGET_AVX2 static void transpose_f32(const float *from, float *to)
{
    for (int p = 0; p < NBL_GEMV_GROUP; p += 8) {
        __m128 a = _mm_loadu_ps(from + p), b = _mm_loadu_ps(from + p + 4);
        _mm_store_ps(to + p, _mm_shuffle_ps(a, b, 0x88));
        _mm_store_ps(to + p + 4, _mm_shuffle_ps(a, b, 0xdd));
    }
}

/* For f16: of 16 elements the even ones, then the odd ones. */
NBL_TARGET_AVX2 static void transpose_f16(const float *from, float *to)
{
    for (int p = 0; p < NBL_GEMV_GROUP; p += 16)
        for (int h = 0; h < 8; h += 4) {
            __m128 a = _mm_loadu_ps(from + p + 2 * h), b = _mm_loadu_ps(from + p + 2 * h + 4);
            _mm_store_ps(to + p + h, _mm_shuffle_ps(a, b, 0x88));
            _mm_store_ps(to + p + 8 + h, _mm_shuffle_ps(a, b, 0xdd));
        }
}

/* For bf16: of 16 elements every fourth, from 0, 1, 2, 3. */
NBL_TARGET_AVX2 static void transpose_bf16(const float *from, float *to)
{
    for (int p = 0; p < NBL_GEMV_GROUP; p += 16) {
        __m128 a = _mm_loadu_ps(from + p), b = _mm_loadu_ps(from + p + 4);
        __m128 c = _mm_loadu_ps(from + p + 8), d = _mm_loadu_ps(from + p + 12);
        _MM_TRANSPOSE4_PS(a, b, c, d);
        _mm_store_ps(to + p, a);
        _mm_store_ps(to + p + 4, b);
        _mm_store_ps(to + p + 8, c);
        _mm_store_ps(to + p + 12, d);
    }
}

/* One unit, 32 or 64 weights with one scale, times all rows of A. */
NBL_TARGET_AVX2 NBL_INLINE void unit_fourbit(nbl_dtype dtype, int rows, bool fine, const tables *fixed,
                                             entries e, float scale, __m256i shift, const uint8_t *codes,
                                             const float *a, __m256 *sums)
{
    const int chains = CHAINS(rows), parts = fine ? 1 : 2;
    const bool after = dtype == NBL_DTYPE_F32 && rows == 1;
    const __m256 factor = _mm256_set1_ps(scale);
    tables own;
    if (dtype != NBL_DTYPE_F32) own = tables_16(dtype, e, scale);
    __m256 part[2];
    NBL_UNROLL for (int u = 0; u < parts; u++)
    {
        __m256 w[4];
        look_up(dtype, dtype == NBL_DTYPE_F32 ? fixed : &own, shift, codes + 16 * u, w);
        NBL_UNROLL for (int j = 0; j < 4; j++)
        {
            if (dtype == NBL_DTYPE_F32 && !after) w[j] = _mm256_mul_ps(w[j], factor);
            NBL_UNROLL for (int i = 0; i < rows; i++)
            {
                __m256 x = _mm256_load_ps(a + i * NBL_GEMV_GROUP + 32 * u + 8 * j);
                if (after)
                    part[j % 2] = u == 0 && j < 2 ? _mm256_mul_ps(w[j], x)
                                                  : _mm256_fmadd_ps(w[j], x, part[j % 2]);
                else sums[j % chains * rows + i] = _mm256_fmadd_ps(w[j], x, sums[j % chains * rows + i]);
            }
        }
    }
    if (after) NBL_UNROLL for (int j = 0; j < 2; j++) sums[j] = _mm256_fmadd_ps(part[j], factor, sums[j]);
}

/* Four bits: for each column, for each unit. */
NBL_TARGET_AVX2 NBL_INLINE void run_fourbit(const nbl__gemv_job *job, int rows, nbl_dtype dtype, bool fine)
{
    const nbl_weight *weight = job->term->b.weight;
    const int unit = fine ? 32 : 64, per_group = NBL_GEMV_GROUP / unit, chains = CHAINS(rows);
    const int64_t columns = nbl__gemv_columns(weight), units = job->count / unit;
    const entries e = entries_of(nbl__gemv_table(weight));
    const tables fixed = tables_f32(e);
    const __m256i shift = weight->format == NBL_FORMAT_MXFP4 ? _mm256_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4)
                                                             : _mm256_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0);
    float room[NBL_GEMV_UNITS];
    for (int64_t n = job->n_begin; n < job->n_end; n++) {
        int64_t flat = n * columns + job->first;
        const uint8_t *codes = (const uint8_t *)weight->data + flat / 2;
        const float *scales = nbl__gemv_scales(weight, flat, job->count, room), *a = job->a;
        __m256 sums[NBL_MAX_GEMV_ROWS];
        NBL_UNROLL for (int c = 0; c < chains * rows; c++) sums[c] = _mm256_setzero_ps();
        int64_t u = 0;
        for (; u + per_group <= units; u += per_group, a += rows * NBL_GEMV_GROUP) {
            FETCH(codes + columns + unit / 2 * u);
            NBL_UNROLL for (int j = 0; j < per_group; j++)
            {
                unit_fourbit(dtype, rows, fine, &fixed, e, scales[u + j], shift, codes + unit / 2 * (u + j),
                             a + unit * j, sums);
            }
        }
        for (; u < units; u++, a += unit)
            unit_fourbit(dtype, rows, fine, &fixed, e, scales[u], shift, codes + unit / 2 * u, a, sums);
        NBL_UNROLL for (int c = rows; c < chains * rows; c++)
        {
            sums[c % rows] = _mm256_add_ps(sums[c % rows], sums[c]);
        }
        add_to_tile(job, rows, n, sums, 1);
    }
}

/* ---- int8 and dense: 8 values at a time, in their order ---- */

/* Eight weights as f32. */
NBL_TARGET_AVX2 NBL_INLINE __m256 values(source from, const uint8_t *data, __m256 scale)
{
    const void *at = data;
    if (from == SOURCE_F32) return _mm256_loadu_ps(at);
    if (from == SOURCE_F16) return _mm256_cvtph_ps(_mm_loadu_si128(at));
    if (from == SOURCE_BF16)
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(at)), 16));
    __m256 code = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(at)));
    if (from == SOURCE_INT8) return code;
    __m256 value = _mm256_mul_ps(_mm256_mul_ps(code, scale), _mm256_set1_ps(NBL_INVERSE_127));
    return round_to(from == SOURCE_INT8_F16 ? NBL_DTYPE_F16 : NBL_DTYPE_BF16, value);
}

/* The same of `count` weights or eight, if that is less; zeros behind them. */
NBL_TARGET_AVX2 NBL_INLINE __m256 last_values(source from, const uint8_t *data, int64_t count, __m256 scale)
{
    const int size = from == SOURCE_F32 ? 4 : from <= SOURCE_BF16 ? 2 : 1;
    uint8_t last[32] = {0};
    if (count < 8) data = memcpy(last, data, (size_t)(count * size));
    return values(from, data, scale);
}

NBL_INLINE int64_t columns_ahead(int64_t column_bytes)
{
    (void)column_bytes;
    return 2;
}

static void (*kernel_order(const nbl_weight *weight, int type))(const float *from, float *to)
{
    (void)weight;
    return type == 0 ? transpose_f32 : type == 1 ? transpose_f16 : transpose_bf16;
}

#include "ops/gemv/cpu/gemv.inc"

#endif
