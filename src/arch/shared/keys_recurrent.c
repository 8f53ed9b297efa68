/* keys_recurrent.c - keys of hybrid decoders, in which some layers have the gated delta rule instead of
 * softmax attention. See arch.h. */
#include "arch/arch.h"
#include "ops/recurrent/short_conv.h"

/* Fills d->recurrent from layer_types. Without that key every n-th layer has attention. */
static nbl_status read_layer_types(nbl__config_keys *k, nbl__decoder *d)
{
    const nbl__json *types = nbl__key(k, "layer_types");
    int64_t interval;
    NBL_TRY(nbl__key_size_or(k, "full_attention_interval", 4, &interval));
    NBL_CHECK(k->ctx, types == NULL || (types->type == NBL_JSON_ARRAY && types->count == d->layers),
              NBL_ERROR_FORMAT, "%s: layer_types is not a list of %" PRId64 " names", k->where, d->layers);
    for (int64_t i = 0; i < d->layers; i++) {
        d->recurrent[i] = (i + 1) % interval != 0;
        if (types == NULL) continue;
        const char *type = types->items[i].type == NBL_JSON_STRING ? types->items[i].string : "";
        d->recurrent[i] = strcmp(type, "linear_attention") == 0;
        NBL_CHECK(k->ctx, d->recurrent[i] || strcmp(type, "full_attention") == 0, NBL_ERROR_UNSUPPORTED,
                  "%s: layer_types has \"%s\", not full_attention or linear_attention", k->where, type);
    }
    return NBL_OK;
}

/* A key that says how hub folders were made. Only one value is what transformers computes. */
static nbl_status only(nbl__config_keys *k, const char *name, const char *value)
{
    const nbl__json *it = nbl__key(k, name);
    NBL_CHECK(k->ctx, it == NULL || (it->type == NBL_JSON_STRING && strcmp(it->string, value) == 0),
              NBL_ERROR_UNSUPPORTED, "%s: %s is not \"%s\"", k->where, name, value);
    return NBL_OK;
}

/* Sizes of the gated delta rule. */
static nbl_status read_delta(nbl__config_keys *k, nbl__decoder *d)
{
    bool gated;
    NBL_TRY(nbl__key_size_or(k, "linear_num_key_heads", 16, &d->delta.key_heads));
    NBL_TRY(nbl__key_size_or(k, "linear_num_value_heads", 32, &d->delta.value_heads));
    NBL_TRY(nbl__key_size_or(k, "linear_key_head_dim", 128, &d->delta.key_dim));
    NBL_TRY(nbl__key_size_or(k, "linear_value_head_dim", 128, &d->delta.value_dim));
    NBL_TRY(nbl__key_size_or(k, "linear_conv_kernel_dim", 4, &d->delta.taps));
    NBL_CHECK(k->ctx, d->delta.value_heads % d->delta.key_heads == 0, NBL_ERROR_FORMAT,
              "%s: linear_num_value_heads %" PRId64 " is no multiple of linear_num_key_heads %" PRId64,
              k->where, d->delta.value_heads, d->delta.key_heads);
    NBL_CHECK(k->ctx, d->delta.taps >= 2 && d->delta.taps <= NBL_SHORT_CONV_MAX, NBL_ERROR_UNSUPPORTED,
              "%s: linear_conv_kernel_dim %" PRId64 " is not 2 to %d", k->where, d->delta.taps,
              NBL_SHORT_CONV_MAX);
    /* Else sums of widths, and states, could exceed 63 bits. */
    NBL_CHECK(k->ctx,
              d->delta.key_heads * d->delta.key_dim <= INT32_MAX &&
                  d->delta.value_heads * d->delta.value_dim <= INT32_MAX && d->delta.key_dim <= 65536,
              NBL_ERROR_FORMAT,
              "%s: linear_key_head_dim %" PRId64 " or linear_value_head_dim %" PRId64
              " is too large for its number of heads",
              k->where, d->delta.key_dim, d->delta.value_dim);
    NBL_CHECK(k->ctx, d->heads * d->head_dim <= INT32_MAX, NBL_ERROR_FORMAT,
              "%s: num_attention_heads %" PRId64 " times head_dim %" PRId64 " is above 2147483647", k->where,
              d->heads, d->head_dim);
    NBL_TRY(nbl__key_flag_or(k, "attn_output_gate", true, &gated));
    NBL_CHECK(k->ctx, gated, NBL_ERROR_UNSUPPORTED, "%s: attn_output_gate false is not supported", k->where);
    /* A prefill of one sequence of a batch would need states by row (restart in infer/generate.c). */
    NBL_CHECK(
        k->ctx, !nbl__rope_has_lengths(&d->rope), NBL_ERROR_UNSUPPORTED,
        "%s: a rope_type that depends on the length of the sequence is not supported beside linear attention",
        k->where);
    NBL_TRY(only(k, "mamba_ssm_dtype", "float32"));
    NBL_TRY(only(k, "output_gate_type", "swish"));
    /* Heads that predict further tokens are no part of the model. */
    nbl__key(k, "mtp_num_hidden_layers");
    nbl__key(k, "mtp_use_dedicated_embeddings");
    return NBL_OK;
}

nbl_status nbl__keys_hybrid(nbl__config_keys *k, nbl__decoder *d)
{
    d->head_dim = 256;
    d->positions = 32768;
    d->norm_offset = 1;
    d->norm_round = NBL_ROUND_AFTER_WEIGHT;
    d->partial_rotary = true;
    d->rope.partial_rotary_factor = 0.25;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(nbl__key_flag_or(k, "attention_bias", false, &d->qkv_bias));
    d->o_bias = d->qkv_bias;
    NBL_TRY(read_delta(k, d));
    return read_layer_types(k, d);
}
