/* gemv_avx512.c - gemv on AVX-512; the loops are drawn in gemv_kernels.h.
 *
 *   4 bits, f32     a register holds 128 codes, 8 per lane. Loads at byte offsets s = 0 … 3 bring each byte of a
 *                   lane to its low end. vpermps uses 4 bits and ignores the rest:
 *
 *                       load at +s  ->  vpermps table            codes in low nibbles     fma
 *                                   ->  >> 4 -> vpermps table    codes in high nibbles    fma
 *
 *                   2.5 operations for 16 weights; scales multiply once per 128.
 *   4 bits, f16     the 16 products table · scale of a block are rounded once, then looked up: the same 32 codes in
 *   and bf16        each quarter of a register, brought down by a different shift per quarter
 *   int8, dense     widened and multiplied; with f32 the scale of an int8 row multiplies its sum
 *
 * Speed: with one row 4-bit weights run at 10 to 12 per cycle, about what a core reads from
 * memory. Bytes per weight: 0.5 and the scales. */
#include "ops/gemv/cpu/gemv_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 16
#include "ops/common/vector_macros.inc"

/* Memory of a later column is prefetched: two columns ahead, or FETCH_BYTES ahead if that is further.
 * The hardware's prefetch stops at the end of a page, which is about ten columns of a small model. */
enum { FETCH_BYTES = 3072 };

NBL_INLINE int64_t columns_ahead(int64_t column_bytes)
{
    return nbl__max_i64(2, FETCH_BYTES / nbl__max_i64(column_bytes, 1));
}

/* The scales of a column's units: in place if the weight stores one per unit, which is the usual
 * case. Also prefetches those of the column whose codes lie `ahead` bytes on. */
NBL_INLINE const float *scales_of(const nbl_weight *w, int64_t flat, int64_t count, bool fine, int64_t ahead,
                                  float *room)
{
    const int64_t unit = fine ? 32 : 64;
    if (w->format != NBL_FORMAT_MXFP4 && w->nested_scales == NULL && w->block == unit) {
        FETCH(w->scales + (flat + 2 * ahead) / unit);
        return w->scales + flat / unit;
    }
    return nbl__gemv_scales(w, flat, count, room);
}

/* The sums of four registers, each in the first lane of a quarter. */
NBL_TARGET_AVX512 NBL_INLINE __m512 four_sums(const __m512 *v)
{
    __m512 a = _mm512_add_ps(_mm512_shuffle_f32x4(v[0], v[1], 0x44), _mm512_shuffle_f32x4(v[0], v[1], 0xee));
    __m512 b = _mm512_add_ps(_mm512_shuffle_f32x4(v[2], v[3], 0x44), _mm512_shuffle_f32x4(v[2], v[3], 0xee));
    __m512 all = _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
    all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
    return _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
}

NBL_TARGET_AVX512 NBL_INLINE float sum_of(__m512 v)
{
    return _mm512_reduce_add_ps(v);
}

/* tile[i, n] += alpha · factor · (sum of sums[i]), for the rows that exist. */
NBL_TARGET_AVX512 NBL_INLINE void add_to_tile(const nbl__gemv_job *job, int rows, int64_t n,
                                              const __m512 *sums, float factor)
{
    float *tile = job->tile + n - job->n_begin, four[16];
    NBL_UNROLL for (int i = 0; i < rows; i++)
    {
        if (rows >= 4 && i % 4 == 0) _mm512_storeu_ps(four, four_sums(sums + i));
        float sum = rows >= 4 ? four[i % 4 * 4] : sum_of(sums[i]);
        if (i < job->m) tile[i * job->tile_stride] += job->term->alpha * (sum * factor);
    }
}

/* Rounds to dtype and back to f32. NaN stays. */
NBL_TARGET_AVX512 NBL_INLINE __m512 round_to(nbl_dtype dtype, __m512 values)
{
    if (dtype == NBL_DTYPE_F32) return values;
    if (dtype == NBL_DTYPE_F16) return _mm512_cvtph_ps(_mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
    __m512i bits = _mm512_castps_si512(values);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i sum = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    __mmask16 number = _mm512_cmp_ps_mask(values, values, _CMP_ORD_Q);
    return _mm512_castsi512_ps(_mm512_mask_and_epi32(bits, number, sum, _mm512_set1_epi32((int)0xffff0000)));
}

/* Rounds to bf16 values of magnitude 2^-126 to 2^110. Adding and subtracting 1.5 · 2^16 times the
 * value's power of two leaves no room for the bits that bf16 does not have. */
NBL_TARGET_AVX512 NBL_INLINE __m512 round_moderate_bf16(__m512 values)
{
    const __m512 raise = _mm512_set1_ps(0x1.8p16f);
    __m512 power = _mm512_and_ps(values, _mm512_castsi512_ps(_mm512_set1_epi32((int)0xff800000)));
    return _mm512_fnmadd_ps(power, raise, _mm512_fmadd_ps(power, raise, values));
}

/* The 16 values of a block: table · scale, rounded. */
NBL_TARGET_AVX512 NBL_INLINE __m512 block_values(nbl_dtype dtype, __m512 table, const float *scale)
{
    __m512 products = _mm512_mul_ps(table, _mm512_set1_ps(*scale));
    uint32_t bits;
    memcpy(&bits, scale, sizeof bits);
    /* For 2^-100 <= |scale| < 2^100 the products are moderate: table entries are 0, or 2^-8 to 12. */
    if (dtype == NBL_DTYPE_BF16 && (bits << 1) - (27u << 24) < (200u << 24))
        return round_moderate_bf16(products);
    return round_to(dtype, products);
}

/* ---- 4 bits, f32 ---- */

/* The scales of a group of 128, two or four of them, each in the lanes of its codes. */
NBL_TARGET_AVX512 NBL_INLINE __m512 spread(bool fine, const float *scales, __mmask8 which)
{
    const __m512i halves = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
    const __m512i quarters = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
    __m128 small = _mm_maskz_loadu_ps(which, scales);
    return _mm512_permutexvar_ps(fine ? quarters : halves, _mm512_castps128_ps512(small));
}

/* 128 weights, fewer where `bytes` says so, of each of `columns` neighbours, `next` bytes apart. With few rows the
 * scale joins the sum of the group, else the weights. */
NBL_TARGET_AVX512 NBL_INLINE void group_f32(int rows, int columns, const uint8_t *codes, int64_t next,
                                            bool whole, __mmask64 bytes, __m512 table, const __m512 *scale,
                                            const float *a, __m512 *sums)
{
    const bool after = rows < 4;
    __m512 part[NBL_MAX_GEMV_ROWS], w[2][2];
    NBL_UNROLL for (int s = 0; s < 4; s++)
    {
        NBL_UNROLL for (int c = 0; c < columns; c++)
        {
            const uint8_t *from = codes + c * next + s;
            __m512i v = whole ? _mm512_loadu_si512(from) : _mm512_maskz_loadu_epi8(bytes >> s, from);
            w[c][0] = _mm512_permutexvar_ps(v, table);
            w[c][1] = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), table);
            if (!after)
                w[c][0] = _mm512_mul_ps(w[c][0], scale[c]), w[c][1] = _mm512_mul_ps(w[c][1], scale[c]);
        }
        NBL_UNROLL for (int h = 0; h < 2; h++)
        {
            NBL_UNROLL for (int i = 0; i < rows; i++)
            {
                __m512 x = _mm512_load_ps(a + i * NBL_GEMV_GROUP + 32 * s + 16 * h);
                if (after)
                    part[i] = s == 0 && h == 0 ? _mm512_mul_ps(w[0][h], x)
                                               : _mm512_fmadd_ps(w[0][h], x, part[i]);
                else NBL_UNROLL for (int c = 0; c < columns; c++)
                    {
                        sums[c * rows + i] = _mm512_fmadd_ps(w[c][h], x, sums[c * rows + i]);
                    }
            }
        }
    }
    if (after)
        NBL_UNROLL for (int i = 0; i < rows; i++) sums[i] = _mm512_fmadd_ps(part[i], scale[0], sums[i]);
}

/* Columns [n, n + columns). */
NBL_TARGET_AVX512 NBL_INLINE void columns_f32(const nbl__gemv_job *job, int rows, bool fine, int columns,
                                              int64_t n, int64_t ahead)
{
    const nbl_weight *weight = job->term->b.weight;
    const int64_t in = nbl__gemv_columns(weight), count = job->count, flat = n * in + job->first;
    const int64_t last = (count - 1) / NBL_GEMV_GROUP, rest = count - last * NBL_GEMV_GROUP;
    const __mmask64 bytes = ~(__mmask64)0 >> (64 - rest / 2);
    const int per_group = fine ? 4 : 2;
    const __mmask8 all = fine ? 15 : 3, some = (__mmask8)((1 << (rest / (fine ? 32 : 64))) - 1);
    const __m512 table = _mm512_loadu_ps(nbl__gemv_table(weight));
    const uint8_t *codes = (const uint8_t *)weight->data + flat / 2;
    const float *a = job->a, *scales[2];
    float room[2][NBL_GEMV_UNITS];
    __m512 sums[2 * NBL_MAX_GEMV_ROWS], scale[2];
    NBL_UNROLL for (int c = 0; c < columns; c++)
    {
        scales[c] = scales_of(weight, flat + c * in, count, fine, ahead, room[c]);
    }
    NBL_UNROLL for (int i = 0; i < columns * rows; i++) sums[i] = _mm512_setzero_ps();
    for (int64_t g = 0; g < last; g++, codes += 64, a += rows * NBL_GEMV_GROUP) {
        NBL_UNROLL for (int c = 0; c < columns; c++)
        {
            FETCH(codes + ahead + c * in / 2);
            scale[c] = spread(fine, scales[c] + per_group * g, all);
        }
        group_f32(rows, columns, codes, in / 2, true, 0, table, scale, a, sums);
    }
    NBL_UNROLL for (int c = 0; c < columns; c++) scale[c] = spread(fine, scales[c] + per_group * last, some);
    group_f32(rows, columns, codes, in / 2, false, bytes, table, scale, a, sums);
    NBL_UNROLL for (int c = 0; c < columns; c++) add_to_tile(job, rows, n + c, sums + c * rows, 1);
}

/* With many rows two columns share the reading of A. */
NBL_TARGET_AVX512 NBL_INLINE void run_fourbit_f32(const nbl__gemv_job *job, int rows, bool fine)
{
    const int64_t bytes = nbl__gemv_columns(job->term->b.weight) / 2, ahead = columns_ahead(bytes) * bytes;
    int64_t n = job->n_begin;
    if (rows >= 4)
        for (; n + 2 <= job->n_end; n += 2) columns_f32(job, rows, fine, 2, n, ahead);
    for (; n < job->n_end; n++) columns_f32(job, rows, fine, 1, n, ahead);
}

/* ---- 4 bits, rounded to f16 or bf16 ---- */

NBL_TARGET_AVX512 NBL_INLINE void unit_16(int rows, const uint8_t *codes, __m512 values, const float *a,
                                          __m512 *sums)
{
    const __m512i low = _mm512_setr_epi32(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(16));
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)codes));
    NBL_UNROLL for (int t = 0; t < 2; t++)
    {
        __m512 w = _mm512_permutexvar_ps(_mm512_srlv_epi32(v, t ? high : low), values);
        NBL_UNROLL for (int i = 0; i < rows; i++)
        {
            sums[i] = _mm512_fmadd_ps(w, _mm512_load_ps(a + i * NBL_GEMV_GROUP + 16 * t), sums[i]);
        }
    }
}

NBL_TARGET_AVX512 NBL_INLINE void run_fourbit_16(const nbl__gemv_job *job, nbl_dtype dtype, int rows,
                                                 bool fine)
{
    const nbl_weight *weight = job->term->b.weight;
    const int64_t columns = nbl__gemv_columns(weight), units = job->count / 32;
    const int64_t ahead = columns_ahead(columns / 2) * (columns / 2);
    const int chains = CHAINS(rows);
    const __m512 table = _mm512_loadu_ps(nbl__gemv_table(weight));
    const float *a = job->a;
    float room[NBL_GEMV_UNITS];
    for (int64_t n = job->n_begin; n < job->n_end; n++) {
        int64_t flat = n * columns + job->first, u = 0;
        const uint8_t *codes = (const uint8_t *)weight->data + flat / 2;
        const float *scales = scales_of(weight, flat, job->count, fine, ahead, room);
        __m512 sums[4][NBL_MAX_GEMV_ROWS], values = table;
        NBL_UNROLL for (int c = 0; c < chains; c++)
        {
            NBL_UNROLL for (int i = 0; i < rows; i++) sums[c][i] = _mm512_setzero_ps();
        }
        for (; u + 4 <= units; u += 4) {
            FETCH(codes + ahead + 16 * u);
            NBL_UNROLL for (int j = 0; j < 4; j++)
            {
                if (fine || j % 2 == 0)
                    values = block_values(dtype, table, scales + (fine ? u + j : (u + j) / 2));
                unit_16(rows, codes + 16 * (u + j), values, a + 32 * (rows * u + j), sums[j % chains]);
            }
        }
        for (; u < units; u++) {
            values = block_values(dtype, table, scales + (fine ? u : u / 2));
            unit_16(rows, codes + 16 * u, values, a + 32 * (rows * (u & ~3) + (u & 3)), sums[0]);
        }
        NBL_UNROLL for (int c = 1; c < chains; c++)
        {
            NBL_UNROLL for (int i = 0; i < rows; i++) sums[0][i] = _mm512_add_ps(sums[0][i], sums[c][i]);
        }
        add_to_tile(job, rows, n, sums[0], 1);
    }
}

/* ---- 4 bits ---- */

NBL_TARGET_AVX512 NBL_INLINE void run_fourbit(const nbl__gemv_job *job, int rows, nbl_dtype dtype, bool fine)
{
    if (dtype == NBL_DTYPE_F32) run_fourbit_f32(job, rows, fine);
    else run_fourbit_16(job, dtype, rows, fine);
}

/* A lane holds 8 codes, and `lanes` of them stand side by side: lane l of step s meets element 8 l + s, or its
 * neighbour where the first of a pair is in the high nibble (`flip` 1). */
NBL_TARGET_AVX512 NBL_INLINE void permute(int lanes, int flip, const float *from, float *to)
{
    for (int u = 0; u < NBL_GEMV_GROUP; u += 8 * lanes)
        for (int l = 0; l < lanes; l += 4)
            for (int s = 0; s < 8; s += 4) {
                const float *corner = from + u + 8 * l + s;
                __m128 a = _mm_loadu_ps(corner), b = _mm_loadu_ps(corner + 8);
                __m128 c = _mm_loadu_ps(corner + 16), d = _mm_loadu_ps(corner + 24);
                _MM_TRANSPOSE4_PS(a, b, c, d);
                _mm_store_ps(to + u + (s ^ flip) * lanes + l, a);
                _mm_store_ps(to + u + ((s + 1) ^ flip) * lanes + l, b);
                _mm_store_ps(to + u + ((s + 2) ^ flip) * lanes + l, c);
                _mm_store_ps(to + u + ((s + 3) ^ flip) * lanes + l, d);
            }
}
NBL_TARGET_AVX512 static void transpose_f32_high_first(const float *from, float *to)
{
    permute(16, 1, from, to);
}
NBL_TARGET_AVX512 static void transpose_f32_low_first(const float *from, float *to)
{
    permute(16, 0, from, to);
}
NBL_TARGET_AVX512 static void transpose_16_high_first(const float *from, float *to)
{
    permute(4, 1, from, to);
}
NBL_TARGET_AVX512 static void transpose_16_low_first(const float *from, float *to)
{
    permute(4, 0, from, to);
}

static void (*kernel_order(const nbl_weight *weight, int type))(const float *from, float *to)
{
    bool low_first = weight->format == NBL_FORMAT_MXFP4;
    if (type == 0) return low_first ? transpose_f32_low_first : transpose_f32_high_first;
    return low_first ? transpose_16_low_first : transpose_16_high_first;
}

/* ---- int8 and dense: 16 values at a time, in their order ---- */

NBL_TARGET_AVX512 NBL_INLINE __m512 sixteen(source from, const uint8_t *data, __mmask16 which, __m512 scale)
{
    if (from == SOURCE_F32) return _mm512_maskz_loadu_ps(which, data);
    if (from == SOURCE_F16) return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(which, data));
    if (from == SOURCE_BF16) {
        __m512i bits = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(which, data));
        return _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16));
    }
    __m512 code = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(which, data)));
    if (from == SOURCE_INT8) return code;
    __m512 value = _mm512_mul_ps(_mm512_mul_ps(code, scale), _mm512_set1_ps(NBL_INVERSE_127));
    return round_to(from == SOURCE_INT8_F16 ? NBL_DTYPE_F16 : NBL_DTYPE_BF16, value);
}

NBL_TARGET_AVX512 NBL_INLINE __m512 values(source from, const uint8_t *data, __m512 scale)
{
    return sixteen(from, data, 0xffff, scale);
}

/* The same of `count` weights or 16, if that is less; zeros behind them. */
NBL_TARGET_AVX512 NBL_INLINE __m512 last_values(source from, const uint8_t *data, int64_t count, __m512 scale)
{
    return sixteen(from, data, count >= 16 ? 0xffff : (__mmask16)((1 << count) - 1), scale);
}

#include "ops/gemv/cpu/gemv.inc"

#endif
