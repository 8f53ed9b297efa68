/* linear_fused.h - linear layers that share their input, as calls of gemm.h.
 * linear, linear_group and mlp run on it.
 *
 * Notation: t = s·drop(x)·Aᵀ and u = s·dy'·B are the adapter's small products,
 * [tokens, r] in f32. dy' = factor∘dy, with
 * factor = magnitude / norm for DoRA and 1 without.
 *
 *   forward    t_i = s·drop_i(x)·A_iᵀ                              stage 0
 *              y_i = factor_i·(x·W_iᵀ + t_i·B_iᵀ) + bias_i         stage 1
 *   backward   t_i again, u_i = s·dy_i·(factor_i∘B_i)              stage 0
 *              dx  = Σ_i dy'_i·W_i + drop_i(u_i·A_i)               stage 1
 *              dA_i = u_iᵀ·drop_i(x), dB_iᵀ = t_iᵀ·dy'_i           a second call
 *              dW_i = dy'_iᵀ·x                                     with train_w
 *
 * Both stages are one call of gemm: x (backward: dy) is packed once for all
 * products. Forward does not keep t: backward recomputes it where dB or the
 * magnitude's gradient is wanted.
 *
 * DoRA: dy' is formed only for dx and dW, for NBL_LINEAR_FUSED_CHUNK tokens at a
 * time; dx is then a call per chunk. Elsewhere the factor is applied to a small
 * matrix (B, dB). The gradient of the magnitude recomputes the outputs, in chunks.
 *
 * Arguments: members[0] has x and dx. All else is each member's own, dtype, seed,
 * seeds and accumulate included. The arguments passed infer, except that x, y, dy and dx
 * may be f32 for any compute dtype (mlp.h). Gradients without memory are not
 * computed. Scratch is measured as if all of them had memory.
 *
 * Scratch:  t, factor, inverse of each layer | x in 8 bits | backward: u, sums,
 * scaled_b, db_part of each layer, one chunk of dy' and dx or of outputs | what
 * one call of gemm or dora_norm needs */
#ifndef NBL_LINEAR_FUSED_H
#define NBL_LINEAR_FUSED_H

#include "ops/gemm/cpu/gemm.h"
#include "ops/linear/linear.h"

enum { NBL_MAX_LINEAR_FUSED = 4, NBL_LINEAR_FUSED_CHUNK = 512 };

/* Bytes of scratch for these members, enough also for fewer tokens. */
size_t nbl__linear_fused_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members,
                                 int count);
nbl_status nbl__linear_fused_run(nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members, int count,
                                 uint8_t *scratch, size_t scratch_bytes);
/* The same for backward. */
size_t nbl__linear_fused_backward_scratch(const nbl_context *ctx, nbl__gemm_algo algo,
                                          const nbl__linear *members, int count);
nbl_status nbl__linear_fused_backward_run(nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members,
                                          int count, uint8_t *scratch, size_t scratch_bytes);

/* The algorithm of a chunk of tokens. What is left after whole chunks may be a small batch, and is
 * multiplied as one, whatever the row that was chosen for all tokens. */
static inline nbl__gemm_algo nbl__gemm_algo_of_chunk(nbl__gemm_algo algo, bool first)
{
    algo.gemv |= !first;
    return algo;
}

/* The DoRA weight norm of one layer, for mlp: it computes a norm that was not
 * given once per call instead of once per chunk. `norm` is [out]. */
size_t nbl__dora_weight_norm_scratch(const nbl_context *ctx, const nbl__linear *a);
nbl_status nbl__dora_weight_norm(nbl_context *ctx, const nbl__linear *a, float *norm, uint8_t *scratch);

/* ---- between linear_fused.c and linear_fused_backward.c ---- */

/* One layer of a call. */
typedef struct nbl__linear_part {
    const nbl__linear *a;
    int64_t out, rank;
    nbl_dtype adapter; /* the dtype in which the products with A and B are computed */
    uint64_t seed;     /* of the mask; dry: without what `seeds` adds */
    nbl_tensor y, dy;
    float *t, *u;            /* [tokens, r] */
    float *factor, *inverse; /* [out]: magnitude / norm and 1 / norm; NULL without DoRA */
    float *scaled_b;         /* [out, r]: factor∘B; DoRA */
    float *db_part;          /* [out, r]: dyᵀ·t, before the factor; DoRA */
    double *sums;            /* [out]: column sums of dy, or of dy∘y */
} nbl__linear_part;

/* One call. A dry run measures scratch: it runs the same code without memory, so
 * that measuring and running cannot disagree. It cuts scratch from a base that is
 * not memory, asks each product for its scratch, and reads no data. */
typedef struct nbl__linear_fused {
    nbl_context *ctx;
    const nbl_context *sizes_of; /* the context that sizes depend on; set in a dry run as well */
    nbl__gemm_algo algo;
    bool dry; /* measure only; ctx is NULL */
    nbl__bump bump;
    size_t tail; /* dry: the max bytes that one gemm or norm needs behind the bump allocator */
    size_t room; /* not dry: bytes of the scratch */
    nbl_tensor x, dx;
    int64_t tokens, in;
    int count;
    nbl__linear_part layers[NBL_MAX_LINEAR_FUSED];
    int8_t *codes;            /* LLM.int8 only: [tokens, in], x in 8 bits */
    float *scales;            /* [tokens]: the scale of each row's codes */
    uint8_t *outlier;         /* [in]: 1 for an outlier column */
    int32_t *outlier_columns; /* in order, `outlier_count` of them */
    int64_t outlier_count;
} nbl__linear_fused;

/* Sets up a call and cuts the scratch that both directions need. `ctx` NULL: a dry
 * run. Scratch for x in 8 bits is cut if a layer will multiply codes. */
void nbl__linear_fused_open(nbl__linear_fused *j, const nbl_context *sizes_of, nbl_context *ctx,
                            nbl__gemm_algo algo, const nbl__linear *members, int count, bool backward,
                            uint8_t *scratch, size_t scratch_bytes);
/* Bytes of scratch by a dry run of `run`. The result is enough for fewer tokens,
 * too: a small batch multiplies adapters in another dtype, and is therefore
 * measured as well. */
size_t nbl__linear_fused_measure(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__linear *members,
                                 int count, bool backward, nbl_status (*run)(nbl__linear_fused *j));
/* Computes factor and inverse of layers with DoRA. Must follow the last allocation, since
 * it uses the scratch behind it. */
nbl_status nbl__linear_fused_factors(nbl__linear_fused *j);
/* Finds the outlier columns of x and quantizes the others, if a layer multiplies
 * codes. */
nbl_status nbl__linear_fused_quantize(nbl__linear_fused *j);
/* One call of gemm, in the scratch behind the bump allocator. Dry: measures it. */
nbl_status nbl__linear_fused_multiply(nbl__linear_fused *j, const nbl__gemm_product *products, int count);

/* A dense matrix with rows `stride` elements apart. */
static inline nbl__gemm_matrix nbl__dense(nbl_dtype dtype, const void *data, int64_t stride)
{
    return (nbl__gemm_matrix){.dtype = dtype, .data = data, .stride = stride};
}
/* The same memory seen as the transpose. */
static inline nbl__gemm_matrix nbl__transposed(nbl__gemm_matrix m)
{
    m.transposed = true;
    return m;
}
/* Row `row` of a tensor seen as a matrix. */
static inline void *nbl__row_of(const nbl_tensor *t, int64_t row)
{
    return (uint8_t *)t->data + (size_t)(row * nbl__matrix_stride(t)) * nbl__size_of(t->dtype);
}
/* A tensor seen as a matrix, from row `row` on. */
static inline nbl__gemm_matrix nbl__rows_of(const nbl_tensor *t, int64_t row)
{
    return nbl__dense(t->dtype, nbl__row_of(t, row), nbl__matrix_stride(t));
}
/* drop(x) of a layer, as an operand. */
nbl__gemm_matrix nbl__linear_fused_dropped(const nbl__linear_fused *j, const nbl__linear_part *l);
/* The product t = s·drop(x)·Aᵀ. `term` must live as long as the product. */
nbl__gemm_product nbl__linear_fused_inner(const nbl__linear_fused *j, const nbl__linear_part *l,
                                          nbl__gemm_term *term);
/* The terms of an output before factor and bias, for the rows of x from `row` on.
 * Returns their number, at most 3: codes, columns in floating point, t·Bᵀ. */
int nbl__linear_fused_terms(const nbl__linear_fused *j, const nbl__linear_part *l, int64_t row,
                            nbl__gemm_term terms[3]);

#endif
