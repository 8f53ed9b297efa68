/* build_moe.c - see build_moe.h. Slots are named by their fields, as in build.c. */
#include "graph/build_moe.h"

#include "ops/families.h"
#include "ops/moe/expert_mlp.h"
#include "ops/moe/expert_order.h"
#include "ops/moe/router_loss.h"

nbl__routing nbl__build_router(nbl__graph *g, const char *name, nbl__value logits,
                               const nbl__router_options *how)
{
    nbl__routing to = {0};
    nbl__router *a = nbl__graph_begin(g, &nbl__router_family,
                                      nbl__arena_printf(&g->arena, "%s.router", name));
    if (a == NULL) return to;
    a->dtype = how->dtype;
    a->kind = (int)how->kind;
    a->top_k = how->top_k;
    a->round = how->round;
    nbl__graph_bind(g, &a->logits, logits);
    to.experts = nbl__graph_end(g);
    to.weights = nbl__graph_output(g, &a->weights);
    nbl__expert_order *order = nbl__graph_begin(g, &nbl__expert_order_family,
                                                nbl__arena_printf(&g->arena, "%s.order", name));
    if (order == NULL || g->status != NBL_OK) return to;
    order->count = nbl__last(&nbl__info(g, logits)->tensor);
    nbl__graph_bind(g, &order->experts, to.experts);
    to.offsets = nbl__graph_end(g);
    to.pairs = nbl__graph_output(g, &order->pairs);
    to.rows = nbl__graph_output(g, &order->rows);
    return to;
}

void nbl__build_router_load(nbl__graph *g, const char *name, nbl__value logits, const nbl__routing *to,
                            nbl_dtype dtype, nbl__router_sums *sums)
{
    nbl__router_load *a = nbl__graph_begin(g, &nbl__router_load_family,
                                           nbl__arena_printf(&g->arena, "%s.load", name));
    if (a == NULL) return;
    a->dtype = dtype;
    nbl__graph_bind(g, &a->logits, logits);
    nbl__graph_bind(g, &a->experts, to->experts);
    nbl__graph_bind(g, &a->counts_in, sums->counts);
    nbl__graph_bind(g, &a->probs_in, sums->probs);
    sums->counts = nbl__graph_end(g);
    sums->probs = nbl__graph_output(g, &a->probs);
    nbl__graph_pin(g, sums->counts);
    nbl__graph_pin(g, sums->probs);
}

nbl__value nbl__build_router_loss(nbl__graph *g, const char *name, const nbl__router_sums *sums,
                                  nbl__value loss, float factor, int64_t top_k)
{
    nbl__router_loss *a = nbl__graph_begin(g, &nbl__router_loss_family, name);
    if (a == NULL) return 0;
    a->factor = factor;
    a->top_k = top_k;
    nbl__graph_bind(g, &a->counts, sums->counts);
    nbl__graph_bind(g, &a->probs, sums->probs);
    nbl__graph_bind(g, &a->base, loss);
    return nbl__graph_end(g);
}

static void bind_layer(nbl__graph *g, nbl__expert_linear *l, const nbl__expert_values *values)
{
    nbl__graph_bind(g, &l->w, values->w);
    nbl__graph_bind(g, &l->bias, values->bias);
    nbl__graph_bind(g, &l->lora_a, values->lora_a);
    nbl__graph_bind(g, &l->lora_b, values->lora_b);
    if (values->lora_a) l->scale = values->scale, l->own_scale = true;
}

nbl__value nbl__build_expert_mlp(nbl__graph *g, const char *name, nbl__value x, const nbl__routing *to,
                                 const nbl__expert_values *gate_up, const nbl__expert_values *down,
                                 const nbl__expert_options *how)
{
    nbl__expert_mlp *a = nbl__graph_begin(g, &nbl__expert_mlp_family, name);
    if (a == NULL) return 0;
    a->dtype = how->dtype;
    a->act = (int)how->act;
    a->limit = how->limit;
    a->alpha = how->alpha;
    a->transposed = how->transposed;
    a->interleaved = how->interleaved;
    a->scales_input = how->scales_input;
    a->keep = how->keep;
    nbl__graph_bind(g, &a->x, x);
    nbl__graph_bind(g, &a->offsets, to->offsets);
    nbl__graph_bind(g, &a->pairs, to->pairs);
    nbl__graph_bind(g, &a->rows, to->rows);
    nbl__graph_bind(g, &a->weights, to->weights);
    bind_layer(g, &a->gate_up, gate_up);
    bind_layer(g, &a->down, down);
    return nbl__graph_end(g);
}
