/* grad_norm.h - the norm of all gradients together, and clipping to it, as torch.nn.utils.clip_grad_norm_.
 *
 *     norm = √Σ g²,   g = g · min(1, max_norm / (norm + 1e-6))     in place; max_norm 0: g stays
 *
 * Gradients are f32, f16 or bf16. Sums are f64, over stretches that do not depend on the number of threads. A
 * norm that is not finite is reported as it is, with the tensor to blame, and the gradients stay. With `factor` they
 * always stay: it gets what clipping would multiply with, for adamw (grad_factor), which saves a pass and does not
 * make the host wait for the norm. */
#ifndef NBL_GRAD_NORM_H
#define NBL_GRAD_NORM_H

#include <math.h>

#include "ops/ops.h"

typedef struct nbl__grad_norm {
    const nbl_tensor *gradients;
    int64_t count;
    double max_norm;
    nbl_tensor norm; /* f32 [1] */
    /* Gets the place of the first gradient that holds a NaN or an infinity, or -1; or NULL. On a CUDA device it
     * is the device's memory, as that of `norm` is: only who waits for the stream can know the number. */
    int64_t *non_finite;
    float *factor; /* or NULL; where `norm` is. NaN: there is a gradient to blame */
} nbl__grad_norm;

/* What nbl__grad_norm_later leaves. */
typedef struct nbl__clipping {
    float norm, factor;
    int64_t non_finite;
} nbl__clipping;
/* Enqueues the norm, with `to` where the context computes (device/device_memory.h): gradients stay as they are. */
nbl_status nbl__grad_norm_later(nbl_context *ctx, const nbl_tensor *gradients, int64_t count, double max_norm,
                                nbl__clipping *to);

static inline double nbl__clip_factor(double norm, double max_norm)
{
    if (!(max_norm > 0) || !isfinite((float)norm)) return 1;
    return fmin(1, max_norm / (norm + 1e-6));
}

extern const nbl__impl nbl__grad_norm_ref, nbl__grad_norm_cpu, nbl__grad_norm_cuda;

#endif
