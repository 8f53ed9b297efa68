/* argmax.c - the family argmax: checks, and the reference, which is the CPU's only implementation.
 * See argmax.h. */
#include "ops/loss/argmax.h"

#include <math.h>

#include "ops/families.h"

static nbl_status infer(nbl_context *ctx, void *arguments)
{
    nbl__argmax *a = arguments;
    NBL_TRY(nbl__check_float(ctx, "argmax", "x", &a->x));
    NBL_CHECK(ctx, a->x.rank >= 1 && nbl__last(&a->x) >= 1 && nbl__last(&a->x) <= INT32_MAX, NBL_ERROR_SHAPE,
              "argmax: x is %s, not [rows, columns]", nbl__show_shape(a->x.rank, a->x.shape).text);
    nbl__output_vector(&a->best, NBL_DTYPE_I32, 1, nbl__tensor_rows(&a->x), 0);
    nbl__output_vector(&a->non_finite, NBL_DTYPE_I32, 1, nbl__tensor_rows(&a->x), 0);
    return NBL_OK;
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__argmax *a = arguments;
    int64_t columns = nbl__last(&a->x), rows = nbl__tensor_rows(&a->x);
    size_t size = nbl__size_of(a->x.dtype);
    (void)call;
    for (int64_t r = 0; r < rows; r++) {
        int32_t best = 0, non_finite = -1;
        float highest = -INFINITY;
        for (int64_t k = 0; k < columns; k++) {
            float x;
            nbl__to_f32(NBL_ISA_SCALAR, a->x.dtype,
                        (const uint8_t *)a->x.data + (size_t)(r * columns + k) * size, &x, 1);
            if (!isfinite(x) && non_finite < 0) non_finite = (int32_t)k;
            if (x > highest) highest = x, best = (int32_t)k;
        }
        ((int32_t *)a->best.data)[r] = best;
        ((int32_t *)a->non_finite.data)[r] = non_finite;
    }
    return NBL_OK;
}

static const nbl__slot slots[] = {
    NBL_SLOT(nbl__argmax, x, "x", INPUT, NULL),
    NBL_SLOT(nbl__argmax, best, "best", OUTPUT, NULL),
    NBL_SLOT(nbl__argmax, non_finite, "non_finite", OUTPUT, NULL),
    {0},
};
static const nbl__attr attrs[] = {{0}};
static const nbl__impl ref = {"argmax_ref", NBL_ISA_SCALAR, NULL, NULL, run};
static const nbl__impl *const impls[] = {&ref, NULL};
const nbl__family nbl__argmax_family = {
    "argmax", sizeof(nbl__argmax), slots, attrs, {"argmax", infer, impls}, {0}, {.forward = 1},
};
