/* gemma3.c - Gemma 3, text only. Differences from Gemma 2:
 *
 *     no soft cap on scores; on logits only if final_logit_softcapping is set
 *     RMSNorm on each head of q and k
 *     five of six layers slide (all but 5, 11, 17, …)
 *     sliding layers have a RoPE theta of their own
 */
#include "arch/arch.h"

#include <math.h>

#include "ops/linear/mlp.h"

static bool five_of_six(const nbl__decoder *d, int64_t layer)
{
    (void)d;
    return (layer + 1) % 6 != 0;
}

static nbl_status read_gemma3(nbl__keys *k, nbl__decoder *d)
{
    float scalar;
    int64_t pattern;
    bool bidirectional;
    d->head_dim = 256;
    d->act = NBL_ACT_GELU_TANH;
    d->gemma = true;
    d->qk_norm = true;
    NBL_TRY(nbl__keys_common(k, d, "hidden_activation", true));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    NBL_TRY(nbl__key_float_or(k, "query_pre_attn_scalar", 256, &scalar));
    nbl__key(k, "attn_logit_softcapping"); /* read and ignored, as transformers does */
    NBL_TRY(nbl__key_cap_or(k, "final_logit_softcapping", 0, &d->final_cap));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 4096, &d->window));
    NBL_TRY(nbl__key_size_or(k, "sliding_window_pattern", 6, &pattern));
    /* transformers' copy of sliding_window_pattern; it has no effect */
    nbl__key(k, "_sliding_window_pattern");
    NBL_TRY(nbl__key_flag_or(k, "use_bidirectional_attention", false, &bidirectional));
    NBL_CHECK(k->ctx, !bidirectional, NBL_ERROR_UNSUPPORTED, "%s: use_bidirectional_attention", k->where);
    NBL_CHECK(k->ctx, pattern == 6 || nbl__json_get(k->config, "layer_types"), NBL_ERROR_UNSUPPORTED,
              "%s: sliding_window_pattern %" PRId64 " without layer_types", k->where, pattern);
    NBL_CHECK(k->ctx, scalar > 0, NBL_ERROR_FORMAT, "%s: query_pre_attn_scalar is not positive", k->where);
    d->attention_scale = (float)(1 / sqrt((double)scalar));
    d->o_bias = d->qkv_bias;
    return nbl__keys_layer_types(k, d, five_of_six);
}

const nbl__arch nbl__gemma3 = {"gemma3_text", read_gemma3};
