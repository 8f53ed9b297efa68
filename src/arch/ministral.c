/* ministral.c - Ministral (8B of 2024): Llama's layer without biases. layer_types names the layers that
 * slide; without it all do, if sliding_window (4096) is set. */
#include "arch/parts.h"

static bool everywhere(const nbl__decoder *d, int64_t layer)
{
    (void)d, (void)layer;
    return true;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->kv_heads = 8;
    d->positions = 131072;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_size_off(k, "sliding_window", 4096, &d->window));
    return nbl__keys_layer_types(k, d, everywhere);
}

const nbl__arch nbl__ministral = {"ministral", read_keys, nbl__llama_layer};
