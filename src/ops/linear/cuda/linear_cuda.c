/* linear_cuda.c - linear and linear_group on the device, through linear_cuda.h. */
#include "ops/families.h"
#include "ops/gemv/cuda/gemv_cuda.h"
#include "ops/linear/cuda/linear_cuda.h"
#include "ops/linear/linear_group.h"

#ifdef NIBBLE_CUDA_BUILT

static size_t linear_scratch(const nbl_context *ctx, const void *arguments)
{
    return nbl__cuda_linear_scratch(nbl__cuda_of(ctx), arguments, 1);
}

static size_t linear_backward_scratch(const nbl_context *ctx, const void *arguments)
{
    return nbl__cuda_linear_backward_scratch(nbl__cuda_of(ctx), arguments, 1);
}

static nbl_status run_linear(const nbl__call *call, const void *arguments)
{
    return nbl__cuda_linear_run(call, arguments, 1);
}

static nbl_status run_linear_backward(const nbl__call *call, const void *arguments)
{
    return nbl__cuda_linear_backward_run(call, arguments, 1);
}

static size_t group_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_scratch(nbl__cuda_of(ctx), members, group->count);
}

static size_t group_backward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_backward_scratch(nbl__cuda_of(ctx), members, group->count);
}

static nbl_status run_group(const nbl__call *call, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__gemv_one one;
    if (call->around.before.op && nbl__cuda_norm_joins(call->around.before.op->name,
                                                       call->around.before.arguments, call->op, group, &one))
        return nbl__cuda_gemv_one(call->ctx, &one, nbl__call_cuda(call)->stream);
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_run(call, members, group->count);
}

static nbl_status run_group_backward(const nbl__call *call, const void *arguments)
{
    const nbl__linear_group *group = arguments;
    nbl__linear members[NBL_MAX_GROUP];
    nbl__linear_group_spread(group, members);
    return nbl__cuda_linear_backward_run(call, members, group->count);
}

static const char *can_linear(const void *arguments)
{
    return nbl__dense_only(&nbl__linear_family, false, arguments);
}

static const char *can_linear_backward(const void *arguments)
{
    return nbl__dense_only(&nbl__linear_family, true, arguments);
}

static const char *can_group(const void *arguments)
{
    return nbl__dense_only(&nbl__linear_group_family, false, arguments);
}

static const char *can_group_backward(const void *arguments)
{
    return nbl__dense_only(&nbl__linear_group_family, true, arguments);
}

extern const nbl__impl nbl__linear_cuda, nbl__linear_backward_cuda;
extern const nbl__impl nbl__linear_group_cuda, nbl__linear_group_backward_cuda;
const nbl__impl nbl__linear_cuda = {"linear_cuda", NBL_ISA_SCALAR, can_linear, linear_scratch, run_linear};
const nbl__impl nbl__linear_backward_cuda = {"linear_backward_cuda", NBL_ISA_SCALAR, can_linear_backward,
                                             linear_backward_scratch, run_linear_backward};
const nbl__impl nbl__linear_group_cuda = {"linear_group_cuda", NBL_ISA_SCALAR, can_group, group_scratch,
                                          run_group};
const nbl__impl nbl__linear_group_backward_cuda = {"linear_group_backward_cuda", NBL_ISA_SCALAR,
                                                   can_group_backward, group_backward_scratch,
                                                   run_group_backward};

size_t nbl__cuda_kept(const nbl__impl *impl, const void *arguments)
{
    nbl__linear members[NBL_MAX_GROUP];
    if (impl == &nbl__linear_cuda) return nbl__cuda_fast_kept(arguments, 1);
    if (impl != &nbl__linear_group_cuda) return 0;
    const nbl__linear_group *group = arguments;
    nbl__linear_group_spread(group, members);
    return nbl__cuda_fast_kept(members, group->count);
}

#endif
