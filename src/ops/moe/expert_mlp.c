/* expert_mlp.c - the family expert_mlp: checks, outputs, slots, attributes, cost. expert_mlp.h has the formulas. */
#include "ops/moe/expert_mlp.h"

#include <math.h>
#include <stdio.h>

#include "ops/elementwise/elementwise.h"
#include "ops/families.h"
#include "ops/moe/cpu/expert_mlp_cpu.h"

nbl__expert_sizes nbl__expert_sizes_of(const nbl__expert_mlp *a)
{
    int64_t tokens = nbl__tensor_rows(&a->x), top_k = nbl__last(&a->weights), experts = a->gate_up.w.shape[0];
    return (nbl__expert_sizes){
        .tokens = tokens,
        .top_k = top_k,
        .pairs = tokens * top_k,
        .experts = experts,
        .in = nbl__expert_in(a, &a->gate_up),
        .inner = nbl__expert_in(a, &a->down),
        .out = nbl__expert_out(a, &a->down),
        .rank = nbl__has_data(&a->gate_up.lora_a) ? a->gate_up.lora_a.shape[0] / experts : 0,
        .down_rank = nbl__has_data(&a->down.lora_a) ? a->down.lora_a.shape[0] / experts : 0,
    };
}

/* ---- checks ---- */

/* The adapter of a layer: A [E·r, in] and B [out, r·E]. */
static nbl_status check_adapter(nbl_context *ctx, const char *op, const char *part,
                                const nbl__expert_linear *l, int64_t experts, int64_t out, int64_t in)
{
    char name_a[32], name_b[32];
    snprintf(name_a, sizeof name_a, "%s.lora_a", part);
    snprintf(name_b, sizeof name_b, "%s.lora_b", part);
    bool has_a = nbl__has_data(&l->lora_a), has_b = nbl__has_data(&l->lora_b);
    NBL_CHECK(ctx, has_a == has_b, NBL_ERROR_ARGUMENT, "%s: %s without %s", op, has_a ? name_a : name_b,
              has_a ? name_b : name_a);
    NBL_CHECK(ctx, isfinite(l->scale), NBL_ERROR_ARGUMENT, "%s: the scale of %s is not finite", op, part);
    if (!has_a) return NBL_OK;
    NBL_TRY(nbl__check_float(ctx, op, name_a, &l->lora_a));
    NBL_TRY(nbl__check_float(ctx, op, name_b, &l->lora_b));
    int64_t rows = l->lora_a.rank == 2 ? l->lora_a.shape[0] : -1;
    NBL_CHECK(ctx, rows > 0 && rows % experts == 0, NBL_ERROR_SHAPE,
              "%s: %s is %s; its rows must be a multiple of the %" PRId64 " experts", op, name_a,
              nbl__show_shape(l->lora_a.rank, l->lora_a.shape).text, experts);
    NBL_TRY(nbl__check_dims(ctx, op, name_a, &l->lora_a, 2, (int64_t[]){rows, in}));
    return nbl__check_dims(ctx, op, name_b, &l->lora_b, 2, (int64_t[]){out, rows});
}

/* A layer: its stack, its bias and its adapter. */
static nbl_status check_layer(nbl_context *ctx, const char *op, const char *part, const nbl__expert_mlp *a,
                              const nbl__expert_linear *l)
{
    char name[32];
    NBL_TRY(nbl__check_stack(ctx, op, part, &l->w));
    int64_t pieces = nbl__stack_pieces(&l->w), allowed = l == &a->gate_up && !a->interleaved ? 2 : 1;
    NBL_CHECK(ctx, pieces <= allowed, NBL_ERROR_UNSUPPORTED,
              "%s: %s has %" PRId64 " members per expert; at most %" PRId64 " are allowed%s", op, part,
              pieces, allowed, a->interleaved ? " where gates and ups alternate" : "");
    int64_t out = nbl__expert_out(a, l), in = nbl__expert_in(a, l), experts = l->w.shape[0];
    NBL_CHECK(ctx, experts >= 1 && experts < INT32_MAX, NBL_ERROR_SHAPE, "%s: %s is %s: no experts", op, part,
              nbl__show_shape(3, l->w.shape).text);
    NBL_CHECK(ctx, !a->transposed || (l->w.format == NBL_FORMAT_DENSE && !l->w.members),
              NBL_ERROR_UNSUPPORTED, "%s: %s is %s%s: only dense stacks in one piece may be transposed", op,
              part, nbl_format_name(l->w.format), l->w.members ? " in members" : "");
    NBL_CHECK(ctx, !a->train_w || !l->w.members, NBL_ERROR_UNSUPPORTED,
              "%s: %s is a stack of %" PRId64 " members: experts can be trained as a whole in one piece only",
              op, part, l->w.member_count);
    if (nbl__has_data(&l->bias)) {
        snprintf(name, sizeof name, "%s.b", part);
        NBL_TRY(nbl__check_dims(ctx, op, name, &l->bias, 2, (int64_t[]){experts, out}));
        NBL_CHECK(ctx, l->bias.dtype == a->dtype || l->bias.dtype == NBL_DTYPE_F32, NBL_ERROR_DTYPE,
                  "%s: %s is %s, %s or f32 was expected", op, name, nbl__any_dtype_name(l->bias.dtype),
                  nbl_dtype_name(a->dtype));
    }
    return check_adapter(ctx, op, part, l, experts, out, in);
}

/* Offsets, pairs, rows and weights, as expert_order and router make them. */
static nbl_status check_routing(nbl_context *ctx, const char *op, const nbl__expert_mlp *a, int64_t experts)
{
    int64_t tokens = nbl__tensor_rows(&a->x), top_k = nbl__last(&a->weights);
    NBL_TRY(nbl__check_dtype(ctx, op, "weights", &a->weights, NBL_DTYPE_F32));
    NBL_TRY(nbl__check_matrix(ctx, op, "weights", &a->weights, tokens, top_k));
    NBL_CHECK(ctx, top_k >= 1 && top_k <= experts && tokens <= INT32_MAX / top_k, NBL_ERROR_SHAPE,
              "%s: weights is %s for %" PRId64 " experts", op,
              nbl__show_shape(a->weights.rank, a->weights.shape).text, experts);
    int64_t pairs = tokens * top_k, ends = experts + 1;
    NBL_TRY(nbl__check_dtype(ctx, op, "offsets", &a->offsets, NBL_DTYPE_I32));
    NBL_TRY(nbl__check_dims(ctx, op, "offsets", &a->offsets, 1, &ends));
    NBL_TRY(nbl__check_dtype(ctx, op, "pairs", &a->pairs, NBL_DTYPE_I32));
    NBL_TRY(nbl__check_dims(ctx, op, "pairs", &a->pairs, 1, &pairs));
    NBL_TRY(nbl__check_dtype(ctx, op, "rows", &a->rows, NBL_DTYPE_I32));
    return nbl__check_dims(ctx, op, "rows", &a->rows, 1, &pairs);
}

static nbl_status check(nbl_context *ctx, const char *op, const nbl__expert_mlp *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_CHECK(ctx, a->limit >= 0 && isfinite(a->limit) && isfinite(a->alpha), NBL_ERROR_ARGUMENT,
              "%s: limit %g, alpha %g", op, (double)a->limit, (double)a->alpha);
    NBL_CHECK(ctx, a->limit == 0 || a->act == NBL_ACT_SILU, NBL_ERROR_ARGUMENT,
              "%s: a limit with the activation %s; only silu has one", op, nbl__act_words[a->act]);
    NBL_TRY(check_layer(ctx, op, "gate_up", a, &a->gate_up));
    NBL_TRY(check_layer(ctx, op, "down", a, &a->down));
    const nbl_weight *first = &a->gate_up.w, *second = &a->down.w;
    bool fits = second->shape[0] == first->shape[0] &&
                nbl__expert_out(a, &a->gate_up) == 2 * nbl__expert_in(a, &a->down);
    NBL_CHECK(
        ctx, fits, NBL_ERROR_SHAPE,
        "%s: gate_up %s and down %s do not fit: as many experts, and twice as many outputs as inputs, were "
        "expected",
        op, nbl__show_shape(3, first->shape).text, nbl__show_shape(3, second->shape).text);
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_CHECK(ctx, a->x.rank >= 1 && nbl__last(&a->x) == nbl__expert_in(a, &a->gate_up), NBL_ERROR_SHAPE,
              "%s: x is %s, and gate_up %s%s", op, nbl__show_shape(a->x.rank, a->x.shape).text,
              nbl__show_shape(3, first->shape).text, a->transposed ? ", transposed" : "");
    return check_routing(ctx, op, a, first->shape[0]);
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__expert_mlp *a = arguments;
    NBL_TRY(check(ctx, "expert_mlp", a));
    nbl__output_like(&a->y, &a->x, nbl__expert_out(a, &a->down), a->dtype);
    if (a->keep)
        nbl__output_vector(&a->gate_up_out, NBL_DTYPE_F32, 2, a->pairs.shape[0],
                           nbl__expert_out(a, &a->gate_up));
    else nbl__output_none(&a->gate_up_out);
    return NBL_OK;
}

/* Gradients of a layer's parameters: of those that are given. */
static void gradients_of(const nbl__expert_mlp *a, nbl__expert_linear *l)
{
    nbl__output_none(&l->dbias);
    nbl__output_none(&l->dlora_a);
    nbl__output_none(&l->dlora_b);
    nbl__output_none(&l->dw);
    if (nbl__has_data(&l->bias))
        nbl__output_vector(&l->dbias, NBL_DTYPE_F32, 2, l->bias.shape[0], l->bias.shape[1]);
    if (nbl__has_data(&l->lora_a)) {
        nbl__output_vector(&l->dlora_a, NBL_DTYPE_F32, 2, l->lora_a.shape[0], l->lora_a.shape[1]);
        nbl__output_vector(&l->dlora_b, NBL_DTYPE_F32, 2, l->lora_b.shape[0], l->lora_b.shape[1]);
    }
    if (!a->train_w) return;
    l->dw = (nbl_tensor){.dtype = NBL_DTYPE_F32, .rank = 3, .data = l->dw.data};
    memcpy(l->dw.shape, l->w.shape, 3 * sizeof *l->dw.shape);
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    const char *op = "expert_mlp_backward";
    nbl__expert_mlp *a = arguments;
    NBL_TRY(check(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_matrix(ctx, op, "dy", &a->dy, nbl__tensor_rows(&a->x), nbl__expert_out(a, &a->down)));
    if (a->keep) {
        NBL_TRY(nbl__check_dtype(ctx, op, "gate_up_out", &a->gate_up_out, NBL_DTYPE_F32));
        NBL_TRY(nbl__check_matrix(ctx, op, "gate_up_out", &a->gate_up_out, a->pairs.shape[0],
                                  nbl__expert_out(a, &a->gate_up)));
    }
    nbl__output_like(&a->dx, &a->x, nbl__last(&a->x), a->dtype);
    nbl__output_like(&a->dweights, &a->weights, nbl__last(&a->weights), NBL_DTYPE_F32);
    gradients_of(a, &a->gate_up);
    gradients_of(a, &a->down);
    return NBL_OK;
}

/* ---- cost ---- */

/* A pass through one layer by `rows` rows, without and with its adapter: 2·rows·(in·out + r·(in + out)). */
static double layer_flops(double rows, double in, double out, double rank)
{
    return 2 * rows * (in * out + rank * (in + out));
}

/* Forward: both layers. Backward: dx of both, again the products of rank r twice for A and B, gate_up again without
 * keep, and with train_w the gradients of the stacks. Formulas of linear.h, per sorted row. */
static double flops(const void *arguments, bool backward)
{
    const nbl__expert_mlp *a = arguments;
    nbl__expert_sizes z = nbl__expert_sizes_of(a);
    double rows = (double)z.pairs, in = (double)z.in, inner = (double)z.inner, out = (double)z.out;
    double open = layer_flops(rows, in, 2 * inner, (double)z.rank);
    double close = layer_flops(rows, inner, out, (double)z.down_rank);
    double between = 5 * rows * inner;
    if (!backward) return open + between + close + 2 * rows * out;
    double small = 2 * rows * ((double)z.rank * (in + 2 * inner) + (double)z.down_rank * (inner + out));
    double whole = a->train_w ? 2 * rows * inner * (2 * in + out) : 0;
    return (a->keep ? 0 : open) + 3 * between + open + close + 2 * small + whole;
}

/* ---- the family ---- */

#define SLOT(part, field, name, role, of) NBL_SLOT(nbl__expert_mlp, part.field, name, role, of)
#define KEPT(part, field, name, role) NBL_SLOT_SAVED(nbl__expert_mlp, part.field, name, role)
#define LAYER(part)                                                                                          \
    KEPT(part, w, #part, WEIGHT), KEPT(part, bias, #part ".b", OPTIONAL),                                    \
        KEPT(part, lora_a, #part ".lora_a", OPTIONAL), KEPT(part, lora_b, #part ".lora_b", OPTIONAL),        \
        SLOT(part, dbias, "d" #part ".b", GRADIENT, #part ".b"),                                             \
        SLOT(part, dlora_a, "d" #part ".lora_a", GRADIENT, #part ".lora_a"),                                 \
        SLOT(part, dlora_b, "d" #part ".lora_b", GRADIENT, #part ".lora_b"),                                 \
        SLOT(part, dw, "d" #part, GRADIENT, #part)

static const nbl__slot slots[] = {
    NBL_SLOT_SAVED(nbl__expert_mlp, x, "x", INPUT),
    NBL_SLOT_SAVED(nbl__expert_mlp, offsets, "offsets", INPUT),
    NBL_SLOT_SAVED(nbl__expert_mlp, pairs, "pairs", INPUT),
    NBL_SLOT_SAVED(nbl__expert_mlp, rows, "rows", INPUT),
    NBL_SLOT_SAVED(nbl__expert_mlp, weights, "weights", INPUT),
    LAYER(gate_up),
    LAYER(down),
    NBL_SLOT(nbl__expert_mlp, y, "y", OUTPUT, NULL),
    NBL_SAVED_WHEN(nbl__expert_mlp, gate_up_out, "gate_up_out", "keep"),
    NBL_SLOT(nbl__expert_mlp, dy, "dy", COTANGENT, "y"),
    NBL_SLOT(nbl__expert_mlp, dx, "dx", GRADIENT, "x"),
    NBL_SLOT(nbl__expert_mlp, dweights, "dweights", GRADIENT, "weights"),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__expert_mlp, dtype, "dtype", DTYPE, 0),
    NBL_ATTR_OF_WORDS(nbl__expert_mlp, act, "act", nbl__act_words),
    NBL_ATTR(nbl__expert_mlp, limit, "limit", FLOAT, 0),
    NBL_ATTR(nbl__expert_mlp, alpha, "alpha", FLOAT, 1.702),
    NBL_ATTR(nbl__expert_mlp, transposed, "transposed", FLAG, 0),
    NBL_ATTR(nbl__expert_mlp, interleaved, "interleaved", FLAG, 0),
    NBL_ATTR(nbl__expert_mlp, scales_input, "scales_input", FLAG, 0),
    NBL_ATTR(nbl__expert_mlp, gate_up.scale, "scale", FLOAT, 1),
    NBL_ATTR(nbl__expert_mlp, down.scale, "down.scale", FLOAT, 0),
    NBL_ATTR(nbl__expert_mlp, train_w, "train_w", FLAG, 0),
    NBL_ATTR(nbl__expert_mlp, accumulate, "accumulate", FLAG, 0),
    NBL_ATTR(nbl__expert_mlp, keep, "keep", FLAG, 0),
    {0},
};
NBL_EXPERT_ROWS_OF(NBL_LINEAR_ROW_DECLARATION, expert_mlp, forward)
NBL_EXPERT_ROWS_OF(NBL_LINEAR_ROW_DECLARATION, expert_mlp_backward, backward)
extern const nbl__impl nbl__expert_mlp_ref, nbl__expert_mlp_backward_ref;
static const nbl__impl *const forward_impls[] = {
    NBL_EXPERT_ROWS_OF(NBL_LINEAR_ROW_ADDRESS, expert_mlp, forward) & nbl__expert_mlp_ref, NULL};
static const nbl__impl *const backward_impls[] = {
    NBL_EXPERT_ROWS_OF(NBL_LINEAR_ROW_ADDRESS, expert_mlp_backward, backward) & nbl__expert_mlp_backward_ref,
    NULL};
const nbl__family nbl__expert_mlp_family = {
    "expert_mlp",
    sizeof(nbl__expert_mlp),
    slots,
    attrs,
    {"expert_mlp", infer_forward, forward_impls},
    {"expert_mlp_backward", infer_backward, backward_impls},
    {.flops = flops},
};
