/* short_conv.cu - short_conv, its backward and short_conv_step. See short_conv.h.
 *
 * A thread per token and channel; neighbouring threads have neighbouring channels. A token finds its sequence by a
 * search in cu_seqlens. Backward computes the sums of K tokens again for each token, K² multiply-adds. Bytes: x is read
 * K times, from L1 and L2. Limit: memory. */
#include "ops/common/part_sums.cuh"

extern "C" {
#include "ops/common/sequences.h"
#include "ops/recurrent/short_conv.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 128 };

struct problem {
    const int32_t *at; /* cu_seqlens */
    int sequences, taps;
    int64_t tokens, channels, step; /* of x */
    const void *w;
    nbl_dtype w_dtype;
    nbl__cuda_fault *fault;
};

struct span {
    int64_t begin, end;
};

/* The sequence that has token t: the last one that begins at or before it. Within the tokens, whatever the data. */
__device__ inline span sequence_of(const problem &p, int64_t t)
{
    int low = 0, high = p.sequences - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (p.at[middle] <= t) low = middle;
        else high = middle - 1;
    }
    int64_t begin = p.at[low], end = p.at[low + 1];
    return {begin < 0 ? 0 : begin, end > p.tokens ? p.tokens : end};
}

/* Reports offsets that decrease, or do not run from 0 to T. One block of a launch calls it. */
__device__ inline void check_offsets(const problem &p)
{
    for (int s = threadIdx.x; s <= p.sequences; s += blockDim.x) {
        int32_t at = p.at[s];
        bool good = s == 0 ? at == 0 : at >= p.at[s - 1];
        if (s == p.sequences) good = good && at == p.tokens;
        if (!good) report_fault(p.fault, NBL_CUDA_FAULT_SEQUENCES, s, at);
    }
}

/* c[t] of a channel. */
template <typename T>
__device__ inline float sum_at(const problem &p, const T *x, int64_t begin, int64_t t, int64_t channel)
{
    float sum = 0;
    for (int j = 0; j < p.taps; j++) {
        int64_t row = t - p.taps + 1 + j;
        if (row >= begin)
            sum = fmaf(load_one(p.w, p.w_dtype, channel * p.taps + j), to_f32(x[row * p.step + channel]),
                       sum);
    }
    return sum;
}

template <typename T>
__global__ void __launch_bounds__(THREADS) conv_kernel(problem p, const T *x, T *y, int64_t y_step)
{
    int64_t t = blockIdx.x, channel = static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x;
    if (blockIdx.x == 0 && blockIdx.y == 0) check_offsets(p);
    if (channel >= p.channels) return;
    float slope;
    y[t * y_step + channel] = from_f32<T>(silu_of(sum_at(p, x, sequence_of(p, t).begin, t, channel), &slope));
}

/* The last taps - 1 rows of each sequence. */
template <typename T> __global__ void __launch_bounds__(THREADS) keep_kernel(problem p, const T *x, T *state)
{
    int64_t row = blockIdx.x, channel = static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x;
    int kept = p.taps - 1, s = static_cast<int>(row / kept);
    int64_t t = p.at[s + 1] - kept + row % kept;
    if (channel >= p.channels) return;
    bool inside = t >= p.at[s] && t >= 0 && t < p.tokens;
    state[row * p.channels + channel] = inside ? x[t * p.step + channel] : from_f32<T>(0);
}

/* dc[t] = dy[t] ∘ silu'(c[t]). */
template <typename T>
__device__ inline float slope_at(const problem &p, const T *x, const T *dy, int64_t dy_step, int64_t begin,
                                 int64_t t, int64_t channel)
{
    float slope;
    silu_of(sum_at(p, x, begin, t, channel), &slope);
    return to_f32(dy[t * dy_step + channel]) * slope;
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    input_kernel(problem p, const T *x, const T *dy, int64_t dy_step, T *dx, int64_t dx_step)
{
    int64_t i = blockIdx.x, channel = static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x;
    if (blockIdx.x == 0 && blockIdx.y == 0) check_offsets(p);
    if (channel >= p.channels) return;
    span s = sequence_of(p, i);
    float sum = 0;
    for (int j = 0; j < p.taps; j++) {
        int64_t t = i + p.taps - 1 - j; /* x[i] is its input j */
        if (t < s.end)
            sum = fmaf(load_one(p.w, p.w_dtype, channel * p.taps + j),
                       slope_at(p, x, dy, dy_step, s.begin, t, channel), sum);
    }
    dx[i * dx_step + channel] = from_f32<T>(sum);
}

/* A share of dw: [channels, taps]. */
template <typename T>
__global__ void __launch_bounds__(PART_THREADS)
    weight_kernel(problem p, const T *x, const T *dy, int64_t dy_step, float *parts)
{
    int64_t channel = static_cast<int64_t>(blockIdx.y) * PART_THREADS + threadIdx.x;
    part_rows part = rows_of_part(blockIdx.x, p.tokens);
    if (channel >= p.channels) return;
    float sums[NBL_SHORT_CONV_MAX];
    for (int j = 0; j < p.taps; j++) sums[j] = 0;
    for (int64_t t = part.begin; t < part.end; t++) {
        int64_t begin = sequence_of(p, t).begin;
        float dc = slope_at(p, x, dy, dy_step, begin, t, channel);
        for (int j = 0; j < p.taps; j++) {
            int64_t row = t - p.taps + 1 + j;
            if (row >= begin) sums[j] = fmaf(dc, to_f32(x[row * p.step + channel]), sums[j]);
        }
    }
    for (int j = 0; j < p.taps; j++)
        parts[(static_cast<int64_t>(blockIdx.x) * p.channels + channel) * p.taps + j] = sums[j];
}

/* One token of each sequence. A thread moves the rows of its channel: `to` may be `from`. */
template <typename T>
__global__ void __launch_bounds__(THREADS)
    step_kernel(problem p, const T *x, const T *from, T *to, T *y, int64_t y_step)
{
    int64_t s = blockIdx.x, channel = static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x;
    int kept = p.taps - 1;
    if (channel >= p.channels) return;
    T newest = x[s * p.step + channel];
    float sum = 0, slope;
    for (int j = 0; j < kept; j++) {
        int64_t at = (s * kept + j) * p.channels + channel;
        T value = from[at];
        sum = fmaf(load_one(p.w, p.w_dtype, channel * p.taps + j), to_f32(value), sum);
        if (j > 0) to[at - p.channels] = value;
    }
    to[(s * kept + kept - 1) * p.channels + channel] = newest;
    sum = fmaf(load_one(p.w, p.w_dtype, channel * p.taps + kept), to_f32(newest), sum);
    y[s * y_step + channel] = from_f32<T>(silu_of(sum, &slope));
}

problem problem_of(const nbl__call *call, const nbl_tensor *x, const nbl_tensor *w,
                   const nbl_tensor *cu_seqlens)
{
    return {cu_seqlens ? static_cast<const int32_t *>(cu_seqlens->data) : nullptr,
            cu_seqlens ? static_cast<int>(nbl__sequence_count(cu_seqlens)) : 0,
            static_cast<int>(w->shape[2]),
            x->shape[0],
            x->shape[1],
            nbl__row_stride(x),
            w->data,
            w->dtype,
            nbl__call_cuda(call)->fault};
}

dim3 grid_of(int64_t rows, const problem &p)
{
    return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(ceil_div(p.channels, THREADS)));
}

template <typename T> void launch_forward(const nbl__call *call, const nbl__short_conv *a)
{
    problem p = problem_of(call, &a->x, &a->w, &a->cu_seqlens);
    const nbl_tensor *to = nbl__has_data(&a->state) ? &a->state : &a->last;
    const T *x = static_cast<const T *>(a->x.data);
    int64_t rows = static_cast<int64_t>(p.sequences) * (p.taps - 1);
    if (p.tokens > 0)
        conv_kernel<T><<<grid_of(p.tokens, p), THREADS, 0, stream_of(call)>>>(
            p, x, static_cast<T *>(a->y.data), nbl__row_stride(&a->y));
    if (nbl__has_data(to) && rows > 0)
        keep_kernel<T><<<grid_of(rows, p), THREADS, 0, stream_of(call)>>>(p, x, static_cast<T *>(to->data));
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv *a = static_cast<const nbl__short_conv *>(arguments);
    if (a->x.shape[1] == 0) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T, (launch_forward<T>(call, a)));
    return launched(call);
}

size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return part_bytes(nbl__tensor_elements(&static_cast<const nbl__short_conv *>(arguments)->w));
}

template <typename T> void launch_backward(const nbl__call *call, const nbl__short_conv *a)
{
    problem p = problem_of(call, &a->x, &a->w, &a->cu_seqlens);
    const T *x = static_cast<const T *>(a->x.data), *dy = static_cast<const T *>(a->dy.data);
    int64_t dy_step = nbl__row_stride(&a->dy);
    if (nbl__has_data(&a->dx) && p.tokens > 0)
        input_kernel<T><<<grid_of(p.tokens, p), THREADS, 0, stream_of(call)>>>(
            p, x, dy, dy_step, static_cast<T *>(a->dx.data), nbl__row_stride(&a->dx));
    if (!nbl__has_data(&a->dw)) return;
    float *parts = reinterpret_cast<float *>(call->scratch);
    dim3 grid(PARTS, static_cast<unsigned>(ceil_div(p.channels, PART_THREADS)));
    weight_kernel<T><<<grid, PART_THREADS, 0, stream_of(call)>>>(p, x, dy, dy_step, parts);
    add_parts(call, parts, p.channels * p.taps, &a->dw, a->accumulate);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv *a = static_cast<const nbl__short_conv *>(arguments);
    if (a->x.shape[1] == 0) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T, (launch_backward<T>(call, a)));
    return launched(call);
}

nbl_status run_step(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv_step *a = static_cast<const nbl__short_conv_step *>(arguments);
    problem p = problem_of(call, &a->x, &a->w, nullptr);
    void *to = a->in_place ? a->state.data : a->next.data;
    if (p.tokens == 0 || p.channels == 0) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T,
                 (step_kernel<T><<<grid_of(p.tokens, p), THREADS, 0, stream_of(call)>>>(
                     p, static_cast<const T *>(a->x.data), static_cast<const T *>(a->state.data),
                     static_cast<T *>(to), static_cast<T *>(a->y.data), nbl__row_stride(&a->y))));
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__short_conv_cuda = {"short_conv_cuda", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__short_conv_backward_cuda = {"short_conv_backward_cuda", NBL_ISA_SCALAR, NULL,
                                                 backward_scratch, run_backward};
const nbl__impl nbl__short_conv_step_cuda = {"short_conv_step_cuda", NBL_ISA_SCALAR, NULL, NULL, run_step};
}
