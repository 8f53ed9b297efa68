/* router_loss.h - the auxiliary loss that spreads tokens over experts. It is joint over the rows of all MoE layers:
 *
 *   aux = E·Σ_e f_e·P_e        f_e = Σ rows that chose e / R, P_e = Σ softmax(logits)_e / R
 *
 *   R rows: tokens times layers. f sums up to k.
 *
 * router_load adds a layer to both sums; router_loss adds factor·aux to a loss.
 *
 *   router_load   logits [tokens, E], experts i32 [tokens, k]    of one layer (router.h)
 *                 counts_in i32 [E], probs_in f32 [E]            optional: the sums of the layers before
 *                 counts, probs                                  the sums with this layer
 *   router_loss   counts, probs of all layers, base f32 [1]      loss f32 [1] = base + factor·aux
 *
 * R = Σ counts / top_k, so it follows from the data. Without rows aux is 0. Backward takes f as a constant, as
 * transformers does:
 *
 *   dprobs_e = dloss·factor·E·counts_e / R²        dlogits = p∘(dprobs - Σ_e p_e·dprobs_e)     dprobs_in = dprobs */
#ifndef NBL_ROUTER_LOSS_H
#define NBL_ROUTER_LOSS_H

#include "ops/ops.h"

typedef struct nbl__router_load {
    nbl_dtype dtype; /* of the logits */
    nbl_tensor logits, experts, counts_in, probs_in;
    nbl_tensor counts, probs;
    nbl_tensor dprobs, dlogits, dprobs_in;
} nbl__router_load;

typedef struct nbl__router_loss {
    float factor;
    int64_t top_k;
    nbl_tensor counts, probs, base;
    nbl_tensor loss;
    nbl_tensor dloss, dprobs, dbase;
} nbl__router_loss;

#endif
