/* gated_delta.c - the families gated_delta and gated_delta_step: checks, outputs, slots.
 * gated_delta.h has the formulas. */
#include "ops/recurrent/gated_delta.h"

#include "ops/common/sequences.h"
#include "ops/families.h"

/* The tensors that both families have. */
typedef struct operands {
    const nbl_tensor *q, *k, *v, *a, *b, *a_log, *dt_bias;
} operands;

static nbl_status check_operands(nbl_context *ctx, const char *op, nbl_dtype dtype, const operands *x)
{
    NBL_TRY(nbl__check_compute(ctx, op, dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "q", x->q, dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "k", x->k, dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "v", x->v, dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "a", x->a, dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "b", x->b, dtype));
    NBL_TRY(nbl__check_float(ctx, op, "a_log", x->a_log));
    NBL_TRY(nbl__check_float(ctx, op, "dt_bias", x->dt_bias));
    NBL_CHECK(ctx, x->q->rank == 3 && x->v->rank == 3, NBL_ERROR_SHAPE,
              "%s: q is %s and v %s, not [tokens, heads, size]", op,
              nbl__show_shape(x->q->rank, x->q->shape).text, nbl__show_shape(x->v->rank, x->v->shape).text);
    NBL_TRY(nbl__check_dims(ctx, op, "k", x->k, 3, x->q->shape));
    int64_t keys = x->q->shape[1], values = x->v->shape[1];
    NBL_CHECK(ctx,
              keys >= 1 && values >= 1 && values % keys == 0 && x->q->shape[2] >= 1 && x->v->shape[2] >= 1,
              NBL_ERROR_SHAPE, "%s: %" PRId64 " heads of v %s are not a multiple of the %" PRId64 " of q %s",
              op, values, nbl__show_shape(3, x->v->shape).text, keys, nbl__show_shape(3, x->q->shape).text);
    const int64_t gates[2] = {x->q->shape[0], values};
    NBL_CHECK(ctx, x->v->shape[0] == x->q->shape[0], NBL_ERROR_SHAPE, "%s: v is %s, q has %" PRId64 " rows",
              op, nbl__show_shape(3, x->v->shape).text, x->q->shape[0]);
    NBL_TRY(nbl__check_dims(ctx, op, "a", x->a, 2, gates));
    NBL_TRY(nbl__check_dims(ctx, op, "b", x->b, 2, gates));
    NBL_TRY(nbl__check_dims(ctx, op, "a_log", x->a_log, 1, &values));
    return nbl__check_dims(ctx, op, "dt_bias", x->dt_bias, 1, &values);
}

/* [sequences, Hv, dk, dv] */
static void state_shape(const nbl_tensor *q, const nbl_tensor *v, int64_t sequences, int64_t shape[4])
{
    shape[0] = sequences;
    shape[1] = v->shape[1];
    shape[2] = q->shape[2];
    shape[3] = v->shape[2];
}

static void output_state(nbl_tensor *out, const nbl_tensor *q, const nbl_tensor *v, int64_t sequences)
{
    out->dtype = NBL_DTYPE_F32;
    out->rank = 4;
    state_shape(q, v, sequences, out->shape);
}

/* ---- gated_delta ---- */

static nbl_status check_rule(nbl_context *ctx, const char *op, const nbl__gated_delta *a)
{
    operands x = {&a->q, &a->k, &a->v, &a->a, &a->b, &a->a_log, &a->dt_bias};
    NBL_TRY(check_operands(ctx, op, a->dtype, &x));
    NBL_TRY(nbl__check_cu_seqlens(ctx, op, &a->cu_seqlens));
    if (!nbl__has_data(&a->state)) return NBL_OK;
    int64_t sequences = nbl__sequence_count(&a->cu_seqlens), shape[4];
    NBL_TRY(nbl__check_dtype(ctx, op, "state", &a->state, NBL_DTYPE_F32));
    state_shape(&a->q, &a->v, a->state.rank == 4 ? nbl__max_i64(sequences, a->state.shape[0]) : sequences,
                shape);
    return nbl__check_dims(ctx, op, "state", &a->state, 4, shape);
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__gated_delta *a = arguments;
    NBL_TRY(check_rule(ctx, "gated_delta", a));
    nbl__output_like(&a->o, &a->v, a->v.shape[2], a->dtype);
    nbl__output_none(&a->last);
    if (a->keep) output_state(&a->last, &a->q, &a->v, nbl__sequence_count(&a->cu_seqlens));
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__gated_delta *a = arguments;
    const char *op = "gated_delta_backward";
    NBL_TRY(check_rule(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "do", &a->d_o, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "do", &a->d_o, 3, a->v.shape));
    nbl__output_like(&a->dq, &a->q, a->q.shape[2], a->dtype);
    nbl__output_like(&a->dk, &a->k, a->k.shape[2], a->dtype);
    nbl__output_like(&a->dv, &a->v, a->v.shape[2], a->dtype);
    nbl__output_like(&a->da, &a->a, a->a.shape[1], a->dtype);
    nbl__output_like(&a->db, &a->b, a->b.shape[1], a->dtype);
    nbl__output_vector(&a->da_log, NBL_DTYPE_F32, 1, a->v.shape[1], 0);
    nbl__output_vector(&a->ddt_bias, NBL_DTYPE_F32, 1, a->v.shape[1], 0);
    return NBL_OK;
}

/* In chunks of C = 64 with sizes d: forward 2.5·C·d + 3·d² multiply-adds per token and head, backward
 * those of forward's states again and twice as many for the gradients. */
static double rule_flops(const void *arguments, bool backward)
{
    const nbl__gated_delta *a = arguments;
    double dk = (double)a->q.shape[2], dv = (double)a->v.shape[2];
    double forward = 2 * (64 * (dk + 1.5 * dv) + 3 * dk * dv);
    return (double)(a->v.shape[0] * a->v.shape[1]) * (backward ? 3.5 * forward : forward);
}

static const nbl__slot rule_slots[] = {
    /* backward computes everything else again */
    NBL_SLOT_SAVED_ROWS(nbl__gated_delta, q, "q", INPUT, 3),
    NBL_SLOT_SAVED_ROWS(nbl__gated_delta, k, "k", INPUT, 3),
    NBL_SLOT_SAVED_ROWS(nbl__gated_delta, v, "v", INPUT, 3),
    NBL_SLOT_SAVED_ROWS(nbl__gated_delta, a, "a", INPUT, 2),
    NBL_SLOT_SAVED_ROWS(nbl__gated_delta, b, "b", INPUT, 2),
    NBL_SLOT_SAVED(nbl__gated_delta, a_log, "a_log", INPUT),
    NBL_SLOT_SAVED(nbl__gated_delta, dt_bias, "dt_bias", INPUT),
    NBL_SLOT_SAVED(nbl__gated_delta, cu_seqlens, "cu_seqlens", INPUT),
    NBL_SLOT(nbl__gated_delta, state, "state", OPTIONAL, NULL),
    NBL_SLOT_ROWS(nbl__gated_delta, o, "o", OUTPUT, NULL, 3),
    NBL_SLOT(nbl__gated_delta, last, "last", OUTPUT, NULL),
    NBL_SLOT_ROWS(nbl__gated_delta, d_o, "do", COTANGENT, "o", 3),
    NBL_SLOT_ROWS(nbl__gated_delta, dq, "dq", GRADIENT, "q", 3),
    NBL_SLOT_ROWS(nbl__gated_delta, dk, "dk", GRADIENT, "k", 3),
    NBL_SLOT_ROWS(nbl__gated_delta, dv, "dv", GRADIENT, "v", 3),
    NBL_SLOT_ROWS(nbl__gated_delta, da, "da", GRADIENT, "a", 2),
    NBL_SLOT_ROWS(nbl__gated_delta, db, "db", GRADIENT, "b", 2),
    NBL_SLOT(nbl__gated_delta, da_log, "da_log", GRADIENT, "a_log"),
    NBL_SLOT(nbl__gated_delta, ddt_bias, "ddt_bias", GRADIENT, "dt_bias"),
    {0},
};
static const nbl__attr rule_attrs[] = {
    NBL_ATTR(nbl__gated_delta, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__gated_delta, keep, "keep_state", FLAG, 0),
    NBL_ATTR(nbl__gated_delta, accumulate, "accumulate", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) NBL_X86(X(gated_delta_avx512)) NBL_X86(X(gated_delta_avx2)) X(gated_delta_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X)                                                                                     \
    NBL_X86(X(gated_delta_backward_avx512))                                                                  \
    NBL_X86(X(gated_delta_backward_avx2))                                                                    \
    X(gated_delta_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__gated_delta_family = {
    "gated_delta",
    sizeof(nbl__gated_delta),
    rule_slots,
    rule_attrs,
    {"gated_delta", infer_forward, forward_impls},
    {"gated_delta_backward", infer_backward, backward_impls},
    {.flops = rule_flops},
};

/* ---- gated_delta_step ---- */

static nbl_status infer_step(nbl_context *ctx, void *arguments)
{
    nbl__gated_delta_step *a = arguments;
    const char *op = "gated_delta_step";
    operands x = {&a->q, &a->k, &a->v, &a->a, &a->b, &a->a_log, &a->dt_bias};
    int64_t shape[4];
    NBL_TRY(check_operands(ctx, op, a->dtype, &x));
    NBL_TRY(nbl__check_dtype(ctx, op, "state", &a->state, NBL_DTYPE_F32));
    state_shape(&a->q, &a->v, a->q.shape[0], shape);
    NBL_TRY(nbl__check_dims(ctx, op, "state", &a->state, 4, shape));
    nbl__output_like(&a->o, &a->v, a->v.shape[2], a->dtype);
    nbl__output_none(&a->next);
    if (!a->in_place) output_state(&a->next, &a->q, &a->v, a->q.shape[0]);
    return NBL_OK;
}

/* Decay, two products with the state, and its update. */
static double step_flops(const void *arguments, bool backward)
{
    const nbl__gated_delta_step *a = arguments;
    (void)backward;
    return 7 * (double)nbl__tensor_elements(&a->state);
}

static const nbl__slot step_slots[] = {
    NBL_SLOT_ROWS(nbl__gated_delta_step, q, "q", INPUT, NULL, 3),
    NBL_SLOT_ROWS(nbl__gated_delta_step, k, "k", INPUT, NULL, 3),
    NBL_SLOT_ROWS(nbl__gated_delta_step, v, "v", INPUT, NULL, 3),
    NBL_SLOT_ROWS(nbl__gated_delta_step, a, "a", INPUT, NULL, 2),
    NBL_SLOT_ROWS(nbl__gated_delta_step, b, "b", INPUT, NULL, 2),
    NBL_SLOT(nbl__gated_delta_step, a_log, "a_log", INPUT, NULL),
    NBL_SLOT(nbl__gated_delta_step, dt_bias, "dt_bias", INPUT, NULL),
    NBL_SLOT(nbl__gated_delta_step, state, "state", INPUT, NULL),
    NBL_SLOT_ROWS(nbl__gated_delta_step, o, "o", OUTPUT, NULL, 3),
    NBL_SLOT(nbl__gated_delta_step, next, "next", OUTPUT, NULL),
    {0},
};
static const nbl__attr step_attrs[] = {
    NBL_ATTR(nbl__gated_delta_step, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__gated_delta_step, in_place, "in_place", FLAG, 0),
    {0},
};
#define STEP_ROWS(X)                                                                                         \
    NBL_X86(X(gated_delta_step_avx512)) NBL_X86(X(gated_delta_step_avx2)) X(gated_delta_step_ref)
NBL_IMPLS(step_impls, STEP_ROWS);
const nbl__family nbl__gated_delta_step_family = {
    "gated_delta_step",
    sizeof(nbl__gated_delta_step),
    step_slots,
    step_attrs,
    {"gated_delta_step", infer_step, step_impls},
    {0},
    {.flops = step_flops},
};
