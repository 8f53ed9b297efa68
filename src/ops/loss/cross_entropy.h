/* cross_entropy.h - the output head and the loss in one operator. Logits exist in
 * tiles only: [tokens, vocabulary] is never stored.
 *
 *   u = x·Wᵀ                  x [tokens, hidden], W [vocabulary, hidden] in any storage format
 *   z = cap · tanh(u / cap)   with a soft cap, else u
 *   logprobs[t] = z[label] - lse[t],   lse = log Σ exp z
 *   loss[t]     = -(1 - s)·logprobs[t] - s/vocabulary · Σ (z - lse)      s: label smoothing
 *
 * as torch.nn.functional.cross_entropy.
 *
 * Labels: a token with the label -100 is not trained. No work is done for it, and
 * its loss, log-probability and dx are 0. Any other label outside [0, vocabulary)
 * is an error of the run.
 *
 * reduction mean: the sum over trained tokens, divided by their number or by
 * `denominator` if that is given and not 0. A device reads it when the kernel runs,
 * so a captured CUDA graph serves any denominator. A batch that is accumulated in parts needs the
 * count of all parts, because the mean of means differs. Without any trained token
 * the loss and all gradients are 0 (torch: NaN).
 *
 * Backward recomputes the logits. Gradient in forward (`grad_in_forward`,
 * attribute "early"; needs mean and a frozen w): forward also computes dx for
 * dloss = 1, in f32, and keeps it in dx_in_forward. Backward then only multiplies
 * by dloss. That saves one product, but wastes one if no backward follows. The
 * bits are the same if dloss is a power of two, as in training: 1, or the loss
 * scale of f16.
 *
 * dtypes: x, W and dx are in the compute dtype. Loss, log-probabilities and dw are
 * f32. */
#ifndef NBL_CROSS_ENTROPY_H
#define NBL_CROSS_ENTROPY_H

#include "ops/ops.h"

enum { NBL_LABEL_IGNORED = -100 };

/* The struct of arguments is public: nibble.h documents its fields. */
typedef nbl_cross_entropy nbl__cross_entropy;

/* Writes the indices of the trained tokens, in order, to rows [tokens]. A label
 * out of range is an error that names its value and index. A denominator that is
 * negative or not finite is an error, too. */
nbl_status nbl__cross_entropy_trained(const nbl__call *call, const nbl__cross_entropy *a, int64_t *rows,
                                      int64_t *count);
/* The factor of a trained token's loss. Mean: 1 / denominator or 1 / count, 0 without
 * trained tokens. No reduction: 1. Reads tensors in host memory, as the above. */
double nbl__cross_entropy_share(const nbl__cross_entropy *a, int64_t count);

/* Is dw to be computed? */
static inline bool nbl__cross_entropy_wants_dw(const nbl__cross_entropy *a)
{
    return a->train_w && nbl__has_data(&a->dw);
}

#endif
