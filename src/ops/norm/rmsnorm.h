/* rmsnorm.h - root mean square norm by rows, with the residual sum before it.
 *
 *   h = x + residual, rounded to the dtype            stored in residual_out; without a residual, h = x
 *   n = h / √(mean(h²) + eps)                         in f32
 *   y = round(n)·(w + offset)·scale     before_weight       Llama: n is rounded to the dtype first
 *   y = n·(w + offset)·scale            after_weight        Gemma: one rounding
 *
 * dtypes: x, residual, y and their gradients have the compute dtype. w is f32, f16
 * or bf16 [columns]. dw is f32. Without w, the factor of n is 1.
 *
 * Backward: dx is the gradient of x and of residual alike, and includes dresidual,
 * the gradient of residual_out. dresidual may also be given when x is a saved h.
 * Rounding is taken as the identity.
 *
 * residual_out may overlap x or residual exactly; dx may overlap dy, dresidual or
 * x. No other tensors may overlap. */
#ifndef NBL_RMSNORM_H
#define NBL_RMSNORM_H

#include "ops/norm/norm_scale.h"
#include "ops/ops.h"

typedef nbl_rmsnorm nbl__rmsnorm;

extern const char *const nbl__norm_round_words[]; /* of nbl_norm_round, in its order */

enum { NBL_RMSNORM_FLOPS = 5 }; /* of forward, per element (nbl__cost) */

/* The arguments as backward reads them: h is residual_out if that is given, so
 * that neither x nor residual needs to be kept. Otherwise backward adds them
 * again. */
static inline nbl__rmsnorm nbl__rmsnorm_from_sum(const nbl__rmsnorm *a)
{
    nbl__rmsnorm sum = *a;
    if (!nbl__has_data(&a->residual) || !nbl__has_data(&a->residual_out)) return sum;
    sum.x = a->residual_out;
    memset(&sum.residual, 0, sizeof sum.residual);
    return sum;
}

extern const nbl__impl nbl__rmsnorm_ref, nbl__rmsnorm_backward_ref;

#endif
