/* gate_f32.h - the activation of a gated feed-forward block over f32, in place.
 *
 * Accuracy: a few ulp of the result. The exception is gelu far below zero, where
 * the error is that of 1 + erf: 1e-7·|g|. NaN gives NaN. */
#ifndef NBL_GATE_F32_H
#define NBL_GATE_F32_H

#include "base/base.h"
#include "ops/linear/mlp.h"

/* g = act(g)·u, for n elements. */
void nbl__gate_forward(nbl_isa isa, nbl__act act, float *g, const float *u, int64_t n);
/* In place, from g, u and the gradient d of h = act(g)·u:
 *
 *   g = d·u·act'(g)     u = d·act(g)     d = h */
void nbl__gate_backward(nbl_isa isa, nbl__act act, float *g, float *u, float *d, int64_t n);

#endif
