/* non_finite.h - NaN and infinities of one tensor: counted while its bytes are in a cache, by any number of threads. */
#ifndef NBL_NON_FINITE_H
#define NBL_NON_FINITE_H

#include <stdatomic.h>

#include "base/base.h"
#include "base/cpu.h"

#define NBL_LARGEST_F16 0x1.ffdffep15f /* the f32 before 65520: what is larger rounds to an infinity of f16 */

typedef struct nbl__non_finite {
    atomic_int_fast64_t count, first; /* first: index of the first + 1; 0: none */
} nbl__non_finite;
/* n values of a compute dtype; values[0] has this index in the tensor. Cost: bound by memory. */
void nbl__non_finite_scan(nbl__non_finite *found, nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n,
                          int64_t index);
/* The same one by one: value i has the index `index + i * stride`, and counts if it is NaN or |value| > most. */
void nbl__non_finite_list(nbl__non_finite *found, nbl_dtype dtype, const void *values, int64_t n,
                          int64_t index, int64_t stride, float max);

#endif
