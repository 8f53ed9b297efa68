/* qwen_moe.c - Qwen2-MoE and Qwen3-MoE: the attention of Qwen2 and Qwen3, and in some layers a mixture
 * of experts. mlp_only_layers and decoder_sparse_step say which layers have a dense block instead.
 *
 *     h ─┬─ input_layernorm ─ q k v (─ q_norm, k_norm) ─ rope ─ attend ─ o ─▶ (+) ─ …
 *        └────────────────────────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─┬─ gate ─ softmax ─ top k ─┬─ Σ of k experts ─▶ (+) ─▶ (+)
 *          │                            ├──────────────────────────┘                   ▲       ▲
 *          │                            ├─ shared_expert ─ · σ(shared_expert_gate) ────┘       │
 *          └───────────────────────────────────────────────────────────────────────────────────┘
 *
 * The shared expert is Qwen2-MoE's. Weights of the k experts are those of the softmax over all, or
 * divided by their sum (norm_topk_prob). */
#include "arch/parts.h"

/* What the two configuration classes have in common. */
static nbl_status read_experts(nbl__config_keys *k, nbl__decoder *d, const char *count)
{
    bool normalized;
    NBL_TRY(nbl__key_flag_or(k, "norm_topk_prob", false, &normalized));
    d->router = normalized ? NBL_ROUTER_SOFTMAX_TOPK_NORM : NBL_ROUTER_SOFTMAX_TOPK;
    d->router_round = true;
    NBL_TRY(nbl__keys_experts(k, d, count, "moe_intermediate_size"));
    return nbl__keys_sparse_layers(k, d);
}

static void build_feed_forward(nbl__build *b, nbl__residual *h, int64_t layer,
                               const nbl__expert_modules *names)
{
    nbl__value x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = b->d->sparse[layer] ? nbl__part_experts(b, x, names) : nbl__part_gated_mlp(b, x, false);
    nbl__part_residual_add(h, x);
}

/* ---- Qwen2-MoE ---- */

/* Without layer_types: every second layer of the first max_window_layers slides. */
static bool every_second(const nbl__decoder *d, int64_t layer)
{
    return (layer + 1) % 2 != 0 && layer < d->window_layers;
}

static nbl_status read_qwen2(nbl__config_keys *k, nbl__decoder *d)
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
    return read_experts(k, d, "num_experts");
}

static void build_qwen2(nbl__build *b, nbl__residual *h, int64_t layer)
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
    build_feed_forward(b, h, layer, &names);
}

const nbl__arch nbl__qwen2_moe = {"qwen2_moe", read_qwen2, build_qwen2};

/* ---- Qwen3-MoE ---- */

static nbl_status read_qwen3(nbl__config_keys *k, nbl__decoder *d)
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
    return read_experts(k, d, saved ? "num_local_experts" : "num_experts");
}

static void build_qwen3(nbl__build *b, nbl__residual *h, int64_t layer)
{
    static const nbl__expert_modules names = {.router = "mlp.gate", .experts = "mlp.experts"};
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    how.qk_norm = true;
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    x = nbl__part_attention(b, nbl__part_qkv(b, x, d->qkv_bias), layer, &how);
    x = nbl__part_attention_output(b, x, d->o_bias);
    nbl__part_residual_add(h, x);
    build_feed_forward(b, h, layer, &names);
}

const nbl__arch nbl__qwen3_moe = {"qwen3_moe", read_qwen3, build_qwen3};
