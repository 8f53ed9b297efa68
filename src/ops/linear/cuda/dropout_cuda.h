/* dropout_cuda.h - dropout's masks of an adapter's input, on the device. They are the CPU's masks.
 * They are not stored: each use computes them again from seed and index. */
#ifndef NBL_CUDA_DROPOUT_H
#define NBL_CUDA_DROPOUT_H

#include "device/cuda/cuda.h"
#include "ops/linear/linear.h"

/* to = mask∘from / (1 - dropout). The mask is that of rows [row, row + rows) of a matrix with this
 * many columns. */
nbl_status nbl__cuda_drop(const nbl__call *call, nbl__seed seed, float dropout, int64_t row, int64_t rows,
                          int64_t columns, const void *from, nbl_dtype from_dtype, void *to,
                          nbl_dtype to_dtype);
/* The same for f32. add: adds to `to` instead of writing it. */
nbl_status nbl__cuda_drop_add(const nbl__call *call, nbl__seed seed, float dropout, int64_t row, int64_t rows,
                              int64_t columns, const float *from, float *to, bool add);

/* to = Σ mask_i∘(u_i·a_i) / (1 - dropout), in bf16. u is [rows, .] with u_ld, a is [., columns].
 * Part i has its own columns of u and rows of a: multiples of 16, at most 64 in all. columns is a
 * multiple of 8. u and a are aligned to 16 bytes. */
enum { NBL_MAX_EXPAND = 64, NBL_MAX_EXPAND_PARTS = 4 };
typedef struct nbl__expand_part {
    nbl__seed seed;
    float dropout;
    int first, wide;
} nbl__expand_part;
typedef struct nbl__expand {
    int64_t rows, columns, u_ld, first_row; /* first_row: of the masks */
    const void *u, *a;
    void *to;
    int part_count, wide; /* wide: of all parts */
    nbl__expand_part parts[NBL_MAX_EXPAND_PARTS];
} nbl__expand;
nbl_status nbl__cuda_expand(const nbl__call *call, const nbl__expand *e);

#endif
