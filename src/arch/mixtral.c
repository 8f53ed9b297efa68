/* mixtral.c - Mixtral: Llama's layer, with a mixture of experts as its feed-forward block. If
 * sliding_window is set, every layer slides. The router's weights stay f32.
 *
 *     h ─┬─ input_layernorm ─ q k v ─ rope ─ attend ─ o ─▶ (+) ─ …
 *        └────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─┬─ gate ─ softmax ─ top k ─┬─ Σ of k experts ─▶ (+)
 *          │                            └──────────────────────────┘                   ▲
 *          └──────────────────────────────────────────────────────────────────────────┘ */
#include "arch/parts.h"

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    float jitter;
    d->norm_eps = 1e-5f;
    d->positions = 4096 * 32;
    d->rope.theta = 1e6f;
    d->kv_heads = 8;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 0, &d->window));
    for (int64_t i = 0; i < d->layers; i++) d->sliding[i] = d->window > 0, d->sparse[i] = true;
    d->experts = 8;
    d->top_k = 2;
    d->router = NBL_ROUTER_SOFTMAX_TOPK_NORM;
    /* transformers reads num_experts as another name of it */
    bool alias = nbl__json_get(k->config, "num_local_experts") == NULL;
    NBL_TRY(nbl__keys_experts(k, d, alias ? "num_experts" : "num_local_experts", "intermediate_size"));
    NBL_TRY(nbl__key_float_or(k, "router_jitter_noise", 0, &jitter));
    NBL_CHECK(k->ctx, jitter == 0, NBL_ERROR_UNSUPPORTED,
              "%s: router_jitter_noise is %g, only 0 is supported", k->where, (double)jitter);
    return NBL_OK;
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    static const nbl__expert_modules names = {.router = "mlp.gate", .experts = "mlp.experts"};
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    x = nbl__part_attention(b, nbl__part_qkv(b, x, false), layer, &how);
    x = nbl__part_attention_output(b, x, false);
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = nbl__part_experts(b, x, &names);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__mixtral = {"mixtral", read_keys, build_layer};
