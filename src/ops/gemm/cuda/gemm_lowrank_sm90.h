/* gemm_lowrank_sm90.h - on a Hopper: all that the few ranks of adapters want of long matrices in one pass over each of them.
 *
 *     to[., first_i + r] = scale_i·Σ_c z_i[., c]·a_i[r, c]             z_i is [rows, columns_i], a_i [wide, columns_i]
 *     gradient[c, r] (+)= Σ over rows of z_i[., c]·v[., first + r]
 *
 * The first may be left out. bf16, sums in f32 in a fixed order; wide is 16 or 32, or 48 without the first. Bound by
 * reading z. Pointers are aligned to 16 bytes, columns and leading dimensions are multiples of 8: ask nbl__gemm_lowrank_can. */
#ifndef NBL_CUDA_GEMM_LOWRANK_H
#define NBL_CUDA_GEMM_LOWRANK_H

#include "device/cuda/cuda.h"

enum { NBL_GEMM_LOWRANK_PARTS = 4 };

typedef struct nbl__gemm_lowrank_part {
    const void *z; /* dense */
    int64_t columns;
    const void *a; /* dense */
    float scale;
    int64_t first;   /* its columns of `to` */
    int64_t v_first; /* and of v */
} nbl__gemm_lowrank_part;

/* Some of the sums over rows: `rank` of them from v_first + `first` on, as [columns, rank] or, turned, [rank, columns]. */
typedef struct nbl__gemm_lowrank_gradient {
    int part;
    int64_t first, rank;
    float *to;
    bool transposed, accumulate;
} nbl__gemm_lowrank_gradient;

typedef struct nbl__gemm_lowrank {
    int64_t rows, wide;
    int count, gradient_count;
    nbl__gemm_lowrank_part parts[NBL_GEMM_LOWRANK_PARTS];
    nbl__gemm_lowrank_gradient gradients[NBL_GEMM_LOWRANK_PARTS];
    void *to; /* NULL: not wanted */
    int64_t to_ld;
    const void *v; /* [rows, .] */
    int64_t v_ld;
} nbl__gemm_lowrank;

bool nbl__gemm_lowrank_can(const nbl__cuda *cuda, const nbl__gemm_lowrank *s);
/* Bytes, by rows, wide and the parts' columns alone. */
size_t nbl__gemm_lowrank_scratch(const nbl__cuda *cuda, const nbl__gemm_lowrank *s);
nbl_status nbl__gemm_lowrank_run(const nbl__call *call, const nbl__gemm_lowrank *s, void *scratch);

#endif
