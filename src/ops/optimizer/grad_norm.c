/* grad_norm.c - the family grad_norm: checks. Its tensors are a list, so that it has no slots. */
#include "ops/optimizer/grad_norm.h"

#include <stdio.h>

#include "ops/families.h"

static nbl_status infer(nbl_context *ctx, void *arguments)
{
    nbl__grad_norm *a = arguments;
    NBL_CHECK(ctx, a->max_norm >= 0 && isfinite(a->max_norm), NBL_ERROR_ARGUMENT,
              "grad_norm: max_norm is %g, not a positive number or 0", a->max_norm);
    for (int64_t i = 0; i < a->count; i++) {
        char name[32];
        snprintf(name, sizeof name, "g%" PRId64, i);
        NBL_TRY(nbl__check_float(ctx, "grad_norm", name, &a->gradients[i]));
    }
    nbl__output_vector(&a->norm, NBL_DTYPE_F32, 1, 1, 0);
    return NBL_OK;
}

static const nbl__slot no_slots[] = {{0}};
static const nbl__attr no_attrs[] = {{0}};
#define ROWS(X) X(grad_norm_cpu) X(grad_norm_ref)
NBL_IMPLS(impls, ROWS);
const nbl__family nbl__grad_norm_family = {
    "grad_norm", sizeof(nbl__grad_norm), no_slots, no_attrs, {"grad_norm", infer, impls}, {0}, {.forward = 2},
};
