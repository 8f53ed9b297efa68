/* gemm_f32_scalar.c - the portable kernel, 4 rows by 16 columns, and the choice of a kernel.
 *
 * The compiler vectorizes the loop over the 16 columns as far as the target allows. */
#include "ops/gemm/cpu/gemm_kernels.h"

static void micro_scalar(int rows, int64_t k, const float *a, const float *b, const nbl__gemm_block *block,
                         float *tile)
{
    float sums[4][NBL_STRIP] = {{0}};
    for (int64_t i = 0; i < k; i++, a += rows, b += block->b_line)
        for (int r = 0; r < rows; r++)
            for (int j = 0; j < NBL_STRIP; j++) sums[r][j] += a[r] * b[j];
    for (int r = 0; r < rows; r++, tile += block->stride)
        for (int j = 0; j < NBL_STRIP; j++) tile[j] = (block->add ? tile[j] : 0) + block->alpha * sums[r][j];
}

static void run(const nbl__gemm_block *block)
{
    int64_t first = nbl__panel_start(block->rows, block->panels, block->panel_begin);
    assert(block->panel_begin < block->panel_end && block->panel_end <= block->panels);
    for (int64_t s = 0; s < block->strips; s++)
        for (int64_t p = block->panel_begin; p < block->panel_end; p++) {
            int64_t row = nbl__panel_start(block->rows, block->panels, p);
            int64_t end = nbl__panel_start(block->rows, block->panels, p + 1);
            micro_scalar((int)(end - row), block->k, (const float *)block->a + row * block->k,
                         (const float *)block->b + s * block->b_strip, block,
                         block->tile + (row - first) * block->stride + s * NBL_STRIP);
        }
}

const nbl__gemm_kernel nbl__gemm_f32_4x16_scalar = {
    "gemm_f32_4x16_scalar", NBL_PANEL_F32, 4, 1, 320, false, run, NBL_ISA_SCALAR, NULL};

const nbl__gemm_kernel *nbl__gemm_kernel_for(nbl_isa isa, nbl_dtype compute, int64_t m)
{
    static const nbl__gemm_kernel *const kernels[] = {
#define ADDRESS(name) &nbl__##name,
        NBL_GEMM_KERNELS(ADDRESS)
#undef ADDRESS
    };
    const nbl__gemm_kernel *const *it = kernels;
    while ((*it)->needs > isa || ((*it)->suits && !(*it)->suits(compute, m))) it++;
    return *it; /* the last one takes everything */
}
