/* gemm_f32_avx512.c - f32 products: 14 rows by 32 columns (two strips) in 28 of 32 registers.
 *
 *   for each pair of strips, for each row panel:        C += A · B
 *       per k: 2 loads of B, 14 broadcasts of A, 28 fma
 *
 * Limit: the fma units. On two of them a step of k takes 14 cycles, with 16 loads beside the fma.
 * Bytes per step of k: 128 of B, 56 of A. A last odd strip goes alone, 14 x 16. */
#include "ops/gemm/cpu/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { ROWS = 14 };

/* `rows` rows (1 … 14) by `strips` strips (1 or 2) over the block of k. `rows` is a constant in
 * each inlined copy. */
NBL_TARGET_AVX512 NBL_INLINE void micro(int rows, int strips, const float *a, const float *b,
                                        const nbl__block *block, float *tile)
{
    int64_t stride = block->stride, k = block->k, line = block->b_line;
    const float *next = b + block->b_strip; /* the second strip */
    __m512 left[ROWS], right[ROWS];
#pragma GCC unroll 14
    for (int r = 0; r < rows; r++) {
        left[r] = right[r] = _mm512_setzero_ps();
        _mm_prefetch((const char *)(tile + r * stride), _MM_HINT_T0);
        if (strips == 2) _mm_prefetch((const char *)(tile + r * stride + NBL_STRIP), _MM_HINT_T0);
    }
#pragma GCC unroll 2
    for (int64_t i = 0; i < k; i++, a += rows, b += line, next += line) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = strips == 2 ? _mm512_loadu_ps(next) : b0;
#pragma GCC unroll 14
        for (int r = 0; r < rows; r++) {
            __m512 x = _mm512_set1_ps(a[r]);
            left[r] = _mm512_fmadd_ps(x, b0, left[r]);
            if (strips == 2) right[r] = _mm512_fmadd_ps(x, b1, right[r]);
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
NBL_TARGET_AVX512 NBL_INLINE void micro_of(int rows, int strips, const float *a, const float *b,
                                           const nbl__block *block, float *tile)
{
    switch (rows) {
        CASE(1)
        CASE(2)
        CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14)
    }
}

/* All row panels against one strip or two. */
NBL_TARGET_AVX512 NBL_INLINE void run_strips(const nbl__block *block, int64_t strip, int strips)
{
    int64_t first = nbl__panel_start(block->rows, block->panels, block->panel_begin);
    const float *b = (const float *)block->b + strip * block->b_strip;
    for (int64_t p = block->panel_begin, row = first, end; p < block->panel_end; p++, row = end) {
        end = nbl__panel_start(block->rows, block->panels, p + 1);
        micro_of((int)(end - row), strips, (const float *)block->a + row * block->k, b, block,
                 block->tile + (row - first) * block->stride + strip * NBL_STRIP);
    }
}

NBL_TARGET_AVX512 static void run(const nbl__block *block)
{
    int64_t s = 0;
    for (; s + 2 <= block->strips; s += 2) run_strips(block, s, 2);
    if (s < block->strips) run_strips(block, s, 1);
}

const nbl__kernel nbl__gemm_f32_14x32_avx512 = {
    "gemm_f32_14x32_avx512", NBL_PANEL_F32, ROWS, 1, 320, false, run, NBL_ISA_AVX512, NULL};

#endif
