/* build_moe.h - build.h for mixtures of experts: the router and the experts' feed-forward.
 *
 *     nbl__value logits = nbl__build_linear(g, "mlp.router", x, &router, &how);
 *     nbl__routing to = nbl__build_router(g, "mlp.router", logits, &(nbl__router_options){…});
 *     y = nbl__build_expert_mlp(g, "mlp.experts", x, &to, &gate_up, &down, &(nbl__expert_options){…});
 */
#ifndef NBL_BUILD_MOE_H
#define NBL_BUILD_MOE_H

#include "graph/graph.h"
#include "ops/elementwise/act.h"
#include "ops/moe/router.h"

typedef struct nbl__router_options {
    nbl_dtype dtype; /* of the logits */
    nbl__router_kind kind;
    int64_t top_k; /* experts per token */
    bool round;    /* weights are rounded to the dtype */
} nbl__router_options;

/* Where tokens go (router.h, expert_order.h). offsets [E + 1] tells the load of each expert. */
typedef struct nbl__routing {
    nbl__value experts, weights;
    nbl__value offsets, pairs, rows;
} nbl__routing;

/* The nodes NAME.router and NAME.order. */
nbl__routing nbl__build_router(nbl__graph *g, const char *name, nbl__value logits,
                               const nbl__router_options *how);

/* The auxiliary loss of all layers (router_loss.h): begin with zeros, add each layer, and add the loss at the end. The
 * sums are pinned. */
typedef struct nbl__router_sums {
    nbl__value counts, probs;
} nbl__router_sums;
void nbl__build_router_load(nbl__graph *g, const char *name, nbl__value logits, const nbl__routing *to,
                            nbl_dtype dtype, nbl__router_sums *sums);
/* loss + factor·aux */
nbl__value nbl__build_router_loss(nbl__graph *g, const char *name, const nbl__router_sums *sums,
                                  nbl__value loss, float factor, int64_t top_k);

/* One of the two layers of the experts; 0: absent. Shapes are in expert_mlp.h. */
typedef struct nbl__expert_values {
    nbl__value w;              /* the stack: a weight of rank 3 */
    nbl__value bias;           /* [E, out] */
    nbl__value lora_a, lora_b; /* [E·r, in] and [out, r·E]: both or none */
    float scale;               /* of the adapter */
} nbl__expert_values;

/* The attributes of expert_mlp.h. */
typedef struct nbl__expert_options {
    nbl_dtype dtype;
    nbl__act act;
    float limit, alpha; /* limit 0: not clamped */
    bool transposed, interleaved, scales_input;
    bool keep;
} nbl__expert_options;

nbl__value nbl__build_expert_mlp(nbl__graph *g, const char *name, nbl__value x, const nbl__routing *to,
                                 const nbl__expert_values *gate_up, const nbl__expert_values *down,
                                 const nbl__expert_options *how);

#endif
