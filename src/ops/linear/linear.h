/* linear.h - a frozen linear layer with a trained adapter, forward and backward.
 *
 *     y = x·Wᵀ + s·(drop(x)·Aᵀ)·Bᵀ                       LoRA
 *     y = (the same) · magnitude / ‖W + s·B·A‖ by rows    DoRA; the norm is a constant in backward, and
 *                                                         computed in every call unless it is given
 *     y = … + bias
 *
 * x [tokens, in], W [out, in] in any storage format, A [r, in], B [out, r]; tokens is every dimension of
 * x but the last. W is decoded straight into the compute dtype, one rounding. x, dy, y and dx have the compute
 * dtype, a bias that or f32; A, B and the magnitude may be f32, f16 or bf16; gradients of parameters are f32.
 *
 * With train_w backward also makes dW = (factor∘dy)ᵀ·x, where factor is DoRA's or 1: the gradient of the
 * values that W decodes to, rounding taken as the identity.
 *
 * A weight in int8 multiplies as LLM.int8 does (forward; backward uses the decoded weight): columns of x
 * with a value at or above the threshold, or one that is not finite, stay as they are; the others are
 * quantised to 8 bits, row by row, by their largest magnitude. With `decoded` it is a weight like any other. */
#ifndef NBL_LINEAR_H
#define NBL_LINEAR_H

#include "ops/ops.h"

typedef nbl_linear nbl__linear;

extern const nbl__impl nbl__linear_cpu, nbl__linear_backward_cpu;
extern const nbl__impl nbl__linear_ref, nbl__linear_backward_ref;

/* The checks of forward and backward, for every operator that has linear layers inside: `part` names
 * the layer in messages, as the slots do: "gate." goes before a tensor's name (its weight is "gate"), "1"
 * after it. They set the dtypes and shapes of the outputs. */
nbl_status nbl__linear_infer(nbl_context *ctx, const char *op, const char *part, nbl__linear *a);
nbl_status nbl__linear_infer_backward(nbl_context *ctx, const char *op, const char *part, nbl__linear *a);

/* r, or 0 without an adapter. */
static inline int64_t nbl__linear_rank(const nbl__linear *a)
{
    return nbl__given(&a->lora_a) ? a->lora_a.shape[0] : 0;
}

/* Does forward multiply as LLM.int8? */
static inline bool nbl__linear_by_codes(const nbl__linear *a)
{
    return a->w.format == NBL_FORMAT_INT8 && !a->dequantized;
}

/* The seed of mask number `index` where one attribute `seed` serves several; number 0 keeps it. */
static inline uint64_t nbl__dropout_seed(uint64_t seed, int64_t index)
{
    return seed + (uint64_t)index * 0x9E3779B97F4A7C15u;
}
/* Does dropout keep element `index` of x? */
bool nbl__dropout_keeps(uint64_t seed, float dropout, int64_t index);

#endif
