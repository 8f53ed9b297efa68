/* gemma3.c - Gemma 3, text only. Its layer is Gemma 2's with an RMSNorm on each head of q and k:
 *
 *     h ─┬─ input_layernorm ─ q k v ─ norm q k ─ rope ─ attend ─ o ─ post_attention_layernorm ─▶ (+) ─ …
 *        └──────────────────────────────────────────────────────────────────────────────────────▲
 *
 *     no soft cap on scores; on logits only if final_logit_softcapping is set
 *     five of six layers slide (all but 5, 11, 17, …; the six is sliding_window_pattern) and have a
 *     RoPE theta of their own
 */
#include <math.h>

#include "arch/parts.h"

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    float scalar;
    int64_t pattern;
    bool bidirectional;
    /* Folders with vision leave out what these sizes say. */
    d->vocabulary = 262208;
    d->hidden = 2304;
    d->inner = 9216;
    d->layers = 26;
    d->heads = 8;
    d->positions = 131072;
    d->head_dim = 256;
    d->kv_heads = 4;
    d->rope.theta = 1e6f;
    d->local_rope.theta = 10000;
    d->act = NBL_ACT_GELU_TANH;
    d->norm_offset = 1;
    d->norm_round = NBL_ROUND_AFTER_WEIGHT;
    d->padding = 0;
    NBL_TRY(nbl__keys_common(k, d, "hidden_activation", true));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_float_or(k, "query_pre_attn_scalar", 256, &scalar));
    nbl__key(k, "attn_logit_softcapping"); /* read and ignored, as transformers does */
    NBL_TRY(nbl__key_cap_or(k, "final_logit_softcapping", 0, &d->final_cap));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 4096, &d->window));
    NBL_TRY(nbl__key_size_or(k, "sliding_window_pattern", 6, &pattern));
    /* transformers' copy of sliding_window_pattern; it has no effect */
    nbl__key(k, "_sliding_window_pattern");
    NBL_TRY(nbl__key_flag_or(k, "use_bidirectional_attention", false, &bidirectional));
    NBL_CHECK(k->ctx, !bidirectional, NBL_ERROR_UNSUPPORTED, "%s: use_bidirectional_attention", k->where);
    NBL_CHECK(k->ctx, scalar > 0, NBL_ERROR_FORMAT, "%s: query_pre_attn_scalar is not positive", k->where);
    d->attention_scale = (float)(1 / sqrt((double)scalar));
    d->o_bias = d->qkv_bias;
    d->embedding_scale = (float)sqrt((double)d->hidden);
    NBL_TRY(nbl__keys_layer_types(k, d, NULL));
    for (int64_t i = 0; i < d->layers && nbl__key(k, "layer_types") == NULL; i++)
        d->sliding[i] = (i + 1) % pattern != 0;
    return NBL_OK;
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    how.qk_norm = true;
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

const nbl__arch nbl__gemma3 = {"gemma3_text", read_keys, build_layer};
