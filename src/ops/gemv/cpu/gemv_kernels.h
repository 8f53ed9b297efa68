/* gemv_kernels.h - between gemv.c and its kernels. Internal to gemv.
 *
 *   for each span of k (some thousand elements):
 *       a = A[:, span] as f32, in kernel order                     16 to 32 KB: L1 cache
 *       for each column n:   tile[:, n] += alpha · Σ a · dequantize(B[span, n])
 *
 * Kernel order: a kernel that unpacks codes finds consecutive weights in scattered
 * lanes. Instead of moving the lanes of every weight, A is permuted once per span
 * so that its elements meet their weights. */
#ifndef NBL_GEMV_KERNELS_H
#define NBL_GEMV_KERNELS_H

#include "ops/gemv/cpu/gemv.h"
#include "quant/quant.h"

enum {
    NBL_GEMV_GROUP = 128,
    NBL_GEMV_A = 8192,    /* max elements of A in a span, all rows */
    NBL_GEMV_LONG = 4096, /* max length of a span */
    NBL_GEMV_UNITS = NBL_GEMV_LONG / 32,
    NBL_GEMV_PIECE = 512 /* elements of B that are dequantized at a time where there is no kernel */
};

/* One span of k. */
typedef struct nbl__gemv_job {
    nbl_isa isa;
    const nbl__gemm_term *term;
    int64_t m;
    int rows;             /* m rounded up to 1, 2, 4 or 8; rows past m are zero */
    int64_t first, count; /* the span: k from `first` on */
    const float *a;       /* [groups][rows][128], kernel order, zero past `count`, aligned to 64 */
    int64_t n_begin, n_end;
    float *tile;
    int64_t tile_stride;
} nbl__gemv_job;

/* A kernel, and the order in which it wants A. */
typedef struct nbl__gemv_plan {
    void (*run)(const nbl__gemv_job *job);
    void (*permute)(const float *from, float *to); /* 128 elements to kernel order; NULL: unchanged */
} nbl__gemv_plan;

/* Chooses a kernel for a B whose memory rows run along k. False: this instruction
 * set has none for it. */
bool nbl__gemv_plan_avx2(const nbl__gemm_term *term, nbl__gemv_plan *plan);
bool nbl__gemv_plan_avx512(const nbl__gemm_term *term, nbl__gemv_plan *plan);

/* sums[i] += Σ a[:, i, :] · w. count is a multiple of 128; a is in groups as
 * nbl__gemv_job.a. */
typedef void (*nbl__gemv_dot)(int rows, const float *a, const float *w, int64_t count, float *sums);
/* The same per instruction set. */
void nbl__gemv_dot_avx2(int rows, const float *a, const float *w, int64_t count, float *sums);
void nbl__gemv_dot_avx512(int rows, const float *a, const float *w, int64_t count, float *sums);

/* acc[i, c] += Σ_{j < 4} a[i, j] · w[j, c], for c < NBL_GEMV_PIECE. Row strides:
 * NBL_GEMV_PIECE for acc and w, NBL_GEMV_GROUP for a. */
typedef void (*nbl__gemv_axpy)(int rows, const float *a, const float *w, float *acc);
void nbl__gemv_axpy_avx2(int rows, const float *a, const float *w, float *acc);
void nbl__gemv_axpy_avx512(int rows, const float *a, const float *w, float *acc);

/* ---- 4-bit weights: codes and the scales of their blocks ---- */

/* Elements per scale as kernels read it: 32 for blocks of 32, 64 for longer
 * blocks. */
static inline int nbl__gemv_unit(const nbl_weight *w)
{
    return w->format == NBL_FORMAT_MXFP4 || w->block == 32 ? 32 : 64;
}

/* NF4, FP4 or MXFP4? */
static inline bool nbl__gemv_fourbit(const nbl_weight *w)
{
    return w->format == NBL_FORMAT_NF4 || w->format == NBL_FORMAT_FP4 || w->format == NBL_FORMAT_MXFP4;
}

/* The 16 values of a four-bit format. */
static inline const float *nbl__gemv_table(const nbl_weight *w)
{
    return w->format == NBL_FORMAT_NF4   ? nbl__nf4_table
           : w->format == NBL_FORMAT_FP4 ? nbl__fp4_table
                                         : nbl__mxfp4_table;
}

/* The scale of each unit of `count` elements from element `flat` on, which starts
 * a unit. Returns the weight's own scales where they have one per unit, else
 * `room` [NBL_GEMV_UNITS]. */
const float *nbl__gemv_scales(const nbl_weight *w, int64_t flat, int64_t count, float *room);

#define NBL_INVERSE_127 0x1.020408p-7f /* as int8.c dequantizes: code · scale · this, each rounded */

/* The length of a weight's rows. */
static inline int64_t nbl__gemv_columns(const nbl_weight *w)
{
    return w->shape[w->rank - 1];
}

/* ---- for gemv_avx2.c, gemv_avx512.c and gemv.inc ---- */

#define FETCH(pointer) _mm_prefetch((const char *)(pointer), _MM_HINT_T0)
/* Independent sums per row, so that additions do not wait for each other. */
#define CHAINS(rows) ((rows) == 1 ? 4 : (rows) == 8 ? 1 : 2)

/* What int8 and dense weights are made of. */
typedef enum source {
    SOURCE_F32,
    SOURCE_F16,
    SOURCE_BF16,
    SOURCE_INT8,     /* the code; the row's scale multiplies the sum */
    SOURCE_INT8_F16, /* the value, rounded */
    SOURCE_INT8_BF16
} source;

#endif
