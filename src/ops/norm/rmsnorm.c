/* rmsnorm.c - the families rmsnorm and rmsnorm_backward: checks, outputs, slots, attributes.
 * rmsnorm.h has the formulas. Rows of dispatch: AVX-512, AVX2, the reference. */
#include "ops/norm/rmsnorm.h"

#include <math.h>

#include "ops/families.h"

/* Checks what forward and backward share: x, w, residual and eps. Sets the error message. */
static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__rmsnorm *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_CHECK(ctx, a->x.rank >= 1, NBL_ERROR_SHAPE, "%s: x has no dimension", op);
    if (nbl__has_data(&a->w)) {
        NBL_TRY(nbl__check_float(ctx, op, "w", &a->w));
        NBL_TRY(nbl__check_dims(ctx, op, "w", &a->w, 1, (int64_t[]){nbl__last(&a->x)}));
    }
    if (nbl__has_data(&a->residual)) {
        NBL_TRY(nbl__check_dtype(ctx, op, "residual", &a->residual, a->dtype));
        NBL_TRY(nbl__check_dims(ctx, op, "residual", &a->residual, a->x.rank, a->x.shape));
    }
    NBL_CHECK(ctx, a->eps >= 0, NBL_ERROR_ARGUMENT, "%s: eps %g is negative", op, (double)a->eps);
    NBL_CHECK(ctx, isfinite(a->scale), NBL_ERROR_ARGUMENT, "%s: scale %g is not finite", op,
              (double)a->scale);
    return NBL_OK;
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__rmsnorm *a = arguments;
    NBL_TRY(check_inputs(ctx, "rmsnorm", a));
    nbl__output_like(&a->y, &a->x, nbl__last(&a->x), a->dtype);
    nbl__output_none(&a->residual_out);
    if (nbl__has_data(&a->residual)) nbl__output_like(&a->residual_out, &a->x, nbl__last(&a->x), a->dtype);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__rmsnorm *a = arguments;
    const char *op = "rmsnorm_backward";
    NBL_TRY(check_inputs(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "dy", &a->dy, a->x.rank, a->x.shape));
    if (nbl__has_data(&a->dresidual)) {
        NBL_TRY(nbl__check_dtype(ctx, op, "dresidual", &a->dresidual, a->dtype));
        NBL_TRY(nbl__check_dims(ctx, op, "dresidual", &a->dresidual, a->x.rank, a->x.shape));
    }
    nbl__output_like(&a->dx, &a->x, nbl__last(&a->x), a->dtype);
    nbl__output_none(&a->dw);
    if (nbl__has_data(&a->w)) nbl__output_vector(&a->dw, NBL_DTYPE_F32, 1, nbl__last(&a->x), 0);
    return NBL_OK;
}

static const nbl__slot slots[] = {
    /* x is saved unless residual_out is: backward needs h, which is one of the two */
    {"x", NBL_ROLE_INPUT, NULL, offsetof(nbl__rmsnorm, x), true, "residual_out", NULL, NULL, 0},
    NBL_SLOT_SAVED(nbl__rmsnorm, w, "w", OPTIONAL),
    NBL_SLOT(nbl__rmsnorm, residual, "residual", OPTIONAL, NULL),
    NBL_SLOT(nbl__rmsnorm, y, "y", OUTPUT, NULL),
    NBL_SLOT_SAVED(nbl__rmsnorm, residual_out, "residual_out", OUTPUT),
    NBL_SLOT(nbl__rmsnorm, dy, "dy", COTANGENT, "y"),
    NBL_SLOT(nbl__rmsnorm, dresidual, "dresidual", COTANGENT, "residual_out"),
    /* one gradient for both: dx is also that of residual */
    {"dx", NBL_ROLE_GRADIENT, "x", offsetof(nbl__rmsnorm, dx), false, NULL, "residual", NULL, 0},
    NBL_SLOT(nbl__rmsnorm, dw, "dw", GRADIENT, "w"),
    {0},
};
const char *const nbl__norm_round_words[] = {"before_weight", "after_weight", NULL};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__rmsnorm, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__rmsnorm, eps, "eps", FLOAT, 1e-6),
    NBL_ATTR(nbl__rmsnorm, offset, "offset", FLOAT, 0),
    NBL_ATTR(nbl__rmsnorm, scale, "scale", FLOAT, 0),
    NBL_ATTR_OF_WORDS(nbl__rmsnorm, round, "round", nbl__norm_round_words),
    NBL_ATTR(nbl__rmsnorm, accumulate, "accumulate", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) NBL_X86(X(rmsnorm_avx512)) NBL_X86(X(rmsnorm_avx2)) X(rmsnorm_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X)                                                                                     \
    NBL_X86(X(rmsnorm_backward_avx512))                                                                      \
    NBL_X86(X(rmsnorm_backward_avx2))                                                                        \
    X(rmsnorm_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__rmsnorm_family = {
    "rmsnorm",
    sizeof(nbl__rmsnorm),
    slots,
    attrs,
    {"rmsnorm", infer_forward, forward_impls},
    {"rmsnorm_backward", infer_backward, backward_impls},
    {.forward = NBL_RMSNORM_FLOPS, .backward = 9, .repeat = NBL_REPEAT_CHEAP},
};
