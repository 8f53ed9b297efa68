/* sigmoid_gate.c - the family sigmoid_gate: checks, outputs, slots. sigmoid_gate.h has the formulas. */
#include "ops/gate/sigmoid_gate.h"

#include "ops/families.h"

static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__sigmoid_gate *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "gate", &a->gate, a->dtype));
    NBL_CHECK(ctx, a->x.rank == 2, NBL_ERROR_SHAPE, "%s: x is %s, not [tokens, columns]", op,
              nbl__show_shape(a->x.rank, a->x.shape).text);
    const int64_t whole_row[2] = {a->x.shape[0], 1};
    bool one = a->gate.rank == 2 && a->gate.shape[1] == 1;
    return nbl__check_dims(ctx, op, "gate", &a->gate, 2, one ? whole_row : a->x.shape);
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__sigmoid_gate *a = arguments;
    NBL_TRY(check_inputs(ctx, "sigmoid_gate", a));
    nbl__output_like(&a->y, &a->x, a->x.shape[1], a->dtype);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__sigmoid_gate *a = arguments;
    const char *op = "sigmoid_gate_backward";
    NBL_TRY(check_inputs(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "dy", &a->dy, 2, a->x.shape));
    nbl__output_like(&a->dx, &a->x, a->x.shape[1], a->dtype);
    nbl__output_like(&a->dgate, &a->gate, a->gate.shape[1], a->dtype);
    return NBL_OK;
}

static const nbl__slot slots[] = {
    NBL_SLOT_SAVED_ROWS(nbl__sigmoid_gate, x, "x", INPUT, 2),
    NBL_SLOT_SAVED_ROWS(nbl__sigmoid_gate, gate, "gate", INPUT, 2),
    NBL_SLOT_ROWS(nbl__sigmoid_gate, y, "y", OUTPUT, NULL, 2),
    NBL_SLOT_ROWS(nbl__sigmoid_gate, dy, "dy", COTANGENT, "y", 2),
    NBL_SLOT_ROWS(nbl__sigmoid_gate, dx, "dx", GRADIENT, "x", 2),
    NBL_SLOT_ROWS(nbl__sigmoid_gate, dgate, "dgate", GRADIENT, "gate", 2),
    {0},
};
static const nbl__attr attrs[] = {NBL_ATTR(nbl__sigmoid_gate, dtype, "dtype", DTYPE, 0), {0}};
#define FORWARD_ROWS(X) NBL_X86(X(sigmoid_gate_avx512)) NBL_X86(X(sigmoid_gate_avx2)) X(sigmoid_gate_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X)                                                                                     \
    NBL_X86(X(sigmoid_gate_backward_avx512))                                                                 \
    NBL_X86(X(sigmoid_gate_backward_avx2))                                                                   \
    X(sigmoid_gate_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__sigmoid_gate_family = {
    "sigmoid_gate",
    sizeof(nbl__sigmoid_gate),
    slots,
    attrs,
    {"sigmoid_gate", infer_forward, forward_impls},
    {"sigmoid_gate_backward", infer_backward, backward_impls},
    {.forward = 4, .backward = 8, .repeat = NBL_REPEAT_CHEAP},
};
