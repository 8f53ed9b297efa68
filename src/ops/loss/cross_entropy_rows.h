/* cross_entropy_rows.h - the work on a span of one token's logits while the span
 * is in the cache.
 *
 * The spans of a token's vocabulary arrive in order. Sums are relative to the
 * largest logit so far, and rescaled when a larger one arrives (online softmax). A
 * NaN among the logits makes the sum NaN. */
#ifndef NBL_CROSS_ENTROPY_ROWS_H
#define NBL_CROSS_ENTROPY_ROWS_H

#include "base/base.h"

/* Sums over the logits so far. */
typedef struct nbl__logit_sums {
    float largest; /* starts at -inf */
    double sum;    /* Σ exp(z - largest) */
    double total;  /* Σ z, if it is wanted (label smoothing) */
} nbl__logit_sums;

/* Applies the soft cap (0: none) in place, and adds n logits to the sums. */
void nbl__logits_fold(nbl_isa isa, float *z, int64_t n, float softcap, bool want_total,
                      nbl__logit_sums *sums);

/* The constants of one token. */
typedef struct nbl__logit_gradient {
    float softcap;
    float lse, lse_rest; /* log Σ exp z = lse + lse_rest */
    float uniform;       /* smoothing / vocabulary */
    float scale;         /* the gradient of the token's loss */
} nbl__logit_gradient;

/* A probability below 2^-64 is taken as 0. All of these together are less than the rounding of the
 * label's. Times a weight they would become subnormal numbers, which processors handle slowly. */
#define NBL_MIN_LOGPROB (-44.361419f)
/* Logits before the soft cap become (exp(z - lse) - uniform)·scale·(the soft cap's slope). */
void nbl__logits_gradient(nbl_isa isa, float *z, int64_t n, const nbl__logit_gradient *g);
/* The same for the label's logit, minus (1 - smoothing)·scale·slope. The
 * subtraction comes first, so that nothing cancels after rounding. */
float nbl__label_gradient(float z, float smoothing, const nbl__logit_gradient *g);

#endif
