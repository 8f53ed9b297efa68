/* granite.c - Granite: Llama's layer with four constants.
 *
 *     h ─┬─ input_layernorm ─ q k v ─ rope ─ attend ─ o ─ · residual_multiplier ─▶ (+) ─ …
 *        └─────────────────────────────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─ gate up ─ act·up ─ down ─ · residual_multiplier ─▶ (+)
 *          └───────────────────────────────────────────────────────────────────────────────▲
 *
 *     the embedding is multiplied by embedding_multiplier, scores by attention_multiplier
 *     logits are divided by logits_scaling
 *
 * attention_bias puts biases on q, k, v and o; mlp_bias on gate, up and down. */
#include <math.h>

#include "arch/parts.h"

/* A factor of the config, 1 if the key is absent. */
static nbl_status read_factor(nbl__config_keys *k, const char *name, float *factor)
{
    NBL_TRY(nbl__key_float_or(k, name, 1, factor));
    NBL_CHECK(k->ctx, *factor > 0, NBL_ERROR_FORMAT, "%s: %s is not positive", k->where, name);
    return NBL_OK;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    float divisor;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_flag_or(k, "mlp_bias", false, &d->mlp_bias));
    d->o_bias = d->qkv_bias;
    NBL_TRY(read_factor(k, "embedding_multiplier", &d->embedding_scale));
    NBL_TRY(read_factor(k, "residual_multiplier", &d->residual_scale));
    NBL_TRY(read_factor(k, "attention_multiplier", &d->attention_scale));
    NBL_TRY(read_factor(k, "logits_scaling", &divisor));
    d->logit_scale = 1 / divisor;
    NBL_CHECK(k->ctx, isfinite(d->logit_scale), NBL_ERROR_FORMAT, "%s: logits_scaling is %g", k->where,
              (double)divisor);
    return NBL_OK;
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    nbl__qkv qkv = nbl__part_qkv(b, x, d->qkv_bias);
    x = nbl__part_attention(b, qkv, layer, &how);
    x = nbl__part_attention_output(b, x, d->o_bias);
    nbl__part_residual_add(h, nbl__part_scaled(b, x, "self_attn.scale", d->residual_scale));

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = nbl__part_gated_mlp(b, x, d->mlp_bias);
    nbl__part_residual_add(h, nbl__part_scaled(b, x, "mlp.scale", d->residual_scale));
}

const nbl__arch nbl__granite = {"granite", read_keys, build_layer};
