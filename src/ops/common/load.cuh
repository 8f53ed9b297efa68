/* load.cuh - vector loads and stores with conversion to and from f32, and sums over a block. The
 * dtype is a template parameter (load_run) or an argument of the launch (load_any). Internal to the
 * CUDA kernels. */
#ifndef NBL_LOAD_CUH
#define NBL_LOAD_CUH

#include "ops/common/kernel.cuh"

namespace nbl_cuda
{

/* The access that moves N elements: 16 bytes, or all N if they are smaller. The address must be
 * aligned to it. */
template <typename T, int N> struct pieces {
    enum { BYTES = N * sizeof(T) > 16 ? 16 : N * sizeof(T), STEP = BYTES / sizeof(T) };
    struct alignas(BYTES) piece {
        T at[STEP];
    };
};

/* N elements of T as f32, and back with one rounding. */
template <typename T, int N> __device__ inline void load_run(const T *from, float (&to)[N])
{
#pragma unroll
    for (int k = 0; k < N; k += pieces<T, N>::STEP) {
        auto piece = *reinterpret_cast<const typename pieces<T, N>::piece *>(from + k);
#pragma unroll
        for (int j = 0; j < pieces<T, N>::STEP; j++) to[k + j] = to_f32(piece.at[j]);
    }
}

template <typename T, int N> __device__ inline void store_run(T *to, const float (&from)[N])
{
#pragma unroll
    for (int k = 0; k < N; k += pieces<T, N>::STEP) {
        typename pieces<T, N>::piece piece;
#pragma unroll
        for (int j = 0; j < pieces<T, N>::STEP; j++) piece.at[j] = from_f32<T>(from[k + j]);
        *reinterpret_cast<typename pieces<T, N>::piece *>(to + k) = piece;
    }
}

/* Elements i … i + N - 1 of an array of this dtype, aligned as for load_run. */
template <int N> __device__ inline void load_any(const void *from, int dtype, int64_t i, float (&to)[N])
{
    if (dtype == NBL_DTYPE_F32) load_run<float, N>(static_cast<const float *>(from) + i, to);
    else if (dtype == NBL_DTYPE_F16) load_run<__half, N>(static_cast<const __half *>(from) + i, to);
    else load_run<__nv_bfloat16, N>(static_cast<const __nv_bfloat16 *>(from) + i, to);
}

/* The same for stores. */
template <int N> __device__ inline void store_any(void *to, int dtype, int64_t i, const float (&from)[N])
{
    if (dtype == NBL_DTYPE_F32) store_run<float, N>(static_cast<float *>(to) + i, from);
    else if (dtype == NBL_DTYPE_F16) store_run<__half, N>(static_cast<__half *>(to) + i, from);
    else store_run<__nv_bfloat16, N>(static_cast<__nv_bfloat16 *>(to) + i, from);
}

/* Converts 16 loaded bytes. Elements stay packed in four registers until then: a struct of 2-byte
 * members would take a register for each. */
template <typename T> __device__ inline void unpack(const uint4 &from, float (&to)[pack<T>::COUNT])
{
    const uint32_t words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == 4) to[i] = __uint_as_float(words[i]);
        else if constexpr (__is_same(T, __half)) {
            to[2 * i] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i])));
            to[2 * i + 1] = __half2float(__ushort_as_half(static_cast<unsigned short>(words[i] >> 16)));
        } else {
            to[2 * i] = __uint_as_float(words[i] << 16);
            to[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
        }
    }
}

/* The reverse: rounds values to T and packs them into 16 bytes. */
template <typename T> __device__ inline uint4 packed_up(const float (&from)[pack<T>::COUNT])
{
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if constexpr (sizeof(T) == 4) words[i] = __float_as_uint(from[i]);
        else if constexpr (__is_same(T, __half)) {
            __half2 two = __floats2half2_rn(from[2 * i], from[2 * i + 1]);
            words[i] = *reinterpret_cast<uint32_t *>(&two);
        } else {
            __nv_bfloat162 two = __floats2bfloat162_rn(from[2 * i], from[2 * i + 1]);
            words[i] = *reinterpret_cast<uint32_t *>(&two);
        }
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

/* Sums over all threads of the block, in a fixed order. Every thread gets the result. All threads
 * of the block must call it; at most 32 warps. `S` is float or double. */
template <typename S, int N> __device__ inline void block_sums(S (&values)[N])
{
    __shared__ S parts[N][32];
    int warps = (blockDim.x + 31) / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < N; n++)
        for (int i = 16; i > 0; i /= 2) values[n] += __shfl_xor_sync(WARP, values[n], i);
    if (warps == 1) return;
    __syncthreads(); /* the previous call's `parts` have been read */
#pragma unroll
    for (int n = 0; n < N; n++)
        if (lane == 0) parts[n][warp] = values[n];
    __syncthreads();
#pragma unroll
    for (int n = 0; n < N; n++) {
        values[n] = lane < warps ? parts[n][lane] : S(0);
        for (int i = 16; i > 0; i /= 2) values[n] += __shfl_xor_sync(WARP, values[n], i);
    }
}

/* a / b, rounded up; a >= 0. */
static inline int64_t ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

} // namespace nbl_cuda
#endif
