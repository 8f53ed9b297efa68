/* gemv.h - few rows times a packed weight on the GPU: what decoding a token needs. */
#ifndef NBL_CUDA_GEMV_H
#define NBL_CUDA_GEMV_H

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

#ifdef __cplusplus
}
#endif
#endif
