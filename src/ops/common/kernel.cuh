/* kernel.cuh - shared by all .cu files: C headers, conversions, warp sums, launch helpers. Internal
 * to the CUDA kernels.
 *
 * The build has -fmad=false: a product and a sum are two roundings, unless the code says fmaf. */
#ifndef NBL_KERNEL_CUH
#define NBL_KERNEL_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

extern "C" {
#include "ops/gemm/cuda/cublaslt.h"
#include "device/cuda/cuda.h"
}

namespace nbl_cuda
{

constexpr unsigned WARP = 0xffffffffu; /* all lanes, for shuffles and votes */

/* Conversions from and to f32. From f32 they round to nearest even. */
__device__ inline float to_f32(float x)
{
    return x;
}
__device__ inline float to_f32(__half x)
{
    return __half2float(x);
}
__device__ inline float to_f32(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}
template <typename T> __device__ inline T from_f32(float x);
template <> __device__ inline float from_f32<float>(float x)
{
    return x;
}
template <> __device__ inline __half from_f32<__half>(float x)
{
    return __float2half_rn(x);
}
template <> __device__ inline __nv_bfloat16 from_f32<__nv_bfloat16>(float x)
{
    return __float2bfloat16_rn(x);
}

/* Loads or stores element i of an array whose dtype is an argument of the launch. All threads take
 * the same branch. */
__device__ inline float load_one(const void *from, nbl_dtype dtype, int64_t i)
{
    if (dtype == NBL_DTYPE_F32) return static_cast<const float *>(from)[i];
    if (dtype == NBL_DTYPE_F16) return to_f32(static_cast<const __half *>(from)[i]);
    return to_f32(static_cast<const __nv_bfloat16 *>(from)[i]);
}
__device__ inline void store_one(void *to, nbl_dtype dtype, int64_t i, float value)
{
    if (dtype == NBL_DTYPE_F32) static_cast<float *>(to)[i] = value;
    else if (dtype == NBL_DTYPE_F16) static_cast<__half *>(to)[i] = from_f32<__half>(value);
    else static_cast<__nv_bfloat16 *>(to)[i] = from_f32<__nv_bfloat16>(value);
}

/* 16 bytes of elements: one load or store instruction. */
template <typename T> struct alignas(16) pack {
    enum { COUNT = 16 / sizeof(T) };
    T at[COUNT];
};

/* Over the 32 lanes, in a fixed order; every lane gets the result. All lanes must call it. */
__device__ inline float warp_sum(float x)
{
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(WARP, x, i);
    return x;
}
__device__ inline float warp_max(float x)
{
    for (int i = 16; i > 0; i /= 2) x = fmaxf(x, __shfl_xor_sync(WARP, x, i));
    return x;
}

/* Stores the first fault of the stream in host memory. Later faults are dropped. */
__device__ inline void report_fault(nbl__cuda_fault *fault, int kind, int64_t index, int64_t value)
{
    if (atomicCAS_system(&fault->kind, 0, kind) != 0) return;
    fault->index = index;
    fault->value = value;
    __threadfence_system();
}

/* True if the address is a multiple of `to` bytes. NULL is. */
static inline bool is_aligned(const void *p, size_t to)
{
    return reinterpret_cast<uintptr_t>(p) % to == 0;
}
static inline cudaStream_t stream_of(const nbl__call *call)
{
    return static_cast<cudaStream_t>(nbl__call_cuda(call)->stream);
}
/* The status of the launches since the last call. It does not wait: errors of running kernels show
 * up later. */
static inline nbl_status launched(const nbl__call *call)
{
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return NBL_OK;
    return nbl__fail(call->ctx, NBL_ERROR_INTERNAL, "%s: %s", call->op, cudaGetErrorString(error));
}

/* Runs `body` with `type` as an alias of the dtype's C type:
 *     NBL_BY_DTYPE(a->dtype, T, launch<T>(...));                                                            */
#define NBL_BY_DTYPE(dtype_, type, body)                                                                     \
    do {                                                                                                     \
        if ((dtype_) == NBL_DTYPE_F32) {                                                                     \
            using type = float;                                                                              \
            body;                                                                                            \
        } else if ((dtype_) == NBL_DTYPE_F16) {                                                              \
            using type = __half;                                                                             \
            body;                                                                                            \
        } else {                                                                                             \
            using type = __nv_bfloat16;                                                                      \
            body;                                                                                            \
        }                                                                                                    \
    } while (0)

} // namespace nbl_cuda
#endif
