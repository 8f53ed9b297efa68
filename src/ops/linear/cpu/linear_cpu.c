/* linear_cpu.c - linear and linear_backward on the CPU: a group of one layer. See linear_fused.h. */
#include "ops/linear/cpu/linear_fused.h"

static size_t forward_scratch(const nbl_context *ctx, const void *arguments)
{
    return nbl__linear_fused_scratch(ctx, arguments, 1);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    return nbl__linear_fused_run(call->ctx, arguments, 1, call->scratch, call->scratch_bytes);
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    return nbl__linear_fused_backward_scratch(ctx, arguments, 1);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    return nbl__linear_fused_backward_run(call->ctx, arguments, 1, call->scratch, call->scratch_bytes);
}

const nbl__impl nbl__linear_cpu = {"linear_cpu", NBL_ISA_SCALAR, NULL, forward_scratch, run_forward};
const nbl__impl nbl__linear_backward_cpu = {"linear_backward_cpu", NBL_ISA_SCALAR, NULL, backward_scratch,
                                            run_backward};
