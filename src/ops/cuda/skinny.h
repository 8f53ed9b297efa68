/* skinny.h - products of bf16 with one short side, a few ranks of adapters: bound by reading the long operand once.
 *
 *     project   to[., r] = scale·Σ_c x[., c]·a[r, c]                 x is [rows, columns], a [wide, columns]
 *     outer     sums[c, r] = Σ over rows of z[., c]·v[., r]          z is [rows, columns], v [rows, wide]
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
    void *copy; /* NULL, or where a copy of x goes */
    int64_t copy_ld;
} nbl__project;
nbl_status nbl__cuda_project(const nbl__call *call, const nbl__project *p);

/* One gradient of several that come out of an outer product. */
typedef struct nbl__outer_part {
    float *to; /* NULL: not wanted */
    int first; /* of its `count` of the wide results */
    int count;
    bool turned; /* to[r, c] instead of to[c, r] */
    bool accumulate;
} nbl__outer_part;
typedef struct nbl__outer {
    int64_t rows, columns;
    const void *z, *v;
    int64_t v_ld;
    int wide;
    nbl__outer_part parts[4];
    int part_count;
} nbl__outer;
size_t nbl__cuda_outer_scratch(int64_t rows, int64_t columns, int wide); /* bytes */
nbl_status nbl__cuda_outer(const nbl__call *call, const nbl__outer *o, void *scratch);

#endif
