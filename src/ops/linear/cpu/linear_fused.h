/* linear_fused.h - linear layers that share their input, as products (gemm.h): what linear, linear_group and mlp run.
 *
 *     forward    xa_i = s·drop_i(x)·A_iᵀ, then
 *                y_i = factor_i·(x·W_iᵀ + xa_i·B_iᵀ) + bias_i        two stages of one call: x is packed once
 *     backward   xa_i again, gb_i = s·dy_i·(factor_i∘B_i), then
 *                dx = Σ dy'_i·W_i + drop_i(gb_i·A_i)                 two stages of one call: dy is packed once
 *                dA_i = gb_iᵀ·drop_i(x), dB_iᵀ = xa_iᵀ·dy'_i,
 *                dW_i = dy'_iᵀ·x of a weight that is trained         one call
 *
 * DoRA's dy' = factor∘dy is formed for NBL_LINEAR_FUSED_CHUNK tokens at a time, and only for dx and dW; elsewhere
 * the factor moves to a small matrix. The gradient of the magnitude computes the outputs again, in chunks.
 *
 * `members[0]` has x and dx; all else is each member's own, also dtype, seed and accumulate. The arguments
 * passed infer, except that x, y, dy and dx may be f32 whatever the compute dtype. Gradients without memory
 * are not computed; scratch is measured as if all had it. */
#ifndef NBL_LINEAR_FUSED_H
#define NBL_LINEAR_FUSED_H

#include "ops/gemm/cpu/gemm.h"
#include "ops/linear/linear.h"

enum { NBL_LINEAR_FUSED_MAX = 4, NBL_LINEAR_FUSED_CHUNK = 512 };

size_t nbl__linear_fused_scratch(const nbl_context *ctx, const nbl__linear *members, int count);
nbl_status nbl__linear_fused_run(nbl_context *ctx, const nbl__linear *members, int count, uint8_t *scratch,
                                 size_t scratch_bytes);
size_t nbl__linear_fused_backward_scratch(const nbl_context *ctx, const nbl__linear *members, int count);
nbl_status nbl__linear_fused_backward_run(nbl_context *ctx, const nbl__linear *members, int count,
                                          uint8_t *scratch, size_t scratch_bytes);

/* Scratch of mlp for the norms of members that have a magnitude and no norm; the same for the call. */
size_t nbl__dora_weight_norm_scratch(const nbl_context *ctx, const nbl__linear *a);
nbl_status nbl__dora_weight_norm(nbl_context *ctx, const nbl__linear *a, float *norm, uint8_t *scratch);

/* ---- between linear_fused.c and linear_fused_backward.c ---- */

typedef struct nbl__linear_part {
    const nbl__linear *a;
    int64_t out, rank;
    nbl_dtype adapter; /* the dtype in which adapters multiply */
    nbl_tensor y, dy;
    float *xa, *gb;          /* [tokens, r] */
    float *factor, *inverse; /* [out]: magnitude / norm, 1 / norm; DoRA, else NULL */
    float *scaled_b;         /* [out, r]: factor∘B; DoRA */
    float *db_part;          /* [out, r]: dyᵀ·xa; DoRA */
    double *sums;            /* [out]: column sums */
} nbl__linear_part;

/* One call. Measuring runs the same code with `dry` set: it cuts scratch from nowhere, asks the products
 * for their sizes, and touches no data. */
typedef struct nbl__linear_fused {
    nbl_context *ctx;
    const nbl_context *sizes_of; /* ctx, also when measuring */
    bool dry;
    nbl__cut cut;
    size_t tail; /* dry: what a product needs behind the cut, at most */
    size_t room; /* else: the size of the scratch */
    nbl_tensor x, dx;
    int64_t tokens, in;
    int count;
    nbl__linear_part layers[NBL_LINEAR_FUSED_MAX];
    int8_t *codes;    /* [tokens, in], int8: x in 8 bits, */
    float *scales;    /* [tokens], */
    uint8_t *outlier; /* [in], */
    int32_t *pick;    /* and the columns that stay: `picked` of them */
    int64_t picked;
} nbl__linear_fused;

/* Measures with `ctx` NULL. Scratch for x in 8 bits is cut when a layer will use it. */
void nbl__linear_fused_open(nbl__linear_fused *j, const nbl_context *sizes_of, nbl_context *ctx,
                            const nbl__linear *members, int count, bool backward, uint8_t *scratch,
                            size_t scratch_bytes);
/* The scratch that a dry run asks for, enough also for fewer tokens: few of them multiply in other dtypes. */
size_t nbl__linear_fused_measure(const nbl_context *ctx, const nbl__linear *members, int count, bool backward,
                                 nbl_status (*run)(nbl__linear_fused *j));
/* The factors of DoRA; after all pieces were cut. */
nbl_status nbl__linear_fused_factors(nbl__linear_fused *j);
nbl_status nbl__linear_fused_quantise(nbl__linear_fused *j);
nbl_status nbl__linear_fused_multiply(nbl__linear_fused *j, const nbl__product *products, int count);

static inline nbl__mat nbl__dense(nbl_dtype dtype, const void *data, int64_t stride)
{
    return (nbl__mat){.dtype = dtype, .data = data, .stride = stride};
}
static inline nbl__mat nbl__flipped(nbl__mat m)
{
    m.transpose = true;
    return m;
}
/* Row `row` of a tensor seen as a matrix. */
static inline void *nbl__row_of(const nbl_tensor *t, int64_t row)
{
    return (uint8_t *)t->data + (size_t)(row * nbl__last(t)) * nbl__size_of(t->dtype);
}
nbl__mat nbl__linear_fused_dropped(const nbl__linear_fused *j, const nbl__linear_part *l);
nbl__product nbl__linear_fused_inner(const nbl__linear_fused *j, const nbl__linear_part *l, nbl__term *term);
/* The terms of the output before factor and bias, for rows [row, …) of x: at most 3. */
int nbl__linear_fused_terms(const nbl__linear_fused *j, const nbl__linear_part *l, int64_t row,
                            nbl__term terms[3]);

#endif
