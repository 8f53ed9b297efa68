/* gemv.h - products with few rows: the weight is read once, straight from its packed form.
 *
 *     tile[i, n - n_begin] += alpha · Σ_k A[i, k] · B[k, n]        i < m <= 8, n_begin <= n < n_end
 *
 * B is a weight [n, k] seen transposed (X·Wᵀ) in any format, a weight seen as it lies (dY·W), or a dense
 * matrix either way. A weight is rounded to `compute` exactly as nbl__dequantize does; with f32 the scale of a
 * block may be multiplied after its codes were summed. n counts the rows of a transposed weight from its first,
 * whatever first_row says; as it lies, first_row counts. Sums are f32. Dropout of the product as a whole
 * (term->dropout) is the caller's.
 *
 * The bits of a column depend on the term, m and the instruction set, not on the range it is computed in.
 * Stack: about 60 KB. Cost: bound by the reading of B with one row, by arithmetic with eight. */
#ifndef NBL_GEMV_H
#define NBL_GEMV_H

#include "ops/gemm/cpu/gemm.h"

enum { NBL_GEMV_MAX_ROWS = 8 };

void nbl__gemv(nbl_isa isa, const nbl__term *term, int64_t m, int64_t n_begin, int64_t n_end, float *tile,
               int64_t tile_stride);

#endif
