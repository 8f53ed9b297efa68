/* gated_norm.c - the family gated_norm: checks, outputs, slots. gated_norm.h has the formulas. */
#include "ops/gate/gated_norm.h"

#include <math.h>

#include "ops/families.h"

static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__gated_norm *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "gate", &a->gate, a->dtype));
    NBL_TRY(nbl__check_float(ctx, op, "w", &a->w));
    NBL_CHECK(ctx, a->x.rank == 3 && a->x.shape[2] >= 1, NBL_ERROR_SHAPE,
              "%s: x is %s, not [tokens, heads, columns]", op, nbl__show_shape(a->x.rank, a->x.shape).text);
    NBL_TRY(nbl__check_dims(ctx, op, "gate", &a->gate, 3, a->x.shape));
    NBL_TRY(nbl__check_dims(ctx, op, "w", &a->w, 1, &a->x.shape[2]));
    NBL_CHECK(ctx, isfinite(a->eps) && a->eps >= 0, NBL_ERROR_ARGUMENT, "%s: eps %g is not 0 or positive", op,
              (double)a->eps);
    return NBL_OK;
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__gated_norm *a = arguments;
    NBL_TRY(check_inputs(ctx, "gated_norm", a));
    nbl__output_like(&a->y, &a->x, a->x.shape[2], a->dtype);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__gated_norm *a = arguments;
    const char *op = "gated_norm_backward";
    NBL_TRY(check_inputs(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "dy", &a->dy, 3, a->x.shape));
    nbl__output_like(&a->dx, &a->x, a->x.shape[2], a->dtype);
    nbl__output_like(&a->dgate, &a->gate, a->x.shape[2], a->dtype);
    nbl__output_vector(&a->dw, NBL_DTYPE_F32, 1, a->x.shape[2], 0);
    return NBL_OK;
}

static const nbl__slot slots[] = {
    NBL_SLOT_SAVED_ROWS(nbl__gated_norm, x, "x", INPUT, 3),
    NBL_SLOT_SAVED_ROWS(nbl__gated_norm, gate, "gate", INPUT, 3),
    NBL_SLOT_SAVED(nbl__gated_norm, w, "w", INPUT),
    NBL_SLOT_ROWS(nbl__gated_norm, y, "y", OUTPUT, NULL, 3),
    NBL_SLOT_ROWS(nbl__gated_norm, dy, "dy", COTANGENT, "y", 3),
    NBL_SLOT_ROWS(nbl__gated_norm, dx, "dx", GRADIENT, "x", 3),
    NBL_SLOT_ROWS(nbl__gated_norm, dgate, "dgate", GRADIENT, "gate", 3),
    NBL_SLOT(nbl__gated_norm, dw, "dw", GRADIENT, "w"),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__gated_norm, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__gated_norm, eps, "eps", FLOAT, 1e-6),
    NBL_ATTR(nbl__gated_norm, accumulate, "accumulate", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) NBL_X86(X(gated_norm_avx512)) NBL_X86(X(gated_norm_avx2)) X(gated_norm_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X)                                                                                     \
    NBL_X86(X(gated_norm_backward_avx512))                                                                   \
    NBL_X86(X(gated_norm_backward_avx2))                                                                     \
    X(gated_norm_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__gated_norm_family = {
    "gated_norm",
    sizeof(nbl__gated_norm),
    slots,
    attrs,
    {"gated_norm", infer_forward, forward_impls},
    {"gated_norm_backward", infer_backward, backward_impls},
    {.forward = 9, .backward = 18, .repeat = NBL_REPEAT_WIDE},
};
