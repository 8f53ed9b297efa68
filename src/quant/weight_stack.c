/* weight_stack.c - stacks of matrices, the experts of a layer: in one piece, or as members that lie apart. See
 * weight.h. */
#include "quant/weight.h"

/* A member has everything in common with its stack but the pointers and the number of rows. */
static nbl_status check_member(nbl_context *ctx, const char *call, const char *name, const nbl_weight *stack,
                               int64_t index)
{
    const nbl_weight *w = &stack->members[index];
    int64_t shape[2] = {stack->shape[1] / nbl__stack_pieces(stack), stack->shape[2]};
    bool fits = w->rank == 2 && w->shape[0] == shape[0] && w->shape[1] == shape[1];
    NBL_CHECK(ctx, fits, NBL_ERROR_SHAPE, "%s: member %" PRId64 " of %s is %s, %s was expected", call, index,
              name, nbl__show_shape(w->rank, w->shape).text, nbl__show_shape(2, shape).text);
    NBL_CHECK(ctx, w->members == NULL, NBL_ERROR_ARGUMENT, "%s: member %" PRId64 " of %s is a stack itself",
              call, index, name);
    bool fourbit = w->format == NBL_FORMAT_NF4 || w->format == NBL_FORMAT_FP4;
    bool alike = w->format == stack->format && w->dtype == stack->dtype &&
                 (!fourbit || w->block == stack->block);
    NBL_CHECK(ctx, alike, NBL_ERROR_DTYPE,
              "%s: member %" PRId64 " of %s is %s of %s in blocks of %" PRId64
              ", the first one is %s of %s in "
              "blocks of %" PRId64 "; the experts of a layer must be stored alike",
              call, index, name, nbl_format_name(w->format), nbl__any_dtype_name(w->dtype), w->block,
              nbl_format_name(stack->format), nbl__any_dtype_name(stack->dtype), stack->block);
    return NBL_OK;
}

nbl_status nbl__check_stack(nbl_context *ctx, const char *call, const char *name, const nbl_weight *stack)
{
    int64_t n, rows;
    NBL_CHECK(ctx, stack->rank == 3, NBL_ERROR_SHAPE, "%s: %s is %s, not a stack [experts, rows, columns]",
              call, name, nbl__show_shape(stack->rank, stack->shape).text);
    if (stack->members == NULL) return nbl__check_weight(ctx, call, stack, &n, &rows);
    NBL_CHECK(ctx, (unsigned)stack->format <= NBL_FORMAT_MXFP4, NBL_ERROR_ARGUMENT, "%s: unknown format %d",
              call, (int)stack->format);
    NBL_TRY(nbl__check_shape(ctx, call, stack->rank, stack->shape, &n, &rows));
    if (stack->format == NBL_FORMAT_DENSE)
        NBL_CHECK(ctx, nbl__is_compute(stack->dtype), NBL_ERROR_DTYPE,
                  "%s: %s is %s; only f32, f16 and bf16 are allowed", call, name,
                  nbl__any_dtype_name(stack->dtype));
    int64_t count = stack->member_count, matrices = stack->shape[0];
    bool divides = matrices > 0 && count > 0 && count % matrices == 0 &&
                   stack->shape[1] % (count / matrices) == 0;
    NBL_CHECK(ctx, divides, NBL_ERROR_SHAPE, "%s: %s %s cannot consist of %" PRId64 " members", call, name,
              nbl__show_shape(3, stack->shape).text, count);
    for (int64_t i = 0; i < count; i++) NBL_TRY(check_member(ctx, call, name, stack, i));
    return NBL_OK;
}

nbl_status nbl__check_stack_members(nbl_context *ctx, const char *call, const nbl_weight *stack)
{
    int64_t n, rows;
    for (int64_t i = 0; stack->members && i < stack->member_count; i++)
        NBL_TRY(nbl__check_weight(ctx, call, &stack->members[i], &n, &rows));
    return NBL_OK;
}

nbl_weight nbl__stack_flat(const nbl_weight *stack)
{
    nbl_weight flat = *stack;
    flat.rank = 2;
    flat.shape[0] = stack->shape[0] * stack->shape[1];
    flat.shape[1] = stack->shape[2];
    flat.shape[2] = 0;
    return flat;
}

nbl__weight_rows nbl__stack_rows(const nbl_weight *stack, const nbl_weight *flat, int64_t matrix,
                                 int64_t piece)
{
    assert(matrix >= 0 && matrix < stack->shape[0] && piece >= 0 && piece < nbl__stack_pieces(stack));
    if (stack->members == NULL) return (nbl__weight_rows){flat, matrix * stack->shape[1], stack->shape[1]};
    const nbl_weight *member = &stack->members[matrix * nbl__stack_pieces(stack) + piece];
    return (nbl__weight_rows){member, 0, member->shape[0]};
}
