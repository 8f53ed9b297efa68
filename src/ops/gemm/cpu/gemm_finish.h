/* gemm_finish.h - from a tile of sums to the rows of C: mask, factor, bias, accumulate, cast. */
#ifndef NBL_GEMM_FINISH_H
#define NBL_GEMM_FINISH_H

#include "ops/gemm/cpu/gemm.h"

/* Rows [row, row + rows) and columns [n_begin, n_end) of C from the tile, which is used up. `line` is
 * scratch for 2 x (n_end - n_begin) floats. */
void nbl__gemm_finish(nbl_isa isa, const nbl__product *p, int64_t row, int64_t rows, int64_t n_begin,
                      int64_t n_end, float *tile, int64_t stride, float *line);
/* tile += part where the term's dropout keeps, scaled by 1/(1 - dropout); the part is used up. */
void nbl__gemm_join(nbl_isa isa, const nbl__product *p, const nbl__term *term, int64_t row, int64_t rows,
                    int64_t n_begin, int64_t n_end, float *part, float *tile, int64_t stride);

#endif
