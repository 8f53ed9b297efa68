/* ref.h - how the references read and write values: one at a time, in f64.
 *
 * A tensor may also be f64 here, which no operator accepts from outside: the gradient checks run the
 * references on f64 data to take finite differences without rounding. */
#ifndef NBL_REF_H
#define NBL_REF_H

#include "ops/ops.h"

static inline double nbl__ref_get(const nbl_tensor *t, int64_t i)
{
    float value;
    if (t->dtype == NBL_DTYPE_F64) return ((const double *)t->data)[i];
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                &value, 1);
    return (double)value;
}

/* One rounding to f32, one to the tensor's dtype. A tensor without memory is not wanted. */
static inline void nbl__ref_set(const nbl_tensor *t, int64_t i, double value)
{
    float rounded = (float)value;
    if (!nbl__given(t)) return;
    if (t->dtype == NBL_DTYPE_F64) {
        ((double *)t->data)[i] = value;
        return;
    }
    nbl__from_f32(NBL_ISA_SCALAR, &rounded, t->dtype, (uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                  1);
}

/* A value as a tensor of this dtype holds it. */
static inline double nbl__ref_round(nbl_dtype dtype, double value)
{
    uint64_t word;
    nbl_tensor one = {.dtype = dtype, .rank = 1, .shape = {1}, .data = &word};
    nbl__ref_set(&one, 0, value);
    return nbl__ref_get(&one, 0);
}

/* A gradient of a parameter: written, or added to what is there. */
static inline void nbl__ref_put(const nbl_tensor *t, int64_t i, double value, bool accumulate)
{
    if (nbl__given(t)) nbl__ref_set(t, i, accumulate ? nbl__ref_get(t, i) + value : value);
}

#endif
