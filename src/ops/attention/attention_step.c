/* attention_step.c - the family attention_step: checks, slots, and its reference, which runs the
 * references of rope, kv_write and attention_decode one after the other.
 *
 * There is no CPU kernel: only devices ask for this family (fuses_rope_attention in device.h). */
#include "ops/attention/attention.h"
#include "ops/families.h"
#include "ops/rope/rope.h"

nbl__attention_decode nbl__attention_of_step(const nbl__attention_step *a, const nbl_tensor *q)
{
    return (nbl__attention_decode){.dtype = a->dtype,
                                   .q = *q,
                                   .k = a->keys,
                                   .v = a->values,
                                   .lengths = a->lengths,
                                   .sinks = a->sinks,
                                   .scale = a->scale,
                                   .causal = true,
                                   .window = a->window,
                                   .chunk = a->chunk,
                                   .softcap = a->softcap,
                                   .out = a->out};
}

/* Checks what attention_decode checks, then the new key and value and the table. */
static nbl_status infer(nbl_context *ctx, void *arguments)
{
    nbl__attention_step *a = arguments;
    const char *op = "attention_step";
    nbl__attention_decode decode = nbl__attention_of_step(a, &a->q);
    NBL_TRY(nbl__attention_decode_family.forward.infer(ctx, &decode));
    a->out = decode.out;
    const int64_t rows[3] = {a->q.shape[0], a->keys.shape[2], a->q.shape[2]};
    NBL_TRY(nbl__check_dtype(ctx, op, "k", &a->k, a->dtype));
    NBL_TRY(nbl__check_dtype(ctx, op, "v", &a->v, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, op, "k", &a->k, 3, rows));
    NBL_TRY(nbl__check_dims(ctx, op, "v", &a->v, 3, rows));
    NBL_TRY(nbl__check_dtype(ctx, op, "cos", &a->cos, NBL_DTYPE_F32));
    NBL_TRY(nbl__check_dtype(ctx, op, "sin", &a->sin, NBL_DTYPE_F32));
    NBL_CHECK(ctx, a->cos.rank == 2 && a->cos.shape[1] >= 1 && 2 * a->cos.shape[1] <= a->q.shape[2],
              NBL_ERROR_SHAPE, "%s: cos is %s, not [sequences, 1 to half of a head's %" PRId64 "]", op,
              nbl__show_shape(a->cos.rank, a->cos.shape).text, a->q.shape[2]);
    const int64_t table[2] = {a->q.shape[0], a->cos.shape[1]};
    NBL_TRY(nbl__check_dims(ctx, op, "cos", &a->cos, 2, table));
    return nbl__check_dims(ctx, op, "sin", &a->sin, 2, table);
}

/* ---- the reference ---- */

/* Scratch: the rotated q and k, then that of attention_decode. */
typedef struct pieces {
    nbl_tensor q, k; /* rotated */
    uint8_t *rest;
    size_t used;
} pieces;

/* Cuts the scratch; base NULL: measures it. */
static pieces lay_out(const nbl__attention_step *a, uint8_t *base)
{
    nbl__bump bump = {base, 0};
    pieces p = {.q = a->q, .k = a->k};
    p.q.row_stride = p.k.row_stride = 0;
    p.q.data = nbl__bump_alloc(&bump, (size_t)nbl__tensor_elements(&a->q) * nbl__size_of(a->dtype));
    p.k.data = nbl__bump_alloc(&bump, (size_t)nbl__tensor_elements(&a->k) * nbl__size_of(a->dtype));
    p.used = bump.used;
    return p;
}

static size_t scratch_of(const nbl_context *ctx, const void *arguments)
{
    const nbl__attention_step *a = arguments;
    nbl__attention_decode decode = nbl__attention_of_step(a, &a->q);
    return lay_out(a, NULL).used + nbl__attention_decode_ref.scratch(ctx, &decode);
}

/* y = rope(x), with the step's cos and sin. */
static nbl_status rotate(const nbl__call *call, const nbl__attention_step *a, const nbl_tensor *x,
                         const nbl_tensor *y)
{
    nbl__rope_apply rope = {.dtype = a->dtype, .x = *x, .cos = a->cos, .sin = a->sin, .y = *y};
    rope.rope.rotary_dim = 2 * a->cos.shape[1];
    return nbl__rope_ref.run(call, &rope);
}

/* Writes one row per sequence to a cache, at entry lengths[b] - 1, with a rounding if the dtypes
 * differ. */
static nbl_status write_cache(const nbl__call *call, const nbl__attention_step *a, const nbl_tensor *x,
                              const nbl_tensor *cache)
{
    int64_t width = a->k.shape[1] * a->k.shape[2];
    size_t from = (size_t)nbl__row_stride(x) * nbl__size_of(a->dtype);
    size_t to = (size_t)width * nbl__size_of(cache->dtype);
    for (int64_t b = 0; b < a->k.shape[0]; b++) {
        int64_t row = b * cache->shape[1] + ((const int32_t *)a->lengths.data)[b] - 1;
        NBL_TRY(nbl_convert(call->ctx, a->dtype, (const uint8_t *)x->data + (size_t)b * from, cache->dtype,
                            (uint8_t *)cache->data + (size_t)row * to, width));
    }
    return NBL_OK;
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__attention_step *a = arguments;
    pieces p = lay_out(a, call->scratch);
    nbl__attention_decode decode = nbl__attention_of_step(a, &p.q);
    nbl__call rest = *call;
    rest.scratch += p.used;
    rest.scratch_bytes -= p.used;
    /* The lengths are checked first, since they are offsets into the caches. */
    NBL_TRY(nbl__attention_check_lengths(call, &decode));
    NBL_TRY(rotate(call, a, &a->q, &p.q));
    NBL_TRY(rotate(call, a, &a->k, &p.k));
    NBL_TRY(write_cache(call, a, &p.k, &a->keys));
    NBL_TRY(write_cache(call, a, &a->v, &a->values));
    return nbl__attention_decode_ref.run(&rest, &decode);
}

/* attention_decode, and RoPE of q and k at 3 operations per element. */
static double flops(const void *arguments, bool backward)
{
    const nbl__attention_step *a = arguments;
    nbl__attention_decode decode = nbl__attention_of_step(a, &a->q);
    double rotated = 3 * (double)(nbl__tensor_elements(&a->q) + nbl__tensor_elements(&a->k));
    return nbl__attention_decode_family.cost.flops(&decode, backward) + rotated;
}

static const nbl__slot slots[] = {
    NBL_SLOT_ROWS(nbl__attention_step, q, "q", INPUT, NULL, 3),
    NBL_SLOT_ROWS(nbl__attention_step, k, "k", INPUT, NULL, 3),
    NBL_SLOT_ROWS(nbl__attention_step, v, "v", INPUT, NULL, 3),
    NBL_SLOT(nbl__attention_step, cos, "cos", INPUT, NULL),
    NBL_SLOT(nbl__attention_step, sin, "sin", INPUT, NULL),
    NBL_SLOT(nbl__attention_step, keys, "keys", INPUT, NULL),
    NBL_SLOT(nbl__attention_step, values, "values", INPUT, NULL),
    NBL_SLOT(nbl__attention_step, lengths, "lengths", INPUT, NULL),
    NBL_SLOT(nbl__attention_step, sinks, "sinks", OPTIONAL, NULL),
    NBL_SLOT(nbl__attention_step, out, "out", OUTPUT, NULL),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__attention_step, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__attention_step, scale, "scale", FLOAT, 0),
    NBL_ATTR(nbl__attention_step, window, "window", INT, 0),
    NBL_ATTR(nbl__attention_step, chunk, "chunk", INT, 0),
    NBL_ATTR(nbl__attention_step, softcap, "softcap", FLOAT, 0),
    {0},
};
static const nbl__impl ref = {"attention_step_ref", NBL_ISA_SCALAR, NULL, scratch_of, run};
static const nbl__impl *const impls[] = {&ref, NULL};
const nbl__family nbl__attention_step_family = {
    "attention_step", sizeof(nbl__attention_step), slots, attrs, {"attention_step", infer, impls}, {0},
    {.flops = flops},
};
