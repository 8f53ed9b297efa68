/* cross_entropy_rows.h - what is done with a stretch of one token's logits while it is in the cache.
 *
 * A token's vocabulary comes in stretches, in order; the sums over it are kept relative to the largest logit
 * so far. A NaN among the logits makes the sum NaN. */
#ifndef NBL_CROSS_ENTROPY_ROWS_H
#define NBL_CROSS_ENTROPY_ROWS_H

#include "base/base.h"

/* Of the logits seen so far. */
typedef struct nbl__logit_sums {
    float largest; /* starts at -inf */
    double sum;    /* Σ exp(z - largest) */
    double total;  /* Σ z, when it is asked for */
} nbl__logit_sums;

/* Applies the soft cap (0: none) in place, and adds the logits to the sums. */
void nbl__logits_fold(nbl_isa isa, float *z, int64_t n, float softcap, bool want_total,
                      nbl__logit_sums *sums);

typedef struct nbl__logit_gradient {
    float softcap;
    float lse, lse_rest; /* the logarithm of the sum is lse + lse_rest */
    float uniform;       /* smoothing / vocabulary */
    float scale;         /* the gradient of this token's loss */
} nbl__logit_gradient;

/* A probability below 2^-64 is taken as 0: all of them together are less than the rounding of the label's,
 * and times a weight they would become subnormal numbers, which processors handle slowly. */
#define NBL_MIN_LOGPROB (-44.361419f)
/* Logits before the soft cap become (exp(z - lse) - uniform)·scale·(the soft cap's slope). */
void nbl__logits_gradient(nbl_isa isa, float *z, int64_t n, const nbl__logit_gradient *g);
/* The same for the label, from which 1 - smoothing is taken first: no cancellation after rounding. */
float nbl__label_gradient(float z, float smoothing, const nbl__logit_gradient *g);

#endif
