/* gemm_lowrank_sm90.h - the low-rank products of LoRA's backward pass, for compute capability 9.0: both products of a
 * long matrix z in one read of it.
 *
 *     to[i, first + r]     = scale·Σ_c z[i, c]·a[r, c]             z is [rows, columns], a [rank_padded, columns]
 *     gradient[c, r]    (+)= Σ_i z[i, c]·v[i, first + r]
 *
 * With z = dy, a = Bᵀ and v = t these are u = s·dy·B and dB = dyᵀ·t. With z = x and v = u the second one is dAᵀ. The first
 * product is optional. Several z (parts) go in one launch. bf16, f32 sums in a fixed order. rank_padded is 16
 * or 32, or 48 without the first product. Bound by reading z. Pointers are aligned to 16 bytes; columns and
 * leading dimensions are multiples of 8: ask nbl__gemm_lowrank_can. */
#ifndef NBL_GEMM_LOWRANK_SM90_H
#define NBL_GEMM_LOWRANK_SM90_H

#include "device/cuda/cuda.h"

enum { NBL_MAX_GEMM_LOWRANK_PARTS = 4 };

typedef struct nbl__gemm_lowrank_part {
    const void *z; /* dense */
    int64_t columns;
    const void *a; /* dense */
    float scale;
    int64_t first;   /* its first column of `to` */
    int64_t v_first; /* its first column of v */
} nbl__gemm_lowrank_part;

/* A gradient: the columns v_first + `first` … of v, `rank` of them. Stored as [columns, rank], or transposed as [rank,
 * columns]. */
typedef struct nbl__gemm_lowrank_gradient {
    int part;
    int64_t first, rank;
    float *to;
    bool transposed, accumulate;
} nbl__gemm_lowrank_gradient;

typedef struct nbl__gemm_lowrank {
    int64_t rows, rank_padded;
    int count, gradient_count;
    nbl__gemm_lowrank_part parts[NBL_MAX_GEMM_LOWRANK_PARTS];
    nbl__gemm_lowrank_gradient gradients[NBL_MAX_GEMM_LOWRANK_PARTS];
    void *to; /* NULL: no first product */
    int64_t to_ld;
    const void *v; /* [rows, .] */
    int64_t v_ld;
} nbl__gemm_lowrank;

bool nbl__gemm_lowrank_can(const nbl__cuda *cuda, const nbl__gemm_lowrank *s);
/* Bytes of scratch. Depends only on rows, rank_padded and the parts' columns. */
size_t nbl__gemm_lowrank_scratch(const nbl__cuda *cuda, const nbl__gemm_lowrank *s);
nbl_status nbl__gemm_lowrank_run(const nbl__call *call, const nbl__gemm_lowrank *s, void *scratch);

#endif
