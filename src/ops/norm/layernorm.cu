/* layernorm.cu - layernorm and layernorm_backward: y = (x - mean) / √(var + eps) · w + b. Kernels,
 * bytes and limits are in norm.cuh. This file only translates the operator's arguments. */
#include "ops/norm/norm.cuh"

extern "C" {
#include "ops/norm/layernorm.h"
}

using namespace nbl_cuda;

/* The inputs of both directions. */
static norm_call call_of(const nbl__layernorm *a)
{
    norm_call c = {};
    c.x = a->x.data;
    c.w = a->w.data;
    c.w_dtype = a->w.dtype;
    c.bias = a->bias.data;
    c.bias_dtype = a->bias.dtype;
    c.rows = nbl__tensor_rows(&a->x);
    c.columns = nbl__last(&a->x);
    c.eps = a->eps;
    c.scale = nbl__norm_scale(a->scale);
    return c;
}

/* CENTER = true. There is no residual here, and no rounding before the weight. */
static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__layernorm *a = static_cast<const nbl__layernorm *>(arguments);
    norm_call c = call_of(a);
    c.y = a->y.data;
    return norm_forward<true>(call, a->dtype, c);
}

/* x is read again; mean and variance are computed again. Scratch: the blocks' dw and db. */
static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__layernorm *a = static_cast<const nbl__layernorm *>(arguments);
    norm_call c = call_of(a);
    c.dy = a->dy.data;
    c.dx = a->dx.data;
    return norm_backward<true>(call, a->dtype, c, static_cast<float *>(a->dw.data),
                               static_cast<float *>(a->dbias.data), a->accumulate);
}

/* The blocks' sums for dw and db, each with up to 64 bytes of alignment. */
static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__layernorm *a = static_cast<const nbl__layernorm *>(arguments);
    (void)ctx;
    return 2 * (sums_bytes(nbl__tensor_rows(&a->x), nbl__last(&a->x)) + 64);
}

extern "C" {
/* Every shape and alignment is accepted: norm_general.cuh takes what norm.cuh cannot. */
const nbl__impl nbl__layernorm_cuda = {.name = "layernorm_cuda",
                                       .needs = NBL_ISA_SCALAR,
                                       .can = nullptr,
                                       .scratch = nullptr,
                                       .run = run_forward};
const nbl__impl nbl__layernorm_backward_cuda = {.name = "layernorm_backward_cuda",
                                                .needs = NBL_ISA_SCALAR,
                                                .can = nullptr,
                                                .scratch = backward_scratch,
                                                .run = run_backward};
}
