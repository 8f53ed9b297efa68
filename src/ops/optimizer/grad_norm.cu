/* grad_norm.cu - grad_norm. See grad_norm.h.
 *
 *     squares   a block sums the squares of a span of 8192 elements in f64, and stores the sum with the tensor's index
 *     finish    one block adds the sums in a fixed order: norm, clipping factor, first non-finite tensor
 *     clip      with max_norm: multiplies in place if the factor is not 1; or adamw applies the factor
 *
 * The host does not wait for the norm. Bytes: one read; clipping reads and writes once more. Limit: memory bandwidth.
 * Scratch: 16 bytes per span. */
#include "ops/optimizer/tensor_spans.cuh"

extern "C" {
#include "ops/optimizer/grad_norm.h"
}

using namespace nbl_cuda;

namespace
{

/* N: elements per load. SPAN: elements per block. SMALL, MANY: tensors per launch. */
enum { THREADS = 256, N = 8, SPAN = 8192, FINISH_THREADS = 1024, SMALL = 96, MANY = 780 };

/* The sum of squares of a span, and the index of its tensor. */
struct part {
    double squares;
    int64_t tensor;
};

/* A gradient; `first` is its first block in the launch. `aligned`: to 16 bytes. */
struct entry {
    void *g;
    int64_t n;
    unsigned first;
    int tensor;
    int dtype;
    bool aligned;
};

struct common {
    part *parts; /* of this launch */
    const float *factor;
};

using small = tensor_list<entry, SMALL, common>;
using many = tensor_list<entry, MANY, common>;

/* Elements [begin, end) of a tensor. Those before `whole` can be read in runs. */
struct span {
    int64_t begin, whole, end;
};
__device__ inline span span_of(const entry &e)
{
    int64_t begin = static_cast<int64_t>(blockIdx.x - e.first) * SPAN;
    int64_t end = begin + SPAN < e.n ? begin + SPAN : e.n;
    return {begin, e.aligned ? begin + (end - begin) / N * N : begin, end};
}

/* sum + Σ g² of COUNT elements, in f64. */
template <typename T, int COUNT> __device__ double add_squares(const T *g, double sum)
{
    float values[COUNT];
    load_run<T, COUNT>(g, values);
#pragma unroll
    for (int j = 0; j < COUNT; j++)
        sum = fma(static_cast<double>(values[j]), static_cast<double>(values[j]), sum);
    return sum;
}

/* This thread's part of the squares of a span: runs of N, four in flight, then single elements. */
template <typename T> __device__ double squares_of(const T *g, const span &s)
{
    double sum = 0;
#pragma unroll 4
    for (int64_t i = s.begin + threadIdx.x * N; i < s.whole; i += THREADS * N)
        sum = add_squares<T, N>(g + i, sum);
    for (int64_t i = s.whole + threadIdx.x; i < s.end; i += THREADS) sum = add_squares<T, 1>(g + i, sum);
    return sum;
}

/* parts[block] = Σ g² of the block's span, added in a fixed order. */
template <typename LIST>
__global__ void __launch_bounds__(THREADS) squares_kernel(const __grid_constant__ LIST list)
{
    const entry &e = list.at[entry_of(list, blockIdx.x)];
    double sum[1];
    NBL_BY_DTYPE(e.dtype, T, sum[0] = squares_of(static_cast<const T *>(e.g), span_of(e)));
    block_sums(sum);
    if (threadIdx.x == 0) list.common.parts[blockIdx.x] = {sum[0], e.tensor};
}

/* norm = √Σ, factor = min(1, max_norm / (norm + 1e-6)), non_finite = the first tensor with NaN or
 * infinity (-1: none). `blame`: with such a tensor the factor is NaN, so adamw changes nothing. One
 * block; sums in a fixed order. */
__global__ void __launch_bounds__(FINISH_THREADS)
    finish_kernel(const part *parts, int64_t count, double max_norm, float *norm, int64_t *non_finite,
                  float *factor, bool blame)
{
    __shared__ unsigned long long blamed;
    unsigned long long mine = ~0ull;
    double sum[1] = {0};
    if (threadIdx.x == 0) blamed = ~0ull;
    __syncthreads();
    for (int64_t i = threadIdx.x; i < count; i += FINISH_THREADS) {
        part p = parts[i];
        sum[0] += p.squares; /* squares of f32 do not overflow f64: only a gradient makes it non-finite */
        if (!isfinite(p.squares) && static_cast<unsigned long long>(p.tensor) < mine)
            mine = static_cast<unsigned long long>(p.tensor);
    }
    if (mine != ~0ull) atomicMin(&blamed, mine);
    block_sums(sum);
    __syncthreads();
    if (threadIdx.x != 0) return;
    double whole = sqrt(sum[0]), clip = 1;
    if (max_norm > 0 && isfinite(static_cast<float>(whole))) clip = fmin(1.0, max_norm / (whole + 1e-6));
    *norm = static_cast<float>(whole);
    *factor = blame && blamed != ~0ull ? __int_as_float(0x7fc00000) : static_cast<float>(clip);
    if (non_finite) *non_finite = static_cast<int64_t>(blamed); /* none: -1 */
}

/* RUNS runs of COUNT elements, THREADS·COUNT apart: all are loaded before the first is stored. */
template <typename T, int COUNT, int RUNS> __device__ void scale_runs(T *g, float factor)
{
    float values[RUNS][COUNT];
#pragma unroll
    for (int k = 0; k < RUNS; k++) load_run<T, COUNT>(g + k * THREADS * COUNT, values[k]);
#pragma unroll
    for (int k = 0; k < RUNS; k++) {
#pragma unroll
        for (int j = 0; j < COUNT; j++) values[k][j] *= factor;
        store_run<T, COUNT>(g + k * THREADS * COUNT, values[k]);
    }
}

/* Multiplies a span by the factor in place. */
template <typename T> __device__ void scale_span(T *g, const span &s, float factor)
{
    int64_t i = s.begin + threadIdx.x * N;
    for (; i + THREADS * N < s.whole; i += 2 * THREADS * N) scale_runs<T, N, 2>(g + i, factor);
    for (; i < s.whole; i += THREADS * N) scale_runs<T, N, 1>(g + i, factor);
    for (i = s.whole + threadIdx.x; i < s.end; i += THREADS) scale_runs<T, 1, 1>(g + i, factor);
}

/* Clips all gradients of a list. A factor of 1 costs a launch and no traffic. */
template <typename LIST>
__global__ void __launch_bounds__(THREADS) clip_kernel(const __grid_constant__ LIST list)
{
    float factor = *list.common.factor;
    if (factor == 1) return;
    const entry &e = list.at[entry_of(list, blockIdx.x)];
    NBL_BY_DTYPE(e.dtype, T, scale_span(static_cast<T *>(e.g), span_of(e), factor));
}

/* ---- host ---- */

struct work {
    part *parts;
    float *factor;
    int64_t spans;
};

/* Scratch: the factor, then the parts of all spans. With base NULL it only returns the size. */
size_t layout(const nbl__grad_norm *a, uint8_t *base, work *w)
{
    nbl__bump bump = {base, 0};
    w->spans = 0;
    for (int64_t i = 0; i < a->count; i++)
        w->spans += ceil_div(nbl__tensor_elements(&a->gradients[i]), SPAN);
    w->factor = static_cast<float *>(nbl__bump_alloc(&bump, sizeof(float)));
    w->parts = static_cast<part *>(nbl__bump_alloc(&bump, static_cast<size_t>(w->spans) * sizeof(part)));
    return bump.used;
}

size_t scratch(const nbl_context *ctx, const void *arguments)
{
    work w;
    (void)ctx;
    return layout(static_cast<const nbl__grad_norm *>(arguments), nullptr, &w);
}

entry entry_at(const nbl__grad_norm *a, int64_t i)
{
    const nbl_tensor *g = &a->gradients[i];
    return {g->data, nbl__tensor_elements(g), 0, static_cast<int>(i), g->dtype, is_aligned(g->data, 16)};
}

/* The three steps. With a->factor the clipping is left to adamw. */
template <typename LIST> nbl_status run_lists(const nbl__call *call, const nbl__grad_norm *a)
{
    work w;
    cudaStream_t stream = stream_of(call);
    layout(a, call->scratch, &w);
    part *next = w.parts;
    auto make = [=](int64_t i) { return entry_at(a, i); };
    for_lists<LIST>(a->count, SPAN, common{}, make, [&](LIST &list, unsigned spans) {
        list.common.parts = next;
        next += spans;
        squares_kernel<<<spans, THREADS, 0, stream>>>(list);
    });
    finish_kernel<<<1, FINISH_THREADS, 0, stream>>>(w.parts, w.spans, a->max_norm,
                                                    static_cast<float *>(a->norm.data), a->non_finite,
                                                    a->factor ? a->factor : w.factor, a->factor != nullptr);
    if (a->max_norm > 0 && !a->factor)
        for_lists<LIST>(
            a->count, SPAN, common{nullptr, w.factor}, make,
            [&](LIST &list, unsigned spans) { clip_kernel<<<spans, THREADS, 0, stream>>>(list); });
    return launched(call);
}

nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__grad_norm *a = static_cast<const nbl__grad_norm *>(arguments);
    return a->count <= SMALL ? run_lists<small>(call, a) : run_lists<many>(call, a);
}

} // namespace

extern "C" {
const nbl__impl nbl__grad_norm_cuda = {
    .name = "grad_norm_cuda", .needs = NBL_ISA_SCALAR, .can = nullptr, .scratch = scratch, .run = run};
}
