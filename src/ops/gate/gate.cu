/* gate.cu - sigmoid_gate, gated_norm and split_heads on the device, and their backwards. See
 * sigmoid_gate.h, gated_norm.h and split_heads.h.
 *
 *     sigmoid_gate    a block per row
 *     gated_norm      a warp per head: its sum, then its results from the cache
 *                     dw: each warp adds its heads to a row of sums; then the rows are added in order
 *     split_heads     a thread per element of x
 *
 * Single elements are loaded, so no alignment is needed. Bytes: every tensor once, x of gated_norm
 * twice. Limit: memory. */
#include "ops/elementwise/act.cuh"
#include "ops/common/load.cuh"

extern "C" {
#include "ops/gate/gated_norm.h"
#include "ops/gate/sigmoid_gate.h"
#include "ops/gate/split_heads.h"
}

using namespace nbl_cuda;

namespace
{

enum { THREADS = 256, WARPS = THREADS / 32, SUMS = 64 }; /* SUMS: blocks that sum dw */

/* A tensor of rows; NULL if it is not wanted. */
struct rows_of {
    void *at;
    int64_t stride;
};

rows_of rows(const nbl_tensor *t)
{
    return {t->data, nbl__row_stride(t)};
}

template <typename T> __device__ inline float get(const rows_of &t, int64_t row, int64_t i)
{
    return to_f32(static_cast<const T *>(t.at)[row * t.stride + i]);
}

template <typename T> __device__ inline void put(const rows_of &t, int64_t row, int64_t i, float value)
{
    if (t.at) static_cast<T *>(t.at)[row * t.stride + i] = from_f32<T>(value);
}

/* ---- sigmoid_gate ---- */

struct gate_job {
    rows_of x, gate, y, dy, dx, dgate;
    int64_t columns;
    bool one; /* one gate for a whole row */
};

template <typename T, bool BACKWARD> __global__ void __launch_bounds__(THREADS) gate_rows(gate_job a)
{
    int64_t row = blockIdx.x;
    float sum[1] = {0};
    for (int64_t i = threadIdx.x; i < a.columns; i += THREADS) {
        float g = get<T>(a.gate, row, a.one ? 0 : i), x = get<T>(a.x, row, i), s = logistic(g);
        if (!BACKWARD) {
            put<T>(a.y, row, i, x * s);
            continue;
        }
        float d = get<T>(a.dy, row, i) * s, rest = d * x * logistic(-g);
        put<T>(a.dx, row, i, d);
        if (a.one) sum[0] += rest;
        else put<T>(a.dgate, row, i, rest);
    }
    if (!BACKWARD || !a.one) return;
    block_sums(sum);
    if (threadIdx.x == 0) put<T>(a.dgate, row, 0, sum[0]);
}

template <bool BACKWARD> nbl_status run_gate(const nbl__call *call, const void *arguments)
{
    const nbl__sigmoid_gate *a = static_cast<const nbl__sigmoid_gate *>(arguments);
    gate_job j = {rows(&a->x),   rows(&a->gate),       BACKWARD ? rows_of{} : rows(&a->y), {}, {}, {},
                  a->x.shape[1], a->gate.shape[1] == 1};
    if (BACKWARD) j.dy = rows(&a->dy), j.dx = rows(&a->dx), j.dgate = rows(&a->dgate);
    unsigned blocks = static_cast<unsigned>(a->x.shape[0]);
    bool sums = BACKWARD && a->gate.shape[1] == 1; /* dgate is 0 without columns */
    if (blocks == 0 || (j.columns == 0 && !sums)) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T, (gate_rows<T, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(j)));
    return launched(call);
}

/* ---- gated_norm ---- */

struct norm_job {
    rows_of x, gate, y, dy, dx, dgate; /* rows: tokens */
    const void *w;
    nbl_dtype w_dtype;
    int64_t heads, columns, count; /* count: tokens · heads */
    float eps;
    float *sums; /* [warps, columns]: dw by warp; NULL: not wanted */
};

/* silu(g), and its derivative. */
__device__ inline float silu(float g, float *slope)
{
    return activation<NBL_ACT_SILU>(g, slope);
}

template <typename T, bool BACKWARD> __global__ void __launch_bounds__(THREADS) norm_heads(norm_job a)
{
    int lane = threadIdx.x % 32;
    int64_t warp = blockIdx.x * int64_t{WARPS} + threadIdx.x / 32, warps = gridDim.x * int64_t{WARPS};
    if (BACKWARD && a.sums)
        for (int64_t i = lane; i < a.columns; i += 32) a.sums[warp * a.columns + i] = 0;
    for (int64_t head = warp; head < a.count; head += warps) {
        int64_t token = head / a.heads, at = head % a.heads * a.columns;
        float sum = 0, dots = 0, slope;
        for (int64_t i = lane; i < a.columns; i += 32) {
            float x = get<T>(a.x, token, at + i);
            sum = fmaf(x, x, sum);
        }
        float r = 1 / sqrtf(warp_sum(sum) / static_cast<float>(a.columns) + a.eps);
        for (int64_t i = lane; i < a.columns; i += 32) {
            float n = get<T>(a.x, token, at + i) * r, w = load_one(a.w, a.w_dtype, i);
            float value = silu(get<T>(a.gate, token, at + i), &slope);
            if (!BACKWARD) {
                put<T>(a.y, token, at + i, w * n * value);
                continue;
            }
            float d = get<T>(a.dy, token, at + i);
            put<T>(a.dgate, token, at + i, d * w * n * slope);
            dots = fmaf(d * w * value, n, dots);
            if (a.sums) a.sums[warp * a.columns + i] += d * n * value;
        }
        if (!BACKWARD || a.dx.at == nullptr) continue;
        float mean = warp_sum(dots) / static_cast<float>(a.columns);
        for (int64_t i = lane; i < a.columns; i += 32) {
            float n = get<T>(a.x, token, at + i) * r, value = silu(get<T>(a.gate, token, at + i), &slope);
            float dn = get<T>(a.dy, token, at + i) * load_one(a.w, a.w_dtype, i) * value;
            put<T>(a.dx, token, at + i, r * (dn - n * mean));
        }
    }
}

/* dw (+)= the rows of sums, in order. */
__global__ void add_rows(const float *sums, int64_t count, int64_t columns, float *dw, bool accumulate)
{
    int64_t i = blockIdx.x * int64_t{THREADS} + threadIdx.x;
    if (i >= columns) return;
    float sum = accumulate ? dw[i] : 0;
    for (int64_t row = 0; row < count; row++) sum += sums[row * columns + i];
    dw[i] = sum;
}

size_t norm_scratch(const nbl_context *, const void *arguments)
{
    const nbl__gated_norm *a = static_cast<const nbl__gated_norm *>(arguments);
    return static_cast<size_t>(SUMS * WARPS * a->x.shape[2]) * sizeof(float);
}

template <bool BACKWARD> nbl_status run_norm(const nbl__call *call, const void *arguments)
{
    const nbl__gated_norm *a = static_cast<const nbl__gated_norm *>(arguments);
    norm_job j = {};
    j.x = rows(&a->x), j.gate = rows(&a->gate);
    if (BACKWARD) j.dy = rows(&a->dy), j.dx = rows(&a->dx), j.dgate = rows(&a->dgate);
    else j.y = rows(&a->y);
    j.w = a->w.data, j.w_dtype = a->w.dtype;
    j.heads = a->x.shape[1], j.columns = a->x.shape[2], j.count = a->x.shape[0] * a->x.shape[1];
    j.eps = a->eps;
    bool sums = BACKWARD && nbl__has_data(&a->dw);
    if (sums) j.sums = reinterpret_cast<float *>(call->scratch);
    int64_t wanted = (j.count + WARPS - 1) / WARPS;
    unsigned blocks = static_cast<unsigned>(sums ? int64_t{SUMS} : wanted);
    if (blocks == 0) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T, (norm_heads<T, BACKWARD><<<blocks, THREADS, 0, stream_of(call)>>>(j)));
    if (sums) {
        unsigned parts = static_cast<unsigned>((j.columns + THREADS - 1) / THREADS);
        add_rows<<<parts, THREADS, 0, stream_of(call)>>>(j.sums, int64_t{SUMS} * WARPS, j.columns,
                                                         static_cast<float *>(a->dw.data), a->accumulate);
    }
    return launched(call);
}

/* ---- split_heads ---- */

struct split_job {
    rows_of x, front, rest;
    int64_t heads, width; /* of a head in x */
    int64_t widths[NBL_SPLIT_PARTS];
};

template <typename T, bool BACKWARD>
__global__ void __launch_bounds__(THREADS) split_rows(split_job a, int64_t first)
{
    int64_t row = first + blockIdx.y, i = blockIdx.x * int64_t{THREADS} + threadIdx.x;
    if (i >= a.heads * a.width) return;
    int64_t head = i / a.width, at = i % a.width, before = 0; /* of the parts before, over all heads */
    rows_of packed = a.rest;
    int64_t width = a.width - a.widths[0] - a.widths[1] - a.widths[2];
    for (int part = 0; part < NBL_SPLIT_PARTS; part++) {
        if (at < a.widths[part]) {
            packed = a.front;
            width = a.widths[part];
            break;
        }
        at -= a.widths[part];
        before += a.heads * a.widths[part];
    }
    if (packed.at == a.rest.at) before = 0;
    T *x = static_cast<T *>(a.x.at) + row * a.x.stride + i;
    T *other = static_cast<T *>(packed.at) + row * packed.stride + before + head * width + at;
    if (BACKWARD) *x = *other;
    else *other = *x;
}

template <bool BACKWARD> nbl_status run_split(const nbl__call *call, const void *arguments)
{
    const nbl__split_heads *a = static_cast<const nbl__split_heads *>(arguments);
    split_job j = {rows(BACKWARD ? &a->dx : &a->x),
                   rows(BACKWARD ? &a->dfront : &a->front),
                   rows(BACKWARD ? &a->drest : &a->rest),
                   a->heads,
                   a->x.shape[1] / a->heads,
                   {a->widths[0], a->widths[1], a->widths[2]}};
    constexpr int64_t MAX_ROWS = 65535; /* of a grid */
    if (j.x.at == nullptr) return NBL_OK;
    unsigned across = static_cast<unsigned>((a->x.shape[1] + THREADS - 1) / THREADS);
    for (int64_t first = 0; first < a->x.shape[0]; first += MAX_ROWS) {
        dim3 grid(across, static_cast<unsigned>(nbl__min_i64(MAX_ROWS, a->x.shape[0] - first)));
        NBL_BY_DTYPE(a->dtype, T, (split_rows<T, BACKWARD><<<grid, THREADS, 0, stream_of(call)>>>(j, first)));
    }
    return launched(call);
}

} // namespace

extern "C" {
#define IMPL(op, scratch_of, function)                                                                       \
    const nbl__impl nbl__##op = {                                                                            \
        .name = #op, .needs = NBL_ISA_SCALAR, .can = nullptr, .scratch = scratch_of, .run = function};
IMPL(sigmoid_gate_cuda, nullptr, run_gate<false>)
IMPL(sigmoid_gate_backward_cuda, nullptr, run_gate<true>)
IMPL(gated_norm_cuda, nullptr, run_norm<false>)
IMPL(gated_norm_backward_cuda, norm_scratch, run_norm<true>)
IMPL(split_heads_cuda, nullptr, run_split<false>)
IMPL(split_heads_backward_cuda, nullptr, run_split<true>)
#undef IMPL
}
