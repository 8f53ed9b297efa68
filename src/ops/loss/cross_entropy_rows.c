/* cross_entropy_rows.c - see cross_entropy_rows.h. The vector code is cross_entropy_rows.inc.
 *
 * Cost: about 30 instructions per 8 or 16 logits, against 2·hidden operations of the product per
 * logit. */
#include "ops/loss/cross_entropy_rows.h"

#include <math.h>

#include "ops/common/vmath.h"

typedef struct kernels {
    void (*cap)(float *z, int64_t n, float softcap);
    float (*largest)(const float *z, int64_t n);
    float (*sum_exp)(const float *z, int64_t n, float base);
    float (*sum)(const float *z, int64_t n);
    void (*gradient)(float *z, int64_t n, const nbl__logit_gradient *g);
} kernels;

static void cap_scalar(float *z, int64_t n, float softcap)
{
    for (int64_t i = 0; i < n; i++) z[i] = softcap * tanhf(z[i] / softcap);
}

static float largest_scalar(const float *z, int64_t n)
{
    float largest = -INFINITY;
    for (int64_t i = 0; i < n; i++) largest = z[i] > largest ? z[i] : largest;
    return largest;
}

static float sum_exp_scalar(const float *z, int64_t n, float base)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)expf(z[i] - base);
    return (float)sum;
}

static float sum_scalar(const float *z, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)z[i];
    return (float)sum;
}

static void gradient_scalar(float *z, int64_t n, const nbl__logit_gradient *g)
{
    for (int64_t i = 0; i < n; i++) {
        float u = z[i], slope = 1;
        if (g->softcap > 0) {
            float tanh_u = tanhf(u / g->softcap);
            u = g->softcap * tanh_u;
            slope = 1 - tanh_u * tanh_u;
        }
        float x = u - g->lse - g->lse_rest, p = x < NBL_MIN_LOGPROB ? 0 : expf(x);
        z[i] = (p - g->uniform) * g->scale * slope;
    }
}

#if defined(__x86_64__)
#define KERNELS "ops/loss/cross_entropy_rows.inc"
#include "ops/common/x86_widths.inc"
#endif

static kernels kernels_of(nbl_isa isa)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512)
        return (kernels){cap_avx512, largest_avx512, sum_exp_avx512, sum_avx512, gradient_avx512};
    if (isa >= NBL_ISA_AVX2) return (kernels){cap_avx2, largest_avx2, sum_exp_avx2, sum_avx2, gradient_avx2};
#endif
    (void)isa;
    return (kernels){cap_scalar, largest_scalar, sum_exp_scalar, sum_scalar, gradient_scalar};
}

void nbl__logits_fold(nbl_isa isa, float *z, int64_t n, float softcap, bool want_total, nbl__logit_sums *sums)
{
    kernels k = kernels_of(isa);
    if (softcap > 0) k.cap(z, n, softcap);
    if (want_total) sums->total += (double)k.sum(z, n);
    float largest = fmaxf(sums->largest, k.largest(z, n));
    bool none = !(largest > -INFINITY); /* all -inf: the sum stays 0, unless there is a NaN */
    float base = none ? 0 : largest, added = k.sum_exp(z, n, base);
    double before = sums->sum > 0 ? sums->sum * exp((double)sums->largest - (double)base) : sums->sum;
    sums->sum = none && added == added ? before : before + (double)added;
    sums->largest = largest;
}

void nbl__logits_gradient(nbl_isa isa, float *z, int64_t n, const nbl__logit_gradient *g)
{
    kernels_of(isa).gradient(z, n, g);
}

float nbl__label_gradient(float z, float smoothing, const nbl__logit_gradient *g)
{
    double u = (double)z, slope = 1;
    if (g->softcap > 0) {
        double tanh_u = tanh(u / (double)g->softcap);
        u = (double)((float)((double)g->softcap * tanh_u)); /* with the rounding that the sums used */
        slope = 1 - tanh_u * tanh_u;
    }
    double p = exp(u - (double)g->lse - (double)g->lse_rest);
    return (float)((p - (double)g->uniform - (1 - (double)smoothing)) * (double)g->scale * slope);
}
