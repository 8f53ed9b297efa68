/* olmo2.c - OLMo 2: norms stand behind the blocks only, and those of q and k see the whole projection.
 *
 *     h ─┬─ q k v ─ norm q k ─ heads ─ rope ─ attend ─ o ─ post_attention_layernorm ─▶ (+) ─ …
 *        └──────────────────────────────────────────────────────────────────────────────▲
 *
 *     … h ─┬─ gate up ─ act·up ─ down ─ post_feedforward_layernorm ─▶ (+)
 *          └──────────────────────────────────────────────────────────▲
 *
 * Norms are rounded once, after the weight. attention_bias puts biases on q, k, v and o. */
#include "arch/parts.h"

nbl_status nbl__olmo_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->norm_eps = 1e-5f;
    d->norm_round = NBL_ROUND_AFTER_WEIGHT;
    d->padding = 1;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    return NBL_OK;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    NBL_TRY(nbl__olmo_keys(k, d));
    NBL_CHECK(k->ctx, d->local_rope.theta == 0, NBL_ERROR_UNSUPPORTED,
              "%s: rope_parameters by layer type are not supported for olmo2", k->where);
    return NBL_OK;
}

/* OLMo 3 has this layer too. */
void nbl__olmo_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__qkv qkv = nbl__part_qkv(b, nbl__part_residual_stream(b, h), d->qkv_bias);
    qkv.q = nbl__part_norm_of(b, qkv.q, "self_attn.q_norm", d->heads * d->head_dim);
    qkv.k = nbl__part_norm_of(b, qkv.k, "self_attn.k_norm", d->kv_heads * d->head_dim);
    nbl__value x = nbl__part_attention(b, qkv, layer, &how);
    x = nbl__part_attention_output(b, x, d->o_bias);
    nbl__part_residual_add(h, nbl__part_norm(b, x, "post_attention_layernorm"));

    x = nbl__part_gated_mlp(b, nbl__part_residual_stream(b, h), false);
    nbl__part_residual_add(h, nbl__part_norm(b, x, "post_feedforward_layernorm"));
}

const nbl__arch nbl__olmo2 = {"olmo2", read_keys, nbl__olmo_layer};
