/* cohere2.c - Cohere 2 (Command R7B, Command A): one norm for two blocks, which stand side by side.
 *
 *     h ─┬─ input_layernorm ─┬─ q k v ─ rope ─ attend ─ o ─▶ (+) ─▶ (+)
 *        │                   └─ gate up ─ act·up ─ down ─────▲       ▲
 *        └───────────────────────────────────────────────────────────┘
 *
 *     norms are LayerNorms without a bias
 *     three of four layers slide (all but 3, 7, 11, …); they alone have RoPE, of neighbouring pairs
 *     logits are multiplied by logit_scale (0.0625); the head is tied to the embedding
 */
#include "arch/parts.h"

/* A key of files that were not written by transformers, which ignores it. Only the value that describes
 * transformers' model is accepted. */
static nbl_status check_idle(nbl__config_keys *k, const char *name, const char *text, double number)
{
    const nbl__json *it = nbl__key(k, name);
    double value = 0;
    if (it == NULL) return NBL_OK;
    bool same = text ? nbl__json_is(it, NBL_JSON_STRING) && strcmp(it->string, text) == 0
                     : nbl__json_is(it, NBL_JSON_TRUE) || (nbl__json_number(it, &value) && value == number);
    NBL_CHECK(k->ctx, same, NBL_ERROR_UNSUPPORTED, "%s: %s has another value than cohere2 is built for",
              k->where, name);
    return NBL_OK;
}

static nbl_status check_idle_keys(nbl__config_keys *k)
{
    NBL_TRY(check_idle(k, "order_of_interleaved_layers", "local_attn_first", 0));
    NBL_TRY(check_idle(k, "position_embedding_type", "rope_gptj", 0));
    NBL_TRY(check_idle(k, "rotary_pct", NULL, 1));
    NBL_TRY(check_idle(k, "use_embedding_sharing", NULL, 1));
    NBL_TRY(check_idle(k, "use_gated_activation", NULL, 1));
    NBL_TRY(check_idle(k, "use_parallel_block", NULL, 1));
    return check_idle(k, "use_parallel_embedding", NULL, 1);
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    int64_t pattern;
    d->positions = 8192;
    d->padding = 0;
    d->layer_norm = true;
    d->rope.interleaved = true;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", true));
    NBL_TRY(nbl__key_float_or(k, "layer_norm_eps", 1e-5, &d->norm_eps));
    NBL_CHECK(k->ctx, d->norm_eps >= 0, NBL_ERROR_FORMAT, "%s: layer_norm_eps is negative", k->where);
    NBL_CHECK(k->ctx, d->head_dim == d->hidden / d->heads, NBL_ERROR_UNSUPPORTED,
              "%s: head_dim is %" PRId64 "; transformers computes it from hidden_size", k->where,
              d->head_dim);
    NBL_CHECK(k->ctx, d->local_rope.theta == 0, NBL_ERROR_UNSUPPORTED,
              "%s: a rope per layer type is not supported for cohere2", k->where);
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    NBL_TRY(nbl__key_float_or(k, "logit_scale", 0.0625, &d->logit_scale));
    NBL_CHECK(k->ctx, d->logit_scale > 0, NBL_ERROR_FORMAT, "%s: logit_scale is not positive", k->where);
    NBL_TRY(nbl__key_size_off(k, "sliding_window", 4096, &d->window));
    NBL_CHECK(k->ctx, d->window > 0, NBL_ERROR_UNSUPPORTED,
              "%s: sliding_window is null; without a window no layer has RoPE", k->where);
    NBL_TRY(nbl__key_size_or(k, "sliding_window_pattern", 4, &pattern));
    NBL_TRY(check_idle_keys(k));
    NBL_TRY(nbl__keys_layer_types(k, d, NULL));
    for (int64_t i = 0; i < d->layers; i++) {
        if (nbl__json_get(k->config, "layer_types") == NULL) d->sliding[i] = (i + 1) % pattern != 0;
        d->no_rope[i] = !d->sliding[i];
    }
    return NBL_OK;
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    nbl__value a = nbl__part_attention(b, nbl__part_qkv(b, x, d->qkv_bias), layer, &how);
    a = nbl__part_attention_output(b, a, d->o_bias);
    x = nbl__part_gated_mlp(b, x, false);
    nbl__part_residual_add(h, nbl__build_add(b->g, "blocks", a, x, b->dtype));
}

const nbl__arch nbl__cohere2 = {"cohere2", read_keys, build_layer};
