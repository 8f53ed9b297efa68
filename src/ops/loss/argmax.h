/* argmax.h - the first maximum of each row: the token that greedy generation
 * chooses.
 *
 *   best[r]         index of the largest x[r, …], the first if several are equal; NaN is ignored; 0 if none is left
 *   non_finite[r]   index of the first NaN or infinity, or -1
 *
 * No backward. */
#ifndef NBL_ARGMAX_H
#define NBL_ARGMAX_H

#include "ops/ops.h"

typedef struct nbl__argmax {
    nbl_tensor x;                /* [rows …, columns], f32, f16 or bf16; up to 2³¹ - 1 columns */
    nbl_tensor best, non_finite; /* i32 [rows] */
} nbl__argmax;

#endif
