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

#define TARGET NBL_TARGET_AVX512
#define element float
#define operand __m512
#define STEPS(block) ((block)->k)
#define LINE(block) ((block)->b_line)
#define NEXT(block) ((block)->b_strip)
#define load(b) _mm512_loadu_ps(b)
#define broadcast(a) _mm512_set1_ps(a)
#define multiply(sum, x, b) _mm512_fmadd_ps(x, b, sum)
#include "ops/gemm/cpu/gemm_14x32_avx512.inc"

const nbl__gemm_kernel nbl__gemm_f32_14x32_avx512 = {
    "gemm_f32_14x32_avx512", NBL_PANEL_F32, ROWS, 1, 320, false, run, NBL_ISA_AVX512, NULL};

#endif
