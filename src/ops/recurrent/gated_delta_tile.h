/* gated_delta_tile.h - between the driver of the gated delta rule (gated_delta_cpu.c) and its kernels
 * per instruction set (gated_delta.inc).
 *
 * A chunk is up to 64 consecutive tokens of one sequence. Chunks are counted from the start of their
 * sequence, so that neither its position in the pack nor the number of threads moves a cut. With the
 * rows Q, K, V of a chunk, G the sums of g in it, S the state before it, D_ij = e^(G_i - G_j):
 *
 *   A = strictly lower part of β_i (k_i·k_j) D_ij      P = lower part of (q_i·k_j) D_ij
 *   X = V - e^G ∘ (K S)                                 (I + A) U = β ∘ X
 *   O = e^G ∘ (Q S) + P U                               S = e^(G_C)·S + K̄ᵀ U,   K̄_j = e^(G_C - G_j)·k_j
 *
 * Backward walks from the last chunk to the first with dS, the gradient of the state after the chunk.
 * The states before the chunks are computed again first.
 *
 *   dU = Pᵀ dO + K̄ dS                                   (I + A)ᵀ dR = dU
 *   M  = D ∘ strictly lower part of -dR Uᵀ              N = D ∘ lower part of dO Uᵀ
 *   dQ = e^G ∘ (dO Sᵀ) + N K                            dV = β ∘ dR
 *   dK = Nᵀ Q + (βM + (βM)ᵀ) K + e^(G_C - G) ∘ (U dSᵀ) - βe^G ∘ (dR Sᵀ)
 *   dβ = rowsum(dR ∘ X) + rowsum(M ∘ K Kᵀ)
 *   dG = Q·e^G(dO Sᵀ) - K·βe^G(dR Sᵀ) + rowsum(W) - colsum(W) - ω,   W = N ∘ Q Kᵀ + βM ∘ K Kᵀ
 *        ω = e^(G_C - G)·K·(U dSᵀ); the last row also gets Σ ω + e^(G_C)·⟨S, dS⟩
 *   dg = sums of dG from the end of the chunk
 *   dS = e^(G_C)·dS + Qᵀ(e^G ∘ dO) - Kᵀ(βe^G ∘ dR)      of the chunk before
 *
 * G is kept as the sum of two floats: a difference of two large sums would lose the decay between two
 * near tokens. */
#ifndef NBL_GATED_DELTA_TILE_H
#define NBL_GATED_DELTA_TILE_H

#include "ops/recurrent/gated_delta.h"

enum {
    NBL_DELTA_CHUNK = 64,
    NBL_DELTA_LD = NBL_DELTA_CHUNK +
                   16,    /* of matrices [chunk, chunk]; the rest keeps rows off the same sets */
    NBL_DELTA_VECTOR = 16 /* rows are padded to so many floats, whatever the width */
};

/* One call. */
typedef struct nbl__delta_job {
    const nbl__gated_delta *a;
    int64_t keys, values, group; /* heads; value heads per key head */
    int64_t dk, dv, ldk, ldv;    /* sizes, and strides of rows */
    int64_t heads_per_item;      /* value heads of a key head that an item takes: all, or one */
    const float *rates, *biases; /* [Hv]: exp(a_log), dt_bias */
    float *worker;               /* [workers, worker_floats] */
    int64_t worker_floats;
    double *da_log, *ddt_bias; /* backward: [sequences, Hv] */
} nbl__delta_job;

/* A worker's memory. Rows are [NBL_DELTA_CHUNK, ld], squares [NBL_DELTA_CHUNK, NBL_DELTA_LD]. */
typedef struct nbl__delta_chunk {
    int64_t first, n; /* tokens */
    float *q, *k, *kt, *r_q, *r_k;
    float *kk, *qk;          /* K Kᵀ, Q Kᵀ; lower parts */
    float *d, *a, *p;        /* of one value head */
    float *v, *x, *u, *room; /* room: rows of either size */
    /* of each row: parts of G, β, e^G, e^(G_C - G) */
    float *g_high, *g_low, *beta, *from_start, *to_end;
    float decay;   /* e^(G_C) */
    float *states; /* [group, dk, ldv]; after forward the last states */
    /* backward */
    float *starts;             /* [chunks, group, dk, ldv]: the states before the chunks */
    float *d_o, *du, *dq, *dk; /* rows; dq, dk: sums over the value heads */
    float *rows_q, *rows_k;    /* products with the state: rows [chunk, ldk] */
    float *transposed;         /* [ldv, ldk]: a state's transpose; or of rows */
    float *m, *n_part;         /* squares: βM, and N */
    float *ds;                 /* [group, dk, ldv] */
    float *dbeta;              /* [chunk] */
    double *dg;                /* dG; f64, because most of what is added is taken away again */
} nbl__delta_chunk;

/* The kernels of an instruction set: all chunks of some value heads of one sequence. */
typedef struct nbl__delta_kernels {
    void (*forward)(const nbl__delta_job *job, nbl__delta_chunk *c, int64_t sequence, int64_t head);
    void (*backward)(const nbl__delta_job *job, nbl__delta_chunk *c, int64_t sequence, int64_t head);
    /* One token of a sequence, one value head. */
    void (*step)(const nbl__gated_delta_step *a, int64_t sequence, int64_t head);
} nbl__delta_kernels;

/* -exp(a_log)·softplus(pre), f64: few values, on which everything else depends. */
double nbl__delta_decay(double rate, double pre);
/* Element of a vector of any float dtype. */
float nbl__delta_number(const nbl_tensor *t, int64_t at);

#endif
