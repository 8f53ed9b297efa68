/* cross_entropy.h - the head and the loss in one: logits are made, used and forgotten in tiles.
 *
 *     u = x·Wᵀ                  x [tokens, hidden], W [vocabulary, hidden] in any storage format
 *     z = cap · tanh(u / cap)   with a soft cap, else u
 *     logprobs[t] = z[label] - lse[t],   lse = log Σ exp z
 *     loss[t]     = -(1 - s)·logprobs[t] - s/vocabulary · Σ (z - lse)      s: label smoothing
 *
 * as torch.nn.functional.cross_entropy. A token with the label -100 is not trained: no work is done for it, its
 * loss, log-probability and dx are 0. reduction mean: the sum over trained tokens divided by their number, or by
 * `denominator` when that is given: a batch that is accumulated in parts needs the count of all parts, the
 * mean of means is another number. With no trained token at all the loss and all gradients are 0 (torch: NaN).
 * Any other label outside [0, vocabulary) is refused when the operator runs.
 *
 * Backward makes the logits again. With `early` (mean, frozen w) forward makes dx as well, for dloss = 1 and in f32, and
 * keeps it in dx_in_forward; backward only multiplies: a product less, but a forward pass that is not followed by
 * backward has done one too many. The bits are the same when dloss is a power of two, as it is in training: 1, or the
 * scale of the loss in f16.
 *
 * x, W and dx are in the compute dtype; loss, log-probabilities and dw are f32. */
#ifndef NBL_CROSS_ENTROPY_H
#define NBL_CROSS_ENTROPY_H

#include "ops/ops.h"

enum { NBL_LABEL_IGNORED = -100 };
typedef enum nbl__reduction { NBL_REDUCTION_MEAN, NBL_REDUCTION_NONE } nbl__reduction;

typedef struct nbl__cross_entropy {
    nbl_dtype dtype; /* of the computation */
    nbl_tensor x;
    nbl_weight w;
    nbl_tensor labels;        /* i32, one per token, any rank */
    float softcap;            /* 0: none */
    float smoothing;          /* 0 <= s <= 1 */
    int reduction;            /* nbl__reduction */
    bool train_w;             /* backward makes dw */
    float denominator;        /* mean: what to divide by; 0: the number of trained tokens */
    nbl_tensor loss;          /* f32: [1], or like labels */
    nbl_tensor logprobs;      /* f32, like labels */
    nbl_tensor lse;           /* f32 [2, tokens], saved: its value, and what rounding took off it */
    nbl_tensor dloss;         /* backward: f32, like loss; */
    nbl_tensor dx, dw;        /* the outputs */
    bool accumulate;          /* backward adds to dw instead of writing it */
    bool grad_in_forward;     /* forward makes, and backward reads, */
    nbl_tensor dx_in_forward; /* f32, like x: dx for dloss = 1 */
} nbl__cross_entropy;

extern const nbl__impl nbl__cross_entropy_ref, nbl__cross_entropy_backward_ref;
extern const nbl__impl nbl__cross_entropy_cpu, nbl__cross_entropy_backward_cpu;
extern const nbl__impl nbl__cross_entropy_cuda, nbl__cross_entropy_backward_cuda;

/* The trained tokens, in order, to rows [tokens]; refuses a label that is out of range by value and place. */
nbl_status nbl__cross_entropy_trained(const nbl__call *call, const nbl__cross_entropy *a, int64_t *rows,
                                      int64_t *count);
/* What the loss of a token is multiplied with in the mean of `count` trained ones. */
double nbl__cross_entropy_share(const nbl__cross_entropy *a, int64_t count);

static inline bool nbl__cross_entropy_wants_dw(const nbl__cross_entropy *a)
{
    return a->train_w && nbl__given(&a->dw);
}

#endif
