/* mma.cuh - a warp's product of bf16 tiles in registers, and the loads that feed it. Internal to the CUDA kernels.
 *
 * mma.m16n8k16: lane = 4g + q. A lane of d has rows g (d[0], d[1]) and g + 8 (d[2], d[3]), columns 2q and 2q + 1. Of a it has
 * rows g (a[0], a[2]) and g + 8 (a[1], a[3]), k = 2q, 2q + 1 (a[0], a[1]) and 8 more (a[2], a[3]). Of b it has column g and the
 * same k. */
#ifndef NBL_MMA_CUH
#define NBL_MMA_CUH

#include <cuda_bf16.h>
#include <stdint.h>

namespace nbl_cuda
{

/* d[16, 8] += a[16, 16]·b[16, 8], f32 sums. */
__device__ inline void mma_m16n8k16_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                         uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ inline void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma_m16n8k16_bf16(d, a[0], a[1], a[2], a[3], b0, b1);
}

/* Eight values from memory that is aligned to 16 bytes, or only to 2. */
__device__ inline uint4 load_eight(const __nv_bfloat16 *from, bool aligned)
{
    if (aligned) return *reinterpret_cast<const uint4 *>(from);
    const unsigned short *halves = reinterpret_cast<const unsigned short *>(from);
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) words[i] = halves[2 * i] | static_cast<uint32_t>(halves[2 * i + 1]) << 16;
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* 0xffff in the halves of a word whose bits are set: the low half has the sign of byte 0 of `spread`, the high half that
 * of byte 1. __byte_perm has no signs. */
__device__ inline uint32_t halves_mask(uint32_t spread)
{
    uint32_t mask;
    asm("prmt.b32 %0, %1, %1, 0x9988;" : "=r"(mask) : "r"(spread));
    return mask;
}

} // namespace nbl_cuda
#endif
