/* ptx_sm90.cuh - the instructions of compute capability 9.0 that CUDA C++ has no names for, one function each.
 *
 *     cluster    blocks that share their shared memory
 *     mbarrier   a barrier in shared memory: a phase ends when all arrivals have come and all announced bytes have
 *     tma        the copy engine: boxes of a matrix between global and shared memory
 *     wgmma      matrix products of a warpgroup (4 warps), asynchronous, operands in shared memory
 *
 * Addresses in shared memory are 32 bits wide. Use the functions only where __CUDA_ARCH__ is 900 or more: a kernel for
 * several devices checks that first. The wgmma shapes themselves are in gemm_sm90_mma.cuh (128 and 256
 * columns) and in wgmma.cuh (64 and 128 columns, left operand from registers). Internal to the CUDA kernels. */
#ifndef NBL_CUDA_PTX_SM90_CUH
#define NBL_CUDA_PTX_SM90_CUH

#include <cuda.h>
#include <stdint.h>

namespace nbl_sm90
{

/* ---- clusters ---- */

/* The address in block `rank` of the cluster that `address` is in this block. */
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
__device__ inline void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* ---- barriers ---- */

__device__ inline void mbarrier_init(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void mbarrier_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void mbarrier_expect_tx(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
__device__ inline void mbarrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Of any block of the cluster. Says that reads of the tensor cores are over; it orders no writes (as `release.cluster` would,
 * with a wait for the whole device's memory). */
__device__ inline void mbarrier_arrive_cluster(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Arrives when all cp.async copies of this thread are done. */
__device__ inline void mbarrier_arrive_after_copies(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
/* Until the phase of this parity is over. Phases have parity 0, 1, 0, ... */
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
/* Of one warpgroup; number 0 is that of __syncthreads. */
__device__ inline void warpgroup_sync(int number)
{
    asm volatile("bar.sync %0, 128;" ::"r"(number) : "memory");
}

/* The same, and whether any of its threads says so. */
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

/* ---- the copy engine ---- */

/* `bytes` in a row, a multiple of 16, counted at the barrier. */
__device__ inline void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(barrier)
                 : "memory");
}

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
/* To the same address, and counted at the same barrier, in every block of `blocks`. */
__device__ inline void tma_load_multicast(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier,
                                   uint16_t blocks)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
        : "memory");
}
__device__ inline void tma_store(const CUtensorMap *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map),
                 "r"(x), "r"(y), "r"(from)
                 : "memory");
}
/* Until all but the last COUNT stores of this thread have read their memory. */
template <int COUNT> __device__ inline void tma_store_wait_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(COUNT) : "memory");
}
/* Until all stores of this thread are done. */
__device__ inline void tma_store_wait()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Ordinary writes to shared memory before it are seen by the copy engine after it. */
__device__ inline void fence_proxy_async()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- products ---- */

/* Registers per thread, of all threads of a warpgroup: one gives some away, others take them. */
template <int COUNT> __device__ inline void setmaxnreg_dec()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ inline void setmaxnreg_inc()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
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

/* Keeps the compiler from reading or moving accumulators before the wait that precedes this. */
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

/* The descriptor of an operand in shared memory with the 128-byte swizzle: lines of 128 bytes whose 16-byte chunk c lies
 * at c ^ (line % 8). `leading` bytes lead from one panel of 64 columns to the next (16: not used); 1024 bytes lead from
 * 8 lines to the next 8. */
__device__ inline uint64_t wgmma_descriptor(uint32_t address, uint32_t leading)
{
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(leading >> 4) << 16 |
           static_cast<uint64_t>(1024 >> 4) << 32 | static_cast<uint64_t>(1) << 62;
}

} // namespace nbl_sm90
#endif
