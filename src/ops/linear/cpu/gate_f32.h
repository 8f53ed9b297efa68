/* gate_f32.h - the activations of gated feed-forward blocks over f32, in place.
 *
 * Errors are a few ulp of the result, except that gelu loses relative accuracy far below zero, where its
 * error is that of 1 + erf, 1e-7·|g|. NaN gives NaN. */
#ifndef NBL_GATE_H
#define NBL_GATE_H

#include "base/base.h"
#include "ops/linear/mlp.h"

/* g = act(g)·u. */
void nbl__gate_forward(nbl_isa isa, nbl__act act, float *g, const float *u, int64_t n);
/* From g, u and the gradient d of act(g)·u: g = d·u·act'(g), u = d·act(g), d = act(g)·u. */
void nbl__gate_backward(nbl_isa isa, nbl__act act, float *g, float *u, float *d, int64_t n);

#endif
