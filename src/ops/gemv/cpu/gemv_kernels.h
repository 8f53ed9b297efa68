/* gemv_kernels.h - between gemv.c and its kernels. Internal to gemv.
 *
 * k goes in stretches of some thousand elements. For each, A's rows are widened to f32 once and laid out in
 * the order in which the kernel's decoding finds the weights in its lanes, so that no lane of a weight is
 * ever moved; then all columns are run over it:
 *
 *     for each stretch of k:   a = A[:, stretch], widened, in kernel order      16 to 32 KB: first cache
 *         for each column n:   tile[:, n] += alpha · Σ a · decode(B[stretch, n])
 */
#ifndef NBL_GEMV_KERNELS_H
#define NBL_GEMV_KERNELS_H

#include "ops/gemv/cpu/gemv.h"
#include "quant/quant.h"

enum {
    NBL_GEMV_GROUP = 128,
    NBL_GEMV_A = 8192,    /* elements of A in a stretch, all rows */
    NBL_GEMV_LONG = 4096, /* the longest stretch */
    NBL_GEMV_UNITS = NBL_GEMV_LONG / 32,
    NBL_GEMV_PIECE = 512 /* elements of B that are decoded at a time where there is no kernel */
};

typedef struct nbl__gemv_job {
    nbl_isa isa;
    const nbl__term *term;
    int64_t m;
    int rows;             /* m rounded up to 1, 2, 4 or 8; rows past m are zero */
    int64_t first, count; /* the stretch */
    const float *a;       /* [groups][rows][128], kernel order, zero past `count`, aligned to 64 */
    int64_t n_begin, n_end;
    float *tile;
    int64_t tile_stride;
} nbl__gemv_job;

typedef struct nbl__gemv_plan {
    void (*run)(const nbl__gemv_job *job);
    void (*turn)(const float *from, float *to); /* 128 elements to kernel order; NULL: as they are */
} nbl__gemv_plan;

/* Choose a kernel for B seen with k along its rows in memory; false: this level has none for it. */
bool nbl__gemv_plan_avx2(const nbl__term *term, nbl__gemv_plan *plan);
bool nbl__gemv_plan_avx512(const nbl__term *term, nbl__gemv_plan *plan);

/* sums[i] += Σ a[:, i, :] · w, count a multiple of 128. */
typedef void (*nbl__gemv_dot)(int rows, const float *a, const float *w, int64_t count, float *sums);
void nbl__gemv_dot_avx2(int rows, const float *a, const float *w, int64_t count, float *sums);
void nbl__gemv_dot_avx512(int rows, const float *a, const float *w, int64_t count, float *sums);

/* acc[i, c] += Σ_{j < 4} a[i, j] · w[j, c], c < NBL_GEMV_PIECE, which is also the stride of acc and w; that of
 * a is NBL_GEMV_GROUP. */
typedef void (*nbl__gemv_axpy)(int rows, const float *a, const float *w, float *acc);
void nbl__gemv_axpy_avx2(int rows, const float *a, const float *w, float *acc);
void nbl__gemv_axpy_avx512(int rows, const float *a, const float *w, float *acc);

/* ---- 4-bit weights: codes and the scales of their blocks ---- */

/* Scales are handed out per unit of 32 elements (blocks of 32) or 64 (all others). */
static inline int nbl__gemv_unit(const nbl_weight *w)
{
    return w->format == NBL_FORMAT_MXFP4 || w->block == 32 ? 32 : 64;
}

static inline bool nbl__gemv_fourbit(const nbl_weight *w)
{
    return w->format == NBL_FORMAT_NF4 || w->format == NBL_FORMAT_FP4 || w->format == NBL_FORMAT_MXFP4;
}

static inline const float *nbl__gemv_table(const nbl_weight *w)
{
    return w->format == NBL_FORMAT_NF4   ? nbl__nf4_table
           : w->format == NBL_FORMAT_FP4 ? nbl__fp4_table
                                         : nbl__mxfp4_table;
}

/* The scales of the units of `count` elements from `flat` on, which starts a unit; in place where they
 * lie in memory so, else in `room` [NBL_GEMV_UNITS]. */
const float *nbl__gemv_scales(const nbl_weight *w, int64_t flat, int64_t count, float *room);

#define NBL_INVERSE_127 0x1.020408p-7f /* as int8.c decodes: code · scale · this, each rounded */

static inline int64_t nbl__gemv_columns(const nbl_weight *w)
{
    return w->shape[w->rank - 1];
}

#endif
