/* dropout.h - dropout's mask over a range of elements. */
#ifndef NBL_DROP_H
#define NBL_DROP_H

#include "tensor/dtype.h"

/* values[i] = nbl__dropout_keeps(seed, dropout, index + i) ? values[i] / (1 - dropout) : 0, the quotient as a
 * product with the rounded reciprocal. The same bits on every instruction set. Cost: ten rounds of the generator
 * for four elements, eight or sixteen of them side by side. */
void nbl__drop_f32(nbl_isa isa, uint64_t seed, float dropout, int64_t index, int64_t count, float *values);

#endif
