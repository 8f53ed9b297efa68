/* dropout.h - applies dropout's mask to a range of elements. */
#ifndef NBL_DROPOUT_H
#define NBL_DROPOUT_H

#include "tensor/dtype.h"

/* values[i] = kept ? values[i] · (1 / (1 - dropout)) : 0, where kept is
 * nbl__dropout_keeps(seed, dropout, index + i).
 *
 * `index` may be any element of the mask, and 0 < dropout < 1. The bits are the
 * same on every instruction set. Cost: one Philox counter of ten rounds per four
 * elements; AVX2 computes eight counters side by side. */
void nbl__drop_f32(nbl_isa isa, uint64_t seed, float dropout, int64_t index, int64_t count, float *values);

#endif
