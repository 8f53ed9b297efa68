/* rope.c - the families rope_table, rope and rope_backward: checks, outputs, slots, attributes.
 * rope.h has the formulas. Rows of dispatch: AVX-512, AVX2, the reference. Fields of nbl__rope that
 * are no attribute (scaling) come from the model's configuration. */
#include "ops/rope/rope.h"

#include "ops/common/sequences.h"
#include "ops/families.h"

/* rotary_dim is even, because it is pairs, and fits into a head. */
static nbl_status check_dim(nbl_context *ctx, const char *op, int64_t dim, int64_t max)
{
    NBL_CHECK(ctx, dim >= 2 && dim % 2 == 0 && dim <= max, NBL_ERROR_SHAPE,
              "%s: rotary_dim %" PRId64 " is not an even number of at most %" PRId64 " dimensions", op, dim,
              max);
    return NBL_OK;
}

/* ---- rope_table ---- */

static nbl_status infer_table(nbl_context *ctx, void *arguments)
{
    nbl__rope_table *a = arguments;
    const char *op = "rope_table";
    NBL_TRY(nbl__rope_check(ctx, op, &a->rope));
    NBL_TRY(check_dim(ctx, op, a->rope.rotary_dim, INT32_MAX));
    NBL_TRY(nbl__rope_check_dim(ctx, op, &a->rope, a->rope.rotary_dim));
    NBL_TRY(nbl__check_dtype(ctx, op, "positions", &a->positions, NBL_DTYPE_I32));
    if (nbl__has_data(&a->cu_seqlens)) NBL_TRY(nbl__check_cu_seqlens(ctx, op, &a->cu_seqlens));
    int64_t tokens = nbl__tensor_elements(&a->positions);
    nbl__output_vector(&a->cos, NBL_DTYPE_F32, 2, tokens, a->rope.rotary_dim / 2);
    nbl__output_vector(&a->sin, NBL_DTYPE_F32, 2, tokens, a->rope.rotary_dim / 2);
    return NBL_OK;
}

static const nbl__slot table_slots[] = {
    NBL_SLOT(nbl__rope_table, positions, "positions", INPUT, NULL),
    NBL_SLOT(nbl__rope_table, cu_seqlens, "cu_seqlens", OPTIONAL, NULL),
    NBL_SLOT(nbl__rope_table, cos, "cos", OUTPUT, NULL),
    NBL_SLOT(nbl__rope_table, sin, "sin", OUTPUT, NULL),
    {0},
};
static const nbl__attr table_attrs[] = {
    NBL_ATTR(nbl__rope_table, rope.theta, "theta", FLOAT, 10000),
    NBL_ATTR(nbl__rope_table, rope.rotary_dim, "rotary_dim", INT, 0),
    NBL_ATTR(nbl__rope_table, rope.max_position_embeddings, "max_position_embeddings", INT, 0),
    {0},
};
#define TABLE_ROWS(X) NBL_X86(X(rope_table_avx512)) NBL_X86(X(rope_table_avx2)) X(rope_table_ref)
NBL_IMPLS(table_impls, TABLE_ROWS);
const nbl__family nbl__rope_table_family = {
    "rope_table", sizeof(nbl__rope_table), table_slots, table_attrs, {"rope_table", infer_table, table_impls},
    {0},          {.forward = 2},
};

/* ---- rope ---- */

/* Checks what forward and backward share: x, the table if there is one, else positions. */
static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__rope_apply *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_CHECK(ctx, a->x.rank >= 2, NBL_ERROR_SHAPE, "%s: x is %s, not [tokens, heads, dimension]", op,
              nbl__show_shape(a->x.rank, a->x.shape).text);
    int64_t dim = nbl__rope_dim(&a->rope, nbl__last(&a->x)), tokens = 1;
    for (int i = 0; i < a->x.rank - 2; i++) tokens *= a->x.shape[i];
    NBL_TRY(check_dim(ctx, op, dim, nbl__last(&a->x)));
    NBL_CHECK(ctx, nbl__has_data(&a->cos) == nbl__has_data(&a->sin), NBL_ERROR_ARGUMENT, "%s: %s without %s",
              op, nbl__has_data(&a->cos) ? "cos" : "sin", nbl__has_data(&a->cos) ? "sin" : "cos");
    if (nbl__has_data(&a->cos)) {
        NBL_TRY(nbl__check_dtype(ctx, op, "cos", &a->cos, NBL_DTYPE_F32));
        NBL_TRY(nbl__check_dtype(ctx, op, "sin", &a->sin, NBL_DTYPE_F32));
        NBL_TRY(nbl__check_matrix(ctx, op, "cos", &a->cos, tokens, dim / 2));
        return nbl__check_matrix(ctx, op, "sin", &a->sin, tokens, dim / 2);
    }
    NBL_CHECK(ctx, nbl__has_data(&a->positions), NBL_ERROR_ARGUMENT, "%s: neither positions nor cos and sin",
              op);
    NBL_TRY(nbl__rope_check(ctx, op, &a->rope));
    NBL_CHECK(ctx, !nbl__rope_has_lengths(&a->rope), NBL_ERROR_ARGUMENT,
              "%s: this scaling depends on the sequences' lengths; make cos and sin with rope_table", op);
    NBL_TRY(nbl__check_dtype(ctx, op, "positions", &a->positions, NBL_DTYPE_I32));
    NBL_CHECK(ctx, nbl__tensor_elements(&a->positions) == tokens, NBL_ERROR_SHAPE,
              "%s: positions is %s, one for each of the %" PRId64 " tokens of x %s was expected", op,
              nbl__show_shape(a->positions.rank, a->positions.shape).text, tokens,
              nbl__show_shape(a->x.rank, a->x.shape).text);
    return NBL_OK;
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__rope_apply *a = arguments;
    NBL_TRY(check_inputs(ctx, "rope", a));
    nbl__output_like(&a->y, &a->x, nbl__last(&a->x), a->dtype);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__rope_apply *a = arguments;
    NBL_TRY(check_inputs(ctx, "rope_backward", a));
    NBL_TRY(nbl__check_dtype(ctx, "rope_backward", "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, "rope_backward", "dy", &a->dy, a->x.rank, a->x.shape));
    nbl__output_like(&a->dx, &a->x, nbl__last(&a->x), a->dtype);
    return NBL_OK;
}

static const nbl__slot slots[] = {
    NBL_SLOT_ROWS(nbl__rope_apply, x, "x", INPUT, NULL, 3),
    NBL_SLOT_SAVED(nbl__rope_apply, positions, "positions", OPTIONAL),
    NBL_SLOT_SAVED(nbl__rope_apply, cos, "cos", OPTIONAL),
    NBL_SLOT_SAVED(nbl__rope_apply, sin, "sin", OPTIONAL),
    NBL_SLOT_ROWS(nbl__rope_apply, y, "y", OUTPUT, NULL, 3),
    NBL_SLOT_ROWS(nbl__rope_apply, dy, "dy", COTANGENT, "y", 3),
    NBL_SLOT_ROWS(nbl__rope_apply, dx, "dx", GRADIENT, "x", 3),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__rope_apply, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__rope_apply, rope.theta, "theta", FLOAT, 10000),
    NBL_ATTR(nbl__rope_apply, rope.rotary_dim, "rotary_dim", INT, 0),
    NBL_ATTR(nbl__rope_apply, rope.max_position_embeddings, "max_position_embeddings", INT, 0),
    NBL_ATTR(nbl__rope_apply, rope.interleaved, "interleaved", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) NBL_X86(X(rope_avx512)) NBL_X86(X(rope_avx2)) X(rope_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X)                                                                                     \
    NBL_X86(X(rope_backward_avx512))                                                                         \
    NBL_X86(X(rope_backward_avx2))                                                                           \
    X(rope_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__rope_family = {
    "rope",
    sizeof(nbl__rope_apply),
    slots,
    attrs,
    {"rope", infer_forward, forward_impls},
    {"rope_backward", infer_backward, backward_impls},
    {.forward = 3, .backward = 3, .repeat = NBL_REPEAT_CHEAP},
};
