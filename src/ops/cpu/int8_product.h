/* int8_product.h - rows of 8-bit codes times an INT8 weight, transposed: sums in whole numbers.
 *
 *     tile[i - m_begin][n - n_begin] += alpha · (Σ_k a[i][k] · w[n][k]) · scale_a[i] · scale_w[n] / 127² */
#ifndef NBL_INT8_PRODUCT_H
#define NBL_INT8_PRODUCT_H

#include "ops/cpu/gemm.h"

/* Scratch for a call with at most this many rows and columns. */
size_t nbl__int8_product_scratch(nbl_isa isa, const nbl__term *term, int64_t rows, int64_t columns);
void nbl__int8_product(nbl_isa isa, const nbl__term *term, int64_t m_begin, int64_t m_end, int64_t n_begin,
                       int64_t n_end, float *tile, int64_t tile_stride, void *scratch);

#endif
