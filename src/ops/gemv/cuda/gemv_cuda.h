/* gemv_cuda.h - few rows times a packed weight on the GPU: what decoding a token needs. */
#ifndef NBL_CUDA_GEMV_H
#define NBL_CUDA_GEMV_H

#include <stdbool.h>

#include "nibble.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { NBL__CUDA_GEMV_ROWS = 8 };

/* y = x·Wᵀ: x [m, in], m from 1 to NBL__CUDA_GEMV_ROWS, W [out, in] in nf4, fp4 (flat or nested scales) or int8 (its
 * decoded values), y [m, out]; x and y in `dtype`: f32, f16 or bf16. Sums are f32 in a fixed order: the same
 * input gives the same bits. Pointers, stream and manners as in dequantize.h.
 *
 * f32 is all f32; where it is fast, sums of up to 64 products are made before they are multiplied with their scale. f16 and
 * bf16 go through the tensor cores: 4-bit table values are rounded to that dtype, once, scales stay f32; int8 codes
 * are exact. Fast means: `in` and block in multiples of 64, x and `data` aligned to 16 bytes, nested `scale_codes` to 4;
 * faster still with `in` a multiple of 256 (int8: 128), `out` of 16, block 64 and flat scales aligned to 16. Else sums are
 * made as in f32, of the decoded weight. */
nbl_status nbl__cuda_gemv(nbl_context *ctx, const nbl_weight *weight, nbl_dtype dtype, int64_t m,
                          const void *x, void *y, void *stream);

/* One row of x times up to NBL_MAX_GEMV_ONE 4-bit weights that share it, in one launch (gemv_row_sm90.cu): y_i =
 * x·W_iᵀ + b_i, or with `act` (nbl__act; -1: none) and two weights, y_0 = act(x·W_0ᵀ + b_0)·(x·W_1ᵀ + b_1), rounded
 * once. Numerics as above. Begins before what precedes it in the stream is done, and waits for it. */
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
    const nbl_rmsnorm *norm; /* NULL, or one row's: x is its y, and both are made here, with residual_out */
    nbl__gemv_part parts[NBL_MAX_GEMV_ONE];
} nbl__gemv_one;
/* A Hopper, 16-bit dtypes, `in` in multiples of 256, `out` of 16 (gated: 8), blocks of 64, the alignments that fast
 * ones need above, and all weights of one format and kind of scales. A norm up to 4096 columns, whose results
 * do not lie on its inputs. */
bool nbl__cuda_gemv_one_takes(const nbl__gemv_one *g);
nbl_status nbl__cuda_gemv_one(nbl_context *ctx, const nbl__gemv_one *g, void *stream);

/* One row of x times a dense weight in its dtype (gemv_dense.cu): y = x·Wᵀ + b, with f32 sums in a fixed order; the bias
 * may be absent. `in` in multiples of 16 bytes, up to 48 KiB; x and data aligned to 16. Begins early as the above. */
bool nbl__cuda_gemv_dense_takes(const nbl_weight *w, nbl_dtype dtype, const void *x);
nbl_status nbl__cuda_gemv_dense(nbl_context *ctx, const nbl_weight *w, const void *x, const nbl_tensor *bias,
                                void *y, void *stream);

#ifdef __cplusplus
}
#endif
#endif
