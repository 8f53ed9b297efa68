/* gemv_cuda.h - products of 1 to 8 rows with a packed weight on the device: generation. */
#ifndef NBL_GEMV_CUDA_H
#define NBL_GEMV_CUDA_H

#include <stdbool.h>

#include "nibble.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { NBL_MAX_CUDA_GEMV_ROWS = 8 };

/* y = x·Wᵀ. x is [m, in] with m from 1 to NBL_MAX_CUDA_GEMV_ROWS, W [out, in] in nf4, fp4 (flat or nested
 * scales) or int8 (its dequantized values), y [m, out]. x and y have `dtype`: f32, f16 or bf16. Sums are f32
 * in a fixed order: the same input gives the same bits. Pointers, stream and errors are as in
 * dequantize_cuda.h.
 *
 * f32 computes in f32. Its fast path sums up to 64 products before it multiplies them with their scale. f16 and bf16 use
 * the tensor cores: 4-bit table values are rounded to that dtype once, scales stay f32, int8 codes are exact.
 *
 *     path      needs
 *     fast      `in` and block multiples of 64; x and `data` aligned to 16 bytes, nested `scale_codes` to 4
 *     fastest   also `in` a multiple of 256 (int8: 128), `out` of 16, block 64, flat scales aligned to 16
 *     general   everything else: as f32, of the dequantized weight */
nbl_status nbl__cuda_gemv(nbl_context *ctx, const nbl_weight *weight, nbl_dtype dtype, int64_t m,
                          const void *x, void *y, void *stream);

/* One row of x times up to NBL_MAX_GEMV_ONE 4-bit weights in one launch (gemv_one_sm90.cu): y_i = x·W_iᵀ +
 * b_i. With `act` (nbl__act; -1: none) and two weights: y_0 = act(x·W_0ᵀ + b_0)·(x·W_1ᵀ + b_1), rounded once.
 * Numerics as above. A dependent launch (ops/common/dependent_launch.cuh). */
enum { NBL_MAX_GEMV_ONE = 4 };
typedef struct nbl__gemv_part {
    const nbl_weight *weight; /* [out, in] */
    nbl_tensor bias;          /* may be absent */
    void *y;
} nbl__gemv_part;
typedef struct nbl__gemv_one {
    nbl_dtype dtype; /* of x and y */
    const void *x;
    int count, act;
    /* NULL, or an rmsnorm of one row whose y is x: it is computed here, with residual_out. */
    const nbl_rmsnorm *norm;
    nbl__gemv_part parts[NBL_MAX_GEMV_ONE];
} nbl__gemv_one;
/* Needs compute capability 9.0, a 16-bit dtype, `in` a multiple of 256, `out` of 16 (gated: 8), blocks of 64, the
 * alignments of the fast path above, and one format and kind of scales for all weights. A norm has up to 4096 columns,
 * and its results do not overlap its inputs. */
bool nbl__cuda_gemv_one_takes(const nbl__gemv_one *g);
nbl_status nbl__cuda_gemv_one(nbl_context *ctx, const nbl__gemv_one *g, void *stream);

/* One row of x times a dense weight in its dtype (gemv_dense.cu): y = x·Wᵀ + b, with f32 sums in a fixed order. The bias
 * may be absent. A row of W is a multiple of 16 bytes, up to 48 KiB; x and data are aligned to 16 bytes. A dependent
 * launch. */
bool nbl__cuda_gemv_dense_takes(const nbl_weight *w, nbl_dtype dtype, const void *x);
nbl_status nbl__cuda_gemv_dense(nbl_context *ctx, const nbl_weight *w, const void *x, const nbl_tensor *bias,
                                void *y, void *stream);

#ifdef __cplusplus
}
#endif
#endif
