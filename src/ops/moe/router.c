/* router.c - the family router: checks, outputs, slots, attributes. See router.h. */
#include "ops/moe/router.h"

#include "ops/families.h"

static nbl_status check(nbl_context *ctx, const char *op, const nbl__router *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "logits", &a->logits, a->dtype));
    NBL_CHECK(ctx, a->logits.rank >= 1, NBL_ERROR_SHAPE, "%s: logits is a scalar", op);
    NBL_CHECK(ctx, a->top_k >= 1 && a->top_k <= nbl__last(&a->logits), NBL_ERROR_ARGUMENT,
              "%s: top_k %" PRId64 " of %" PRId64 " experts", op, a->top_k, nbl__last(&a->logits));
    NBL_CHECK(ctx, nbl__last(&a->logits) <= INT32_MAX && nbl__tensor_rows(&a->logits) <= INT32_MAX / a->top_k,
              NBL_ERROR_SHAPE, "%s: logits %s with top_k %" PRId64 " are too many", op,
              nbl__show_shape(a->logits.rank, a->logits.shape).text, a->top_k);
    return NBL_OK;
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__router *a = arguments;
    NBL_TRY(check(ctx, "router", a));
    nbl__output_like(&a->experts, &a->logits, a->top_k, NBL_DTYPE_I32);
    nbl__output_like(&a->weights, &a->logits, a->top_k, NBL_DTYPE_F32);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    const char *op = "router_backward";
    nbl__router *a = arguments;
    NBL_TRY(check(ctx, op, a));
    int64_t rows = nbl__tensor_rows(&a->logits);
    NBL_TRY(nbl__check_dtype(ctx, op, "experts", &a->experts, NBL_DTYPE_I32));
    NBL_TRY(nbl__check_matrix(ctx, op, "experts", &a->experts, rows, a->top_k));
    NBL_TRY(nbl__check_dtype(ctx, op, "dweights", &a->dweights, NBL_DTYPE_F32));
    NBL_TRY(nbl__check_matrix(ctx, op, "dweights", &a->dweights, rows, a->top_k));
    nbl__output_like(&a->dlogits, &a->logits, nbl__last(&a->logits), a->dtype);
    return NBL_OK;
}

static const char *const kinds[] = {"topk_softmax", "softmax_topk", "softmax_topk_norm", "topk_sigmoid",
                                    NULL};
static const nbl__slot slots[] = {
    NBL_SLOT_SAVED(nbl__router, logits, "logits", INPUT),
    NBL_SLOT_SAVED(nbl__router, experts, "experts", OUTPUT),
    NBL_SLOT(nbl__router, weights, "weights", OUTPUT, NULL),
    NBL_SLOT(nbl__router, dweights, "dweights", COTANGENT, "weights"),
    NBL_SLOT(nbl__router, dlogits, "dlogits", GRADIENT, "logits"),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__router, dtype, "dtype", DTYPE, 0),
    NBL_ATTR_OF_WORDS(nbl__router, kind, "kind", kinds),
    NBL_ATTR(nbl__router, top_k, "top_k", INT, 1),
    NBL_ATTR(nbl__router, round, "round", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) X(router_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X) X(router_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__router_family = {
    "router",
    sizeof(nbl__router),
    slots,
    attrs,
    {"router", infer_forward, forward_impls},
    {"router_backward", infer_backward, backward_impls},
    {.forward = 12, .backward = 12, .repeat = NBL_REPEAT_CHEAP},
};
