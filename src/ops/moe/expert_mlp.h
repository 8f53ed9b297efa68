/* expert_mlp.h - the feed-forward of a mixture of experts, forward and backward: gather, two linear layers per expert,
 * activation, and the weighted sum back.
 *
 *   y_t = Σ_slots w_ts · down_e(act(gate_up_e(x_t)))       e = experts[t, s]
 *
 *   x [tokens, H]                  compute dtype; y [tokens, H'] has it, too
 *   offsets, pairs, rows           of expert_order.h. Sorted row i is token pairs[i] / k.
 *   weights f32 [tokens, k]        of router.h
 *   gate_up stack [E, 2I, H]       dense, NF4, FP4, INT8 or MXFP4; in one piece, or members (nbl_weight.members): a
 *                                  matrix per expert, or gate and up of each expert apart (gate_0, up_0, gate_1, …)
 *   down stack [E, H', I]
 *   bias [E, 2I], [E, H']          optional: compute dtype or f32
 *   lora_a [E·r, in]               optional, PEFT's target_parameters: row e·r + j
 *   lora_b [out, r·E]              column j·E + e
 *
 * The layer of expert e:   z = v·W_eᵀ + s·(v·A_eᵀ)·B_eᵀ + bias_e. ΔW is never formed.
 *
 *   transposed     stacks are stored [E, in, out]: [E, H, 2I] and [E, I, H'] (GPT-OSS dense, Llama 4). Dense only.
 *   interleaved    output 2i of gate_up is gate i, output 2i + 1 is up i (GPT-OSS). Else gates come first, then ups.
 *   act            h = act(gate)·up
 *   limit > 0      GPT-OSS: g = min(gate, limit), u = clip(up, -limit, limit), h = (u + 1)·g·σ(alpha·g). act is silu.
 *   scales_input   the weight multiplies the expert's input instead of its output (Llama 4): v = w·x, not rounded
 *   scale          of gate_up's adapter; "down.scale" of down's, 0: the same
 *   keep           forward saves the outputs of gate_up, f32 [tokens·k, 2I] in sorted order; backward does not compute
 *                  them again. The results have the same bits.
 *
 * Rounding: W is dequantized straight to the compute dtype, with one rounding. Values between the layers are f32 (f64 in
 * the reference). A token's k rows are summed in f32 and rounded once. INT8 is dequantized; codes do not multiply.
 *
 * Backward, with dz = dy_t of a sorted row and w its weight:
 *
 *   q = dz·W_d + s·(dz·B_d)·A_d           dw = Σ h∘q + Σ bias_d∘dz      (the expert's output is not needed)
 *   dh = w·q                              dB_d = s·(w·dz)ᵀ(h·A_dᵀ)      dA_d = s·((w·dz)·B_d)ᵀ·h
 *   (dgate, dup) = act'(dh)               gate_up's dA and dB alike     dx_t = Σ_slots of its rows
 *
 *   scales_input: dw = Σ dv∘x, dx += w·dv, and w is 1 above.
 *
 * Gradients of A, B, biases and stacks are f32 and those of the experts alone that have rows; without `accumulate`
 * those of the others are 0. train_w: the gradient of the dequantized values, in the stored orientation; a stack of
 * members has none.
 *
 * Determinism: a token's y, dx and dweights have the same bits whatever the number of threads and whichever tokens
 * share its experts. They depend on the numbers of tokens and experts, which choose the kernels. */
#ifndef NBL_EXPERT_MLP_H
#define NBL_EXPERT_MLP_H

#include "ops/elementwise/act.h"
#include "ops/ops.h"

/* One of the two layers, for all experts. */
typedef struct nbl__expert_linear {
    nbl_weight w;
    nbl_tensor bias, lora_a, lora_b;
    float scale;
    bool own_scale; /* a scale of 0 is meant */
    nbl_tensor dbias, dlora_a, dlora_b, dw;
} nbl__expert_linear;

typedef struct nbl__expert_mlp {
    nbl_dtype dtype;
    int act; /* nbl__act */
    float limit, alpha;
    bool transposed, interleaved, scales_input, keep, train_w, accumulate;
    nbl_tensor x, offsets, pairs, rows, weights;
    nbl__expert_linear gate_up, down;
    nbl_tensor y, gate_up_out;
    nbl_tensor dy, dx, dweights;
} nbl__expert_mlp;

/* The sizes of a call that passed infer. */
typedef struct nbl__expert_sizes {
    int64_t tokens, top_k, pairs; /* pairs = tokens · top_k */
    int64_t experts, in, inner, out;
    int64_t rank, down_rank; /* of the adapters; 0: none */
} nbl__expert_sizes;
nbl__expert_sizes nbl__expert_sizes_of(const nbl__expert_mlp *a);

/* Inputs and outputs of a layer, whichever way its stack is stored. */
static inline int64_t nbl__expert_in(const nbl__expert_mlp *a, const nbl__expert_linear *l)
{
    return l->w.shape[a->transposed ? 1 : 2];
}
static inline int64_t nbl__expert_out(const nbl__expert_mlp *a, const nbl__expert_linear *l)
{
    return l->w.shape[a->transposed ? 2 : 1];
}
/* The scale of a layer's adapter. */
static inline float nbl__expert_scale(const nbl__expert_mlp *a, const nbl__expert_linear *l)
{
    return l->scale == 0 && !l->own_scale ? a->gate_up.scale : l->scale;
}

#endif
