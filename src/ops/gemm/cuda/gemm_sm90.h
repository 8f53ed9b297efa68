/* gemm_sm90.h - matrix product for compute capability 9.0 that sums several products in one K loop.
 *
 *     c[m, n] = Σ_i a_i[m, k_i] · b_i + beta · c_in
 *
 * All b_i are stored as [n, k_i] (`b_transposed`, the layout of weights: y = x·Wᵀ + t·Bᵀ), or all as [k_i, n] (the same
 * weights in backward: dx = dy·W + u·A). Nothing is transposed in memory. A library's GEMM takes one term per
 * pass: every adapter and every further gradient reads and writes c once more, and rounds it once more. Here
 * a term of rank r costs its arithmetic (r in steps of 16), and c is rounded once. Sums are f32, in the order
 * of the terms and of k: the same bits each time.
 *
 * Variants of the result:
 *
 *     gated:         c = act(Σ a_i · b_i) · (Σ a_i · b2_i). gate and up get the two sums, if they are not NULL. A
 *                    term that adds to one sum only has b or b2 NULL; it costs as much as with both.
 *     parts:         up to NBL_MAX_GEMM_SM90_PARTS results with the same rows, each with its own columns and terms
 *     masked:        a term with a mask adds factor · mask ∘ (a_i · b_i): the adapters' part of dx with dropout. Such
 *                    terms follow the others. bf16, b as [k, n], one part, no beta
 *     exponentials:  c = 2^(log2 e · Σ a_i · b_i - power), with a power per row. `spans` gets the sum of c before
 *                    rounding over each NBL_GEMM_SM90_SPAN columns: a softmax that does not read its rows again. A
 *                    span whose sum would reach 2^60 gets its own power, chosen so that its largest element is
 *                    about 1.
 *
 * Matrices are row-major, with leading dimensions. Any m and k; n is a multiple of 8. TMA needs pointers aligned to 16
 * bytes and leading dimensions that are multiples of 16 bytes: ask nbl__gemm_sm90_can, and use cublaslt.h otherwise.
 * Enqueues on the device's stream; can be captured. Results overlap no input, except that c_in may be c. */
#ifndef NBL_GEMM_SM90_H
#define NBL_GEMM_SM90_H

#include "ops/elementwise/act.h"
#include "device/cuda/cuda.h"

enum { NBL_MAX_GEMM_SM90_TERMS = 8, NBL_MAX_GEMM_SM90_PARTS = 4, NBL_GEMM_SM90_SPAN = 256 };

typedef struct nbl__gemm_sm90_term {
    const void *a, *b, *b2; /* b2: of `gated` */
    int64_t k;              /* 0: adds nothing */
    int64_t lda, ldb;       /* elements from row to row as they are stored (ldb: of b2 too); 0: dense */
    const uint32_t
        *mask; /* [m, mask_ld]: bit c % 32 of word c / 32 says that column c is kept; NULL: no mask */
    float mask_factor;
} nbl__gemm_sm90_term;

/* Arguments of the exponentials variant. */
typedef struct nbl__gemm_sm90_exponentials {
    const float *powers;   /* [m]: integers */
    const int32_t *labels; /* [m]: a column of each row */
    float *label_sums;     /* [m]: that column's sum; unchanged where the label is no column */
    float *spans; /* [m, n / NBL_GEMM_SM90_SPAN rounded up, 2]: sum and power; NULL: no exponentials */
} nbl__gemm_sm90_exponentials;

/* The terms of a part follow those of the previous part. */
typedef struct nbl__gemm_sm90_part {
    void *c; /* dense */
    int64_t n;
    int count;
} nbl__gemm_sm90_part;

typedef struct nbl__gemm_sm90 {
    nbl_dtype dtype;   /* of a, b: bf16 or f16 */
    nbl_dtype c_dtype; /* the same, or f32; gated: c has `dtype`, and this is that of gate and up */
    int64_t m, n;
    int count;
    nbl__gemm_sm90_term terms[NBL_MAX_GEMM_SM90_TERMS];
    bool b_transposed;
    int64_t mask_ld; /* words from row to row of every mask: even */
    void *c;
    int64_t ldc;      /* 0: dense; gate and up are dense */
    float beta;       /* not gated */
    const void *c_in; /* multiplied by beta; has c_dtype; NULL: c itself */
    int64_t ldc_in;   /* 0: dense */
    bool gated;       /* b_transposed only */
    nbl__act act;
    void *gate, *up;                          /* NULL: not kept */
    nbl__gemm_sm90_exponentials exponentials; /* bf16, b_transposed, no beta; c may be NULL: not kept */
    /* 0: one part, given by n, count, c and ldc above; else those are ignored. Not gated, no beta */
    int part_count;
    nbl__gemm_sm90_part parts[NBL_MAX_GEMM_SM90_PARTS];
    int variant; /* 0: chosen by shape; 1 … forces one, for measurements */
} nbl__gemm_sm90;

/* NULL if the kernel takes this product, else the reason. */
const char *nbl__gemm_sm90_can(const nbl__cuda *cuda, const nbl__gemm_sm90 *product);
nbl_status nbl__gemm_sm90_run(const nbl__call *call, const nbl__gemm_sm90 *product);
/* Name of variant 1 …, or NULL beyond the last. */
const char *nbl__gemm_sm90_variant(int variant);

#endif
