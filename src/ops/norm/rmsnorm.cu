/* rmsnorm.cu - rmsnorm and rmsnorm_backward: y = x / √(mean(x²) + eps) · (w + offset), with an
 * optional residual before it. Kernels, bytes and limits are in norm.cuh. This file only translates
 * the operator's arguments. */
#include "ops/norm/norm.cuh"

extern "C" {
#include "ops/norm/rmsnorm.h"
}

using namespace nbl_cuda;

/* The inputs of both directions. */
static norm_call call_of(const nbl__rmsnorm *a)
{
    norm_call c = {};
    c.x = a->x.data;
    c.residual = a->residual.data;
    c.w = a->w.data;
    c.w_dtype = a->w.dtype;
    c.rows = nbl__tensor_rows(&a->x);
    c.columns = nbl__last(&a->x);
    c.eps = a->eps;
    c.offset = a->w.data ? a->offset : 0; /* without w the factor is 1 */
    c.scale = nbl__norm_scale(a->scale);
    c.round_first = a->round == NBL_ROUND_BEFORE_WEIGHT;
    return c;
}

/* With a residual the kernel also stores h = x + residual, rounded to the dtype. */
static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__rmsnorm *a = static_cast<const nbl__rmsnorm *>(arguments);
    norm_call c = call_of(a);
    c.sum = a->residual_out.data;
    c.y = a->y.data;
    return norm_forward<false>(call, a->dtype, c);
}

/* h is residual_out if the caller kept it, else x + residual is computed again. Scratch: the
 * blocks' dw. */
static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    nbl__rmsnorm a = nbl__rmsnorm_from_sum(static_cast<const nbl__rmsnorm *>(arguments));
    norm_call c = call_of(&a);
    c.dy = a.dy.data;
    c.dresidual = a.dresidual.data;
    c.dx = a.dx.data;
    return norm_backward<false>(call, a.dtype, c, static_cast<float *>(a.dw.data), nullptr, a.accumulate);
}

/* The blocks' sums for dw, each with up to 64 bytes of alignment. */
static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__rmsnorm *a = static_cast<const nbl__rmsnorm *>(arguments);
    (void)ctx;
    return sums_bytes(nbl__tensor_rows(&a->x), nbl__last(&a->x)) + 64;
}

extern "C" {
const nbl__impl nbl__rmsnorm_cuda = {
    .name = "rmsnorm_cuda", .needs = NBL_ISA_SCALAR, .can = nullptr, .scratch = nullptr, .run = run_forward};
const nbl__impl nbl__rmsnorm_backward_cuda = {.name = "rmsnorm_backward_cuda",
                                              .needs = NBL_ISA_SCALAR,
                                              .can = nullptr,
                                              .scratch = backward_scratch,
                                              .run = run_backward};
}
