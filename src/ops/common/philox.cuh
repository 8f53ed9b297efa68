/* philox.cuh - Philox 4x32-10 on the device, as masks of dropout use it. The CPU's is in base/philox.h.
 *
 * A mask belongs to a matrix. Element i of the matrix, counted row by row, is kept if word i % 4 of block i / 4 is at
 * least `threshold`. A block is some 60 instructions for four elements. Internal to the CUDA kernels. */
#ifndef NBL_PHILOX_CUH
#define NBL_PHILOX_CUH

#include <math.h>
#include <stdint.h>

extern "C" {
#include "ops/linear/linear.h"
}

namespace nbl_cuda
{

/* The kernels read what is added to a seed: a captured graph is replayed with other masks. */
__device__ inline uint64_t value_of(nbl__seed seed)
{
    return seed.constant + (seed.added ? *seed.added : 0);
}

/* A word w is kept if (w >> 8)·2^-24 >= dropout. Both sides times 2^24 are exact, so that is w >= threshold. */
static inline uint32_t dropout_threshold(float dropout)
{
    return static_cast<uint32_t>(ceilf(ldexpf(dropout, 24))) << 8;
}

/* Bits 0 to 3 of kept[i]: are elements 4·quad[i] to 4·quad[i] + 3 kept? The blocks go through the rounds together, so
 * that they share the keys of a round. */
template <int COUNT>
__device__ inline void keeps_four(uint64_t seed, uint32_t threshold, const int64_t (&quad)[COUNT],
                                  uint32_t (&kept)[COUNT])
{
    uint32_t c[COUNT][4], k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        c[i][0] = static_cast<uint32_t>(quad[i]), c[i][1] = static_cast<uint32_t>(quad[i] >> 32);
        c[i][2] = c[i][3] = 0;
    }
#pragma unroll
    for (int round = 0; round < 10; round++) {
#pragma unroll
        for (int i = 0; i < COUNT; i++) {
            uint64_t p0 = static_cast<uint64_t>(0xD2511F53u) * c[i][0],
                     p2 = static_cast<uint64_t>(0xCD9E8D57u) * c[i][2];
            c[i][0] = static_cast<uint32_t>(p2 >> 32) ^ c[i][1] ^ k0;
            c[i][1] = static_cast<uint32_t>(p2);
            c[i][2] = static_cast<uint32_t>(p0 >> 32) ^ c[i][3] ^ k1;
            c[i][3] = static_cast<uint32_t>(p0);
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        kept[i] = 0;
#pragma unroll
        for (int w = 0; w < 4; w++) kept[i] |= (c[i][w] >= threshold ? 1u : 0u) << w;
    }
}
__device__ inline uint32_t keeps_four(uint64_t seed, uint32_t threshold, int64_t quad)
{
    const int64_t quads[1] = {quad};
    uint32_t kept[1];
    keeps_four<1>(seed, threshold, quads, kept);
    return kept[0];
}

} // namespace nbl_cuda
#endif
