/* cross_entropy_tiles.cuh - loss and gradient of a token from exponentials that the GEMM of gemm_sm90.h computes. Internal
 * to the CUDA kernels; see cross_entropy.cu.
 *
 *     near_kernel      power of each row, from its label's logit
 *     GEMM             e = 2^(log2 e · logit - power) in bf16, and the sum s of e before rounding over every 256 words
 *     settle_kernel    S = Σ s of the row; loss; factor = share / S; e[label] -= S
 *     GEMM             dx = factor · (e · W)
 *
 * Logits are never written. The probability of a word is e / S, so the gradient
 *
 *     dx = Σ_words d · W,   d = (e / S - [label]) · share     equals     (share / S) · Σ_words (e - [label] · S) · W
 *
 * e is rounded to as many digits as d would be. The label's element is computed again, because nearly everything may
 * cancel there. The factor is applied to the f32 sums of dx. So rows are not read again: settle_kernel reads the sums of
 * the spans.
 *
 * The power of a row is that of its label's logit. The largest logit is not far below it, and rarely 40 above it. Spans
 * with such words have their own powers. settle_kernel rescales the other spans of such a row. */
#ifndef NBL_CROSS_ENTROPY_TILES_CUH
#define NBL_CROSS_ENTROPY_TILES_CUH

#include "ops/loss/cross_entropy_rows.cuh"
#include "ops/common/dependent_launch.cuh"

extern "C" {
#include "ops/gemm/cuda/gemm_sm90.h"
}

namespace nbl_cuda
{

enum { NEAR_THREADS = 256, SETTLE_THREADS = 128 };

/* Computes the power of two near the exponential of each label's logit. Untrained tokens get a power that makes all
 * exponentials 0. A warp per token; rows are multiples of 16 bytes. */
__global__ void __launch_bounds__(NEAR_THREADS)
    near_kernel(const __nv_bfloat16 *x, const __nv_bfloat16 *w, int64_t hidden, int64_t vocabulary,
                const int32_t *labels, int64_t tokens, float *powers)
{
    int64_t token = static_cast<int64_t>(blockIdx.x) * (NEAR_THREADS / 32) + threadIdx.x / 32;
    if (token >= tokens) return;
    int label = labels[token], lane = static_cast<int>(threadIdx.x) % 32;
    bool trained = label >= 0 && label < vocabulary;
    float sum = 0;
    for (int64_t k = lane * 8; k < hidden && trained; k += 32 * 8) {
        float left[8], right[8];
        load_run<__nv_bfloat16, 8>(x + token * hidden + k, left);
        load_run<__nv_bfloat16, 8>(w + label * hidden + k, right);
#pragma unroll
        for (int j = 0; j < 8; j++) sum = fmaf(left[j], right[j], sum);
    }
    sum = warp_sum(sum);
    if (lane == 0) powers[token] = !trained ? 0x1p99f : isfinite(sum) ? rintf(sum * 1.44269504f) : 0;
}

struct tile_rows {
    logit_rows a;       /* without logits and d */
    __nv_bfloat16 *e;   /* [rows, stride]; NULL: no gradient */
    const float *spans; /* [rows, span_count, 2] */
    int span_count;
    const float *label_logits; /* [rows] */
    float *factors;            /* [rows]: factor of dx */
};

/* Rescales all spans of a row of e to the power `max`. */
__device__ inline void equal_powers(const tile_rows &r, __nv_bfloat16 *e, const float2 *spans, float max)
{
    for (int64_t i = threadIdx.x; i < r.a.vocabulary; i += SETTLE_THREADS) {
        float power = spans[i / NBL_GEMM_SM90_SPAN].y;
        if (power != max) e[i] = from_f32<__nv_bfloat16>(to_f32(e[i]) * exp2f(power - max));
    }
}

/* One thread: loss and factor of a token, from the sum of its exponentials relative to 2^power. */
template <bool SUMS>
__device__ inline void settle(const tile_rows &r, __nv_bfloat16 *e, int64_t token, int label, double power,
                              double sum)
{
    const logit_rows &a = r.a;
    double log_sum = power * 0.69314718055994531 + log(sum),
           logprob = static_cast<double>(r.label_logits[blockIdx.x]) - log_sum;
    if (SUMS) {
        float lse = static_cast<float>(log_sum);
        if (a.logprobs) a.logprobs[token] = static_cast<float>(logprob);
        if (a.lse) {
            a.lse[token] = lse;
            a.lse[a.tokens + token] = static_cast<float>(log_sum - static_cast<double>(lse));
        }
        if (a.loss) a.loss[token] = static_cast<float>(-logprob);
        else a.losses[token] = -logprob;
    }
    if (!r.e) return;
    double upstream = a.dloss ? static_cast<double>(a.dloss[a.dloss_each ? token : 0]) : 1;
    e[label] = from_f32<__nv_bfloat16>(static_cast<float>(expm1(logprob) * sum));
    r.factors[blockIdx.x] = static_cast<float>(upstream * *a.share / sum);
}

/* A block per row. */
template <bool SUMS> __global__ void __launch_bounds__(SETTLE_THREADS) settle_kernel(dependent, tile_rows r)
{
    wait_for_previous_kernel();
    int64_t token = r.a.first + blockIdx.x;
    int label = r.a.labels[token];
    __nv_bfloat16 *e = r.e + blockIdx.x * r.a.stride;
    if (label < 0 || label >= r.a.vocabulary) { /* ignored, or invalid (share_kernel reports it) */
        leave_out<float, SUMS, false>(r.a, nullptr, nullptr, token);
        if (r.e && threadIdx.x == 0) r.factors[blockIdx.x] = 0;
        return;
    }
    __shared__ float warps[SETTLE_THREADS / 32];
    const float2 *spans = reinterpret_cast<const float2 *>(r.spans) +
                          static_cast<int64_t>(blockIdx.x) * r.span_count;
    float max = -INFINITY;
    for (int i = threadIdx.x; i < r.span_count; i += SETTLE_THREADS) max = fmaxf(max, spans[i].y);
    max = warp_max(max);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = max;
    __syncthreads();
    for (float other : warps) max = fmaxf(max, other);
    double sum[1] = {0};
    bool differ = false;
    for (int i = threadIdx.x; i < r.span_count; i += SETTLE_THREADS) {
        float2 span = spans[i];
        double share = span.y == max ? 1 : exp2(static_cast<double>(span.y) - static_cast<double>(max));
        sum[0] += static_cast<double>(span.x) * share;
        differ = differ || span.y != max;
    }
    block_sums(sum);
    if (__syncthreads_or(differ) && r.e) {
        equal_powers(r, e, spans, max);
        __syncthreads();
    }
    if (threadIdx.x == 0) settle<SUMS>(r, e, token, label, static_cast<double>(max), sum[0]);
}

} // namespace nbl_cuda
#endif
