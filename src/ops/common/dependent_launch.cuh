/* dependent_launch.cuh - programmatic dependent launch: a kernel starts before its predecessor in the stream has ended.
 * Internal to the CUDA kernels.
 *
 * Generating a token and the adapters of a layer are chains of short kernels. Without dependent launch each kernel waits
 * for the last block of its predecessor, is started, and finds memory idle.
 *
 *     predecessor    ── work ── allow_dependent_launch() ── rest ── end
 *     dependent                            └─ start ── prologue ── wait_for_previous_kernel() ── work
 *
 * A kernel whose first parameter has the type `dependent` is launched with launch_dependent. It may start as soon as
 * every block of its predecessor has called allow_dependent_launch() or has ended. Rules:
 *
 * - Before wait_for_previous_kernel() a kernel reads only what no kernel of the stream writes: weights, tables. It
 *   writes its own shared memory only. Others may write weights in a borrowed stream: a kernel that reads any before the
 *   wait is launched with nbl__cuda_overlaps (device/cuda/cuda.h).
 * - After that call everything earlier in the stream is complete and visible. Loads of it must not use the read-only
 *   path (no __ldg, no const __restrict__): that cache may hold old values.
 * - Every thread of every block calls wait_for_previous_kernel(), also in blocks without work. A kernel that ends
 *   without waiting would let its successor start before its predecessor has ended.
 *
 * launch_dependent accepts only kernels with the parameter, so a kernel that does not wait cannot be launched this way.
 * (gemm_sm90.h waits, too; its host code makes the launch itself.) */
#ifndef NBL_DEPENDENT_LAUNCH_CUH
#define NBL_DEPENDENT_LAUNCH_CUH

#include <cuda_runtime_api.h>
#include <stdint.h>

#include "ops/common/ptx_sm90.cuh"

namespace nbl_cuda
{

/* Marks kernels that wait; it carries nothing. */
struct dependent {
    int unused;
};

__device__ inline void wait_for_previous_kernel()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void allow_dependent_launch()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Loads 16 bytes that an earlier kernel has written. */
__device__ inline uint4 read_written(const void *from)
{
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

/* Errors are left to cudaGetLastError, as with <<<>>>. `cluster`: number of blocks of grid.x in a cluster. Before
 * compute capability 9.0, and unless it `overlaps`, this is an ordinary launch. */
template <typename... PARAMETERS, typename... ARGUMENTS>
static inline void launch_overlapping(bool overlaps, void (*kernel)(dependent, PARAMETERS...), dim3 grid,
                                      unsigned threads, size_t shared, unsigned cluster, cudaStream_t stream,
                                      ARGUMENTS... arguments)
{
    int device = 0, major = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared;
    config.stream = stream;
    config.attrs = attributes;
    if (major >= 9 && overlaps) {
        attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[0].val.programmaticStreamSerializationAllowed = 1;
        config.numAttrs = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute *it = &attributes[config.numAttrs++];
        it->id = cudaLaunchAttributeClusterDimension;
        it->val.clusterDim.x = cluster;
        it->val.clusterDim.y = it->val.clusterDim.z = 1;
    }
    dependent first = {0};
    cudaLaunchKernelEx(&config, kernel, first, static_cast<PARAMETERS>(arguments)...);
}
template <typename... PARAMETERS, typename... ARGUMENTS>
static inline void launch_dependent(void (*kernel)(dependent, PARAMETERS...), dim3 grid, unsigned threads,
                                    size_t shared, unsigned cluster, cudaStream_t stream,
                                    ARGUMENTS... arguments)
{
    launch_overlapping(true, kernel, grid, threads, shared, cluster, stream, arguments...);
}

/* ---- clusters: blocks that can access each other's shared memory ---- */

__device__ inline uint32_t cluster_rank()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    return nbl_sm90::cluster_rank();
#else
    return 0;
#endif
}
/* A barrier in two halves, for the start of a kernel. After await_cluster all blocks of the cluster run, and their
 * mbarriers are initialised. Other memory is not ordered: that would cost as much as a fence for the whole device, and
 * would flush the L1 cache. */
__device__ inline void arrive_at_cluster()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;\n\tbarrier.cluster.arrive.relaxed.aligned;" ::
                     : "memory");
#endif
}
__device__ inline void await_cluster()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#endif
}

/* ---- barriers in shared memory. A phase ends when `count` threads have arrived and all expected bytes are there. Threads
 * that waited see what the arriving threads wrote before. ---- */

__device__ inline uint32_t shared_at(const void *p)
{
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void make_barrier(uint64_t *barrier, int count)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    nbl_sm90::mbarrier_init(shared_at(barrier), static_cast<uint32_t>(count));
#endif
}
/* `bytes`: expected from other blocks in this phase. */
__device__ inline void arrive_at(uint64_t *barrier, int bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (bytes == 0) nbl_sm90::mbarrier_arrive(shared_at(barrier));
    else nbl_sm90::mbarrier_expect_tx(shared_at(barrier), static_cast<uint32_t>(bytes));
#endif
}
/* Waits until the phase is over. Phases have parity 0, 1, 0, … */
__device__ inline void wait_at(uint64_t *barrier, uint32_t parity)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    nbl_sm90::mbarrier_wait(shared_at(barrier), parity);
#endif
}
/* Writes to address `to` in the shared memory of block `rank`, and counts the bytes at that block's barrier. */
__device__ inline void send_to_rank(float *to, uint64_t *barrier, uint32_t rank, float value)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    uint32_t there, bell;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_at(to)), "r"(rank));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(bell) : "r"(shared_at(barrier)), "r"(rank));
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(there),
        "r"(__float_as_uint(value)), "r"(bell)
        : "memory");
#else
    (void)to, (void)barrier, (void)rank, (void)value;
#endif
}

} // namespace nbl_cuda
#endif
