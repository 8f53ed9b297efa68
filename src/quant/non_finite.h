/* non_finite.h - counts NaN and infinities of one tensor, chunk by chunk while its bytes are in
 * a cache. Any number of threads may add to one counter. */
#ifndef NBL_NON_FINITE_H
#define NBL_NON_FINITE_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/cpu.h"

/* the largest f32 that rounds to a finite f16: below 65520 */
#define NBL_LARGEST_F16 0x1.ffdffep15f

typedef struct nbl__non_finite {
    atomic_int_fast64_t count, first; /* number found; index + 1 of the first, 0: none */
} nbl__non_finite;
/* Adds n values of a compute dtype; values[0] has `index` in the tensor. Cost: memory-bound. */
void nbl__non_finite_scan(nbl__non_finite *found, nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n,
                          int64_t index);
/* The same, value by value: value i has index `index + i * stride` and counts if it is NaN or
 * |value| > max. */
void nbl__non_finite_list(nbl__non_finite *found, nbl_dtype dtype, const void *values, int64_t n,
                          int64_t index, int64_t stride, float max);

#endif
