/* gemm_sm90_mask.cuh - masked terms of gemm_sm90: sums += factor · mask ∘ (a·b), at the end of a tile. Internal to
 * gemm_sm90_kernel.cuh.
 *
 * A mask does not commute with the sum over k, so a masked term has sums of its own. They are those of 16 values of k
 * and 32 columns at a time, by mma.m16n8k16 from the stage that TMA filled: k is an adapter's rank, so the arithmetic
 * is little. The masks are bits, [m, columns / 32] words, which a thread loads before it waits for the stage. */
#ifndef NBL_GEMM_SM90_MASK_CUH
#define NBL_GEMM_SM90_MASK_CUH

#include <cuda_bf16.h>

#include "ops/common/mma.cuh"
#include "ops/common/ptx_sm90.cuh"

namespace nbl_sm90
{

/* The bits of a thread's two rows: 64 columns to a pair of words. */
template <int BN> struct mask_words {
    uint2 of[2][BN / 64];
};

/* `row`: the first of the warp's 16 rows. */
template <int BN>
__device__ inline void load_mask(const uint32_t *mask, int64_t ld, int64_t row, int64_t column, int64_t m,
                                 int64_t n, mask_words<BN> &to)
{
    int64_t y = row + threadIdx.x % 32 / 4;
#pragma unroll
    for (int below = 0; below < 2; below++)
#pragma unroll
        for (int i = 0; i < BN / 64; i++) {
            bool inside = y + 8 * below < m && column + 64 * i < n;
            to.of[below][i] = inside ? *reinterpret_cast<const uint2 *>(mask + (y + 8 * below) * ld +
                                                                        column / 32 + 2 * i)
                                     : make_uint2(0, 0);
        }
}

/* Adds one stage: a[128, 64] K-major, b[64, BN] by rows (gemm_sm90_mma.cuh has both layouts), `pieces` times 16 values of k.
 * `line`: the first of the warp's 16 rows of the tile, as lines of a. */
template <int BN>
__device__ inline void add_masked(uint32_t a_tile, uint32_t b_tile, int line, int pieces, float factor,
                                  const mask_words<BN> &words, float (&sums)[BN / 2])
{
    int lane = threadIdx.x % 32, q = lane % 4, low = lane % 8 + lane / 8 % 2 * 8, high = lane / 16;
    uint32_t a_line = a_tile + (line + low) * 128;
#pragma unroll 1
    for (int k = 0; k < pieces; k++) {
        uint32_t a[4], from = a_line + ((2 * k + high) ^ (low % 8)) * 16;
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
                     : "r"(from)
                     : "memory");
#pragma unroll
        for (int c = 0; c < BN / 32; c++) {
            float d[4][4] = {};
#pragma unroll
            for (int t = 0; t < 2; t++) {
                int n = 32 * c + 16 * t; /* plus 8 · high */
                uint32_t b[4], at = b_tile + n / 64 * 8192 + (16 * k + low) * 128 +
                                    ((n % 64 / 8 + high) ^ (low % 8)) * 16;
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                             : "r"(at)
                             : "memory");
                nbl_cuda::mma_m16n8k16_bf16(d[2 * t], a, b[0], b[1]);
                nbl_cuda::mma_m16n8k16_bf16(d[2 * t + 1], a, b[2], b[3]);
            }
#pragma unroll
            for (int below = 0; below < 2; below++) {
                uint2 both = words.of[below][c / 2];
                uint32_t word = (c % 2 ? both.y : both.x) >> 2 * q;
#pragma unroll
                for (int j = 0; j < 4; j++)
#pragma unroll
                    for (int i = 0; i < 2; i++) {
                        float &sum = sums[4 * (4 * c + j) + 2 * below + i], more = d[j][2 * below + i];
                        if (word & 1u << (8 * j + i)) sum = fmaf(more, factor, sum);
                    }
            }
        }
    }
}

} // namespace nbl_sm90
#endif
