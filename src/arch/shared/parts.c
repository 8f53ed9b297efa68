/* parts.c - what the layers of architectures are made of. See parts.h.
 *
 * Pins (nbl__build.pins) are the values of a layer that recomputation starts from:
 *
 *     1   the stream at the layer's start; it may wait on the host (graph/offload.c)
 *     2   also the stream between the layer's halves: o_proj is not recomputed, and the recomputed
 *         values of the two halves are not alive together
 *     3   also the attention output and its log-sum-exp: attention is not recomputed
 *
 * Values of weights have the checkpoint's tensor names. Nodes have module names; those of
 * "self_attn.qkv", "self_attn" and the parts of "mlp" lack the layer's prefix, which messages add. */
#include "arch/parts.h"

#include <stdio.h>

/* ---- weights and parameters ---- */

enum { NAME_SIZE = 256 };

/* The full name of a tensor or module in the current layer, or outside of layers: "PREFIX" "PATH"
 * "END". */
static const char *full(const nbl__build *b, const char *path, const char *end, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, "%s%s%s", b->at, path, end);
    return name;
}

const nbl_weight *nbl__part_tensor(nbl__build *b, const char *name, nbl__weight_role role, int rank,
                                   int64_t rows, int64_t columns)
{
    const nbl_weight *w = b->source->weight(b->source->user, name, role);
    int64_t shape[2] = {rows, columns};
    if (w && w->rank == rank && w->shape[0] == rows && (rank == 1 || w->shape[1] == columns)) return w;
    if (w == NULL) nbl__text_printf(&b->problems, "; no \"%s\" %s", name, nbl__show_shape(rank, shape).text);
    else
        nbl__text_printf(&b->problems, "; \"%s\" is %s instead of %s", name,
                         nbl__show_shape(w->rank, w->shape).text, nbl__show_shape(rank, shape).text);
    nbl_weight *stand_in = nbl__arena_alloc(&b->g->arena, sizeof *stand_in);
    if (stand_in == NULL) {
        nbl__graph_failed(b->g, NBL_ERROR_MEMORY);
        return NULL;
    }
    *stand_in = (nbl_weight){
        .format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = rank, .shape = {rows, columns}};
    return stand_in;
}

static bool is_trained(const nbl__build *b, const char *name)
{
    return b->source->trained && b->source->trained(b->source->user, name);
}

static nbl__value with_role(nbl__build *b, nbl__value v, nbl__weight_role role)
{
    if (v) nbl__info(b->g, v)->role = role;
    return v;
}

nbl__value nbl__part_master(nbl__build *b, const char *name, nbl__weight_role role, int rank, int64_t first,
                            int64_t second)
{
    nbl__value v = nbl__graph_value(b->g, NBL_KIND_PARAMETER, name, NBL_DTYPE_F32, rank,
                                    (int64_t[]){first, second});
    if (v) nbl__info(b->g, v)->trained = b->train;
    return with_role(b, v, role);
}

nbl__value nbl__part_weight(nbl__build *b, const char *name, nbl__weight_role role, int64_t rows,
                            int64_t columns)
{
    if (role == NBL_WEIGHT_EMBEDDING && b->embedding) return b->embedding;
    const nbl_weight *w = nbl__part_tensor(b, name, role, 2, rows, columns);
    if (w == NULL) return 0;
    nbl__value v = is_trained(b, name) ? nbl__part_master(b, name, role, 2, rows, columns)
                                       : with_role(b, nbl__graph_weight(b->g, name, w), role);
    if (role == NBL_WEIGHT_EMBEDDING) b->embedding = v;
    return v;
}

nbl__value nbl__part_vector(nbl__build *b, const char *name, nbl__weight_role role, int64_t n)
{
    const nbl_weight *w = nbl__part_tensor(b, name, role, 1, n, 0);
    if (w == NULL) return 0;
    if (is_trained(b, name)) return nbl__part_master(b, name, role, 1, n, 0);
    nbl_dtype dtype = role == NBL_WEIGHT_BIAS ? b->dtype : w->dtype;
    return with_role(b, nbl__graph_value(b->g, NBL_KIND_PARAMETER, name, dtype, 1, &n), role);
}

/* The weight of the norm at `path`. */
static nbl__value norm_weight(nbl__build *b, const char *path, int64_t n)
{
    char name[NAME_SIZE];
    return nbl__part_vector(b, full(b, path, ".weight", name), NBL_WEIGHT_NORM, n);
}

/* ---- linear layers ---- */

/* Makes the values of the linear layer at `path`: weight, bias and adapter. */
static nbl__linear_values layer_at(nbl__build *b, const char *path, nbl__weight_role role, int64_t out,
                                   int64_t in, bool bias)
{
    char name[NAME_SIZE];
    nbl__adapter adapter;
    nbl__linear_values l = {.w = nbl__part_weight(b, full(b, path, ".weight", name), role, out, in)};
    if (bias) l.bias = nbl__part_vector(b, full(b, path, ".bias", name), NBL_WEIGHT_BIAS, out);
    if (!b->source->adapter(b->source->user, full(b, path, "", name), &adapter)) return l;
    l.scale = adapter.scale;
    l.dropout = b->train ? adapter.dropout : 0;
    l.lora_a = nbl__part_master(b, full(b, path, ".lora_A.weight", name), NBL_WEIGHT_LORA_A, 2, adapter.rank,
                                in);
    l.lora_b = nbl__part_master(b, full(b, path, ".lora_B.weight", name), NBL_WEIGHT_LORA_B, 2, out,
                                adapter.rank);
    if (!adapter.dora) return l;
    l.magnitude = nbl__part_master(b, full(b, path, ".lora_magnitude_vector", name), NBL_WEIGHT_MAGNITUDE, 1,
                                   out, 0);
    l.norm = nbl__graph_value(b->g, NBL_KIND_PREPARED, full(b, path, ".norm", name), NBL_DTYPE_F32, 1, &out);
    return l;
}

static nbl__linear_options linear_options(const nbl__build *b, nbl__dropout_mask mask)
{
    return (nbl__linear_options){.dtype = b->dtype,
                                 .dequantized = b->dequantized || b->mode == NBL_MODE_TRAIN,
                                 .seed = nbl__dropout_seed(0, (int64_t)mask)};
}

nbl__value nbl__part_linear(nbl__build *b, nbl__value x, const char *path, nbl__weight_role role, int64_t out,
                            int64_t in, bool bias, nbl__dropout_mask mask)
{
    char name[NAME_SIZE];
    nbl__linear_values l = layer_at(b, path, role, out, in, bias);
    nbl__linear_options how = linear_options(b, mask);
    return nbl__build_linear(b->g, full(b, path, "", name), x, &l, &how);
}

void nbl__part_linear_group(nbl__build *b, nbl__value x, const char *name, const nbl__linear_module *modules,
                            int count, nbl__value *y)
{
    nbl__linear_values layers[NBL_MAX_GROUP];
    assert(count <= NBL_MAX_GROUP);
    for (int i = 0; i < count; i++)
        layers[i] = layer_at(b, modules[i].path, NBL_WEIGHT_LINEAR, modules[i].out, b->d->hidden,
                             modules[i].bias);
    nbl__linear_options how = linear_options(b, NBL_DROPOUT_MASK_QKV);
    nbl__build_linear_group(b->g, name, x, layers, count, &how, y);
}

/* ---- the residual stream and norms ---- */

static nbl__norm_options norm_options(const nbl__build *b)
{
    const nbl__decoder *d = b->d;
    return (nbl__norm_options){b->dtype, d->norm_eps, d->norm_offset, 0, d->norm_round};
}

/* RMSNorm, or LayerNorm (nbl__decoder.layer_norm), of x, or of x + residual, over rows of `width`, times
 * `scale`; `sum` as in nbl__build_rmsnorm. */
static nbl__value scaled_norm(nbl__build *b, nbl__value x, const char *path, int64_t width,
                              nbl__value residual, float scale, nbl__value *sum)
{
    char name[NAME_SIZE];
    nbl__value w = norm_weight(b, path, width);
    nbl__norm_options how = norm_options(b);
    if (scale != 1) how.scale = scale;
    if (b->d->layer_norm) {
        if (residual) x = nbl__build_add(b->g, "residual", residual, x, b->dtype);
        if (sum) *sum = residual ? x : 0;
        return nbl__build_layernorm(b->g, full(b, path, "", name), x, w, &how);
    }
    return nbl__build_rmsnorm(b->g, full(b, path, "", name), x, w, residual, &how, sum);
}

static nbl__value rmsnorm(nbl__build *b, nbl__value x, const char *path, int64_t width, nbl__value residual,
                          nbl__value *sum)
{
    return scaled_norm(b, x, path, width, residual, 1, sum);
}

/* The stream has no addend any more. Pins it where recomputation starts. */
static void stream_is(nbl__build *b, nbl__residual *h, nbl__value sum)
{
    h->sum = sum;
    h->addend = 0;
    bool in_layer = b->g->layer >= 0, first = h->norms++ == 0;
    if (in_layer && (first || b->pins >= 2)) nbl__graph_pin(b->g, h->sum);
}

static nbl__value stream_norm(nbl__build *b, nbl__residual *h, const char *name, float scale)
{
    nbl__value sum, y = scaled_norm(b, h->addend, name, b->d->hidden, h->sum, scale, &sum);
    stream_is(b, h, h->sum ? sum : h->addend);
    return y;
}

nbl__value nbl__part_residual_norm(nbl__build *b, nbl__residual *h, const char *name)
{
    return stream_norm(b, h, name, 1);
}

nbl__value nbl__part_last_norm(nbl__build *b, nbl__residual *h, const char *name)
{
    return stream_norm(b, h, name, b->d->logit_scale);
}

nbl__value nbl__part_residual_stream(nbl__build *b, nbl__residual *h)
{
    nbl__value sum = h->sum && h->addend ? nbl__build_add(b->g, "residual", h->sum, h->addend, b->dtype)
                     : h->sum            ? h->sum
                                         : h->addend;
    stream_is(b, h, sum);
    return sum;
}

void nbl__part_residual_add(nbl__residual *h, nbl__value x)
{
    h->addend = x;
}

nbl__value nbl__part_norm(nbl__build *b, nbl__value x, const char *name)
{
    return rmsnorm(b, x, name, b->d->hidden, 0, NULL);
}

nbl__value nbl__part_norm_of(nbl__build *b, nbl__value x, const char *name, int64_t width)
{
    return rmsnorm(b, x, name, width, 0, NULL);
}

nbl__value nbl__part_scaled(nbl__build *b, nbl__value x, const char *name, float factor)
{
    return factor == 1 ? x : nbl__build_scale(b->g, name, x, factor, b->dtype);
}

/* ---- attention ---- */

nbl__qkv nbl__part_qkv(nbl__build *b, nbl__value x, bool bias)
{
    const nbl__decoder *d = b->d;
    int64_t kv = d->kv_heads * d->head_dim;
    const nbl__linear_module modules[] = {{"self_attn.q_proj", d->heads * d->head_dim, bias},
                                          {"self_attn.k_proj", kv, bias},
                                          {"self_attn.v_proj", kv, bias}};
    nbl__value y[3];
    nbl__part_linear_group(b, x, "self_attn.qkv", modules, 3, y);
    return (nbl__qkv){y[0], y[1], y[2]};
}

nbl__layer_attention nbl__part_layer_attention(const nbl__build *b, int64_t layer)
{
    const nbl__decoder *d = b->d;
    bool slides = d->sliding[layer];
    return (nbl__layer_attention){.local_rope = slides && d->local_rope.theta > 0,
                                  .no_rope = d->no_rope[layer],
                                  .query_rope = d->query_rope.theta > 0,
                                  .window = slides ? d->window : 0,
                                  .chunk = d->chunked[layer] ? d->chunk : 0,
                                  .scale = d->attention_scale,
                                  .softcap = d->attention_cap};
}

/* True if the norm of heads and RoPE can be one norm_rope node: training, b->fuses_norm_rope, frozen
 * norm weight, head_dim a power of two, full rotary in halves. */
static bool joins_norm(const nbl__build *b, const char *norm, const nbl__rope *rope)
{
    char name[NAME_SIZE];
    int64_t dim = b->d->head_dim;
    return b->mode == NBL_MODE_TRAIN && b->fuses_norm_rope &&
           !is_trained(b, full(b, norm, ".weight", name)) && !rope->interleaved &&
           nbl__rope_dim(rope, dim) == dim && (dim & (dim - 1)) == 0;
}

/* A rope and its table. NULL: none. */
typedef struct rotation {
    const nbl__rope *rope;
    nbl__rope_values table;
} rotation;

static rotation rotation_of_keys(const nbl__build *b, const nbl__layer_attention *how)
{
    if (how->no_rope) return (rotation){NULL, {0}};
    return how->local_rope ? (rotation){&b->d->local_rope, b->local_rope} : (rotation){&b->d->rope, b->rope};
}

static rotation rotation_of_queries(const nbl__build *b, const nbl__layer_attention *how)
{
    return how->query_rope ? (rotation){&b->d->query_rope, b->query_rope} : rotation_of_keys(b, how);
}

/* q or k as `heads` heads, normalized (by the weight at `norm`; `unit`: without weight) and rotated. A
 * norm without weight may stand before the rotation, which keeps the mean square. */
static nbl__value rotated(nbl__build *b, nbl__value x, int64_t heads, const char *path, const char *norm,
                          bool unit, rotation by)
{
    const nbl__decoder *d = b->d;
    x = nbl__graph_view(b->g, x, heads, d->head_dim);
    if (norm && by.rope && joins_norm(b, norm, by.rope)) {
        nbl__norm_options how = norm_options(b);
        return nbl__build_norm_rope(b->g, path, x, norm_weight(b, norm, d->head_dim), by.table, &how);
    }
    if (norm) x = rmsnorm(b, x, norm, d->head_dim, 0, NULL);
    nbl__norm_options unit_options = norm_options(b);
    if (unit) x = nbl__build_rmsnorm(b->g, "self_attn.qk_norm", x, 0, 0, &unit_options, NULL);
    return by.rope ? nbl__build_rope(b->g, path, x, by.table, by.rope, b->dtype) : x;
}

/* Attention of rotated heads. PREFILL and GENERATE write k and v to the cache; GENERATE attends
 * over the cache, all other modes over the run's own packed sequences. */
static nbl__value attend(nbl__build *b, nbl__qkv x, nbl__cache_values cache, const char *name,
                         const nbl__attention_options *how)
{
    if (b->mode == NBL_MODE_PREFILL || b->mode == NBL_MODE_DECODE) {
        nbl__build_kv_write(b->g, name, x.k, b->rows, cache.keys);
        nbl__build_kv_write(b->g, name, x.v, b->rows, cache.values);
    }
    if (b->mode == NBL_MODE_DECODE) return nbl__build_attention_decode(b->g, name, x.q, cache, how);
    nbl__value lse, out = nbl__build_attention(b->g, name, x.q, x.k, x.v, b->cu_seqlens, how, &lse);
    if (b->pins >= 3 && out && lse) {
        nbl__graph_pin(b->g, out);
        nbl__graph_pin(b->g, lse);
    }
    return out;
}

nbl__value nbl__part_attention(nbl__build *b, nbl__qkv x, int64_t layer, const nbl__layer_attention *how)
{
    const nbl__decoder *d = b->d;
    static const char name[] = "self_attn";
    nbl__attention_options options = {.dtype = b->dtype,
                                      .scale = how->scale,
                                      .softcap = how->softcap,
                                      .window = how->window,
                                      .chunk = how->chunk};
    char sinks[NAME_SIZE];
    if (d->sinks)
        options.sinks = nbl__part_vector(b, full(b, "self_attn.sinks", "", sinks), NBL_WEIGHT_SINKS,
                                         d->heads);
    rotation none = {NULL, {0}}, keys = rotation_of_keys(b, how), queries = rotation_of_queries(b, how);
    /* One operator rotates q and k alike and in halves, writes the cache and attends. */
    bool fuses_rope_attention = b->fuses_rope_attention && b->mode == NBL_MODE_DECODE && keys.rope &&
                                keys.rope == queries.rope && !keys.rope->interleaved;
    nbl__cache_values cache = {.lengths = b->lengths};
    if (b->k_cache) cache.keys = b->k_cache[layer], cache.values = b->v_cache[layer];
    /* RoPE and norms see heads: [tokens, heads, head_dim]. */
    x.q = rotated(b, x.q, d->heads, "self_attn.q_proj", how->qk_norm ? "self_attn.q_norm" : NULL,
                  how->unit_norm, fuses_rope_attention ? none : queries);
    x.k = rotated(b, x.k, d->kv_heads, "self_attn.k_proj", how->qk_norm ? "self_attn.k_norm" : NULL,
                  how->unit_norm, fuses_rope_attention ? none : keys);
    x.v = nbl__graph_view(b->g, x.v, d->kv_heads, d->head_dim);
    nbl__value out = fuses_rope_attention
                         ? nbl__build_attention_step(b->g, name, x.q, x.k, x.v, keys.table, cache, &options)
                         : attend(b, x, cache, name, &options);
    /* Back to [tokens, heads · head_dim], for o_proj. */
    return nbl__graph_view(b->g, out, d->heads * d->head_dim, 0);
}

nbl__value nbl__part_attention_output(nbl__build *b, nbl__value x, bool bias)
{
    const nbl__decoder *d = b->d;
    return nbl__part_linear(b, x, "self_attn.o_proj", NBL_WEIGHT_LINEAR, d->hidden, d->heads * d->head_dim,
                            bias, NBL_DROPOUT_MASK_O);
}

/* ---- feed-forward ---- */

static nbl__value gated_down_at(nbl__build *b, nbl__value gate, nbl__value up, const char *module,
                                int64_t inner, bool bias)
{
    char name[NAME_SIZE];
    snprintf(name, sizeof name, "%s.act", module);
    nbl__value x = nbl__build_gated(b->g, name, gate, up, b->d->act, b->dtype);
    snprintf(name, sizeof name, "%s.down_proj", module);
    return nbl__part_linear(b, x, name, NBL_WEIGHT_LINEAR, b->d->hidden, inner, bias, NBL_DROPOUT_MASK_DOWN);
}

nbl__value nbl__part_gated_mlp(nbl__build *b, nbl__value x, bool bias)
{
    return nbl__part_gated_mlp_at(b, x, "mlp", b->d->inner, bias);
}

nbl__value nbl__part_gated_mlp_at(nbl__build *b, nbl__value x, const char *module, int64_t inner, bool bias)
{
    const nbl__decoder *d = b->d;
    char gate[NAME_SIZE], up[NAME_SIZE], down[NAME_SIZE], name[NAME_SIZE];
    snprintf(gate, sizeof gate, "%s.gate_proj", module);
    snprintf(up, sizeof up, "%s.up_proj", module);
    snprintf(down, sizeof down, "%s.down_proj", module);
    nbl__linear_options how = linear_options(b, NBL_DROPOUT_MASK_GATE_UP);
    nbl__linear_values layers[NBL_MLP_PARTS];
    layers[NBL_MLP_GATE] = layer_at(b, gate, NBL_WEIGHT_LINEAR, inner, d->hidden, bias);
    layers[NBL_MLP_UP] = layer_at(b, up, NBL_WEIGHT_LINEAR, inner, d->hidden, bias);
    if (b->split_mlp) {
        nbl__value y[2];
        snprintf(name, sizeof name, "%s.gate_up", module);
        nbl__build_linear_group(b->g, name, x, layers, 2, &how, y);
        return gated_down_at(b, y[0], y[1], module, inner, bias);
    }
    layers[NBL_MLP_DOWN] = layer_at(b, down, NBL_WEIGHT_LINEAR, d->hidden, inner, bias);
    /* keep: forward saves gate and up; the plan clears it (NBL_RECOMPUTE_FLAGGED). */
    return nbl__build_mlp(b->g, module, x, layers, d->act, b->train, &how);
}

nbl__value nbl__part_gated_down(nbl__build *b, nbl__value gate, nbl__value up, bool bias)
{
    return gated_down_at(b, gate, up, "mlp", b->d->inner, bias);
}
