/* expert_order.c - the family expert_order: checks, and the reference, which is the CPU's only implementation. See
 * expert_order.h. */
#include "ops/moe/expert_order.h"

#include "ops/families.h"

static nbl_status infer(nbl_context *ctx, void *arguments)
{
    nbl__expert_order *a = arguments;
    const char *op = "expert_order";
    NBL_TRY(nbl__check_dtype(ctx, op, "experts", &a->experts, NBL_DTYPE_I32));
    int64_t pairs = nbl__tensor_elements(&a->experts);
    NBL_CHECK(ctx, a->experts.rank >= 1 && pairs <= INT32_MAX, NBL_ERROR_SHAPE, "%s: experts is %s", op,
              nbl__show_shape(a->experts.rank, a->experts.shape).text);
    NBL_CHECK(ctx, a->count >= 1 && a->count < INT32_MAX, NBL_ERROR_ARGUMENT, "%s: count %" PRId64, op,
              a->count);
    nbl__output_vector(&a->offsets, NBL_DTYPE_I32, 1, a->count + 1, 0);
    nbl__output_vector(&a->pairs, NBL_DTYPE_I32, 1, pairs, 0);
    nbl__output_vector(&a->rows, NBL_DTYPE_I32, 1, pairs, 0);
    return NBL_OK;
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__expert_order *a = arguments;
    const int32_t *experts = a->experts.data;
    int32_t *offsets = a->offsets.data, *pairs = a->pairs.data, *rows = a->rows.data;
    int64_t n = nbl__tensor_elements(&a->experts);
    for (int64_t i = 0; i < n; i++)
        NBL_CHECK(call->ctx, experts[i] >= 0 && experts[i] < a->count, NBL_ERROR_ARGUMENT,
                  "%s: experts[%" PRId64 "] is %" PRId32 ", there are %" PRId64, call->op, i, experts[i],
                  a->count);
    /* offsets[e + 1] counts expert e, then is the first row of e while rows are given out, and at last the end of e. */
    memset(offsets, 0, (size_t)(a->count + 1) * sizeof *offsets);
    for (int64_t i = 0; i < n; i++) offsets[experts[i] + 1]++;
    int32_t first = 0;
    for (int64_t e = 0; e < a->count; e++) {
        int32_t own = offsets[e + 1];
        offsets[e + 1] = first;
        first += own;
    }
    for (int64_t i = 0; i < n; i++) {
        int32_t row = offsets[experts[i] + 1]++;
        rows[i] = row;
        pairs[row] = (int32_t)i;
    }
    return NBL_OK;
}

nbl_status nbl__expert_order_check(nbl_context *ctx, const char *op, const nbl_tensor *offsets,
                                   const nbl_tensor *pairs)
{
    const int32_t *offset = offsets->data, *pair = pairs->data;
    int64_t count = offsets->shape[0] - 1, n = pairs->shape[0];
    NBL_CHECK(ctx, offset[0] == 0 && offset[count] == n, NBL_ERROR_ARGUMENT,
              "%s: offsets run from %" PRId32 " to %" PRId32 ", 0 to %" PRId64 " was expected", op, offset[0],
              offset[count], n);
    for (int64_t e = 0; e < count; e++)
        NBL_CHECK(ctx, offset[e] <= offset[e + 1] && offset[e + 1] <= n, NBL_ERROR_ARGUMENT,
                  "%s: offsets[%" PRId64 "] is %" PRId32 " and offsets[%" PRId64 "] %" PRId32, op, e,
                  offset[e], e + 1, offset[e + 1]);
    for (int64_t i = 0; i < n; i++)
        NBL_CHECK(ctx, pair[i] >= 0 && pair[i] < n, NBL_ERROR_ARGUMENT,
                  "%s: pairs[%" PRId64 "] is %" PRId32 ", there are %" PRId64, op, i, pair[i], n);
    return NBL_OK;
}

static const nbl__slot slots[] = {
    NBL_SLOT(nbl__expert_order, experts, "experts", INPUT, NULL),
    NBL_SLOT(nbl__expert_order, offsets, "offsets", OUTPUT, NULL),
    NBL_SLOT(nbl__expert_order, pairs, "pairs", OUTPUT, NULL),
    NBL_SLOT(nbl__expert_order, rows, "rows", OUTPUT, NULL),
    {0},
};
static const nbl__attr attrs[] = {NBL_ATTR(nbl__expert_order, count, "count", INT, 0), {0}};
static const nbl__impl ref = {"expert_order_ref", NBL_ISA_SCALAR, NULL, NULL, run};
static const nbl__impl *const impls[] = {&ref, NULL};
const nbl__family nbl__expert_order_family = {
    "expert_order",
    sizeof(nbl__expert_order),
    slots,
    attrs,
    {"expert_order", infer, impls},
    {0},
    {.moves = true, .repeat = NBL_REPEAT_CHEAP},
};
