/* linear_helpers.h - the small steps between the products of linear layers: conversions, factors,
 * sums over tokens.
 *
 * Matrices are row-major; an `ld` is the distance of rows in elements. All pointers are to device
 * memory. Each call is one or two launches. Limit: memory. Sums are in a fixed order. */
#ifndef NBL_LINEAR_HELPERS_H
#define NBL_LINEAR_HELPERS_H

#include "device/cuda/cuda.h"

/* A matrix that is converted to another dtype and layout. */
typedef struct nbl__cast_copy {
    const void *from;
    nbl_dtype from_dtype, via, to_dtype; /* values are rounded to `via` first */
    int64_t rows, columns, from_ld;
    bool transposed; /* to[c, r] = from[r, c] */
    void *to;
    int64_t to_rows, to_columns, to_ld; /* elements past the source become 0 */
    /* [columns]: a factor before the last rounding; NULL: none. */
    const float *factor;
    float scale; /* a factor, too; 0: 1 */
    /* One column gives two: to[., 0] is its value, to[., 1] the rounding error of that. */
    bool split;
} nbl__cast_copy;
enum { NBL_MAX_CAST_COPIES = 12 };
/* one launch */
nbl_status nbl__cuda_cast_copy(const nbl__call *call, const nbl__cast_copy *copies, int count);

/* The last step of an output: y = factor∘(sums + codes·row_scales·column_scales/127²) + bias. */
typedef struct nbl__epilogue {
    int64_t rows, columns;
    const float *sums;
    const int32_t *codes; /* sums of a product of int8 codes; NULL: none */
    const float *row_scales, *column_scales;
    const float *factor; /* [columns]; NULL: 1 */
    const void *bias;    /* [columns]; NULL: 0 */
    nbl_dtype bias_dtype, y_dtype;
    void *y; /* may be `sums` when it is f32 */
} nbl__epilogue;
nbl_status nbl__cuda_epilogue(const nbl__call *call, const nbl__epilogue *f);

/* sums[c] (+)= Σ over rows of dy[., c], or of dy[., c]·plain[., c]. `parts` is scratch of nbl__cuda_sums_parts f64. */
int64_t nbl__cuda_sums_parts(int64_t rows, int64_t columns);
nbl_status nbl__cuda_sums(const nbl__call *call, int64_t rows, int64_t columns, const void *dy,
                          nbl_dtype dtype, const float *plain, bool first, double *parts, double *sums);
/* to = sums·factor, or added to it. */
nbl_status nbl__cuda_store_sums(const nbl__call *call, int64_t columns, const double *sums,
                                const float *factor, bool accumulate, float *to);

/* factor = magnitude / norm, inverse = 1 / norm; `norm` may be `inverse`. */
nbl_status nbl__cuda_factors(const nbl__call *call, int64_t n, const nbl_tensor *magnitude, const float *norm,
                             float *factor, float *inverse);

/* LLM.int8. outlier[c] is 1 if a value of the column is not below the threshold (a threshold <= 0:
 * is not finite). */
nbl_status nbl__cuda_outliers(const nbl__call *call, int64_t rows, int64_t columns, const void *x,
                              nbl_dtype dtype, float threshold, uint8_t *outlier);
/* codes and scales (the largest magnitude below the threshold) of each row, and `outliers`: x in
 * outlier columns, else 0. */
nbl_status nbl__cuda_quantize_rows(const nbl__call *call, int64_t rows, int64_t columns, const void *x,
                                   nbl_dtype dtype, float threshold, const uint8_t *outlier, int8_t *codes,
                                   float *scales, void *outliers, nbl_dtype outlier_dtype);

/* In place: g = act(g)·u. With d: g, u, d = d·u·act'(g), d·act(g), act(g)·u. `act` is nbl__act. If
 * saved_g and saved_u are not NULL, g and u are read from there. */
nbl_status nbl__cuda_gate(const nbl__call *call, int act, int64_t n, const float *saved_g,
                          const float *saved_u, float *g, float *u, float *d);

#endif
