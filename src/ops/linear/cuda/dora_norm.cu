/* dora_norm.cu - dora_norm on the device: norm[n] = ‖W[n] + s·(B·A)[n]‖.
 *
 * Each row of W + s·B·A is computed value by value and squared in f64, so nothing cancels. ‖W‖² is
 * not needed as an input; it can be an output. A block has ROWS rows and goes through A once for
 * all of them.
 *
 * Cost: out·in·r fma in f32. W is read once, A once per ROWS rows, from the caches. Limit:
 * instructions. */
#include "ops/dequantize/dequantize_value.cuh"
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/linear/dora_norm.h"
}

namespace
{

using nbl_cuda::packed;

constexpr int THREADS = 256, ROWS = 4;

/* The argument of the kernel. own: ‖W‖² of each row. */
struct job {
    packed p;
    const void *dense; /* NULL: packed */
    const void *a, *b;
    nbl_dtype dtype, w_dtype, a_dtype, b_dtype;
    int64_t out, in, rank;
    float scale;
    float *norm, *own; /* own may be NULL */
};

/* An element of W in the compute dtype. */
__device__ inline float weight_at(const job &j, int64_t i)
{
    float value = j.dense ? nbl_cuda::load_one(j.dense, j.w_dtype, i) : nbl_cuda::value_at(j.p, i);
    if (j.dtype == NBL_DTYPE_F16) return __half2float(__float2half_rn(value));
    if (j.dtype == NBL_DTYPE_BF16) return __bfloat162float(__float2bfloat16_rn(value));
    return value;
}

/* Σ over the block, in the order of the warps. All threads get it. The first barrier: the previous
 * call's parts have been read. */
__device__ inline double block_sum(double value)
{
    __shared__ double parts[THREADS / 32];
    for (int i = 16; i > 0; i /= 2) value += __shfl_xor_sync(nbl_cuda::WARP, value, i);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    double all = 0;
    for (int i = 0; i < THREADS / 32; i++) all += parts[i];
    return all;
}

/* norm and own of ROWS rows. A thread has columns 256 apart: it computes (B·A)[n, k] of all ROWS
 * rows from one load of A[., k], then adds the squares of W + s·B·A in f64. */
__global__ void norms(job j)
{
    int64_t first = static_cast<int64_t>(blockIdx.x) * ROWS;
    int rows = j.out - first < ROWS ? static_cast<int>(j.out - first) : ROWS;
    double squares[ROWS] = {}, own[ROWS] = {};
    for (int64_t k = threadIdx.x; k < j.in; k += THREADS) {
        float delta[ROWS] = {};
        for (int64_t r = 0; r < j.rank; r++) {
            float a = nbl_cuda::load_one(j.a, j.a_dtype, r * j.in + k);
#pragma unroll
            for (int i = 0; i < ROWS; i++)
                if (i < rows)
                    delta[i] = fmaf(nbl_cuda::load_one(j.b, j.b_dtype, (first + i) * j.rank + r), a,
                                    delta[i]);
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            if (i >= rows) continue;
            float w = weight_at(j, (first + i) * j.in + k), sum = fmaf(j.scale, delta[i], w);
            squares[i] += static_cast<double>(sum) * static_cast<double>(sum);
            own[i] += static_cast<double>(w) * static_cast<double>(w);
        }
    }
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        if (i >= rows) continue;
        double all = block_sum(squares[i]), alone = block_sum(own[i]);
        if (threadIdx.x != 0) continue;
        j.norm[first + i] = static_cast<float>(sqrt(all));
        if (j.own) j.own[first + i] = static_cast<float>(alone);
    }
}

nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__dora_norm *a = static_cast<const nbl__dora_norm *>(arguments);
    job j = {};
    if (a->w.format == NBL_FORMAT_DENSE) {
        j.dense = a->w.data;
        j.w_dtype = a->w.dtype;
    } else {
        int64_t n, rows;
        NBL_TRY(nbl__check_weight(call->ctx, call->op, &a->w, &n, &rows));
        j.p = nbl_cuda::packed_of(&a->w);
    }
    j.a = a->lora_a.data, j.b = a->lora_b.data;
    j.dtype = a->dtype, j.a_dtype = a->lora_a.dtype, j.b_dtype = a->lora_b.dtype;
    j.out = a->w.shape[0], j.in = a->w.shape[1], j.rank = a->lora_a.shape[0];
    j.scale = a->scale;
    j.norm = static_cast<float *>(a->norm.data);
    j.own = a->w_norm2_out.rank > 0 ? static_cast<float *>(a->w_norm2_out.data) : NULL;
    if (j.out == 0) return NBL_OK;
    norms<<<static_cast<unsigned>((j.out + ROWS - 1) / ROWS), THREADS, 0, nbl_cuda::stream_of(call)>>>(j);
    return nbl_cuda::launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__dora_norm_cuda = {"dora_norm_cuda", NBL_ISA_SCALAR, NULL, NULL, run};
}
