/* gate_f32.c - see gate_f32.h. The vector code is gate_f32.inc, compiled once per width.
 *
 * Bound by memory: 12 bytes per element forward, 24 backward. */
#include "ops/linear/cpu/gate_f32.h"

#include <math.h>

#include "ops/common/vmath.h"
#include "ops/elementwise/act_rare.h"

#define SQRT_HALF 0.70710678f
#define INVERSE_SQRT_2PI 0.39894228f
#define TWO_SQRT_2_OVER_PI 1.59576912f

#if defined(__x86_64__)
#define LANES 8
#include "ops/common/vector_macros.inc"
#include "ops/linear/cpu/gate_f32.inc"
#undef LANES
#define LANES 16
#include "ops/common/vector_macros.inc"
#include "ops/linear/cpu/gate_f32.inc"
#undef LANES
#endif

/* act(x) and its slope act'(x). x is clamped to ±100 in the sigmoid's argument, where the function
 * is constant, so that squares do not overflow. */
static float act_scalar(nbl__act act, float x, float *slope)
{
    if (nbl__act_is_rare(act)) {
        double rise, value = nbl__act_rare(act, (double)x, &rise);
        *slope = (float)rise;
        return (float)value;
    }
    if (act == NBL_ACT_GELU) {
        float c = 0.5f * erfcf(-x * SQRT_HALF);
        *slope = c + x * INVERSE_SQRT_2PI * expf(-0.5f * x * x);
        return x * c;
    }
    float a = fmaxf(-100, fminf(100, x)), z = x, dz = 1;
    if (act == NBL_ACT_GELU_TANH) {
        z = TWO_SQRT_2_OVER_PI * a * (1 + 0.044715f * a * a);
        dz = TWO_SQRT_2_OVER_PI * (1 + 3 * 0.044715f * a * a);
    }
    float s = 1 / (1 + expf(-z));
    *slope = s + (act == NBL_ACT_SILU ? x : a) * s * (1 - s) * dz;
    return x * s;
}

void nbl__gate_forward(nbl_isa isa, nbl__act act, float *g, const float *u, int64_t n)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) {
        forward_avx512(act, g, u, n);
        return;
    }
    if (isa >= NBL_ISA_AVX2) {
        forward_avx2(act, g, u, n);
        return;
    }
#endif
    (void)isa;
    for (int64_t i = 0; i < n; i++) {
        float slope;
        g[i] = act_scalar(act, g[i], &slope) * u[i];
    }
}

void nbl__gate_backward(nbl_isa isa, nbl__act act, float *g, float *u, float *d, int64_t n)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) {
        backward_avx512(act, g, u, d, n);
        return;
    }
    if (isa >= NBL_ISA_AVX2) {
        backward_avx2(act, g, u, d, n);
        return;
    }
#endif
    (void)isa;
    for (int64_t i = 0; i < n; i++) {
        float slope, value = act_scalar(act, g[i], &slope), up = u[i], dh = d[i];
        g[i] = dh * up * slope;
        u[i] = dh * value;
        d[i] = value * up;
    }
}
