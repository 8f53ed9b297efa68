/* gemm_int8.h - LLM.int8: activations quantized by rows, outlier columns left out,
 * and the product of the codes.
 *
 *   scales[i]   = the largest |x[i, k]| below the threshold, outlier columns included, as in bitsandbytes
 *   codes[i, k] = RN(x[i, k] · 127 / scales[i]); 0 in outlier columns
 *   tile[i, n] += alpha · (Σ_k codes[i, k] · w[n, k]) · scales[i] · w.scales[n] / 127²
 *
 * The sums are exact in i32: k is cut where they could overflow. Every instruction
 * set and every split of rows and columns therefore gives the same bits. */
#ifndef NBL_GEMM_INT8_H
#define NBL_GEMM_INT8_H

#include "ops/gemm/cpu/gemm.h"

/* outlier[c] = 1 if any row has |x| >= threshold (if the threshold is > 0), an
 * infinity or NaN in column c, else 0. x is f32, f16 or bf16 [rows, columns], its
 * rows `stride` elements apart. Ranges of columns are independent. */
void nbl__int8_outliers(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t stride, int64_t rows,
                        int64_t columns, float threshold, uint8_t *outlier);

/* Quantizes rows [row_begin, row_end) of x. codes is [rows, columns], dense, and
 * scales [rows], both from row 0.
 *
 * Values at or above the threshold (if it is > 0), infinities and NaN do not count
 * for the scale. They must be in columns marked in `outlier` (NULL: none), which
 * get the code 0. A row of zeros gets the scale 0. The codes are those of f64
 * arithmetic, ties to even. */
void nbl__int8_rows(nbl_isa isa, nbl_dtype dtype, const void *x, int64_t stride, int64_t row_begin,
                    int64_t row_end, int64_t columns, float threshold, const uint8_t *outlier, int8_t *codes,
                    float *scales);

/* Bytes of scratch for a product of m rows and n columns. */
size_t nbl__int8_product_scratch(nbl_isa isa, const nbl__gemm_term *term, int64_t m, int64_t n);
/* Adds the product of term->a (i8 codes in -127 … 127, with scales) and term->b
 * (an int8 weight [n, k], seen transposed) to tile[i - m_begin, n - n_begin]. The
 * columns [n_begin, n_end) are rows of the weight. */
void nbl__int8_product(nbl_isa isa, const nbl__gemm_term *term, int64_t m_begin, int64_t m_end,
                       int64_t n_begin, int64_t n_end, float *tile, int64_t tile_stride, void *scratch);

#endif
