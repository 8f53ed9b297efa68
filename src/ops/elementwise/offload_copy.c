/* offload_copy.c - see aside.h. */
#include "ops/elementwise/offload_copy.h"

static nbl_status infer(nbl_context *ctx, void *arguments)
{
    nbl__aside *a = arguments;
    (void)ctx;
    if (a->what == NBL_ASIDE_GET) nbl__output_like(&a->y, &a->put->x, nbl__last(&a->put->x), a->put->x.dtype);
    return NBL_OK;
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__aside *a = arguments;
    (void)call;
    if (a->what == NBL_ASIDE_PUT) memcpy(a->host, a->x.data, nbl__aside_bytes(&a->x));
    if (a->what == NBL_ASIDE_GET) memcpy(a->y.data, a->host, nbl__aside_bytes(&a->y));
    return NBL_OK;
}

static const nbl__impl aside_cpu = {.name = "aside_cpu", .needs = NBL_ISA_SCALAR, .run = run};
static const nbl__impl *const impls[] = {&aside_cpu, NULL};

static const nbl__slot slots[] = {
    NBL_SLOT(nbl__aside, x, "x", OPTIONAL, NULL), NBL_SLOT(nbl__aside, y, "y", OUTPUT, NULL), {0}};
static const nbl__attr attrs[] = {{0}};

const nbl__family nbl__aside_family = {.name = "aside",
                                       .size = sizeof(nbl__aside),
                                       .slots = slots,
                                       .attrs = attrs,
                                       .forward = {.name = "aside", .infer = infer, .impls = impls}};
