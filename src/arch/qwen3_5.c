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
    d->kv_heads = 4;
    return nbl__keys_hybrid(k, d);
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    nbl__part_hybrid_mixer(b, h, layer, false);
    nbl__value x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    nbl__part_residual_add(h, nbl__part_gated_mlp(b, x, false));
}

const nbl__arch nbl__qwen3_5 = {"qwen3_5_text", read_keys, build_layer};
