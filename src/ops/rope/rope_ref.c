/* rope_ref.c - rope_table, rope and its backward by their definition: the oracle. Scalar, f64.
 * Cosines and sines are rounded to f32 as in a table, so that the bits are the same with and
 * without a table. */
#include <math.h>

#include "ops/common/sequences.h"
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
    const int32_t *positions = a->positions.data;
    if (nbl__has_data(&a->cu_seqlens))
        NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "positions", nbl__tensor_elements(&a->positions)));
    for (nbl__rope_run run = {0}; nbl__rope_next_run(a, &run);) {
        nbl__rope_frequencies(&a->rope, 2 * half, run.length, frequencies, &scaling);
        for (int64_t t = run.first; t < run.end; t++) {
            double factor = (double)scaling * nbl__rope_query_scale(&a->rope, positions[t]);
            for (int64_t i = 0; i < half; i++) {
                double angle = (double)positions[t] * (double)frequencies[i];
                nbl__ref_set(&a->cos, t * half + i, cos(angle) * factor);
                nbl__ref_set(&a->sin, t * half + i, sin(angle) * factor);
            }
        }
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
    int64_t step = a->rope.interleaved ? 2 : 1, apart = a->rope.interleaved ? 1 : half;
    float *frequencies = (float *)(void *)call->scratch, scaling = 1;
    if (!table) nbl__rope_frequencies(&a->rope, 2 * half, 0, frequencies, &scaling);
    for (int64_t r = 0; r < rows; r++) {
        int64_t t = r / heads;
        double factor = (double)scaling;
        if (!table) factor *= nbl__rope_query_scale(&a->rope, ((const int32_t *)a->positions.data)[t]);
        for (int64_t i = 0; i < half; i++) {
            double angle = table ? 0
                                 : (double)((const int32_t *)a->positions.data)[t] * (double)frequencies[i];
            /* c_own and s_own: rounded as a table would hold them */
            float c_own = (float)(cos(angle) * factor), s_own = (float)(sin(angle) * factor);
            double c = table ? nbl__ref_get(&a->cos, t * half + i) : (double)c_own;
            double s = sign * (table ? nbl__ref_get(&a->sin, t * half + i) : (double)s_own);
            int64_t at = r * columns + i * step;
            double first = nbl__ref_get(from, at), second = nbl__ref_get(from, at + apart);
            nbl__ref_set(to, at, first * c - second * s);
            nbl__ref_set(to, at + apart, second * c + first * s);
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
