/* gated_norm.cu - gated_norm and its backward. See gated_norm.h.
 *
 *     forward_kernel     a warp per head of a token
 *     backward_kernel    the same: dx and dgate, and r for the next kernel
 *     weight_kernel      shares of dw: a thread per column and share (part_sums.cuh)
 *
 * Bytes: forward reads x and gate, twice from L1; backward reads them and dy three times. Limit: memory. */
#include "ops/common/part_sums.cuh"

extern "C" {
#include "ops/gate/gated_norm.h"
}

using namespace nbl_cuda;

namespace
{

enum { WARPS = 4, THREADS = WARPS * 32 };

struct problem {
    int64_t rows, heads; /* rows: heads of all tokens */
    int columns;
    float eps;
    const void *w;
    nbl_dtype w_dtype;
};

/* Heads of tokens that lie `step` elements apart. NULL: the tensor is not there. */
template <typename T> struct heads_of {
    T *data;
    int64_t step;
    __device__ T *at(const problem &p, int64_t row) const
    {
        return data + row / p.heads * step + row % p.heads * p.columns;
    }
};
template <typename T> heads_of<T> heads(const nbl_tensor *t)
{
    return {static_cast<T *>(t->data), nbl__row_stride(t)};
}

template <typename T> __device__ inline float scale_of(const problem &p, const T *x)
{
    float sum = 0;
    for (int i = threadIdx.x % 32; i < p.columns; i += 32) {
        float value = to_f32(x[i]);
        sum = fmaf(value, value, sum);
    }
    return 1 / sqrtf(warp_sum(sum) / static_cast<float>(p.columns) + p.eps);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    forward_kernel(problem p, heads_of<T> all_x, heads_of<T> all_gate, heads_of<T> all_y)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    if (row >= p.rows) return;
    const T *x = all_x.at(p, row), *gate = all_gate.at(p, row);
    T *y = all_y.at(p, row);
    float r = scale_of(p, x), slope;
    for (int i = threadIdx.x % 32; i < p.columns; i += 32)
        y[i] = from_f32<T>(load_one(p.w, p.w_dtype, i) * (to_f32(x[i]) * r) *
                           silu_of(to_f32(gate[i]), &slope));
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    backward_kernel(problem p, heads_of<T> all_x, heads_of<T> all_gate, heads_of<T> all_dy,
                    heads_of<T> all_dx, heads_of<T> all_dgate, float *scales)
{
    int64_t row = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (row >= p.rows) return;
    const T *x = all_x.at(p, row), *gate = all_gate.at(p, row), *dy = all_dy.at(p, row);
    float r = scale_of(p, x), mean = 0, slope;
    if (lane == 0) scales[row] = r;
    for (int i = lane; i < p.columns; i += 32) {
        float dn = to_f32(dy[i]) * load_one(p.w, p.w_dtype, i) * silu_of(to_f32(gate[i]), &slope);
        mean = fmaf(to_f32(x[i]) * r, dn, mean);
    }
    mean = warp_sum(mean) / static_cast<float>(p.columns);
    for (int i = lane; i < p.columns; i += 32) {
        float n = to_f32(x[i]) * r, dw = to_f32(dy[i]) * load_one(p.w, p.w_dtype, i);
        float dn = dw * silu_of(to_f32(gate[i]), &slope);
        if (all_dx.data) all_dx.at(p, row)[i] = from_f32<T>(r * (dn - n * mean));
        if (all_dgate.data) all_dgate.at(p, row)[i] = from_f32<T>(dw * n * slope);
    }
}

template <typename T>
__global__ void __launch_bounds__(PART_THREADS)
    weight_kernel(problem p, heads_of<T> x, heads_of<T> gate, heads_of<T> dy, const float *scales,
                  float *parts)
{
    int column = blockIdx.y * PART_THREADS + threadIdx.x;
    part_rows part = rows_of_part(blockIdx.x, p.rows);
    if (column >= p.columns) return;
    float sum = 0, slope;
    for (int64_t row = part.begin; row < part.end; row++)
        sum = fmaf(to_f32(dy.at(p, row)[column]) * silu_of(to_f32(gate.at(p, row)[column]), &slope),
                   to_f32(x.at(p, row)[column]) * scales[row], sum);
    parts[static_cast<int64_t>(blockIdx.x) * p.columns + column] = sum;
}

problem problem_of(const nbl__gated_norm *a)
{
    return {a->x.shape[0] * a->x.shape[1],
            a->x.shape[1],
            static_cast<int>(a->x.shape[2]),
            a->eps,
            a->w.data,
            a->w.dtype};
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__gated_norm *a = static_cast<const nbl__gated_norm *>(arguments);
    problem p = problem_of(a);
    unsigned blocks = static_cast<unsigned>(ceil_div(p.rows, WARPS));
    if (blocks == 0) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T,
                 (forward_kernel<T><<<blocks, THREADS, 0, stream_of(call)>>>(
                     p, heads<T>(&a->x), heads<T>(&a->gate), heads<T>(&a->y))));
    return launched(call);
}

/* The shares of dw, and r of each row. */
struct scratch {
    float *parts, *scales;
    size_t bytes;
};

scratch layout(const nbl__gated_norm *a, uint8_t *base)
{
    nbl__bump bump = {base, 0};
    scratch s;
    s.parts = static_cast<float *>(nbl__bump_alloc(&bump, part_bytes(a->x.shape[2])));
    s.scales = static_cast<float *>(
        nbl__bump_alloc(&bump, static_cast<size_t>(a->x.shape[0] * a->x.shape[1]) * sizeof(float)));
    s.bytes = bump.used;
    return s;
}

size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return layout(static_cast<const nbl__gated_norm *>(arguments), NULL).bytes;
}

template <typename T> void launch_backward(const nbl__call *call, const nbl__gated_norm *a)
{
    problem p = problem_of(a);
    scratch s = layout(a, call->scratch);
    unsigned blocks = static_cast<unsigned>(ceil_div(p.rows, WARPS));
    heads_of<T> x = heads<T>(&a->x), gate = heads<T>(&a->gate), dy = heads<T>(&a->dy);
    if (blocks > 0)
        backward_kernel<T><<<blocks, THREADS, 0, stream_of(call)>>>(p, x, gate, dy, heads<T>(&a->dx),
                                                                    heads<T>(&a->dgate), s.scales);
    if (!nbl__has_data(&a->dw)) return;
    dim3 grid(PARTS, static_cast<unsigned>(ceil_div(p.columns, PART_THREADS)));
    weight_kernel<T><<<grid, PART_THREADS, 0, stream_of(call)>>>(p, x, gate, dy, s.scales, s.parts);
    add_parts(call, s.parts, p.columns, &a->dw, a->accumulate);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__gated_norm *a = static_cast<const nbl__gated_norm *>(arguments);
    NBL_BY_DTYPE(a->dtype, T, (launch_backward<T>(call, a)));
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__gated_norm_cuda = {"gated_norm_cuda", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__gated_norm_backward_cuda = {"gated_norm_backward_cuda", NBL_ISA_SCALAR, NULL,
                                                 backward_scratch, run_backward};
}
