/* gemm_f32_avx2.c - f32 products: 6 rows by 16 columns (one strip) in 12 of 16 registers.
 *
 *   for each strip, for each row panel:        C += A · B
 *       per k: 2 loads of B, 6 broadcasts of A, 12 fma
 *
 * Limit: the fma units. On two of them a step of k takes 6 cycles, with 8 loads beside the fma. A
 * strip of B (k_block x 64 bytes = 20 KiB) stays in the L1 cache while the panels of A stream
 * past it, 4 bytes per cycle. */
#include "ops/gemm/cpu/gemm_kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>

enum { ROWS = 6 };

NBL_TARGET_AVX2 __attribute__((always_inline)) static inline void
micro(int rows, int64_t k, const float *a, const float *b, const nbl__gemm_block *block, float *tile)
{
    int64_t stride = block->stride, line = block->b_line;
    __m256 left[ROWS], right[ROWS];
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++) {
        left[r] = right[r] = _mm256_setzero_ps();
        _mm_prefetch((const char *)(tile + r * stride), _MM_HINT_T0);
    }
#pragma GCC unroll 4
    for (int64_t i = 0; i < k; i++, a += rows, b += line) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            __m256 x = _mm256_broadcast_ss(a + r);
            left[r] = _mm256_fmadd_ps(x, b0, left[r]);
            right[r] = _mm256_fmadd_ps(x, b1, right[r]);
        }
    }
    __m256 alpha = _mm256_set1_ps(block->alpha);
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++, tile += stride) {
        __m256 v0 = _mm256_mul_ps(alpha, left[r]), v1 = _mm256_mul_ps(alpha, right[r]);
        if (block->add) {
            v0 = _mm256_add_ps(_mm256_loadu_ps(tile), v0);
            v1 = _mm256_add_ps(_mm256_loadu_ps(tile + 8), v1);
        }
        _mm256_storeu_ps(tile, v0);
        _mm256_storeu_ps(tile + 8, v1);
    }
}

NBL_TARGET_AVX2 static void micro_of(int rows, const float *a, const float *b, const nbl__gemm_block *block,
                                     float *tile)
{
    switch (rows) {
    case 1: micro(1, block->k, a, b, block, tile); break;
    case 2: micro(2, block->k, a, b, block, tile); break;
    case 3: micro(3, block->k, a, b, block, tile); break;
    case 4: micro(4, block->k, a, b, block, tile); break;
    case 5: micro(5, block->k, a, b, block, tile); break;
    default: micro(6, block->k, a, b, block, tile); break;
    }
}

static void run(const nbl__gemm_block *block)
{
    int64_t first = nbl__panel_start(block->rows, block->panels, block->panel_begin);
    for (int64_t s = 0; s < block->strips; s++)
        for (int64_t p = block->panel_begin, row = first, end; p < block->panel_end; p++, row = end) {
            end = nbl__panel_start(block->rows, block->panels, p + 1);
            micro_of((int)(end - row), (const float *)block->a + row * block->k,
                     (const float *)block->b + s * block->b_strip, block,
                     block->tile + (row - first) * block->stride + s * NBL_STRIP);
        }
}

const nbl__gemm_kernel nbl__gemm_f32_6x16_avx2 = {
    "gemm_f32_6x16_avx2", NBL_PANEL_F32, ROWS, 1, 320, false, run, NBL_ISA_AVX2, NULL};

#endif
