/* dora_norm.c - the family dora_norm: checks, outputs, slots, attributes. dora_norm.h has the
 * formula. */
#include "ops/linear/dora_norm.h"

#include <math.h>

#include "ops/families.h"

static nbl_status infer(nbl_context *ctx, void *arguments)
{
    static const char op[] = "dora_norm";
    nbl__dora_norm *a = arguments;
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_CHECK(ctx, a->w.rank == 2, NBL_ERROR_SHAPE, "%s: w is %s, not a matrix [out, in]", op,
              nbl__show_shape(a->w.rank, a->w.shape).text);
    NBL_CHECK(ctx, a->w.format != NBL_FORMAT_DENSE || nbl__is_compute(a->w.dtype), NBL_ERROR_DTYPE,
              "%s: w %s is %s, not f32, f16, bf16 or packed", op, nbl__show_shape(2, a->w.shape).text,
              nbl_dtype_name(a->w.dtype));
    int64_t out = a->w.shape[0], in = a->w.shape[1];
    int64_t r = a->lora_a.rank == 2 ? a->lora_a.shape[0] : -1;
    NBL_TRY(nbl__check_float(ctx, op, "lora_a", &a->lora_a));
    NBL_TRY(nbl__check_float(ctx, op, "lora_b", &a->lora_b));
    NBL_TRY(nbl__check_dims(ctx, op, "lora_a", &a->lora_a, 2, (int64_t[]){r, in}));
    NBL_TRY(nbl__check_dims(ctx, op, "lora_b", &a->lora_b, 2, (int64_t[]){out, r}));
    NBL_CHECK(ctx, isfinite(a->scale), NBL_ERROR_ARGUMENT, "%s: scale is not finite", op);
    nbl__output_vector(&a->norm, NBL_DTYPE_F32, 1, out, 0);
    /* w_norm2_out is an output only if w_norm2 is not given */
    nbl__output_vector(&a->w_norm2_out, NBL_DTYPE_F32, 1, out, 0);
    if (!nbl__has_data(&a->w_norm2)) return NBL_OK;
    nbl__output_none(&a->w_norm2_out);
    NBL_TRY(nbl__check_dtype(ctx, op, "w_norm2", &a->w_norm2, NBL_DTYPE_F32));
    return nbl__check_dims(ctx, op, "w_norm2", &a->w_norm2, 1, &out);
}

/* Row i: ‖Wi‖² + 2s·(W·Aᵀ)i·Bi + s²·Bi·(A·Aᵀ)·Biᵀ. */
static double flops(const void *arguments, bool backward)
{
    const nbl__dora_norm *a = arguments;
    double out = (double)a->w.shape[0], in = (double)a->w.shape[1], rank = (double)a->lora_a.shape[0];
    (void)backward;
    return 2 * in * out * (rank + 1) + 2 * rank * rank * (in + out) + 4 * rank * out;
}

static const nbl__slot slots[] = {
    NBL_SLOT(nbl__dora_norm, w, "w", WEIGHT, NULL),
    NBL_SLOT(nbl__dora_norm, lora_a, "lora_a", INPUT, NULL),
    NBL_SLOT(nbl__dora_norm, lora_b, "lora_b", INPUT, NULL),
    NBL_SLOT(nbl__dora_norm, w_norm2, "w_norm2", OPTIONAL, NULL),
    NBL_SLOT(nbl__dora_norm, norm, "norm", OUTPUT, NULL),
    NBL_SLOT(nbl__dora_norm, w_norm2_out, "w_norm2_out", OUTPUT, NULL),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__dora_norm, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__dora_norm, scale, "scale", FLOAT, 1),
    {0},
};
#define ROWS(X) X(dora_norm_cpu) X(dora_norm_ref)
NBL_IMPLS(impls, ROWS);
const nbl__family nbl__dora_norm_family = {
    "dora_norm", sizeof(nbl__dora_norm), slots, attrs, {"dora_norm", infer, impls}, {0}, {.flops = flops},
};
