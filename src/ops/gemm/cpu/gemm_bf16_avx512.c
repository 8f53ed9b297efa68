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

#define TARGET NBL_TARGET_AVX512BF16
#define element uint32_t
#define operand __m512bh
#define STEPS(block) ((block)->k / 2)
#define LINE(block) NBL_STRIP
#define NEXT(block) (STEPS(block) * NBL_STRIP)
#define load(b) ((__m512bh)_mm512_load_si512(b))
#define broadcast(a) ((__m512bh)_mm512_set1_epi32((int)(a)))
#define multiply(sum, x, b) _mm512_dpbf16_ps(sum, x, b)
#include "ops/gemm/cpu/gemm_14x32_avx512.inc"

/* vdpbf16ps does twice the products of an f32 fma. AMD runs it at the fma's rate, Intel once in
 * two cycles. */
static bool suits(nbl_dtype compute, int64_t m)
{
    (void)m;
    return compute == NBL_DTYPE_BF16 && __builtin_cpu_is("amd");
}

const nbl__gemm_kernel nbl__gemm_bf16_14x32_avx512bf16 = {
    "gemm_bf16_14x32_avx512bf16", NBL_PANEL_PAIRS, ROWS, 2, 512, false, run, NBL_ISA_AVX512BF16, suits};

#endif
