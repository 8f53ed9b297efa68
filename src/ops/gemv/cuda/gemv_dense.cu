/* gemv_dense.cu - one row of x times a dense weight in the same dtype: see gemv_cuda.h.
 *
 *     a block (persistent): x → shared memory
 *         each warp: two rows of W at a time
 *             each lane: 16 of every 512 bytes of both rows; AT_ONCE loads per row in flight
 *             y[2] = sums over the lanes + bias
 *
 * It is a dependent launch: the first loads of W are issued before the wait for the previous
 * kernel, which writes x. Reads W once, x once per block. Limit: memory bandwidth. */
#include "ops/common/dependent_launch.cuh"
#include "ops/common/load.cuh"

extern "C" {
#include "ops/gemv/cuda/gemv_cuda.h"
}

using namespace nbl_cuda;

namespace
{

/* PAIR: rows of W per warp. AT_ONCE: loads of 16 bytes per row and lane. MAX_X: bytes of x in
 * shared memory. */
constexpr int THREADS = 256, PAIR = 2, AT_ONCE = 4, MAX_X = 48 << 10;

/* Weights are read once: they do not enter the L1 cache. */
__device__ inline uint4 stream_16(const void *from)
{
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from));
    return v;
}

struct dense_job {
    const void *w, *x, *bias;
    void *y;
    int64_t rows;
    int packs, bias_dtype; /* packs: 16-byte groups in a row */
};

/* AT_ONCE groups of 16 bytes of two rows, from group `first` on, 32 apart. Groups behind the row's end are zeros. */
struct dense_pieces {
    uint4 at[PAIR][AT_ONCE];
    __device__ void load(const uint4 *row, const uint4 *next, int first, int packs)
    {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            bool inside = first + i * 32 < packs;
            at[0][i] = inside ? stream_16(row + first + i * 32) : make_uint4(0, 0, 0, 0);
            at[1][i] = inside ? stream_16(next + first + i * 32) : make_uint4(0, 0, 0, 0);
        }
    }
};

/* y[row] = x · W[row] + bias[row], two rows per warp. Warps take pairs of rows gridDim.x · 8 · 2
 * apart. A row past the end reads the last row and is not stored. Lanes add
 * their sums by shuffles. */
template <typename T> __global__ void __launch_bounds__(THREADS, 3) gemv_dense(dependent, dense_job j)
{
    constexpr int N = pack<T>::COUNT;
    extern __shared__ uint4 x[];
    int lane = threadIdx.x % 32;
    int64_t warps = static_cast<int64_t>(gridDim.x) * (THREADS / 32);
    int64_t row = (static_cast<int64_t>(blockIdx.x) * (THREADS / 32) + threadIdx.x / 32) * PAIR;
    const uint4 *w = static_cast<const uint4 *>(j.w);
    auto row_at = [&](int64_t r) { return w + (r < j.rows ? r : j.rows - 1) * j.packs; };
    dense_pieces now;
    if (row < j.rows) now.load(row_at(row), row_at(row + 1), lane, j.packs);
    allow_dependent_launch();
    wait_for_previous_kernel();
    for (int i = threadIdx.x; i < j.packs; i += THREADS)
        x[i] = read_written(static_cast<const uint4 *>(j.x) + i);
    __syncthreads();
    for (bool first = true; row < j.rows; row += warps * PAIR, first = false) {
        float sums[PAIR] = {};
        for (int at = lane; at < j.packs + lane; at += 32 * AT_ONCE) {
            if (!first || at != lane) now.load(row_at(row), row_at(row + 1), at, j.packs);
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float values[N], left[N], right[N];
                unpack<T>(at + i * 32 < j.packs ? x[at + i * 32] : make_uint4(0, 0, 0, 0), values);
                unpack<T>(now.at[0][i], left);
                unpack<T>(now.at[1][i], right);
#pragma unroll
                for (int e = 0; e < N; e++) {
                    sums[0] = fmaf(left[e], values[e], sums[0]);
                    sums[1] = fmaf(right[e], values[e], sums[1]);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < PAIR; r++) {
            float sum = warp_sum(sums[r]);
            if (lane != 0 || row + r >= j.rows) continue;
            if (j.bias) sum += load_one(j.bias, static_cast<nbl_dtype>(j.bias_dtype), row + r);
            static_cast<T *>(j.y)[row + r] = from_f32<T>(sum);
        }
    }
}

template <typename T> void launch(const dense_job &j, bool overlaps, cudaStream_t stream)
{
    int device = 0, processors = 1, each = 1;
    size_t shared = static_cast<size_t>(j.packs) * 16;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, gemv_dense<T>, THREADS, shared);
    int64_t needed = ceil_div(j.rows, THREADS / 32 * PAIR), max = static_cast<int64_t>(processors) * each;
    launch_overlapping(overlaps, gemv_dense<T>, dim3(static_cast<unsigned>(needed < max ? needed : max)), THREADS,
                       shared, 1, stream, j);
}

} // namespace

extern "C" bool nbl__cuda_gemv_dense_takes(const nbl_weight *w, nbl_dtype dtype, const void *x)
{
    int64_t bytes = w->rank == 2 ? w->shape[1] * static_cast<int64_t>(nbl__size_of(dtype)) : 0;
    return w->format == NBL_FORMAT_DENSE && w->rank == 2 && w->dtype == dtype && bytes > 0 &&
           bytes % 16 == 0 && bytes <= MAX_X && w->shape[0] > 0 && is_aligned(w->data, 16) &&
           is_aligned(x, 16);
}

extern "C" nbl_status nbl__cuda_gemv_dense(nbl_context *ctx, const nbl_weight *w, const void *x,
                                           const nbl_tensor *bias, void *y, void *stream)
{
    dense_job j = {
        w->data,     x,
        bias->data,  y,
        w->shape[0], static_cast<int>(w->shape[1] * static_cast<int64_t>(nbl__size_of(w->dtype)) / 16),
        bias->dtype};
    cudaStream_t on = static_cast<cudaStream_t>(stream);
    bool overlaps = nbl__cuda_overlaps(ctx);
    NBL_BY_DTYPE(w->dtype, T, launch<T>(j, overlaps, on));
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) return NBL_OK;
    return nbl__fail(ctx, NBL_ERROR_INTERNAL, "nbl__cuda_gemv_dense: %s", cudaGetErrorString(error));
}
