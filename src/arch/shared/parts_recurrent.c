/* parts_recurrent.c - the mixers of hybrid decoders: the gated delta rule, and attention with a gate. See
 * parts.h.
 *
 *     x ─┬─ in_proj_qkv ─ conv, silu ─ q k v ─┐
 *        ├─ in_proj_b, in_proj_a ─────────────┴─ gated delta rule ─ norm ─ · silu(z) ─ out_proj ─▶
 *        └─ in_proj_z ────────────────────────────────────────────────────────▲
 *
 * A layer has two states per sequence: the last rows of q, k, v before the convolution, and the
 * matrices of the rule. PREFILL writes both, DECODE updates them in place. */
#include "arch/parts.h"

#include <stdio.h>

enum { NAME_SIZE = 256 };

static const char *full(const nbl__build *b, const char *path, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, "%slinear_attn.%s", b->at, path);
    return name;
}

/* The weights of the convolution, [channels, 1, taps]. */
static nbl__value conv_weight(nbl__build *b, int64_t channels)
{
    char name[NAME_SIZE];
    int64_t shape[3] = {channels, 1, b->d->delta.taps};
    const nbl_weight *w = b->source->weight(b->source->user, full(b, "conv1d.weight", name),
                                            NBL_WEIGHT_RECURRENT);
    bool fits = w && w->rank == 3 && memcmp(w->shape, shape, sizeof shape) == 0;
    if (w == NULL) nbl__text_printf(&b->problems, "; no \"%s\" %s", name, nbl__show_shape(3, shape).text);
    else if (!fits)
        nbl__text_printf(&b->problems, "; \"%s\" is %s instead of %s", name,
                         nbl__show_shape(w->rank, w->shape).text, nbl__show_shape(3, shape).text);
    bool trained = b->source->trained && b->source->trained(b->source->user, name);
    nbl__value v = nbl__graph_value(b->g, NBL_KIND_PARAMETER, name,
                                    trained || !fits ? NBL_DTYPE_F32 : w->dtype, 3, shape);
    if (v == 0) return 0;
    nbl__info(b->g, v)->role = NBL_WEIGHT_RECURRENT;
    nbl__info(b->g, v)->trained = trained && b->train;
    return v;
}

/* What the linear layers in front of the rule make. */
typedef struct inputs {
    nbl__value qkv, z, a, b;
} inputs;

/* Qwen3.5: a linear layer for each. */
static inputs four_layers(nbl__build *b, nbl__value x, int64_t channels, int64_t values)
{
    const nbl__decoder *d = b->d;
    const nbl__linear_module modules[] = {{"linear_attn.in_proj_qkv", channels, false},
                                          {"linear_attn.in_proj_z", values, false},
                                          {"linear_attn.in_proj_b", d->delta.value_heads, false},
                                          {"linear_attn.in_proj_a", d->delta.value_heads, false}};
    nbl__value y[4];
    nbl__part_linear_group(b, x, "linear_attn.in_proj", modules, 4, y);
    return (inputs){.qkv = y[0], .z = y[1], .b = y[2], .a = y[3]};
}

/* Qwen3-Next: two linear layers, with the rows of a key head together. */
static inputs two_layers(nbl__build *b, nbl__value x, int64_t channels, int64_t values)
{
    const nbl__decoder *d = b->d;
    int64_t group = d->delta.value_heads / d->delta.key_heads;
    const nbl__linear_module modules[] = {{"linear_attn.in_proj_qkvz", channels + values, false},
                                          {"linear_attn.in_proj_ba", 2 * d->delta.value_heads, false}};
    const int64_t qkv[3] = {d->delta.key_dim, d->delta.key_dim, group * d->delta.value_dim};
    const int64_t gates[3] = {group, 0, 0};
    nbl__value y[2];
    inputs in;
    nbl__part_linear_group(b, x, "linear_attn.in_proj", modules, 2, y);
    in.qkv = nbl__build_split_heads(b->g, "linear_attn.qkvz", y[0], d->delta.key_heads, qkv, b->dtype, &in.z);
    in.b = nbl__build_split_heads(b->g, "linear_attn.ba", y[1], d->delta.key_heads, gates, b->dtype, &in.a);
    return in;
}

/* The states of this layer; 0 in modes without. */
static nbl__delta_states states_of(const nbl__build *b, int64_t layer)
{
    if (b->conv_state == NULL) return (nbl__delta_states){0};
    return (nbl__delta_states){b->conv_state[layer], b->delta_state[layer]};
}

static nbl__value gated_delta(nbl__build *b, nbl__value x, int64_t layer, bool fused)
{
    const nbl__decoder *d = b->d;
    char name[NAME_SIZE];
    int64_t keys = d->delta.key_heads * d->delta.key_dim, values = d->delta.value_heads * d->delta.value_dim;
    int64_t channels = 2 * keys + values;
    nbl__delta_states states = states_of(b, layer);
    inputs in = fused ? two_layers(b, x, channels, values) : four_layers(b, x, channels, values);
    nbl__value w = conv_weight(b, channels);
    nbl__value y = b->mode == NBL_MODE_DECODE ? nbl__build_short_conv_step(b->g, "linear_attn.conv1d", in.qkv,
                                                                           w, states.conv, b->dtype)
                                              : nbl__build_short_conv(b->g, "linear_attn.conv1d", in.qkv, w,
                                                                      b->cu_seqlens, states.conv, b->dtype);
    nbl__delta_values rule = {
        .q = nbl__graph_view(b->g, nbl__graph_columns(b->g, y, 0, keys), d->delta.key_heads,
                             d->delta.key_dim),
        .k = nbl__graph_view(b->g, nbl__graph_columns(b->g, y, keys, keys), d->delta.key_heads,
                             d->delta.key_dim),
        .v = nbl__graph_view(b->g, nbl__graph_columns(b->g, y, 2 * keys, values), d->delta.value_heads,
                             d->delta.value_dim),
        .a = in.a,
        .b = in.b,
        .a_log = nbl__part_vector(b, full(b, "A_log", name), NBL_WEIGHT_RECURRENT, d->delta.value_heads),
        .dt_bias = nbl__part_vector(b, full(b, "dt_bias", name), NBL_WEIGHT_RECURRENT, d->delta.value_heads),
        .cu_seqlens = b->cu_seqlens,
        .state = states.rule};
    nbl__value o = b->mode == NBL_MODE_DECODE
                       ? nbl__build_gated_delta_step(b->g, "linear_attn", &rule, b->dtype)
                       : nbl__build_gated_delta(b->g, "linear_attn", &rule, b->dtype);
    w = nbl__part_vector(b, full(b, "norm.weight", name), NBL_WEIGHT_NORM, d->delta.value_dim);
    nbl__value z = nbl__graph_view(b->g, in.z, d->delta.value_heads, d->delta.value_dim);
    y = nbl__build_gated_norm(b->g, "linear_attn.norm", o, z, w, d->norm_eps, b->dtype);
    return nbl__part_linear(b, nbl__graph_view(b->g, y, values, 0), "linear_attn.out_proj", NBL_WEIGHT_LINEAR,
                            d->hidden, values, false, NBL_DROPOUT_MASK_DELTA_OUT);
}

static nbl__value gated_attention(nbl__build *b, nbl__value x, int64_t layer)
{
    const nbl__decoder *d = b->d;
    int64_t q = d->heads * d->head_dim, kv = d->kv_heads * d->head_dim;
    const nbl__linear_module modules[] = {{"self_attn.q_proj", 2 * q, d->qkv_bias},
                                          {"self_attn.k_proj", kv, d->qkv_bias},
                                          {"self_attn.v_proj", kv, d->qkv_bias}};
    const int64_t widths[3] = {d->head_dim, 0, 0};
    nbl__layer_attention how = nbl__part_layer_attention(b, layer);
    nbl__value y[3], gate;
    how.qk_norm = true;
    nbl__part_linear_group(b, x, "self_attn.qkv", modules, 3, y);
    nbl__value queries = nbl__build_split_heads(b->g, "self_attn.q_gate", y[0], d->heads, widths, b->dtype,
                                                &gate);
    x = nbl__part_attention(b, (nbl__qkv){queries, y[1], y[2]}, layer, &how);
    x = nbl__build_sigmoid_gate(b->g, "self_attn.gate", x, gate, b->dtype);
    return nbl__part_attention_output(b, x, d->o_bias);
}

void nbl__part_hybrid_mixer(nbl__build *b, nbl__residual *h, int64_t layer, bool fused)
{
    nbl__value x = nbl__part_residual_norm(b, h, "input_layernorm");
    x = b->d->recurrent[layer] ? gated_delta(b, x, layer, fused) : gated_attention(b, x, layer);
    nbl__part_residual_add(h, x);
}
