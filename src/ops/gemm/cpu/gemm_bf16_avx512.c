/* gemm_bf16_avx512.c - bf16 products with vdpbf16ps: 14 rows by 32 columns in 28 of 32 registers,
 * f32 sums.
 *
 *   for each pair of strips, for each row panel:        C += A · B
 *       per pair of k: 2 loads of B, 14 broadcasts of a pair of A, 28 dot products
 *
 * Limit: the dot product units; 128 bytes of B and 56 of A per pair of k. The instruction adds two
 * products of bf16 per lane, rounds after each, and takes subnormals as zero. A last odd strip
 * goes alone, 14 x 16. */
#include "ops/gemm/cpu/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { ROWS = 14 };

/* `rows` rows (1 … 14) by `strips` strips (1 or 2) over the block of k. `rows` is a constant in
 * each inlined copy. */
NBL_TARGET_AVX512BF16 NBL_INLINE void micro(int rows, int strips, const uint32_t *a, const uint32_t *b,
                                            const nbl__block *block, float *tile)
{
    int64_t stride = block->stride, pairs = block->k / 2;
    const uint32_t *next = b + pairs * NBL_STRIP; /* the second strip */
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++) {
        left[r] = right[r] = _mm512_setzero_ps();
        _mm_prefetch((const char *)(tile + r * stride), _MM_HINT_T0);
        if (strips == 2) _mm_prefetch((const char *)(tile + r * stride + NBL_STRIP), _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < pairs; i++, a += rows, b += NBL_STRIP, next += NBL_STRIP) {
        __m512bh b0 = (__m512bh)_mm512_load_si512(b);
        __m512bh b1 = strips == 2 ? (__m512bh)_mm512_load_si512(next) : b0;
#pragma GCC unroll 14
        for (int r = 0; r < rows; r++) {
            __m512bh x = (__m512bh)_mm512_set1_epi32((int)a[r]);
            left[r] = _mm512_dpbf16_ps(left[r], x, b0);
            if (strips == 2) right[r] = _mm512_dpbf16_ps(right[r], x, b1);
        }
    }
    __m512 alpha = _mm512_set1_ps(block->alpha);
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++, tile += stride) {
        __m512 v0 = _mm512_mul_ps(alpha, left[r]), v1 = _mm512_mul_ps(alpha, right[r]);
        if (block->add) v0 = _mm512_add_ps(_mm512_loadu_ps(tile), v0);
        _mm512_storeu_ps(tile, v0);
        if (strips == 2) {
            if (block->add) v1 = _mm512_add_ps(_mm512_loadu_ps(tile + NBL_STRIP), v1);
            _mm512_storeu_ps(tile + NBL_STRIP, v1);
        }
    }
}

#define CASE(n)                                                                                              \
    case n: micro(n, strips, a, b, block, tile); break;
/* One inlined copy of micro per number of rows, so that the sums stay in registers. */
NBL_TARGET_AVX512BF16 NBL_INLINE void micro_of(int rows, int strips, const uint32_t *a, const uint32_t *b,
                                               const nbl__block *block, float *tile)
{
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
    }
}

/* All row panels against one strip or two. */
NBL_TARGET_AVX512BF16 NBL_INLINE void run_strips(const nbl__block *block, int64_t strip, int strips)
{
    int64_t first = nbl__panel_start(block->rows, block->panels, block->panel_begin), pairs = block->k / 2;
    const uint32_t *b = (const uint32_t *)block->b + strip * pairs * NBL_STRIP;
    for (int64_t p = block->panel_begin, row = first, end; p < block->panel_end; p++, row = end) {
        end = nbl__panel_start(block->rows, block->panels, p + 1);
        micro_of((int)(end - row), strips, (const uint32_t *)block->a + row * pairs, b, block,
                 block->tile + (row - first) * block->stride + strip * NBL_STRIP);
    }
}

NBL_TARGET_AVX512BF16 static void run(const nbl__block *block)
{
    int64_t s = 0;
    for (; s + 2 <= block->strips; s += 2) run_strips(block, s, 2);
    if (s < block->strips) run_strips(block, s, 1);
}

/* vdpbf16ps does twice the products of an f32 fma. AMD runs it at the fma's rate, Intel once in
 * two cycles. */
static bool suits(nbl_dtype compute, int64_t m)
{
    (void)m;
    return compute == NBL_DTYPE_BF16 && __builtin_cpu_is("amd");
}

const nbl__kernel nbl__gemm_bf16_14x32_avx512bf16 = {
    "gemm_bf16_14x32_avx512bf16", NBL_PANEL_PAIRS, ROWS, 2, 512, false, run, NBL_ISA_AVX512BF16, suits};

#endif
