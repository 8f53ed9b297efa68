/* gated_delta.h - the gated delta rule, the recurrence of linear attention in hybrid decoders.
 *
 * Each value head has a state S [dk, dv] that a token decays, corrects along its key, and reads along
 * its query. Value head h uses key head h / (Hv / Hk).
 *
 *   q, k     q·r / √dk, k·r          r = 1 / sqrt(Σ x² + 1e-6), by head: normalized inside
 *   g        -exp(a_log)·softplus(a + dt_bias)      the decay, ≤ 0
 *   β        σ(b)
 *   u[t]     β·(v[t] - (e^g·S)ᵀ k[t])
 *   S        e^g·S + k[t] u[t]ᵀ
 *   o[t]     Sᵀ q[t]
 *
 * S is 0 before a sequence's first token. Everything inside is f32 and o is rounded once. gated_delta
 * leaves the last state of each sequence for gated_delta_step, which computes one token of each.
 *
 * Packing: bits of a sequence's results do not depend on the sequences packed beside it. */
#ifndef NBL_GATED_DELTA_H
#define NBL_GATED_DELTA_H

#include "ops/ops.h"

/* The lowest decay of a token that sums of decays take: exp(-10000) is 0 in f64. */
#define NBL_DELTA_MIN_DECAY (-10000.0)

/* T tokens, S sequences. */
typedef struct nbl__gated_delta {
    nbl_dtype dtype;
    nbl_tensor q, k;           /* [T, Hk, dk] */
    nbl_tensor v;              /* [T, Hv, dv] */
    nbl_tensor a, b;           /* [T, Hv] */
    nbl_tensor a_log, dt_bias; /* [Hv], any float dtype */
    nbl_tensor cu_seqlens;     /* i32 [S + 1] */
    nbl_tensor state;          /* f32 [at least S, Hv, dk, dv]; optional: the last states, written in place */
    bool keep;                 /* the result `last` is wanted */
    nbl_tensor o;              /* [T, Hv, dv] */
    nbl_tensor last;           /* f32 [S, Hv, dk, dv], with `keep` */
    nbl_tensor d_o;
    nbl_tensor dq, dk, dv, da, db;
    nbl_tensor da_log, ddt_bias; /* f32 */
    bool accumulate;             /* backward adds to da_log and ddt_bias instead of writing them */
} nbl__gated_delta;

/* One token of each of B sequences. */
typedef struct nbl__gated_delta_step {
    nbl_dtype dtype;
    nbl_tensor q, k; /* [B, Hk, dk] */
    nbl_tensor v;    /* [B, Hv, dv] */
    nbl_tensor a, b; /* [B, Hv] */
    nbl_tensor a_log, dt_bias;
    nbl_tensor state; /* f32 [B, Hv, dk, dv] */
    bool in_place;    /* the new state replaces the old one; else it is the result `next` */
    nbl_tensor o, next;
} nbl__gated_delta_step;

/* The eps of the normalization of q and k. */
#define NBL_GATED_DELTA_EPS 1e-6

#endif
