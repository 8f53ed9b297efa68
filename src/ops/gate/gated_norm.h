/* gated_norm.h - the RMSNorm of each head, times a gate:
 *
 *   y = w ∘ x·r ∘ silu(gate)         r = 1 / sqrt(mean(x²) + eps), over the last dimension
 *
 * Backward, with n = x·r:
 *
 *   dn       dy ∘ w ∘ silu(gate)
 *   dx       r·(dn - n·mean(n ∘ dn))
 *   dgate    dy ∘ w ∘ n ∘ silu'(gate)
 *   dw       Σ over rows of dy ∘ n ∘ silu(gate), f32
 *
 * Arithmetic is f32, with one rounding of each result. */
#ifndef NBL_GATED_NORM_H
#define NBL_GATED_NORM_H

#include "ops/ops.h"

typedef struct nbl__gated_norm {
    nbl_dtype dtype;
    float eps;
    nbl_tensor x, gate; /* [tokens, heads, columns] */
    nbl_tensor w;       /* [columns], any float dtype */
    nbl_tensor y;
    nbl_tensor dy, dx, dgate, dw;
    bool accumulate; /* backward adds to dw instead of writing it */
} nbl__gated_norm;

#endif
