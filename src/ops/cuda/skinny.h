/* skinny.h - products of bf16 with one short side, a few ranks of adapters: bound by reading the long operand once.
 *
 *     project   to[., r] = scale·Σ_c x[., c]·a[r, c]                 x is [rows, columns], a [wide, columns]
 *     sweep     to[., r] = scale·Σ_c z[., c]·a[r, c]                 and, in the same pass over z [rows, columns],
 *               gradient[c, r] = Σ over rows of z[., c]·v[., r]      v is [rows, wide]
 *
 * wide is a multiple of 16 up to NBL_SKINNY_MOST, columns a multiple of 8. Sums are f32 in a fixed order. x and z may be
 * aligned to their elements only (slower); everything else must be aligned to 16 bytes, with rows that are multiples of 8. */
#ifndef NBL_CUDA_SKINNY_H
#define NBL_CUDA_SKINNY_H

#include "ops/cuda/cuda.h"

enum { NBL_SKINNY_MOST = 64 };

typedef struct nbl__project {
    int64_t rows, columns;
    const void *x, *a; /* dense */
    int wide;
    float scales[NBL_SKINNY_MOST / 8]; /* of each 8 results */
    uint64_t ones;                     /* results with this bit are 1 instead */
    void *to;
    int64_t to_ld;
} nbl__project;
nbl_status nbl__cuda_project(const nbl__call *call, const nbl__project *p);

typedef struct nbl__sweep {
    int64_t rows, columns;
    const void *z; /* dense */
    int wide;      /* 16, 32 or 64 */
    const void *a; /* [wide, columns] */
    void *to;      /* NULL: no projection */
    int64_t to_ld;
    float scale;
    const void *v; /* [rows, wide] */
    int64_t v_ld;
    float *gradient; /* [columns, rank], or turned [rank, columns]; NULL: no outer product */
    int rank;        /* results of the outer product that are wanted */
    bool turned, accumulate;
} nbl__sweep;
size_t nbl__cuda_sweep_scratch(int64_t rows, int64_t columns, int wide); /* bytes */
nbl_status nbl__cuda_sweep(const nbl__call *call, const nbl__sweep *s, void *scratch);

/* Rows of one f32 matrix, each group of them to its own place. */
typedef struct nbl__scatter_part {
    float *to;
    int64_t first, count;
    bool accumulate;
} nbl__scatter_part;
nbl_status nbl__cuda_scatter(const nbl__call *call, const float *from, int64_t columns,
                             const nbl__scatter_part *parts, int count); /* at most 4 */

#endif
