/* dora_norm.h - the DoRA weight norm, ‖W + s·B·A‖ by rows.
 *
 *   norm[n]² = ‖w_n‖² + 2s·b_n·(A·w_n) + s²·b_n·(A·Aᵀ)·b_n
 *
 * The norm is a constant in backward. It changes only when the adapter does: a
 * trainer computes it once per optimizer step and gives it to linear as `norm`.
 *
 * W [out, in] in any storage format, dequantized to the compute dtype; A [r, in]
 * and B [out, r] in f32, f16 or bf16; norm f32 [out]. ‖w_n‖² is constant while W
 * is frozen: it is returned as w_norm2_out, and may be passed as w_norm2 the next
 * time. No backward. */
#ifndef NBL_DORA_NORM_H
#define NBL_DORA_NORM_H

#include "ops/ops.h"

typedef struct nbl__dora_norm {
    nbl_dtype dtype; /* the compute dtype of the layer */
    nbl_weight w;
    nbl_tensor lora_a, lora_b;
    float scale;
    nbl_tensor w_norm2;     /* f32 [out]: ‖w_n‖²; optional */
    nbl_tensor norm;        /* f32 [out] */
    nbl_tensor w_norm2_out; /* f32 [out], only if w_norm2 is absent; its memory is optional */
} nbl__dora_norm;

#endif
