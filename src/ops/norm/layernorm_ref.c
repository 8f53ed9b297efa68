/* layernorm_ref.c - layernorm and its backward by their definition: the oracle. Scalar, f64 sums. */
#include "ops/norm/layernorm.h"

#include <math.h>

#include "ops/ref.h"

typedef struct row_moments {
    double mean, scale; /* scale: 1 / √(variance + eps) */
} row_moments;

/* Mean and scale of a row, in two passes: the variance is a sum of squared distances from the
 * mean. */
static row_moments moments_of(const nbl__layernorm *a, int64_t first, int64_t columns)
{
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < columns; k++) sum += nbl__ref_get(&a->x, first + k);
    double mean = sum / (double)columns;
    for (int64_t k = 0; k < columns; k++) {
        double d = nbl__ref_get(&a->x, first + k) - mean;
        squares += d * d;
    }
    return (row_moments){mean, 1 / sqrt(squares / (double)columns + (double)a->eps)};
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__layernorm *a = arguments;
    int64_t rows = nbl__tensor_rows(&a->x), columns = nbl__last(&a->x);
    (void)call;
    for (int64_t r = 0; r < rows; r++) {
        row_moments m = moments_of(a, r * columns, columns);
        for (int64_t k = 0; k < columns; k++) {
            int64_t i = r * columns + k;
            double bias = nbl__has_data(&a->bias) ? nbl__ref_get(&a->bias, k) : 0;
            double n = (nbl__ref_get(&a->x, i) - m.mean) * m.scale;
            nbl__ref_set(&a->y, i, (n * nbl__ref_get(&a->w, k) + bias) * (double)nbl__norm_scale(a->scale));
        }
    }
    return NBL_OK;
}

/* dy is multiplied by the scale first. With n = (x - mean)·s and g = dy·w:
 *
 *   dx = s·(g - mean(g) - n·mean(g·n)),   dw = Σ_rows dy·n,   db = Σ_rows dy */
static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__layernorm *a = arguments;
    int64_t rows = nbl__tensor_rows(&a->x), columns = nbl__last(&a->x);
    double *dw = (double *)(void *)call->scratch, *db = dw + columns, out = (double)nbl__norm_scale(a->scale);
    for (int64_t k = 0; k < columns; k++) dw[k] = db[k] = 0;
    for (int64_t r = 0; r < rows; r++) {
        row_moments m = moments_of(a, r * columns, columns);
        double sum = 0, dot = 0;
        for (int64_t k = 0; k < columns; k++) {
            double dy = nbl__ref_get(&a->dy, r * columns + k) * out, g = dy * nbl__ref_get(&a->w, k);
            double n = (nbl__ref_get(&a->x, r * columns + k) - m.mean) * m.scale;
            sum += g;
            dot += g * n;
            dw[k] += dy * n;
            db[k] += dy;
        }
        for (int64_t k = 0; k < columns && nbl__has_data(&a->dx); k++) {
            int64_t i = r * columns + k;
            double g = nbl__ref_get(&a->dy, i) * out * nbl__ref_get(&a->w, k);
            double n = (nbl__ref_get(&a->x, i) - m.mean) * m.scale;
            nbl__ref_set(&a->dx, i, m.scale * (g - (sum + n * dot) / (double)columns));
        }
    }
    for (int64_t k = 0; k < columns; k++) {
        if (nbl__has_data(&a->dw)) nbl__ref_put(&a->dw, k, dw[k], a->accumulate);
        if (nbl__has_data(&a->dbias)) nbl__ref_put(&a->dbias, k, db[k], a->accumulate);
    }
    return NBL_OK;
}

static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)nbl__last(&((const nbl__layernorm *)arguments)->x) * 2 * sizeof(double);
}

const nbl__impl nbl__layernorm_ref = {"layernorm_ref", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__layernorm_backward_ref = {"layernorm_backward_ref", NBL_ISA_SCALAR, NULL,
                                               backward_scratch, run_backward};
