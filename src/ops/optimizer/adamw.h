/* adamw.h - one step of AdamW for any number of tensors, in one pass over their memory.
 *
 *     g = grad_scale · grad_factor · g
 *     m = β1·m + (1 - β1)·g,   v = β2·v + (1 - β2)·g²
 *     p = p - lr/(1 - β1^step) · m / (√v / √(1 - β2^step) + eps)
 *
 * 32 bits: moments in f32, and p is multiplied with 1 - lr·weight_decay before the step, as
 * torch.optim.AdamW. 8 bits: moments in codes of the dynamic maps (m signed, v unsigned) with an f32 scale
 * per 256 elements, the decay after the step, and an element whose gradient is not finite is left alone (its
 * moments become 0), as bitsandbytes does on CUDA. A code of m keeps its sign.
 *
 * p and g are f32, f16 or bf16 each; all arithmetic is f32, p is rounded once. p, m and v change in place. The
 * constants that depend on the step are made in f64. grad_factor is what grad_norm finds for clipping, which only the
 * device need know; NaN, there for a gradient that is not finite, leaves p, m and v as they are. */
#ifndef NBL_ADAMW_H
#define NBL_ADAMW_H

#include "ops/ops.h"

enum { NBL_ADAMW_BLOCK = 256 };

typedef nbl_adamw_tensor nbl__adamw_tensor;
typedef nbl_adamw nbl__adamw;

/* What a step does to an element, from the arguments above. */
typedef struct nbl__adamw_factors {
    double shrink_before, shrink_after; /* p loses this share of itself; lr · weight_decay, or 0 */
    double step_size;                   /* lr / (1 - β1^step) */
    double root_scale;                  /* 1 / √(1 - β2^step) */
} nbl__adamw_factors;
nbl__adamw_factors nbl__adamw_factors_of(const nbl__adamw *a);
/* grad_scale · grad_factor on the host. */
double nbl__adamw_scale(const nbl__adamw *a);

extern const nbl__impl nbl__adamw_ref, nbl__adamw_cpu, nbl__adamw_cuda;

#endif
