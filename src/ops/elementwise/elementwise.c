/* elementwise.c - the families add, cast, scale, gated and check_finite, and their backwards:
 * checks, outputs, slots, attributes. elementwise.h has the formulas.
 *
 * infer_... checks the inputs and sets dtype and shape of the outputs. A plan calls it when a node
 * is built. X86 rows come before the reference, so dispatch falls back to it (ops.h). */
#include "ops/elementwise/elementwise.h"

#include <math.h>

#include "ops/families.h"

/* Checks an input: a compute dtype, at least one dimension. Sets the error message. */
static nbl_status check_activation(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                                   nbl_dtype dtype)
{
    NBL_TRY(nbl__check_compute(ctx, op, dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, name, t, dtype));
    NBL_CHECK(ctx, t->rank >= 1, NBL_ERROR_SHAPE, "%s: %s has no dimension", op, name);
    return NBL_OK;
}

/* The same dtype and shape as another tensor. */
static nbl_status check_same(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t,
                             const nbl_tensor *other)
{
    NBL_TRY(nbl__check_dtype(ctx, op, name, t, other->dtype));
    return nbl__check_dims(ctx, op, name, t, other->rank, other->shape);
}

/* An output with the shape and dtype of an input. */
static void output_same(nbl_tensor *out, const nbl_tensor *like)
{
    nbl__output_like(out, like, nbl__last(like), like->dtype);
}

/* ---- add ---- */

static nbl_status infer_add(nbl_context *ctx, void *arguments)
{
    nbl__add *a = arguments;
    NBL_TRY(check_activation(ctx, "add", "a", &a->a, a->dtype));
    NBL_TRY(check_same(ctx, "add", "b", &a->b, &a->a));
    output_same(&a->y, &a->a);
    return NBL_OK;
}

static nbl_status infer_add_backward(nbl_context *ctx, void *arguments)
{
    nbl__add *a = arguments;
    NBL_TRY(infer_add(ctx, a));
    NBL_TRY(check_same(ctx, "add_backward", "dy", &a->dy, &a->y));
    output_same(&a->dx, &a->a);
    return NBL_OK;
}

static const nbl__slot add_slots[] = {
    NBL_SLOT(nbl__add, a, "a", INPUT, NULL),
    NBL_SLOT(nbl__add, b, "b", INPUT, NULL),
    NBL_SLOT(nbl__add, y, "y", OUTPUT, NULL),
    NBL_SLOT(nbl__add, dy, "dy", COTANGENT, "y"),
    /* one gradient for both: dx is also that of b */
    {"dx", NBL_ROLE_GRADIENT, "a", offsetof(nbl__add, dx), false, NULL, "b", NULL, 0},
    {0},
};
static const nbl__attr add_attrs[] = {NBL_ATTR(nbl__add, dtype, "dtype", DTYPE, 0), {0}};
#define ADD_ROWS(X) NBL_X86(X(add_cpu)) X(add_ref)
NBL_IMPLS(add_impls, ADD_ROWS);
#define ADD_BACKWARD_ROWS(X) NBL_X86(X(add_backward_cpu)) X(add_backward_ref)
NBL_IMPLS(add_backward_impls, ADD_BACKWARD_ROWS);
const nbl__family nbl__add_family = {
    "add",
    sizeof(nbl__add),
    add_slots,
    add_attrs,
    {"add", infer_add, add_impls},
    {"add_backward", infer_add_backward, add_backward_impls},
    {.forward = 1, .repeat = NBL_REPEAT_CHEAP},
};

/* ---- cast ---- */

static nbl_status infer_cast(nbl_context *ctx, void *arguments)
{
    nbl__cast *a = arguments;
    NBL_TRY(nbl__check_compute(ctx, "cast", a->to));
    NBL_TRY(nbl__check_float(ctx, "cast", "x", &a->x));
    NBL_TRY(check_activation(ctx, "cast", "x", &a->x, a->x.dtype));
    nbl__output_like(&a->y, &a->x, nbl__last(&a->x), a->to);
    return NBL_OK;
}

static nbl_status infer_cast_backward(nbl_context *ctx, void *arguments)
{
    nbl__cast *a = arguments;
    NBL_TRY(infer_cast(ctx, a));
    NBL_TRY(check_same(ctx, "cast_backward", "dy", &a->dy, &a->y));
    output_same(&a->dx, &a->x);
    return NBL_OK;
}

static const nbl__slot cast_slots[] = {
    NBL_SLOT(nbl__cast, x, "x", INPUT, NULL),
    NBL_SLOT(nbl__cast, y, "y", OUTPUT, NULL),
    NBL_SLOT(nbl__cast, dy, "dy", COTANGENT, "y"),
    NBL_SLOT(nbl__cast, dx, "dx", GRADIENT, "x"),
    {0},
};
static const nbl__attr cast_attrs[] = {NBL_ATTR(nbl__cast, to, "to", DTYPE, 0), {0}};
#define CAST_ROWS(X) NBL_X86(X(cast_cpu)) X(cast_ref)
NBL_IMPLS(cast_impls, CAST_ROWS);
#define CAST_BACKWARD_ROWS(X) NBL_X86(X(cast_backward_cpu)) X(cast_backward_ref)
NBL_IMPLS(cast_backward_impls, CAST_BACKWARD_ROWS);
const nbl__family nbl__cast_family = {
    "cast",
    sizeof(nbl__cast),
    cast_slots,
    cast_attrs,
    {"cast", infer_cast, cast_impls},
    {"cast_backward", infer_cast_backward, cast_backward_impls},
    {.moves = true, .repeat = NBL_REPEAT_CHEAP},
};

/* ---- scale ---- */

static nbl_status infer_scale(nbl_context *ctx, void *arguments)
{
    nbl__scale *a = arguments;
    NBL_TRY(check_activation(ctx, "scale", "x", &a->x, a->dtype));
    output_same(&a->y, &a->x);
    return NBL_OK;
}

static nbl_status infer_scale_backward(nbl_context *ctx, void *arguments)
{
    nbl__scale *a = arguments;
    NBL_TRY(infer_scale(ctx, a));
    NBL_TRY(check_same(ctx, "scale_backward", "dy", &a->dy, &a->y));
    output_same(&a->dx, &a->x);
    return NBL_OK;
}

static const nbl__slot scale_slots[] = {
    NBL_SLOT(nbl__scale, x, "x", INPUT, NULL),
    NBL_SLOT(nbl__scale, y, "y", OUTPUT, NULL),
    NBL_SLOT(nbl__scale, dy, "dy", COTANGENT, "y"),
    NBL_SLOT(nbl__scale, dx, "dx", GRADIENT, "x"),
    {0},
};
static const nbl__attr scale_attrs[] = {
    NBL_ATTR(nbl__scale, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__scale, factor, "factor", FLOAT, 1),
    {0},
};
#define SCALE_ROWS(X) NBL_X86(X(scale_cpu)) X(scale_ref)
NBL_IMPLS(scale_impls, SCALE_ROWS);
#define SCALE_BACKWARD_ROWS(X) NBL_X86(X(scale_backward_cpu)) X(scale_backward_ref)
NBL_IMPLS(scale_backward_impls, SCALE_BACKWARD_ROWS);
const nbl__family nbl__scale_family = {
    "scale",
    sizeof(nbl__scale),
    scale_slots,
    scale_attrs,
    {"scale", infer_scale, scale_impls},
    {"scale_backward", infer_scale_backward, scale_backward_impls},
    {.forward = 1, .backward = 1, .repeat = NBL_REPEAT_CHEAP},
};

/* ---- gated ---- */

const char *const nbl__act_words[] = {"silu",       "gelu",    "gelu_tanh", "relu", "relu2",
                                      "quick_gelu", "sigmoid", "tanh",      NULL};

static nbl_status infer_gated(nbl_context *ctx, void *arguments)
{
    nbl__gated *a = arguments;
    NBL_TRY(check_activation(ctx, "gated", "gate", &a->gate, a->dtype));
    NBL_TRY(check_same(ctx, "gated", "up", &a->up, &a->gate));
    output_same(&a->h, &a->gate);
    return NBL_OK;
}

static nbl_status infer_gated_backward(nbl_context *ctx, void *arguments)
{
    nbl__gated *a = arguments;
    NBL_TRY(infer_gated(ctx, a));
    NBL_TRY(check_same(ctx, "gated_backward", "dh", &a->dh, &a->gate));
    output_same(&a->dgate, &a->gate);
    output_same(&a->dup, &a->gate);
    return NBL_OK;
}

static const nbl__slot gated_slots[] = {
    /* gate and up are saved for backward; all may be columns of wider rows (rank 2) */
    NBL_SLOT_SAVED_ROWS(nbl__gated, gate, "gate", INPUT, 2),
    NBL_SLOT_SAVED_ROWS(nbl__gated, up, "up", INPUT, 2),
    NBL_SLOT_ROWS(nbl__gated, h, "h", OUTPUT, NULL, 2),
    NBL_SLOT_ROWS(nbl__gated, dh, "dh", COTANGENT, "h", 2),
    NBL_SLOT_ROWS(nbl__gated, dgate, "dgate", GRADIENT, "gate", 2),
    NBL_SLOT_ROWS(nbl__gated, dup, "dup", GRADIENT, "up", 2),
    {0},
};
static const nbl__attr gated_attrs[] = {
    NBL_ATTR(nbl__gated, dtype, "dtype", DTYPE, 0),
    NBL_ATTR_OF_WORDS(nbl__gated, act, "act", nbl__act_words),
    {0},
};
#define GATED_ROWS(X) NBL_X86(X(gated_cpu)) X(gated_ref)
NBL_IMPLS(gated_impls, GATED_ROWS);
#define GATED_BACKWARD_ROWS(X) NBL_X86(X(gated_backward_cpu)) X(gated_backward_ref)
NBL_IMPLS(gated_backward_impls, GATED_BACKWARD_ROWS);
const nbl__family nbl__gated_family = {
    "gated",
    sizeof(nbl__gated),
    gated_slots,
    gated_attrs,
    {"gated", infer_gated, gated_impls},
    {"gated_backward", infer_gated_backward, gated_backward_impls},
    {.forward = 5, .backward = 10, .repeat = NBL_REPEAT_WIDE},
};

/* ---- check_finite ---- */

static nbl_status infer_finite(nbl_context *ctx, void *arguments)
{
    nbl__finite *a = arguments;
    NBL_TRY(nbl__check_float(ctx, "check_finite", "x", &a->x));
    nbl__output_vector(&a->first, NBL_DTYPE_I64, 1, 1, 0);
    nbl__output_vector(&a->count, NBL_DTYPE_I64, 1, 1, 0);
    return NBL_OK;
}

nbl_status nbl__check_finite(nbl_context *ctx, const char *what, const char *name, const nbl_tensor *t)
{
    int64_t first, count;
    float value;
    NBL_TRY(nbl__check_float(ctx, what, name, t));
    NBL_TRY(nbl__find_non_finite(ctx, t, &first, &count));
    if (count == 0) return NBL_OK;
    size_t size = nbl__size_of(t->dtype);
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)first * size, &value, 1);
    return nbl__fail(ctx, NBL_ERROR_ARGUMENT,
                     "%s: %s (%s %s) is %s at index %" PRId64 "; %" PRId64 " of %" PRId64
                     " values are not finite",
                     what, name, nbl_dtype_name(t->dtype), nbl__show_shape(t->rank, t->shape).text,
                     isnan(value) ? "NaN"
                     : value > 0  ? "inf"
                                  : "-inf",
                     first, count, nbl__tensor_elements(t));
}

static const nbl__slot finite_slots[] = {
    NBL_SLOT(nbl__finite, x, "x", INPUT, NULL),
    NBL_SLOT(nbl__finite, first, "first", OUTPUT, NULL),
    NBL_SLOT(nbl__finite, count, "count", OUTPUT, NULL),
    {0},
};
static const nbl__attr finite_attrs[] = {{0}};
#define FINITE_ROWS(X) X(check_finite_cpu) X(check_finite_ref)
NBL_IMPLS(finite_impls, FINITE_ROWS);
const nbl__family nbl__check_finite_family = {
    "check_finite",
    sizeof(nbl__finite),
    finite_slots,
    finite_attrs,
    {"check_finite", infer_finite, finite_impls},
    {0},
    {.moves = true},
};
