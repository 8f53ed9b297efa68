/* argmax.h - the first of the highest of each row: what greedy decoding takes of its logits.
 *
 *     best[r]      where the highest x[r, …] is, the first of equal ones; NaN is never it; 0 when there is none
 *     strange[r]   the first place that is NaN or infinite, or -1
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
