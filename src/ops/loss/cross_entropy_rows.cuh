/* cross_entropy_rows.cuh - loss and gradient of a token from its row of f32 logits. Internal to the CUDA kernels; see
 * cross_entropy.cu.
 *
 *     a block: one row
 *         pass 1    sums of exponentials, relative to the largest logit so far
 *         pass 2    gradient d, in the compute dtype, written over the logits
 *
 * The gradient starts at the front of the row. A tile is written after every thread has read it. Its 2-byte values end
 * before the logits that are still to be read. The last vector of a row may reach into the padding behind it. Bytes per
 * logit: 8 read and 2 written. Limit: memory bandwidth. */
#ifndef NBL_CROSS_ENTROPY_ROWS_CUH
#define NBL_CROSS_ENTROPY_ROWS_CUH

#include "ops/common/load.cuh"

extern "C" {
#include "ops/loss/cross_entropy.h"
}

namespace nbl_cuda
{

enum { LOGIT_THREADS = 512, LOGIT_VECTORS = 4, LOGIT_TILE = LOGIT_THREADS * LOGIT_VECTORS * 4 };

struct logit_rows {
    float *logits;                             /* [rows, stride] */
    int64_t stride, vocabulary, tokens, first; /* first: token of row 0 */
    const int32_t *labels;
    const double *share; /* factor of a token's loss */
    float softcap, smoothing;
    /* sums */
    float *logprobs, *lse; /* lse [2, tokens]: read by a gradient without sums */
    float *loss;           /* [tokens]; NULL: the reduction is a mean, and the addends go to `losses` */
    double *losses;
    /* gradient */
    const float *dloss; /* NULL: 1 */
    bool dloss_each;    /* one per token */
    void *d;            /* [rows, d_stride] */
    int64_t d_stride;
    bool unscaled; /* d omits the token's factor, which f16 could not hold */
    bool wide;     /* also replaces the logits by the gradient in f32, with the factor */
};

__device__ inline float capped(float u, float softcap)
{
    return softcap > 0 ? softcap * tanhf(u / softcap) : u;
}

__device__ inline float block_max(float x)
{
    __shared__ float parts[LOGIT_THREADS / 32];
    x = warp_max(x);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    for (int i = 0; i < LOGIT_THREADS / 32; i++) x = fmaxf(x, parts[i]);
    return x;
}

/* Index of this thread's vector k in the tile that begins at `base`. */
__device__ inline int vector_index(int base, int k)
{
    return base + (k * LOGIT_THREADS + static_cast<int>(threadIdx.x)) * 4;
}

__device__ inline void load_tile(const float *row, int base, int n, float (&u)[LOGIT_VECTORS][4])
{
#pragma unroll
    for (int k = 0; k < LOGIT_VECTORS; k++)
        if (vector_index(base, k) < n) load_run<float, 4>(row + vector_index(base, k), u[k]);
}

/* Sums over the logits that a thread has read, relative to the largest of them. */
struct logit_sums {
    float largest, sum, total;
};

/* WHOLE: the tile does not reach behind the row. */
template <bool CAP, bool WHOLE>
__device__ inline void fold_tile(const logit_rows &a, int base, float (&z)[LOGIT_VECTORS][4], logit_sums &s)
{
    float max = s.largest;
#pragma unroll
    for (int k = 0; k < LOGIT_VECTORS; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            bool inside = WHOLE || vector_index(base, k) + j < static_cast<int>(a.vocabulary);
            z[k][j] = !inside ? -INFINITY : CAP ? capped(z[k][j], a.softcap) : z[k][j];
            max = fmaxf(max, z[k][j]);
            if (inside) s.total += z[k][j];
        }
    float zero = max == -INFINITY ? 0 : max;
    s.sum *= __expf(s.largest - zero);
    s.largest = max;
#pragma unroll
    for (int k = 0; k < LOGIT_VECTORS; k++)
#pragma unroll
        for (int j = 0; j < 4; j++) s.sum += __expf(z[k][j] - zero);
}

struct row_sums_of {
    double largest, rest, total; /* log of the sum = largest + rest */
};

/* A NaN makes the sum NaN. */
template <bool CAP> __device__ inline row_sums_of sum_row(const logit_rows &a, const float *row)
{
    logit_sums mine = {-INFINITY, 0, 0};
    int n = static_cast<int>(a.vocabulary);
    for (int base = 0; base < n; base += LOGIT_TILE) {
        float z[LOGIT_VECTORS][4];
        load_tile(row, base, n, z);
        if (base + LOGIT_TILE <= n) fold_tile<CAP, true>(a, base, z, mine);
        else fold_tile<CAP, false>(a, base, z, mine);
    }
    float max = block_max(mine.largest), share = mine.largest == -INFINITY ? 0 : expf(mine.largest - max);
    double sums[2] = {static_cast<double>(mine.sum) * static_cast<double>(share),
                      static_cast<double>(mine.total)};
    block_sums(sums);
    return {static_cast<double>(max), log(sums[0]), sums[1]};
}

/* The gradient of the label's logit. 1 - smoothing is subtracted before rounding. */
__device__ inline float label_gradient(const logit_rows &a, double u, double lse, double uniform)
{
    double slope = 1;
    if (a.softcap > 0) {
        double tanh_u = tanh(u / static_cast<double>(a.softcap));
        u = static_cast<double>(capped(static_cast<float>(u), a.softcap)); /* the value that the sums used */
        slope = 1 - tanh_u * tanh_u;
    }
    return static_cast<float>((exp(u - lse) - uniform - (1 - static_cast<double>(a.smoothing))) * slope);
}

__device__ inline float probability(float z, float lse, float rest)
{
    return __expf((z - lse) - rest);
}

/* The gradient of any other logit. */
template <bool CAP>
__device__ inline float logit_gradient(const logit_rows &a, float u, float lse, float rest, float even)
{
    float slope = 1;
    if (CAP) {
        float t = tanhf(u / a.softcap);
        u = a.softcap * t;
        slope = fmaf(-t, t, 1.0f);
    }
    return (probability(u, lse, rest) - even) * slope;
}

template <typename T, bool CAP>
__device__ inline void gradient_row(const logit_rows &a, float *row, T *d, int label, float lse, float rest,
                                    float scale)
{
    int n = static_cast<int>(a.vocabulary);
    double uniform = static_cast<double>(a.smoothing) / static_cast<double>(n);
    float at_label = label_gradient(a, static_cast<double>(row[label]),
                                    static_cast<double>(lse) + static_cast<double>(rest), uniform);
    float even = static_cast<float>(uniform), d_scale = a.unscaled ? 1 : scale;
    __syncthreads(); /* the label's logit has been read */
    for (int base = 0; base < n; base += LOGIT_TILE) {
        float z[LOGIT_VECTORS][4];
        load_tile(row, base, n, z);
        if (sizeof(T) < sizeof(float)) __syncthreads();
#pragma unroll
        for (int k = 0; k < LOGIT_VECTORS; k++) {
            int i = vector_index(base, k);
            if (i >= n) break;
            float narrow[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                float value = logit_gradient<CAP>(a, z[k][j], lse, rest, even);
                if (i + j == label) value = at_label;
                narrow[j] = value * d_scale;
                z[k][j] = value * scale;
            }
            store_run<T, 4>(d + i, narrow);
            if (a.wide) store_run<float, 4>(row + i, z[k]);
        }
    }
}

/* Results of a token that is not trained. */
template <typename T, bool SUMS, bool GRADIENT>
__device__ inline void leave_out(const logit_rows &a, float *row, T *d, int64_t token)
{
    if (SUMS && threadIdx.x == 0) {
        if (a.logprobs) a.logprobs[token] = 0;
        if (a.lse) a.lse[token] = a.lse[a.tokens + token] = 0;
        if (a.loss) a.loss[token] = 0;
        else a.losses[token] = 0;
    }
    for (int64_t i = threadIdx.x * 4; i < a.vocabulary && GRADIENT; i += LOGIT_THREADS * 4) {
        const float none[4] = {};
        store_run<T, 4>(d + i, none);
        if (a.wide) store_run<float, 4>(row + i, none);
    }
}

/* CAP: there is a soft cap. */
template <typename T, bool SUMS, bool GRADIENT, bool CAP>
__global__ void __launch_bounds__(LOGIT_THREADS) logit_kernel(logit_rows a)
{
    int64_t token = a.first + blockIdx.x;
    float *row = a.logits + blockIdx.x * a.stride, lse, rest;
    T *d = static_cast<T *>(a.d) + blockIdx.x * a.d_stride;
    int label = a.labels[token];
    if (label < 0 || label >= a.vocabulary) { /* ignored, or invalid (share_kernel reports it) */
        leave_out<T, SUMS, GRADIENT>(a, row, d, token);
        return;
    }
    if (SUMS) {
        row_sums_of s = sum_row<CAP>(a, row);
        double log_sum = s.largest + s.rest, smoothing = static_cast<double>(a.smoothing);
        double logprob = static_cast<double>(capped(row[label], a.softcap)) - s.largest - s.rest,
               loss = -logprob;
        lse = static_cast<float>(log_sum);
        rest = static_cast<float>(log_sum - static_cast<double>(lse));
        if (smoothing > 0)
            loss = -(1 - smoothing) * logprob -
                   smoothing * (s.total / static_cast<double>(a.vocabulary) - log_sum);
        if (threadIdx.x == 0) {
            if (a.logprobs) a.logprobs[token] = static_cast<float>(logprob);
            if (a.lse) {
                a.lse[token] = lse;
                a.lse[a.tokens + token] = rest;
            }
            if (a.loss) a.loss[token] = static_cast<float>(loss);
            else a.losses[token] = loss;
        }
    } else {
        lse = a.lse[token];
        rest = a.lse[a.tokens + token];
    }
    if (!GRADIENT) return;
    double upstream = a.dloss ? static_cast<double>(a.dloss[a.dloss_each ? token : 0]) : 1;
    gradient_row<T, CAP>(a, row, d, label, lse, rest, static_cast<float>(upstream * *a.share));
}

} // namespace nbl_cuda
#endif
