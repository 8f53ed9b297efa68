/* part_sums.cuh - gradients of weights that are sums over tokens: PARTS blocks sum a share of the tokens each, in f32, and
 * a second kernel adds the shares in their order. The bits depend on nothing but the data. Internal to the CUDA kernels. */
#ifndef NBL_PART_SUMS_CUH
#define NBL_PART_SUMS_CUH

#include "ops/common/load.cuh"

namespace nbl_cuda
{

/* Shares, whatever the number of tokens: scratch does not depend on that. */
enum { PARTS = 64, PART_THREADS = 128 };

/* The rows of share `part`. */
struct part_rows {
    int64_t begin, end;
};
__device__ inline part_rows rows_of_part(int part, int64_t rows)
{
    int64_t each = (rows + PARTS - 1) / PARTS, begin = part * each;
    return {begin < rows ? begin : rows, begin + each < rows ? begin + each : rows};
}

/* out[i] (+)= the sum of parts[0 … PARTS - 1][i]. */
static __global__ void __launch_bounds__(PART_THREADS)
    add_parts_kernel(const float *parts, int64_t count, float *out, bool accumulate)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * PART_THREADS + threadIdx.x;
    if (i >= count) return;
    float sum = 0;
    for (int part = 0; part < PARTS; part++) sum += parts[part * count + i];
    out[i] = accumulate ? out[i] + sum : sum;
}

static inline size_t part_bytes(int64_t count)
{
    return static_cast<size_t>(count) * PARTS * sizeof(float);
}

static inline void add_parts(const nbl__call *call, const float *parts, int64_t count, const nbl_tensor *out,
                             bool accumulate)
{
    if (count == 0) return;
    add_parts_kernel<<<static_cast<unsigned>(ceil_div(count, PART_THREADS)), PART_THREADS, 0,
                       stream_of(call)>>>(parts, count, static_cast<float *>(out->data), accumulate);
}

/* silu(x), and its derivative. Beyond ±40 the derivative is 1 or 0. */
__device__ inline float silu_of(float x, float *slope)
{
    float s = 1 / (1 + expf(-x)), near = fminf(fmaxf(x, -40.0f), 40.0f);
    *slope = s * (1 + near * (1 - s));
    return x * s;
}

} // namespace nbl_cuda
#endif
