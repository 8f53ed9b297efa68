/* mistral.c - Mistral: Llama's layer without biases. If sliding_window is set, every layer slides. */
#include "arch/parts.h"

static bool everywhere(const nbl__decoder *d, int64_t layer)
{
    (void)d, (void)layer;
    return true;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 0, &d->window));
    return nbl__keys_layer_types(k, d, everywhere);
}

const nbl__arch nbl__mistral = {"mistral", read_keys, nbl__llama_layer};
