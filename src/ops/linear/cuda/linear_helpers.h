/* linear_helpers.h - the small steps between the products of linear layers: conversions, factors,
 * sums over tokens.
 *
 * Matrices are row-major; `ld` is the distance of rows in elements. All pointers are the device's.
 * Each call is one or two launches, bound by memory. Sums have a fixed order. */
#ifndef NBL_CUDA_LINEAR_HELPERS_H
#define NBL_CUDA_LINEAR_HELPERS_H

#include "device/cuda/cuda.h"

/* A copy of a matrix to another dtype and layout. */
typedef struct nbl__move {
    const void *from;
    nbl_dtype from_dtype, via, to_dtype; /* `via`: rounded to that in between */
    int64_t rows, columns, from_ld;
    bool transposed; /* to[c, r] = from[r, c] */
    void *to;
    int64_t to_rows, to_columns, to_ld; /* the rest of [to_rows, to_columns] becomes 0 */
    const float *factor;                /* [columns], multiplied in before the last rounding; NULL: none */
    float scale;                        /* likewise; 0: 1 */
    bool split; /* one column is read twice: to[., 0] is its value, to[., 1] what rounding took from that */
} nbl__move;
enum { NBL_MAX_MOVES = 12 };
nbl_status nbl__cuda_move(const nbl__call *call, const nbl__move *moves, int count); /* one launch */

/* The last step of an output: y = factor∘(sums + codes·row_scales·column_scales/127²) + bias. */
typedef struct nbl__finish {
    int64_t rows, columns;
    const float *sums;
    const int32_t *codes; /* of a product in 8 bits; NULL: none */
    const float *row_scales, *column_scales;
    const float *factor; /* [columns]; NULL: 1 */
    const void *bias;    /* [columns]; NULL: 0 */
    nbl_dtype bias_dtype, y_dtype;
    void *y; /* may be `sums` when it is f32 */
} nbl__finish;
nbl_status nbl__cuda_finish(const nbl__call *call, const nbl__finish *f);

/* sums[c] (+)= Σ over rows of dy[., c], or of dy[., c]·plain[., c]; `first`: overwrites. `parts` is
 * scratch of nbl__cuda_sums_parts f64. */
int64_t nbl__cuda_sums_parts(int64_t rows, int64_t columns);
nbl_status nbl__cuda_sums(const nbl__call *call, int64_t rows, int64_t columns, const void *dy,
                          nbl_dtype dtype, const float *plain, bool first, double *parts, double *sums);
/* to = sums·factor, or added to it. */
nbl_status nbl__cuda_put_sums(const nbl__call *call, int64_t columns, const double *sums, const float *factor,
                              bool accumulate, float *to);

/* factor = magnitude / norm, inverse = 1 / norm; `norm` may be `inverse`. */
nbl_status nbl__cuda_factors(const nbl__call *call, int64_t n, const nbl_tensor *magnitude, const float *norm,
                             float *factor, float *inverse);

/* LLM.int8: outlier[c] is 1 if a value of the column is not below the threshold. A threshold of 0
 * or less means that only non-finite values make an outlier. */
nbl_status nbl__cuda_outliers(const nbl__call *call, int64_t rows, int64_t columns, const void *x,
                              nbl_dtype dtype, float threshold, uint8_t *outlier);
/* Quantizes rows to 8 bits: codes, and scales, which are the largest magnitude below the threshold.
 * `kept` gets x in outlier columns and 0 elsewhere. */
nbl_status nbl__cuda_quantise_rows(const nbl__call *call, int64_t rows, int64_t columns, const void *x,
                                   nbl_dtype dtype, float threshold, const uint8_t *outlier, int8_t *codes,
                                   float *scales, void *kept, nbl_dtype kept_dtype);

/* In place: g = act(g)·u. With d: g, u, d = d·u·act'(g), d·act(g), act(g)·u. `act` is an nbl__act.
 * If kept_g and kept_u are given, g and u are read from there. */
nbl_status nbl__cuda_gate(const nbl__call *call, int act, int64_t n, const float *kept_g, const float *kept_u,
                          float *g, float *u, float *d);

#endif
