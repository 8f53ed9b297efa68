/* gemm_sm90_mma.cuh - wgmma of 64 rows by 128 or 256 columns by k = 16, both operands in shared memory.
 * Internal to the CUDA kernels for compute capability 9.0. */
#ifndef NBL_GEMM_SM90_MMA_CUH
#define NBL_GEMM_SM90_MMA_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "ops/common/ptx_sm90.cuh"

namespace nbl_sm90
{

/* Layout of a tile in shared memory: lines of 128 bytes with the 128-byte swizzle, as TMA writes them.
 *     K-major:    a line is 64 values of k; one line per row
 *     MN_MAJOR:   a line is 64 values of n; 64 lines, one per value of k, then the next 64 values of n */
template <bool MN_MAJOR> __device__ inline uint64_t descriptor_of(uint32_t address)
{
    return wgmma_descriptor(address, MN_MAJOR ? 8192 : 16);
}

/* d[64, N] (+)= a[64, 16]·b[16, N] by a warpgroup. If `add` is 0, d is not read.
 *
 * The instruction is asynchronous. Call wgmma_fence before the first of a group, wgmma_commit after
 * the last, and wgmma_wait and wgmma_settle before d is read. `a` and `b` are descriptors. Both
 * stay in use until the wait. */
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
                 : "l"(a), "l"(b), "r"(add), "n"(MN_MAJOR ? 1 : 0))
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
        : "l"(a), "l"(b), "r"(add), "n"(MN_MAJOR ? 1 : 0))

template <typename T> constexpr bool IS_HALF = false;
template <> constexpr bool IS_HALF<__half> = true;

/* A thread of the warpgroup holds N / 2 of the 64 x N sums; gemm_sm90_kernel.cuh has their
 * layout. */
template <typename T, int N, bool MN_MAJOR>
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

#undef D8

} // namespace nbl_sm90
#endif
