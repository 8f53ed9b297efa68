/* build.c - one typed function per operator family. See build.h.
 *
 * A slot is named by its field in the struct of arguments: bind(g, &a->x, x). A field that is no
 * slot is NBL_ERROR_INTERNAL, which every test that builds the node would see. */
#include "graph/build.h"

#include "ops/attention/attention.h"
#include "ops/attention/cache.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/families.h"
#include "ops/gate/gated_norm.h"
#include "ops/gate/sigmoid_gate.h"
#include "ops/gate/split_heads.h"
#include "ops/linear/dora_norm.h"
#include "ops/loss/argmax.h"
#include "ops/loss/cross_entropy.h"
#include "ops/norm/layernorm.h"
#include "ops/norm/norm_rope.h"
#include "ops/norm/rmsnorm.h"

static void bind(nbl__graph *g, const nbl_tensor *slot, nbl__value value)
{
    nbl__graph_bind(g, slot, value);
}

static void bind_weight(nbl__graph *g, const nbl_weight *slot, nbl__value value)
{
    nbl__graph_bind(g, slot, value);
}

static nbl__value output(nbl__graph *g, const nbl_tensor *slot)
{
    return nbl__graph_output(g, slot);
}

/* ---- linear layers ---- */

/* Binds a layer's values. The adapter's scale is an attribute of the layer, its dropout one of the
 * node, which `shared` holds. */
static void bind_layer(nbl__graph *g, nbl__linear *a, nbl__linear *shared, const nbl__linear_values *layer)
{
    bind_weight(g, &a->w, layer->w);
    bind(g, &a->bias, layer->bias);
    bind(g, &a->lora_a, layer->lora_a);
    bind(g, &a->lora_b, layer->lora_b);
    bind(g, &a->magnitude, layer->magnitude);
    bind(g, &a->norm, layer->norm);
    if (layer->lora_a == 0) return;
    a->scale = layer->scale;
    shared->dropout = layer->dropout;
}

static void set_shared(nbl__linear *shared, const nbl__linear_options *how)
{
    shared->seed = how->seed;
    shared->dtype = how->dtype;
    shared->dequantized = how->dequantized;
}

/* Adds the nodes that prepare the DoRA norms of these layers. A norm depends on weight and adapter
 * alone. */
static void prepare_norms(nbl__graph *g, const nbl__linear_values *layers, int count, nbl_dtype dtype)
{
    for (int i = 0; i < count && g->status == NBL_OK; i++) {
        if (layers[i].norm == 0) continue;
        nbl__dora_norm *a = nbl__graph_begin(g, &nbl__dora_norm_family, nbl__info(g, layers[i].norm)->name);
        if (a == NULL) return;
        a->dtype = dtype;
        a->scale = layers[i].scale;
        bind_weight(g, &a->w, layers[i].w);
        bind(g, &a->lora_a, layers[i].lora_a);
        bind(g, &a->lora_b, layers[i].lora_b);
        bind(g, &a->norm, layers[i].norm);
        nbl__graph_end_prepare(g);
    }
}

nbl__value nbl__build_linear(nbl__graph *g, const char *name, nbl__value x, const nbl__linear_values *layer,
                             const nbl__linear_options *how)
{
    nbl__linear *a = nbl__graph_begin(g, &nbl__linear_family, name);
    if (a == NULL) return 0;
    set_shared(a, how);
    bind(g, &a->x, x);
    bind_layer(g, a, a, layer);
    nbl__value y = nbl__graph_end(g);
    prepare_norms(g, layer, 1, how->dtype);
    return y;
}

void nbl__build_linear_group(nbl__graph *g, const char *name, nbl__value x, const nbl__linear_values *layers,
                             int count, const nbl__linear_options *how, nbl__value *y)
{
    nbl__linear_group *a = nbl__graph_begin(g, &nbl__linear_group_family, name);
    for (int i = 0; i < count; i++) y[i] = 0;
    if (a == NULL) return;
    set_shared(&a->members[0], how);
    bind(g, &a->members[0].x, x);
    for (int i = 0; i < count; i++) bind_layer(g, &a->members[i], &a->members[0], &layers[i]);
    nbl__graph_end(g);
    for (int i = 0; i < count; i++) y[i] = output(g, &a->members[i].y);
    prepare_norms(g, layers, count, how->dtype);
}

nbl__value nbl__build_mlp(nbl__graph *g, const char *name, nbl__value x,
                          const nbl__linear_values layers[NBL_MLP_PARTS], nbl__act act, bool keep,
                          const nbl__linear_options *how)
{
    nbl__mlp *a = nbl__graph_begin(g, &nbl__mlp_family, name);
    if (a == NULL) return 0;
    set_shared(&a->gate, how);
    a->act = (int)act;
    a->keep = keep;
    bind(g, &a->gate.x, x);
    bind_layer(g, &a->gate, &a->gate, &layers[NBL_MLP_GATE]);
    bind_layer(g, &a->up, &a->gate, &layers[NBL_MLP_UP]);
    bind_layer(g, &a->down, &a->gate, &layers[NBL_MLP_DOWN]);
    nbl__value y = nbl__graph_end(g);
    prepare_norms(g, layers, NBL_MLP_PARTS, how->dtype);
    return y;
}

nbl__value nbl__build_gated(nbl__graph *g, const char *name, nbl__value gate, nbl__value up, nbl__act act,
                            nbl_dtype dtype)
{
    nbl__gated *a = nbl__graph_begin(g, &nbl__gated_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->act = (int)act;
    bind(g, &a->gate, gate);
    bind(g, &a->up, up);
    return nbl__graph_end(g);
}

nbl__value nbl__build_sigmoid_gate(nbl__graph *g, const char *name, nbl__value x, nbl__value gate,
                                   nbl_dtype dtype)
{
    nbl__sigmoid_gate *a = nbl__graph_begin(g, &nbl__sigmoid_gate_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    bind(g, &a->x, x);
    bind(g, &a->gate, gate);
    return nbl__graph_end(g);
}

nbl__value nbl__build_split_heads(nbl__graph *g, const char *name, nbl__value x, int64_t heads,
                                  const int64_t widths[3], nbl_dtype dtype, nbl__value *rest)
{
    nbl__split_heads *a = nbl__graph_begin(g, &nbl__split_heads_family, name);
    *rest = 0;
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->heads = heads;
    memcpy(a->widths, widths, sizeof a->widths);
    bind(g, &a->x, x);
    nbl__value front = nbl__graph_end(g);
    *rest = output(g, &a->rest);
    return front;
}

/* ---- norms and RoPE ---- */

nbl__value nbl__build_rmsnorm(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                              nbl__value residual, const nbl__norm_options *how, nbl__value *sum)
{
    nbl__rmsnorm *a = nbl__graph_begin(g, &nbl__rmsnorm_family, name);
    if (sum) *sum = 0;
    if (a == NULL) return 0;
    a->dtype = how->dtype;
    a->eps = how->eps;
    a->offset = how->offset;
    a->scale = how->scale;
    a->round = (int)how->round;
    bind(g, &a->x, x);
    bind(g, &a->w, w);
    bind(g, &a->residual, residual);
    nbl__value y = nbl__graph_end(g);
    if (sum) *sum = output(g, &a->residual_out);
    return y;
}

nbl__value nbl__build_layernorm(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                const nbl__norm_options *how)
{
    nbl__layernorm *a = nbl__graph_begin(g, &nbl__layernorm_family, name);
    if (a == NULL) return 0;
    a->dtype = how->dtype;
    a->eps = how->eps;
    a->scale = how->scale;
    bind(g, &a->x, x);
    bind(g, &a->w, w);
    return nbl__graph_end(g);
}

nbl__rope_values nbl__build_rope_table(nbl__graph *g, const char *name, nbl__value positions,
                                       nbl__value cu_seqlens, const nbl__rope *rope)
{
    nbl__rope_table *a = nbl__graph_begin(g, &nbl__rope_table_family, name);
    if (a == NULL) return (nbl__rope_values){0};
    a->rope = *rope;
    bind(g, &a->positions, positions);
    if (nbl__rope_has_lengths(rope)) bind(g, &a->cu_seqlens, cu_seqlens);
    nbl__value cos = nbl__graph_end(g);
    return (nbl__rope_values){cos, output(g, &a->sin)};
}

nbl__value nbl__build_rope(nbl__graph *g, const char *name, nbl__value x, nbl__rope_values table,
                           const nbl__rope *rope, nbl_dtype dtype)
{
    nbl__rope_apply *a = nbl__graph_begin(g, &nbl__rope_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->rope = *rope;
    bind(g, &a->x, x);
    bind(g, &a->cos, table.cos);
    bind(g, &a->sin, table.sin);
    return nbl__graph_end(g);
}

nbl__value nbl__build_norm_rope(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                nbl__rope_values table, const nbl__norm_options *how)
{
    nbl__norm_rope *a = nbl__graph_begin(g, &nbl__norm_rope_family, name);
    if (a == NULL) return 0;
    a->dtype = how->dtype;
    a->eps = how->eps;
    a->offset = how->offset;
    a->round = (int)how->round;
    bind(g, &a->x, x);
    bind(g, &a->w, w);
    bind(g, &a->cos, table.cos);
    bind(g, &a->sin, table.sin);
    return nbl__graph_end(g);
}

nbl__value nbl__build_gated_norm(nbl__graph *g, const char *name, nbl__value x, nbl__value gate, nbl__value w,
                                 float eps, nbl_dtype dtype)
{
    nbl__gated_norm *a = nbl__graph_begin(g, &nbl__gated_norm_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->eps = eps;
    bind(g, &a->x, x);
    bind(g, &a->gate, gate);
    bind(g, &a->w, w);
    return nbl__graph_end(g);
}

/* ---- attention ---- */

nbl__value nbl__build_attention(nbl__graph *g, const char *name, nbl__value q, nbl__value k, nbl__value v,
                                nbl__value cu_seqlens, const nbl__attention_options *how, nbl__value *lse)
{
    nbl__attention *a = nbl__graph_begin(g, &nbl__attention_family, name);
    *lse = 0;
    if (a == NULL) return 0;
    a->dtype = how->dtype;
    a->scale = how->scale;
    a->window = how->window;
    a->chunk = how->chunk;
    a->softcap = how->softcap;
    bind(g, &a->q, q);
    bind(g, &a->k, k);
    bind(g, &a->v, v);
    bind(g, &a->cu_seqlens, cu_seqlens);
    bind(g, &a->sinks, how->sinks);
    nbl__value out = nbl__graph_end(g);
    *lse = output(g, &a->lse);
    return out;
}

nbl__value nbl__build_attention_decode(nbl__graph *g, const char *name, nbl__value q, nbl__cache_values cache,
                                       const nbl__attention_options *how)
{
    nbl__attention_decode *a = nbl__graph_begin(g, &nbl__attention_decode_family, name);
    if (a == NULL) return 0;
    a->dtype = how->dtype;
    a->scale = how->scale;
    a->window = how->window;
    a->chunk = how->chunk;
    a->softcap = how->softcap;
    bind(g, &a->q, q);
    bind(g, &a->k, cache.keys);
    bind(g, &a->v, cache.values);
    bind(g, &a->lengths, cache.lengths);
    bind(g, &a->sinks, how->sinks);
    return nbl__graph_end(g);
}

nbl__value nbl__build_attention_step(nbl__graph *g, const char *name, nbl__value q, nbl__value k,
                                     nbl__value v, nbl__rope_values table, nbl__cache_values cache,
                                     const nbl__attention_options *how)
{
    nbl__attention_step *a = nbl__graph_begin(g, &nbl__attention_step_family, name);
    if (a == NULL) return 0;
    a->dtype = how->dtype;
    a->scale = how->scale;
    a->window = how->window;
    a->chunk = how->chunk;
    a->softcap = how->softcap;
    bind(g, &a->q, q);
    bind(g, &a->k, k);
    bind(g, &a->v, v);
    bind(g, &a->cos, table.cos);
    bind(g, &a->sin, table.sin);
    bind(g, &a->keys, cache.keys);
    bind(g, &a->values, cache.values);
    bind(g, &a->lengths, cache.lengths);
    bind(g, &a->sinks, how->sinks);
    return nbl__graph_end(g);
}

void nbl__build_kv_write(nbl__graph *g, const char *name, nbl__value x, nbl__value rows, nbl__value cache)
{
    nbl__kv_write *a = nbl__graph_begin(g, &nbl__kv_write_family, name);
    if (a == NULL) return;
    bind(g, &a->x, x);
    bind(g, &a->rows, rows);
    bind(g, &a->cache, cache);
    nbl__graph_end(g);
}

/* ---- embedding, head, sums ---- */

nbl__value nbl__build_embedding(nbl__graph *g, const char *name, nbl__value ids, nbl__value w, float scale,
                                int64_t padding, nbl_dtype dtype)
{
    nbl__embedding *a = nbl__graph_begin(g, &nbl__embedding_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->scale = scale;
    a->padding = padding;
    bind(g, &a->ids, ids);
    bind_weight(g, &a->w, w);
    return nbl__graph_end(g);
}

nbl__value nbl__build_cross_entropy(nbl__graph *g, const char *name, nbl__value x, nbl__value w,
                                    nbl__value labels, nbl__value denominator, float softcap,
                                    bool grad_in_forward, nbl_dtype dtype)
{
    nbl__cross_entropy *a = nbl__graph_begin(g, &nbl__cross_entropy_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->softcap = softcap;
    a->grad_in_forward = grad_in_forward;
    bind(g, &a->x, x);
    bind_weight(g, &a->w, w);
    bind(g, &a->labels, labels);
    bind(g, &a->denominator, denominator);
    return nbl__graph_end(g);
}

nbl__value nbl__build_take_rows(nbl__graph *g, const char *name, nbl__value x, nbl__value rows)
{
    nbl__take_rows *a = nbl__graph_begin(g, &nbl__take_rows_family, name);
    if (a == NULL) return 0;
    bind(g, &a->x, x);
    bind(g, &a->rows, rows);
    return nbl__graph_end(g);
}

nbl__value nbl__build_argmax(nbl__graph *g, const char *name, nbl__value x, nbl__value *non_finite)
{
    nbl__argmax *a = nbl__graph_begin(g, &nbl__argmax_family, name);
    *non_finite = 0;
    if (a == NULL) return 0;
    bind(g, &a->x, x);
    nbl__value best = nbl__graph_end(g);
    *non_finite = output(g, &a->non_finite);
    return best;
}

nbl__value nbl__build_scale(nbl__graph *g, const char *name, nbl__value x, float factor, nbl_dtype dtype)
{
    nbl__scale *a = nbl__graph_begin(g, &nbl__scale_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    a->factor = factor;
    bind(g, &a->x, x);
    return nbl__graph_end(g);
}

nbl__value nbl__build_add(nbl__graph *g, const char *name, nbl__value x, nbl__value y, nbl_dtype dtype)
{
    nbl__add *a = nbl__graph_begin(g, &nbl__add_family, name);
    if (a == NULL) return 0;
    a->dtype = dtype;
    bind(g, &a->a, x);
    bind(g, &a->b, y);
    return nbl__graph_end(g);
}
