/* bindings.c - how files become calls: one function per operator, as docs/OPERATORS.md tells users. */
#include "ops/families.h"
#include "ops/linear.h"
#include "run.h"

/* ---- dequantize, quantize ---- */

static nbl_status bind_dequantize(run *r)
{
    nbl_weight w;
    nbl_dtype dtype;
    bool transpose;
    NBL_TRY(run_dtype(r, &dtype));
    NBL_TRY(run_flag(r, "transpose", false, &transpose));
    NBL_TRY(run_weight(r, "w", &w));
    nbl_tensor y = {.dtype = dtype, .rank = w.rank};
    memcpy(y.shape, w.shape, sizeof y.shape);
    int64_t rows = nbl__tensor_rows(&y);
    if (transpose) y = (nbl_tensor){.dtype = dtype, .rank = 2, .shape = {w.shape[w.rank - 1], rows}};
    NBL_TRY(run_output(r, "y", &y));
    r->impl = "dequantize";
    return nbl_dequantize(r->ctx, &w, 0, rows, dtype, transpose, y.data);
}

/* ---- linear ---- */

static nbl_status read_linear(run *r, nbl__linear *a)
{
    double scale, threshold, dropout, seed;
    NBL_TRY(run_dtype(r, &a->dtype));
    NBL_TRY(run_number(r, "scale", 1, &scale));
    NBL_TRY(run_number(r, "threshold", 6, &threshold));
    NBL_TRY(run_number(r, "dropout", 0, &dropout));
    NBL_TRY(run_number(r, "seed", 0, &seed));
    NBL_CHECK(r->ctx, seed >= 0 && seed < 0x1p53, NBL_ERROR_ARGUMENT, "%s: attribute seed is out of range",
              r->op);
    a->scale = (float)scale;
    a->threshold = (float)threshold;
    a->dropout = (float)dropout;
    a->seed = (uint64_t)seed;
    NBL_TRY(run_tensor(r, "x", &a->x));
    NBL_TRY(run_weight(r, "w", &a->w));
    NBL_TRY(run_optional(r, "b", &a->bias));
    NBL_TRY(run_optional(r, "lora_a", &a->lora_a));
    NBL_TRY(run_optional(r, "lora_b", &a->lora_b));
    NBL_TRY(run_optional(r, "magnitude", &a->magnitude));
    return run_optional(r, "dy", &a->dy);
}

static nbl_status bind_linear(run *r)
{
    nbl__linear a = {0};
    NBL_TRY(read_linear(r, &a));
    NBL_TRY(nbl__op_linear.infer(r->ctx, &a));
    if (nbl__given(&a.dy)) NBL_TRY(nbl__op_linear_backward.infer(r->ctx, &a));
    NBL_TRY(run_output(r, "y", &a.y));
    NBL_TRY(run_op(r, &nbl__op_linear, &a));
    if (!nbl__given(&a.dy)) return NBL_OK;
    NBL_TRY(run_output(r, "dx", &a.dx));
    if (nbl__given(&a.bias)) NBL_TRY(run_output(r, "db", &a.dbias));
    if (nbl__given(&a.lora_a)) NBL_TRY(run_output(r, "dlora_a", &a.dlora_a));
    if (nbl__given(&a.lora_b)) NBL_TRY(run_output(r, "dlora_b", &a.dlora_b));
    if (nbl__given(&a.magnitude)) NBL_TRY(run_output(r, "dmagnitude", &a.dmagnitude));
    return run_op(r, &nbl__op_linear_backward, &a);
}

const binding run_bindings[] = {
    {"dequantize", bind_dequantize},
    {"linear", bind_linear},
    {NULL, NULL},
};
