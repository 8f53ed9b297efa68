/* qwen3_5_moe.c - Qwen3.5-MoE: Qwen3.5's mixers, and in every layer a mixture of experts with a shared
 * expert. Weights of the chosen experts are divided by their sum.
 *
 *     h ─┬─ input_layernorm ─ linear_attn, or self_attn ─▶ (+) ─ …                  (parts_recurrent.c)
 *        └──────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─┬─ gate ─ softmax ─ top k ─┬─ Σ of k experts ─▶ (+) ─▶ (+)
 *          │                            ├──────────────────────────┘                   ▲       ▲
 *          │                            └─ shared_expert ─ · σ(shared_expert_gate) ────┘       │
 *          └───────────────────────────────────────────────────────────────────────────────────┘ */
#include "arch/parts.h"

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->kv_heads = 2;
    d->inner = 512; /* the class has no such key; nothing has this width */
    NBL_TRY(nbl__keys_hybrid(k, d));
    d->experts = 256;
    d->top_k = 8;
    d->expert_inner = 512;
    NBL_TRY(nbl__key_size_or(k, "shared_expert_intermediate_size", 512, &d->shared_inner));
    d->router = NBL_ROUTER_SOFTMAX_TOPK_NORM;
    d->router_round = true;
    return nbl__keys_experts(k, d, "num_experts", "moe_intermediate_size");
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    static const nbl__expert_modules names = {.router = "mlp.gate",
                                              .experts = "mlp.experts",
                                              .shared = "mlp.shared_expert",
                                              .shared_gate = "mlp.shared_expert_gate"};
    nbl__part_hybrid_mixer(b, h, layer, false);
    nbl__value x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    nbl__part_residual_add(h, nbl__part_experts(b, x, &names));
}

const nbl__arch nbl__qwen3_5_moe = {"qwen3_5_moe_text", read_keys, build_layer};
