/* norm_rope.c - the families norm_rope and norm_rope_backward: checks, and their reference, which
 * runs the references of rmsnorm and rope with f64 between them.
 *
 *   forward    x  ── rmsnorm_ref ──▶ f64 ── rope_ref ──▶ y
 *   backward   dy ── rope_backward_ref ──▶ f64 ── rmsnorm_backward_ref ──▶ dx
 *
 * Graphs ask for this family on devices only (fuses_norm_rope in device.h). Its CPU kernels serve the
 * public call. */
#include "ops/norm/norm_rope.h"

#include "ops/families.h"
#include "ops/norm/rmsnorm.h"
#include "ops/rope/rope.h"

/* The arguments of the two operators, without their outputs. */
static nbl__rmsnorm norm_of(const nbl__norm_rope *a)
{
    return (nbl__rmsnorm){
        .dtype = a->dtype, .x = a->x, .w = a->w, .eps = a->eps, .offset = a->offset, .round = a->round};
}

static nbl__rope_apply rope_of(const nbl__norm_rope *a)
{
    nbl__rope_apply rope = {.dtype = a->dtype, .x = a->x, .cos = a->cos, .sin = a->sin};
    rope.rope.rotary_dim = a->cos.rank == 2 ? 2 * a->cos.shape[1] : 0;
    return rope;
}

/* Has both operators check their part, so that the messages are theirs. */
static nbl_status check(nbl_context *ctx, const nbl__norm_rope *a)
{
    nbl__rmsnorm norm = norm_of(a);
    nbl__rope_apply rope = rope_of(a);
    NBL_TRY(nbl__rmsnorm_family.forward.infer(ctx, &norm));
    return nbl__rope_family.forward.infer(ctx, &rope);
}

static nbl_status infer_forward(nbl_context *ctx, void *arguments)
{
    nbl__norm_rope *a = arguments;
    NBL_TRY(check(ctx, a));
    nbl__output_like(&a->y, &a->x, nbl__last(&a->x), a->dtype);
    return NBL_OK;
}

static nbl_status infer_backward(nbl_context *ctx, void *arguments)
{
    nbl__norm_rope *a = arguments;
    NBL_TRY(check(ctx, a));
    NBL_TRY(nbl__check_dtype(ctx, "norm_rope_backward", "dy", &a->dy, a->dtype));
    NBL_TRY(nbl__check_dims(ctx, "norm_rope_backward", "dy", &a->dy, a->x.rank, a->x.shape));
    nbl__output_like(&a->dx, &a->x, nbl__last(&a->x), a->dtype);
    return NBL_OK;
}

/* ---- the reference ---- */

/* The value between the two operators, in scratch. *used receives its bytes. */
static nbl_tensor between(const nbl__norm_rope *a, uint8_t *base, size_t *used)
{
    nbl__bump bump = {base, 0};
    nbl_tensor middle = a->x;
    middle.dtype = NBL_DTYPE_F64;
    middle.row_stride = 0;
    middle.data = nbl__bump_alloc(&bump, (size_t)nbl__tensor_elements(&a->x) * sizeof(double));
    *used = bump.used;
    return middle;
}

/* The f64 value, and behind it the scratch of the operator that needs more. */
static size_t scratch_of(const nbl_context *ctx, const void *arguments)
{
    const nbl__norm_rope *a = arguments;
    nbl__rmsnorm norm = norm_of(a);
    nbl__rope_apply rope = rope_of(a);
    size_t used, more = nbl__rope_ref.scratch(ctx, &rope),
                 max = nbl__rmsnorm_backward_ref.scratch(ctx, &norm);
    between(a, NULL, &used);
    return used + (more > max ? more : max);
}

/* The call with the scratch that is left behind `used` bytes. */
static nbl__call behind(const nbl__call *call, size_t used)
{
    nbl__call rest = *call;
    rest.scratch += used;
    rest.scratch_bytes -= used;
    return rest;
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__norm_rope *a = arguments;
    size_t used;
    nbl_tensor middle = between(a, call->scratch, &used);
    nbl__call rest = behind(call, used);
    nbl__rmsnorm norm = norm_of(a);
    nbl__rope_apply rope = rope_of(a);
    norm.y = rope.x = middle;
    rope.y = a->y;
    NBL_TRY(nbl__rmsnorm_ref.run(&rest, &norm));
    return nbl__rope_ref.run(&rest, &rope);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__norm_rope *a = arguments;
    size_t used;
    nbl_tensor middle = between(a, call->scratch, &used);
    nbl__call rest = behind(call, used);
    nbl__rmsnorm norm = norm_of(a);
    nbl__rope_apply rope = rope_of(a);
    rope.dy = a->dy;
    rope.dx = norm.dy = middle;
    norm.dx = a->dx;
    NBL_TRY(nbl__rope_backward_ref.run(&rest, &rope));
    return nbl__rmsnorm_backward_ref.run(&rest, &norm);
}

static const nbl__slot slots[] = {
    NBL_SLOT_SAVED_ROWS(nbl__norm_rope, x, "x", INPUT, 3),
    NBL_SLOT_SAVED(nbl__norm_rope, w, "w", INPUT),
    NBL_SLOT_SAVED(nbl__norm_rope, cos, "cos", INPUT),
    NBL_SLOT_SAVED(nbl__norm_rope, sin, "sin", INPUT),
    NBL_SLOT_ROWS(nbl__norm_rope, y, "y", OUTPUT, NULL, 3),
    NBL_SLOT_ROWS(nbl__norm_rope, dy, "dy", COTANGENT, "y", 3),
    NBL_SLOT_ROWS(nbl__norm_rope, dx, "dx", GRADIENT, "x", 3),
    {0},
};
static const nbl__attr attrs[] = {
    NBL_ATTR(nbl__norm_rope, dtype, "dtype", DTYPE, 0),
    NBL_ATTR(nbl__norm_rope, eps, "eps", FLOAT, 1e-6),
    NBL_ATTR(nbl__norm_rope, offset, "offset", FLOAT, 0),
    NBL_ATTR_OF_WORDS(nbl__norm_rope, round, "round", nbl__norm_round_words),
    {0},
};
const nbl__impl nbl__norm_rope_ref = {"norm_rope_ref", NBL_ISA_SCALAR, NULL, scratch_of, run_forward};
const nbl__impl nbl__norm_rope_backward_ref = {"norm_rope_backward_ref", NBL_ISA_SCALAR, NULL, scratch_of,
                                               run_backward};
#define FORWARD_ROWS(X) NBL_X86(X(norm_rope_avx512)) NBL_X86(X(norm_rope_avx2)) X(norm_rope_ref)
NBL_IMPLS(forward_impls, FORWARD_ROWS);
#define BACKWARD_ROWS(X)                                                                                     \
    NBL_X86(X(norm_rope_backward_avx512))                                                                    \
    NBL_X86(X(norm_rope_backward_avx2))                                                                      \
    X(norm_rope_backward_ref)
NBL_IMPLS(backward_impls, BACKWARD_ROWS);
const nbl__family nbl__norm_rope_family = {
    "norm_rope",
    sizeof(nbl__norm_rope),
    slots,
    attrs,
    {"norm_rope", infer_forward, forward_impls},
    {"norm_rope_backward", infer_backward, backward_impls},
    {.forward = 8, .backward = 12, .repeat = NBL_REPEAT_CHEAP},
};
