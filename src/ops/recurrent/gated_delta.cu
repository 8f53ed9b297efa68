/* gated_delta.cu - gated_delta and gated_delta_step on the device, token by token. See gated_delta.h.
 *
 *     a block per sequence and value head, a thread per column of the state
 *         for each token: load q and k, normalize; the column decays, is corrected, is read
 *
 * gated_delta keeps the state in shared memory, gated_delta_step reads and writes it in global
 * memory once each. Limit: the latency of a token. The backward is in
 * gated_delta_backward.cu. */
#include "ops/common/load.cuh"

extern "C" {
#include "ops/recurrent/gated_delta.h"
}

using namespace nbl_cuda;

namespace
{

enum { MAX_THREADS = 512, SHARED_LIMIT = 96 << 10 };

struct delta_job {
    const void *q, *k, *v, *a, *b, *a_log, *dt_bias;
    nbl_dtype a_log_dtype, dt_bias_dtype;
    const int32_t *starts; /* NULL: a step */
    void *o;
    const float *before; /* a step: the states */
    float *after;        /* the last states; NULL: not wanted */
    int64_t q_stride, k_stride, v_stride, a_stride, b_stride, o_stride, tokens;
    int values, group, dk, dv; /* value heads, those of a key head, sizes */
};

/* What all threads share of a token. */
struct token {
    float decay, beta;
};

/* q and k of a token into shared memory, not normalized yet; sums of their squares. */
template <typename T>
__device__ inline void load_keys(const delta_job &a, int64_t t, int head, float *q, float *k,
                                 float (&sums)[2])
{
    const T *from_q = static_cast<const T *>(a.q) + t * a.q_stride + head / a.group * a.dk;
    const T *from_k = static_cast<const T *>(a.k) + t * a.k_stride + head / a.group * a.dk;
    sums[0] = sums[1] = 0;
    for (int i = threadIdx.x; i < a.dk; i += blockDim.x) {
        q[i] = to_f32(from_q[i]);
        k[i] = to_f32(from_k[i]);
        sums[0] = fmaf(q[i], q[i], sums[0]);
        sums[1] = fmaf(k[i], k[i], sums[1]);
    }
}

/* log(1 + e) for e in (0, 1], also where 1 + e is rounded. */
__device__ inline float log_above_one(float e)
{
    float y = 1 + e;
    return y == 1 ? e : logf(y) * (e / (y - 1));
}

template <typename T> __device__ inline token gates(const delta_job &a, int64_t t, int head)
{
    float pre = to_f32(static_cast<const T *>(a.a)[t * a.a_stride + head]) +
                load_one(a.dt_bias, a.dt_bias_dtype, head);
    float soft = log_above_one(expf(-fabsf(pre))) + fmaxf(pre, 0.0f);
    float b = to_f32(static_cast<const T *>(a.b)[t * a.b_stride + head]);
    return {expf(-expf(load_one(a.a_log, a.a_log_dtype, head)) * soft), 1 / (1 + expf(-b))};
}

/* Tokens of a head, from the state `from` to the state `to` (the same, or two in global memory). */
template <typename T>
__device__ inline void tokens_of(const delta_job &a, int64_t begin, int64_t end, int head, const float *from,
                                 float *to, float *q, float *k)
{
    __shared__ token shared;
    int j = threadIdx.x;
    for (int64_t t = begin; t < end; t++) {
        float sums[2];
        load_keys<T>(a, t, head, q, k, sums);
        if (j == 0) shared = gates<T>(a, t, head);
        block_sums(sums);
        __syncthreads();
        float r_q = 1 / sqrtf(sums[0] + static_cast<float>(NBL_GATED_DELTA_EPS));
        float r_k = 1 / sqrtf(sums[1] + static_cast<float>(NBL_GATED_DELTA_EPS));
        if (j < a.dv) {
            float read = 0, out = 0, decay = shared.decay;
            for (int i = 0; i < a.dk; i++) read = fmaf(from[i * a.dv + j], k[i], read);
            float v = to_f32(static_cast<const T *>(a.v)[t * a.v_stride + head * a.dv + j]);
            float u = shared.beta * (v - decay * (read * r_k)) * r_k;
            for (int i = 0; i < a.dk; i++) {
                float state = fmaf(k[i], u, decay * from[i * a.dv + j]);
                to[i * a.dv + j] = state;
                out = fmaf(state, q[i], out);
            }
            out *= r_q / sqrtf(static_cast<float>(a.dk));
            static_cast<T *>(a.o)[t * a.o_stride + head * a.dv + j] = from_f32<T>(out);
        }
        __syncthreads();
    }
}

template <typename T> __global__ void __launch_bounds__(MAX_THREADS) rule_kernel(delta_job a)
{
    extern __shared__ float memory[];
    int head = static_cast<int>(blockIdx.x) % a.values, size = a.dk * a.dv;
    int64_t sequence = blockIdx.x / a.values, at = int64_t{blockIdx.x} * size;
    float *q = memory, *k = q + a.dk, *state = k + a.dk;
    if (a.starts == nullptr) {
        tokens_of<T>(a, sequence, sequence + 1, head, a.before + at, a.after + at, q, k);
        return;
    }
    int64_t begin = a.starts[sequence], end = a.starts[sequence + 1];
    for (int i = threadIdx.x; i < size; i += blockDim.x) state[i] = 0;
    __syncthreads();
    if (begin < 0) begin = 0;
    if (end > a.tokens) end = a.tokens;
    tokens_of<T>(a, begin, end, head, state, state, q, k);
    __syncthreads();
    for (int i = threadIdx.x; i < size && a.after; i += blockDim.x) a.after[at + i] = state[i];
}

template <typename A> delta_job job_of(const A *a)
{
    delta_job j = {};
    j.q = a->q.data, j.k = a->k.data, j.v = a->v.data, j.a = a->a.data, j.b = a->b.data, j.o = a->o.data;
    j.a_log = a->a_log.data, j.dt_bias = a->dt_bias.data;
    j.a_log_dtype = a->a_log.dtype, j.dt_bias_dtype = a->dt_bias.dtype;
    j.q_stride = nbl__row_stride(&a->q), j.k_stride = nbl__row_stride(&a->k),
    j.v_stride = nbl__row_stride(&a->v);
    j.a_stride = nbl__row_stride(&a->a), j.b_stride = nbl__row_stride(&a->b),
    j.o_stride = nbl__row_stride(&a->o);
    j.tokens = a->q.shape[0], j.values = static_cast<int>(a->v.shape[1]);
    j.group = static_cast<int>(a->v.shape[1] / a->q.shape[1]);
    j.dk = static_cast<int>(a->q.shape[2]), j.dv = static_cast<int>(a->v.shape[2]);
    return j;
}

size_t shared_bytes(int64_t dk, int64_t dv, bool state)
{
    return static_cast<size_t>(2 * dk + (state ? dk * dv : 0)) * sizeof(float);
}

template <typename T> nbl_status launch(const nbl__call *call, const delta_job &j, int64_t sequences)
{
    size_t bytes = shared_bytes(j.dk, j.dv, j.starts != nullptr);
    unsigned threads = static_cast<unsigned>((j.dv + 31) / 32 * 32);
    if (sequences * j.values == 0) return NBL_OK;
    cudaFuncSetAttribute(rule_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                         static_cast<int>(SHARED_LIMIT));
    rule_kernel<T><<<static_cast<unsigned>(sequences * j.values), threads, bytes, stream_of(call)>>>(j);
    return launched(call);
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__gated_delta *a = static_cast<const nbl__gated_delta *>(arguments);
    delta_job j = job_of(a);
    j.starts = static_cast<const int32_t *>(a->cu_seqlens.data);
    j.after = static_cast<float *>(nbl__has_data(&a->state) ? a->state.data : a->last.data);
    NBL_BY_DTYPE(a->dtype, T, NBL_TRY(launch<T>(call, j, a->cu_seqlens.shape[0] - 1)));
    return NBL_OK;
}

nbl_status run_step(const nbl__call *call, const void *arguments)
{
    const nbl__gated_delta_step *a = static_cast<const nbl__gated_delta_step *>(arguments);
    delta_job j = job_of(a);
    j.before = static_cast<const float *>(a->state.data);
    j.after = static_cast<float *>(a->in_place ? a->state.data : a->next.data);
    NBL_BY_DTYPE(a->dtype, T, NBL_TRY(launch<T>(call, j, a->q.shape[0])));
    return NBL_OK;
}

const char *can_run(int64_t dk, int64_t dv, bool state)
{
    if (dv > MAX_THREADS) return "value heads are wider than 512";
    return dk > 8192 || shared_bytes(dk, dv, state) > SHARED_LIMIT ? "a head is too large for shared memory"
                                                                   : nullptr;
}

const char *can_forward(const nbl_context *, const void *arguments)
{
    const nbl__gated_delta *a = static_cast<const nbl__gated_delta *>(arguments);
    return can_run(a->q.shape[2], a->v.shape[2], true);
}

const char *can_step(const nbl_context *, const void *arguments)
{
    const nbl__gated_delta_step *a = static_cast<const nbl__gated_delta_step *>(arguments);
    return can_run(a->q.shape[2], a->v.shape[2], false);
}

} // namespace

extern "C" {
const nbl__impl nbl__gated_delta_cuda = {.name = "gated_delta_cuda",
                                         .needs = NBL_ISA_SCALAR,
                                         .can = can_forward,
                                         .scratch = nullptr,
                                         .run = run_forward};
const nbl__impl nbl__gated_delta_step_cuda = {.name = "gated_delta_step_cuda",
                                              .needs = NBL_ISA_SCALAR,
                                              .can = can_step,
                                              .scratch = nullptr,
                                              .run = run_step};
}
