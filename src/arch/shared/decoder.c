/* decoder.c - builds a decoder's graph around the layers of its architecture: inputs, RoPE tables,
 * embedding, final norm and head. See arch.h. */
#include <stdio.h>

#include "arch/parts.h"

static const char EMBEDDING[] = NBL_WEIGHT_OF(NBL_MODULE_EMBEDDING), HEAD[] = NBL_WEIGHT_OF(NBL_MODULE_HEAD);

static nbl__value input(nbl__build *b, const char *name, nbl_dtype dtype, int64_t n)
{
    return nbl__graph_value(b->g, NBL_KIND_INPUT, name, dtype, 1, &n);
}

/* One value per layer, 0 so far. */
static nbl__value *per_layer(nbl__build *b)
{
    nbl__value *values = nbl__arena_alloc(&b->g->arena, (size_t)b->d->layers * sizeof *values);
    if (values == NULL) nbl__graph_failed(b->g, NBL_ERROR_MEMORY);
    return values;
}

/* What generation keeps of each layer: keys and values of attention, or the states of the gated delta
 * rule. Written in PREFILL and DECODE. */
static void make_states(nbl__build *b)
{
    const nbl__decoder *d = b->d;
    int64_t cache[] = {b->sequences, b->cache_size, d->kv_heads, d->head_dim};
    int64_t channels = 2 * d->delta.key_heads * d->delta.key_dim + d->delta.value_heads * d->delta.value_dim;
    int64_t rows[] = {b->sequences, d->delta.taps - 1, channels};
    int64_t state[] = {b->sequences, d->delta.value_heads, d->delta.key_dim, d->delta.value_dim};
    b->k_cache = per_layer(b);
    b->v_cache = per_layer(b);
    b->conv_state = per_layer(b);
    b->delta_state = per_layer(b);
    for (int64_t i = 0; i < d->layers && b->g->status == NBL_OK; i++) {
        if (d->recurrent[i]) {
            b->conv_state[i] = nbl__graph_value(b->g, NBL_KIND_STATE, "conv", b->dtype, 3, rows);
            b->delta_state[i] = nbl__graph_value(b->g, NBL_KIND_STATE, "delta", NBL_DTYPE_F32, 4, state);
        } else {
            b->k_cache[i] = nbl__graph_value(b->g, NBL_KIND_STATE, "keys", b->kv_dtype, 4, cache);
            b->v_cache[i] = nbl__graph_value(b->g, NBL_KIND_STATE, "values", b->kv_dtype, 4, cache);
        }
    }
}

/* Creates the inputs and states that b->mode needs. */
static void make_inputs(nbl__build *b)
{
    bool cached = b->mode == NBL_MODE_PREFILL || b->mode == NBL_MODE_DECODE;
    b->ids = input(b, "ids", NBL_DTYPE_I32, b->tokens);
    b->positions = input(b, "positions", NBL_DTYPE_I32, b->tokens);
    if (b->mode != NBL_MODE_DECODE) b->cu_seqlens = input(b, "cu_seqlens", NBL_DTYPE_I32, b->sequences + 1);
    if (b->mode == NBL_MODE_TRAIN) {
        b->labels = input(b, "labels", NBL_DTYPE_I32, b->tokens);
        b->dloss = input(b, "dloss", NBL_DTYPE_F32, 1);
        b->denominator = input(b, "denominator", NBL_DTYPE_F32, 1);
        if (b->d->experts) b->expert_offsets = per_layer(b);
    }
    if (b->mode == NBL_MODE_PREFILL) b->last = input(b, "last", NBL_DTYPE_I32, b->sequences);
    if (b->mode == NBL_MODE_DECODE) b->lengths = input(b, "lengths", NBL_DTYPE_I32, b->sequences);
    if (!cached) return;
    b->rows = input(b, "rows", NBL_DTYPE_I32, b->tokens);
    make_states(b);
}

/* cos and sin of the run's positions, computed once for all layers. theta 0: the model has no such
 * rope. */
static nbl__rope_values make_table(nbl__build *b, const nbl__rope *rope)
{
    nbl__rope resolved = *rope;
    if (!(rope->theta > 0)) return (nbl__rope_values){0};
    resolved.rotary_dim = nbl__rope_dim(rope, b->d->head_dim);
    return nbl__build_rope_table(b->g, "rope", b->positions, b->cu_seqlens, &resolved);
}

bool nbl__decoder_restarts(const nbl__decoder *d, int64_t length)
{
    const nbl__rope *ropes[] = {&d->rope, &d->local_rope};
    for (int i = 0; i < 2; i++)
        if (nbl__rope_length_class(ropes[i], length) != nbl__rope_length_class(ropes[i], length + 1))
            return true;
    return false;
}

static nbl__value embed(nbl__build *b)
{
    const nbl__decoder *d = b->d;
    nbl__value w = nbl__part_weight(b, EMBEDDING, NBL_WEIGHT_EMBEDDING, d->vocabulary, d->hidden);
    return nbl__build_embedding(b->g, NBL_MODULE_EMBEDDING, b->ids, w, d->embedding_scale, d->padding,
                                b->dtype);
}

static void set_result(nbl__build *b, nbl__value v)
{
    if (v) nbl__info(b->g, v)->kind = NBL_KIND_RESULT;
}

/* Fails if there is an adapter of the head. `where`: the end of the message. */
static void refuse_head_adapter(nbl__build *b, const char *where)
{
    nbl__adapter adapter;
    if (b->source->adapter(b->source->user, NBL_MODULE_HEAD, &adapter))
        nbl__graph_failed(
            b->g, nbl__fail(b->g->ctx, NBL_ERROR_UNSUPPORTED, "an adapter of %s %s", NBL_MODULE_HEAD, where));
}

/* TRAIN: head and loss are one operator. */
static nbl__value loss_of(nbl__build *b, nbl__value x)
{
    const nbl__decoder *d = b->d;
    refuse_head_adapter(b, "cannot be trained");
    nbl__value w = nbl__part_weight(b, d->tied ? EMBEDDING : HEAD,
                                    d->tied ? NBL_WEIGHT_EMBEDDING : NBL_WEIGHT_HEAD, d->vocabulary,
                                    d->hidden);
    /* the plan may clear it */
    bool grad_in_forward = b->train && w && !nbl__info(b->g, w)->trained;
    return nbl__build_cross_entropy(b->g, "loss", x, w, b->labels, b->denominator, d->final_cap,
                                    grad_in_forward, b->dtype);
}

/* The logits of all tokens, or of each sequence's last (PREFILL). */
static nbl__value logits_of(nbl__build *b, nbl__value x)
{
    const nbl__decoder *d = b->d;
    if (b->mode == NBL_MODE_PREFILL) x = nbl__build_take_rows(b->g, "last", x, b->last);
    if (d->tied) refuse_head_adapter(b, "on a model whose head is its embedding");
    return nbl__part_linear(b, x, d->tied ? NBL_MODULE_EMBEDDING : NBL_MODULE_HEAD,
                            d->tied ? NBL_WEIGHT_EMBEDDING : NBL_WEIGHT_HEAD, d->vocabulary, d->hidden, false,
                            NBL_DROPOUT_MASK_QKV);
}

/* After the final norm: the hidden states (HIDDEN), the loss (TRAIN), or logits, or their argmax
 * (b->argmax). */
static void finish(nbl__build *b, nbl__value x)
{
    const nbl__decoder *d = b->d;
    if (b->mode == NBL_MODE_HIDDEN) {
        /* Check the head's weight although another graph multiplies with it: the model needs it. */
        if (!d->tied) nbl__part_tensor(b, HEAD, NBL_WEIGHT_HEAD, 2, d->vocabulary, d->hidden);
        b->hidden = x;
        set_result(b, x);
        return;
    }
    if (b->mode == NBL_MODE_TRAIN) {
        b->loss = loss_of(b, x);
        set_result(b, b->loss);
        return;
    }
    b->logits = logits_of(b, x);
    if (b->logits == 0) return;
    if (!b->argmax) {
        set_result(b, b->logits);
        return;
    }
    /* Greedy generation reads one index instead of `vocabulary` logits. */
    b->best = nbl__build_argmax(b->g, "best", b->logits, &b->non_finite);
    set_result(b, b->best);
    set_result(b, b->non_finite);
}

nbl_status nbl__decoder_build(nbl__build *b)
{
    const nbl__decoder *d = b->d;
    b->problems = (nbl__text){.ctx = b->g->ctx};
    if (b->mode == NBL_MODE_HEAD) {
        int64_t shape[] = {b->tokens, d->hidden};
        b->hidden = nbl__graph_value(b->g, NBL_KIND_INPUT, "hidden", b->dtype, 2, shape);
        finish(b, b->hidden);
        return nbl__graph_status(b->g);
    }
    /* Inputs, RoPE tables and the embedding, then the layers, then norm and head. */
    make_inputs(b);
    b->rope = make_table(b, &d->rope);
    b->local_rope = make_table(b, &d->local_rope);
    b->query_rope = make_table(b, &d->query_rope);
    nbl__residual h = {.addend = embed(b)};
    for (int64_t i = 0; i < d->layers && b->g->status == NBL_OK; i++) {
        snprintf(b->at, sizeof b->at, NBL_MODULE_LAYERS "%d.", (int)i);
        nbl__graph_set_layer(b->g, (int)i);
        nbl__graph_set_scope(b->g, b->at);
        h.norms = 0;
        d->arch->layer(b, &h, i);
    }
    b->at[0] = '\0';
    nbl__graph_set_layer(b->g, -1);
    nbl__graph_set_scope(b->g, NULL);
    finish(b, nbl__part_last_norm(b, &h, NBL_MODULE_NORM));
    return nbl__graph_status(b->g);
}
