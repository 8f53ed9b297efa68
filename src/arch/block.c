/* block.c - builds a decoder's graph: the blocks of a layer, and the whole. See arch.h.
 *
 * Residual sums are computed by the norm that follows them. A block returns its output y and
 * leaves the residual stream in *stream; the next norm computes stream + y (its residual_out)
 * and normalises it:
 *
 *     norm(x = y, residual = stream) → normalised value, residual_out = the new stream
 *
 * Pins (nbl__build.pins) are the values of a layer that recomputation starts from:
 *
 *     1   the stream at the layer's start; it may wait on the host (graph/offload.c)
 *     2   also the stream between the layer's halves: o_proj is not recomputed, and the recomputed
 *         values of the two halves are not alive together
 *     3   also the attention output and its log-sum-exp: attention is not recomputed
 *
 * Values of weights have the checkpoint's tensor names. Nodes have module names; those of
 * "self_attn.qkv", "self_attn" and the parts of "mlp" lack the layer's prefix. */
#include "arch/arch.h"

#include <math.h>
#include <stdio.h>

#include "ops/attention/attention.h"
#include "ops/attention/cache.h"
#include "ops/loss/cross_entropy.h"
#include "ops/linear/dora_norm.h"
#include "ops/elementwise/elementwise.h"
#include "ops/embedding/embedding.h"
#include "ops/linear/linear_group.h"
#include "ops/linear/mlp.h"
#include "ops/norm/norm_rope.h"
#include "ops/norm/rmsnorm.h"

/* ---- weights and parameters by name ---- */

static void fail(nbl__build *b, nbl_status status)
{
    nbl__graph_failed(b->g, status);
}

/* Looks up a tensor. One that is missing or has a wrong shape is added to b->problems and replaced
 * by an empty stand-in, so that one error names them all. NULL only if memory has run out. */
static const nbl_weight *tensor(nbl__build *b, const char *name, int rank, int64_t rows, int64_t columns)
{
    const nbl_weight *w = b->source->weight(b->source->user, name);
    int64_t shape[2] = {rows, columns};
    if (w && w->rank == rank && w->shape[0] == rows && (rank == 1 || w->shape[1] == columns)) return w;
    if (w == NULL) nbl__text_printf(&b->problems, "; no \"%s\" %s", name, nbl__show_shape(rank, shape).text);
    else
        nbl__text_printf(&b->problems, "; \"%s\" is %s instead of %s", name,
                         nbl__show_shape(w->rank, w->shape).text, nbl__show_shape(rank, shape).text);
    nbl_weight *stand_in = nbl__arena_alloc(&b->g->arena, sizeof *stand_in);
    if (stand_in == NULL) {
        fail(b, NBL_ERROR_MEMORY);
        return NULL;
    }
    *stand_in = (nbl_weight){
        .format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = rank, .shape = {rows, columns}};
    return stand_in;
}

static const char EMBEDDING[] = "model.embed_tokens.weight";

static bool is_trained(const nbl__build *b, const char *name)
{
    return b->source->trained && b->source->trained(b->source->user, name);
}

/* A trained parameter: the f32 master copy. In 16 bits small updates would be rounded away. */
static nbl__value master(nbl__build *b, const char *name, int rank, int64_t first, int64_t second)
{
    nbl__value v = nbl__graph_value(b->g, NBL_KIND_PARAMETER, name, NBL_DTYPE_F32, rank,
                                    (int64_t[]){first, second});
    if (v) nbl__info(b->g, v)->trained = b->train;
    return v;
}

/* A matrix of the model. The embedding becomes one value for all its users, so that a tied head
 * and the look-up add to the same gradient. */
static nbl__value weight(nbl__build *b, const char *name, int64_t rows, int64_t columns)
{
    bool embedding = strcmp(name, EMBEDDING) == 0;
    if (embedding && b->embedding) return b->embedding;
    const nbl_weight *w = tensor(b, name, 2, rows, columns);
    if (w == NULL) return 0;
    nbl__value v = is_trained(b, name) ? master(b, name, 2, rows, columns) : nbl__graph_weight(b->g, name, w);
    if (embedding) b->embedding = v;
    return v;
}

/* A vector of n values, in the checkpoint's dtype, or in the compute dtype if `as_computed`. */
static nbl__value vector(nbl__build *b, const char *name, int64_t n, bool as_computed)
{
    const nbl_weight *w = tensor(b, name, 1, n, 0);
    if (w == NULL) return 0;
    if (is_trained(b, name)) return master(b, name, 1, n, 0);
    return nbl__graph_value(b->g, NBL_KIND_PARAMETER, name, as_computed ? b->dtype : w->dtype, 1, &n);
}

/* ---- linear layers ---- */

/* Names of a linear layer's module, and of its slots in the node: before + slot + after. */
typedef struct names {
    char module[200];
    const char *before, *after; /* "gate." + "lora_a", or "lora_a" + "1" */
} names;

static void bind(nbl__build *b, const names *n, const char *slot, nbl__value value)
{
    char full[64];
    snprintf(full, sizeof full, "%s%s%s", n->before, slot, n->after);
    nbl__graph_bind(b->g, full, value);
}

/* The trained parameter MODULE.PART. */
static nbl__value parameter(nbl__build *b, const names *n, const char *part, int rank, int64_t first,
                            int64_t second)
{
    char name[256];
    snprintf(name, sizeof name, "%s.%s", n->module, part);
    return master(b, name, rank, first, second);
}

/* A value for the layer's DoRA weight norm ‖W + s·B·A‖ by rows. It depends on weights and
 * adapter alone, so a preparing node computes it. end_layers adds that node after this one. */
static nbl__value dora_norm(nbl__build *b, const names *n, struct nbl__dora_layer layer, int64_t out)
{
    char name[256];
    snprintf(name, sizeof name, "%s.norm", n->module);
    layer.norm = nbl__graph_value(b->g, NBL_KIND_PREPARED, name, NBL_DTYPE_F32, 1, &out);
    b->dora[b->dora_count++] = layer;
    return layer.norm;
}

/* Ends the current node and adds a dora_norm node for each of its DoRA layers. Returns the first
 * output; `more` gets those named by `slots`. */
static nbl__value end_layers(nbl__build *b, const char *const *slots, nbl__value *more, int count)
{
    nbl__value first = nbl__graph_end(b->g);
    for (int i = 0; i < count; i++) more[i] = nbl__graph_output(b->g, slots[i]);
    for (int i = 0; i < b->dora_count && b->g->status == NBL_OK; i++) {
        const struct nbl__dora_layer *layer = &b->dora[i];
        nbl__dora_norm *a = nbl__graph_begin(b->g, "dora_norm", nbl__info(b->g, layer->norm)->name);
        if (a == NULL) break;
        a->dtype = b->dtype;
        a->scale = layer->scale;
        nbl__graph_bind(b->g, "w", layer->w);
        nbl__graph_bind(b->g, "lora_a", layer->lora_a);
        nbl__graph_bind(b->g, "lora_b", layer->lora_b);
        nbl__graph_bind(b->g, "norm", layer->norm);
        nbl__graph_end_prepare(b->g);
    }
    b->dora_count = 0;
    return first;
}

/* Binds weight, bias and adapter of a module to the current node. `w`: the weight's slot. Sets
 * the layer's *scale and *dropout if the module has an adapter. */
static void bind_layer(nbl__build *b, const names *n, const char *w, int64_t out, int64_t in, bool bias,
                       float *scale, float *dropout)
{
    char name[256];
    nbl__adapter adapter;
    snprintf(name, sizeof name, "%s.weight", n->module);
    struct nbl__dora_layer layer = {.w = weight(b, name, out, in)};
    nbl__graph_bind(b->g, w, layer.w);
    snprintf(name, sizeof name, "%s.bias", n->module);
    if (bias) bind(b, n, "b", vector(b, name, out, true));
    if (!b->source->adapter(b->source->user, n->module, &adapter)) return;
    layer.scale = adapter.scale;
    bind(b, n, "lora_a", layer.lora_a = parameter(b, n, "lora_A.weight", 2, adapter.rank, in));
    bind(b, n, "lora_b", layer.lora_b = parameter(b, n, "lora_B.weight", 2, out, adapter.rank));
    if (adapter.dora) {
        bind(b, n, "magnitude", parameter(b, n, "lora_magnitude_vector", 1, out, 0));
        bind(b, n, "norm", dora_norm(b, n, layer, out));
    }
    *scale = adapter.scale;
    *dropout = b->train ? adapter.dropout : 0;
}

/* Names of a module at `path` in the current layer, or in the model outside of layers. */
static names module(const nbl__build *b, const char *before, const char *after, const char *path)
{
    names n = {.before = before, .after = after};
    snprintf(n.module, sizeof n.module, "%s%s", b->at, path);
    return n;
}

/* Index of the dropout mask of a projection's adapter within its layer, the same however
 * projections share nodes. The layer's seed is added by an input (nbl__graph_seed_dropout). */
enum { MASK_QKV = 0, MASK_O = 3, MASK_GATE_UP = 4, MASK_DOWN = MASK_GATE_UP + NBL_MLP_DOWN };

/* y = x·Wᵀ + b, with adapter if the module has one: a linear node. */
static nbl__value linear(nbl__build *b, nbl__value x, const names *n, int64_t out, int64_t in, bool bias,
                         int mask)
{
    nbl__linear *a = nbl__graph_begin(b->g, "linear", n->module);
    if (a == NULL) return 0;
    a->seed = nbl__dropout_seed(0, mask);
    a->dtype = b->dtype;
    a->dequantized = b->dequantized || b->mode == NBL_MODE_TRAIN;
    nbl__graph_bind(b->g, "x", x);
    bind_layer(b, n, "w", out, in, bias, &a->scale, &a->dropout);
    return end_layers(b, NULL, NULL, 0);
}

/* ---- norm, attention, feed-forward ---- */

/* RMSNorm of x, or of x + *stream; *stream becomes that sum, or x if there is no stream yet.
 * stream NULL: a norm outside of the residual stream. */
static nbl__value norm(nbl__build *b, nbl__value x, nbl__value *stream, const char *name, int64_t width)
{
    char full[256];
    snprintf(full, sizeof full, "%s%s", b->at, name);
    nbl__rmsnorm *a = nbl__graph_begin(b->g, "rmsnorm", full);
    if (a == NULL) return 0;
    a->dtype = b->dtype;
    a->eps = b->d->norm_eps;
    a->offset = b->d->gemma;
    a->round = b->d->gemma ? NBL_ROUND_AFTER_WEIGHT : NBL_ROUND_BEFORE_WEIGHT;
    snprintf(full, sizeof full, "%s%s.weight", b->at, name);
    nbl__graph_bind(b->g, "x", x);
    nbl__graph_bind(b->g, "w", vector(b, full, width, false));
    if (stream) nbl__graph_bind(b->g, "residual", *stream);
    nbl__value y = nbl__graph_end(b->g);
    if (stream) *stream = *stream ? nbl__graph_output(b->g, "residual_out") : x;
    return y;
}

static nbl__value rotate(nbl__build *b, nbl__value x, const char *name, bool local)
{
    nbl__rope_apply *a = nbl__graph_begin(b->g, "rope", name);
    if (a == NULL) return 0;
    a->dtype = b->dtype;
    a->rope = local ? b->d->local_rope : b->d->rope;
    nbl__graph_bind(b->g, "x", x);
    nbl__graph_bind(b->g, "cos", local ? b->local_cos : b->cos);
    nbl__graph_bind(b->g, "sin", local ? b->local_sin : b->sin);
    return nbl__graph_end(b->g);
}

/* True if the q/k norm and RoPE can be one norm_rope node: training, b->joins_norms, frozen norm
 * weight, head_dim a power of two, full rotary. */
static bool joins_norm(const nbl__build *b, const char *name, bool local)
{
    char full[256];
    int64_t dim = b->d->head_dim, turns = nbl__rope_dim(local ? &b->d->local_rope : &b->d->rope, dim);
    snprintf(full, sizeof full, "%s%s.weight", b->at, name);
    return b->mode == NBL_MODE_TRAIN && b->joins_norms && !is_trained(b, full) && turns == dim &&
           (dim & (dim - 1)) == 0;
}

/* q/k norm and RoPE in one node. */
static nbl__value norm_rotate(nbl__build *b, nbl__value x, const char *norm_name, const char *name,
                              bool local)
{
    char full[256];
    nbl__norm_rope *a = nbl__graph_begin(b->g, "norm_rope", name);
    if (a == NULL) return 0;
    a->dtype = b->dtype;
    a->eps = b->d->norm_eps;
    a->offset = b->d->gemma;
    a->round = b->d->gemma ? NBL_ROUND_AFTER_WEIGHT : NBL_ROUND_BEFORE_WEIGHT;
    snprintf(full, sizeof full, "%s%s.weight", b->at, norm_name);
    nbl__graph_bind(b->g, "x", x);
    nbl__graph_bind(b->g, "w", vector(b, full, b->d->head_dim, false));
    nbl__graph_bind(b->g, "cos", local ? b->local_cos : b->cos);
    nbl__graph_bind(b->g, "sin", local ? b->local_sin : b->sin);
    return nbl__graph_end(b->g);
}

/* Writes k or v of the run's tokens to rows `b->rows` of the KV cache. */
static void remember(nbl__build *b, nbl__value x, nbl__value cache, const char *name)
{
    nbl__graph_begin(b->g, "kv_write", name);
    nbl__graph_bind(b->g, "x", x);
    nbl__graph_bind(b->g, "rows", b->rows);
    nbl__graph_bind(b->g, "cache", cache);
    nbl__graph_end(b->g);
}

/* Attention of rotated q and k. PREFILL and GENERATE write k and v to the cache; GENERATE
 * attends over the cache, all other modes over the run's own packed sequences. */
static nbl__value attend(nbl__build *b, nbl__value q, nbl__value k, nbl__value v, int64_t layer,
                         const char *name)
{
    const nbl__decoder *d = b->d;
    int64_t window = d->sliding[layer] ? d->window : 0;
    if (b->mode == NBL_MODE_PREFILL || b->mode == NBL_MODE_GENERATE) {
        remember(b, k, b->keys[layer], name);
        remember(b, v, b->values[layer], name);
    }
    if (b->mode == NBL_MODE_GENERATE) {
        nbl__attention_decode *a = nbl__graph_begin(b->g, "attention_decode", name);
        if (a == NULL) return 0;
        a->dtype = b->dtype;
        a->scale = d->attention_scale;
        a->window = window;
        a->softcap = d->attention_cap;
        nbl__graph_bind(b->g, "q", q);
        nbl__graph_bind(b->g, "k", b->keys[layer]);
        nbl__graph_bind(b->g, "v", b->values[layer]);
        nbl__graph_bind(b->g, "lengths", b->lengths);
        return nbl__graph_end(b->g);
    }
    nbl__attention *a = nbl__graph_begin(b->g, "attention", name);
    if (a == NULL) return 0;
    a->dtype = b->dtype;
    a->scale = d->attention_scale;
    a->window = window;
    a->softcap = d->attention_cap;
    nbl__graph_bind(b->g, "q", q);
    nbl__graph_bind(b->g, "k", k);
    nbl__graph_bind(b->g, "v", v);
    nbl__graph_bind(b->g, "cu_seqlens", b->cu_seqlens);
    nbl__value out = nbl__graph_end(b->g), lse = nbl__graph_output(b->g, "lse");
    if (b->pins >= 3 && out && lse) {
        nbl__graph_pin(b->g, out);
        nbl__graph_pin(b->g, lse);
    }
    return out;
}

/* Generation in one node (attention_step): RoPE of q and k, cache write, attention. */
static nbl__value attend_joined(nbl__build *b, const nbl__value qkv[3], int64_t layer, bool local,
                                const char *name)
{
    const nbl__decoder *d = b->d;
    nbl__attention_step *a = nbl__graph_begin(b->g, "attention_step", name);
    if (a == NULL) return 0;
    a->dtype = b->dtype;
    a->scale = d->attention_scale;
    a->window = d->sliding[layer] ? d->window : 0;
    a->softcap = d->attention_cap;
    nbl__graph_bind(b->g, "q", qkv[0]);
    nbl__graph_bind(b->g, "k", qkv[1]);
    nbl__graph_bind(b->g, "v", qkv[2]);
    nbl__graph_bind(b->g, "cos", local ? b->local_cos : b->cos);
    nbl__graph_bind(b->g, "sin", local ? b->local_sin : b->sin);
    nbl__graph_bind(b->g, "keys", b->keys[layer]);
    nbl__graph_bind(b->g, "values", b->values[layer]);
    nbl__graph_bind(b->g, "lengths", b->lengths);
    return nbl__graph_end(b->g);
}

/* q, k, v = one linear_group node; optional q/k norms; RoPE; attention; o_proj. */
static nbl__value self_attention(nbl__build *b, nbl__value x, int64_t layer)
{
    static const char *const parts[] = {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"},
                             *const suffix[] = {"0", "1", "2"};
    static const char *const weights[] = {"w0", "w1", "w2"}, *const norms[] = {"self_attn.q_norm",
                                                                               "self_attn.k_norm"};
    const nbl__decoder *d = b->d;
    /* q, k and v share x: one node with three weights. */
    int64_t heads[] = {d->heads, d->kv_heads, d->kv_heads};
    nbl__linear_group *group = nbl__graph_begin(b->g, "linear_group", "self_attn.qkv");
    if (group == NULL) return 0;
    group->members[0].seed = nbl__dropout_seed(0, MASK_QKV);
    group->members[0].dtype = b->dtype;
    group->members[0].dequantized = b->dequantized || b->mode == NBL_MODE_TRAIN;
    nbl__graph_bind(b->g, "x", x);
    float dropout = 0;
    for (int i = 0; i < 3; i++) {
        names n = module(b, "", suffix[i], parts[i]);
        bind_layer(b, &n, weights[i], heads[i] * d->head_dim, d->hidden, d->qkv_bias,
                   &group->members[i].scale, &dropout);
    }
    group->members[0].dropout = dropout;
    nbl__value qkv[3];
    qkv[0] = end_layers(b, (const char *const[]){"y1", "y2"}, qkv + 1, 2);
    /* RoPE and q/k norm see heads: [tokens, heads, head_dim]. */
    bool local = d->sliding[layer] && d->local_rope.theta > 0,
         joined = b->joined && b->mode == NBL_MODE_GENERATE;
    for (int i = 0; i < 3; i++) {
        qkv[i] = nbl__graph_view(b->g, qkv[i], heads[i], d->head_dim);
        if (i == 2) break;
        if (d->qk_norm && joins_norm(b, norms[i], local)) {
            qkv[i] = norm_rotate(b, qkv[i], norms[i], parts[i], local);
            continue;
        }
        if (d->qk_norm) qkv[i] = norm(b, qkv[i], NULL, norms[i], d->head_dim);
        if (!joined) qkv[i] = rotate(b, qkv[i], parts[i], local);
    }
    /* Back to [tokens, heads · head_dim] for o_proj. */
    x = joined ? attend_joined(b, qkv, layer, local, "self_attn")
               : attend(b, qkv[0], qkv[1], qkv[2], layer, "self_attn");
    x = nbl__graph_view(b->g, x, d->heads * d->head_dim, 0);
    names n = module(b, "", "", "self_attn.o_proj");
    return linear(b, x, &n, d->hidden, d->heads * d->head_dim, d->o_bias, MASK_O);
}

/* The feed-forward block as three nodes: linear_group (gate, up), gated (act(gate)·up), linear
 * (down). */
static nbl__value feed_forward_split(nbl__build *b, nbl__value x)
{
    const nbl__decoder *d = b->d;
    nbl__linear_group *group = nbl__graph_begin(b->g, "linear_group", "mlp.gate_up");
    if (group == NULL) return 0;
    group->members[0].seed = nbl__dropout_seed(0, MASK_GATE_UP);
    group->members[0].dtype = b->dtype;
    group->members[0].dequantized = b->dequantized || b->mode == NBL_MODE_TRAIN;
    nbl__graph_bind(b->g, "x", x);
    names gate = module(b, "", "0", "mlp.gate_proj"), up = module(b, "", "1", "mlp.up_proj");
    bind_layer(b, &gate, "w0", d->inner, d->hidden, d->mlp_bias, &group->members[0].scale,
               &group->members[0].dropout);
    bind_layer(b, &up, "w1", d->inner, d->hidden, d->mlp_bias, &group->members[1].scale,
               &group->members[0].dropout);
    nbl__value both[2];
    both[0] = end_layers(b, (const char *const[]){"y1"}, both + 1, 1);
    nbl__gated *a = nbl__graph_begin(b->g, "gated", "mlp.act");
    if (a == NULL) return 0;
    a->dtype = b->dtype;
    a->act = (int)d->act;
    nbl__graph_bind(b->g, "gate", both[0]);
    nbl__graph_bind(b->g, "up", both[1]);
    x = nbl__graph_end(b->g);
    names down = module(b, "", "", "mlp.down_proj");
    return linear(b, x, &down, d->hidden, d->inner, d->mlp_bias, MASK_DOWN);
}

/* The feed-forward block down(act(gate(x))·up(x)), as one mlp node unless b->split_mlp. */
static nbl__value feed_forward(nbl__build *b, nbl__value x)
{
    const nbl__decoder *d = b->d;
    if (b->split_mlp) return feed_forward_split(b, x);
    nbl__mlp *a = nbl__graph_begin(b->g, "mlp", "mlp");
    if (a == NULL) return 0;
    a->gate.seed = nbl__dropout_seed(0, MASK_GATE_UP);
    a->gate.dtype = b->dtype;
    a->gate.dequantized = b->dequantized || b->mode == NBL_MODE_TRAIN;
    a->act = d->act;
    a->keep = b->train; /* save gate and up; the plan clears it (NBL_RECOMPUTE_FLAGGED) */
    nbl__graph_bind(b->g, "x", x);
    names gate = module(b, "gate.", "", "mlp.gate_proj");
    names up = module(b, "up.", "", "mlp.up_proj");
    names down = module(b, "down.", "", "mlp.down_proj");
    bind_layer(b, &gate, "gate", d->inner, d->hidden, d->mlp_bias, &a->gate.scale, &a->gate.dropout);
    bind_layer(b, &up, "up", d->inner, d->hidden, d->mlp_bias, &a->up.scale, &a->gate.dropout);
    bind_layer(b, &down, "down", d->hidden, d->inner, d->mlp_bias, &a->down.scale, &a->gate.dropout);
    return end_layers(b, NULL, NULL, 0);
}

/* One layer: norm → attention → (+) → norm → feed-forward. Gemma also normalises each block's
 * output. */
static nbl__value layer_of(nbl__build *b, nbl__value x, nbl__value *stream, int64_t layer)
{
    const nbl__decoder *d = b->d;
    x = norm(b, x, stream, "input_layernorm", d->hidden);
    nbl__graph_pin(b->g, *stream);
    x = self_attention(b, x, layer);
    if (d->gemma) x = norm(b, x, NULL, "post_attention_layernorm", d->hidden);
    x = norm(b, x, stream, d->gemma ? "pre_feedforward_layernorm" : "post_attention_layernorm", d->hidden);
    if (b->pins >= 2) nbl__graph_pin(b->g, *stream);
    x = feed_forward(b, x);
    if (d->gemma) x = norm(b, x, NULL, "post_feedforward_layernorm", d->hidden);
    return x;
}

/* ---- the whole ---- */

static nbl__value input(nbl__build *b, const char *name, nbl_dtype dtype, int64_t n)
{
    return nbl__graph_value(b->g, NBL_KIND_INPUT, name, dtype, 1, &n);
}

/* Creates the inputs and KV caches that b->mode needs. */
static void make_inputs(nbl__build *b)
{
    bool cached = b->mode == NBL_MODE_PREFILL || b->mode == NBL_MODE_GENERATE;
    b->ids = input(b, "ids", NBL_DTYPE_I32, b->tokens);
    b->positions = input(b, "positions", NBL_DTYPE_I32, b->tokens);
    if (b->mode != NBL_MODE_GENERATE) b->cu_seqlens = input(b, "cu_seqlens", NBL_DTYPE_I32, b->sequences + 1);
    if (b->mode == NBL_MODE_TRAIN) {
        b->labels = input(b, "labels", NBL_DTYPE_I32, b->tokens);
        b->dloss = input(b, "dloss", NBL_DTYPE_F32, 1);
        b->denominator = input(b, "denominator", NBL_DTYPE_F32, 1);
    }
    if (b->mode == NBL_MODE_PREFILL) b->last = input(b, "last", NBL_DTYPE_I32, b->sequences);
    if (b->mode == NBL_MODE_GENERATE) b->lengths = input(b, "lengths", NBL_DTYPE_I32, b->sequences);
    if (!cached) return;
    b->rows = input(b, "rows", NBL_DTYPE_I32, b->tokens);
    b->keys = nbl__arena_alloc(&b->g->arena, (size_t)b->d->layers * sizeof *b->keys);
    b->values = nbl__arena_alloc(&b->g->arena, (size_t)b->d->layers * sizeof *b->values);
    if (b->keys == NULL || b->values == NULL) fail(b, NBL_ERROR_MEMORY);
    /* One cache for keys and one for values per layer; written in PREFILL and GENERATE. */
    int64_t shape[] = {b->sequences, b->cache_size, b->d->kv_heads, b->d->head_dim};
    for (int64_t i = 0; i < b->d->layers && b->g->status == NBL_OK; i++) {
        b->keys[i] = nbl__graph_value(b->g, NBL_KIND_STATE, "keys", b->kv_dtype, 4, shape);
        b->values[i] = nbl__graph_value(b->g, NBL_KIND_STATE, "values", b->kv_dtype, 4, shape);
    }
}

/* cos and sin of the run's positions, computed once for all layers. */
static void make_table(nbl__build *b, const nbl__rope *rope, nbl__value *cos, nbl__value *sin)
{
    nbl__rope_table *a = nbl__graph_begin(b->g, "rope_table", "rope");
    if (a == NULL) return;
    a->rope = *rope;
    a->rope.rotary_dim = nbl__rope_dim(rope, b->d->head_dim);
    nbl__graph_bind(b->g, "positions", b->positions);
    *cos = nbl__graph_end(b->g);
    *sin = nbl__graph_output(b->g, "sin");
}

/* Embedding look-up; Gemma multiplies by sqrt(hidden). */
static nbl__value embed(nbl__build *b)
{
    const nbl__decoder *d = b->d;
    nbl__embedding *a = nbl__graph_begin(b->g, "embedding", "model.embed_tokens");
    if (a == NULL) return 0;
    a->dtype = b->dtype;
    if (d->gemma) a->scale = (float)sqrt((double)d->hidden);
    a->padding = d->padding;
    nbl__graph_bind(b->g, "ids", b->ids);
    nbl__graph_bind(b->g, "w", weight(b, EMBEDDING, d->vocabulary, d->hidden));
    return nbl__graph_end(b->g);
}

/* After the final norm: the hidden states (HIDDEN), the loss (TRAIN), or logits, of all tokens
 * or of each sequence's last (PREFILL), or their argmax (b->picks). */
static void finish(nbl__build *b, nbl__value x)
{
    const nbl__decoder *d = b->d;
    nbl__adapter adapter;
    names head = module(b, "", "", d->tied ? "model.embed_tokens" : "lm_head");
    if (b->mode == NBL_MODE_HIDDEN) {
        /* Check the head's weight although another graph multiplies with it: the model needs it. */
        if (!d->tied) tensor(b, "lm_head.weight", 2, d->vocabulary, d->hidden);
        b->hidden = x;
        if (x) nbl__info(b->g, x)->kind = NBL_KIND_RESULT;
        return;
    }
    if (b->mode == NBL_MODE_TRAIN) {
        if (b->source->adapter(b->source->user, "lm_head", &adapter))
            fail(b, nbl__fail(b->g->ctx, NBL_ERROR_UNSUPPORTED, "an adapter of lm_head cannot be trained"));
        nbl__cross_entropy *a = nbl__graph_begin(b->g, "cross_entropy", "loss");
        if (a == NULL) return;
        char name[256];
        snprintf(name, sizeof name, "%s.weight", head.module);
        a->dtype = b->dtype;
        a->softcap = d->final_cap;
        nbl__graph_bind(b->g, "x", x);
        nbl__value w = weight(b, name, d->vocabulary, d->hidden);
        a->grad_in_forward = b->train && w && !nbl__info(b->g, w)->trained; /* the plan may clear it */
        nbl__graph_bind(b->g, "w", w);
        nbl__graph_bind(b->g, "labels", b->labels);
        nbl__graph_bind(b->g, "denominator", b->denominator);
        b->loss = nbl__graph_end(b->g);
        if (b->loss) nbl__info(b->g, b->loss)->kind = NBL_KIND_RESULT;
        return;
    }
    /* Only the last token of each sequence needs logits. */
    if (b->mode == NBL_MODE_PREFILL) {
        nbl__graph_begin(b->g, "take_rows", "last");
        nbl__graph_bind(b->g, "x", x);
        nbl__graph_bind(b->g, "rows", b->last);
        x = nbl__graph_end(b->g);
    }
    if (d->tied && b->source->adapter(b->source->user, "lm_head", &adapter))
        fail(b, nbl__fail(b->g->ctx, NBL_ERROR_UNSUPPORTED,
                          "an adapter of lm_head on a model whose head is its embedding"));
    b->logits = linear(b, x, &head, d->vocabulary, d->hidden, false, 0);
    if (b->logits == 0) return;
    if (!b->picks) {
        nbl__info(b->g, b->logits)->kind = NBL_KIND_RESULT;
        return;
    }
    /* Greedy generation reads one index instead of `vocabulary` logits. */
    nbl__graph_begin(b->g, "argmax", "best");
    nbl__graph_bind(b->g, "x", b->logits);
    b->best = nbl__graph_end(b->g);
    b->non_finite = nbl__graph_output(b->g, "non_finite");
    if (b->best) nbl__info(b->g, b->best)->kind = NBL_KIND_RESULT;
    if (b->non_finite) nbl__info(b->g, b->non_finite)->kind = NBL_KIND_RESULT;
}

nbl_status nbl__decoder_build(nbl__build *b)
{
    b->problems = (nbl__text){.ctx = b->g->ctx};
    if (b->mode == NBL_MODE_HEAD) {
        int64_t shape[] = {b->tokens, b->d->hidden};
        b->hidden = nbl__graph_value(b->g, NBL_KIND_INPUT, "hidden", b->dtype, 2, shape);
        finish(b, b->hidden);
        return nbl__graph_status(b->g);
    }
    /* Inputs, RoPE tables and the embedding, then the layers, then norm and head. */
    make_inputs(b);
    make_table(b, &b->d->rope, &b->cos, &b->sin);
    if (b->d->local_rope.theta > 0) make_table(b, &b->d->local_rope, &b->local_cos, &b->local_sin);
    nbl__value x = embed(b), stream = 0;
    for (int64_t i = 0; i < b->d->layers && b->g->status == NBL_OK; i++) {
        snprintf(b->at, sizeof b->at, "model.layers.%d.", (int)i);
        nbl__graph_set_layer(b->g, (int)i);
        x = layer_of(b, x, &stream, i);
    }
    b->at[0] = '\0';
    nbl__graph_set_layer(b->g, -1);
    finish(b, norm(b, x, &stream, "model.norm", b->d->hidden));
    return nbl__graph_status(b->g);
}
