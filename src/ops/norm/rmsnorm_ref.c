/* rmsnorm_ref.c - rmsnorm and its backward by their definition: the oracle. Scalar, f64 sums. */
#include "ops/norm/rmsnorm.h"

#include <math.h>

#include "ops/ref.h"

/* Element i of h. */
static double sum_of(const nbl__rmsnorm *a, int64_t i)
{
    if (!nbl__has_data(&a->residual)) return nbl__ref_get(&a->x, i);
    return nbl__ref_round(a->x.dtype, nbl__ref_get(&a->x, i) + nbl__ref_get(&a->residual, i));
}

/* 1 / √(mean(h²) + eps) of the row that starts at element `first`. */
static double inverse_rms(const nbl__rmsnorm *a, int64_t first, int64_t columns)
{
    double squares = 0;
    for (int64_t k = 0; k < columns; k++) squares += sum_of(a, first + k) * sum_of(a, first + k);
    return 1 / sqrt(squares / (double)columns + (double)a->eps);
}

static double weight_at(const nbl__rmsnorm *a, int64_t k)
{
    double w = nbl__has_data(&a->w) ? nbl__ref_get(&a->w, k) + (double)a->offset : 1;
    return w * (double)nbl__norm_scale(a->scale);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__rmsnorm *a = arguments;
    int64_t rows = nbl__tensor_rows(&a->x), columns = nbl__last(&a->x);
    (void)call;
    for (int64_t r = 0; r < rows; r++) {
        double scale = inverse_rms(a, r * columns, columns);
        for (int64_t k = 0; k < columns; k++) {
            int64_t i = r * columns + k;
            double h = sum_of(a, i), n = h * scale;
            if (a->round == NBL_ROUND_BEFORE_WEIGHT) n = nbl__ref_round(a->x.dtype, n);
            nbl__ref_set(&a->y, i, n * weight_at(a, k));
        }
        if (!nbl__has_data(&a->residual)) continue;
        for (int64_t i = r * columns; i < (r + 1) * columns; i++)
            nbl__ref_set(&a->residual_out, i, sum_of(a, i));
    }
    return NBL_OK;
}

/* With s = 1 / √(mean(h²) + eps), n = h·s and g = dy·(w + offset)·scale:
 *
 *   dh = s·(g - n·mean(g·n)),   dw = Σ_rows dy·n·scale */
static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    nbl__rmsnorm sum = nbl__rmsnorm_from_sum(arguments), *a = &sum;
    int64_t rows = nbl__tensor_rows(&a->x), columns = nbl__last(&a->x);
    double *dw = (double *)(void *)call->scratch;
    for (int64_t k = 0; k < columns; k++) dw[k] = 0;
    for (int64_t r = 0; r < rows; r++) {
        double scale = inverse_rms(a, r * columns, columns), dot = 0;
        for (int64_t k = 0; k < columns; k++) {
            int64_t i = r * columns + k;
            double n = sum_of(a, i) * scale;
            dot += nbl__ref_get(&a->dy, i) * weight_at(a, k) * n;
            dw[k] += nbl__ref_get(&a->dy, i) * n * (double)nbl__norm_scale(a->scale);
        }
        for (int64_t k = 0; k < columns && nbl__has_data(&a->dx); k++) {
            int64_t i = r * columns + k;
            double g = nbl__ref_get(&a->dy, i) * weight_at(a, k), n = sum_of(a, i) * scale;
            double further = nbl__has_data(&a->dresidual) ? nbl__ref_get(&a->dresidual, i) : 0;
            nbl__ref_set(&a->dx, i, scale * (g - n * dot / (double)columns) + further);
        }
    }
    for (int64_t k = 0; k < columns && nbl__has_data(&a->dw); k++)
        nbl__ref_put(&a->dw, k, dw[k], a->accumulate);
    return NBL_OK;
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)nbl__last(&((const nbl__rmsnorm *)arguments)->x) * sizeof(double);
}

const nbl__impl nbl__rmsnorm_ref = {"rmsnorm_ref", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__rmsnorm_backward_ref = {"rmsnorm_backward_ref", NBL_ISA_SCALAR, NULL, backward_scratch,
                                             run_backward};
