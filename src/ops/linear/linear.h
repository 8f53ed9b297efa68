/* linear.h - a linear layer with an optional LoRA or DoRA adapter, forward and
 * backward.
 *
 *   y = x·Wᵀ + s·(drop(x)·Aᵀ)·Bᵀ                        LoRA
 *   y = (the same) · magnitude / ‖W + s·B·A‖ by rows    DoRA
 *   y = … + bias
 *
 *   x [tokens, in]     tokens: all dimensions but the last
 *   W [out, in]        any storage format (quant/weight.h)
 *   A [r, in], B [out, r], magnitude [out]
 *
 * dtypes: x, dy, y and dx have the compute dtype. The bias has the compute dtype
 * or f32. A, B and the magnitude are f32, f16 or bf16. Gradients of parameters are
 * f32. W is dequantized straight to the compute dtype, with one rounding.
 *
 * DoRA: the norm is a constant in backward, as in PEFT. It is computed in every
 * call unless `norm` is given (dora_norm.h). Let factor = magnitude / norm, or 1
 * without DoRA, and dy' = factor∘dy.
 *
 * train_w: backward also computes dW = dy'ᵀ·x, the gradient of the dequantized
 * values. The rounding of W is taken as the identity.
 *
 * LLM.int8: forward with a weight in int8 multiplies codes. A column of x with a
 * value at or above `threshold`, or with a non-finite one, is an outlier column
 * and stays as it is. The other columns are quantized to 8 bits, row by row, by
 * the row's largest magnitude below the threshold. Backward uses the dequantized
 * weight. With the attribute "decoded" (field `dequantized`) forward dequantizes
 * as well. */
#ifndef NBL_LINEAR_H
#define NBL_LINEAR_H

#include "ops/ops.h"

/* The struct of arguments is public: nibble.h documents its fields. */
typedef nbl_linear nbl__linear;

extern const nbl__impl nbl__linear_ref, nbl__linear_backward_ref;

/* Checks a linear layer and sets the dtypes and shapes of its outputs. For every
 * operator that contains linear layers. `part` names the layer in messages as the
 * slots do: "gate." goes before a tensor's name (the weight itself is "gate"), "1"
 * goes after it, "" is a layer alone. */
nbl_status nbl__linear_infer(nbl_context *ctx, const char *op, const char *part, nbl__linear *a);
nbl_status nbl__linear_infer_backward(nbl_context *ctx, const char *op, const char *part, nbl__linear *a);

/* The adapter's rank r; 0 without an adapter. */
static inline int64_t nbl__linear_rank(const nbl__linear *a)
{
    return nbl__has_data(&a->lora_a) ? a->lora_a.shape[0] : 0;
}

/* Floating-point operations of one layer (nbl__cost), as f64. Notation: T tokens, I = in, O = out,
 * r = rank. `tokens` and `dx` are given, because layers of a group share x.
 *
 * Forward: y = x·Wᵀ + s·(x·Aᵀ)·Bᵀ, 2·T·(I·O + r·(I + O)); with DoRA one more factor per output.
 *
 * Backward, without the terms that are linear in T·O:
 *
 *     dx = dy·W + u·A        2·T·(I·O + r·I), where u = s·dy·B costs 2·T·O·r
 *     dA = uᵀ·x              2·T·r·I
 *     dB = dyᵀ·t             2·T·r·O, where t = s·x·Aᵀ is recomputed: 2·T·r·I
 *     dmagnitude             needs y again: 2·T·O·(I + r + 1) */
double nbl__linear_forward_flops(const nbl__linear *a, double tokens);
double nbl__linear_backward_flops(const nbl__linear *a, double tokens, bool dx);

/* Does forward multiply int8 codes (LLM.int8)? */
static inline bool nbl__linear_by_codes(const nbl__linear *a)
{
    return a->w.format == NBL_FORMAT_INT8 && !a->dequantized;
}

/* The seed of a layer's mask: `constant`, plus *added unless that is NULL. `added`
 * lies where the operator runs, so only a running kernel reads it. A captured CUDA
 * graph holds both fields, and is replayed with other masks when *added changes. */
typedef struct nbl__seed {
    uint64_t constant;
    const uint64_t *added;
} nbl__seed;
static inline nbl__seed nbl__linear_seed(const nbl__linear *a)
{
    const uint64_t *seeds = (const uint64_t *)a->seeds.data;
    nbl__seed seed = {a->seed, seeds ? seeds + a->seed_index : NULL};
    return seed;
}
/* The seed itself, in host memory. */
static inline uint64_t nbl__seed_value(nbl__seed seed)
{
    return seed.constant + (seed.added ? *seed.added : 0);
}

/* The seed of mask `index`, where one attribute `seed` serves several layers.
 * Index 0 is the seed itself. */
static inline uint64_t nbl__dropout_seed(uint64_t seed, int64_t index)
{
    return seed + (uint64_t)index * 0x9E3779B97F4A7C15u;
}
/* Does dropout keep element `index` of x? The counter-based generator
 * (base/philox.h) makes the answer depend on seed and index alone, so that
 * backward recomputes the mask instead of storing it. */
bool nbl__dropout_keeps(uint64_t seed, float dropout, int64_t index);

#endif
