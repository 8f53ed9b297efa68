/* short_conv.cu - short_conv, its backward and short_conv_step on the device. See short_conv.h.
 *
 *     forward, dx, step    a thread per element; neighbours are channels
 *     dw                   a thread per channel and span of rows; then the spans are added in order
 *
 * Backward computes c again for each of the K rows that an element reaches. Bytes: x once from
 * memory, K times from the cache. Limit: memory. */
#include "ops/elementwise/act.cuh"

extern "C" {
#include "ops/recurrent/short_conv.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 128, SPANS = 64, MAX_ROWS = 65535 }; /* MAX_ROWS: of a grid */

struct conv_job {
    const void *x, *w, *dy;
    void *y, *dx, *state; /* state: what is left, or the old one of a step */
    void *next;
    nbl_dtype w_dtype;
    const int32_t *starts; /* [sequences + 1] */
    int64_t sequences, tokens, channels, taps, x_stride, y_stride, dy_stride, dx_stride;
    int64_t first; /* row of this launch */
    float *sums;   /* [SPANS, taps, channels] */
};

/* The sequence of a row: its first and last row. */
__device__ inline void find_sequence(const conv_job &a, int64_t row, int64_t *first, int64_t *end)
{
    int64_t low = 0, high = a.sequences;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (a.starts[middle] <= row) low = middle;
        else high = middle;
    }
    *first = a.starts[low] > 0 ? a.starts[low] : 0;
    *end = a.starts[low + 1] < a.tokens ? a.starts[low + 1] : a.tokens;
}

/* c[t] of a channel, rounded to T. */
template <typename T> __device__ inline float sum_at(const conv_job &a, int64_t first, int64_t t, int64_t c)
{
    float sum = 0;
    for (int64_t j = 0; j < a.taps; j++) {
        int64_t row = t - a.taps + 1 + j;
        if (row < first) continue;
        sum = fmaf(load_one(a.w, a.w_dtype, c * a.taps + j),
                   to_f32(static_cast<const T *>(a.x)[row * a.x_stride + c]), sum);
    }
    return to_f32(from_f32<T>(sum));
}

/* dc[t] of a channel. */
template <typename T> __device__ inline float slope_at(const conv_job &a, int64_t first, int64_t t, int64_t c)
{
    float slope;
    activation<NBL_ACT_SILU>(sum_at<T>(a, first, t, c), &slope);
    return slope * to_f32(static_cast<const T *>(a.dy)[t * a.dy_stride + c]);
}

template <typename T, bool BACKWARD> __global__ void __launch_bounds__(THREADS) conv_rows(conv_job a)
{
    int64_t t = a.first + blockIdx.y, c = blockIdx.x * int64_t{THREADS} + threadIdx.x, first, end;
    float sum = 0;
    if (c >= a.channels) return;
    find_sequence(a, t, &first, &end);
    if constexpr (BACKWARD) {
        for (int64_t j = 0; j < a.taps; j++) {
            int64_t row = t + a.taps - 1 - j;
            if (row < end)
                sum = fmaf(load_one(a.w, a.w_dtype, c * a.taps + j), slope_at<T>(a, first, row, c), sum);
        }
        static_cast<T *>(a.dx)[t * a.dx_stride + c] = from_f32<T>(sum);
    } else {
        float slope;
        sum = activation<NBL_ACT_SILU>(sum_at<T>(a, first, t, c), &slope);
        static_cast<T *>(a.y)[t * a.y_stride + c] = from_f32<T>(sum);
    }
}

/* The sums of dw over a span of rows. */
template <typename T> __global__ void __launch_bounds__(THREADS) sum_weights(conv_job a)
{
    int64_t c = blockIdx.x * int64_t{THREADS} + threadIdx.x, rows = (a.tokens + SPANS - 1) / SPANS;
    int64_t begin = blockIdx.y * rows, end = begin + rows < a.tokens ? begin + rows : a.tokens;
    if (c >= a.channels) return;
    float *sums = a.sums + blockIdx.y * a.taps * a.channels;
    for (int64_t j = 0; j < a.taps; j++) sums[j * a.channels + c] = 0;
    for (int64_t t = begin; t < end; t++) {
        int64_t first, last;
        find_sequence(a, t, &first, &last);
        float dc = slope_at<T>(a, first, t, c);
        for (int64_t j = 0; j < a.taps; j++) {
            int64_t row = t - a.taps + 1 + j;
            if (row >= first)
                sums[j * a.channels + c] += dc * to_f32(static_cast<const T *>(a.x)[row * a.x_stride + c]);
        }
    }
}

/* dw [channels, taps] (+)= the spans, in order. */
__global__ void add_spans(conv_job a, float *dw, bool accumulate)
{
    int64_t i = blockIdx.x * int64_t{THREADS} + threadIdx.x;
    if (i >= a.channels * a.taps) return;
    float sum = accumulate ? dw[i] : 0;
    for (int64_t span = 0; span < SPANS; span++)
        sum += a.sums[(span * a.taps + i % a.taps) * a.channels + i / a.taps];
    dw[i] = sum;
}

/* Row j of the state of sequence blockIdx.y / (taps - 1). */
template <typename T> __global__ void __launch_bounds__(THREADS) keep_rows(conv_job a)
{
    int64_t c = blockIdx.x * int64_t{THREADS} + threadIdx.x, kept = a.taps - 1, row = a.first + blockIdx.y;
    if (c >= a.channels) return;
    int64_t s = row / kept, token = a.starts[s + 1] - kept + row % kept;
    bool inside = token >= a.starts[s] && token >= 0 && token < a.tokens;
    static_cast<T *>(a.state)[row * a.channels + c] = inside ? static_cast<const T *>(
                                                                   a.x)[token * a.x_stride + c]
                                                             : from_f32<T>(0.0f);
}

/* One token of a sequence; its channel of the state moves on. */
template <typename T> __global__ void __launch_bounds__(THREADS) step_rows(conv_job a)
{
    int64_t s = a.first + blockIdx.y, c = blockIdx.x * int64_t{THREADS} + threadIdx.x, kept = a.taps - 1;
    if (c >= a.channels) return;
    const T *from = static_cast<const T *>(a.state) + s * kept * a.channels + c;
    T *to = static_cast<T *>(a.next) + s * kept * a.channels + c,
      x = static_cast<const T *>(a.x)[s * a.x_stride + c];
    float slope, sum = 0;
    for (int64_t j = 0; j < kept; j++) {
        T row = from[j * a.channels];
        sum = fmaf(load_one(a.w, a.w_dtype, c * a.taps + j), to_f32(row), sum);
        if (j > 0) to[(j - 1) * a.channels] = row; /* from and to may be the same */
    }
    sum = to_f32(from_f32<T>(fmaf(load_one(a.w, a.w_dtype, c * a.taps + kept), to_f32(x), sum)));
    to[(kept - 1) * a.channels] = x;
    static_cast<T *>(a.y)[s * a.y_stride + c] = from_f32<T>(activation<NBL_ACT_SILU>(sum, &slope));
}

/* Launches a kernel over `rows` rows. */
nbl_status over_rows(const nbl__call *call, conv_job a, int64_t rows, void (*kernel)(conv_job))
{
    unsigned across = static_cast<unsigned>((a.channels + THREADS - 1) / THREADS);
    for (a.first = 0; a.first < rows && across > 0; a.first += MAX_ROWS) {
        dim3 grid(across, static_cast<unsigned>(nbl__min_i64(MAX_ROWS, rows - a.first)));
        kernel<<<grid, THREADS, 0, stream_of(call)>>>(a);
    }
    return launched(call);
}

conv_job job_of(const nbl__short_conv *a)
{
    conv_job j = {};
    j.x = a->x.data, j.w = a->w.data, j.w_dtype = a->w.dtype;
    j.starts = static_cast<const int32_t *>(a->cu_seqlens.data);
    j.sequences = a->cu_seqlens.shape[0] - 1, j.tokens = a->x.shape[0];
    j.channels = a->x.shape[1], j.taps = a->w.shape[2], j.x_stride = nbl__row_stride(&a->x);
    return j;
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv *a = static_cast<const nbl__short_conv *>(arguments);
    conv_job j = job_of(a);
    j.y = a->y.data, j.y_stride = nbl__row_stride(&a->y);
    j.state = nbl__has_data(&a->state) ? a->state.data : a->last.data;
    NBL_BY_DTYPE(a->dtype, T, NBL_TRY(over_rows(call, j, j.tokens, conv_rows<T, false>)));
    if (j.state == nullptr) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T, NBL_TRY(over_rows(call, j, j.sequences * (j.taps - 1), keep_rows<T>)));
    return NBL_OK;
}

size_t backward_scratch(const nbl_context *, const void *arguments)
{
    const nbl__short_conv *a = static_cast<const nbl__short_conv *>(arguments);
    return nbl__has_data(&a->dw) ? static_cast<size_t>(SPANS * nbl__tensor_elements(&a->w)) * sizeof(float)
                                 : 0;
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv *a = static_cast<const nbl__short_conv *>(arguments);
    conv_job j = job_of(a);
    j.dy = a->dy.data, j.dy_stride = nbl__row_stride(&a->dy);
    j.dx = a->dx.data, j.dx_stride = nbl__row_stride(&a->dx);
    if (j.dx) NBL_BY_DTYPE(a->dtype, T, NBL_TRY(over_rows(call, j, j.tokens, conv_rows<T, true>)));
    if (!nbl__has_data(&a->dw)) return NBL_OK;
    j.sums = reinterpret_cast<float *>(call->scratch);
    NBL_BY_DTYPE(a->dtype, T, NBL_TRY(over_rows(call, j, SPANS, sum_weights<T>)));
    int64_t weights = j.channels * j.taps;
    if (weights == 0) return NBL_OK;
    add_spans<<<static_cast<unsigned>((weights + THREADS - 1) / THREADS), THREADS, 0, stream_of(call)>>>(
        j, static_cast<float *>(a->dw.data), a->accumulate);
    return launched(call);
}

nbl_status run_step(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv_step *a = static_cast<const nbl__short_conv_step *>(arguments);
    conv_job j = {};
    j.x = a->x.data, j.w = a->w.data, j.w_dtype = a->w.dtype, j.y = a->y.data;
    j.state = a->state.data, j.next = a->in_place ? a->state.data : a->next.data;
    j.channels = a->x.shape[1], j.taps = a->w.shape[2];
    j.x_stride = nbl__row_stride(&a->x), j.y_stride = nbl__row_stride(&a->y);
    NBL_BY_DTYPE(a->dtype, T, NBL_TRY(over_rows(call, j, a->x.shape[0], step_rows<T>)));
    return NBL_OK;
}

} // namespace

extern "C" {
#define IMPL(op, scratch_of, function)                                                                       \
    const nbl__impl nbl__##op = {                                                                            \
        .name = #op, .needs = NBL_ISA_SCALAR, .can = nullptr, .scratch = scratch_of, .run = function};
IMPL(short_conv_cuda, nullptr, run_forward)
IMPL(short_conv_backward_cuda, backward_scratch, run_backward)
IMPL(short_conv_step_cuda, nullptr, run_step)
#undef IMPL
}
