/* parts_experts.c - the mixture of experts of a layer. See parts.h.
 *
 *     x ─┬─ router ─ choice ─ order ─┐
 *        ├───────────────────────────┴─ expert_mlp ─▶ (+)
 *        └─ shared ─ · σ(shared_gate) ────────────────▲      (if there is a shared expert)
 *
 * Names of the experts' adapters are PEFT's: those of gate_up_proj have ".base_layer" in them if
 * down_proj is adapted too (format/peft/peft.h). */
#include "arch/parts.h"

#include <stdio.h>

enum { NAME_SIZE = 256 };

static const char *full(const nbl__build *b, const char *path, const char *end, char name[NAME_SIZE])
{
    snprintf(name, NAME_SIZE, "%s%s%s", b->at, path, end);
    return name;
}

/* The stack of this name, [experts, out, in] in whatever orientation it is stored. */
static nbl__value stack_of(nbl__build *b, const char *name, int64_t out, int64_t in, bool *transposed)
{
    const nbl__decoder *d = b->d;
    const nbl_weight *w = b->source->weight(b->source->user, name, NBL_WEIGHT_EXPERTS);
    *transposed = w ? nbl__experts_transposed(d, w) : false;
    int64_t shape[3] = {d->experts, *transposed ? in : out, *transposed ? out : in};
    static const float nothing; /* the operator wants a pointer */
    nbl_weight stand_in = {.format = NBL_FORMAT_DENSE, .dtype = NBL_DTYPE_F32, .rank = 3, .data = &nothing};
    bool fits = w && w->rank == 3;
    for (int i = 0; i < 3; i++) {
        stand_in.shape[i] = shape[i];
        fits = fits && w->shape[i] == shape[i];
    }
    if (w == NULL) nbl__text_printf(&b->problems, "; no \"%s\" %s", name, nbl__show_shape(3, shape).text);
    else if (!fits)
        nbl__text_printf(&b->problems, "; \"%s\" is %s instead of %s", name,
                         nbl__show_shape(w->rank, w->shape).text, nbl__show_shape(3, shape).text);
    if (b->source->trained && b->source->trained(b->source->user, name)) {
        nbl__graph_failed(b->g, nbl__fail(b->g->ctx, NBL_ERROR_UNSUPPORTED,
                                          "\"%s\": experts are not trained as a whole", name));
        return 0;
    }
    nbl__value v = nbl__graph_weight(b->g, name, fits ? w : &stand_in);
    if (v) nbl__info(b->g, v)->role = NBL_WEIGHT_EXPERTS;
    return v;
}

/* A bias [experts, out], in the compute dtype. */
static nbl__value bias_of(nbl__build *b, const char *name, int64_t out)
{
    if (nbl__part_tensor(b, name, NBL_WEIGHT_BIAS, 2, b->d->experts, out) == NULL) return 0;
    if (b->source->trained && b->source->trained(b->source->user, name))
        return nbl__part_master(b, name, NBL_WEIGHT_BIAS, 2, b->d->experts, out);
    nbl__value v = nbl__graph_value(b->g, NBL_KIND_PARAMETER, name, b->dtype, 2,
                                    (int64_t[]){b->d->experts, out});
    if (v) nbl__info(b->g, v)->role = NBL_WEIGHT_BIAS;
    return v;
}

/* True if the stack "EXPERTS.NAME" has an adapter. */
static bool adapter_of(nbl__build *b, const char *experts, const char *name, nbl__adapter *adapter)
{
    char path[NAME_SIZE];
    full(b, experts, name, path);
    return b->source->adapter(b->source->user, path, adapter);
}

/* Weight, bias and adapter of "EXPERTS.NAME". stem: of the adapter's names, behind `experts`. */
static nbl__expert_values values_of(nbl__build *b, const char *experts, const char *name, const char *stem,
                                    int64_t out, int64_t in, bool *transposed)
{
    char memory[NAME_SIZE + 16], path[NAME_SIZE];
    nbl__adapter adapter;
    int64_t count = b->d->experts;
    full(b, experts, name, path);
    nbl__expert_values v = {.w = stack_of(b, path, out, in, transposed)};
    if (b->d->experts_bias) {
        snprintf(memory, sizeof memory, "%s_bias", path);
        v.bias = bias_of(b, memory, out);
    }
    if (!adapter_of(b, experts, name, &adapter)) return v;
    v.scale = adapter.scale;
    full(b, experts, stem, path);
    snprintf(memory, sizeof memory, "%s.lora_A.weight", path);
    v.lora_a = nbl__part_master(b, memory, NBL_WEIGHT_LORA_A, 2, count * adapter.rank, in);
    snprintf(memory, sizeof memory, "%s.lora_B.weight", path);
    v.lora_b = nbl__part_master(b, memory, NBL_WEIGHT_LORA_B, 2, out, adapter.rank * count);
    return v;
}

/* The sum of the chosen experts. */
static nbl__value routed(nbl__build *b, nbl__value x, const nbl__expert_modules *names)
{
    const nbl__decoder *d = b->d;
    nbl__adapter unused;
    bool transposed[2]; /* gate_up, down */
    nbl__value logits = nbl__part_linear(b, x, names->router, NBL_WEIGHT_ROUTER, d->experts, d->hidden,
                                         d->router_bias, NBL_DROPOUT_MASK_ROUTER);
    char node[NAME_SIZE];
    nbl__router_options choice = {
        .dtype = b->dtype, .kind = d->router, .top_k = d->top_k, .round = d->router_round};
    nbl__routing to = nbl__build_router(b->g, full(b, names->router, "", node), logits, &choice);
    if (b->expert_offsets && to.offsets) {
        nbl__info(b->g, to.offsets)->kind = NBL_KIND_RESULT;
        b->expert_offsets[b->g->layer] = to.offsets;
    }
    bool nested = adapter_of(b, names->experts, ".down_proj", &unused);
    nbl__expert_values gate_up = values_of(b, names->experts, ".gate_up_proj", nested ? ".base_layer" : "",
                                           2 * d->expert_inner, d->hidden, &transposed[0]);
    nbl__expert_values down = values_of(b, names->experts, ".down_proj", "", d->hidden, d->expert_inner,
                                        &transposed[1]);
    if (transposed[0] != transposed[1])
        nbl__text_printf(&b->problems, "; of \"%s%s\" one stack is packed and the other is not", b->at,
                         names->experts);
    nbl__expert_options how = {.dtype = b->dtype,
                               .act = d->act,
                               .limit = d->act_limit,
                               .alpha = d->act_alpha,
                               .transposed = transposed[0],
                               .interleaved = d->experts_interleaved,
                               .scales_input = d->router == NBL_ROUTER_TOPK_SIGMOID,
                               .keep = b->train};
    return nbl__build_expert_mlp(b->g, full(b, names->experts, "", node), x, &to, &gate_up, &down, &how);
}

nbl__value nbl__part_experts(nbl__build *b, nbl__value x, const nbl__expert_modules *names)
{
    const nbl__decoder *d = b->d;
    nbl__value y = routed(b, x, names);
    if (names->shared == NULL) return y;
    nbl__value shared = nbl__part_gated_mlp_at(b, x, names->shared, d->shared_inner, false);
    if (names->shared_gate) {
        nbl__value gate = nbl__part_linear(b, x, names->shared_gate, NBL_WEIGHT_LINEAR, 1, d->hidden, false,
                                           NBL_DROPOUT_MASK_SHARED_GATE);
        shared = nbl__build_sigmoid_gate(b->g, names->shared, shared, gate, b->dtype);
    }
    return nbl__build_add(b->g, names->experts, y, shared, b->dtype);
}
