/* norm_general.cuh - rmsnorm and layernorm for rows of any length and alignment, and the addition of the blocks' sums
 * for dw and db. Internal to norm.cuh, which has the formulas. */
#ifndef NBL_NORM_GENERAL_CUH
#define NBL_NORM_GENERAL_CUH

#include "ops/common/load.cuh"

namespace nbl_cuda
{

enum {
    NORM_PACKS = 2, /* packs of 16 bytes per thread and tensor */
    NORM_THREADS = 512,
    NORM_SHORT_THREADS = 128, /* if several rows share a block */
    NORM_SLOW_THREADS = 256,
    NORM_MAX_BLOCKS =
        2112 /* max blocks with sums in scratch: 16 per multiprocessor of the largest devices */
};

struct norm_call {
    const void *x, *residual; /* NULL if absent: residual, bias, dresidual, … */
    void *sum, *y;
    const void *dy, *dresidual;
    void *dx;
    float *partial_w, *partial_b; /* [blocks, columns] */
    const void *w, *bias;
    int w_dtype, bias_dtype;
    int64_t rows, columns;
    int per_row; /* threads per row; a power of two up to 32, or more warps */
    float eps, offset, scale;
    bool round_first;
};

/* ---- any row: a block per row, element by element ---- */

/* Element i of h = x + residual, rounded to T. */
template <typename T> __device__ inline float sum_at(const norm_call &a, int64_t i)
{
    float h = to_f32(static_cast<const T *>(a.x)[i]);
    if (a.residual == nullptr) return h;
    return to_f32(from_f32<T>(h + to_f32(static_cast<const T *>(a.residual)[i])));
}

__device__ inline float weight_at(const void *w, int dtype, int64_t k)
{
    float value[1] = {1};
    if (w) load_any<1>(w, dtype, k, value);
    return value[0];
}

/* Mean of a row of h over the block; 0 without CENTER. */
template <typename T, bool CENTER> __device__ inline float slow_mean(const norm_call &a, const T *h)
{
    float sum[1] = {0};
    for (int64_t k = threadIdx.x; k < a.columns && CENTER; k += blockDim.x) sum[0] += to_f32(h[k]);
    if (CENTER) block_sums(sum);
    return sum[0] / static_cast<float>(a.columns);
}

/* Forward, a block per row at a time. It reads the row up to four times, from the cache: sum, mean,
 * squares, y. */
template <typename T, bool CENTER> __global__ void norm_rows_slow(norm_call a)
{
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t first = row * a.columns;
        const T *h = static_cast<const T *>(a.residual ? a.sum : a.x) + first;
        for (int64_t k = threadIdx.x; k < a.columns && a.residual; k += blockDim.x)
            static_cast<T *>(a.sum)[first + k] = from_f32<T>(sum_at<T>(a, first + k));
        float mean = slow_mean<T, CENTER>(a, h), squares[1] = {0};
        for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
            float c = to_f32(h[k]) - mean;
            squares[0] = fmaf(c, c, squares[0]);
        }
        block_sums(squares);
        float scale = 1 / sqrtf(squares[0] / static_cast<float>(a.columns) + a.eps);
        for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
            float n = (to_f32(h[k]) - mean) * scale;
            if (!CENTER && a.round_first) n = to_f32(from_f32<T>(n));
            n *= (weight_at(a.w, a.w_dtype, k) + a.offset) * a.scale;
            if (CENTER && a.bias) n += weight_at(a.bias, a.bias_dtype, k) * a.scale;
            static_cast<T *>(a.y)[first + k] = from_f32<T>(n);
        }
    }
}

/* Backward, a block per row at a time. Sums for dw and db stay in the block's row of scratch. A
 * thread always has the same columns, so it adds there without a barrier. layernorm has no
 * residual, so its mean is that of x. */
template <typename T, bool CENTER> __global__ void norm_rows_backward_slow(norm_call a)
{
    const T *dy = static_cast<const T *>(a.dy), *further = static_cast<const T *>(a.dresidual);
    float *dw = a.partial_w ? a.partial_w + blockIdx.x * a.columns : nullptr;
    float *db = a.partial_b ? a.partial_b + blockIdx.x * a.columns : nullptr;
    for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
        if (dw) dw[k] = 0;
        if (db) db[k] = 0;
    }
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        int64_t first = row * a.columns;
        float mean = slow_mean<T, CENTER>(a, static_cast<const T *>(a.x) + first), sums[3] = {};
        for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
            float c = sum_at<T>(a, first + k) - mean;
            float g = to_f32(dy[first + k]) * ((weight_at(a.w, a.w_dtype, k) + a.offset) * a.scale);
            sums[0] = fmaf(c, c, sums[0]);
            sums[1] = fmaf(g, c, sums[1]);
            if (CENTER) sums[2] += g;
        }
        block_sums(sums);
        float n = static_cast<float>(a.columns), s = 1 / sqrtf(sums[0] / n + a.eps);
        float pull = s * (s * (s * (sums[1] / n))), shift = s * (sums[2] / n);
        for (int64_t k = threadIdx.x; k < a.columns; k += blockDim.x) {
            float c = sum_at<T>(a, first + k) - mean, d = to_f32(dy[first + k]);
            if (dw) dw[k] = fmaf(d, c * s, dw[k]);
            if (db) db[k] += d;
            if (a.dx == nullptr) continue;
            float w = (weight_at(a.w, a.w_dtype, k) + a.offset) * a.scale;
            float dx = fmaf(-c, pull, s * (d * w)) - shift;
            if (further) dx += to_f32(further[first + k]);
            static_cast<T *>(a.dx)[first + k] = from_f32<T>(dx);
        }
    }
}

/* ---- adding the blocks' sums ---- */

enum { FOLD_COLUMNS = 32, FOLD_LANES = 32 };

/* to[k] (+)= scale · Σ over blocks of partial[block, k]. blockIdx.y: dw or db. A block has 32 columns; 32
 * lanes per column add every 32nd partial row, then one adds the lanes in their order. */
static __global__ void __launch_bounds__(FOLD_COLUMNS *FOLD_LANES)
    norm_fold(const float *partial_w, const float *partial_b, float *dw, float *db, int64_t blocks,
              int64_t columns, float scale, bool accumulate)
{
    __shared__ float parts[FOLD_LANES][FOLD_COLUMNS];
    const float *partial = blockIdx.y ? partial_b : partial_w;
    float *to = blockIdx.y ? db : dw, sum = 0;
    int64_t k = static_cast<int64_t>(blockIdx.x) * FOLD_COLUMNS + threadIdx.x;
    if (to == nullptr) return;
    if (k < columns)
#pragma unroll 8
        for (int64_t b = threadIdx.y; b < blocks; b += FOLD_LANES) sum += partial[b * columns + k];
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || k >= columns) return;
    for (int i = 1; i < FOLD_LANES; i++) sum += parts[i][threadIdx.x];
    sum *= scale;
    to[k] = accumulate ? to[k] + sum : sum;
}

} // namespace nbl_cuda
#endif
