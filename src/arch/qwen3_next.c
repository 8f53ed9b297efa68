/* qwen3_next.c - Qwen3-Next: Qwen3.5's mixers with fused matrices (in_proj_qkvz and in_proj_ba have the
 * rows of a key head together), and in some layers a mixture of experts with a shared expert.
 * mlp_only_layers and decoder_sparse_step say which layers have a dense block instead.
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
    bool normalized;
    d->kv_heads = 2;
    d->inner = 5632;
    NBL_TRY(nbl__keys_hybrid(k, d));
    d->experts = 512;
    d->top_k = 10;
    d->expert_inner = 512;
    NBL_TRY(nbl__key_size_or(k, "shared_expert_intermediate_size", 512, &d->shared_inner));
    NBL_TRY(nbl__key_flag_or(k, "norm_topk_prob", true, &normalized));
    d->router = normalized ? NBL_ROUTER_SOFTMAX_TOPK_NORM : NBL_ROUTER_SOFTMAX_TOPK;
    d->router_round = true;
    NBL_TRY(nbl__keys_experts(k, d, "num_experts", "moe_intermediate_size"));
    return nbl__keys_sparse_layers(k, d);
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    static const nbl__expert_modules names = {.router = "mlp.gate",
                                              .experts = "mlp.experts",
                                              .shared = "mlp.shared_expert",
                                              .shared_gate = "mlp.shared_expert_gate"};
    nbl__part_hybrid_mixer(b, h, layer, true);
    nbl__value x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = b->d->sparse[layer] ? nbl__part_experts(b, x, &names) : nbl__part_gated_mlp(b, x, false);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__qwen3_next = {"qwen3_next", read_keys, build_layer};
