/* qwen2_moe.c - Qwen1.5-MoE and Qwen2-MoE: Qwen2's attention, and in some layers a mixture of experts with
 * a shared expert. mlp_only_layers and decoder_sparse_step say which layers have a dense block instead.
 *
 *     h ─┬─ input_layernorm ─ q k v ─ rope ─ attend ─ o ─▶ (+) ─ …
 *        └────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─┬─ gate ─ softmax ─ top k ─┬─ Σ of k experts ─▶ (+) ─▶ (+)
 *          │                            ├──────────────────────────┘                   ▲       ▲
 *          │                            └─ shared_expert ─ · σ(shared_expert_gate) ────┘       │
 *          └───────────────────────────────────────────────────────────────────────────────────┘ */
#include "arch/parts.h"

/* Without layer_types: every second layer of the first max_window_layers slides. */
static bool every_second(const nbl__decoder *d, int64_t layer)
{
    return (layer + 1) % 2 != 0 && layer < d->window_layers;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    bool slides;
    d->positions = 32768;
    d->kv_heads = 16;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "qkv_bias", true, &d->qkv_bias));
    NBL_TRY(nbl__key_flag_or(k, "use_sliding_window", false, &slides));
    NBL_TRY(nbl__key_size_or(k, "max_window_layers", 28, &d->window_layers));
    /* Without use_sliding_window the class saves a window of 0. */
    if (slides) NBL_TRY(nbl__key_size_or(k, "sliding_window", 4096, &d->window));
    else nbl__key(k, "sliding_window");
    NBL_TRY(nbl__keys_layer_types(k, d, every_second));
    d->experts = 60;
    d->top_k = 4;
    d->expert_inner = 1408;
    NBL_TRY(nbl__key_size_or(k, "shared_expert_intermediate_size", 5632, &d->shared_inner));
    return nbl__keys_qwen_experts(k, d, "num_experts");
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    static const nbl__expert_modules names = {.router = "mlp.gate",
                                              .experts = "mlp.experts",
                                              .shared = "mlp.shared_expert",
                                              .shared_gate = "mlp.shared_expert_gate"};
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    x = nbl__part_attention(b, nbl__part_qkv(b, x, b->d->qkv_bias), layer, &how);
    x = nbl__part_attention_output(b, x, false);
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = b->d->sparse[layer] ? nbl__part_experts(b, x, &names) : nbl__part_gated_mlp(b, x, false);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__qwen2_moe = {"qwen2_moe", read_keys, build_layer};
