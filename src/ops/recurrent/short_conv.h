/* short_conv.h - a short causal convolution of each channel along its sequence, and silu:
 *
 *   c[t] = Σ_j w[:, j] ∘ x[t - K + 1 + j]        j = 0 … K - 1; 0 before the sequence's first token
 *   y[t] = silu(c[t])
 *
 * Backward: dc = dy ∘ silu'(c), which is computed again from x, and
 *
 *   dx[i]     Σ_j w[:, j] ∘ dc[i + K - 1 - j]    within the sequence
 *   dw[:, j]  Σ_t dc[t] ∘ x[t - K + 1 + j]       f32
 *
 * The state of a sequence is the last K - 1 rows of x, the newest last, 0 where the sequence is shorter. short_conv
 * leaves it for short_conv_step, which computes one token of each sequence.
 *
 * Packing: bits of a sequence's results do not depend on the sequences packed beside it.
 *
 * Rounding: sums are f32. c is rounded to the compute dtype before silu, and y after it, as transformers does. The
 * gated delta rule multiplies a token's q and k, which may nearly cancel. Only the same roundings lead to the same
 * remainder. Backward takes the rounding of c as the identity. */
#ifndef NBL_SHORT_CONV_H
#define NBL_SHORT_CONV_H

#include "ops/ops.h"

enum { NBL_SHORT_CONV_MAX = 32 }; /* of K; at least 2 */

typedef struct nbl__short_conv {
    nbl_dtype dtype;
    nbl_tensor x;          /* [tokens, channels] */
    nbl_tensor w;          /* [channels, 1, K], any float dtype */
    nbl_tensor cu_seqlens; /* i32 [sequences + 1] */
    nbl_tensor state;      /* [at least sequences, K - 1, channels]; optional: written in place */
    bool keep;             /* the result `last` is wanted */
    nbl_tensor y;
    nbl_tensor last; /* [sequences, K - 1, channels], with `keep` */
    nbl_tensor dy, dx, dw;
    bool accumulate; /* backward adds to dw instead of writing it */
} nbl__short_conv;

typedef struct nbl__short_conv_step {
    nbl_dtype dtype;
    nbl_tensor x;     /* [sequences, channels]: one token of each */
    nbl_tensor w;     /* [channels, 1, K] */
    nbl_tensor state; /* [sequences, K - 1, channels] */
    bool in_place;    /* the new state replaces the old one; else it is the result `next` */
    nbl_tensor y, next;
} nbl__short_conv_step;

/* Leaves the state of each sequence in a->state or in a->last. cu_seqlens has been checked. */
void nbl__short_conv_keep(const nbl__short_conv *a);
/* Moves the state on by one token. */
void nbl__short_conv_shift(const nbl__short_conv_step *a);

#endif
