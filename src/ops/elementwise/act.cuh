/* act.cuh - the activations of act.h and their slopes, in f32. Internal to the CUDA kernels.
 *
 * Exponential and quotient are those of the hardware: an error of a few f32 ulp, and a fifth of the
 * instructions. Results near 0 or 1 saturate as the definition does. An infinite x gives what the
 * product gives (-inf · 0 is NaN). */
#ifndef NBL_ACT_CUH
#define NBL_ACT_CUH

#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/elementwise/act.h"
}

namespace nbl_cuda
{

/* 1 / (1 + e^-x) */
__device__ inline float logistic(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

/* The activations of act_rare.h. */
__device__ inline float rare_activation(int act, float x, float *slope)
{
    float positive = x < 0 ? 0.0f : x, s;
    switch (act) {
    case NBL_ACT_RELU: *slope = x > 0; return positive;
    case NBL_ACT_RELU2: *slope = 2 * positive; return positive * positive;
    case NBL_ACT_QUICK_GELU:
        s = logistic(1.702f * x);
        *slope = s * fmaf(1.702f * fminf(fmaxf(x, -100.0f), 100.0f), 1 - s, 1.0f);
        return x * s;
    case NBL_ACT_SIGMOID:
        s = logistic(x);
        *slope = s * (1 - s);
        return s;
    default: s = tanhf(x); *slope = fmaf(-s, s, 1.0f); return s;
    }
}

enum { ACT_RARE = -2 }; /* ACT of a kernel's copy that the rare activations share */

/* rare: which one, if ACT is ACT_RARE. Returns act(x) = x · share, and the derivative in *slope. SHORT: the result is rounded to 16
 * bits, so erfc may be Abramowitz and Stegun's 7.1.26 with an error of at most 1.5e-7. As on the
 * CPU, the slope's correction uses x limited to ±40: beyond that the correction is 0, and an
 * infinite x would make it NaN. */
template <int ACT, bool SHORT = false>
__device__ inline float activation(float x, float *slope, int rare = NBL_ACT_RELU)
{
    if (ACT == ACT_RARE) return rare_activation(rare, x, slope);
    float near = fminf(fmaxf(x, -40.0f), 40.0f), share;
    if (ACT == NBL_ACT_SILU) {
        share = logistic(x);
        *slope = share * fmaf(near, 1 - share, 1.0f);
    } else if (ACT == NBL_ACT_GELU && SHORT) {
        float bell = __expf(-0.5f * x * x),
              t = __fdividef(1.0f, fmaf(fabsf(x), 0.3275911f * 0.70710678f, 1.0f));
        float tail = fmaf(fmaf(fmaf(fmaf(1.061405429f, t, -1.453152027f), t, 1.421413741f), t, -0.284496736f),
                          t, 0.254829592f) *
                     (0.5f * t * bell);
        share = x < 0 ? tail : 1 - tail;
        *slope = fmaf(near * bell, 0.39894228040143268f, share);
    } else if (ACT == NBL_ACT_GELU) {
        share = 0.5f * erfcf(x * -0.70710678118654752f);
        *slope = fmaf(near * __expf(-0.5f * near * near), 0.39894228040143268f, share);
    } else {
        const float a = 0.044715f, b = 0.79788456080286536f; /* √(2/π) */
        share = logistic(2 * b * fmaf(a * x * x, x, x));     /* (1 + tanh u) / 2 */
        *slope = fmaf(2 * near * share * (1 - share), b * fmaf(3 * a * near, near, 1.0f), share);
    }
    return x * share;
}

} // namespace nbl_cuda
#endif
