/* gemm_sm90.h - our own matrix product for Hopper (compute capability 9.0): several products summed in one K loop.
 *
 *     c[m, n] = Σ_i a_i[m, k_i] · b_i + beta · old
 *
 * All b_i are stored either as [n, k_i] (`b_transposed`, as weights are: y = x·Wᵀ + t·Bᵀ) or as [k_i, n] (the same weights
 * seen from behind: dx = dy·W + u·A); nothing is transposed in memory. A library's product does one source per pass, so
 * that every adapter and every further gradient costs a reading and a writing of c and one more rounding; here a source
 * of rank r costs its arithmetic (r in steps of 16), and c is rounded once. Sums are f32, in the order of the sources
 * and of k: the same bits each time.
 *
 *     gated:  c = act(Σ a_i · b_i) · (Σ a_i · b2_i),   both sums kept in gate and up where those are given
 *
 *     in parts:  results of their own columns, sources and memory, which share their rows, in one go
 *
 *     exponentials:  c = 2^(log2 e · Σ a_i · b_i - power),   power being the row's, and of every span of
 *                    NBL_GEMM_SM90_SPAN columns the sum of c before rounding: a softmax whose rows are not read again.
 *                    Where that sum would reach 2^60 the span has a power of its own, so that its largest element is
 *                    about 1
 *
 * The two sums of an element are in one thread's registers; b and b2 may be NULL in a source that adds to one of them
 * only (it costs as much as if it were there).
 *
 * Row-major, with leading dimensions. Any m and k, n a multiple of 8; what the copy engine needs is that every pointer
 * is aligned to 16 bytes and every leading dimension is a whole number of 16 bytes: ask nbl__gemm_sm90_can and use cublaslt.h
 * otherwise. Enqueues on the device's stream; can be captured. The memory of results overlaps no input's, save that old
 * may be c. */
#ifndef NBL_CUDA_GEMM_SM90_H
#define NBL_CUDA_GEMM_SM90_H

#include "ops/elementwise/act.h"
#include "device/cuda/cuda.h"

enum { NBL_GEMM_SM90_SOURCES = 8, NBL_GEMM_SM90_PARTS = 4, NBL_GEMM_SM90_SPAN = 256 };

typedef struct nbl__gemm_sm90_source {
    const void *a, *b, *b2; /* b2: of `gated` */
    int64_t k;              /* 0: adds nothing */
    int64_t lda, ldb;       /* elements from row to row as they are stored (ldb: of b2 too); 0: dense */
} nbl__gemm_sm90_source;

/* Of results that are exponentials. */
typedef struct nbl__gemm_sm90_exponentials {
    const float *powers;   /* [m]: whole numbers */
    const int32_t *labels; /* [m]: the column whose sum goes to */
    float *label_sums;     /* [m], which stays as it is where the label is no column */
    float *spans; /* [m, n / NBL_GEMM_SM90_SPAN rounded up, 2]: sum and power; NULL: no exponentials */
} nbl__gemm_sm90_exponentials;

/* Its sources follow those of the part before. */
typedef struct nbl__gemm_sm90_part {
    void *c; /* dense */
    int64_t n;
    int count;
} nbl__gemm_sm90_part;

typedef struct nbl__gemm_sm90 {
    nbl_dtype dtype;   /* of a, b: bf16 or f16 */
    nbl_dtype c_dtype; /* the same, or f32; gated: c has `dtype`, and this is that of gate and up */
    int64_t m, n;
    int count;
    nbl__gemm_sm90_source sources[NBL_GEMM_SM90_SOURCES];
    bool b_transposed;
    void *c;
    int64_t ldc;     /* 0: dense; gate and up are dense */
    float beta;      /* not gated */
    const void *old; /* what beta multiplies, of c_dtype; NULL: c itself */
    int64_t ld_old;  /* 0: dense */
    bool gated;      /* b_transposed only */
    nbl__act act;
    void *gate, *up;                          /* NULL: not kept */
    nbl__gemm_sm90_exponentials exponentials; /* bf16, b_transposed, no beta; c may be NULL: not kept */
    int part_count; /* 0: one, which n, count, c and ldc above tell; else these are not read. Plain, no beta */
    nbl__gemm_sm90_part parts[NBL_GEMM_SM90_PARTS];
    int variant; /* 0: chosen by the shape; else which one, from 1, for measurements */
} nbl__gemm_sm90;

/* NULL: yes; else why not. */
const char *nbl__gemm_sm90_can(const nbl__cuda *cuda, const nbl__gemm_sm90 *product);
nbl_status nbl__gemm_sm90_run(const nbl__call *call, const nbl__gemm_sm90 *product);
/* Name of a variant, from 1; NULL: there are no more. */
const char *nbl__gemm_sm90_variant(int variant);

#endif
