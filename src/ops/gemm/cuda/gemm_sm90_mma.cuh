/* gemm_sm90_mma.cuh - Hopper's instructions for tiles: barriers in shared memory, the copy engine, and the products of a
 * warpgroup, one function each. Internal to sm90_sm90.cu. */
#ifndef NBL_CUDA_GEMM_SM90_MMA_CUH
#define NBL_CUDA_GEMM_SM90_MMA_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace nbl_sm90
{

/* Addresses in shared memory are 32 bits wide; those of a cluster's other blocks come from `of_block`. */
__device__ inline uint32_t of_block(uint32_t address, uint32_t rank)
{
    uint32_t remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
__device__ inline uint32_t rank_in_cluster()
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ inline void cluster_wait()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* ---- barriers ---- */

__device__ inline void barrier_make(uint32_t barrier, uint32_t arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barriers_made()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ inline void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/* Of any block of the cluster. Says that reads of the tensor cores are over; it orders no writes (as `release.cluster` would,
 * with a wait for the whole device's memory). */
__device__ inline void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity)
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

__device__ inline void load_box(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(x), "r"(y), "r"(barrier)
                 : "memory");
}
/* To the same place, and counted at the same barrier, in every block of `blocks`. */
__device__ inline void load_box_to(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t barrier,
                                   uint16_t blocks)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
        " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(barrier), "h"(blocks)
        : "memory");
}
__device__ inline void store_box(const CUtensorMap *map, int x, int y, uint32_t from)
{
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%1, %2}], [%3];\n"
                 "cp.async.bulk.commit_group;" ::"l"(map),
                 "r"(x), "r"(y), "r"(from)
                 : "memory");
}
/* Until all but the last COUNT stores of this thread have read their memory. */
template <int COUNT> __device__ inline void stores_read()
{
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(COUNT) : "memory");
}
/* Until all stores of this thread are done. */
__device__ inline void stores_done()
{
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
/* Ordinary writes to shared memory before it are seen by the copy engine after it. */
__device__ inline void written_for_copies()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- products ---- */

/* Registers per thread, of all threads of a warpgroup: one gives some away, others take them. */
template <int COUNT> __device__ inline void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> __device__ inline void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
}
__device__ inline void products_begin()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int COUNT> __device__ inline void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(COUNT) : "memory");
}

/* How a tile lies in shared memory, in lines of 128 bytes whose 16-byte pieces are permuted by the line's number
 * modulo 8, as the copy engine writes them:
 *     rows of 64 values of k, one line each: K-major;
 *     straight: rows of 64 values of n, one line each, 64 of k below each other, then the next 64 of n. */
template <bool STRAIGHT> __device__ inline uint64_t descriptor_of(uint32_t address)
{
    constexpr uint64_t swizzled = 1ull << 62, eight_lines = 64ull << 32,
                       next_columns = (STRAIGHT ? 8192ull / 16 : 1ull) << 16;
    return swizzled | eight_lines | next_columns | (address & 0x3ffff) >> 4;
}

/* d[64, N] (+)= a[64, 16]·b[16, N] of a warpgroup; `add` 0: d is not read. */
#define D8(i)                                                                                                \
    "+f"(d[i]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]),    \
        "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define D32(i) D8(i), D8((i) + 8), D8((i) + 16), D8((i) + 24)
#define NBL_MMA_128(TYPE)                                                                                    \
    asm volatile("{\n"                                                                                       \
                 ".reg .pred p;\n"                                                                           \
                 "setp.ne.b32 p, %66, 0;\n"                                                                  \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." TYPE "." TYPE " {"                           \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                    \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "          \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "          \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "         \
                 "%64, %65, p, 1, 1, 0, %67;\n"                                                              \
                 "}"                                                                                         \
                 : D32(0), D32(32)                                                                           \
                 : "l"(a), "l"(b), "r"(add), "n"(STRAIGHT ? 1 : 0))
#define NBL_MMA_256(TYPE)                                                                                    \
    asm volatile(                                                                                            \
        "{\n"                                                                                                \
        ".reg .pred p;\n"                                                                                    \
        "setp.ne.b32 p, %130, 0;\n"                                                                          \
        "wgmma.mma_async.sync.aligned.m64n256k16.f32." TYPE "." TYPE " {"                                    \
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                             \
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                   \
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                   \
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "                   \
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "                   \
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "                   \
        "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "       \
        "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "  \
        "%128, %129, p, 1, 1, 0, %131;\n"                                                                    \
        "}"                                                                                                  \
        : D32(0), D32(32), D32(64), D32(96)                                                                  \
        : "l"(a), "l"(b), "r"(add), "n"(STRAIGHT ? 1 : 0))

template <typename T> constexpr bool IS_HALF = false;
template <> constexpr bool IS_HALF<__half> = true;

template <typename T, int N, bool STRAIGHT>
__device__ inline void multiply_add(float (&d)[N / 2], uint64_t a, uint64_t b, int add)
{
    static_assert(N == 128 || N == 256, "widths that are written out");
    if constexpr (N == 128 && IS_HALF<T>) NBL_MMA_128("f16");
    else if constexpr (N == 128) NBL_MMA_128("bf16");
    else if constexpr (IS_HALF<T>) NBL_MMA_256("f16");
    else NBL_MMA_256("bf16");
}
#undef NBL_MMA_128
#undef NBL_MMA_256
#undef D32

/* The compiler may not move reads of the sums to before this. */
template <int N> __device__ inline void sums_are_there(float (&d)[N])
{
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
#undef D8

} // namespace nbl_sm90
#endif
