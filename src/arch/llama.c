/* llama.c - Llama 2, 3, 3.1, 3.2, SmolLM2, TinyLlama: the plain decoder.
 *
 *     h ─┬─ input_layernorm ─ q k v ─ rope ─ attend ─ o ─▶ (+) ─ …
 *        └─────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─ gate up ─ act·up ─ down ─▶ (+)
 *          └───────────────────────────────────────────────────────▲
 *
 * attention_bias puts biases on q, k, v and o; mlp_bias on gate, up and down. */
#include "arch/parts.h"

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    int64_t pretraining_tp;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_flag_or(k, "mlp_bias", false, &d->mlp_bias));
    d->o_bias = d->qkv_bias;
    /* read and ignored: it changes only the order of summation */
    NBL_TRY(nbl__key_size_or(k, "pretraining_tp", 1, &pretraining_tp));
    return NBL_OK;
}

/* Mistral and Qwen2 have this layer too. */
void nbl__llama_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    nbl__qkv qkv = nbl__part_qkv(b, x, d->qkv_bias);
    x = nbl__part_attention(b, qkv, layer, &how);
    x = nbl__part_attention_output(b, x, d->o_bias);
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    x = nbl__part_gated_mlp(b, x, d->mlp_bias);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__llama = {"llama", read_keys, nbl__llama_layer};
