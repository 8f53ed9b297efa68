/* offload_copy.c - the step offload_copy: outputs, slots, and the CPU's implementation, where a
 * copy is a memcpy that is complete at once. See offload_copy.h. */
#include "ops/elementwise/offload_copy.h"

/* store and wait have no output; a load's is shaped like the value that was stored */
static nbl_status infer(nbl_context *ctx, void *arguments)
{
    nbl__offload_copy *a = arguments;
    (void)ctx;
    if (a->what == NBL_OFFLOAD_LOAD)
        nbl__output_like(&a->y, &a->put->x, nbl__last(&a->put->x), a->put->x.dtype);
    return NBL_OK;
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__offload_copy *a = arguments;
    (void)call;
    assert(a->slot >= 0 && a->slot < NBL_OFFLOAD_SLOTS && (a->what == NBL_OFFLOAD_WAIT || a->host));
    if (a->what == NBL_OFFLOAD_STORE) memcpy(a->host, a->x.data, nbl__offload_copy_bytes(&a->x));
    if (a->what == NBL_OFFLOAD_LOAD) memcpy(a->y.data, a->host, nbl__offload_copy_bytes(&a->y));
    return NBL_OK;
}

static const nbl__impl offload_copy_cpu = {.name = "offload_copy_cpu", .needs = NBL_ISA_SCALAR, .run = run};
static const nbl__impl *const impls[] = {&offload_copy_cpu, NULL};

static const nbl__slot slots[] = {NBL_SLOT(nbl__offload_copy, x, "x", OPTIONAL, NULL),
                                  NBL_SLOT(nbl__offload_copy, y, "y", OUTPUT, NULL),
                                  {0}};
static const nbl__attr attrs[] = {{0}};

const nbl__family nbl__offload_copy_family = {
    .name = "offload_copy",
    .size = sizeof(nbl__offload_copy),
    .slots = slots,
    .attrs = attrs,
    .forward = {.name = "offload_copy", .infer = infer, .impls = impls}};
