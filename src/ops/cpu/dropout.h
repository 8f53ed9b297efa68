/* dropout.h - a run of a dropout mask at once: the mask of nbl__dropout_keeps, 64 elements per step. */
#ifndef NBL_DROPOUT_H
#define NBL_DROPOUT_H

#include "base/base.h"

/* values[i] = values[i] / (1 - dropout) where element index + i is kept, else 0. */
void nbl__dropout_apply(nbl_isa isa, uint64_t seed, float dropout, int64_t index, float *values, int64_t n);

#endif
