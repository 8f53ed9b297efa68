/* dora_norm.h - ‖W + s·B·A‖ by rows, the norm of DoRA: a constant in backward, so that it changes only when
 * the adapter does. A trainer computes it once per optimiser step and hands it to linear as `norm`.
 *
 *     norm[n]² = ‖w_n‖² + 2s·b_n·(A·w_n) + s²·b_n·(A·Aᵀ)·b_n
 *
 * W [out, in] in any storage format, as it is decoded for the compute dtype; A [r, in], B [out, r] in f32,
 * f16 or bf16; norm f32 [out]. ‖w_n‖² never changes: it comes out as w_norm2_out and may go in as w_norm2. */
#ifndef NBL_DORA_NORM_H
#define NBL_DORA_NORM_H

#include "ops/ops.h"

typedef struct nbl__dora_norm {
    nbl_dtype dtype; /* of the layer's computation */
    nbl_weight w;
    nbl_tensor lora_a, lora_b;
    float scale;
    nbl_tensor w_norm2; /* f32 [out]; optional */
    nbl_tensor norm;
    nbl_tensor w_norm2_out; /* f32 [out], when w_norm2 is absent; may be left without memory */
} nbl__dora_norm;

extern const nbl__impl nbl__dora_norm_cpu, nbl__dora_norm_ref;

#endif
