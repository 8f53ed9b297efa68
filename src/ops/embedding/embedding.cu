/* embedding.cu - embedding and embedding_backward. See embedding.h.
 *
 * Forward: y[t] = W[ids[t]] · scale. A block per id. A thread takes eight columns if rows and
 * blocks of codes allow it: 16 bytes of a dense weight, or one word of codes under one scale.
 * Otherwise column by column. Bytes: the row once, y once. Limit: memory.
 *
 * Backward: a row of dw is the sum of rows of dy in the order of the ids. No floating-point
 * atomics, no sorting:
 *
 *     sort_ids   for each id, the indices of its first and last occurrence (integer atomic minima:
 *                deterministic)
 *     sum_rows   a block per token. The block of an id's first occurrence searches the ids up to
 *                the last one and adds the rows that match, in order, in registers. All other
 *                blocks end at once
 *
 * The search reads 4 bytes per id between first and last from the cache. For 8192 tokens with 2000
 * different ids that is at most 64 MB, which takes less time than clearing dw. Scratch: 8 bytes per
 * row of the vocabulary. */
#include "ops/dequantize/dequantize_value.cuh"
#include "ops/common/load.cuh"

extern "C" {
#include "ops/embedding/embedding.h"
}

using namespace nbl_cuda;

namespace
{

/* RUN: columns per thread. NEVER: larger than any index of a token; NEVER_BYTE sets it by
 * cudaMemset. */
enum { THREADS = 128, RUN = 8, COLUMNS = THREADS * RUN, NEVER = 0x7f7f7f7f, NEVER_BYTE = 0x7f };

/* The argument of forward. A packed weight is a second argument, and `dense` is not read. */
struct look_up {
    const int32_t *ids;
    void *y;
    const void *dense;
    int dense_dtype;
    int64_t vocabulary, columns;
    float scale; /* rounded to the compute dtype */
    nbl__cuda_fault *fault;
};

/* The token's row of the weight. -1: the id is out of range, which is reported as a fault. */
__device__ inline int64_t row_of(const int32_t *ids, int64_t token, int64_t vocabulary,
                                 nbl__cuda_fault *fault)
{
    int32_t id = ids[token];
    if (id >= 0 && id < vocabulary) return id;
    if (threadIdx.x == 0) report_fault(fault, NBL_CUDA_FAULT_ID, token, id);
    return -1;
}

/* Stores N values: rounded to T, then the product with the scale rounded again if the scale is not
 * 1. */
template <typename T, int N> __device__ void store_scaled(T *to, float (&values)[N], float scale)
{
    typename pieces<T, N>::piece piece;
    constexpr int STEP = pieces<T, N>::STEP;
#pragma unroll
    for (int k = 0; k < N; k += STEP) {
#pragma unroll
        for (int j = 0; j < STEP; j++) {
            piece.at[j] = narrow<T>(values[k + j]);
            if (scale != 1) piece.at[j] = narrow<T>(widen(piece.at[j]) * scale);
        }
        *reinterpret_cast<typename pieces<T, N>::piece *>(to + k) = piece;
    }
}

/* A block per token, N columns per thread and step. An invalid id gives zeros. */
template <typename T, int N> __global__ void __launch_bounds__(THREADS) look_up_dense(look_up a)
{
    int64_t token = blockIdx.x, row = row_of(a.ids, token, a.vocabulary, a.fault);
    T *y = static_cast<T *>(a.y) + token * a.columns;
    for (int64_t k = threadIdx.x * N; k < a.columns; k += THREADS * N) {
        float values[N] = {};
        if (row >= 0) load_any<N>(a.dense, a.dense_dtype, row * a.columns + k, values);
        store_scaled<T, N>(y + k, values, a.scale);
    }
}

/* Dequantizes RUN elements from element i on, a multiple of RUN. `table` is in shared memory. */
__device__ inline void dequantize_run(const packed &p, const float *table, int64_t i, float (&values)[RUN])
{
    if (p.kind == SCALES_ROWS) {
        uint2 words = *reinterpret_cast<const uint2 *>(p.codes + i);
        float scale = p.scales[i / p.columns], codes[RUN];
        four_of_int8(words.x, codes);
        four_of_int8(words.y, codes + 4);
#pragma unroll
        for (int j = 0; j < RUN; j++) values[j] = mul_x86(mul_x86(codes[j], scale), INVERSE_127);
        return;
    }
    uint32_t word = *reinterpret_cast<const uint32_t *>(p.codes + (i >> 1));
    float scale = scale_of<false>(p, i >> p.block_shift);
#pragma unroll
    for (int j = 0; j < RUN; j++) {
        int at = j / 2 * 8 + ((j % 2 != 0) == p.low_first ? 4 : 0);
        values[j] = mul_x86(table[word >> at & 15], scale);
    }
}

/* The same for packed weights. N is RUN, or 1 for any alignment. */
template <typename T, int N>
__global__ void __launch_bounds__(THREADS) look_up_packed(look_up a, const __grid_constant__ packed p)
{
    __shared__ float table[16];
    if (threadIdx.x < 16) table[threadIdx.x] = table_entry(p, threadIdx.x);
    int64_t token = blockIdx.x, row = row_of(a.ids, token, a.vocabulary, a.fault);
    T *y = static_cast<T *>(a.y) + token * a.columns;
    __syncthreads();
    for (int64_t k = threadIdx.x * N; k < a.columns; k += THREADS * N) {
        float values[N] = {};
        if constexpr (N == RUN) {
            if (row >= 0) dequantize_run(p, table, row * a.columns + k, values);
        } else if (row >= 0) values[0] = value_at(p, row * a.columns + k);
        store_scaled<T, N>(y + k, values, a.scale);
    }
}

/* A value rounded to T. */
template <typename T> float held_by(float value)
{
    return value;
}
template <> float held_by<__half>(float value)
{
    return __half2float(__float2half_rn(value));
}
template <> float held_by<__nv_bfloat16>(float value)
{
    return __bfloat162float(__float2bfloat16_rn(value));
}

template <typename T> nbl_status forward(const nbl__call *call, const nbl__embedding *a)
{
    unsigned tokens = static_cast<unsigned>(nbl__tensor_elements(&a->ids));
    look_up l = {static_cast<const int32_t *>(a->ids.data),
                 a->y.data,
                 a->w.data,
                 a->w.dtype,
                 a->w.shape[0],
                 a->w.shape[1],
                 held_by<T>(a->scale),
                 nbl__call_cuda(call)->fault};
    bool runs = l.columns % RUN == 0 && is_aligned(a->y.data, 16);
    cudaStream_t stream = stream_of(call);
    if (tokens == 0 || l.columns == 0) return NBL_OK;
    if (a->w.format == NBL_FORMAT_DENSE) {
        if (runs && is_aligned(a->w.data, 16)) look_up_dense<T, RUN><<<tokens, THREADS, 0, stream>>>(l);
        else look_up_dense<T, 1><<<tokens, THREADS, 0, stream>>>(l);
    } else {
        packed p = packed_of(&a->w);
        bool good = runs && is_aligned(p.codes, p.kind == SCALES_ROWS ? 8 : 4);
        if (good) look_up_packed<T, RUN><<<tokens, THREADS, 0, stream>>>(l, p);
        else look_up_packed<T, 1><<<tokens, THREADS, 0, stream>>>(l, p);
    }
    return launched(call);
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__embedding *a = static_cast<const nbl__embedding *>(arguments);
    NBL_BY_DTYPE(a->dtype, T, return forward<T>(call, a));
}

/* ---- backward ---- */

struct collect {
    const int32_t *ids;
    int *first, *last; /* [vocabulary]: first occurrence of an id; NEVER - last occurrence */
    const void *dy;
    float *dw, scale;
    int64_t tokens, vocabulary, columns, padding;
    nbl__cuda_fault *fault;
    bool accumulate;
};

/* first[id] and last[id], a thread per token. Both are minima, so one memset initialises both. */
__global__ void __launch_bounds__(THREADS) sort_ids(collect a)
{
    int64_t token = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (token >= a.tokens) return;
    int32_t id = a.ids[token];
    if (id < 0 || id >= a.vocabulary) {
        report_fault(a.fault, NBL_CUDA_FAULT_ID, token, id);
        return;
    }
    atomicMin(&a.first[id], static_cast<int>(token));
    atomicMin(&a.last[id], NEVER - static_cast<int>(token));
}

/* Searches THREADS tokens from `begin` on for this id. Writes their indices to `found` in order,
 * and returns their number. All threads call it. */
__device__ inline int find_rows(const collect &a, int64_t begin, int64_t end, int32_t id, int *found)
{
    __shared__ int counts[THREADS / 32];
    int64_t token = begin + threadIdx.x;
    unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    bool match = token < end && a.ids[token] == id;
    unsigned matches = __ballot_sync(WARP, match);
    __syncthreads(); /* all threads have used the last call's results */
    if (lane == 0) counts[warp] = __popc(matches);
    __syncthreads();
    int before = 0, all = 0;
    for (unsigned i = 0; i < THREADS / 32; i++) {
        if (i < warp) before += counts[i];
        all += counts[i];
    }
    if (match) found[before + __popc(matches & ((1u << lane) - 1))] = static_cast<int>(token);
    __syncthreads();
    return all;
}

/* dw[id] (+)= Σ dy[t] · scale over the tokens of this id, in f32 and in the order of the tokens.
 * blockIdx.x: a token that may be the first of its id; blockIdx.y: a span of the columns. */
template <typename T, int N> __global__ void __launch_bounds__(THREADS) sum_rows(collect a)
{
    __shared__ int found[THREADS];
    int64_t token = blockIdx.x, column = (static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x) * N;
    int32_t id = a.ids[token];
    if (id < 0 || id >= a.vocabulary || id == a.padding || a.first[id] != token) return;
    int64_t end = NEVER - a.last[id] + 1;
    float sum[N] = {};
    for (int64_t begin = token; begin < end; begin += THREADS) {
        int count = find_rows(a, begin, end, id, found);
        if (column >= a.columns) continue;
#pragma unroll 4
        for (int i = 0; i < count; i++) {
            float d[N];
            load_run<T, N>(static_cast<const T *>(a.dy) + found[i] * a.columns + column, d);
#pragma unroll
            for (int j = 0; j < N; j++) sum[j] = fmaf(d[j], a.scale, sum[j]);
        }
    }
    if (column >= a.columns) return;
    float *to = a.dw + id * a.columns + column;
    if (a.accumulate) {
        float before[N];
        load_run<float, N>(to, before);
#pragma unroll
        for (int j = 0; j < N; j++) sum[j] += before[j];
    }
    store_run<float, N>(to, sum);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__embedding *a = static_cast<const nbl__embedding *>(arguments);
    nbl__bump bump = {call->scratch, 0};
    collect c = {};
    c.ids = static_cast<const int32_t *>(a->ids.data);
    c.tokens = nbl__tensor_elements(&a->ids);
    c.vocabulary = a->w.shape[0];
    c.columns = a->w.shape[1];
    c.dy = a->dy.data;
    c.dw = static_cast<float *>(a->dw.data);
    c.padding = a->padding;
    c.fault = nbl__call_cuda(call)->fault;
    c.accumulate = a->accumulate;
    size_t bytes = static_cast<size_t>(c.vocabulary) * 2 * sizeof(int);
    c.first = static_cast<int *>(nbl__bump_alloc(&bump, bytes));
    c.last = c.first + c.vocabulary;
    NBL_BY_DTYPE(a->dtype, T, c.scale = held_by<T>(a->scale));
    cudaStream_t stream = stream_of(call);
    if (c.dw && !a->accumulate)
        cudaMemsetAsync(c.dw, 0, static_cast<size_t>(c.vocabulary * c.columns) * sizeof(float), stream);
    if (c.tokens == 0 || c.columns == 0) return launched(call);
    cudaMemsetAsync(c.first, NEVER_BYTE, bytes, stream);
    sort_ids<<<static_cast<unsigned>(ceil_div(c.tokens, THREADS)), THREADS, 0, stream>>>(c);
    if (c.dw == nullptr) return launched(call);
    bool runs = c.columns % RUN == 0 && is_aligned(c.dy, 16) && is_aligned(c.dw, 16);
    dim3 grid(static_cast<unsigned>(c.tokens),
              static_cast<unsigned>(ceil_div(c.columns, runs ? COLUMNS : int{THREADS})));
    if (runs) NBL_BY_DTYPE(a->dtype, T, (sum_rows<T, RUN><<<grid, THREADS, 0, stream>>>(c)));
    else NBL_BY_DTYPE(a->dtype, T, (sum_rows<T, 1><<<grid, THREADS, 0, stream>>>(c)));
    return launched(call);
}

const char *can_backward(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    const nbl__embedding *a = static_cast<const nbl__embedding *>(arguments);
    if (nbl__tensor_elements(&a->ids) >= NEVER) return "more than 2^31 - 2^23 ids";
    return ceil_div(a->w.shape[1], THREADS) > 65535 ? "more than 2^23 columns" : nullptr;
}

size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return static_cast<size_t>(static_cast<const nbl__embedding *>(arguments)->w.shape[0]) * 2 * sizeof(int) +
           64;
}

} // namespace

extern "C" {
const nbl__impl nbl__embedding_cuda = {.name = "embedding_cuda",
                                       .needs = NBL_ISA_SCALAR,
                                       .can = nullptr,
                                       .scratch = nullptr,
                                       .run = run_forward};
const nbl__impl nbl__embedding_backward_cuda = {.name = "embedding_backward_cuda",
                                                .needs = NBL_ISA_SCALAR,
                                                .can = can_backward,
                                                .scratch = backward_scratch,
                                                .run = run_backward};
}
