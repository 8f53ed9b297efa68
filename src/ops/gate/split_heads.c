/* split_heads.c - the family split_heads: checks, and the CPU's one implementation of each direction.
 * See split_heads.h.
 *
 * Bytes: each element is read once and written once. Limit: memory. */
#include "ops/gate/split_heads.h"

#include "ops/common/rows.h"
#include "ops/families.h"

/* Elements of a head in the front; -1 if the widths do not fit into a head of `width`. */
static int64_t front_width(const nbl__split_heads *a, int64_t width)
{
    int64_t sum = 0;
    for (int i = 0; i < NBL_SPLIT_PARTS; i++) {
        if (a->widths[i] < 0 || a->widths[i] > width - sum) return -1;
        sum += a->widths[i];
    }
    return sum > 0 && sum < width ? sum : -1;
}

static nbl_status check_input(nbl_context *ctx, const char *op, const nbl__split_heads *a, int64_t *front)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_CHECK(ctx, a->x.rank == 2 && a->heads >= 1 && a->x.shape[1] % a->heads == 0, NBL_ERROR_SHAPE,
              "%s: x is %s, not [tokens, a multiple of %" PRId64 " heads]", op,
              nbl__show_shape(a->x.rank, a->x.shape).text, a->heads);
    *front = front_width(a, a->x.shape[1] / a->heads);
    NBL_CHECK(ctx, *front > 0, NBL_ERROR_ARGUMENT,
              "%s: the widths %" PRId64 ", %" PRId64 " and %" PRId64 " leave no rest of heads of %" PRId64,
              op, a->widths[0], a->widths[1], a->widths[2], a->x.shape[1] / a->heads);
    return NBL_OK;
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__split_heads *a = arguments;
    int64_t front;
    NBL_TRY(check_input(ctx, "split_heads", a, &front));
    nbl__output_like(&a->front, &a->x, a->heads * front, a->dtype);
    nbl__output_like(&a->rest, &a->x, a->x.shape[1] - a->heads * front, a->dtype);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__split_heads *a = arguments;
    const char *op = "split_heads_backward";
    int64_t front;
    NBL_TRY(check_input(ctx, op, a, &front));
    NBL_TRY(nbl__check_dtype(ctx, op, "dfront", &a->dfront, a->dtype));
    NBL_TRY(nbl__check_matrix(ctx, op, "dfront", &a->dfront, a->x.shape[0], a->heads * front));
    NBL_TRY(nbl__check_dtype(ctx, op, "drest", &a->drest, a->dtype));
    NBL_TRY(nbl__check_matrix(ctx, op, "drest", &a->drest, a->x.shape[0], a->x.shape[1] - a->heads * front));
    nbl__output_like(&a->dx, &a->x, a->x.shape[1], a->dtype);
    return NBL_OK;
}

typedef struct split_job {
    const nbl__split_heads *a;
    bool backward;
} split_job;

/* Copies one part of all heads of a token between a row of x and a packed row. */
static void copy_part(const split_job *j, uint8_t *x, uint8_t *packed, size_t head, size_t width)
{
    for (int64_t h = 0; h < j->a->heads; h++, x += head, packed += width)
        memcpy(j->backward ? x : packed, j->backward ? packed : x, width);
}

static uint8_t *row_at(const nbl_tensor *t, int64_t row)
{
    return (uint8_t *)t->data + (size_t)(row * nbl__row_stride(t)) * (size_t)nbl__dtype_bits(t->dtype) / 8;
}

static void copy_rows(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const split_job *j = job;
    const nbl__split_heads *a = j->a;
    size_t element = (size_t)nbl__dtype_bits(a->x.dtype) / 8;
    size_t head = (size_t)(a->x.shape[1] / a->heads) * element;
    (void)item;
    for (int64_t t = begin; t < end; t++) {
        uint8_t *x = row_at(j->backward ? &a->dx : &a->x, t);
        uint8_t *front = row_at(j->backward ? &a->dfront : &a->front, t);
        size_t at = 0;
        for (int i = 0; i < NBL_SPLIT_PARTS; i++) {
            size_t width = (size_t)a->widths[i] * element;
            copy_part(j, x + at, front, head, width);
            front += (size_t)a->heads * width;
            at += width;
        }
        copy_part(j, x + at, row_at(j->backward ? &a->drest : &a->rest, t), head, head - at);
    }
}

static nbl_status run(const nbl__call *call, const nbl__split_heads *a, bool backward)
{
    split_job j = {a, backward};
    return nbl__rows_run(call->ctx, a->x.shape[0], nbl__rows_per_span(a->x.shape[1]), copy_rows, &j);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    return run(call, arguments, false);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__split_heads *a = arguments;
    return nbl__has_data(&a->dx) ? run(call, a, true) : NBL_OK;
}

static const nbl__slot slots[] = {
    NBL_SLOT_ROWS(nbl__split_heads, x, "x", INPUT, NULL, 2),
    NBL_SLOT_ROWS(nbl__split_heads, front, "front", OUTPUT, NULL, 2),
    NBL_SLOT_ROWS(nbl__split_heads, rest, "rest", OUTPUT, NULL, 2),
    NBL_SLOT_ROWS(nbl__split_heads, dfront, "dfront", COTANGENT, "front", 2),
    NBL_SLOT_ROWS(nbl__split_heads, drest, "drest", COTANGENT, "rest", 2),
    NBL_SLOT_ROWS(nbl__split_heads, dx, "dx", GRADIENT, "x", 2),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__split_heads, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__split_heads, heads, "heads", INT, 1),
    NBL_ATTR(nbl__split_heads, widths[0], "width0", INT, 0),
    NBL_ATTR(nbl__split_heads, widths[1], "width1", INT, 0),
    NBL_ATTR(nbl__split_heads, widths[2], "width2", INT, 0),
    {0},
};
const nbl__impl nbl__split_heads_ref = {"split_heads_ref", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__split_heads_backward_ref = {"split_heads_backward_ref", NBL_ISA_SCALAR, NULL, NULL,
                                                 run_backward};
#define FORWARD_ROWS(X) X(split_heads_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X) X(split_heads_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__split_heads_family = {
    "split_heads",
    sizeof(nbl__split_heads),
    slots,
    attrs,
    {"split_heads", infer_forward, forward_impls},
    {"split_heads_backward", infer_backward, backward_impls},
    {.moves = true, .repeat = NBL_REPEAT_WIDE},
};
