/* grad_norm.h - the norm of all gradients together, and clipping to it, as
 * torch.nn.utils.clip_grad_norm_.
 *
 *   norm = √Σ g²,   g = g · min(1, max_norm / (norm + 1e-6))     in place; max_norm 0: no clipping
 *
 * Gradients are f32, f16 or bf16. Sums are f64, over spans that do not depend on
 * the number of threads. A non-finite norm is returned as it is, with the index of
 * the tensor that caused it, and the gradients do not change.
 *
 * `factor`: with it the gradients never change. It receives the clipping factor,
 * for adamw's grad_factor. That saves a pass over the gradients, and the host need
 * not wait for the norm. */
#ifndef NBL_GRAD_NORM_H
#define NBL_GRAD_NORM_H

#include <math.h>

#include "ops/ops.h"

typedef struct nbl__grad_norm {
    const nbl_tensor *gradients;
    int64_t count;
    double max_norm;
    nbl_tensor norm; /* f32 [1] */
    /* The index of the first gradient with a NaN or an infinity, or -1; may be
     * NULL. On a CUDA device this is device memory, like `norm`: the value is
     * valid after waiting for the stream. */
    int64_t *non_finite;
    float *factor; /* optional; in the same memory as `norm`. NaN: a gradient is non-finite */
} nbl__grad_norm;

/* The results of nbl__grad_norm_enqueue. */
typedef struct nbl__clipping {
    float norm, factor;
    int64_t non_finite;
} nbl__clipping;
/* Enqueues the norm without changing the gradients. `to` is in the memory of the
 * context's device (device/device_memory.h). */
nbl_status nbl__grad_norm_enqueue(nbl_context *ctx, const nbl_tensor *gradients, int64_t count,
                                  double max_norm, nbl__clipping *to);

/* The clipping factor of a norm; 1 if clipping is off or the norm is non-finite. */
static inline double nbl__clip_factor(double norm, double max_norm)
{
    if (!(max_norm > 0) || !isfinite((float)norm)) return 1;
    return fmin(1, max_norm / (norm + 1e-6));
}

extern const nbl__impl nbl__grad_norm_ref, nbl__grad_norm_cpu;

#endif
