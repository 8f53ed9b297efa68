/* gemma2.c - Gemma 2.
 *
 *     h ─┬─ input_layernorm ─ q k v ─ rope ─ attend ─ o ─ post_attention_layernorm ─▶ (+) ─ …
 *        └────────────────────────────────────────────────────────────────────────────▲
 *
 *     … h ─┬─ pre_feedforward_layernorm ─ gate up ─ gelu·up ─ down ─ post_feedforward_layernorm ─▶ (+)
 *          └──────────────────────────────────────────────────────────────────────────────────────▲
 *
 *     norms multiply by 1 + w, with one rounding
 *     scores are scaled by 1 / sqrt(query_pre_attn_scalar); soft caps on scores (50) and logits (30)
 *     a sliding window (4096) on layers 0, 2, 4, …
 *     the embedding is multiplied by sqrt(hidden_size); the head is tied to it
 */
#include <math.h>

#include "arch/parts.h"

static bool every_other(const nbl__decoder *d, int64_t layer)
{
    (void)d;
    return layer % 2 == 0;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    float scalar;
    d->head_dim = 256;
    d->kv_heads = 4;
    d->positions = 8192;
    d->act = NBL_ACT_GELU_TANH;
    d->norm_offset = 1;
    d->norm_round = NBL_ROUND_AFTER_WEIGHT;
    d->padding = 0;
    /* read and ignored: older files say "gelu" here; hidden_activation decides */
    nbl__key(k, "hidden_act");
    NBL_TRY(nbl__keys_common(k, d, "hidden_activation", true));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_float_or(k, "query_pre_attn_scalar", 256, &scalar));
    NBL_TRY(nbl__key_cap_or(k, "attn_logit_softcapping", 50, &d->attention_cap));
    NBL_TRY(nbl__key_cap_or(k, "final_logit_softcapping", 30, &d->final_cap));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 4096, &d->window));
    NBL_CHECK(k->ctx, scalar > 0, NBL_ERROR_FORMAT, "%s: query_pre_attn_scalar is not positive", k->where);
    d->attention_scale = (float)(1 / sqrt((double)scalar));
    d->o_bias = d->qkv_bias;
    d->embedding_scale = (float)sqrt((double)d->hidden);
    return nbl__keys_layer_types(k, d, every_other);
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    nbl__qkv qkv = nbl__part_qkv(b, x, d->qkv_bias);
    x = nbl__part_attention(b, qkv, layer, &how);
    x = nbl__part_attention_output(b, x, d->o_bias);
    x = nbl__part_norm(b, x, "post_attention_layernorm");
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "pre_feedforward_layernorm");
    x = nbl__part_gated_mlp(b, x, false);
    x = nbl__part_norm(b, x, "post_feedforward_layernorm");
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__gemma2 = {"gemma2", read_keys, build_layer};
