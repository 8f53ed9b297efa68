/* ministral3.c - Ministral 3: Llama's layer without biases, with YaRN. After the rotation q is multiplied
 * by 1 + beta·ln(1 + ⌊position / original⌋), beta being the rope's llama_4_scaling_beta and original its
 * original_max_position_embeddings: a table of its own rotates and scales q. If sliding_window is set,
 * every layer slides. */
#include "arch/parts.h"

/* The rope of a configuration that says nothing about it. */
static const nbl__rope default_rope = {.theta = 1e6f,
                                       .kind = NBL_ROPE_YARN,
                                       .factor = 16,
                                       .original_max_position_embeddings = 16384,
                                       .beta_fast = 32,
                                       .beta_slow = 1,
                                       .mscale = 1,
                                       .mscale_all_dim = 1,
                                       .query_beta = 0.1};

/* Moves the scale of queries from the rope of all to one of queries. */
static nbl_status read_ropes(nbl__config_keys *k, nbl__decoder *d)
{
    if (nbl__key(k, "rope_parameters") == NULL && nbl__key(k, "rope_scaling") == NULL) d->rope = default_rope;
    d->rope.max_position_embeddings = d->positions;
    NBL_TRY(nbl__keys_check_rope(k, d, &d->rope));
    NBL_CHECK(k->ctx, d->local_rope.theta == 0, NBL_ERROR_UNSUPPORTED,
              "%s: ropes by layer type are not supported for ministral3", k->where);
    d->query_rope = d->rope;
    if (d->rope.query_beta == 0) d->query_rope.theta = 0;
    d->rope.query_beta = 0;
    return NBL_OK;
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->kv_heads = 8;
    d->head_dim = 128;
    d->norm_eps = 1e-5f;
    d->positions = 262144;
    d->padding = 11;
    d->query_rope.theta = 1; /* llama_4_scaling_beta is permitted */
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    NBL_TRY(read_ropes(k, d));
    NBL_TRY(nbl__key_size_off(k, "sliding_window", 0, &d->window));
    for (int64_t i = 0; i < d->layers; i++) d->sliding[i] = d->window > 0;
    return NBL_OK;
}

const nbl__arch nbl__ministral3 = {"ministral3", read_keys, nbl__llama_layer};
