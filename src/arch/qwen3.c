/* qwen3.c - Qwen3: q and k are normalised by heads; head_dim is a number of its own. */
#include "arch/arch.h"

static bool nowhere(const nbl__decoder *d, int64_t layer)
{
    (void)d, (void)layer;
    return false;
}

static nbl_status read_qwen3(nbl__keys *k, nbl__decoder *d)
{
    bool use_window;
    d->head_dim = 128;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 0, &d->window));
    NBL_TRY(nbl__key_flag_or(k, "use_sliding_window", false, &use_window));
    if (!use_window) d->window = 0;
    NBL_CHECK(k->ctx, !use_window || nbl__json_get(k->config, "layer_types"), NBL_ERROR_UNSUPPORTED,
              "%s: use_sliding_window without layer_types", k->where);
    d->o_bias = d->qkv_bias;
    d->qk_norm = true;
    return nbl__keys_layer_types(k, d, nowhere);
}

const nbl__arch nbl__qwen3 = {"qwen3", read_qwen3};
