/* linear_group_cpu.c - linear_group and its backward on the CPU, through linear_fused.h.
 *
 * x is packed once for all members. dx is one product with a term per member. */
#include "ops/linear/cpu/linear_fused.h"
#include "ops/linear/linear_group.h"

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__linear_fused_scratch(ctx, members, group->count);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__linear_fused_run(call->ctx, members, group->count, call->scratch, call->scratch_bytes);
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__linear_fused_backward_scratch(ctx, members, group->count);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__linear_fused_backward_run(call->ctx, members, group->count, call->scratch,
                                          call->scratch_bytes);
}

const nbl__impl nbl__linear_group_cpu = {"linear_group_cpu", NBL_ISA_SCALAR, NULL, forward_scratch,
                                         run_forward};
const nbl__impl nbl__linear_group_backward_cpu = {"linear_group_backward_cpu", NBL_ISA_SCALAR, NULL,
                                                  backward_scratch, run_backward};
