/* attention.c - the families attention and attention_decode: checks, outputs, slots, attributes.
 * attention.h has the formulas.
 *
 * infer checks dtypes, shapes and ranges. What only the data has (cu_seqlens, lengths) is checked
 * by the two exported functions when an operator runs. */
#include "ops/attention/attention.h"

#include <math.h>

#include "ops/common/sequences.h"
#include "ops/families.h"

double nbl__attention_scale(float scale, int64_t head_size)
{
    return scale != 0 ? (double)scale : 1 / sqrt((double)head_size);
}

/* ---- what both families share ---- */

/* Ranges of the attributes. */
static nbl_status check_numbers(nbl_context *ctx, const char *op, float scale, float softcap,
                                nbl__attention_mask mask)
{
    NBL_CHECK(ctx, isfinite(scale), NBL_ERROR_ARGUMENT, "%s: scale %g is not finite", op, (double)scale);
    NBL_CHECK(ctx, isfinite(softcap) && softcap >= 0, NBL_ERROR_ARGUMENT,
              "%s: softcap %g is not 0 or a positive number", op, (double)softcap);
    NBL_CHECK(ctx, mask.window >= 0, NBL_ERROR_ARGUMENT, "%s: window %" PRId64 " is negative", op,
              mask.window);
    NBL_CHECK(ctx, mask.chunk >= 0, NBL_ERROR_ARGUMENT, "%s: chunk %" PRId64 " is negative", op, mask.chunk);
    NBL_CHECK(ctx, mask.chunk == 0 || mask.causal, NBL_ERROR_ARGUMENT, "%s: chunk without causal", op);
    return NBL_OK;
}

/* Each key head serves the same number of query heads. */
static nbl_status check_heads(nbl_context *ctx, const char *op, const nbl_tensor *q, const nbl_tensor *k,
                              int64_t key_heads)
{
    int64_t heads = q->shape[1];
    NBL_CHECK(ctx, q->shape[2] >= 1, NBL_ERROR_SHAPE, "%s: q is %s, its heads are empty", op,
              nbl__show_shape(q->rank, q->shape).text);
    NBL_CHECK(ctx, key_heads >= 1 && heads >= 1 && heads % key_heads == 0, NBL_ERROR_SHAPE,
              "%s: %" PRId64 " heads of q %s are not a multiple of the %" PRId64 " of k %s", op, heads,
              nbl__show_shape(q->rank, q->shape).text, key_heads, nbl__show_shape(k->rank, k->shape).text);
    return NBL_OK;
}

/* One sink per query head, any float dtype. Absent: fine. */
static nbl_status check_sinks(nbl_context *ctx, const char *op, const nbl_tensor *sinks, int64_t heads)
{
    if (!nbl__has_data(sinks)) return NBL_OK;
    NBL_TRY(nbl__check_float(ctx, op, "sinks", sinks));
    return nbl__check_dims(ctx, op, "sinks", sinks, 1, &heads);
}

/* A vector of int32. */
static nbl_status check_indices(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t)
{
    NBL_TRY(nbl__check_dtype(ctx, op, name, t, NBL_DTYPE_I32));
    NBL_CHECK(ctx, t->rank == 1, NBL_ERROR_SHAPE, "%s: %s is %s, not a vector", op, name,
              nbl__show_shape(t->rank, t->shape).text);
    return NBL_OK;
}

/* ---- attention ---- */

nbl_status nbl__attention_check_sequences(const nbl__call *call, const nbl__attention *a)
{
    return nbl__check_packing(call, &a->cu_seqlens, "q", a->q.shape[0]);
}

/* Checks what forward and backward share. k and v have the rows of q and its head size. */
static nbl_status check_inputs(nbl_context *ctx, const char *op, const nbl__attention *a)
{
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "q", &a->q, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "k", &a->k, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "v", &a->v, a->dtype));
    NBL_CHECK(ctx, a->q.rank == 3, NBL_ERROR_SHAPE, "%s: q is %s, not [tokens, heads, size]", op,
              nbl__show_shape(a->q.rank, a->q.shape).text);
    int64_t key_heads = a->k.rank == 3 ? a->k.shape[1] : -1;
    const int64_t keys[3] = {a->q.shape[0], key_heads, a->q.shape[2]};
    NBL_TRY(nbl__check_dims(ctx, op, "k", &a->k, 3, keys));
    NBL_TRY(nbl__check_dims(ctx, op, "v", &a->v, 3, keys));
    NBL_TRY(check_heads(ctx, op, &a->q, &a->k, key_heads));
    NBL_TRY(nbl__check_cu_seqlens(ctx, op, &a->cu_seqlens));
    NBL_TRY(check_sinks(ctx, op, &a->sinks, a->q.shape[1]));
    return check_numbers(ctx, op, a->scale, a->softcap, NBL_MASK_OF(a));
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__attention *a = arguments;
    NBL_TRY(check_inputs(ctx, "attention", a));
    nbl__output_like(&a->out, &a->q, a->q.shape[2], a->dtype);
    nbl__output_vector(&a->lse, NBL_DTYPE_F32, 2, a->q.shape[0], a->q.shape[1]);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__attention *a = arguments;
    const char *op = "attention_backward";
    NBL_TRY(check_inputs(ctx, op, a));
    NBL_TRY(nbl__check_dtype(ctx, op, "dout", &a->dout, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "dout", &a->dout, 3, a->q.shape));
    NBL_TRY(nbl__check_dtype(ctx, op, "out", &a->out, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "out", &a->out, 3, a->q.shape));
    NBL_TRY(nbl__check_dtype(ctx, op, "lse", &a->lse, NBL_DTYPE_F32));
    NBL_TRY(nbl__check_dims(ctx, op, "lse", &a->lse, 2, a->q.shape));
    nbl__output_like(&a->dq, &a->q, a->q.shape[2], a->dtype);
    nbl__output_like(&a->dk, &a->k, a->k.shape[2], a->dtype);
    nbl__output_like(&a->dv, &a->v, a->v.shape[2], a->dtype);
    nbl__output_none(&a->dsinks);
    if (nbl__has_data(&a->sinks)) nbl__output_vector(&a->dsinks, NBL_DTYPE_F32, 1, a->q.shape[1], 0);
    return NBL_OK;
}

/* Number of pairs (query, key) that the mask admits, over all sequences of a pack. */
static double pairs(const nbl__attention *a)
{
    int64_t tokens = a->q.shape[0], sequences = nbl__max_i64(1, a->cu_seqlens.shape[0] - 1);
    /* Sequences are taken as equally long; the sum is over the positions of one of them. */
    int64_t length = nbl__ceil_div(tokens, sequences);
    double sum = 0;
    for (int64_t i = 0; i < length; i++) {
        nbl__span span = nbl__attention_span(NBL_MASK_OF(a), i, length);
        sum += (double)(span.end - span.first);
    }
    return sum * (double)tokens / (double)nbl__max_i64(1, length);
}

/* Forward: q·kᵀ and p·v, 4·dim per pair. Backward recomputes the scores and has four products:
 * 10·dim. */
static double flops(const void *arguments, bool backward)
{
    const nbl__attention *a = arguments;
    double seen = pairs(a) * (double)a->q.shape[1], dim = (double)a->q.shape[2];
    return backward ? seen * (10 * dim + 6) : seen * (4 * dim + 4);
}

static const nbl__slot slots[] = {
    /* backward reads q, k, v, out and lse: all are saved */
    NBL_SLOT_SAVED_ROWS(nbl__attention, q, "q", INPUT, 3),
    NBL_SLOT_SAVED_ROWS(nbl__attention, k, "k", INPUT, 3),
    NBL_SLOT_SAVED_ROWS(nbl__attention, v, "v", INPUT, 3),
    NBL_SLOT_SAVED(nbl__attention, cu_seqlens, "cu_seqlens", INPUT),
    NBL_SLOT_SAVED(nbl__attention, sinks, "sinks", OPTIONAL),
    NBL_SLOT_SAVED(nbl__attention, out, "out", OUTPUT),
    NBL_SLOT_SAVED(nbl__attention, lse, "lse", SAVED),
    NBL_SLOT(nbl__attention, dout, "dout", COTANGENT, "out"),
    NBL_SLOT_ROWS(nbl__attention, dq, "dq", GRADIENT, "q", 3),
    NBL_SLOT_ROWS(nbl__attention, dk, "dk", GRADIENT, "k", 3),
    NBL_SLOT_ROWS(nbl__attention, dv, "dv", GRADIENT, "v", 3),
    NBL_SLOT(nbl__attention, dsinks, "dsinks", GRADIENT, "sinks"),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__attention, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__attention, scale, "scale", FLOAT, 0),
    NBL_ATTR(nbl__attention, causal, "causal", FLAG, 1),
    NBL_ATTR(nbl__attention, window, "window", INT, 0),
    NBL_ATTR(nbl__attention, chunk, "chunk", INT, 0),
    NBL_ATTR(nbl__attention, softcap, "softcap", FLOAT, 0),
    {0},
};
#define FORWARD_ROWS(X) X(attention_cpu) X(attention_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X) X(attention_backward_cpu) X(attention_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__attention_family = {
    "attention",
    sizeof(nbl__attention),
    slots,
    attrs,
    {"attention", infer_forward, forward_impls},
    {"attention_backward", infer_backward, backward_impls},
    {.flops = flops},
};

/* ---- attention_decode ---- */

nbl_status nbl__attention_check_lengths(const nbl__call *call, const nbl__attention_decode *a)
{
    const int32_t *lengths = a->lengths.data;
    for (int64_t b = 0; b < a->lengths.shape[0]; b++)
        NBL_CHECK(call->ctx, lengths[b] >= 1 && lengths[b] <= a->k.shape[1], NBL_ERROR_ARGUMENT,
                  "%s: lengths[%" PRId64 "] is %" PRId32 ", not in 1 … %" PRId64, call->op, b, lengths[b],
                  a->k.shape[1]);
    return NBL_OK;
}

static nbl_status infer_decode(nbl_context *ctx, void *arguments)
{
    nbl__attention_decode *a = arguments;
    const char *op = "attention_decode";
    NBL_TRY(nbl__check_compute(ctx, op, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "q", &a->q, a->dtype));
    NBL_TRY(nbl__check_float(ctx, op, "k", &a->k));
    NBL_CHECK(ctx, a->v.dtype == a->k.dtype, NBL_ERROR_DTYPE, "%s: v %s is %s, k %s is %s", op,
              nbl__show_shape(a->v.rank, a->v.shape).text, nbl__any_dtype_name(a->v.dtype),
              nbl__show_shape(a->k.rank, a->k.shape).text, nbl_dtype_name(a->k.dtype));
    NBL_CHECK(ctx, a->q.rank == 3, NBL_ERROR_SHAPE, "%s: q is %s, not [sequences, heads, size]", op,
              nbl__show_shape(a->q.rank, a->q.shape).text);
    /* a cache of another rank fails with its own shape in the message */
    bool cache = a->k.rank == 4;
    const int64_t keys[4] = {a->q.shape[0], cache ? a->k.shape[1] : -1, cache ? a->k.shape[2] : -1,
                             a->q.shape[2]};
    NBL_TRY(nbl__check_dims(ctx, op, "k", &a->k, 4, keys));
    NBL_TRY(nbl__check_dims(ctx, op, "v", &a->v, 4, keys));
    NBL_TRY(check_heads(ctx, op, &a->q, &a->k, a->k.shape[2]));
    NBL_TRY(check_indices(ctx, op, "lengths", &a->lengths));
    NBL_TRY(nbl__check_dims(ctx, op, "lengths", &a->lengths, 1, a->q.shape));
    NBL_TRY(check_sinks(ctx, op, &a->sinks, a->q.shape[1]));
    NBL_CHECK(ctx, a->causal, NBL_ERROR_ARGUMENT,
              "%s: causal is false, but a query at the end of its sequence is causal", op);
    NBL_TRY(check_numbers(ctx, op, a->scale, a->softcap, NBL_MASK_OF(a)));
    nbl__output_like(&a->out, &a->q, a->q.shape[2], a->dtype);
    return NBL_OK;
}

/* One query per sequence against all cached keys, or those in the window. */
static double decode_flops(const void *arguments, bool backward)
{
    const nbl__attention_decode *a = arguments;
    int64_t length = a->k.shape[1];
    (void)backward;
    if (a->window > 0) length = nbl__min_i64(length, a->window);
    if (a->chunk > 0) length = nbl__min_i64(length, a->chunk);
    return (double)(a->q.shape[0] * a->q.shape[1] * length) * (4 * (double)a->q.shape[2] + 4);
}

static const nbl__slot decode_slots[] = {
    NBL_SLOT_ROWS(nbl__attention_decode, q, "q", INPUT, NULL, 3),
    NBL_SLOT(nbl__attention_decode, k, "k", INPUT, NULL),
    NBL_SLOT(nbl__attention_decode, v, "v", INPUT, NULL),
    NBL_SLOT(nbl__attention_decode, lengths, "lengths", INPUT, NULL),
    NBL_SLOT(nbl__attention_decode, sinks, "sinks", OPTIONAL, NULL),
    NBL_SLOT(nbl__attention_decode, out, "out", OUTPUT, NULL),
    {0},
};
static const nbl__attr decode_attrs[] = {
    NBL_ATTR(nbl__attention_decode, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__attention_decode, scale, "scale", FLOAT, 0),
    NBL_ATTR(nbl__attention_decode, causal, "causal", FLAG, 1),
    NBL_ATTR(nbl__attention_decode, window, "window", INT, 0),
    NBL_ATTR(nbl__attention_decode, chunk, "chunk", INT, 0),
    NBL_ATTR(nbl__attention_decode, softcap, "softcap", FLOAT, 0),
    {0},
};
#define DECODE_ROWS(X) X(attention_decode_cpu) X(attention_decode_ref)
NBL_IMPLS(decode_impls, DECODE_ROWS);
const nbl__family nbl__attention_decode_family = {
    "attention_decode",
    sizeof(nbl__attention_decode),
    decode_slots,
    decode_attrs,
    {"attention_decode", infer_decode, decode_impls},
    {0},
    {.flops = decode_flops},
};
