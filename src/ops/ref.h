/* ref.h - how the reference implementations read and write values: one at a time,
 * as f64.
 *
 * Every family has a reference (NAME_ref.c): scalar, f64 sums, one rounding at the
 * end, never optimized. It is the oracle of the tests, and the last row of the
 * CPU's dispatch.
 *
 * Elements are counted as if the tensor were dense; the row stride (nbl_tensor.row_stride) is
 * applied here.
 *
 * References also accept tensors of f64, which infer accepts from nobody else. The
 * gradient checks run them on f64 data, so that finite differences are free of
 * rounding. */
#ifndef NBL_REF_H
#define NBL_REF_H

#include "ops/ops.h"

/* Where element i, counted without the row stride, lies in memory. */
static inline int64_t nbl__ref_index(const nbl_tensor *t, int64_t i)
{
    if (t->row_stride == 0) return i;
    int64_t row = nbl__row_elements(t);
    return i / row * t->row_stride + i % row;
}

/* Element i as f64, for f64, f32, f16 and bf16. */
static inline double nbl__ref_get(const nbl_tensor *t, int64_t i)
{
    float value;
    i = nbl__ref_index(t, i);
    if (t->dtype == NBL_DTYPE_F64) return ((const double *)t->data)[i];
    nbl__to_f32(NBL_ISA_SCALAR, t->dtype, (const uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                &value, 1);
    return (double)value;
}

/* Writes element i: rounded to f32, then to the tensor's dtype (f64 is not
 * rounded). A tensor without memory is skipped. */
static inline void nbl__ref_set(const nbl_tensor *t, int64_t i, double value)
{
    float rounded = (float)value;
    if (!nbl__has_data(t)) return;
    i = nbl__ref_index(t, i);
    if (t->dtype == NBL_DTYPE_F64) {
        ((double *)t->data)[i] = value;
        return;
    }
    nbl__from_f32(NBL_ISA_SCALAR, &rounded, t->dtype, (uint8_t *)t->data + (size_t)i * nbl__size_of(t->dtype),
                  1);
}

/* The value that a tensor of this dtype would hold. */
static inline double nbl__ref_round(nbl_dtype dtype, double value)
{
    uint64_t word;
    nbl_tensor one = {.dtype = dtype, .rank = 1, .shape = {1}, .data = &word};
    nbl__ref_set(&one, 0, value);
    return nbl__ref_get(&one, 0);
}

/* Writes a parameter's gradient, or adds to it. */
static inline void nbl__ref_put(const nbl_tensor *t, int64_t i, double value, bool accumulate)
{
    if (nbl__has_data(t)) nbl__ref_set(t, i, accumulate ? nbl__ref_get(t, i) + value : value);
}

#endif
