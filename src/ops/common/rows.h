/* rows.h - divides work among threads: by rows, by spans of elements, and sums
 * over rows in a fixed order.
 *
 * Divisions depend on sizes alone, so that any number of threads gives the same
 * bits. */
#ifndef NBL_ROWS_H
#define NBL_ROWS_H

#include "base/team.h"
#include "ops/ops.h"

/* Min elements per item of the team: some microseconds of work. */
enum { NBL_SPAN = 32768 };

/* A kernel for one dtype, which is a constant in each branch: its conversions are chosen once per call. */
#define NBL_BY_DTYPE(dtype, call)                                                                            \
    do {                                                                                                     \
        assert(nbl__is_compute(dtype));                                                                      \
        switch (dtype) {                                                                                     \
        case NBL_DTYPE_F32: call(NBL_DTYPE_F32); break;                                                      \
        case NBL_DTYPE_F16: call(NBL_DTYPE_F16); break;                                                      \
        default: call(NBL_DTYPE_BF16); break;                                                                \
        }                                                                                                    \
    } while (0)

/* ---- rows [begin, end) at a time ---- */

typedef void (*nbl__rows_fn)(const void *job, int64_t begin, int64_t end, int64_t item);

/* Calls fn for all rows, `rows_per_item` at a time. */
nbl_status nbl__rows_run(nbl_context *ctx, int64_t rows, int64_t rows_per_item, nbl__rows_fn fn,
                         const void *job);
/* Rows that hold about NBL_SPAN elements; at least 1. */
static inline int64_t nbl__rows_per_span(int64_t columns)
{
    return nbl__max_i64(1, NBL_SPAN / nbl__max_i64(columns, 1));
}

/* ---- gradients of parameters: sums over rows ----
 *
 * Rows are cut into at most 64 blocks; each block sums into its own partial row, and the partial rows are
 * added in order. */

/* Rows per block: at least 16, and at most 64 blocks. */
static inline int64_t nbl__block_rows(int64_t rows)
{
    return nbl__max_i64(16, nbl__ceil_div(rows, 64));
}
static inline int64_t nbl__block_count(int64_t rows)
{
    return nbl__ceil_div(rows, nbl__block_rows(rows));
}
/* y[i] += scale·x[i], for an x of a compute dtype. */
void nbl__add_scaled(nbl_isa isa, nbl_dtype dtype, const void *x, float scale, float *y, int64_t n);

/* out[k] (+)= Σ over blocks of partial[block·stride + k]. */
nbl_status nbl__blocks_add(nbl_context *ctx, const float *partial, int64_t blocks, int64_t stride,
                           int64_t columns, float *out, bool accumulate);

#endif
