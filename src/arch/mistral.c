/* mistral.c - Mistral: Llama's layer without biases. If sliding_window (4096) is set, every layer
 * slides, whatever layer_types says: that is Ministral. */
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
    NBL_TRY(nbl__keys_layer_types(k, d, everywhere));
    for (int64_t i = 0; i < d->layers; i++)
        NBL_CHECK(k->ctx, d->sliding[i] == (d->window > 0), NBL_ERROR_UNSUPPORTED,
                  "%s: layer_types of model_type mistral, which has the same window in all layers", k->where);
    return NBL_OK;
}

const nbl__arch nbl__mistral = {"mistral", read_keys, nbl__llama_layer};
