/* gemm.h - the product behind every linear layer: C = epilogue(Σ over terms of A·B).
 *
 *     tile[m, n]  = Σ_t alpha_t · A_t[m, k_t] · B_t[k_t, n]      f32 sums, k in order, never split by threads
 *     C[m, n]     = (accumulate ? C : 0) + factor[n] · tile + bias[n]       one rounding, to C's dtype
 *
 * A sum of terms is how the rank-r update of LoRA joins the base product, and how the gradients of
 * projections that share their input become one dX, with a single rounding. Several products may go in
 * one call: those that share their A (q, k, v and their LoRA A) pack it once, also when some wait for others (stages).
 *
 * Operands are packed into panels, which is where a storage format is decoded: f32 panels for f32 and
 * f16 arithmetic, pairs of bf16 for machines that multiply them. A packed weight exists decoded only as
 * a panel. Products with few rows read weights directly (gemv).
 *
 * The bits of C depend on the arguments and the instruction set alone, not on the number of threads. */
#ifndef NBL_GEMM_H
#define NBL_GEMM_H

#include "ops/ops.h"

/* A matrix in memory, `rows` by `columns`, and how the product sees it. */
typedef struct nbl__mat {
    const nbl_weight *weight; /* [rows, columns] in any format; or NULL, and the dense */
    int64_t first_row; /* of a weight: the matrix starts at this row of it, and may end before its last */
    nbl_dtype dtype;   /* f32, f16 or bf16; i8 for rows quantised to 8 bits (then `scales`) */
    const void *data;
    int64_t stride;      /* elements from one row to the next */
    const float *scales; /* i8: [rows]; value = code · scale / 127 */
    bool transpose;      /* the product sees it transposed */
    const int32_t *pick; /* the inner index k means column pick[k] (or row, transposed); NULL: k */
    float dropout;       /* > 0: elements are dropped by nbl__dropout_keeps(seed, dropout, index), */
    uint64_t
        seed; /* index = drop_first + row · drop_columns + column, and kept ones scaled by 1/(1 - dropout) */
    int64_t drop_first, drop_columns;
} nbl__mat;

typedef struct nbl__term {
    nbl__mat a; /* [m, k] as the product sees it; no weight */
    nbl__mat b; /* [k, n] as the product sees it: a weight [n, k] is transposed in X·Wᵀ, not in dY·W */
    int64_t k;
    float alpha;
    nbl_dtype compute; /* B is rounded to it on decoding; with bf16, A may be rounded to it, too */
    float dropout;     /* > 0: the product is masked before it joins the sum, */
    uint64_t seed;     /* index = drop_first + row · n + column: the backward of an A that was dropped */
    int64_t drop_first;
} nbl__term;

typedef struct nbl__product {
    int64_t m, n;
    const nbl__term *terms;
    int term_count;
    const float *factor;    /* [n] or NULL */
    const nbl_tensor *bias; /* [n], any float dtype; or NULL */
    nbl_dtype dtype;        /* of C: f32, f16, bf16 */
    void *c;
    int64_t stride; /* of C's rows */
    bool flipped;   /* C is [n, m]; f32, without factor and bias */
    bool accumulate;
    int stage; /* 0, or 1: its terms may read rows of A that products of stage 0 with as many rows make */
} nbl__product;

/* Scratch, aligned to 64 bytes, for one call with these products, or with smaller k or fewer terms. Sizes
 * and dtypes count, data pointers do not, except that operands with equal `a.data` (not NULL) and `a.pick`
 * are packed once. A is packed 512 rows at a time: this is about 512 · k floats (split: half as much again), and 0.5 to
 * 1.7 MB per thread. */
size_t nbl__gemm_scratch(const nbl_context *ctx, const nbl__product *products, int count);
nbl_status nbl__gemm(nbl_context *ctx, const nbl__product *products, int count, void *scratch);

#endif
