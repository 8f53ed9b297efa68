/* gemm_reference.cuh - random matrices of cuda_gemm_sm90.cu, and the sums in f64 that its results are compared with.
 * Part of that program: all is in an unnamed namespace. */
#ifndef NBL_GEMM_REFERENCE_CUH
#define NBL_GEMM_REFERENCE_CUH

#include "examine.cuh"

#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/gemm/cuda/gemm_sm90.h"
}

namespace
{

/* ---- values ---- */

__device__ inline float value_of(uint64_t i, uint32_t seed)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(seed) * 0xd1b54a32d192ed03u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<float>(static_cast<int32_t>((z ^ z >> 31) >> 16)) * 0x1p-31f;
}
template <typename T> __global__ void fill(T *to, int64_t n, uint32_t seed)
{
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < n; i += gridDim.x * 256ll)
        to[i] = nbl_cuda::from_f32<T>(value_of(static_cast<uint64_t>(i), seed));
}

int64_t bytes_of(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 ? 4 : 2;
}

void *random_matrix(nbl_dtype dtype, int64_t count, uint32_t seed)
{
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, static_cast<size_t>(count * bytes_of(dtype))));
    NBL_BY_DTYPE(dtype, T, (fill<<<1024, 256>>>(static_cast<T *>(memory), count, seed)));
    CUDA(cudaDeviceSynchronize());
    return memory;
}

/* ---- the reference ---- */

struct one_source {
    const void *a, *b;
    int64_t k, lda, ldb;
};

template <typename T>
__global__ void add_product(double *sums, int64_t m, int64_t n, one_source s, bool transposed)
{
    const T *a = static_cast<const T *>(s.a), *b = static_cast<const T *>(s.b);
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < m * n; i += gridDim.x * 256ll) {
        int64_t y = i / n, x = i % n;
        double sum = 0;
        for (int64_t k = 0; k < s.k; k++)
            sum += static_cast<double>(nbl_cuda::to_f32(a[y * s.lda + k])) *
                   static_cast<double>(nbl_cuda::to_f32(transposed ? b[x * s.ldb + k] : b[k * s.ldb + x]));
        sums[i] += sum;
    }
}
template <typename T>
__global__ void add_old(double *sums, int64_t m, int64_t n, const T *c, int64_t ldc, double beta)
{
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < m * n; i += gridDim.x * 256ll)
        sums[i] += beta * static_cast<double>(nbl_cuda::to_f32(c[i / n * ldc + i % n]));
}
__global__ void gate_with(double *gate, const double *up, int64_t count, int act)
{
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll) {
        double x = gate[i];
        double y = act == NBL_ACT_SILU ? x / (1 + exp(-x))
                   : act == NBL_ACT_GELU
                       ? x * 0.5 * (1 + erf(x * 0.70710678118654752))
                       : x * 0.5 * (1 + tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
        gate[i] = y * up[i];
    }
}
/* One block: out = Σ (c - sums)², Σ sums². */
template <typename T>
__global__ void compare(const double *sums, int64_t m, int64_t n, const T *c, int64_t ldc, double *out)
{
    __shared__ double parts[2][1024];
    double wrong = 0, all = 0;
    for (int64_t i = threadIdx.x; i < m * n; i += 1024) {
        double difference = static_cast<double>(nbl_cuda::to_f32(c[i / n * ldc + i % n])) - sums[i];
        wrong += difference * difference;
        all += sums[i] * sums[i];
    }
    parts[0][threadIdx.x] = wrong;
    parts[1][threadIdx.x] = all;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < 1024; i++) wrong += parts[0][i], all += parts[1][i];
    out[0] = wrong;
    out[1] = all;
}

double error_of(nbl_dtype dtype, const double *sums, int64_t m, int64_t n, const void *c, int64_t ldc)
{
    double *out, both[2];
    CUDA(cudaMalloc(&out, 16));
    NBL_BY_DTYPE(dtype, T, (compare<<<1, 1024>>>(sums, m, n, static_cast<const T *>(c), ldc, out)));
    CUDA(cudaMemcpy(both, out, 16, cudaMemcpyDeviceToHost));
    CUDA(cudaFree(out));
    return sqrt(both[0] / both[1]);
}

} // namespace

#endif
