/* linear_group_cpu.c - linear_group and its backward on the CPU, through linear_fused.h. See
 * linear_rows.h for the rows.
 *
 * x is packed once for all members. dx is one product with a term per member. */
#include "ops/linear/cpu/linear_fused.h"
#include "ops/linear/cpu/linear_rows.h"
#include "ops/linear/linear_group.h"

static nbl__linear_traits traits_of(const nbl__linear_group *group, bool backward)
{
    const nbl__linear *first = &group->members[0];
    nbl__linear_traits traits = {.dtype = first->dtype,
                                 .tokens = nbl__tensor_rows(&first->x),
                                 .backward = backward,
                                 .outputs = !backward};
    for (const nbl__linear *a = first; a < first + group->count; a++) {
        bool recomputed = nbl__has_data(&a->magnitude); /* the gradient of a magnitude needs outputs again */
        traits.codes |= a->w.format == NBL_FORMAT_INT8 && !first->dequantized && (!backward || recomputed);
        traits.outputs |= nbl__linear_rank(a) > 0;
    }
    return traits;
}

static nbl__linear_traits forward_traits(const nbl__linear_group *group)
{
    return traits_of(group, false);
}

static size_t forward_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__linear_fused_scratch(ctx, algo, members, group->count);
}

static nbl_status forward_run(const nbl__call *call, nbl__gemm_algo algo, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__linear_fused_run(call->ctx, algo, members, group->count, call->scratch, call->scratch_bytes);
}

static nbl__linear_traits backward_traits(const nbl__linear_group *group)
{
    return traits_of(group, true);
}

static size_t backward_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__linear_fused_backward_scratch(ctx, algo, members, group->count);
}

static nbl_status backward_run(const nbl__call *call, nbl__gemm_algo algo, const nbl__linear_group *group)
{
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__linear_fused_backward_run(call->ctx, algo, members, group->count, call->scratch,
                                          call->scratch_bytes);
}

NBL_LINEAR_ROWS(NBL_LINEAR_ROW, linear_group, forward)
NBL_LINEAR_ROWS(NBL_LINEAR_ROW, linear_group_backward, backward)
