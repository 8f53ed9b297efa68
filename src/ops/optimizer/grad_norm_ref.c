/* grad_norm_ref.c - grad_norm and clipping by their definition: the oracle. Scalar, f64 sums,
 * never optimized. */
#include "ops/optimizer/grad_norm.h"
#include "ops/ref.h"

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__grad_norm *a = arguments;
    double squares = 0;
    int64_t blamed = -1;
    (void)call;
    for (int64_t k = 0; k < a->count; k++)
        for (int64_t i = 0; i < nbl__tensor_elements(&a->gradients[k]); i++) {
            double g = nbl__ref_get(&a->gradients[k], i);
            squares += g * g;
            if (blamed < 0 && !isfinite(g)) blamed = k;
        }
    double norm = sqrt(squares), factor = nbl__clip_factor(norm, a->max_norm);
    nbl__ref_set(&a->norm, 0, norm);
    if (a->non_finite) *a->non_finite = blamed;
    if (a->factor) *a->factor = blamed < 0 ? (float)factor : NAN;
    if (factor == 1 || a->factor) return NBL_OK;
    for (int64_t k = 0; k < a->count; k++)
        for (int64_t i = 0; i < nbl__tensor_elements(&a->gradients[k]); i++)
            nbl__ref_set(&a->gradients[k], i, nbl__ref_get(&a->gradients[k], i) * factor);
    return NBL_OK;
}

const nbl__impl nbl__grad_norm_ref = {"grad_norm_ref", NBL_ISA_SCALAR, NULL, NULL, run};
