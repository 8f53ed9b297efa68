/* gemm_int8_cuda.h - i32 = i8 · i8ᵀ for any size and alignment. cublaslt.c calls it where cuBLASLt
 * cannot. */
#ifndef NBL_GEMM_INT8_CUDA_H
#define NBL_GEMM_INT8_CUDA_H

#include "device/cuda/cuda.h"

nbl_status nbl__cuda_gemm_int8_plain(const nbl__call *call, int64_t m, int64_t n, int64_t k, const int8_t *a,
                                     const int8_t *b, int32_t *c);

#endif
