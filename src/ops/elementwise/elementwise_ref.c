/* elementwise_ref.c - add, cast, scale, gated, their backwards, and check_finite by their
 * definition: the oracle. Scalar, f64, one rounding per result. Any dtype: nbl__ref_get and
 * nbl__ref_set convert. */
#include "ops/elementwise/elementwise.h"

#include <math.h>

#include "ops/elementwise/act_rare.h"
#include "ops/ref.h"

static nbl_status run_add(const nbl__call *call, const void *arguments)
{
    const nbl__add *a = arguments;
    (void)call;
    for (int64_t i = 0; i < nbl__tensor_elements(&a->a); i++)
        nbl__ref_set(&a->y, i, nbl__ref_get(&a->a, i) + nbl__ref_get(&a->b, i));
    return NBL_OK;
}

static nbl_status run_cast(const nbl__call *call, const void *arguments)
{
    const nbl__cast *a = arguments;
    (void)call;
    for (int64_t i = 0; i < nbl__tensor_elements(&a->x); i++) nbl__ref_set(&a->y, i, nbl__ref_get(&a->x, i));
    return NBL_OK;
}

static nbl_status run_scale(const nbl__call *call, const void *arguments)
{
    const nbl__scale *a = arguments;
    (void)call;
    for (int64_t i = 0; i < nbl__tensor_elements(&a->x); i++)
        nbl__ref_set(&a->y, i, nbl__ref_get(&a->x, i) * (double)a->factor);
    return NBL_OK;
}

/* dx = dy·factor, in the dtype of dx. */
static void pass_on(const nbl_tensor *dy, const nbl_tensor *dx, double factor)
{
    if (!nbl__has_data(dx)) return;
    for (int64_t i = 0; i < nbl__tensor_elements(dy); i++) nbl__ref_set(dx, i, nbl__ref_get(dy, i) * factor);
}

static nbl_status run_add_backward(const nbl__call *call, const void *arguments)
{
    const nbl__add *a = arguments;
    (void)call;
    pass_on(&a->dy, &a->dx, 1);
    return NBL_OK;
}

static nbl_status run_cast_backward(const nbl__call *call, const void *arguments)
{
    const nbl__cast *a = arguments;
    (void)call;
    pass_on(&a->dy, &a->dx, 1);
    return NBL_OK;
}

static nbl_status run_scale_backward(const nbl__call *call, const void *arguments)
{
    const nbl__scale *a = arguments;
    (void)call;
    pass_on(&a->dy, &a->dx, (double)a->factor);
    return NBL_OK;
}

/* ---- gated ---- */

/* act(x); *slope is its derivative. Beyond ±40 act(x) is x or 0 and its slope 1 or 0. There the
 * slope's correction is evaluated at 40, so that an infinite x is not multiplied by the
 * correction's 0. */
static double activation(nbl__act act, double x, double *slope)
{
    const double a = 0.044715, b = sqrt(2 / M_PI);
    double near = x > 40 ? 40 : x < -40 ? -40 : x;
    if (nbl__act_is_rare(act)) return nbl__act_rare(act, x, slope);
    if (act == NBL_ACT_SILU) {
        double s = 1 / (1 + exp(-x));
        *slope = s * (1 + near * (1 - s));
        return x * s;
    }
    if (act == NBL_ACT_GELU) {
        double phi = 0.5 * erfc(-x * sqrt(0.5));
        *slope = phi + near * exp(-near * near / 2) / sqrt(2 * M_PI);
        return x * phi;
    }
    double t = tanh(b * (x + a * x * x * x));
    *slope = 0.5 * (1 + t) + 0.5 * near * (1 - t * t) * b * (1 + 3 * a * near * near);
    return 0.5 * x * (1 + t);
}

/* h = act(gate)·up */
static nbl_status run_gated(const nbl__call *call, const void *arguments)
{
    const nbl__gated *a = arguments;
    double slope;
    (void)call;
    for (int64_t i = 0; i < nbl__tensor_elements(&a->gate); i++)
        nbl__ref_set(&a->h, i,
                     activation((nbl__act)a->act, nbl__ref_get(&a->gate, i), &slope) *
                         nbl__ref_get(&a->up, i));
    return NBL_OK;
}

/* dgate = dh·up·act'(gate), dup = dh·act(gate). Reads an element before it writes, so dgate and dup
 * may overlap inputs. */
static nbl_status run_gated_backward(const nbl__call *call, const void *arguments)
{
    const nbl__gated *a = arguments;
    (void)call;
    for (int64_t i = 0; i < nbl__tensor_elements(&a->gate); i++) {
        double slope, value = activation((nbl__act)a->act, nbl__ref_get(&a->gate, i), &slope);
        double up = nbl__ref_get(&a->up, i), dh = nbl__ref_get(&a->dh, i);
        if (nbl__has_data(&a->dgate)) nbl__ref_set(&a->dgate, i, dh * up * slope);
        if (nbl__has_data(&a->dup)) nbl__ref_set(&a->dup, i, dh * value);
    }
    return NBL_OK;
}

/* ---- check_finite ---- */

static nbl_status run_finite(const nbl__call *call, const void *arguments)
{
    const nbl__finite *a = arguments;
    int64_t first = -1, count = 0;
    (void)call;
    for (int64_t i = 0; i < nbl__tensor_elements(&a->x); i++) {
        if (isfinite(nbl__ref_get(&a->x, i))) continue;
        if (count++ == 0) first = i;
    }
    *(int64_t *)a->first.data = first;
    *(int64_t *)a->count.data = count;
    return NBL_OK;
}

const nbl__impl nbl__add_ref = {"add_ref", NBL_ISA_SCALAR, NULL, NULL, run_add};
const nbl__impl nbl__cast_ref = {"cast_ref", NBL_ISA_SCALAR, NULL, NULL, run_cast};
const nbl__impl nbl__scale_ref = {"scale_ref", NBL_ISA_SCALAR, NULL, NULL, run_scale};
const nbl__impl nbl__add_backward_ref = {"add_backward_ref", NBL_ISA_SCALAR, NULL, NULL, run_add_backward};
const nbl__impl nbl__cast_backward_ref = {"cast_backward_ref", NBL_ISA_SCALAR, NULL, NULL, run_cast_backward};
const nbl__impl nbl__scale_backward_ref = {"scale_backward_ref", NBL_ISA_SCALAR, NULL, NULL,
                                           run_scale_backward};
const nbl__impl nbl__gated_ref = {"gated_ref", NBL_ISA_SCALAR, NULL, NULL, run_gated};
const nbl__impl nbl__gated_backward_ref = {"gated_backward_ref", NBL_ISA_SCALAR, NULL, NULL,
                                           run_gated_backward};
const nbl__impl nbl__check_finite_ref = {"check_finite_ref", NBL_ISA_SCALAR, NULL, NULL, run_finite};
