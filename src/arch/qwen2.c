/* qwen2.c - Qwen2 and Qwen2.5: biases on q, k and v; a sliding window above max_window_layers when
 * use_sliding_window is set. */
#include "arch/arch.h"

static nbl_status read_qwen2(nbl__keys *k, nbl__decoder *d)
{
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    d->qkv_bias = true;
    return nbl__keys_chosen_window(k, d);
}

const nbl__arch nbl__qwen2 = {"qwen2", read_qwen2};
