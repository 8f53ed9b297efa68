/* qwen3_5.c - Qwen3.5: a hybrid. Most layers mix tokens by the gated delta rule, the others by
 * attention whose output has a gate. Norms multiply by 1 + w. A quarter of a head rotates.
 *
 *     h ─┬─ input_layernorm ─ linear_attn, or self_attn ─▶ (+) ─ …      (parts_recurrent.c; then as Llama)
 *        └──────────────────────────────────────────────────▲
 *
 *     self_attn     q k v gate ─ q_norm, k_norm ─ rope ─ attend ─ · σ(gate) ─ o ─▶ */
#include "arch/parts.h"

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->head_dim = 256;
    d->kv_heads = 4;
    d->positions = 32768;
    d->norm_offset = 1;
    d->norm_round = NBL_ROUND_AFTER_WEIGHT;
    d->partial_rotary = true;
    d->rope.partial_rotary_factor = 0.25;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    return nbl__keys_recurrent(k, d);
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    how.qk_norm = true;
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    x = b->d->recurrent[layer] ? nbl__part_gated_delta(b, x, layer, false)
                               : nbl__part_gated_attention(b, x, layer, &how);
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = nbl__part_gated_mlp(b, x, false);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__qwen3_5 = {"qwen3_5_text", read_keys, build_layer};
