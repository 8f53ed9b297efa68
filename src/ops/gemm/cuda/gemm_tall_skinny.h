/* gemm_tall_skinny.h - bf16 products with one short side: the projections of LoRA adapters.
 *
 *     project   to[i, r] = scale·Σ_c x[i, c]·a[r, c]                 x is [rows, columns], a [rank_padded, columns]
 *
 * With masks (dropout) each 16 results may have an x of their own: mask∘x. Masks are bits (dropout_cuda.h). The factor
 * 1 / (1 - dropout) belongs into the scales.
 *
 * Bound by reading the long operand x once. rank_padded is a multiple of 16 up to
 * NBL_MAX_TALL_SKINNY, columns a multiple of 8. Sums are f32 in a fixed order. x may be aligned to its
 * elements only (slower). All other pointers are aligned to 16 bytes, and rows are multiples of 8 elements.
 * */
#ifndef NBL_GEMM_TALL_SKINNY_H
#define NBL_GEMM_TALL_SKINNY_H

#include "device/cuda/cuda.h"

enum { NBL_MAX_TALL_SKINNY = 64 };

typedef struct nbl__project {
    int64_t rows, columns;
    const void *x, *a; /* dense */
    int rank_padded;
    float scales[NBL_MAX_TALL_SKINNY / 8]; /* of each 8 results */
    uint64_t ones;                         /* bit r: result r is 1 instead */
    void *to;
    int64_t to_ld;
    const uint32_t *masks[NBL_MAX_TALL_SKINNY / 16]; /* of each 16 results: [rows, bits_ld]; NULL: none */
    int64_t bits_ld;
} nbl__project;
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
