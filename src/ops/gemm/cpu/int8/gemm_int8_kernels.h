/* gemm_int8_kernels.h - between gemm_int8.c and its kernels. Internal to the
 * product of int8 codes.
 *
 * Blocks: NBL_INT8_N columns and NBL_INT8_M rows of the result, NBL_INT8_K of k at
 * a time.
 *
 *   for each block of columns, of rows, of k:
 *       panels of W     [n / panel][…]: the layout that the kernel multiplies        L2 cache
 *       for each `rows` rows of A:   [rows][NBL_INT8_K], zero past the end           L1 cache
 *           for each panel of W:     sums[rows][panel] (+)= A · panel                registers */
#ifndef NBL_GEMM_INT8_KERNELS_H
#define NBL_GEMM_INT8_KERNELS_H

#include "ops/gemm/cpu/int8/gemm_int8.h"

enum {
    NBL_INT8_N = 192,
    NBL_INT8_M = 384,
    NBL_INT8_K = 1024,
    NBL_INT8_SMALL_BATCH = 12 /* max of nbl__int8_kernel.small */
};

/* The functions and sizes of an instruction set. */
typedef struct nbl__int8_kernel {
    int rows, panel; /* rows and columns of the result that stay in registers */
    int code_bytes;  /* bytes of a code in panels of W, and of A */
    int step;        /* k is padded with zeros to a multiple of it */
    int small;       /* up to this many rows, W is read as stored: packing costs more than it saves */
    int offset; /* added to the codes of W in panels; the sums are then too large by offset · Σ_k A[i, k] */
    void (*begin)(void), (*end)(void); /* called around all calls of `multiply`; or NULL */
    /* Columns [0, columns) of W, `count` codes each, `stride` apart, to one panel; zeros elsewhere. */
    void (*pack_w)(const int8_t *w, int64_t stride, int64_t columns, int64_t count, void *panel);
    /* `count` codes to `to`, with zeros up to a multiple of step; returns their sum where offset is not 0. */
    int32_t (*pack_a)(const int8_t *a, int64_t count, void *to);
    /* sums[rows][panel] = or += A · panel over `count` codes, a multiple of step. */
    void (*multiply)(const void *a, const void *w, int64_t count, bool add, int32_t *sums);
    /* tile[i] += (sums[i] - extra) · (row_factor · scales[i]), each step rounded. */
    void (*finish)(const int32_t *sums, int32_t extra, float row_factor, const float *scales, int64_t count,
                   float *tile);
    /* Small batch: sums[i] = Σ_k a[i, k] · w[k], for 1 … 4 rows. a_sums[i] = Σ_k
     * a[i, k]. */
    void (*dot)(int rows, const int8_t *a, int64_t stride, const int8_t *w, int64_t count,
                const int32_t *a_sums, int32_t *sums);
} nbl__int8_kernel;

#if defined(__x86_64__)
extern const nbl__int8_kernel nbl__int8_avx2, nbl__int8_avx512, nbl__int8_amx;
#endif

#endif
