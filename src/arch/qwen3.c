/* qwen3.c - Qwen3: RMSNorm on each head of q and k. head_dim is independent of hidden_size /
 * heads (default 128). */
#include "arch/arch.h"

static nbl_status read_qwen3(nbl__keys *k, nbl__decoder *d)
{
    d->head_dim = 128;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    d->qk_norm = true;
    return nbl__keys_chosen_window(k, d);
}

const nbl__arch nbl__qwen3 = {"qwen3", read_qwen3};
