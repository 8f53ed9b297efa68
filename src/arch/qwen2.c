/* qwen2.c - Qwen2 and Qwen2.5: Llama's layer with biases on q, k and v, not on o. With
 * use_sliding_window, layer_types names the layers that slide (default: all from max_window_layers on). */
#include "arch/parts.h"

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->kv_heads = 32;
    d->positions = 32768;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    d->qkv_bias = true;
    return nbl__keys_sliding_window(k, d);
}

const nbl__arch nbl__qwen2 = {"qwen2", read_keys, nbl__llama_layer};
