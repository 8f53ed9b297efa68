/* dropout_cuda.h - the masks of an adapter's input on the device: the same as the CPU's, made again wherever they are needed. */
#ifndef NBL_CUDA_DROPOUT_H
#define NBL_CUDA_DROPOUT_H

#include "device/cuda/cuda.h"
#include "ops/linear/linear.h"

/* to = mask∘from / (1 - dropout), the mask that of rows [row, row + rows) of a matrix with that many columns. */
nbl_status nbl__cuda_drop(const nbl__call *call, nbl__seed seed, float dropout, int64_t row, int64_t rows,
                          int64_t columns, const void *from, nbl_dtype from_dtype, void *to,
                          nbl_dtype to_dtype);
/* The same of f32, written or added. */
nbl_status nbl__cuda_drop_add(const nbl__call *call, nbl__seed seed, float dropout, int64_t row, int64_t rows,
                              int64_t columns, const float *from, float *to, bool add);

/* to = Σ mask_i∘(u_i·a_i) / (1 - dropout) of bf16: u [rows, .] with u_ld, a [., columns], of which each part has its own
 * columns and rows, multiples of 16, 64 at most in all. columns is a multiple of 8; u and a are aligned to 16 bytes. */
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
