/* short_conv_ref.c - short_conv, its backward and short_conv_step by their definition: the oracle.
 * Scalar, f64 sums, one rounding per result. */
#include "ops/recurrent/short_conv.h"

#include <math.h>

#include "ops/common/sequences.h"
#include "ops/ref.h"

/* silu(x), and its derivative. Beyond ±40 the derivative is 1 or 0. */
static double silu(double x, double *slope)
{
    double s = 1 / (1 + exp(-x)), near = x > 40 ? 40 : x < -40 ? -40 : x;
    *slope = s * (1 + near * (1 - s));
    return x * s;
}

/* c[t] of a channel, in the sequence that begins at row `first`; rounded to the compute dtype. */
static double sum_at(const nbl__short_conv *a, int64_t first, int64_t t, int64_t channel)
{
    int64_t channels = a->x.shape[1], taps = a->w.shape[2];
    double sum = 0;
    for (int64_t j = 0; j < taps; j++) {
        int64_t row = t - taps + 1 + j;
        if (row >= first)
            sum += nbl__ref_get(&a->w, channel * taps + j) * nbl__ref_get(&a->x, row * channels + channel);
    }
    return nbl__ref_round(a->x.dtype, sum);
}

static nbl_status run_forward(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv *a = arguments;
    int64_t channels = a->x.shape[1];
    double slope;
    NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "x", a->x.shape[0]));
    const int32_t *at = a->cu_seqlens.data;
    for (int64_t s = 0; s < nbl__sequence_count(&a->cu_seqlens); s++)
        for (int64_t t = at[s]; t < at[s + 1]; t++)
            for (int64_t c = 0; c < channels; c++)
                nbl__ref_set(&a->y, t * channels + c, silu(sum_at(a, at[s], t, c), &slope));
    nbl__short_conv_keep(a);
    return NBL_OK;
}

/* Sums of dw. */
static size_t backward_scratch(const nbl_context *ctx, const void *arguments)
{
    const nbl__short_conv *a = arguments;
    (void)ctx;
    return (size_t)nbl__tensor_elements(&a->w) * sizeof(double);
}

static nbl_status run_backward(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv *a = arguments;
    int64_t channels = a->x.shape[1], taps = a->w.shape[2];
    double *dw = (double *)(void *)call->scratch, slope;
    NBL_TRY(nbl__check_packing(call, &a->cu_seqlens, "x", a->x.shape[0]));
    const int32_t *at = a->cu_seqlens.data;
    memset(dw, 0, (size_t)(channels * taps) * sizeof *dw);
    for (int64_t s = 0; s < nbl__sequence_count(&a->cu_seqlens); s++)
        for (int64_t i = at[s]; i < at[s + 1]; i++)
            for (int64_t c = 0; c < channels; c++) {
                double dx = 0;
                for (int64_t j = 0; j < taps; j++) {
                    int64_t t = i + taps - 1 - j; /* x[i] is its input j */
                    if (t >= at[s + 1]) continue;
                    silu(sum_at(a, at[s], t, c), &slope);
                    double dc = nbl__ref_get(&a->dy, t * channels + c) * slope;
                    dx += nbl__ref_get(&a->w, c * taps + j) * dc;
                    dw[c * taps + j] += dc * nbl__ref_get(&a->x, i * channels + c);
                }
                nbl__ref_set(&a->dx, i * channels + c, dx);
            }
    for (int64_t i = 0; i < channels * taps; i++) nbl__ref_put(&a->dw, i, dw[i], a->accumulate);
    return NBL_OK;
}

static nbl_status run_step(const nbl__call *call, const void *arguments)
{
    const nbl__short_conv_step *a = arguments;
    int64_t channels = a->x.shape[1], taps = a->w.shape[2];
    double slope;
    (void)call;
    for (int64_t s = 0; s < a->x.shape[0]; s++)
        for (int64_t c = 0; c < channels; c++) {
            double sum = nbl__ref_get(&a->w, c * taps + taps - 1) * nbl__ref_get(&a->x, s * channels + c);
            for (int64_t j = 0; j < taps - 1; j++)
                sum += nbl__ref_get(&a->w, c * taps + j) *
                       nbl__ref_get(&a->state, (s * (taps - 1) + j) * channels + c);
            nbl__ref_set(&a->y, s * channels + c, silu(nbl__ref_round(a->x.dtype, sum), &slope));
        }
    nbl__short_conv_shift(a);
    return NBL_OK;
}

const nbl__impl nbl__short_conv_ref = {"short_conv_ref", NBL_ISA_SCALAR, NULL, NULL, run_forward};
const nbl__impl nbl__short_conv_backward_ref = {"short_conv_backward_ref", NBL_ISA_SCALAR, NULL,
                                                backward_scratch, run_backward};
const nbl__impl nbl__short_conv_step_ref = {"short_conv_step_ref", NBL_ISA_SCALAR, NULL, NULL, run_step};
