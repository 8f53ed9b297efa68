/* layernorm.c - the families layernorm and layernorm_backward: checks, outputs, slots, attributes.
 * layernorm.h has the formula. Rows of dispatch: AVX-512, AVX2, the reference. */
#include "ops/norm/layernorm.h"

#include <math.h>

#include "ops/families.h"

/* Checks what forward and backward share: x, w, b and eps. Sets the error message. */
static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__layernorm *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_CHECK(ctx, a->x.rank >= 1, NBL_ERROR_SHAPE, "%s: x has no dimension", op);
    int64_t columns = nbl__last(&a->x);
    NBL_TRY(nbl__check_float(ctx, op, "w", &a->w));
    NBL_TRY(nbl__check_dims(ctx, op, "w", &a->w, 1, &columns));
    if (nbl__has_data(&a->bias)) {
        NBL_TRY(nbl__check_float(ctx, op, "b", &a->bias));
        NBL_TRY(nbl__check_dims(ctx, op, "b", &a->bias, 1, &columns));
    }
    NBL_CHECK(ctx, a->eps >= 0, NBL_ERROR_ARGUMENT, "%s: eps %g is negative", op, (double)a->eps);
    NBL_CHECK(ctx, isfinite(a->scale), NBL_ERROR_ARGUMENT, "%s: scale %g is not finite", op,
              (double)a->scale);
    return NBL_OK;
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__layernorm *a = arguments;
    NBL_TRY(check_inputs(ctx, "layernorm", a));
    nbl__output_like(&a->y, &a->x, nbl__last(&a->x), a->dtype);
    return NBL_OK;
}

/* dbias is an output only if there is a bias */
static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__layernorm *a = arguments;
    const char *op = "layernorm_backward";
    NBL_TRY(check_inputs(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "dy", &a->dy, a->x.rank, a->x.shape));
    nbl__output_like(&a->dx, &a->x, nbl__last(&a->x), a->dtype);
    nbl__output_vector(&a->dw, NBL_DTYPE_F32, 1, nbl__last(&a->x), 0);
    nbl__output_none(&a->dbias);
    if (nbl__has_data(&a->bias)) nbl__output_vector(&a->dbias, NBL_DTYPE_F32, 1, nbl__last(&a->x), 0);
    return NBL_OK;
}

static const nbl__slot slots[] = {
    NBL_SLOT_SAVED(nbl__layernorm, x, "x", INPUT),
    NBL_SLOT_SAVED(nbl__layernorm, w, "w", INPUT),
    NBL_SLOT(nbl__layernorm, bias, "b", OPTIONAL, NULL),
    NBL_SLOT(nbl__layernorm, y, "y", OUTPUT, NULL),
    NBL_SLOT(nbl__layernorm, dy, "dy", COTANGENT, "y"),
    NBL_SLOT(nbl__layernorm, dx, "dx", GRADIENT, "x"),
    NBL_SLOT(nbl__layernorm, dw, "dw", GRADIENT, "w"),
    NBL_SLOT(nbl__layernorm, dbias, "db", GRADIENT, "b"),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__layernorm, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__layernorm, eps, "eps", FLOAT, 1e-5),
    NBL_ATTR(nbl__layernorm, scale, "scale", FLOAT, 0),
    NBL_ATTR(nbl__layernorm, accumulate, "accumulate", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) NBL_X86(X(layernorm_avx512)) NBL_X86(X(layernorm_avx2)) X(layernorm_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X)                                                                                     \
    NBL_X86(X(layernorm_backward_avx512))                                                                    \
    NBL_X86(X(layernorm_backward_avx2))                                                                      \
    X(layernorm_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__layernorm_family = {
    "layernorm",
    sizeof(nbl__layernorm),
    slots,
    attrs,
    {"layernorm", infer_forward, forward_impls},
    {"layernorm_backward", infer_backward, backward_impls},
    {.forward = 8, .backward = 14, .repeat = NBL_REPEAT_CHEAP},
};
