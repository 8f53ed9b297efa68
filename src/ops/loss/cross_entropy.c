/* cross_entropy.c - the families cross_entropy and its backward: checks, outputs, slots,
 * attributes. */
#include "ops/loss/cross_entropy.h"

#include <math.h>

#include "ops/families.h"
#include "ops/ref.h"

/* The value of `denominator`, which is f64 in checks of gradients; 0: the number of trained
 * tokens. */
static double divisor_of(const nbl__cross_entropy *a)
{
    return nbl__has_data(&a->denominator) ? nbl__ref_get(&a->denominator, 0) : 0;
}

nbl_status nbl__cross_entropy_trained(const nbl__call *call, const nbl__cross_entropy *a, int64_t *rows,
                                      int64_t *count)
{
    const int32_t *labels = a->labels.data;
    double divisor = divisor_of(a);
    NBL_CHECK(call->ctx, divisor >= 0 && isfinite(divisor), NBL_ERROR_ARGUMENT,
              "%s: denominator %g is not a positive number or 0", call->op, divisor);
    int64_t tokens = nbl__tensor_rows(&a->x), found = 0;
    for (int64_t t = 0; t < tokens; t++) {
        if (labels[t] == NBL_LABEL_IGNORED) continue;
        NBL_CHECK(call->ctx, labels[t] >= 0 && labels[t] < a->w.shape[0], NBL_ERROR_ARGUMENT,
                  "%s: labels[%" PRId64 "] is %" PRId32 ", neither in [0, %" PRId64 ") nor %d (ignored)",
                  call->op, t, labels[t], a->w.shape[0], NBL_LABEL_IGNORED);
        rows[found++] = t;
    }
    *count = found;
    return NBL_OK;
}

double nbl__cross_entropy_share(const nbl__cross_entropy *a, int64_t count)
{
    if (a->reduction == NBL_REDUCTION_NONE) return 1;
    double divisor = divisor_of(a);
    if (divisor > 0) return 1 / divisor;
    return count > 0 ? 1 / (double)count : 0;
}

static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__cross_entropy *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_CHECK(ctx, a->w.rank == 2, NBL_ERROR_SHAPE, "%s: w is %s, not a matrix [vocabulary, hidden]", op,
              nbl__show_shape(a->w.rank, a->w.shape).text);
    NBL_CHECK(ctx, a->w.format != NBL_FORMAT_DENSE || nbl__is_compute(a->w.dtype), NBL_ERROR_DTYPE,
              "%s: w %s is %s, not f32, f16, bf16 or packed", op, nbl__show_shape(2, a->w.shape).text,
              nbl_dtype_name(a->w.dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_CHECK(ctx, a->x.rank >= 1 && nbl__last(&a->x) == a->w.shape[1], NBL_ERROR_SHAPE,
              "%s: x is %s, its last dimension must be %" PRId64 ", that of w %s", op,
              nbl__show_shape(a->x.rank, a->x.shape).text, a->w.shape[1],
              nbl__show_shape(2, a->w.shape).text);
    int64_t tokens = nbl__tensor_rows(&a->x);
    NBL_TRY(nbl__check_dtype(ctx, op, "labels", &a->labels, NBL_DTYPE_I32));
    NBL_CHECK(ctx, nbl__tensor_elements(&a->labels) == tokens && a->labels.rank >= 1, NBL_ERROR_SHAPE,
              "%s: labels is %s, one for each of the %" PRId64 " tokens of x %s was expected", op,
              nbl__show_shape(a->labels.rank, a->labels.shape).text, tokens,
              nbl__show_shape(a->x.rank, a->x.shape).text);
    NBL_CHECK(ctx, a->softcap >= 0 && isfinite(a->softcap), NBL_ERROR_ARGUMENT,
              "%s: softcap %g is not a positive number or 0", op, (double)a->softcap);
    NBL_CHECK(ctx, a->smoothing >= 0 && a->smoothing <= 1, NBL_ERROR_ARGUMENT,
              "%s: smoothing %g is not in [0, 1]", op, (double)a->smoothing);
    if (nbl__has_data(&a->denominator)) {
        NBL_TRY(nbl__check_dtype(ctx, op, "denominator", &a->denominator, NBL_DTYPE_F32));
        NBL_TRY(nbl__check_dims(ctx, op, "denominator", &a->denominator, 1, (int64_t[]){1}));
        NBL_CHECK(ctx, a->reduction == NBL_REDUCTION_MEAN, NBL_ERROR_ARGUMENT,
                  "%s: a denominator without the reduction mean", op);
    }
    NBL_CHECK(ctx, !a->grad_in_forward || (a->reduction == NBL_REDUCTION_MEAN && !a->train_w),
              NBL_ERROR_ARGUMENT, "%s: early is for the reduction mean and a w that is not trained", op);
    return NBL_OK;
}

static void like_labels(const nbl__cross_entropy *a, nbl_tensor *out)
{
    nbl__output_like(out, &a->labels, nbl__last(&a->labels), NBL_DTYPE_F32);
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__cross_entropy *a = arguments;
    NBL_TRY(check_inputs(ctx, "cross_entropy", a));
    if (a->reduction == NBL_REDUCTION_MEAN) nbl__output_vector(&a->loss, NBL_DTYPE_F32, 1, 1, 0);
    else like_labels(a, &a->loss);
    like_labels(a, &a->logprobs);
    nbl__output_vector(&a->lse, NBL_DTYPE_F32, 2, 2, nbl__tensor_rows(&a->x));
    if (a->grad_in_forward) nbl__output_like(&a->dx_in_forward, &a->x, nbl__last(&a->x), NBL_DTYPE_F32);
    else nbl__output_none(&a->dx_in_forward);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    static const char op[] = "cross_entropy_backward";
    nbl__cross_entropy *a = arguments;
    NBL_TRY(check_inputs(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dloss", &a->dloss, NBL_DTYPE_F32));
    if (a->grad_in_forward) {
        NBL_TRY(nbl__check_dtype(ctx, op, "dx_early", &a->dx_in_forward, NBL_DTYPE_F32));
        NBL_TRY(nbl__check_dims(ctx, op, "dx_early", &a->dx_in_forward, a->x.rank, a->x.shape));
    }
    bool one = a->reduction == NBL_REDUCTION_MEAN && a->dloss.rank == 0; /* a scalar is [1] */
    if (a->reduction == NBL_REDUCTION_NONE)
        NBL_TRY(nbl__check_dims(ctx, op, "dloss", &a->dloss, a->labels.rank, a->labels.shape));
    else if (!one) NBL_TRY(nbl__check_dims(ctx, op, "dloss", &a->dloss, 1, (int64_t[]){1}));
    nbl__output_like(&a->dx, &a->x, nbl__last(&a->x), a->dtype);
    if (a->train_w) nbl__output_vector(&a->dw, NBL_DTYPE_F32, 2, a->w.shape[0], a->w.shape[1]);
    else nbl__output_none(&a->dw);
    return NBL_OK;
}

/* The product of the output head, 2·logits·hidden. Backward recomputes it unless forward
 * computed dx too. */
static double flops(const void *arguments, bool backward)
{
    const nbl__cross_entropy *a = arguments;
    double logits = (double)nbl__tensor_rows(&a->x) * (double)a->w.shape[0], hidden = (double)a->w.shape[1];
    if (a->grad_in_forward && backward) return (double)nbl__tensor_elements(&a->x);
    double products = !backward ? 1 + a->grad_in_forward : 1 + (a->dx.data != NULL) + (a->dw.data != NULL);
    return logits * (2 * hidden * products + (a->softcap > 0 ? 8 : 4));
}

static const char *const reductions[] = {"mean", "none", NULL};
static const nbl__slot slots[] = {
    NBL_SLOT_SAVED(nbl__cross_entropy, x, "x", INPUT),
    NBL_SLOT_SAVED(nbl__cross_entropy, w, "w", WEIGHT),
    NBL_SLOT_SAVED(nbl__cross_entropy, labels, "labels", INPUT),
    NBL_SLOT_SAVED(nbl__cross_entropy, denominator, "denominator", OPTIONAL),
    NBL_SLOT(nbl__cross_entropy, loss, "loss", OUTPUT, NULL),
    NBL_SLOT(nbl__cross_entropy, logprobs, "logprobs", OUTPUT, NULL),
    NBL_SLOT_SAVED(nbl__cross_entropy, lse, "lse", SAVED),
    NBL_SAVED_WHEN(nbl__cross_entropy, dx_in_forward, "dx_early", "early"),
    NBL_SLOT(nbl__cross_entropy, dloss, "dloss", COTANGENT, "loss"),
    NBL_SLOT(nbl__cross_entropy, dx, "dx", GRADIENT, "x"),
    NBL_SLOT(nbl__cross_entropy, dw, "dw", GRADIENT, "w"),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__cross_entropy, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__cross_entropy, softcap, "softcap", FLOAT, 0),
    NBL_ATTR(nbl__cross_entropy, smoothing, "smoothing", FLOAT, 0),
    NBL_ATTR_OF_WORDS(nbl__cross_entropy, reduction, "reduction", reductions),
    NBL_ATTR(nbl__cross_entropy, train_w, "train_w", FLAG, 0),
    NBL_ATTR(nbl__cross_entropy, accumulate, "accumulate", FLAG, 0),
    NBL_ATTR(nbl__cross_entropy, grad_in_forward, "early", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) X(cross_entropy_cpu) X(cross_entropy_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X) X(cross_entropy_backward_cpu) X(cross_entropy_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__cross_entropy_family = {
    "cross_entropy",
    sizeof(nbl__cross_entropy),
    slots,
    attrs,
    {"cross_entropy", infer_forward, forward_impls},
    {"cross_entropy_backward", infer_backward, backward_impls},
    {.flops = flops},
};
