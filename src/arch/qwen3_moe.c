/* qwen3_moe.c - Qwen3-MoE: Qwen3's attention, and in some layers a mixture of experts. mlp_only_layers and
 * decoder_sparse_step say which layers have a dense block instead. head_dim is hidden_size / heads where
 * the config has none: unlike Qwen3's, the class has no default.
 *
 *     h ─┬─ input_layernorm ─ q k v ─ q_norm, k_norm ─ rope ─ attend ─ o ─▶ (+) ─ …
 *        └────────────────────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─┬─ gate ─ softmax ─ top k ─┬─ Σ of k experts ─▶ (+)
 *          │                            └──────────────────────────┘                   ▲
 *          └──────────────────────────────────────────────────────────────────────────┘ */
#include "arch/parts.h"

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    bool slides;
    d->positions = 32768;
    d->kv_heads = 4;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    NBL_TRY(nbl__key_flag_or(k, "use_sliding_window", false, &slides));
    if (slides) NBL_TRY(nbl__key_size_or(k, "sliding_window", 4096, &d->window));
    else nbl__key(k, "sliding_window");
    for (int64_t i = 0; i < d->layers; i++) d->sliding[i] = d->window > 0;
    d->experts = 128;
    d->top_k = 8;
    d->expert_inner = 768;
    /* Folders of the hub have num_experts, transformers 5 saves num_local_experts. */
    bool saved = nbl__json_get(k->config, "num_local_experts") != NULL;
    return nbl__keys_qwen_experts(k, d, saved ? "num_local_experts" : "num_experts");
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    static const nbl__expert_modules names = {.router = "mlp.gate", .experts = "mlp.experts"};
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    how.qk_norm = true;
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    x = nbl__part_attention(b, nbl__part_qkv(b, x, d->qkv_bias), layer, &how);
    x = nbl__part_attention_output(b, x, d->o_bias);
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = b->d->sparse[layer] ? nbl__part_experts(b, x, &names) : nbl__part_gated_mlp(b, x, false);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__qwen3_moe = {"qwen3_moe", read_keys, build_layer};
