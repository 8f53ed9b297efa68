/* router.h - a mixture of experts' router: which experts a token goes to, and with what weights.
 *
 *   logits [tokens, E]       dtype: f32, f16 or bf16, the linear layer's output
 *   experts i32 [tokens, k]  of each token, the largest logit first; of equal ones the lower index first. A NaN counts
 *                            as the largest. The k experts of a token are distinct.
 *   weights f32 [tokens, k]  K: the chosen experts, p = softmax(logits)
 *
 *   kind                 weights w_k                   used by
 *   topk_softmax         softmax over K                GPT-OSS
 *   softmax_topk         p_k                           Qwen MoE, norm_topk_prob false
 *   softmax_topk_norm    p_k / Σ_K p                   Mixtral; Qwen MoE, norm_topk_prob true
 *   topk_sigmoid         σ(logit_k)                    Llama 4
 *
 * round: weights are rounded to the logits' dtype, as transformers does in all models but Mixtral. They are f32 in
 * memory anyway. Backward takes this rounding as the identity.
 *
 * Backward, with dw_k the gradient of w_k:
 *
 *   topk_softmax, softmax_topk_norm   dlogit_k = w_k·(dw_k - Σ_j w_j·dw_j) on K, 0 elsewhere
 *   softmax_topk                      dlogit_e = p_e·(dw_e - Σ_j p_j·dw_j), dw_e = 0 off K: every logit gets a gradient
 *   topk_sigmoid                      dlogit_k = w_k·(1 - w_k)·dw_k on K, 0 elsewhere
 *
 * softmax_topk_norm has the formula of topk_softmax: renormalized weights are the softmax over K. The choice itself has
 * no gradient. */
#ifndef NBL_ROUTER_H
#define NBL_ROUTER_H

#include "ops/ops.h"

typedef enum nbl__router_kind {
    NBL_ROUTER_TOPK_SOFTMAX,
    NBL_ROUTER_SOFTMAX_TOPK,
    NBL_ROUTER_SOFTMAX_TOPK_NORM,
    NBL_ROUTER_TOPK_SIGMOID
} nbl__router_kind;

typedef struct nbl__router {
    nbl_dtype dtype; /* of the logits */
    int kind;        /* nbl__router_kind */
    int64_t top_k;   /* 1 … E */
    bool round;
    nbl_tensor logits;
    nbl_tensor experts, weights;
    nbl_tensor dweights, dlogits;
} nbl__router;

#endif
