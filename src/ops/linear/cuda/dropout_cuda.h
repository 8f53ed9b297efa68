/* dropout_cuda.h - dropout of an adapter's input on the device. Masks are the same bits as on the
 * CPU. The general algorithm computes them wherever it needs them; the algorithms of training compute them
 * once. */
#ifndef NBL_DROPOUT_CUDA_H
#define NBL_DROPOUT_CUDA_H

#include "device/cuda/cuda.h"
#include "ops/linear/linear.h"

/* to = mask∘from / (1 - dropout). The mask is that of rows [row, row + rows) of a matrix with these
 * columns. */
nbl_status nbl__cuda_drop(const nbl__call *call, nbl__seed seed, float dropout, int64_t row, int64_t rows,
                          int64_t columns, const void *from, nbl_dtype from_dtype, void *to,
                          nbl_dtype to_dtype);
/* The same for f32. `add`: to += */
nbl_status nbl__cuda_drop_add(const nbl__call *call, nbl__seed seed, float dropout, int64_t row, int64_t rows,
                              int64_t columns, const float *from, float *to, bool add);

/* ---- masks as bits: computed once, read by several products ----
 *
 * Bit c % 32 of word c / 32 of a row says that column c is kept. Rows are nbl__mask_words apart: an
 * even number of words, so that two can be loaded at once. */
static inline int64_t nbl__mask_words(int64_t columns)
{
    return (columns + 63) / 64 * 2;
}

enum { NBL_MAX_MASKS = 4 };
typedef struct nbl__mask_part {
    nbl__seed seed;
    float dropout;
    uint32_t *bits; /* [rows, nbl__mask_words(columns)] */
} nbl__mask_part;
/* The masks of [rows, columns]; columns is a multiple of 8. first_row: the masks' row of bits' row 0. Limit: the
 * multiplications of Philox, 20 of 64 bits for four elements. */
nbl_status nbl__cuda_masks(const nbl__call *call, const nbl__mask_part *parts, int count, int64_t rows,
                           int64_t columns, int64_t first_row);

/* to = Σ factor_i·mask_i∘(u_i·a_i), in bf16. u is [rows, u_ld], a [., columns]. Part i has columns
 * first … first + rank_padded - 1 of u and these rows of a. Ranks are padded to multiples of 16, at
 * most 64 in all. columns is a multiple of 8; u and a are aligned to 16 bytes. Only the algorithm
 * cublaslt calls this: folded_sm90 applies masks inside gemm_sm90. */
enum { NBL_MAX_LORA_DX_RANK = 64 };
typedef struct nbl__lora_dx_part {
    const uint32_t *bits; /* NULL: everything is kept */
    float factor;
    int first, rank_padded;
} nbl__lora_dx_part;
typedef struct nbl__lora_dx {
    int64_t rows, columns, u_ld, bits_ld;
    const void *u, *a;
    void *to;
    int part_count, rank_padded; /* rank_padded: of all parts */
    nbl__lora_dx_part parts[NBL_MAX_MASKS];
} nbl__lora_dx;
nbl_status nbl__cuda_lora_dx(const nbl__call *call, const nbl__lora_dx *e);

#endif
