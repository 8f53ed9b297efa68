/* gemm_int8_x86.c - the x86 kernels of the product of int8 codes; the loops are drawn in
 * gemm_int8_kernels.h.
 *
 *   AVX2      codes as i16, pairs of k: vpmaddwd and vpaddd, 6 rows by 16 columns.
 *             24 products per cycle on three ports, where f32 has 16.
 *   AVX-512   VNNI, groups of 4 k: 12 rows by 32 columns, 128 products per cycle.
 *             vpdpbusd takes one operand unsigned: W is stored plus 128, and 128 · Σ A is subtracted at the end.
 *   AMX       tiles of 16 by 64 codes: 32 rows by 32 columns in four tiles of sums.
 *
 * Panels of W consist of blocks of 8 by 8 words of 32 bits (2 or 4 codes), transposed in
 * registers:
 *
 *   i16    [k / 2][16][2]
 *   i8     [2][k / 4][16][4]
 *
 * Bytes: a panel of W stays in the L2 cache while all rows of a block pass. Limit: the
 * multipliers. */
#include "ops/common/amx_tiles.h"
#include "ops/gemm/cpu/int8/gemm_int8_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

#if defined(__clang__)
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

/* ---- packing ---- */

/* Transposes eight rows of eight words of 32 bits. */
NBL_TARGET_AVX2 static inline void transpose_8x8(__m256i *r)
{
    __m256i a[8], b[8];
    UNROLL for (int i = 0; i < 4; i++)
    {
        a[2 * i] = _mm256_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        a[2 * i + 1] = _mm256_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    UNROLL for (int i = 0; i < 2; i++)
    {
        b[4 * i] = _mm256_unpacklo_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 1] = _mm256_unpackhi_epi64(a[4 * i], a[4 * i + 2]);
        b[4 * i + 2] = _mm256_unpacklo_epi64(a[4 * i + 1], a[4 * i + 3]);
        b[4 * i + 3] = _mm256_unpackhi_epi64(a[4 * i + 1], a[4 * i + 3]);
    }
    UNROLL for (int i = 0; i < 4; i++)
    {
        r[i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x20);
        r[4 + i] = _mm256_permute2x128_si256(b[i], b[4 + i], 0x31);
    }
}

/* Up to 32 bytes, zeros behind them. */
NBL_TARGET_AVX2 static inline __m256i load_some(const int8_t *from, int64_t n)
{
    if (n >= 32) return _mm256_loadu_si256((const __m256i *)(const void *)from);
    int8_t bytes[32] = {0};
    if (n > 0) memcpy(bytes, from, (size_t)n);
    return _mm256_loadu_si256((const __m256i *)(const void *)bytes);
}

NBL_TARGET_AVX2 static void pack_w_i16(const int8_t *w, int64_t stride, int64_t columns, int64_t count,
                                       void *panel)
{
    int16_t *to = panel;
    for (int64_t c = 0; c < 16; c += 8)
        for (int64_t k = 0; k < count; k += 32) {
            __m256i low[8], high[8];
            for (int64_t i = 0; i < 8; i++) {
                __m256i codes = load_some(w + (c + i) * stride + k, c + i < columns ? count - k : 0);
                low[i] = _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes));
                high[i] = _mm256_cvtepi8_epi16(_mm256_extracti128_si256(codes, 1));
            }
            transpose_8x8(low);
            transpose_8x8(high);
            for (int64_t i = 0; i < 8; i++) {
                _mm256_store_si256((__m256i *)(void *)(to + ((k / 2 + i) * 16 + c) * 2), low[i]);
                _mm256_store_si256((__m256i *)(void *)(to + ((k / 2 + 8 + i) * 16 + c) * 2), high[i]);
            }
        }
}

/* Both halves of a panel of 32 columns. `flip` 0x80 adds 128 to each code. */
NBL_TARGET_AVX2 static inline void pack_w_i8(const int8_t *w, int64_t stride, int64_t columns, int64_t count,
                                             int8_t *to, int8_t flip)
{
    for (int64_t c = 0; c < 32; c += 8)
        for (int64_t k = 0; k < count; k += 32) {
            __m256i square[8];
            for (int64_t i = 0; i < 8; i++) {
                __m256i codes = load_some(w + (c + i) * stride + k, c + i < columns ? count - k : 0);
                square[i] = _mm256_xor_si256(codes, _mm256_set1_epi8(flip));
            }
            transpose_8x8(square);
            int8_t *at = to + c / 16 * 16 * NBL_INT8_K + c % 16 * 4;
            for (int64_t i = 0; i < 8; i++)
                _mm256_store_si256((__m256i *)(void *)(at + (k / 4 + i) * 64), square[i]);
        }
}

NBL_TARGET_AVX2 static void pack_w_plain(const int8_t *w, int64_t stride, int64_t columns, int64_t count,
                                         void *panel)
{
    pack_w_i8(w, stride, columns, count, panel, 0);
    if ((count + 31) / 32 % 2 == 0) return;
    for (int64_t c = 0; c < 2; c++) /* tiles take 64 codes */
        memset((int8_t *)panel + 16 * (c * NBL_INT8_K + (count + 31) / 32 * 32), 0, (size_t)16 * 32);
}

NBL_TARGET_AVX2 static void pack_w_unsigned(const int8_t *w, int64_t stride, int64_t columns, int64_t count,
                                            void *panel)
{
    pack_w_i8(w, stride, columns, count, panel, (int8_t)0x80);
}

NBL_TARGET_AVX2 static int32_t pack_a_i16(const int8_t *a, int64_t count, void *to)
{
    for (int64_t k = 0; k < count; k += 32) {
        __m256i codes = load_some(a + k, count - k);
        __m256i *at = (__m256i *)(void *)((int16_t *)to + k);
        _mm256_store_si256(at, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(codes)));
        _mm256_store_si256(at + 1, _mm256_cvtepi8_epi16(_mm256_extracti128_si256(codes, 1)));
    }
    return 0;
}

NBL_TARGET_AVX512 static int32_t pack_a_i8(const int8_t *a, int64_t count, void *to)
{
    __m512i sum = _mm512_setzero_si512();
    for (int64_t k = 0; k < count; k += 64) {
        __mmask64 which = count - k >= 64 ? ~(__mmask64)0 : ((__mmask64)1 << (count - k)) - 1;
        __m512i codes = _mm512_maskz_loadu_epi8(which, a + k);
        _mm512_store_si512((int8_t *)to + k, codes);
        sum = _mm512_dpbusd_epi32(sum, _mm512_set1_epi8(1), codes);
    }
    return _mm512_reduce_add_epi32(sum);
}

NBL_TARGET_AVX2 static void finish_avx2(const int32_t *sums, int32_t extra, float row_factor,
                                        const float *scales, int64_t count, float *tile)
{
    const __m256i off = _mm256_set1_epi32(extra);
    const __m256 row = _mm256_set1_ps(row_factor);
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) {
        __m256i sum = _mm256_sub_epi32(_mm256_load_si256((const __m256i *)(const void *)(sums + i)), off);
        __m256 part = _mm256_mul_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(row, _mm256_loadu_ps(scales + i)));
        _mm256_storeu_ps(tile + i, _mm256_add_ps(_mm256_loadu_ps(tile + i), part));
    }
    for (; i < count; i++) {
        int32_t sum = (int32_t)((uint32_t)sums[i] - (uint32_t)extra);
        tile[i] += (float)sum * (row_factor * scales[i]);
    }
}

/* ---- AVX2 ---- */

/* sums[6][16] = or += A · panel. */
NBL_TARGET_AVX2 static void multiply_6x16_avx2(const void *a, const void *w, int64_t count, bool add,
                                               int32_t *sums)
{
    __m256i sum[6][2];
    UNROLL for (int i = 0; i < 6; i++) sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    const int32_t *pairs = a;
    const __m256i *panel = w;
    for (int64_t k = 0; k < count; k += 4, pairs += 2, panel += 4) {
        UNROLL for (int j = 0; j < 2; j++)
        {
            __m256i w0 = _mm256_load_si256(panel + 2 * j), w1 = _mm256_load_si256(panel + 2 * j + 1);
            UNROLL for (int i = 0; i < 6; i++)
            {
                __m256i x = _mm256_set1_epi32(pairs[i * NBL_INT8_K / 2 + j]);
                sum[i][0] = _mm256_add_epi32(sum[i][0], _mm256_madd_epi16(x, w0));
                sum[i][1] = _mm256_add_epi32(sum[i][1], _mm256_madd_epi16(x, w1));
            }
        }
    }
    __m256i *to = (__m256i *)(void *)sums;
    UNROLL for (int i = 0; i < 12; i++)
    {
        __m256i all = sum[i / 2][i % 2];
        if (add) all = _mm256_add_epi32(all, _mm256_load_si256(to + i));
        _mm256_store_si256(to + i, all);
    }
}

/* The small batch: |w| · (a with w's sign), because vpmaddubsw takes one operand unsigned. Its
 * pairs stay within i16, since |w| <= 128 and |a| <= 127. */
NBL_TARGET_AVX2 __attribute__((always_inline)) static inline void
dot_rows_avx2(int rows, const int8_t *a, int64_t stride, const int8_t *w, int64_t count, int32_t *sums)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i sum[4];
    UNROLL for (int i = 0; i < rows; i++) sum[i] = _mm256_setzero_si256();
    for (int64_t k = 0; k < count; k += 32) {
        _mm_prefetch((const char *)(w + k + 4096), _MM_HINT_T0);
        __m256i codes = load_some(w + k, count - k), size = _mm256_abs_epi8(codes);
        UNROLL for (int i = 0; i < rows; i++)
        {
            __m256i x = load_some(a + i * stride + k, count - k);
            __m256i words = _mm256_maddubs_epi16(size, _mm256_sign_epi8(x, codes));
            sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(words, ones));
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
    {
        __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum[i]), _mm256_extracti128_si256(sum[i], 1));
        four = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
        sums[i] = _mm_cvtsi128_si32(_mm_add_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
    }
}

NBL_TARGET_AVX2 static void dot_avx2(int rows, const int8_t *a, int64_t stride, const int8_t *w,
                                     int64_t count, const int32_t *a_sums, int32_t *sums)
{
    (void)a_sums;
    switch (rows) {
    case 1: dot_rows_avx2(1, a, stride, w, count, sums); break;
    case 2: dot_rows_avx2(2, a, stride, w, count, sums); break;
    case 3: dot_rows_avx2(3, a, stride, w, count, sums); break;
    default: dot_rows_avx2(4, a, stride, w, count, sums); break;
    }
}

/* ---- AVX-512 VNNI ---- */

/* sums[12][32] = or += A · panel, without the correction for the offset of W. */
NBL_TARGET_AVX512 static void multiply_12x32_avx512(const void *a, const void *w, int64_t count, bool add,
                                                    int32_t *sums)
{
    __m512i sum[12][2];
    UNROLL for (int i = 0; i < 12; i++) sum[i][0] = sum[i][1] = _mm512_setzero_si512();
    const int32_t *fours = a;
    const int8_t *panel = w;
    for (int64_t k = 0; k < count / 4; k++, fours++, panel += 64) {
        __m512i w0 = _mm512_load_si512(panel), w1 = _mm512_load_si512(panel + 16 * NBL_INT8_K);
        UNROLL for (int i = 0; i < 12; i++)
        {
            __m512i x = _mm512_set1_epi32(fours[i * NBL_INT8_K / 4]);
            sum[i][0] = _mm512_dpbusd_epi32(sum[i][0], w0, x);
            sum[i][1] = _mm512_dpbusd_epi32(sum[i][1], w1, x);
        }
    }
    UNROLL for (int i = 0; i < 24; i++)
    {
        __m512i all = sum[i / 2][i % 2];
        if (add) all = _mm512_add_epi32(all, _mm512_load_si512(sums + 16 * i));
        _mm512_store_si512(sums + 16 * i, all);
    }
}

NBL_TARGET_AVX512 __attribute__((always_inline)) static inline void
dot_rows_avx512(int rows, const int8_t *a, int64_t stride, const int8_t *w, int64_t count,
                const int32_t *a_sums, int32_t *sums)
{
    __m512i sum[4][2];
    UNROLL for (int i = 0; i < rows; i++) sum[i][0] = sum[i][1] = _mm512_setzero_si512();
    for (int64_t k = 0; k < count; k += 128) {
        UNROLL for (int h = 0; h < 2; h++)
        {
            int64_t left = count - k - 64 * h;
            __mmask64 which = left >= 64 ? ~(__mmask64)0 : left > 0 ? ((__mmask64)1 << left) - 1 : 0;
            _mm_prefetch((const char *)(w + k + 64 * h + 4096), _MM_HINT_T0);
            __m512i codes = _mm512_xor_si512(_mm512_maskz_loadu_epi8(which, w + k + 64 * h),
                                             _mm512_set1_epi8((char)0x80));
            UNROLL for (int i = 0; i < rows; i++)
            {
                __m512i x = _mm512_maskz_loadu_epi8(which, a + i * stride + k + 64 * h);
                sum[i][h] = _mm512_dpbusd_epi32(sum[i][h], codes, x);
            }
        }
    }
    UNROLL for (int i = 0; i < rows; i++)
    {
        uint32_t all = (uint32_t)_mm512_reduce_add_epi32(_mm512_add_epi32(sum[i][0], sum[i][1]));
        sums[i] = (int32_t)(all - 128 * (uint32_t)a_sums[i]);
    }
}

NBL_TARGET_AVX512 static void dot_avx512(int rows, const int8_t *a, int64_t stride, const int8_t *w,
                                         int64_t count, const int32_t *a_sums, int32_t *sums)
{
    switch (rows) {
    case 1: dot_rows_avx512(1, a, stride, w, count, a_sums, sums); break;
    case 2: dot_rows_avx512(2, a, stride, w, count, a_sums, sums); break;
    case 3: dot_rows_avx512(3, a, stride, w, count, a_sums, sums); break;
    default: dot_rows_avx512(4, a, stride, w, count, a_sums, sums); break;
    }
}

/* ---- AMX ---- */

NBL_TARGET_AMX static void begin_amx(void)
{
    _tile_loadconfig(&nbl__amx_tiles);
}

NBL_TARGET_AMX static void end_amx(void)
{
    _tile_release();
}

/* sums[32][32] = or += A · panel. Per 64 of k: 4 tile loads, 4 products. */
NBL_TARGET_AMX static void multiply_32x32_amx(const void *a, const void *w, int64_t count, bool add,
                                              int32_t *sums)
{
    const int8_t *rows = a, *panel = w;
    if (add) {
        _tile_loadd(0, sums, 128);
        _tile_loadd(1, sums + 16, 128);
        _tile_loadd(2, sums + 16 * 32, 128);
        _tile_loadd(3, sums + 16 * 32 + 16, 128);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int64_t k = 0; k < count; k += 64) {
        _tile_loadd(4, rows + k, NBL_INT8_K);
        _tile_loadd(5, rows + 16 * NBL_INT8_K + k, NBL_INT8_K);
        _tile_loadd(6, panel + 16 * k, 64);
        _tile_loadd(7, panel + 16 * (NBL_INT8_K + k), 64);
        _tile_dpbssd(0, 4, 6);
        _tile_dpbssd(1, 4, 7);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
    _tile_stored(0, sums, 128);
    _tile_stored(1, sums + 16, 128);
    _tile_stored(2, sums + 16 * 32, 128);
    _tile_stored(3, sums + 16 * 32 + 16, 128);
}

const nbl__int8_kernel nbl__int8_avx2 = {
    .rows = 6,
    .panel = 16,
    .code_bytes = 2,
    .step = 4,
    .small = 12,
    .pack_w = pack_w_i16,
    .pack_a = pack_a_i16,
    .multiply = multiply_6x16_avx2,
    .finish = finish_avx2,
    .dot = dot_avx2,
};
const nbl__int8_kernel nbl__int8_avx512 = {
    .rows = 12,
    .panel = 32,
    .code_bytes = 1,
    .step = 4,
    .small = 8,
    .offset = 128,
    .pack_w = pack_w_unsigned,
    .pack_a = pack_a_i8,
    .multiply = multiply_12x32_avx512,
    .finish = finish_avx2,
    .dot = dot_avx512,
};
const nbl__int8_kernel nbl__int8_amx = {
    .rows = 32,
    .panel = 32,
    .code_bytes = 1,
    .step = 64,
    .small = 8,
    .begin = begin_amx,
    .end = end_amx,
    .pack_w = pack_w_plain,
    .pack_a = pack_a_i8,
    .multiply = multiply_32x32_amx,
    .finish = finish_avx2,
    .dot = dot_avx512,
};

#endif
