/* gemm_masked.h - gradients of LoRA's A where dropout masks the adapter's input.
 *
 *     to_i[r, c] (+)= factor_i · Σ_t u[t, first_i + r] · mask_i[t, c] · x[t, c]          x is [rows, columns], u [rows, .]
 *
 * Without masks this is one product for all adapters of x. With masks each adapter has an x of its own.
 * This kernel reads x once per 64 columns of u (four groups of 16), whichever adapters they belong to, and
 * applies the masks in registers, from bits (dropout_cuda.h has their layout).
 *
 * bf16, f32 sums in a fixed order. Columns are a multiple of 8. `first` and u_ld are multiples of 8, and u
 * is aligned to 16 bytes. x may be aligned to its elements only (slower). Limit: memory bandwidth of x;
 * above that, instructions: 50 per 16 columns of u and 1,024 elements of x. */
#ifndef NBL_GEMM_MASKED_H
#define NBL_GEMM_MASKED_H

#include "device/cuda/cuda.h"

enum { NBL_MAX_GEMM_MASKED_PARTS = 4 };

typedef struct nbl__gemm_masked_part {
    const uint32_t *bits; /* NULL: everything is kept */
    float factor;
    int64_t first, rank; /* first column of u; rank: rows of `to`. u has whole groups of 16 columns */
    float *to;           /* [rank, columns] */
    bool accumulate;
} nbl__gemm_masked_part;

typedef struct nbl__gemm_masked {
    int64_t rows, columns, u_ld, bits_ld;
    const void *x, *u;
    int count;
    nbl__gemm_masked_part parts[NBL_MAX_GEMM_MASKED_PARTS];
} nbl__gemm_masked;

/* Bytes of scratch: enough for these columns and any number of rows. */
size_t nbl__gemm_masked_scratch(const nbl__cuda *cuda, int64_t columns);
nbl_status nbl__gemm_masked_run(const nbl__call *call, const nbl__gemm_masked *g, void *scratch);

#endif
