/* gpt_oss.c - GPT-OSS: Llama's layer with biases, a sink in the softmax of attention, and a mixture of
 * experts with a clamped activation. Sliding and full layers alternate; RoPE is YaRN's.
 *
 *     h ─┬─ input_layernorm ─ q k v ─ rope ─ attend, sinks ─ o ─▶ (+) ─ …
 *        └───────────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─┬─ router ─ top k ─ softmax ─┬─ Σ of k experts ─▶ (+)
 *          │                            └────────────────────────────┘                   ▲
 *          └────────────────────────────────────────────────────────────────────────────┘
 *
 *     sinks    a logit per head that joins the softmax and is dropped: p = exp(s) / (Σ exp(s) + exp(sink))
 *     expert   g, u = columns 2i and 2i + 1 of gate_up; (clip(u) + 1) · min(g) · σ(alpha·g); down
 *     files    dense experts [E, in, out], or MXFP4 [E, out, in], or a tensor per expert (expert_names.h) */
#include "arch/parts.h"

static bool even(const nbl__decoder *d, int64_t layer)
{
    (void)d;
    return layer % 2 == 0;
}

/* The class's rope, if the config has none at all. */
static void default_rope(const nbl__config_keys *k, nbl__decoder *d)
{
    const nbl__json *parameters = nbl__json_get(k->config, "rope_parameters");
    const nbl__json *scaling = nbl__json_get(k->config, "rope_scaling");
    bool given = (parameters && parameters->type != NBL_JSON_NULL) ||
                 (scaling && scaling->type != NBL_JSON_NULL);
    if (given) return;
    d->rope.kind = NBL_ROPE_YARN;
    d->rope.factor = 32;
    d->rope.beta_fast = 32;
    d->rope.beta_slow = 1;
    d->rope.keep_fractions = true;
    d->rope.original_max_position_embeddings = 4096;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    int64_t context;
    d->norm_eps = 1e-5f;
    /* x̂·w is rounded once */
    d->norm_round = NBL_ROUND_AFTER_WEIGHT;
    d->positions = 131072;
    d->head_dim = 64;
    d->kv_heads = 8;
    d->rope.theta = 150000;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    d->act = NBL_ACT_SILU; /* hidden_act has no effect */
    default_rope(k, d);
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", true, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    d->sinks = true;
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 128, &d->window));
    NBL_TRY(nbl__keys_layer_types(k, d, even));
    d->experts = 128;
    d->top_k = 4;
    d->router = NBL_ROUTER_TOPK_SOFTMAX;
    d->router_round = d->router_bias = true;
    d->experts_bias = d->experts_transposed = d->experts_interleaved = true;
    bool alias = nbl__json_get(k->config, "num_local_experts") == NULL;
    NBL_TRY(nbl__keys_experts(k, d, alias ? "num_experts" : "num_local_experts", "intermediate_size"));
    for (int64_t i = 0; i < d->layers; i++) d->sparse[i] = true;
    NBL_TRY(nbl__key_float_or(k, "swiglu_limit", 7, &d->act_limit));
    NBL_TRY(nbl__key_float_or(k, "swiglu_alpha", 1.702, &d->act_alpha));
    NBL_CHECK(k->ctx, d->act_limit > 0, NBL_ERROR_UNSUPPORTED, "%s: swiglu_limit is not positive", k->where);
    /* idle in transformers */
    NBL_TRY(nbl__key_size_or(k, "experts_per_token", 0, &context));
    return nbl__key_size_or(k, "initial_context_length", 0, &context);
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    static const nbl__expert_modules names = {.router = "mlp.router", .experts = "mlp.experts"};
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    x = nbl__part_attention(b, nbl__part_qkv(b, x, d->qkv_bias), layer, &how);
    x = nbl__part_attention_output(b, x, d->o_bias);
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = nbl__part_experts(b, x, &names);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__gpt_oss = {"gpt_oss", read_keys, build_layer};
