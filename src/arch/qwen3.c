/* qwen3.c - Qwen3: RMSNorm on each head of q and k. head_dim is independent of hidden_size / heads
 * (default 128).
 *
 *     h ─┬─ input_layernorm ─┬─ q ─ q_norm ─ rope ─┬─ attend ─ o ─▶ (+) ─ …      (then as Llama)
 *        │                   ├─ k ─ k_norm ─ rope ─┤               ▲
 *        │                   └─ v ─────────────────┘               │
 *        └─────────────────────────────────────────────────────────┘ */
#include "arch/parts.h"

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->head_dim = 128;
    d->kv_heads = 32;
    d->positions = 32768;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    return nbl__keys_sliding_window(k, d);
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
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = nbl__part_gated_mlp(b, x, false);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__qwen3 = {"qwen3", read_keys, build_layer};
