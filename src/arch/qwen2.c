/* qwen2.c - Qwen2 and Qwen2.5: biases on q, k and v; a sliding window above max_window_layers when
 * use_sliding_window is set. */
#include "arch/arch.h"

static bool nowhere(const nbl__decoder *d, int64_t layer)
{
    (void)d, (void)layer;
    return false;
}

static nbl_status read_qwen2(nbl__keys *k, nbl__decoder *d)
{
    bool use_window;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 0, &d->window));
    NBL_TRY(nbl__key_flag_or(k, "use_sliding_window", false, &use_window));
    if (!use_window) d->window = 0;
    NBL_CHECK(k->ctx, !use_window || nbl__json_get(k->config, "layer_types"), NBL_ERROR_UNSUPPORTED,
              "%s: use_sliding_window without layer_types", k->where);
    d->qkv_bias = true;
    return nbl__keys_layer_types(k, d, nowhere);
}

const nbl__arch nbl__qwen2 = {"qwen2", read_qwen2};
