/* public_operators.c - the operator calls of nibble.h, over the table of families.
 *
 * A public call is checked harder than one inside the library: dtypes exist, shapes do not
 * overflow, data is aligned. The caller's struct is not changed: infer runs on a copy. The dtype
 * and shape that the caller gave an output must equal those that infer computes. Otherwise the
 * call fails, and nothing is written. */
#include "ops/optimizer/adamw.h"
#include "device/device.h"
#include "ops/families.h"
#include "ops/optimizer/grad_norm.h"
#include "ops/linear/linear.h"
#include "ops/norm/rmsnorm.h"

/* Room for a copy of any public struct of arguments. */
typedef union any_call {
    nbl_linear linear;
    nbl_rmsnorm rmsnorm;
} any_call;

/* Compares each output (backward: each gradient) as the caller describes it with what infer made
 * of it. A gradient without memory is not wanted. An output of forward must have memory. */
static nbl_status check_outputs(nbl_context *ctx, const nbl__family *family, const nbl__op *op, bool backward,
                                const void *given, void *inferred)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        if (slot->role != (backward ? NBL_ROLE_GRADIENT : NBL_ROLE_OUTPUT)) continue;
        const nbl_tensor *mine = (const void *)((const char *)given + slot->offset);
        const nbl_tensor *right = nbl__slot_tensor(slot, inferred);
        if (right->rank == 0) {
            NBL_CHECK(ctx, mine->data == NULL, NBL_ERROR_ARGUMENT,
                      "%s: %s is not produced by these arguments", op->name, slot->name);
            continue;
        }
        NBL_CHECK(ctx, mine->data || backward, NBL_ERROR_ARGUMENT, "%s: %s has no memory", op->name,
                  slot->name);
        if (mine->data == NULL) continue;
        NBL_TRY(nbl__check_dtype(ctx, op->name, slot->name, mine, right->dtype));
        NBL_TRY(nbl__check_dims(ctx, op->name, slot->name, mine, right->rank, right->shape));
    }
    return NBL_OK;
}

/* Checks what infer assumes: a valid dtype, a shape whose product does not overflow, data aligned
 * to its elements. */
static nbl_status check_tensor(nbl_context *ctx, const char *op, const char *name, const nbl_tensor *t)
{
    int64_t n, rows;
    NBL_CHECK(ctx, (unsigned)t->dtype < NBL_DTYPE_COUNT, NBL_ERROR_DTYPE, "%s: %s has no dtype", op, name);
    nbl_status status = nbl__check_shape(ctx, op, t->rank, t->shape, &n, &rows);
    if (status != NBL_OK) return nbl__hint(ctx, status, "that is %s", name);
    size_t size = (size_t)nbl__dtype_bits(t->dtype) / 8;
    NBL_CHECK(ctx, size == 0 || (uintptr_t)t->data % size == 0, NBL_ERROR_ARGUMENT,
              "%s: %s is not aligned to its %zu-byte elements", op, name, size);
    return NBL_OK;
}

/* Checks every tensor and weight that the caller gave, and that no required input is missing. */
static nbl_status check_given(nbl_context *ctx, const nbl__family *family, const void *call)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        const void *field = (const char *)call + slot->offset;
        int64_t n, rows;
        if (slot->role == NBL_ROLE_WEIGHT) NBL_TRY(nbl__check_weight(ctx, family->name, field, &n, &rows));
        else if (nbl__has_data(field)) NBL_TRY(check_tensor(ctx, family->name, slot->name, field));
        else
            NBL_CHECK(ctx, slot->role != NBL_ROLE_INPUT, NBL_ERROR_ARGUMENT, "%s: %s has no data",
                      family->name, slot->name);
    }
    return NBL_OK;
}

/* Checks, infers into `copy`, and chooses an implementation. */
static nbl_status choose(nbl_context *ctx, const nbl__family *family, bool backward, const void *call,
                         any_call *copy, const nbl__impl **impl)
{
    const nbl__op *op = backward ? &family->backward : &family->forward;
    NBL_TRY(check_given(ctx, family, call));
    memcpy(copy, call, family->size);
    NBL_TRY(nbl__infer(ctx, family, backward, copy));
    NBL_TRY(check_outputs(ctx, family, op, backward, call, copy));
    return nbl__op_choose(ctx, op, copy, NULL, impl);
}

static nbl_status scratch_of(nbl_context *ctx, const nbl__family *family, bool backward, const void *call,
                             size_t *bytes)
{
    any_call copy;
    const nbl__impl *impl;
    NBL_CHECK(ctx, call && bytes, NBL_ERROR_ARGUMENT, "%s: NULL argument", family->name);
    NBL_TRY(choose(ctx, family, backward != 0, call, &copy, &impl));
    *bytes = (nbl__op_scratch(ctx, impl, &copy) + 63) / 64 * 64;
    return NBL_OK;
}

static nbl_status run(nbl_context *ctx, const nbl__family *family, bool backward, const void *call,
                      void *scratch, size_t bytes)
{
    any_call copy;
    const nbl__impl *impl;
    NBL_CHECK(ctx, call, NBL_ERROR_ARGUMENT, "%s: NULL argument", family->name);
    NBL_TRY(choose(ctx, family, backward, call, &copy, &impl));
    return nbl__op_run(ctx, backward ? &family->backward : &family->forward, impl, &copy, scratch, bytes);
}

#define PUBLIC_CALLS(name)                                                                                   \
    nbl_status nbl_##name##_scratch(nbl_context *ctx, const nbl_##name *call, bool backward, size_t *bytes)  \
    {                                                                                                        \
        return scratch_of(ctx, &nbl__##name##_family, backward, call, bytes);                                \
    }                                                                                                        \
    nbl_status nbl_##name##_forward(nbl_context *ctx, const nbl_##name *call, void *scratch, size_t bytes)   \
    {                                                                                                        \
        return run(ctx, &nbl__##name##_family, false, call, scratch, bytes);                                 \
    }                                                                                                        \
    nbl_status nbl_##name##_backward(nbl_context *ctx, const nbl_##name *call, void *scratch, size_t bytes)  \
    {                                                                                                        \
        return run(ctx, &nbl__##name##_family, true, call, scratch, bytes);                                  \
    }

PUBLIC_CALLS(linear)
PUBLIC_CALLS(rmsnorm)

/* Runs an operator over a list of tensors (adamw, grad_norm). The caller hands in no scratch,
 * since it is small: the device lends it. */
static nbl_status run_list(nbl_context *ctx, const nbl__family *family, void *call)
{
    const nbl__device *device = nbl__device_of(ctx);
    const nbl__impl *impl;
    void *scratch;
    NBL_TRY(nbl__infer(ctx, family, false, call));
    NBL_TRY(nbl__op_choose(ctx, &family->forward, call, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, call);
    NBL_TRY(device->borrow_scratch(ctx, family->name, bytes, &scratch));
    nbl_status status = nbl__op_run(ctx, &family->forward, impl, call, scratch, bytes);
    device->return_scratch(ctx, scratch, bytes);
    return status;
}

nbl_status nbl_adamw_step(nbl_context *ctx, const nbl_adamw *call)
{
    NBL_CHECK(ctx, call, NBL_ERROR_ARGUMENT, "adamw: NULL argument");
    nbl_adamw copy = *call;
    NBL_CHECK(ctx, copy.count >= 0 && (copy.tensors || copy.count == 0), NBL_ERROR_ARGUMENT,
              "adamw: no tensors");
    return run_list(ctx, &nbl__adamw_family, &copy);
}

nbl_status nbl__grad_norm_enqueue(nbl_context *ctx, const nbl_tensor *gradients, int64_t count,
                                  double max_norm, nbl__clipping *to)
{
    nbl__grad_norm call = {.gradients = gradients,
                           .count = count,
                           .max_norm = max_norm,
                           .norm = {.data = &to->norm},
                           .non_finite = &to->non_finite,
                           .factor = &to->factor};
    return run_list(ctx, &nbl__grad_norm_family, &call);
}

nbl_status nbl_grad_norm(nbl_context *ctx, const nbl_tensor *gradients, int64_t count, double max_norm,
                         float *norm, int64_t *non_finite)
{
    NBL_CHECK(ctx, (gradients || count == 0) && norm, NBL_ERROR_ARGUMENT, "grad_norm: NULL argument");
    nbl__grad_norm call = {.gradients = gradients,
                           .count = count,
                           .max_norm = max_norm,
                           .norm = {.data = norm},
                           .non_finite = non_finite};
    const nbl__device *device = nbl__device_of(ctx);
    if (!device->separate_memory) return run_list(ctx, &nbl__grad_norm_family, &call);
    /* The kernel writes both results to the mailbox in host memory; they are valid after the wait. */
    call.norm.data = device->mailbox;
    call.non_finite = (int64_t *)device->mailbox + 1;
    NBL_TRY(run_list(ctx, &nbl__grad_norm_family, &call));
    NBL_TRY(device->wait(ctx, "grad_norm"));
    *norm = *(const float *)device->mailbox;
    if (non_finite) *non_finite = *call.non_finite;
    return NBL_OK;
}
