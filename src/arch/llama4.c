/* llama4.c - Llama 4, text only: Llama's layer with two kinds of attention.
 *
 *     layers with rope      pairs of neighbours rotate; q and k have an RMSNorm without weight on each
 *                           head (use_qk_norm); keys of the same attention_chunk_size positions
 *     layers without        q is multiplied by 1 + attn_scale·ln(1 + ⌊(position + 1) / floor_scale⌋)
 *                           (attn_temperature_tuning); all keys
 *
 * Every fourth layer has no rope (no_rope_layers, no_rope_layer_interval). transformers normalizes
 * after the rotation, which keeps the mean square: here the norm comes first, as in all other models.
 *
 * The feed-forward block of a layer is dense, of width intermediate_size_mlp, or (moe_layers, by
 * default every interleave_moe_layer_step-th) a mixture of experts of width intermediate_size. The
 * sigmoid of a chosen expert's logit multiplies the expert's input. One expert serves every token:
 *
 *     … h ─┬─ post_attention_layernorm ─┬─ router ─ top k ─ σ ─ experts ─▶ (+) ─▶ (+)
 *          │                            └─ shared_expert ─────────────────▲       ▲
 *          └──────────────────────────────────────────────────────────────────────┘ */
#include "arch/parts.h"


/* layer_types says which layers are chunked; by default those with rope. */
static nbl_status read_layer_types(nbl__config_keys *k, nbl__decoder *d)
{
    const nbl__json *types = nbl__key(k, "layer_types");
    NBL_TRY(nbl__key_size_off(k, "attention_chunk_size", 8192, &d->chunk));
    NBL_CHECK(k->ctx, types == NULL || (types->type == NBL_JSON_ARRAY && types->count == d->layers),
              NBL_ERROR_FORMAT, "%s: layer_types is not a list of %" PRId64 " names", k->where, d->layers);
    for (int64_t i = 0; i < d->layers; i++) {
        const char *type = types && types->items[i].type == NBL_JSON_STRING ? types->items[i].string : "";
        d->chunked[i] = types ? strcmp(type, "chunked_attention") == 0 : !d->no_rope[i];
        NBL_CHECK(k->ctx, types == NULL || d->chunked[i] || strcmp(type, "full_attention") == 0,
                  NBL_ERROR_UNSUPPORTED,
                  "%s: layer_types has \"%s\", not full_attention or chunked_attention", k->where, type);
        NBL_CHECK(k->ctx, !d->chunked[i] || d->chunk > 0, NBL_ERROR_FORMAT,
                  "%s: layer_types has chunked_attention, but there is no attention_chunk_size", k->where);
    }
    return NBL_OK;
}

/* The scale of queries in layers without rope: a table of their own, whose angles are 0. */
static nbl_status read_query_scale(nbl__config_keys *k, nbl__decoder *d)
{
    bool tuned;
    float beta;
    int64_t floor;
    NBL_TRY(nbl__key_flag_or(k, "attn_temperature_tuning", true, &tuned));
    NBL_TRY(nbl__key_float_or(k, "attn_scale", 0.1, &beta));
    NBL_TRY(nbl__key_size_or(k, "floor_scale", 8192, &floor));
    if (!tuned || beta == 0) return NBL_OK;
    d->query_rope = (nbl__rope){.theta = 1,
                                .kind = NBL_ROPE_NONE,
                                .query_beta = (double)beta,
                                .query_length = (double)floor,
                                .query_shift = 1};
    return nbl__keys_check_rope(k, d, &d->query_rope);
}

/* Which layers have experts, and their numbers. */
static nbl_status read_experts(nbl__config_keys *k, nbl__decoder *d)
{
    const nbl__json *layers = nbl__key(k, "moe_layers");
    int64_t step, layer;
    bool any = false;
    NBL_TRY(nbl__key_size_or(k, "interleave_moe_layer_step", 1, &step));
    NBL_CHECK(k->ctx, layers == NULL || layers->type == NBL_JSON_ARRAY, NBL_ERROR_FORMAT,
              "%s: moe_layers is no list", k->where);
    for (int64_t i = 0; i < d->layers; i++) d->sparse[i] = layers == NULL && (i + 1) % step == 0;
    for (int64_t i = 0; layers && i < layers->count; i++) {
        NBL_CHECK(k->ctx, nbl__json_natural(&layers->items[i], &layer), NBL_ERROR_FORMAT,
                  "%s: moe_layers has a value that is no layer", k->where);
        if (layer < d->layers) d->sparse[layer] = true;
    }
    for (int64_t i = 0; i < d->layers; i++) any |= d->sparse[i];
    d->experts = 16;
    d->top_k = 1;
    d->router = NBL_ROUTER_TOPK_SIGMOID;
    d->router_round = d->experts_transposed = true;
    NBL_TRY(nbl__keys_experts(k, d, "num_local_experts", "intermediate_size"));
    d->shared_inner = d->expert_inner;
    if (!any) d->experts = 0;
    float jitter;
    NBL_TRY(nbl__key_float_or(k, "router_jitter_noise", 0, &jitter));
    NBL_CHECK(k->ctx, jitter == 0, NBL_ERROR_UNSUPPORTED,
              "%s: router_jitter_noise is %g, only 0 is supported", k->where, (double)jitter);
    return NBL_OK;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->kv_heads = 8;
    d->head_dim = 128;
    d->norm_eps = 1e-5f;
    d->positions = 131072;
    d->rope.theta = 500000;
    d->rope.interleaved = true;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_CHECK(k->ctx, d->local_rope.theta == 0, NBL_ERROR_UNSUPPORTED,
              "%s: ropes by layer type are not supported for llama4_text", k->where);
    /* intermediate_size is the width of an expert */
    NBL_TRY(nbl__key_size_or(k, "intermediate_size_mlp", 16384, &d->inner));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    NBL_TRY(nbl__key_flag_or(k, "use_qk_norm", true, &d->unit_norm));
    NBL_TRY(nbl__keys_no_rope(k, d));
    NBL_TRY(read_layer_types(k, d));
    NBL_TRY(read_query_scale(k, d));
    return read_experts(k, d);
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    static const nbl__expert_modules names = {.router = "feed_forward.router",
                                              .experts = "feed_forward.experts",
                                              .shared = "feed_forward.shared_expert"};
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    how.unit_norm = d->unit_norm && !how.no_rope;
    how.query_rope = how.query_rope && how.no_rope;
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    nbl__qkv qkv = nbl__part_qkv(b, x, d->qkv_bias);
    x = nbl__part_attention(b, qkv, layer, &how);
    x = nbl__part_attention_output(b, x, d->o_bias);
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = d->sparse[layer] ? nbl__part_experts(b, x, &names)
                         : nbl__part_gated_mlp_at(b, x, "feed_forward", d->inner, false);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__llama4 = {"llama4_text", read_keys, build_layer};
