/* norm_rope.h - the norm of each head and its rotation in one pass: rmsnorm, then rope, without the value between them.
 *
 *     y = rope(rmsnorm(x))      over the rows [tokens, heads] of x [tokens, heads, dim], as rmsnorm.h and rope.h have it
 *
 * For devices, where both are bound by memory; w is frozen. What rmsnorm hands on is not rounded, but with
 * before_weight its quotient is. Backward makes dx from x and dy. */
#ifndef NBL_NORM_ROPE_H
#define NBL_NORM_ROPE_H

#include "ops/ops.h"

typedef struct nbl__norm_rope {
    nbl_dtype dtype;
    nbl_tensor x;        /* [tokens …, heads, dim] */
    nbl_tensor w;        /* [dim], f32, f16 or bf16 */
    nbl_tensor cos, sin; /* f32 [tokens, rotary/2] */
    float eps, offset;
    int round; /* as nbl_rmsnorm's */
    nbl_tensor y, dy, dx;
} nbl__norm_rope;

extern const nbl__impl nbl__norm_rope_cuda, nbl__norm_rope_backward_cuda;

#endif
