/* gemma2.c - Gemma 2. Differences from Llama:
 *
 *     norms multiply by 1 + w, and stand before and after both blocks
 *     soft caps on attention scores (50) and logits (30)
 *     sliding window (4096) on layers 0, 2, 4, …
 *     embedding times sqrt(hidden_size); head tied to it
 *     scores scaled by 1 / sqrt(query_pre_attn_scalar) instead of 1 / sqrt(head_dim)
 */
#include "arch/arch.h"

#include <math.h>

#include "ops/linear/mlp.h"

static bool every_other(const nbl__decoder *d, int64_t layer)
{
    (void)d;
    return layer % 2 == 0;
}

static nbl_status read_gemma2(nbl__keys *k, nbl__decoder *d)
{
    float scalar;
    d->head_dim = 256;
    d->act = NBL_ACT_GELU_TANH;
    d->gemma = true;
    /* read and ignored: older files say "gelu" here; hidden_activation decides */
    nbl__key(k, "hidden_act");
    NBL_TRY(nbl__keys_common(k, d, "hidden_activation", true));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_float_or(k, "query_pre_attn_scalar", 256, &scalar));
    NBL_TRY(nbl__key_cap_or(k, "attn_logit_softcapping", 50, &d->attention_cap));
    NBL_TRY(nbl__key_cap_or(k, "final_logit_softcapping", 30, &d->final_cap));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 4096, &d->window));
    NBL_CHECK(k->ctx, scalar > 0, NBL_ERROR_FORMAT, "%s: query_pre_attn_scalar is not positive", k->where);
    d->attention_scale = (float)(1 / sqrt((double)scalar));
    d->o_bias = d->qkv_bias;
    return nbl__keys_layer_types(k, d, every_other);
}

const nbl__arch nbl__gemma2 = {"gemma2", read_gemma2};
