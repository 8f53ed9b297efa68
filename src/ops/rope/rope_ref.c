/* rope_ref.c - rope_table, rope and its backward by their definition: the oracle. Scalar, f64.
 * Cosines and sines are rounded to f32 as in a table, so that the bits are the same with and
 * without a table. */
#include <math.h>

#include "ops/ref.h"
#include "ops/rope/rope.h"

static size_t table_scratch(const nbl_context *ctx, const void *arguments)
{
    (void)ctx;
    return (size_t)((const nbl__rope_table *)arguments)->rope.rotary_dim / 2 * sizeof(float);
}

/* The angle is a product in f64, as rope.h promises. cos and sin are rounded once, to f32. */
static nbl_status run_table(const nbl__call *call, const void *arguments)
{
    const nbl__rope_table *a = arguments;
    int64_t half = a->rope.rotary_dim / 2;
    float *frequencies = (float *)(void *)call->scratch, scaling;
    nbl__rope_frequencies(&a->rope, 2 * half, frequencies, &scaling);
    for (int64_t t = 0; t < nbl__tensor_elements(&a->positions); t++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)((const int32_t *)a->positions.data)[t] * (double)frequencies[i];
            nbl__ref_set(&a->cos, t * half + i, cos(angle) * (double)scaling);
            nbl__ref_set(&a->sin, t * half + i, sin(angle) * (double)scaling);
        }
    return NBL_OK;
}

/* Rotates `from` into `to`; sign -1: by the negative angle. */
static nbl_status rotate(const nbl__call *call, const nbl__rope_apply *a, const nbl_tensor *from,
                         const nbl_tensor *to, double sign)
{
    int64_t columns = nbl__last(&a->x), half = nbl__rope_dim(&a->rope, columns) / 2;
    int64_t heads = a->x.shape[a->x.rank - 2], rows = nbl__tensor_rows(&a->x);
    bool table = nbl__has_data(&a->cos);
    float *frequencies = (float *)(void *)call->scratch, scaling = 1;
    if (!table) nbl__rope_frequencies(&a->rope, 2 * half, frequencies, &scaling);
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = r / heads;
        for (int64_t i = 0; i < half; i++) {
            double angle = table ? 0
                                 : (double)((const int32_t *)a->positions.data)[t] * (double)frequencies[i];
            /* c_own and s_own: rounded as a table would hold them */
            float c_own = (float)(cos(angle) * (double)scaling),
                  s_own = (float)(sin(angle) * (double)scaling);
            double c = table ? nbl__ref_get(&a->cos, t * half + i) : (double)c_own;
            double s = sign * (table ? nbl__ref_get(&a->sin, t * half + i) : (double)s_own);
            double first = nbl__ref_get(from, r * columns + i);
            double second = nbl__ref_get(from, r * columns + half + i);
            nbl__ref_set(to, r * columns + i, first * c - second * s);
            nbl__ref_set(to, r * columns + half + i, second * c + first * s);
        }
        for (int64_t i = 2 * half; i < columns; i++)
            nbl__ref_set(to, r * columns + i, nbl__ref_get(from, r * columns + i));
    }
    return NBL_OK;
}

static size_t rotate_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__rope_apply *a = arguments;
    (void)ctx;
    return (size_t)nbl__rope_dim(&a->rope, nbl__last(&a->x)) / 2 * sizeof(float);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__rope_apply *a = arguments;
    return rotate(call, a, &a->x, &a->y, 1);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__rope_apply *a = arguments;
    return nbl__has_data(&a->dx) ? rotate(call, a, &a->dy, &a->dx, -1) : NBL_OK;
}

const nbl__impl nbl__rope_table_ref = {"rope_table_ref", NBL_ISA_SCALAR, NULL, table_scratch, run_table};
const nbl__impl nbl__rope_ref = {"rope_ref", NBL_ISA_SCALAR, NULL, rotate_scratch, run_forward};
const nbl__impl nbl__rope_backward_ref = {"rope_backward_ref", NBL_ISA_SCALAR, NULL, rotate_scratch,
                                          run_backward};
