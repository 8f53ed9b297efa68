/* int8_product.h - activations in 8 bits for LLM.int8: which columns must stay as they are, and the rows'
 * codes of the others. */
#ifndef NBL_INT8_PRODUCT_H
#define NBL_INT8_PRODUCT_H

#include "tensor/dtype.h"

/* outlier[c] = 1 where column c has an |x| >= threshold or a value that is not finite, else 0. */
void nbl__int8_outliers(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t stride, int64_t rows,
                        int64_t columns, float threshold, uint8_t *outlier);
/* Rows [row_begin, row_end) of x: scales[row] = the largest |x| outside the outliers, codes[row · columns + c] =
 * x · 127 / scale to nearest even, 0 in outlier columns and in rows of zeros. */
void nbl__int8_rows(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t stride, int64_t row_begin,
                    int64_t row_end, int64_t columns, const uint8_t *outlier, int8_t *codes, float *scales);

#endif
