/* dequantize_cuda.h - packed weights to f32, f16 or bf16 on the GPU, bit for bit as nbl_dequantize on the CPU. */
#ifndef NBL_DEQUANTIZE_CUDA_H
#define NBL_DEQUANTIZE_CUDA_H

#include "nibble.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows [row_begin, row_end) of a weight in nf4, fp4, int8 or mxfp4 to `out`, [rows, columns] or, with `transpose`,
 * [columns, rows]. The pointers inside `weight` and `out` are the device's, the structure itself is the host's and
 * may go away after the call. `stream` is a cudaStream_t of the current device; NULL: its default stream.
 *
 * Allocates nothing, does not wait, can be captured in a graph. What the launch itself refuses is reported; faults of
 * the kernel appear, as always in CUDA, at a later call.
 *
 * Fastest (memory bandwidth) with `data` and `out` aligned to 16 bytes and a first element that is a multiple of 32;
 * int8 and transposed results also need columns (and, transposed, rows) in multiples of 8. Other shapes are right,
 * and slower. */
nbl_status nbl__cuda_dequantize(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin,
                                int64_t row_end, nbl_dtype dtype, int transpose, void *out, void *stream);

#ifdef __cplusplus
}
#endif
#endif
