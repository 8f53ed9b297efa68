/* adamw.h - one step of AdamW for any number of tensors, in one pass over their
 * memory.
 *
 *   g = grad_scale · grad_factor · g
 *   m = β1·m + (1 - β1)·g,   v = β2·v + (1 - β2)·g²
 *   p = p - lr/(1 - β1^step) · m / (√v / √(1 - β2^step) + eps)
 *
 * 32 bits: moments in f32. p is multiplied by 1 - lr·weight_decay before the step,
 * as in torch.optim.AdamW.
 *
 * 8 bits: moments are codes of the dynamic maps (m signed, v unsigned) with an f32
 * scale per 256 elements. Weight decay comes after the step. An element with a
 * non-finite gradient is left alone, and its moments become 0. All as in
 * bitsandbytes on CUDA. A code of m keeps its sign.
 *
 * p and g are f32, f16 or bf16, each on its own. Arithmetic is f32; p is rounded
 * once. p, m and v change in place. Constants that depend on the step are computed
 * in f64.
 *
 * grad_factor is the clipping factor from grad_norm. It may live in device memory,
 * unknown to the host. NaN, which grad_norm writes for a non-finite gradient,
 * leaves p, m and v unchanged. */
#ifndef NBL_ADAMW_H
#define NBL_ADAMW_H

#include "ops/ops.h"

enum { NBL_ADAMW_BLOCK = 256 };

typedef nbl_adamw_tensor nbl__adamw_tensor;
typedef nbl_adamw nbl__adamw;

/* The constants of a step, from the arguments above. */
typedef struct nbl__adamw_factors {
    /* the share that p loses before and after the step: lr · weight_decay, or 0 */
    double shrink_before, shrink_after;
    double step_size;  /* lr / (1 - β1^step) */
    double root_scale; /* 1 / √(1 - β2^step) */
} nbl__adamw_factors;
nbl__adamw_factors nbl__adamw_factors_of(const nbl__adamw *a);
/* grad_scale · grad_factor, where grad_factor is readable on the host. */
double nbl__adamw_scale(const nbl__adamw *a);

extern const nbl__impl nbl__adamw_ref, nbl__adamw_cpu;

#endif
