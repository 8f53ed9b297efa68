/* phi3.c - Phi-3, 3.5, 4, 4-mini: Llama's layer with fused matrices. qkv_proj has the rows of q, k and
 * v; gate_up_proj has those of gate and up. Attention and activation read columns of the products,
 * which are views. If sliding_window is set, every layer slides. A part of a head may rotate; longrope
 * changes its factors beyond original_max_position_embeddings.
 *
 *     h ─┬─ input_layernorm ─ qkv ─ q k v ─ rope ─ attend ─ o ─▶ (+) ─ …
 *        └────────────────────────────────────────────────────────▲
 *
 *     … h ─┬─ post_attention_layernorm ─ gate_up ─ act·up ─ down ─▶ (+)
 *          └─────────────────────────────────────────────────────────▲ */
#include "arch/parts.h"

static nbl_status refuse_dropout(nbl__config_keys *k, const char *name)
{
    float dropout;
    NBL_TRY(nbl__key_float_or(k, name, 0, &dropout));
    NBL_CHECK(k->ctx, dropout == 0, NBL_ERROR_UNSUPPORTED, "%s: %s is %g, only 0 is supported", k->where,
              name, (double)dropout);
    return NBL_OK;
}

/* transformers has default and longrope here, and reads "yarn" as longrope. The original length
 * always is the one beside the rope's parameters. */
static nbl_status read_longrope(nbl__config_keys *k, nbl__decoder *d)
{
    int64_t original;
    NBL_TRY(nbl__key_size_or(k, "original_max_position_embeddings", 4096, &original));
    if (d->rope.kind == NBL_ROPE_YARN) d->rope.kind = NBL_ROPE_LONGROPE;
    NBL_CHECK(k->ctx, d->rope.kind == NBL_ROPE_DEFAULT || d->rope.kind == NBL_ROPE_LONGROPE,
              NBL_ERROR_UNSUPPORTED, "%s: rope_type is not default or longrope, which is all that phi3 has",
              k->where);
    d->rope.original_max_position_embeddings = (double)original;
    return nbl__keys_check_rope(k, d, &d->rope);
}

static nbl_status read_keys(nbl__config_keys *k, nbl__decoder *d)
{
    d->norm_eps = 1e-5f;
    d->positions = 4096;
    d->padding = 32000;
    d->partial_rotary = true;
    NBL_TRY(nbl__keys_common(k, d, "hidden_act", false));
    /* Else q + 2 kv could exceed 63 bits. */
    NBL_CHECK(k->ctx, d->heads * d->head_dim <= INT32_MAX, NBL_ERROR_FORMAT,
              "%s: num_attention_heads %" PRId64 " times head_dim %" PRId64 " is above 2147483647", k->where,
              d->heads, d->head_dim);
    NBL_TRY(read_longrope(k, d));
    NBL_CHECK(k->ctx, d->local_rope.theta == 0, NBL_ERROR_UNSUPPORTED,
              "%s: rope_local_base_freq is not supported for phi3", k->where);
    NBL_TRY(refuse_dropout(k, "resid_pdrop"));
    NBL_TRY(refuse_dropout(k, "embd_pdrop"));
    NBL_TRY(nbl__key_size_or(k, "sliding_window", 0, &d->window));
    for (int64_t i = 0; i < d->layers; i++) d->sliding[i] = d->window > 0;
    return NBL_OK;
}

/* q, k, v as columns of qkv_proj's output. */
static nbl__qkv split_qkv(nbl__build *b, nbl__value x)
{
    const nbl__decoder *d = b->d;
    int64_t q = d->heads * d->head_dim, kv = d->kv_heads * d->head_dim;
    nbl__value y = nbl__part_linear(b, x, "self_attn.qkv_proj", NBL_WEIGHT_LINEAR, q + 2 * kv, d->hidden,
                                    false, NBL_DROPOUT_MASK_QKV);
    return (nbl__qkv){nbl__graph_columns(b->g, y, 0, q), nbl__graph_columns(b->g, y, q, kv),
                      nbl__graph_columns(b->g, y, q + kv, kv)};
}

static void build_layer(nbl__build *b, nbl__residual *h, int64_t layer)
{
    const nbl__decoder *d = b->d;
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    x = nbl__part_attention(b, split_qkv(b, x), layer, &how);
    x = nbl__part_attention_output(b, x, false);
    nbl__part_residual_add(h, x);

    x = nbl__part_residual_norm(b, h, "post_attention_layernorm");
    nbl__value y = nbl__part_linear(b, x, "mlp.gate_up_proj", NBL_WEIGHT_LINEAR, 2 * d->inner, d->hidden,
                                    false, NBL_DROPOUT_MASK_GATE_UP);
    x = nbl__part_gated_down(b, nbl__graph_columns(b->g, y, 0, d->inner),
                             nbl__graph_columns(b->g, y, d->inner, d->inner), false);
    nbl__part_residual_add(h, x);
}

const nbl__arch nbl__phi3 = {"phi3", read_keys, build_layer};
