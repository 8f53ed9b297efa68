/* rmsnorm.h - root mean square norm, with the residual sum before it.
 *
 *     h = x + residual, rounded to the dtype            that is residual_out; without a residual, h = x
 *     n = h / √(mean(h²) + eps)                         by rows, in f32
 *     y = round(n)·(w + offset)     before_weight       Llama: n is rounded to the dtype first
 *     y = n·(w + offset)            after_weight        Gemma: one rounding
 *
 * x, residual, y and their gradients have the compute dtype whatever w has: f32, f16 or bf16 [columns].
 * Backward: dx is the gradient of x and of residual alike, dresidual (the gradient of residual_out, which
 * may also be given when x is a saved h) included; dw is f32. Rounding is taken as the identity.
 *
 * residual_out may lie on x or residual, dx on dy, dresidual or x; nothing else may overlap. */
#ifndef NBL_RMSNORM_H
#define NBL_RMSNORM_H

#include "ops/ops.h"

typedef nbl_rmsnorm nbl__rmsnorm;

/* The arguments as backward reads them: h is residual_out where that is given, so that neither addend need
 * be kept; else it is summed again. */
static inline nbl__rmsnorm nbl__rmsnorm_from_sum(const nbl__rmsnorm *a)
{
    nbl__rmsnorm sum = *a;
    if (!nbl__given(&a->residual) || !nbl__given(&a->residual_out)) return sum;
    sum.x = a->residual_out;
    memset(&sum.residual, 0, sizeof sum.residual);
    return sum;
}

extern const nbl__impl nbl__rmsnorm_ref, nbl__rmsnorm_backward_ref;
extern const nbl__impl nbl__rmsnorm_avx2, nbl__rmsnorm_backward_avx2;
extern const nbl__impl nbl__rmsnorm_avx512, nbl__rmsnorm_backward_avx512;
extern const nbl__impl nbl__rmsnorm_cuda, nbl__rmsnorm_backward_cuda;

#endif
