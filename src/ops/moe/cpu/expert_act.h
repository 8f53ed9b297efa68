/* expert_act.h - the activation of expert_mlp over one row of f32. gate_up's outputs are gates and ups in halves, or
 * interleaved. */
#ifndef NBL_EXPERT_ACT_H
#define NBL_EXPERT_ACT_H

#include "ops/moe/expert_mlp.h"

/* h[inner] from gu[2·inner]. */
void nbl__expert_act(nbl_isa isa, const nbl__expert_mlp *a, int64_t inner, const float *gu, float *h);
/* In place, with w the weight of the row's output:
 *
 *   gu = the gradient of gate_up's outputs for dh = w·q       q = w·h
 *
 * Returns Σ h∘q for q as it was, summed in f64. */
double nbl__expert_act_backward(nbl_isa isa, const nbl__expert_mlp *a, int64_t inner, float w, float *gu,
                                float *q);

#endif
