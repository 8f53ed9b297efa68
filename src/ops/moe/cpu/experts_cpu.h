/* experts_cpu.h - the experts' two layers on the CPU, as calls of gemm.h: what both directions of expert_mlp share.
 *
 * Sorted rows are processed in batches: up to NBL_EXPERT_RANGES ranges of one expert each, NBL_EXPERT_ROWS rows in all.
 * A longer range goes on in the next batch. The products of all ranges of a batch are one call of gemm, so that threads
 * balance over ranges and columns alike; a panel of an expert's matrix is dequantized once per range and row block.
 *
 *   gather         rows of x and dy, copied in sorted order
 *   B_e            copied from B's columns j·E + e to [out, r]; dB_e the other way
 *   t = s·v·A_eᵀ   z = v·W_eᵀ + t·B_eᵀ + bias_e          nbl__experts_apply
 *   u = s·dz·B_e   dv = dz·W_e + u·A_e                    nbl__experts_differentiate
 *   dA_e = uᵀ·v    dB_eᵀ = tᵀ·dz, dW_e = dzᵀ·v            nbl__experts_gradients
 *   sum            rows of a batch are added to f32 rows of their tokens, expert by expert
 *
 * Bits of a row: they must not depend on the rows beside it. Micro-kernels are therefore chosen by the mean number of
 * rows of an expert (nbl__gemm_algo.rows), not by a range's own. With at most two rows per expert on average z is a
 * product of one row at a time, which reads packed weights where they lie (gemv.h).
 *
 * Measuring and running share this code: a dry run measures scratch, as in linear_fused.h. */
#ifndef NBL_EXPERTS_CPU_H
#define NBL_EXPERTS_CPU_H

#include "ops/gemm/cpu/gemm.h"
#include "ops/moe/expert_mlp.h"

enum { NBL_EXPERT_RANGES = 16, NBL_EXPERT_ROWS = 2048, NBL_EXPERT_LAYERS = 2 };

/* Consecutive rows of a batch that are one expert's. */
typedef struct nbl__expert_range {
    int64_t expert, row, rows; /* row: within the batch */
} nbl__expert_range;

/* One of the two layers. */
typedef struct nbl__expert_layer {
    const nbl__expert_linear *l;
    nbl_weight flat; /* nbl__stack_flat */
    int64_t in, out, rank;
    float scale;
    float *b, *db; /* [range][out, rank] */
    float *t, *u;  /* [row][rank] */
} nbl__expert_layer;

/* A call. */
typedef struct nbl__experts {
    const nbl__expert_mlp *a;
    nbl__expert_sizes z;
    nbl_context *ctx;            /* NULL: a dry run */
    const nbl_context *sizes_of; /* for scratch */
    nbl__gemm_algo algo;
    nbl_dtype adapter; /* in which A and B multiply */
    bool by_row;       /* z is a product of one row at a time */
    int64_t longest;   /* range of a dry run */
    nbl__expert_layer layer[NBL_EXPERT_LAYERS];
    nbl__bump bump;
    size_t room, tail;
    int64_t max_rows;
    nbl__expert_range range[NBL_EXPERT_RANGES];
    int count;        /* ranges of the batch */
    int64_t row, end; /* its sorted rows */
    int64_t expert;   /* of row `end`, or an empty one before it */
} nbl__experts;

/* The mean number of rows of an expert, rounded up. A shape decides it, not a routing. */
static inline int64_t nbl__expert_mean_rows(const nbl__expert_sizes *z)
{
    return nbl__ceil_div(z->pairs, z->experts);
}

/* Sets up a call and cuts what both directions need. `ctx` NULL: a dry run. */
void nbl__experts_open(nbl__experts *j, const nbl__expert_mlp *a, const nbl_context *sizes_of,
                       nbl_context *ctx, nbl__gemm_algo algo, bool backward, uint8_t *scratch,
                       size_t scratch_bytes);
/* Bytes of scratch of `run`, which processes one call; enough for fewer tokens, too. */
size_t nbl__experts_measure(const nbl_context *ctx, const nbl__expert_mlp *a, nbl__gemm_algo algo,
                            bool backward, nbl_status (*run)(nbl__experts *j));
/* The next batch; false: there is none. A dry run has one, which needs at least as much as any. */
bool nbl__experts_next(nbl__experts *j);

/* Rows of a batch that lie in memory one after the other. */
typedef struct nbl__expert_matrix {
    nbl_dtype dtype;
    void *data;
    int64_t columns;
} nbl__expert_matrix;

/* Copies the rows of `from` that the batch's rows belong to; `weigh`: times their weights, to f32. */
nbl_status nbl__experts_gather(nbl__experts *j, const nbl_tensor *from, bool weigh, nbl__expert_matrix to);
/* sums[token] += rows; `weigh`: times their weights. */
nbl_status nbl__experts_add(nbl__experts *j, nbl__expert_matrix rows, bool weigh, float *sums);
/* Rounds the sums to a tensor, unless they are its memory. */
nbl_status nbl__experts_round(nbl__experts *j, const float *sums, const nbl_tensor *to);
/* Makes layer->b of the batch's ranges. Without an adapter it does nothing. */
nbl_status nbl__experts_load_b(nbl__experts *j, nbl__expert_layer *layer);

/* z = …; also sets layer->t. `z` NULL: t alone. */
nbl_status nbl__experts_apply(nbl__experts *j, nbl__expert_layer *layer, nbl__expert_matrix v, float *z);
/* dv = …; also sets layer->u. `dv` NULL: u alone. */
nbl_status nbl__experts_differentiate(nbl__experts *j, nbl__expert_layer *layer, nbl__expert_matrix dz,
                                      float *dv);
/* Adds the batch to the gradients of the layer's parameters that have memory. */
nbl_status nbl__experts_gradients(nbl__experts *j, nbl__expert_layer *layer, nbl__expert_matrix v,
                                  nbl__expert_matrix dz);

/* The weight of a row of the batch, and its token. */
static inline int64_t nbl__experts_pair(const nbl__experts *j, int64_t row)
{
    return ((const int32_t *)j->a->pairs.data)[j->row + row];
}
static inline float nbl__experts_weight(const nbl__experts *j, int64_t row)
{
    return ((const float *)j->a->weights.data)[nbl__experts_pair(j, row)];
}

/* Is the gradient to be computed? Dry: may any call with these arguments want it? */
static inline bool nbl__experts_wants(const nbl__experts *j, const nbl_tensor *gradient)
{
    return gradient->rank > 0 && (j->ctx == NULL || nbl__has_data(gradient));
}

#endif
