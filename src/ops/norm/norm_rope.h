/* norm_rope.h - rmsnorm of each head and its rotation in one pass, without storing
 * the value between them.
 *
 *   y = rope(rmsnorm(x))      x [tokens, heads, dim], normalized by rows of dim; see rmsnorm.h and rope.h
 *
 * For devices, where both operators are bound by memory, and for frameworks. w is frozen: backward
 * computes dx alone, from x and dy. Rounding: the norm's result is not rounded
 * before the rotation. With before_weight, its quotient is. */
#ifndef NBL_NORM_ROPE_H
#define NBL_NORM_ROPE_H

#include "ops/ops.h"

/* The struct of arguments is public: nibble.h documents its fields. */
typedef nbl_norm_rope nbl__norm_rope;

#endif
