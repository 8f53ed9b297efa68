/* keys_experts.c - reads the keys of config.json that mixtures of experts share. See arch.h. */
#include "arch/arch.h"

nbl_status nbl__keys_experts(nbl__config_keys *k, nbl__decoder *d, const char *count, const char *inner)
{
    bool logits;
    float coefficient;
    NBL_TRY(nbl__key_size_or(k, count, d->experts, &d->experts));
    NBL_TRY(nbl__key_size_or(k, "num_experts_per_tok", d->top_k, &d->top_k));
    NBL_TRY(nbl__key_size_or(k, inner, d->expert_inner, &d->expert_inner));
    NBL_CHECK(k->ctx, d->experts > 0 && d->top_k > 0 && d->expert_inner > 0, NBL_ERROR_FORMAT,
              "%s: no %s, num_experts_per_tok or %s", k->where, count, inner);
    NBL_CHECK(k->ctx, d->experts <= NBL_MAX_EXPERTS, NBL_ERROR_UNSUPPORTED,
              "%s: %s is %" PRId64 ", more than %d", k->where, count, d->experts, NBL_MAX_EXPERTS);
    NBL_CHECK(k->ctx, d->top_k <= d->experts, NBL_ERROR_FORMAT,
              "%s: num_experts_per_tok %" PRId64 " is more than the %" PRId64 " experts of %s", k->where,
              d->top_k, d->experts, count);
    /* Else experts · 2 · inner · hidden could exceed 63 bits. */
    int64_t elements;
    bool large = __builtin_mul_overflow(2 * d->expert_inner, d->hidden, &elements) ||
                 __builtin_mul_overflow(elements, d->experts, &elements) || elements > INT64_MAX / 8;
    NBL_CHECK(k->ctx, !large, NBL_ERROR_FORMAT, "%s: %s, %s and hidden_size make experts of too many values",
              k->where, count, inner);
    NBL_TRY(nbl__key_flag_or(k, "output_router_logits", false, &logits));
    NBL_CHECK(k->ctx, !logits, NBL_ERROR_UNSUPPORTED,
              "%s: output_router_logits is true: the loss that balances experts is not supported", k->where);
    /* of that loss */
    return nbl__key_float_or(k, "router_aux_loss_coef", 0, &coefficient);
}

nbl_status nbl__keys_sparse_layers(nbl__config_keys *k, nbl__decoder *d)
{
    int64_t step;
    const nbl__json *dense = nbl__key(k, "mlp_only_layers");
    NBL_TRY(nbl__key_size_or(k, "decoder_sparse_step", 1, &step));
    for (int64_t i = 0; i < d->layers; i++) d->sparse[i] = (i + 1) % step == 0;
    if (dense == NULL) return NBL_OK;
    NBL_CHECK(k->ctx, dense->type == NBL_JSON_ARRAY, NBL_ERROR_FORMAT, "%s: mlp_only_layers is no list",
              k->where);
    for (int64_t i = 0; i < dense->count; i++) {
        int64_t layer;
        NBL_CHECK(k->ctx, nbl__json_natural(&dense->items[i], &layer), NBL_ERROR_FORMAT,
                  "%s: mlp_only_layers has a value that is no layer", k->where);
        if (layer < d->layers) d->sparse[layer] = false;
    }
    return NBL_OK;
}

nbl_status nbl__keys_qwen_experts(nbl__config_keys *k, nbl__decoder *d, const char *count)
{
    bool normalized;
    NBL_TRY(nbl__key_flag_or(k, "norm_topk_prob", false, &normalized));
    d->router = normalized ? NBL_ROUTER_SOFTMAX_TOPK_NORM : NBL_ROUTER_SOFTMAX_TOPK;
    d->router_round = true;
    NBL_TRY(nbl__keys_experts(k, d, count, "moe_intermediate_size"));
    return nbl__keys_sparse_layers(k, d);
}
