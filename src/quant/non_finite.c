/* non_finite.c - see non_finite.h. A vector pass over each chunk; only a chunk with a hit is
 * scanned value by value. */
#include "quant/non_finite.h"

#include <float.h>
#include <math.h>

#include "quant/quant.h"

enum { CHUNK = 4096 };

/* Counts one value. `first` becomes the lowest index; 0 means none, so index + 1 is stored. Workers
 * call this at the same time. */
static void count_one(nbl__non_finite *found, int64_t index)
{
    int_fast64_t at = index + 1, known = atomic_load(&found->first);
    while ((known == 0 || at < known) && !atomic_compare_exchange_weak(&found->first, &known, at)) continue;
    atomic_fetch_add(&found->count, 1);
}

void nbl__non_finite_list(nbl__non_finite *found, nbl_dtype dtype, const void *values, int64_t n,
                          int64_t index, int64_t stride, float max)
{
    const uint8_t *at = values;
    for (int64_t i = 0; i < n; i++) {
        float value;
        nbl__to_f32(NBL_ISA_SCALAR, dtype, at + (size_t)i * nbl__size_of(dtype), &value, 1);
        /* the comparison is false for NaN */
        if (!(fabsf(value) <= max)) count_one(found, index + i * stride);
    }
}

void nbl__non_finite_scan(nbl__non_finite *found, nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n,
                          int64_t index)
{
    const uint8_t *at = values;
    for (int64_t i = 0; i < n; i += CHUNK) {
        int64_t length = nbl__min_i64(CHUNK, n - i);
        const uint8_t *from = at + (size_t)i * nbl__size_of(dtype);
        if (!nbl__all_finite(isa, dtype, from, length))
            nbl__non_finite_list(found, dtype, from, length, index + i, 1, FLT_MAX);
    }
}
