/* gemm.h - the CPU's matrix product, behind every linear layer: C = epilogue(Σ
 * over terms of A·B).
 *
 *   tile[m, n] = Σ_t alpha_t · A_t[m, k_t] · B_t[k_t, n]              f32
 *   C[m, n]    = (accumulate ? C : 0) + factor[n] · tile + bias[n]    one rounding, to C's dtype
 *
 * Terms: a sum of terms joins LoRA's low-rank product to the base product, and
 * sums the dx of layers that share their input, with a single rounding.
 *
 * Calls: one call takes several products. Products with the same A (q, k, v and
 * their LoRA A) pack it once, also across the two stages of a call.
 *
 * Packing: operands are copied into panels in the order in which the kernel reads
 * them (gemm_kernels.h). A packed weight is dequantized there: it never exists as
 * a whole. f32 and f16 arithmetic use panels of f32, machines that multiply bf16
 * use pairs of bf16. Products with at most 8 rows can read the weight directly
 * (nbl__gemm_algo).
 *
 * Determinism: each sum runs over terms and k in one order, and is never split
 * between threads. The bits of C depend on the arguments and the instruction set
 * alone. */
#ifndef NBL_GEMM_H
#define NBL_GEMM_H

#include "ops/ops.h"

/* A matrix in memory, and how the product sees it. Either `weight` or `data` is
 * set. */
typedef struct nbl__gemm_matrix {
    const nbl_weight *weight; /* [rows, columns] in any format; NULL: dense, in `data` */
    /* of a weight: the row at which the matrix starts; it may end before the weight does */
    int64_t first_row;
    nbl_dtype dtype; /* f32, f16 or bf16; i8 for rows quantized to 8 bits (then `scales`) */
    const void *data;
    int64_t stride;         /* elements from one row to the next */
    const float *scales;    /* i8: [rows]; value = code · scale / 127 */
    bool transposed;        /* the product sees it transposed */
    const int32_t *k_index; /* inner index k means column (transposed: row) k_index[k]; NULL: column k */
    /* Dropout > 0: element i = drop_first + row · drop_columns + column is dropped, or
     * scaled by 1 / (1 - dropout), as nbl__dropout_keeps(seed, dropout, i) says. */
    float dropout;
    uint64_t seed;
    int64_t drop_first, drop_columns;
} nbl__gemm_matrix;

/* One product of a sum. */
typedef struct nbl__gemm_term {
    nbl__gemm_matrix a; /* [m, k] as the product sees it; not a weight */
    /* [k, n] as the product sees it: a weight [n, k] is transposed in x·Wᵀ, and not in dy·W */
    nbl__gemm_matrix b;
    int64_t k;
    float alpha;
    nbl_dtype compute; /* weights are rounded to it; with bf16, dense operands may be, too */
    /* Dropout > 0: element i = drop_first + row · n + column of A·B is masked before it
     * joins the sum. This is the backward of an A with dropout. */
    float dropout;
    uint64_t seed;
    int64_t drop_first;
} nbl__gemm_term;

/* One result of a call. */
typedef struct nbl__gemm_product {
    int64_t m, n;
    const nbl__gemm_term *terms;
    int term_count;
    const float *factor;    /* [n] or NULL */
    const nbl_tensor *bias; /* [n], any float dtype; or NULL */
    nbl_dtype dtype;        /* of C: f32, f16, bf16 */
    void *c;
    int64_t stride;    /* elements from one row of C to the next */
    bool c_transposed; /* C is stored transposed, [n, m]: f32, without factor and bias */
    bool accumulate;   /* add to C */
    int stage;         /* 0 or 1; 1 may read, as A, results of stage 0 with as many rows */
} nbl__gemm_product;

/* How a call is computed. */
typedef struct nbl__gemm_algo {
    nbl_isa isa; /* micro-kernels of this instruction set or a lower one */
    bool gemv;   /* products with at most 8 rows read the weight directly (gemv.h) */
    /* > 0: micro-kernels are chosen as for a product with so many rows, whatever it has. A row of C then has the same
     * bits in products with more and with fewer rows. */
    int64_t rows;
} nbl__gemm_algo;
/* The number of rows for which micro-kernels are chosen. */
static inline int64_t nbl__gemm_rows(nbl__gemm_algo algo, int64_t m)
{
    return algo.rows > 0 ? algo.rows : m;
}
/* The fastest: all that the context has. */
static inline nbl__gemm_algo nbl__gemm_best(const nbl_context *ctx)
{
    return (nbl__gemm_algo){nbl__isa(ctx), true, 0};
}

/* Bytes of scratch for one call with these products, or with smaller k or fewer
 * terms. Depends on sizes and dtypes. Data pointers do not matter, except that
 * operands with equal `a.data` (not NULL) and `a.k_index` are packed once.
 *
 * A is packed 512 rows at a time: about 512·k floats (panels of split f32: half as
 * much again), and 0.5 to 1.7 MB per thread. */
size_t nbl__gemm_scratch(const nbl_context *ctx, nbl__gemm_algo algo, const nbl__gemm_product *products,
                         int count);
/* Runs the products. `scratch` is aligned to 64 bytes. Error: NBL_ERROR_INTERNAL
 * if one product has more terms than MAX_TERMS (gemm_plan.h). */
nbl_status nbl__gemm(nbl_context *ctx, nbl__gemm_algo algo, const nbl__gemm_product *products, int count,
                     void *scratch);

#endif
