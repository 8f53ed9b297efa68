/* linear_cpu.c - linear and linear_backward on the CPU: a group of one layer. See linear_fused.h, and
 * linear_rows.h for the rows. */
#include "ops/linear/cpu/linear_fused.h"
#include "ops/linear/cpu/linear_rows.h"

static nbl__linear_traits forward_traits(const nbl__linear *a)
{
    return (nbl__linear_traits){.dtype = a->dtype,
                                .tokens = nbl__tensor_rows(&a->x),
                                .codes = nbl__linear_by_codes(a),
                                .outputs = true};
}

static size_t forward_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *a)
{
    return nbl__linear_fused_scratch(ctx, algo, a, 1);
}

static nbl_status forward_run(const nbl__call *call, nbl__gemm_algo algo, const nbl__linear *a)
{
    return nbl__linear_fused_run(call->ctx, algo, a, 1, call->scratch, call->scratch_bytes);
}

/* Only the gradient of a magnitude needs outputs again. */
static nbl__linear_traits backward_traits(const nbl__linear *a)
{
    return (nbl__linear_traits){.dtype = a->dtype,
                                .tokens = nbl__tensor_rows(&a->x),
                                .backward = true,
                                .codes = nbl__linear_by_codes(a) && nbl__has_data(&a->magnitude),
                                .outputs = nbl__linear_rank(a) > 0};
}

static size_t backward_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *a)
{
    return nbl__linear_fused_backward_scratch(ctx, algo, a, 1);
}

static nbl_status backward_run(const nbl__call *call, nbl__gemm_algo algo, const nbl__linear *a)
{
    return nbl__linear_fused_backward_run(call->ctx, algo, a, 1, call->scratch, call->scratch_bytes);
}

NBL_LINEAR_ROWS(NBL_LINEAR_ROW, linear, forward)
NBL_LINEAR_ROWS(NBL_LINEAR_ROW, linear_backward, backward)
