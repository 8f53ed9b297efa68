/* linear.c - the rows of linear and linear_backward: checks and outputs. Implementations are in ref/. */
#include "ops/linear.h"

#include <math.h>

#include "base/philox.h"
#include "ops/families.h"

bool nbl__dropout_keeps(uint64_t seed, float dropout, int64_t index)
{
    uint32_t counter[4] = {(uint32_t)(index >> 2), (uint32_t)(index >> 34), 0, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, words[4];
    nbl__philox(counter, key, words);
    return nbl__uniform(words[index & 3]) >= dropout;
}

static nbl_status check_adapter(nbl_context *ctx, const char *op, const nbl__linear *a, int64_t out,
                                int64_t in)
{
    bool has_a = nbl__given(&a->lora_a), has_b = nbl__given(&a->lora_b), has_m = nbl__given(&a->magnitude);
    NBL_CHECK(ctx, has_a == has_b, NBL_ERROR_ARGUMENT, "%s: %s without %s", op, has_a ? "lora_a" : "lora_b",
              has_a ? "lora_b" : "lora_a");
    NBL_CHECK(ctx, !has_m || has_a, NBL_ERROR_ARGUMENT, "%s: magnitude without lora_a and lora_b", op);
    if (!has_a) return NBL_OK;
    NBL_TRY(nbl__check_float(ctx, op, "lora_a", &a->lora_a));
    NBL_TRY(nbl__check_float(ctx, op, "lora_b", &a->lora_b));
    int64_t r = a->lora_a.rank == 2 ? a->lora_a.shape[0] : -1;
    NBL_TRY(nbl__check_dims(ctx, op, "lora_a", &a->lora_a, 2, (int64_t[]){r, in}));
    NBL_TRY(nbl__check_dims(ctx, op, "lora_b", &a->lora_b, 2, (int64_t[]){out, r}));
    NBL_CHECK(ctx, isfinite(a->scale), NBL_ERROR_ARGUMENT, "%s: scale is not finite", op);
    NBL_CHECK(ctx, a->dropout >= 0 && a->dropout < 1, NBL_ERROR_ARGUMENT, "%s: dropout %g is not in [0, 1)",
              op, (double)a->dropout);
    if (!has_m) return NBL_OK;
    NBL_TRY(nbl__check_float(ctx, op, "magnitude", &a->magnitude));
    return nbl__check_dims(ctx, op, "magnitude", &a->magnitude, 1, &out);
}

static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__linear *a)
{
    NBL_CHECK(ctx, nbl__is_compute(a->dtype), NBL_ERROR_DTYPE, "%s: dtype %s is not f32, f16 or bf16", op,
              nbl_dtype_name(a->dtype));
    NBL_CHECK(ctx, a->w.rank == 2, NBL_ERROR_SHAPE, "%s: w is %s, not a matrix [out, in]", op,
              nbl__show_shape(a->w.rank, a->w.shape).text);
    NBL_CHECK(ctx, a->w.format != NBL_FORMAT_DENSE || nbl__is_compute(a->w.dtype), NBL_ERROR_DTYPE,
              "%s: w %s is %s, not f32, f16, bf16 or packed", op, nbl__show_shape(2, a->w.shape).text,
              nbl_dtype_name(a->w.dtype));
    int64_t out = a->w.shape[0], in = a->w.shape[1];
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_CHECK(ctx, a->x.rank >= 1 && nbl__last(&a->x) == in, NBL_ERROR_SHAPE,
              "%s: x is %s, its last dimension must be %" PRId64, op,
              nbl__show_shape(a->x.rank, a->x.shape).text, in);
    if (nbl__given(&a->bias)) {
        NBL_TRY(nbl__check_dtype(ctx, op, "b", &a->bias, a->dtype));
        NBL_TRY(nbl__check_dims(ctx, op, "b", &a->bias, 1, &out));
    }
    return check_adapter(ctx, op, a, out, in);
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__linear *a = arguments;
    NBL_TRY(check_inputs(ctx, "linear", a));
    nbl__output_like(&a->y, &a->x, a->w.shape[0], a->dtype);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__linear *a = arguments;
    const char *op = "linear_backward";
    NBL_TRY(check_inputs(ctx, op, a));
    int64_t out = a->w.shape[0], in = a->w.shape[1];
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_matrix(ctx, op, "dy", &a->dy, nbl__tensor_rows(&a->x), out));
    nbl__output_like(&a->dx, &a->x, in, a->dtype);
    nbl__output_vector(&a->dbias, NBL_DTYPE_F32, 1, out, 0);
    if (nbl__given(&a->lora_a)) {
        nbl__output_vector(&a->dlora_a, NBL_DTYPE_F32, 2, a->lora_a.shape[0], in);
        nbl__output_vector(&a->dlora_b, NBL_DTYPE_F32, 2, out, a->lora_a.shape[0]);
        nbl__output_vector(&a->dmagnitude, NBL_DTYPE_F32, 1, out, 0);
    }
    return NBL_OK;
}

const nbl__op nbl__op_linear = {"linear", infer_forward, &nbl__linear_ref, 1};
const nbl__op nbl__op_linear_backward = {"linear_backward", infer_backward, &nbl__linear_backward_ref, 1};
