/* norm_rope.h - rmsnorm of each head and its rotation in one pass, without storing
 * the value between them.
 *
 *   y = rope(rmsnorm(x))      x [tokens, heads, dim], normalized by rows of dim; see rmsnorm.h and rope.h
 *
 * For devices, where both operators are bound by memory. w is frozen: backward
 * computes dx alone, from x and dy. Rounding: the norm's result is not rounded
 * before the rotation. With before_weight, its quotient is. */
#ifndef NBL_NORM_ROPE_H
#define NBL_NORM_ROPE_H

#include "ops/ops.h"

typedef struct nbl__norm_rope {
    nbl_dtype dtype;
    nbl_tensor x;        /* [tokens …, heads, dim] */
    nbl_tensor w;        /* [dim], f32, f16 or bf16 */
    nbl_tensor cos, sin; /* f32 [tokens, rotary/2] */
    float eps, offset;
    int round; /* an nbl_norm_round, as in nbl_rmsnorm */
    nbl_tensor y, dy, dx;
} nbl__norm_rope;

#endif
