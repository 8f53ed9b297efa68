/* router.cu - router and router_backward. See router.h.
 *
 * A warp per token. Forward chooses one expert after the other: each round is one pass over the token's logits, which
 * looks for the largest that goes behind the last chosen one. Bytes: the logits, k + 2 times, from L1. Limit: latency;
 * a layer's experts take thousands of times longer. */
#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/moe/router.h"
}

using namespace nbl_cuda;

namespace
{

enum { WARPS = 4, THREADS = WARPS * 32 };

struct problem {
    int64_t tokens;
    int count, k, kind;
    bool round;
    nbl__cuda_fault *fault;
};

/* A logit and where it is; -1: none. */
struct choice {
    float value;
    int expert;
};

/* Does a go before b? A NaN is the largest; of equal ones the lower index goes first. */
__device__ inline bool goes_before(const choice &a, const choice &b)
{
    if (a.expert < 0 || b.expert < 0) return a.expert >= 0;
    bool a_nan = isnan(a.value), b_nan = isnan(b.value);
    if (a_nan != b_nan) return a_nan;
    if (!a_nan && a.value != b.value) return a.value > b.value;
    return a.expert < b.expert;
}

__device__ inline choice first_of_warp(choice it)
{
    for (int i = 16; i > 0; i /= 2) {
        choice other = {__shfl_xor_sync(WARP, it.value, i), __shfl_xor_sync(WARP, it.expert, i)};
        if (goes_before(other, it)) it = other;
    }
    return it;
}

__device__ inline float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

/* What probabilities are made of: the largest logit, and Σ exp(logit - largest) over the chosen experts or over all. */
struct softmax_of {
    float largest, sum;
    __device__ float operator()(float logit) const
    {
        return expf(logit - largest) / sum;
    }
};

template <typename T>
__device__ inline softmax_of make_softmax(const problem &p, const T *logits, const int32_t *chosen,
                                          float largest)
{
    int lane = threadIdx.x % 32;
    bool all = p.kind == NBL_ROUTER_SOFTMAX_TOPK;
    float sum = 0;
    for (int i = lane; i < (all ? p.count : p.k); i += 32)
        sum += expf(to_f32(logits[all ? i : chosen[i]]) - largest);
    return {largest, warp_sum(sum)};
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    choose_kernel(problem p, const T *all_logits, int32_t *experts, float *weights)
{
    int64_t token = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (token >= p.tokens) return;
    const T *logits = all_logits + token * p.count;
    int32_t *chosen = experts + token * p.k;
    choice last = {0, -1}, first = last;
    for (int i = 0; i < p.k; i++) {
        choice best = {0, -1};
        for (int e = lane; e < p.count; e += 32) {
            choice it = {to_f32(logits[e]), e};
            if ((i == 0 || goes_before(last, it)) && goes_before(it, best)) best = it;
        }
        last = first_of_warp(best);
        if (i == 0) first = last;
        if (lane == 0) chosen[i] = last.expert;
    }
    __syncwarp(); /* lane 0 wrote `chosen` */
    softmax_of share = {0, 1};
    if (p.kind != NBL_ROUTER_TOPK_SIGMOID) share = make_softmax(p, logits, chosen, first.value);
    for (int i = lane; i < p.k; i += 32) {
        float logit = to_f32(logits[chosen[i]]);
        float w = p.kind == NBL_ROUTER_TOPK_SIGMOID ? sigmoid(logit) : share(logit);
        weights[token * p.k + i] = p.round ? to_f32(from_f32<T>(w)) : w;
    }
}

/* The experts come from memory: one that does not exist is reported, and the token gets no gradient. */
__device__ inline bool experts_exist(const problem &p, int64_t token, const int32_t *chosen)
{
    bool good = true;
    for (int i = threadIdx.x % 32; i < p.k; i += 32) {
        if (chosen[i] >= 0 && chosen[i] < p.count) continue;
        report_fault(p.fault, NBL_CUDA_FAULT_EXPERT, token * p.k + i, chosen[i]);
        good = false;
    }
    return __all_sync(WARP, good);
}

template <typename T>
__global__ void __launch_bounds__(THREADS)
    slope_kernel(problem p, const T *all_logits, const int32_t *experts, const float *dweights,
                 T *all_dlogits)
{
    int64_t token = static_cast<int64_t>(blockIdx.x) * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32;
    if (token >= p.tokens) return;
    const T *logits = all_logits + token * p.count;
    T *dlogits = all_dlogits + token * p.count;
    const int32_t *chosen = experts + token * p.k;
    const float *dw = dweights + token * p.k;
    bool all = p.kind == NBL_ROUTER_SOFTMAX_TOPK, sigmoids = p.kind == NBL_ROUTER_TOPK_SIGMOID;
    if (!experts_exist(p, token, chosen)) return;
    choice best = {0, -1};
    for (int i = lane; i < (all ? p.count : p.k); i += 32) {
        choice it = {to_f32(logits[all ? i : chosen[i]]), i};
        if (goes_before(it, best)) best = it;
    }
    softmax_of share = {0, 1};
    if (!sigmoids) share = make_softmax(p, logits, chosen, first_of_warp(best).value);
    float sum = 0;
    for (int i = lane; i < p.k && !sigmoids; i += 32)
        sum = fmaf(share(to_f32(logits[chosen[i]])), dw[i], sum);
    sum = warp_sum(sum);
    for (int e = lane; e < p.count; e += 32)
        dlogits[e] = from_f32<T>(all ? share(to_f32(logits[e])) * (0 - sum) : 0.0f);
    __syncwarp(); /* the chosen ones are written over */
    for (int i = lane; i < p.k; i += 32) {
        float logit = to_f32(logits[chosen[i]]), w = sigmoids ? sigmoid(logit) : share(logit);
        dlogits[chosen[i]] = from_f32<T>(w * (sigmoids ? sigmoid(-logit) * dw[i] : dw[i] - sum));
    }
}

problem problem_of(const nbl__call *call, const nbl__router *a)
{
    return {nbl__tensor_rows(&a->logits),
            static_cast<int>(nbl__last(&a->logits)),
            static_cast<int>(a->top_k),
            a->kind,
            a->round,
            nbl__call_cuda(call)->fault};
}

unsigned blocks_for(const problem &p)
{
    return static_cast<unsigned>((p.tokens + WARPS - 1) / WARPS);
}

nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__router *a = static_cast<const nbl__router *>(arguments);
    problem p = problem_of(call, a);
    if (p.tokens == 0) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T,
                 (choose_kernel<T><<<blocks_for(p), THREADS, 0, stream_of(call)>>>(
                     p, static_cast<const T *>(a->logits.data), static_cast<int32_t *>(a->experts.data),
                     static_cast<float *>(a->weights.data))));
    return launched(call);
}

nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__router *a = static_cast<const nbl__router *>(arguments);
    problem p = problem_of(call, a);
    if (p.tokens == 0 || !nbl__has_data(&a->dlogits)) return NBL_OK;
    NBL_BY_DTYPE(a->dtype, T,
                 (slope_kernel<T><<<blocks_for(p), THREADS, 0, stream_of(call)>>>(
                     p, static_cast<const T *>(a->logits.data), static_cast<const int32_t *>(a->experts.data),
                     static_cast<const float *>(a->dweights.data), static_cast<T *>(a->dlogits.data))));
    return launched(call);
}

} // namespace

extern "C" {
const nbl__impl nbl__router_cuda = {"router_cuda", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__router_backward_cuda = {"router_backward_cuda", NBL_ISA_SCALAR, NULL, NULL,
                                             run_backward};
}
