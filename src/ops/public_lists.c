/* public_lists.c - the calls of nibble.h that work on lists of tensors: adamw and grad_norm. */
#include "device/device.h"
#include "ops/families.h"
#include "ops/optimizer/adamw.h"
#include "ops/optimizer/grad_norm.h"

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
