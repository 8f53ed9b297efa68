/* linear.c - the family linear: checks, outputs, slots, attributes. linear.h has the formulas.
 *
 * The checks are exported: linear_group and mlp call them for each of their layers, with a name for
 * messages. Implementations: the rows of cpu/linear_rows.h (linear_cpu.c), the reference
 * (linear_ref.c), and CUDA's rows (cuda/). */
#include "ops/linear/linear.h"

#include <math.h>
#include <stdio.h>

#include "base/philox.h"
#include "ops/families.h"
#include "ops/linear/cpu/linear_rows.h"

bool nbl__dropout_keeps(uint64_t seed, float dropout, int64_t index)
{
    uint32_t counter[4] = {(uint32_t)(index >> 2), (uint32_t)(index >> 34), 0, 0};
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)}, words[4];
    nbl__philox(counter, key, words);
    return nbl__uniform(words[index & 3]) >= dropout;
}

/* A tensor's name in a message, as the slots have it: "gate.lora_a", "lora_a1". */
typedef struct name_text {
    char text[64];
} name_text;

/* `name` with the part before it ("gate.") or after it ("1"). */
static name_text named(const char *part, const char *name)
{
    name_text full;
    bool before = nbl__ends_with(part, ".");
    snprintf(full.text, sizeof full.text, "%s%s", before ? part : name, before ? name : part);
    return full;
}

/* The weight's name: "gate" for the part "gate.", "w1" for "1", "w" for "". */
static name_text weight_named(const char *part)
{
    name_text full = named(part, "w");
    if (nbl__ends_with(part, ".")) snprintf(full.text, sizeof full.text, "%.*s", (int)strlen(part) - 1, part);
    return full;
}

/* A needs B, a magnitude needs both, a norm needs a magnitude. Then dtypes, shapes and the range
 * of the attributes. */
static nbl_status check_adapter(nbl_context *ctx, const char *op, const char *part, const nbl__linear *a,
                                int64_t out, int64_t in)
{
    bool has_a = nbl__has_data(&a->lora_a), has_b = nbl__has_data(&a->lora_b),
         has_m = nbl__has_data(&a->magnitude);
    bool has_norm = nbl__has_data(&a->norm);
    name_text name_a = named(part, "lora_a"), name_b = named(part, "lora_b"),
              name_m = named(part, "magnitude"), name_n = named(part, "norm");
    NBL_CHECK(ctx, has_a == has_b, NBL_ERROR_ARGUMENT, "%s: %s without %s", op,
              has_a ? name_a.text : name_b.text, has_a ? name_b.text : name_a.text);
    NBL_CHECK(ctx, !has_m || has_a, NBL_ERROR_ARGUMENT, "%s: %s without %s and %s", op, name_m.text,
              name_a.text, name_b.text);
    NBL_CHECK(ctx, !has_norm || has_m, NBL_ERROR_ARGUMENT, "%s: %s without %s", op, name_n.text, name_m.text);
    if (!has_a) return NBL_OK;
    NBL_TRY(nbl__check_float(ctx, op, name_a.text, &a->lora_a));
    NBL_TRY(nbl__check_float(ctx, op, name_b.text, &a->lora_b));
    int64_t r = a->lora_a.rank == 2 ? a->lora_a.shape[0] : -1;
    NBL_TRY(nbl__check_dims(ctx, op, name_a.text, &a->lora_a, 2, (int64_t[]){r, in}));
    NBL_TRY(nbl__check_dims(ctx, op, name_b.text, &a->lora_b, 2, (int64_t[]){out, r}));
    NBL_CHECK(ctx, isfinite(a->scale), NBL_ERROR_ARGUMENT, "%s: scale is not finite", op);
    NBL_CHECK(ctx, a->dropout >= 0 && a->dropout < 1, NBL_ERROR_ARGUMENT, "%s: dropout %g is not in [0, 1)",
              op, (double)a->dropout);
    NBL_CHECK(ctx, a->first_row >= 0 && a->first_row <= (INT64_MAX >> 8) / nbl__max_i64(in, 1),
              NBL_ERROR_ARGUMENT, "%s: first_row %" PRId64 " is negative or too large", op, a->first_row);
    if (!has_m) return NBL_OK;
    NBL_TRY(nbl__check_float(ctx, op, name_m.text, &a->magnitude));
    NBL_TRY(nbl__check_dims(ctx, op, name_m.text, &a->magnitude, 1, &out));
    if (!has_norm) return NBL_OK;
    NBL_TRY(nbl__check_dtype(ctx, op, name_n.text, &a->norm, NBL_DTYPE_F32));
    return nbl__check_dims(ctx, op, name_n.text, &a->norm, 1, &out);
}

/* seeds is a vector of int64 with the element seed_index. */
static nbl_status check_seeds(nbl_context *ctx, const char *op, const nbl__linear *a)
{
    if (!nbl__has_data(&a->seeds)) return NBL_OK;
    NBL_TRY(nbl__check_dtype(ctx, op, "seeds", &a->seeds, NBL_DTYPE_I64));
    NBL_CHECK(ctx, a->seeds.rank == 1 && a->seed_index >= 0 && a->seed_index < a->seeds.shape[0],
              NBL_ERROR_SHAPE,
              "%s: seeds is %s, a vector with the element seed_index %" PRId64 " was expected", op,
              nbl__show_shape(a->seeds.rank, a->seeds.shape).text, a->seed_index);
    return NBL_OK;
}

/* Checks what forward and backward share: W, x, the bias, the seeds and the adapter. */
static nbl_status check_inputs(nbl_context *ctx, const char *op, const char *part, const nbl__linear *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    name_text name_w = weight_named(part), name_b = named(part, "b");
    NBL_CHECK(ctx, a->w.rank == 2, NBL_ERROR_SHAPE, "%s: %s is %s, not a matrix [out, in]", op, name_w.text,
              nbl__show_shape(a->w.rank, a->w.shape).text);
    NBL_CHECK(ctx, a->w.format != NBL_FORMAT_DENSE || nbl__is_compute(a->w.dtype), NBL_ERROR_DTYPE,
              "%s: %s %s is %s, not f32, f16, bf16 or packed", op, name_w.text,
              nbl__show_shape(2, a->w.shape).text, nbl_dtype_name(a->w.dtype));
    int64_t out = a->w.shape[0], in = a->w.shape[1];
    NBL_TRY(nbl__check_dtype(ctx, op, "x", &a->x, a->dtype));
    NBL_CHECK(ctx, a->x.rank >= 1 && nbl__last(&a->x) == in, NBL_ERROR_SHAPE,
              "%s: x is %s, its last dimension must be %" PRId64 ", that of %s %s", op,
              nbl__show_shape(a->x.rank, a->x.shape).text, in, name_w.text,
              nbl__show_shape(2, a->w.shape).text);
    if (nbl__has_data(&a->bias)) {
        if (a->bias.dtype != NBL_DTYPE_F32) /* a trained bias is f32 for any compute dtype */
            NBL_TRY(nbl__check_dtype(ctx, op, name_b.text, &a->bias, a->dtype));
        NBL_TRY(nbl__check_dims(ctx, op, name_b.text, &a->bias, 1, &out));
    }
    NBL_TRY(check_seeds(ctx, op, a));
    return check_adapter(ctx, op, part, a, out, in);
}

nbl_status nbl__linear_infer(nbl_context *ctx, const char *op, const char *part, nbl__linear *a)
{
    NBL_TRY(check_inputs(ctx, op, part, a));
    nbl__output_like(&a->y, &a->x, a->w.shape[0], a->dtype);
    return NBL_OK;
}

nbl_status nbl__linear_infer_backward(nbl_context *ctx, const char *op, const char *part, nbl__linear *a)
{
    NBL_TRY(check_inputs(ctx, op, part, a));
    int64_t out = a->w.shape[0], in = a->w.shape[1];
    NBL_TRY(nbl__check_dtype(ctx, op, named(part, "dy").text, &a->dy, a->dtype));
    NBL_TRY(nbl__check_matrix(ctx, op, named(part, "dy").text, &a->dy, nbl__tensor_rows(&a->x), out));
    nbl__output_like(&a->dx, &a->x, in, a->dtype);
    /* gradients exist only for tensors that are given: absent ones are no outputs */
    nbl__output_none(&a->dbias);
    nbl__output_none(&a->dlora_a);
    nbl__output_none(&a->dlora_b);
    nbl__output_none(&a->dmagnitude);
    nbl__output_none(&a->dw);
    if (a->train_w) nbl__output_vector(&a->dw, NBL_DTYPE_F32, 2, out, in);
    if (nbl__has_data(&a->bias)) nbl__output_vector(&a->dbias, NBL_DTYPE_F32, 1, out, 0);
    if (nbl__has_data(&a->lora_a)) {
        nbl__output_vector(&a->dlora_a, NBL_DTYPE_F32, 2, a->lora_a.shape[0], in);
        nbl__output_vector(&a->dlora_b, NBL_DTYPE_F32, 2, out, a->lora_a.shape[0]);
    }
    if (nbl__has_data(&a->magnitude)) nbl__output_vector(&a->dmagnitude, NBL_DTYPE_F32, 1, out, 0);
    return NBL_OK;
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    return nbl__linear_infer(ctx, "linear", "", arguments);
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    return nbl__linear_infer_backward(ctx, "linear_backward", "", arguments);
}

/* The bias is not kept: backward does not read it. */
/* ---- cost ---- */

double nbl__linear_forward_flops(const nbl__linear *a, double tokens)
{
    double in = (double)a->w.shape[1], out = (double)a->w.shape[0], rank = (double)nbl__linear_rank(a);
    return 2 * tokens * (in * out + rank * (in + out)) + (nbl__has_data(&a->magnitude) ? tokens * out : 0);
}

double nbl__linear_backward_flops(const nbl__linear *a, double tokens, bool dx)
{
    double in = (double)a->w.shape[1], out = (double)a->w.shape[0], rank = (double)nbl__linear_rank(a);
    bool trains_adapter = a->dlora_a.data != NULL;
    double flops = dx ? 2 * tokens * (in * out + rank * in) : 0;
    if (rank > 0 && (dx || trains_adapter)) flops += 2 * tokens * out * rank;
    if (trains_adapter) flops += 2 * tokens * rank * (2 * in + out);
    if (nbl__has_data(&a->magnitude)) flops += tokens * out;
    if (a->dmagnitude.data != NULL) flops += 2 * tokens * out * (in + rank + 1);
    return flops;
}

static double flops(const void *arguments, bool backward)
{
    const nbl__linear *a = arguments;
    double tokens = (double)nbl__tensor_rows(&a->x);
    return backward ? nbl__linear_backward_flops(a, tokens, a->dx.data != NULL)
                    : nbl__linear_forward_flops(a, tokens);
}

static const nbl__slot slots[] = {
    NBL_SLOT_SAVED_ROWS(nbl__linear, x, "x", INPUT, 2),
    NBL_SLOT_SAVED(nbl__linear, w, "w", WEIGHT),
    NBL_SLOT(nbl__linear, bias, "b", OPTIONAL, NULL),
    NBL_SLOT_SAVED(nbl__linear, lora_a, "lora_a", OPTIONAL),
    NBL_SLOT_SAVED(nbl__linear, lora_b, "lora_b", OPTIONAL),
    NBL_SLOT_SAVED(nbl__linear, magnitude, "magnitude", OPTIONAL),
    NBL_SLOT_SAVED(nbl__linear, norm, "norm", OPTIONAL),
    NBL_SLOT_SAVED(nbl__linear, seeds, "seeds", OPTIONAL),
    NBL_SLOT_ROWS(nbl__linear, y, "y", OUTPUT, NULL, 2),
    NBL_SLOT_ROWS(nbl__linear, dy, "dy", COTANGENT, "y", 2),
    NBL_SLOT_ROWS(nbl__linear, dx, "dx", GRADIENT, "x", 2),
    NBL_SLOT(nbl__linear, dbias, "db", GRADIENT, "b"),
    NBL_SLOT(nbl__linear, dlora_a, "dlora_a", GRADIENT, "lora_a"),
    NBL_SLOT(nbl__linear, dlora_b, "dlora_b", GRADIENT, "lora_b"),
    NBL_SLOT(nbl__linear, dmagnitude, "dmagnitude", GRADIENT, "magnitude"),
    NBL_SLOT(nbl__linear, dw, "dw", GRADIENT, "w"),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__linear, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__linear, scale, "scale", FLOAT, 1),
    NBL_ATTR(nbl__linear, dropout, "dropout", FLOAT, 0),
    NBL_ATTR(nbl__linear, seed, "seed", SEED, 0),
    NBL_ATTR(nbl__linear, seed_index, "seed_index", INT, 0),
    NBL_ATTR(nbl__linear, first_row, "first_row", INT, 0),
    NBL_ATTR(nbl__linear, threshold, "threshold", FLOAT, 6),
    NBL_ATTR(nbl__linear, dequantized, "decoded", FLAG, 0),
    NBL_ATTR(nbl__linear, train_w, "train_w", FLAG, 0),
    NBL_ATTR(nbl__linear, accumulate, "accumulate", FLAG, 0),
    {0},
};
NBL_LINEAR_ROWS(NBL_LINEAR_ROW_DECLARATION, linear, forward)
NBL_LINEAR_ROWS(NBL_LINEAR_ROW_DECLARATION, linear_backward, backward)
static const nbl__impl *const forward_impls[] = {
    NBL_LINEAR_ROWS(NBL_LINEAR_ROW_ADDRESS, linear, forward) & nbl__linear_ref, NULL};
static const nbl__impl *const backward_impls[] = {
    NBL_LINEAR_ROWS(NBL_LINEAR_ROW_ADDRESS, linear_backward, backward) & nbl__linear_backward_ref, NULL};
const nbl__family nbl__linear_family = {
    "linear",
    sizeof(nbl__linear),
    slots,
    attrs,
    {"linear", infer_forward, forward_impls},
    {"linear_backward", infer_backward, backward_impls},
    {.flops = flops},
};
