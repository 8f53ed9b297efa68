/* ptx_sm90.cuh - one function for each PTX instruction of compute capability 9.0 that has no CUDA C++ intrinsic.
 *
 *     cluster    blocks that share their shared memory
 *     mbarrier   a barrier in shared memory. A phase ends when all threads have arrived and all expected bytes have
 *                been written
 *     tma        tensor memory accelerator: copies boxes of a matrix between global and shared memory
 *     wgmma      matrix products of a warpgroup (4 warps), asynchronous, operands in shared memory
 *
 * Addresses in shared memory are 32 bits wide. The functions need __CUDA_ARCH__ >= 900. A kernel that is compiled for
 * several devices checks that first. The wgmma shapes are in gemm_sm90_mma.cuh (128 and 256 columns) and in
 * attention_wgmma.cuh (64 and 128 columns, left operand also from registers). Internal to the CUDA kernels. */
#ifndef NBL_PTX_SM90_CUH
#define NBL_PTX_SM90_CUH

#include <cuda.h>
#include <stdint.h>

namespace nbl_sm90
{

/* ---- clusters ---- */

/* Maps an address in this block's shared memory to the same address in block `rank` of the cluster. */
__device__ inline uint32_t cluster_map_address(uint32_t address, uint32_t rank)
{
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
__device__ inline uint32_t cluster_rank()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/* All threads of all blocks of the cluster. Writes before it are visible after it, also to other
 * blocks. */
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* ---- barriers ---- */

/* `arrivals`: per phase. Follow the last init with mbarrier_init_fence, then a barrier of the
 * threads that use it. */
__device__ inline void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/* Arrives, and adds bytes that the phase waits for. */
__device__ inline void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ inline void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives at a barrier of any block of the cluster. It says that the tensor cores have read a stage. It orders no
 * writes: `release.cluster` would, and would wait for the memory of the whole device. */
__device__ inline void mbarrier_arrive_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives when all earlier cp.async copies of this thread are done. It is one of the expected
 * arrivals (noinc). */
__device__ inline void mbarrier_arrive_after_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/* Waits until the phase of this parity is over. Phases have parity 0, 1, 0, ... */
__device__ inline void mbarrier_wait(uint32_t barrier, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(done)
                     : "r"(barrier), "r"(parity)
                     : "memory");
    } while (!done);
}
/* A barrier of one warpgroup. Barrier 0 is __syncthreads. */
__device__ inline void warpgroup_sync(int number)
{
    asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

/* The same; true if `it` is true in any thread. */
__device__ inline bool warpgroup_any(int number, bool it)
{
    uint32_t any;
    asm volatile("{\n"
                 ".reg .pred p, q;\n"
                 "setp.ne.u32 p, %1, 0;\n"
                 "bar.red.or.pred q, %2, 128, p;\n"
                 "selp.u32 %0, 1, 0, q;\n"
                 "}"
                 : "=r"(any)
                 : "r"(static_cast<uint32_t>(it)), "r"(number)
                 : "memory");
    return any != 0;
}

/* ---- tensor memory accelerator ---- */

/* Copies contiguous bytes, a multiple of 16. The barrier counts them. */
__device__ inline void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* Loads the box at (x, y) or (x, y, z) of a tensor map. x counts along rows. Elements outside are
 * zeros. The barrier counts the bytes of the whole box. One thread calls it. */
__device__ inline void tma_load(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}
__device__ inline void tma_load(uint32_t to, const CUtensorMap *map, int x, int y, int z, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
                 : "memory");
}
/* Writes to the same address in every block of the mask `blocks`. The barrier at the same address there counts the
 * bytes. */
__device__ inline void tma_load_multicast(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier,
                                   uint16_t blocks)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
        : "memory");
}
/* Stores a box. Elements outside of the matrix are not written. Call fence_proxy_async and a
 * barrier before it. */
__device__ inline void tma_store(const CUtensorMap *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map),
                 "r"(x), "r"(y), "r"(from)
                 : "memory");
}
/* Waits until all but the last COUNT stores of this thread have read shared memory. */
template <int COUNT> __device__ inline void tma_store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(COUNT) : "memory");
}
/* Waits until all stores of this thread are complete. */
__device__ inline void tma_store_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Makes ordinary writes to shared memory visible to later TMA operations. */
__device__ inline void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- products ---- */

/* Sets the registers per thread of a warpgroup: one warpgroup releases some (dec), the others take them (inc). */
template <int COUNT> __device__ inline void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ inline void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
/* wgmma_fence: before the first wgmma of a group, and after registers of its operands were written.
 * wgmma_commit: closes the group. wgmma_wait: until at most COUNT groups are under way. All threads
 * of the warpgroup call them. */
__device__ inline void wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int COUNT> __device__ inline void wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
}

/* Call after wgmma_wait. Keeps the compiler from reading or moving accumulators before that wait. */
template <int N> __device__ inline void wgmma_settle(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ inline void wgmma_settle(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) asm volatile("" : "+f"(d[n][e])::"memory");
}

/* The descriptor of an operand in shared memory with the 128-byte swizzle: in a line of 128 bytes, the 16-byte chunk c
 * is stored at c ^ (line % 8). Strides: `leading` bytes to the next panel of 64 columns (16: there is one panel), 1024
 * bytes to the next 8 lines. */
__device__ inline uint64_t wgmma_descriptor(uint32_t address, uint32_t leading)
{
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

} // namespace nbl_sm90
#endif
