/* short_conv.c - the families short_conv and short_conv_step: checks, outputs, slots, and the states,
 * which every implementation moves alike. short_conv.h has the formulas. */
#include "ops/recurrent/short_conv.h"

#include "ops/common/sequences.h"
#include "ops/families.h"

/* Checks of both families: x, w, and the number of weights of a channel. */
static nbl_status check_inputs(nbl_context *ctx, const char *op, nbl_dtype dtype, const nbl_tensor *x,
                               const nbl_tensor *w)
{
    NBL_TRY(nbl__check_compute(ctx, op, dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "x", x, dtype));
    NBL_TRY(nbl__check_float(ctx, op, "w", w));
    NBL_CHECK(ctx, x->rank == 2, NBL_ERROR_SHAPE, "%s: x is %s, not [tokens, channels]", op,
              nbl__show_shape(x->rank, x->shape).text);
    const int64_t weights[3] = {x->shape[1], 1, w->rank == 3 ? w->shape[2] : -1};
    NBL_TRY(nbl__check_dims(ctx, op, "w", w, 3, weights));
    NBL_CHECK(ctx, w->shape[2] >= 2 && w->shape[2] <= NBL_SHORT_CONV_MAX, NBL_ERROR_SHAPE,
              "%s: w is %s, with 2 to %d weights of a channel", op, nbl__show_shape(w->rank, w->shape).text,
              NBL_SHORT_CONV_MAX);
    return NBL_OK;
}

/* [sequences, K - 1, channels] */
static void state_shape(const nbl_tensor *w, int64_t sequences, int64_t shape[3])
{
    shape[0] = sequences;
    shape[1] = w->shape[2] - 1;
    shape[2] = w->shape[0];
}

static void output_state(nbl_tensor *out, const nbl_tensor *w, int64_t sequences, nbl_dtype dtype)
{
    out->dtype = dtype;
    out->rank = 3;
    state_shape(w, sequences, out->shape);
}

/* ---- short_conv ---- */

static nbl_status check_forward(nbl_context *ctx, const char *op, const nbl__short_conv *a)
{
    NBL_TRY(check_inputs(ctx, op, a->dtype, &a->x, &a->w));
    NBL_TRY(nbl__check_cu_seqlens(ctx, op, &a->cu_seqlens));
    if (!nbl__has_data(&a->state)) return NBL_OK;
    int64_t sequences = nbl__sequence_count(&a->cu_seqlens), shape[3];
    NBL_TRY(nbl__check_dtype(ctx, op, "state", &a->state, a->dtype));
    state_shape(&a->w, a->state.rank == 3 ? nbl__max_i64(sequences, a->state.shape[0]) : sequences, shape);
    return nbl__check_dims(ctx, op, "state", &a->state, 3, shape);
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__short_conv *a = arguments;
    NBL_TRY(check_forward(ctx, "short_conv", a));
    nbl__output_like(&a->y, &a->x, a->x.shape[1], a->dtype);
    nbl__output_none(&a->last);
    if (a->keep) output_state(&a->last, &a->w, nbl__sequence_count(&a->cu_seqlens), a->dtype);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__short_conv *a = arguments;
    const char *op = "short_conv_backward";
    NBL_TRY(check_forward(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "dy", &a->dy, 2, a->x.shape));
    nbl__output_like(&a->dx, &a->x, a->x.shape[1], a->dtype);
    nbl__output_like(&a->dw, &a->w, a->w.shape[2], NBL_DTYPE_F32);
    return NBL_OK;
}

void nbl__short_conv_keep(const nbl__short_conv *a)
{
    const nbl_tensor *to = nbl__has_data(&a->state) ? &a->state : &a->last;
    if (!nbl__has_data(to)) return;
    const int32_t *at = a->cu_seqlens.data;
    int64_t kept = a->w.shape[2] - 1;
    size_t row = (size_t)a->x.shape[1] * nbl__size_of(a->dtype);
    size_t step = (size_t)nbl__row_stride(&a->x) * nbl__size_of(a->dtype);
    uint8_t *state = to->data;
    for (int64_t s = 0; s < nbl__sequence_count(&a->cu_seqlens); s++)
        for (int64_t j = 0; j < kept; j++, state += row) {
            int64_t token = at[s + 1] - kept + j;
            if (token < at[s]) memset(state, 0, row);
            else memcpy(state, (const uint8_t *)a->x.data + (size_t)token * step, row);
        }
}

/* A multiply-add per weight, and silu. Backward computes c again, then dx and, if it is wanted,
 * dw. */
static double conv_flops(const void *arguments, bool backward)
{
    const nbl__short_conv *a = arguments;
    double elements = (double)nbl__tensor_elements(&a->x), sums = 2 * (double)a->w.shape[2];
    int products = backward ? 1 + nbl__has_data(&a->dx) + nbl__has_data(&a->dw) : 1;
    return elements * (sums * products + (backward ? 9 : 4));
}

static const nbl__slot conv_slots[] = {
    NBL_SLOT_SAVED_ROWS(nbl__short_conv, x, "x", INPUT, 2),
    NBL_SLOT_SAVED(nbl__short_conv, w, "w", INPUT),
    NBL_SLOT_SAVED(nbl__short_conv, cu_seqlens, "cu_seqlens", INPUT),
    NBL_SLOT(nbl__short_conv, state, "state", OPTIONAL, NULL),
    NBL_SLOT_ROWS(nbl__short_conv, y, "y", OUTPUT, NULL, 2),
    NBL_SLOT(nbl__short_conv, last, "last", OUTPUT, NULL),
    NBL_SLOT_ROWS(nbl__short_conv, dy, "dy", COTANGENT, "y", 2),
    NBL_SLOT_ROWS(nbl__short_conv, dx, "dx", GRADIENT, "x", 2),
    NBL_SLOT(nbl__short_conv, dw, "dw", GRADIENT, "w"),
    {0},
};
static const nbl__attr conv_attrs[] = {
    NBL_ATTR(nbl__short_conv, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__short_conv, keep, "keep_state", FLAG, 0),
    NBL_ATTR(nbl__short_conv, accumulate, "accumulate", FLAG, 0),
    {0},
};
#define FORWARD_ROWS(X) NBL_X86(X(short_conv_avx512)) NBL_X86(X(short_conv_avx2)) X(short_conv_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X)                                                                                     \
    NBL_X86(X(short_conv_backward_avx512))                                                                   \
    NBL_X86(X(short_conv_backward_avx2))                                                                     \
    X(short_conv_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__short_conv_family = {
    "short_conv",
    sizeof(nbl__short_conv),
    conv_slots,
    conv_attrs,
    {"short_conv", infer_forward, forward_impls},
    {"short_conv_backward", infer_backward, backward_impls},
    {.flops = conv_flops, .repeat = NBL_REPEAT_WIDE},
};

/* ---- short_conv_step ---- */

static nbl_status infer_step(nbl_context *ctx, void *arguments)
{
    nbl__short_conv_step *a = arguments;
    const char *op = "short_conv_step";
    int64_t shape[3];
    NBL_TRY(check_inputs(ctx, op, a->dtype, &a->x, &a->w));
    NBL_TRY(nbl__check_dtype(ctx, op, "state", &a->state, a->dtype));
    state_shape(&a->w, a->x.shape[0], shape);
    NBL_TRY(nbl__check_dims(ctx, op, "state", &a->state, 3, shape));
    nbl__output_like(&a->y, &a->x, a->x.shape[1], a->dtype);
    nbl__output_none(&a->next);
    if (!a->in_place) output_state(&a->next, &a->w, a->x.shape[0], a->dtype);
    return NBL_OK;
}

void nbl__short_conv_shift(const nbl__short_conv_step *a)
{
    size_t row = (size_t)a->x.shape[1] * nbl__size_of(a->dtype), kept = (size_t)a->w.shape[2] - 1;
    size_t step = (size_t)nbl__row_stride(&a->x) * nbl__size_of(a->dtype);
    for (int64_t s = 0; s < a->x.shape[0]; s++) {
        const uint8_t *from = (const uint8_t *)a->state.data + (size_t)s * kept * row;
        uint8_t *to = (uint8_t *)(a->in_place ? a->state.data : a->next.data) + (size_t)s * kept * row;
        memmove(to, from + row, (kept - 1) * row);
        memcpy(to + (kept - 1) * row, (const uint8_t *)a->x.data + (size_t)s * step, row);
    }
}

static double step_flops(const void *arguments, bool backward)
{
    const nbl__short_conv_step *a = arguments;
    (void)backward;
    return (double)nbl__tensor_elements(&a->x) * (2 * (double)a->w.shape[2] + 4);
}

static const nbl__slot step_slots[] = {
    NBL_SLOT_ROWS(nbl__short_conv_step, x, "x", INPUT, NULL, 2),
    NBL_SLOT(nbl__short_conv_step, w, "w", INPUT, NULL),
    NBL_SLOT(nbl__short_conv_step, state, "state", INPUT, NULL),
    NBL_SLOT_ROWS(nbl__short_conv_step, y, "y", OUTPUT, NULL, 2),
    NBL_SLOT(nbl__short_conv_step, next, "next", OUTPUT, NULL),
    {0},
};
static const nbl__attr step_attrs[] = {
    NBL_ATTR(nbl__short_conv_step, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__short_conv_step, in_place, "in_place", FLAG, 0),
    {0},
};
#define STEP_ROWS(X)                                                                                         \
    NBL_X86(X(short_conv_step_avx512)) NBL_X86(X(short_conv_step_avx2)) X(short_conv_step_ref)
NBL_IMPLS(step_impls, STEP_ROWS);
const nbl__family nbl__short_conv_step_family = {
    "short_conv_step",
    sizeof(nbl__short_conv_step),
    step_slots,
    step_attrs,
    {"short_conv_step", infer_step, step_impls},
    {0},
    {.flops = step_flops},
};
