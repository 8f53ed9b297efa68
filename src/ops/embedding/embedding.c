/* embedding.c - the families embedding and embedding_backward: checks, outputs, slots, attributes. */
#include "ops/embedding/embedding.h"

#include <math.h>

#include "ops/families.h"

nbl_status nbl__embedding_check_ids(nbl_context *ctx, const char *op, const nbl_tensor *ids,
                                    int64_t vocabulary)
{
    const int32_t *values = ids->data;
    for (int64_t i = 0; i < nbl__tensor_elements(ids); i++)
        NBL_CHECK(ctx, values[i] >= 0 && values[i] < vocabulary, NBL_ERROR_ARGUMENT,
                  "%s: ids %s has %" PRId32 " at index %" PRId64 ", which is no row of w [%" PRId64 ", …]",
                  op, nbl__show_shape(ids->rank, ids->shape).text, values[i], i, vocabulary);
    return NBL_OK;
}

static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__embedding *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_CHECK(ctx, a->w.rank == 2, NBL_ERROR_SHAPE, "%s: w is %s, not a matrix [vocabulary, columns]", op,
              nbl__show_shape(a->w.rank, a->w.shape).text);
    NBL_CHECK(ctx, a->w.format != NBL_FORMAT_DENSE || nbl__is_compute(a->w.dtype), NBL_ERROR_DTYPE,
              "%s: w %s is %s, not f32, f16, bf16 or packed", op, nbl__show_shape(2, a->w.shape).text,
              nbl_dtype_name(a->w.dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "ids", &a->ids, NBL_DTYPE_I32));
    NBL_CHECK(ctx, a->ids.rank >= 1 && a->ids.rank < NBL_MAX_RANK, NBL_ERROR_SHAPE,
              "%s: ids is %s: 1 to %d dimensions were expected", op,
              nbl__show_shape(a->ids.rank, a->ids.shape).text, NBL_MAX_RANK - 1);
    NBL_CHECK(ctx, isfinite(a->scale), NBL_ERROR_ARGUMENT, "%s: scale is not finite", op);
    return NBL_OK;
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__embedding *a = arguments;
    NBL_TRY(check_inputs(ctx, "embedding", a));
    void *data = a->y.data;
    a->y = a->ids;
    a->y.data = data;
    a->y.dtype = a->dtype;
    a->y.shape[a->y.rank++] = a->w.shape[1];
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__embedding *a = arguments;
    const char *op = "embedding_backward";
    NBL_TRY(check_inputs(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_matrix(ctx, op, "dy", &a->dy, nbl__tensor_elements(&a->ids), a->w.shape[1]));
    nbl__output_vector(&a->dw, NBL_DTYPE_F32, 2, a->w.shape[0], a->w.shape[1]);
    return NBL_OK;
}

/* Of w, at most one row per token. */
static double slot_bytes(const void *arguments, const nbl__slot *slot, double all)
{
    const nbl__embedding *a = arguments;
    if (!nbl__slot_is_weight(slot)) return all;
    double rows = a->ids.rank > 0 ? (double)nbl__tensor_elements(&a->ids) : 0;
    return rows < (double)a->w.shape[0] ? floor(all * (rows / (double)a->w.shape[0])) : all;
}

static const nbl__slot slots[] = {
    NBL_SLOT_SAVED(nbl__embedding, ids, "ids", INPUT), NBL_SLOT(nbl__embedding, w, "w", WEIGHT, NULL),
    NBL_SLOT(nbl__embedding, y, "y", OUTPUT, NULL),    NBL_SLOT(nbl__embedding, dy, "dy", COTANGENT, "y"),
    NBL_SLOT(nbl__embedding, dw, "dw", GRADIENT, "w"), {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__embedding, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__embedding, scale, "scale", FLOAT, 1),
    NBL_ATTR(nbl__embedding, padding, "padding", INT, -1),
    NBL_ATTR(nbl__embedding, accumulate, "accumulate", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) X(embedding_cpu) X(embedding_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X) X(embedding_backward_cpu) X(embedding_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__embedding_family = {
    "embedding",
    sizeof(nbl__embedding),
    slots,
    attrs,
    {"embedding", infer_forward, forward_impls},
    {"embedding_backward", infer_backward, backward_impls},
    {.forward = 1, .backward = 1, .slot_bytes = slot_bytes},
};
