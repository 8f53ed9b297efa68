/* cublaslt.h - dense matrix products by cuBLASLt. The library is loaded when a device is opened.
 *
 *     c[m, n] = alpha · a[m, k] · b[k, n] + beta · c
 *
 * Matrices are row-major, with leading dimensions. `a_transposed`: a is stored as [k, m]. `b_transposed`: b is stored
 * as [n, k], the layout of weights. Sums are f32. The algorithm is chosen once per shape and kept; only algorithms with
 * deterministic results are allowed. Enqueues on the device's stream; can be captured. */
#ifndef NBL_CUBLASLT_H
#define NBL_CUBLASLT_H

#include "device/cuda/cuda.h"

typedef struct nbl__cublaslt_gemm {
    nbl_dtype dtype;   /* of a and b: f32 (no TF32), f16 or bf16 */
    nbl_dtype c_dtype; /* the same, or f32 */
    int64_t m, n, k;
    const void *a, *b;
    void *c;
    int64_t lda, ldb, ldc; /* elements from row to row as they are stored; 0: dense */
    bool a_transposed, b_transposed;
    float alpha, beta;
    int64_t batch;                        /* 0: 1 */
    int64_t a_stride, b_stride, c_stride; /* elements from one matrix of the batch to the next */
} nbl__cublaslt_gemm;

nbl_status nbl__cuda_gemm(const nbl__call *call, const nbl__cublaslt_gemm *gemm);

/* i32 c[m, n] = a[m, k]·b[n, k]ᵀ of i8, exact. */
nbl_status nbl__cuda_gemm_int8(const nbl__call *call, int64_t m, int64_t n, int64_t k, const int8_t *a,
                               const int8_t *b, int32_t *c);

/* True if the library can be loaded. */
bool nbl__blas_found(void);
/* Loads the library and creates a handle for the current device. If there is no library, *blas is NULL and the status
 * is NBL_OK. Products of several threads may use one handle and one table of plans. `shared`: it may outlive the
 * context, so its memory is that of the C library, not of the context's allocator. */
nbl_status nbl__blas_open(nbl_context *ctx, bool shared, struct nbl__blas **blas);
void nbl__blas_close(struct nbl__blas *blas);

#endif
