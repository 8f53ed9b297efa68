/* hopper.h - our own matrix product for Hopper (compute capability 9.0): several products summed in one K loop.
 *
 *     c[m, n] = Σ_i a_i[m, k_i] · b_i + beta · old
 *
 * All b_i are stored either as [n, k_i] (`b_turned`, as weights are: y = x·Wᵀ + t·Bᵀ) or as [k_i, n] (the same weights
 * seen from behind: dx = dy·W + u·A); nothing is transposed in memory. A library's product does one source per pass, so
 * that every adapter and every further gradient costs a reading and a writing of c and one more rounding; here a source
 * of rank r costs its arithmetic (r in steps of 16), and c is rounded once. Sums are f32, in the order of the
 * sources and of k: the same bits each time.
 *
 *     gated:            c = act(Σ a_i · b_i) · (Σ a_i · b2_i),   both sums kept in gate and up where those are given
 *     gated, backward:  with dh = Σ a_i · b_i:   dgate = dh · up · act'(gate),   dup = dh · act(gate),
 *                       and c = act(gate) · up once more where it is given
 *
 *     in parts:         results of their own columns, sources and memory, which share their rows, in one go
 *
 * What is between the products happens in the registers that hold the sums, in f32. b or b2 may be NULL in a source that
 * adds to one of the two sums only (it costs as much as if it were there).
 *
 * Row-major, with leading dimensions. Any m and k, n a multiple of 8; what the copy engine needs is that every pointer is
 * aligned to 16 bytes and every leading dimension is a whole number of 16 bytes: ask nbl__hopper_can and use blas.h
 * otherwise. Enqueues on the device's stream; can be captured. The memory of results overlaps no input's, save that old
 * may be c. */
#ifndef NBL_CUDA_HOPPER_H
#define NBL_CUDA_HOPPER_H

#include "ops/act.h"
#include "ops/cuda/cuda.h"

enum { NBL_HOPPER_SOURCES = 8, NBL_HOPPER_PARTS = 4 };

typedef struct nbl__hopper_source {
    const void *a, *b, *b2; /* b2: of gated ones */
    int64_t k;              /* 0: adds nothing */
    int64_t lda, ldb;       /* elements from row to row as they are stored (ldb: of b2 too); 0: dense */
} nbl__hopper_source;

typedef enum nbl__hopper_kind {
    NBL_HOPPER_PLAIN,
    NBL_HOPPER_GATED,         /* b_turned */
    NBL_HOPPER_GATED_BACKWARD /* not b_turned */
} nbl__hopper_kind;

/* Its sources follow those of the part before. */
typedef struct nbl__hopper_part {
    void *c; /* dense */
    int64_t n;
    int count;
} nbl__hopper_part;

typedef struct nbl__hopper {
    nbl__hopper_kind kind;
    nbl_dtype dtype; /* of a, b: bf16 or f16 */
    nbl_dtype
        c_dtype; /* of c and old: the same, or f32; gated: of gate and up (c, dgate and dup have `dtype`) */
    int64_t m, n;
    int count;
    nbl__hopper_source sources[NBL_HOPPER_SOURCES];
    bool b_turned;
    void *c;
    int64_t ldc;     /* 0: dense; gate, up and their gradients are */
    float beta;      /* plain only */
    const void *old; /* what beta multiplies; NULL: c itself */
    int64_t ld_old;  /* 0: dense */
    nbl__act act;
    void *gate, *up;   /* gated: results, NULL: not kept; backward: inputs */
    void *dgate, *dup; /* of backward; may be gate and up themselves where those have `dtype` */
    int part_count; /* 0: one, which is told by n, count, c and ldc above; else these are not read. Plain, no beta */
    nbl__hopper_part parts[NBL_HOPPER_PARTS];
    int variant; /* 0: chosen by the shape; else which one, from 1, for measurements */
    int lag;
} nbl__hopper;

/* NULL: yes; else why not. */
const char *nbl__hopper_can(const nbl__cuda *cuda, const nbl__hopper *product);
nbl_status nbl__hopper_run(const nbl__call *call, const nbl__hopper *product);
/* Name of a variant, from 1; NULL: there are no more. */
const char *nbl__hopper_variant(int variant);

#endif
