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

/* The struct of arguments is public: nibble.h documents its fields. */
typedef nbl_dora_norm nbl__dora_norm;

#endif
