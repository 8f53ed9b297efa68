/* gated_norm_ref.c - gated_norm and its backward by their definition: the oracle. Scalar, f64 sums,
 * one rounding per result. */
#include "ops/gate/gated_norm.h"

#include <math.h>

#include "ops/ref.h"

/* 1 / sqrt(mean(x²) + eps) of the row of `columns` elements at `at`. */
static double scale_of(const nbl__gated_norm *a, int64_t at, int64_t columns)
{
    double sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += pow(nbl__ref_get(&a->x, at + i), 2);
    return 1 / sqrt(sum / (double)columns + (double)a->eps);
}

/* silu(x), and its derivative. Beyond ±40 the derivative is 1 or 0. */
static double silu(double x, double *slope)
{
    double s = 1 / (1 + exp(-x)), near = x > 40 ? 40 : x < -40 ? -40 : x;
    *slope = s * (1 + near * (1 - s));
    return x * s;
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__gated_norm *a = arguments;
    int64_t columns = a->x.shape[2], rows = a->x.shape[0] * a->x.shape[1];
    (void)call;
    for (int64_t row = 0; row < rows; row++) {
        double r = scale_of(a, row * columns, columns), slope;
        for (int64_t i = 0; i < columns; i++) {
            int64_t at = row * columns + i;
            nbl__ref_set(&a->y, at,
                         nbl__ref_get(&a->w, i) * nbl__ref_get(&a->x, at) * r *
                             silu(nbl__ref_get(&a->gate, at), &slope));
        }
    }
    return NBL_OK;
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)((const nbl__gated_norm *)arguments)->x.shape[2] * sizeof(double);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__gated_norm *a = arguments;
    int64_t columns = a->x.shape[2], rows = a->x.shape[0] * a->x.shape[1];
    double *dw = (double *)(void *)call->scratch;
    memset(dw, 0, (size_t)columns * sizeof *dw);
    for (int64_t row = 0; row < rows; row++) {
        double r = scale_of(a, row * columns, columns), mean = 0, slope;
        for (int64_t i = 0; i < columns; i++) {
            int64_t at = row * columns + i;
            double n = nbl__ref_get(&a->x, at) * r, g = nbl__ref_get(&a->dy, at);
            double value = silu(nbl__ref_get(&a->gate, at), &slope), w = nbl__ref_get(&a->w, i);
            nbl__ref_set(&a->dgate, at, g * w * n * slope);
            dw[i] += g * n * value;
            mean += n * g * w * value / (double)columns;
        }
        for (int64_t i = 0; i < columns; i++) {
            int64_t at = row * columns + i;
            double dn = nbl__ref_get(&a->dy, at) * nbl__ref_get(&a->w, i) *
                        silu(nbl__ref_get(&a->gate, at), &slope);
            nbl__ref_set(&a->dx, at, r * (dn - nbl__ref_get(&a->x, at) * r * mean));
        }
    }
    for (int64_t i = 0; i < columns; i++) nbl__ref_put(&a->dw, i, dw[i], a->accumulate);
    return NBL_OK;
}

const nbl__impl nbl__gated_norm_ref = {"gated_norm_ref", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__gated_norm_backward_ref = {"gated_norm_backward_ref", NBL_ISA_SCALAR, NULL,
                                                backward_scratch, run_backward};
