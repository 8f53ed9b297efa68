/* gemv.h - products with at most 8 rows: the weight is read once, directly from
 * its packed form.
 *
 *   tile[i, n - n_begin] += alpha · Σ_k A[i, k] · B[k, n]          i < m <= 8, n_begin <= n < n_end
 *
 * B is a weight [n, k] seen transposed (x·Wᵀ) in any format, a weight as stored
 * (dy·W), or a dense matrix either way. For a transposed weight, n counts the
 * weight's own rows, and first_row is not added. For a weight as stored, first_row
 * is added to k.
 *
 * A weight is rounded to `compute` exactly as nbl__dequantize does. With f32, the
 * scale of a block may be multiplied after its codes were summed. Sums are f32.
 * The mask of the whole product (term->dropout) is left to the caller.
 *
 * The bits of a column depend on the term, m and the instruction set, not on the
 * range it is computed in. Stack: about 60 KB. Limit: the reading of B with one
 * row, arithmetic with eight. */
#ifndef NBL_GEMV_H
#define NBL_GEMV_H

#include "ops/gemm/cpu/gemm.h"

enum { NBL_MAX_GEMV_ROWS = 8 };

/* Adds the product to the tile. Requires m <= NBL_MAX_GEMV_ROWS; does nothing if m
 * or the range is empty. */
void nbl__gemv(nbl_isa isa, const nbl__gemm_term *term, int64_t m, int64_t n_begin, int64_t n_end,
               float *tile, int64_t tile_stride);

#endif
