/* smollm3.c - SmolLM3: Llama's layer. Every fourth layer (no_rope_layers, no_rope_layer_interval) does
 * not rotate q and k. With use_sliding_window these layers slide. */
#include "arch/parts.h"

static bool without_rope(const nbl__decoder *d, int64_t layer)
{
    return d->no_rope[layer];
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    bool slides;
    int64_t pretraining_tp;
    d->kv_heads = 4;
    d->positions = 32768;
    d->padding = 128004;
    d->rope.theta = 2e6f;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", true));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_flag_or(k, "mlp_bias", false, &d->mlp_bias));
    d->o_bias = d->qkv_bias;
    /* read and ignored: it changes only the order of summation */
    NBL_TRY(nbl__key_size_or(k, "pretraining_tp", 1, &pretraining_tp));
    NBL_TRY(nbl__keys_no_rope(k, d));
    NBL_TRY(nbl__key_size_off(k, "sliding_window", 0, &d->window));
    NBL_TRY(nbl__key_flag_or(k, "use_sliding_window", false, &slides));
    if (!slides) d->window = 0;
    return nbl__keys_layer_types(k, d, without_rope);
}

const nbl__arch nbl__smollm3 = {"smollm3", read_keys, nbl__llama_layer};
