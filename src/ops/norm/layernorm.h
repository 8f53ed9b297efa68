/* layernorm.h - layer norm by rows: y = ((x - mean) / √(variance + eps) · w + b)·scale.
 *
 * Arithmetic is f32, with one rounding of y. x, y, dy and dx have the compute
 * dtype. w and the optional b are f32, f16 or bf16 [columns]. dw and db are f32.
 *
 * dx may overlap dy or x exactly. No other tensors may overlap. */
#ifndef NBL_LAYERNORM_H
#define NBL_LAYERNORM_H

#include "ops/norm/norm_scale.h"
#include "ops/ops.h"

typedef struct nbl__layernorm {
    nbl_dtype dtype;
    float eps;
    float scale; /* of y; 0: 1 */
    nbl_tensor x, w;
    nbl_tensor bias; /* optional */
    nbl_tensor y;
    nbl_tensor dy;
    nbl_tensor dx, dw, dbias; /* dbias only with a bias */
    bool accumulate;          /* backward adds to dw and dbias instead of writing them */
} nbl__layernorm;

#endif
