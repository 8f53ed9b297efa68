/* gemv.h - products with few rows: weights are read where they lie, nothing is packed.
 *
 *     tile[i][n - n_begin] += alpha · Σ_k A[i][k] · W[n][k]      i < m <= 8, n_begin <= n < n_end
 *
 * B is a weight or dense, either way; A is dense f32, f16 or bf16, as stored. No `pick`, no dropout in the
 * operands; a dropout of the term is the caller's. */
#ifndef NBL_GEMV_H
#define NBL_GEMV_H

#include "ops/cpu/gemm.h"

enum { NBL_GEMV_MAX_ROWS = 8 };

void nbl__gemv(nbl_isa isa, const nbl__term *term, int64_t m, int64_t n_begin, int64_t n_end, float *tile,
               int64_t tile_stride);

#endif
