/* cuda_trace_blas.c - cuBLASLt: products are lines of the trace, and where kernels run, they are computed. See cuda_trace.h.
 *
 * Programs load cuBLASLt with dlopen. This file defines dlopen, dlsym and dlclose: the library's name gives a handle
 * of the stub, libtorch_cuda.so gives what the test has for it (trace_torch_cuda), and every other library is not found. The heuristic names four algorithms; the third has the tile of
 * 128 x 256 that src/ops/gemm/cuda/cublaslt.c prefers for some products. */
#include <cublasLt.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_trace.h"

typedef struct layout {
    uint64_t type, rows, columns, ld, batch, stride;
} layout;

typedef struct product {
    uint64_t compute, scale, transa, transb;
} product;

enum { ALGORITHMS = 4, WIDE_ALGORITHM = 2 };

static cublasStatus_t status_of(cudaError_t error)
{
    return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INTERNAL_ERROR;
}

static int live_handles;

void trace_blas_live(trace_live *live)
{
    live->handles = live_handles;
}

/* The library may allocate memory of the device here, which a capture does not allow. */
static cublasStatus_t create(cublasLtHandle_t *handle)
{
    static int one;
    *handle = (cublasLtHandle_t)(void *)&one;
    trace_lock();
    cudaError_t error = trace_call("cublasLtCreate", cudaErrorUnknown);
    if (error == cudaSuccess && trace_breaks_capture()) error = cudaErrorStreamCaptureUnsupported;
    live_handles += error == cudaSuccess;
    trace_unlock();
    return status_of(error);
}

static cublasStatus_t destroy(cublasLtHandle_t handle)
{
    (void)handle;
    trace_lock();
    live_handles--;
    trace_unlock();
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_init(cublasLtMatrixLayout_t opaque, size_t size, cudaDataType type,
                                  uint64_t rows, uint64_t columns, int64_t ld)
{
    layout it = {type, rows, columns, (uint64_t)ld, 1, 0};
    _Static_assert(sizeof it <= sizeof *opaque, "a layout");
    if (size < sizeof it || ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE;
    memset(opaque, 0, size);
    memcpy(opaque, &it, sizeof it);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t layout_set(cublasLtMatrixLayout_t opaque, cublasLtMatrixLayoutAttribute_t attribute,
                                 const void *value, size_t size)
{
    layout *it = (layout *)(void *)opaque;
    int32_t count;
    if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT && size == sizeof count) {
        memcpy(&count, value, sizeof count);
        it->batch = (uint64_t)count;
    } else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET && size == sizeof it->stride) {
        memcpy(&it->stride, value, sizeof it->stride);
    } else {
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t product_init(cublasLtMatmulDesc_t opaque, size_t size, cublasComputeType_t compute,
                                   cudaDataType_t scale)
{
    product it = {compute, scale, 0, 0};
    _Static_assert(sizeof it <= sizeof *opaque, "a product");
    if (size < sizeof it) return CUBLAS_STATUS_INVALID_VALUE;
    memset(opaque, 0, size);
    memcpy(opaque, &it, sizeof it);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t product_set(cublasLtMatmulDesc_t opaque, cublasLtMatmulDescAttributes_t attribute,
                                  const void *value, size_t size)
{
    product *it = (product *)(void *)opaque;
    int32_t operation;
    if (size != sizeof operation) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&operation, value, sizeof operation);
    if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) it->transa = (uint64_t)operation;
    else if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) it->transb = (uint64_t)operation;
    else return CUBLAS_STATUS_NOT_SUPPORTED;
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t preference_init(cublasLtMatmulPreference_t opaque, size_t size)
{
    memset(opaque, 0, size);
    return CUBLAS_STATUS_SUCCESS;
}

/* The values that count are those in the trace of a product: they are added up in the preference's first word. */
static cublasStatus_t preference_set(cublasLtMatmulPreference_t opaque,
                                     cublasLtMatmulPreferenceAttributes_t attribute, const void *value,
                                     size_t size)
{
    uint64_t sum, given = 0;
    if (size > sizeof given) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(&given, value, size);
    memcpy(&sum, opaque, sizeof sum);
    sum = (sum ^ (given + ((uint64_t)attribute << 56))) * 0x100000001b3u;
    memcpy(opaque, &sum, sizeof sum);
    return CUBLAS_STATUS_SUCCESS;
}

static cublasStatus_t heuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                                cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int wanted,
                                cublasLtMatmulHeuristicResult_t results[], int *count)
{
    (void)handle, (void)operation, (void)a, (void)b, (void)c, (void)d;
    uint64_t sum;
    memcpy(&sum, preference, sizeof sum);
    *count = wanted < ALGORITHMS ? wanted : ALGORITHMS;
    for (int i = 0; i < *count; i++) {
        memset(&results[i], 0, sizeof results[i]);
        results[i].state = CUBLAS_STATUS_SUCCESS;
        results[i].algo.data[0] = (uint64_t)i;
        results[i].algo.data[1] = sum;
    }
    return status_of(trace_call("cublasLtMatmulAlgoGetHeuristic", cudaErrorUnknown));
}

static cublasStatus_t algorithm_get(const cublasLtMatmulAlgo_t *algorithm,
                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void *value, size_t size,
                                    size_t *written)
{
    int32_t it;
    if (attribute == CUBLASLT_ALGO_CONFIG_TILE_ID)
        it = algorithm->data[0] == WIDE_ALGORITHM ? CUBLASLT_MATMUL_TILE_128x256
                                                  : CUBLASLT_MATMUL_TILE_128x128;
    else if (attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM) it = 1;
    else return CUBLAS_STATUS_NOT_SUPPORTED;
    if (size != sizeof it) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy(value, &it, sizeof it);
    *written = sizeof it;
    return CUBLAS_STATUS_SUCCESS;
}

static void write_layout(const char *name, cublasLtMatrixLayout_t opaque, const void *data)
{
    const layout *it = (const layout *)(const void *)opaque;
    trace_line("  %s %p type %d %llu x %llu ld %llu batch %llu stride %lld", name, data, (int)it->type,
               (unsigned long long)it->rows, (unsigned long long)it->columns, (unsigned long long)it->ld,
               (unsigned long long)it->batch, (long long)it->stride);
}

static trace_matrix matrix_of(cublasLtMatrixLayout_t opaque, const void *data)
{
    const layout *it = (const layout *)(const void *)opaque;
    return (trace_matrix){(cudaDataType_t)it->type,
                          (void *)(uintptr_t)data,
                          it->rows,
                          it->columns,
                          it->ld,
                          it->batch,
                          it->stride};
}

static double factor_of(uint64_t scale, uint32_t bits)
{
    float factor;
    memcpy(&factor, &bits, sizeof factor);
    return scale == CUDA_R_32I ? (double)(int32_t)bits : (double)factor;
}

static cublasStatus_t matmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t opaque, const void *alpha,
                             const void *a, cublasLtMatrixLayout_t a_layout, const void *b,
                             cublasLtMatrixLayout_t b_layout, const void *beta, const void *c,
                             cublasLtMatrixLayout_t c_layout, void *d, cublasLtMatrixLayout_t d_layout,
                             const cublasLtMatmulAlgo_t *algorithm, void *workspace, size_t workspace_bytes,
                             cudaStream_t stream)
{
    const product *it = (const product *)(const void *)opaque;
    uint32_t factors[2];
    char on[24];
    (void)handle;
    trace_lock();
    cudaError_t error = trace_call("cublasLtMatmul", cudaErrorLaunchFailure);
    if (error == cudaSuccess) {
        memcpy(&factors[0], alpha, sizeof factors[0]);
        memcpy(&factors[1], beta, sizeof factors[1]);
        trace_line("product compute %d scale %d transposed %d %d alpha %08x beta %08x algorithm %d %016llx "
                   "workspace %p %zu, %s",
                   (int)it->compute, (int)it->scale, (int)it->transa, (int)it->transb, factors[0], factors[1],
                   (int)algorithm->data[0], (unsigned long long)algorithm->data[1], workspace,
                   workspace_bytes, trace_stream(stream, on));
        write_layout("a", a_layout, a);
        write_layout("b", b_layout, b);
        write_layout("c", c_layout, c);
        write_layout("d", d_layout, d);
        trace_operation operation = {.what = TRACE_KERNEL};
        if (trace_runs()) {
            trace_product *work = calloc(1, sizeof *work);
            if (work == NULL) abort();
            *work = (trace_product){matrix_of(a_layout, a),           matrix_of(b_layout, b),
                                    matrix_of(c_layout, c),           matrix_of(d_layout, d),
                                    it->transa == CUBLAS_OP_T,        it->transb == CUBLAS_OP_T,
                                    factor_of(it->scale, factors[0]), factor_of(it->scale, factors[1])};
            operation = (trace_operation){.run = trace_multiply, .release = free, .work = work};
        }
        trace_enqueue(stream, operation);
    }
    trace_unlock();
    return status_of(error);
}

static const char *status_text(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_SUCCESS ? "success" : "failed";
}

/* ---- how the library is found ---- */

static const char library_handle[] = "libcublasLt", torch_handle[] = "libtorch_cuda.so";

void *dlopen(const char *name, int flags)
{
    (void)flags;
    if (trace_torch_cuda && name && strcmp(name, torch_handle) == 0) return (void *)(uintptr_t)torch_handle;
    bool found = name && strncmp(name, library_handle, sizeof library_handle - 1) == 0;
    return found ? (void *)(uintptr_t)library_handle : NULL;
}

int dlclose(void *library)
{
    (void)library;
    return 0;
}

void *dlsym(void *restrict library, const char *restrict name)
{
    static const struct {
        const char *name;
        void *function;
    } all[] = {{"cublasLtCreate", create},
               {"cublasLtDestroy", destroy},
               {"cublasLtMatmul", matmul},
               {"cublasLtMatmulAlgoGetHeuristic", heuristic},
               {"cublasLtMatrixLayoutInit_internal", layout_init},
               {"cublasLtMatrixLayoutSetAttribute", layout_set},
               {"cublasLtMatmulDescInit_internal", product_init},
               {"cublasLtMatmulDescSetAttribute", product_set},
               {"cublasLtMatmulPreferenceInit_internal", preference_init},
               {"cublasLtMatmulPreferenceSetAttribute", preference_set},
               {"cublasLtMatmulAlgoConfigGetAttribute", algorithm_get},
               {"cublasLtGetStatusString", status_text}};
    if (library == (void *)(uintptr_t)torch_handle) return trace_torch_cuda(name);
    if (library != (void *)(uintptr_t)library_handle) return NULL;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (strcmp(all[i].name, name) == 0) return all[i].function;
    return NULL;
}
