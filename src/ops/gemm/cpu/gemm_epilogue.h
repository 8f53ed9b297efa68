/* gemm_epilogue.h - the epilogue: from a tile of sums to rows of C. Mask, factor,
 * accumulate, bias, rounding. */
#ifndef NBL_GEMM_EPILOGUE_H
#define NBL_GEMM_EPILOGUE_H

#include "ops/gemm/cpu/gemm.h"

/* Writes rows [row, row + rows) and columns [n_begin, n_end) of C. The tile is
 * overwritten. `line` is scratch for 2·(n_end - n_begin) floats. */
void nbl__gemm_epilogue(nbl_isa isa, const nbl__gemm_product *p, int64_t row, int64_t rows, int64_t n_begin,
                        int64_t n_end, float *tile, int64_t stride, float *line);
/* tile += the term's mask applied to `part`, kept elements scaled by 1 / (1 -
 * dropout). `part` is overwritten. */
void nbl__gemm_join(nbl_isa isa, const nbl__gemm_product *p, const nbl__gemm_term *term, int64_t row,
                    int64_t rows, int64_t n_begin, int64_t n_end, float *part, float *tile, int64_t stride);

#endif
