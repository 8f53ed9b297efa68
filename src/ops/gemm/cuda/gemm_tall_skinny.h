/* gemm_tall_skinny.h - bf16 products with one short side: the projections of LoRA adapters.
 *
 *     project   to[i, r] = scale·Σ_c x[i, c]·a[r, c]                 x is [rows, columns], a [wide, columns]
 *
 * With masks (dropout) each part of the results has its own x: mask∘x. The masks are made here, and written as bits for
 * backward. The factor 1 / (1 - dropout) belongs into the scales.
 *
 * Bound by reading the long operand x once; with masks by the arithmetic of Philox. wide is a multiple of 16 up to
 * NBL_TALL_SKINNY_MAX, columns a multiple of 8. Sums are f32 in a fixed order. x may be aligned to its elements only (slower). All other pointers are aligned to 16
 * bytes, and rows are multiples of 8 elements. */
#ifndef NBL_CUDA_GEMM_TALL_SKINNY_H
#define NBL_CUDA_GEMM_TALL_SKINNY_H

#include "device/cuda/cuda.h"
#include "ops/linear/linear.h"

enum { NBL_TALL_SKINNY_MAX = 64, NBL_PROJECT_MASKS = 4 };

/* The mask of some results, which follow those of the mask before it. */
typedef struct nbl__project_mask {
    nbl__seed seed;
    float dropout; /* 0: none */
    int wide;      /* results, a multiple of 16 */
    uint32_t
        *bits; /* [rows, bits_ld]: bit c % 32 of word c / 32 says that column c is kept; NULL: not written */
} nbl__project_mask;

typedef struct nbl__project {
    int64_t rows, columns;
    const void *x, *a; /* dense */
    int wide;
    float scales[NBL_TALL_SKINNY_MAX / 8]; /* of each 8 results */
    uint64_t ones;                         /* bit r: result r is 1 instead */
    void *to;
    int64_t to_ld;
    int mask_count; /* 0: no masks */
    nbl__project_mask masks[NBL_PROJECT_MASKS];
    int64_t bits_ld;
    int64_t first_row; /* the masks' row of x's first row */
} nbl__project;
/* Words from row to row of a mask's bits: even, so that two words can be loaded at once. */
static inline int64_t nbl__mask_words(int64_t columns)
{
    return (columns + 63) / 64 * 2;
}
nbl_status nbl__cuda_project(const nbl__call *call, const nbl__project *p);

/* Copies groups of rows of one f32 matrix to an address each, or adds them there. */
typedef struct nbl__scatter_part {
    float *to;
    int64_t first, count;
    bool accumulate;
} nbl__scatter_part;
nbl_status nbl__cuda_scatter(const nbl__call *call, const float *from, int64_t columns,
                             const nbl__scatter_part *parts, int count); /* at most 4 */

#endif
