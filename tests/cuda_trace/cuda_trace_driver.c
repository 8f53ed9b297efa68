/* cuda_trace_driver.c - the functions of the driver that are asked for. See cuda_trace.h.
 *
 * A tensor map is opaque to programs. That of the stub is what it was made of: it is passed to kernels by value, so it
 * is in the trace with their arguments. */
#include <cuda.h>
#include <string.h>

#include "cuda_trace.h"

enum { MAX_RANK = 3 };

typedef struct traced_map {
    uint64_t address, sizes[MAX_RANK], strides[MAX_RANK - 1];
    uint32_t box[MAX_RANK], steps[MAX_RANK], type, rank, interleave, swizzle, promotion, fill;
} traced_map;

static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                             const cuuint64_t *sizes, const cuuint64_t *strides, const cuuint32_t *box,
                             const cuuint32_t *steps, CUtensorMapInterleave interleave,
                             CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                             CUtensorMapFloatOOBfill fill)
{
    traced_map it = {.address = (uintptr_t)address, .type = type, .rank = rank, .interleave = interleave};
    _Static_assert(sizeof it <= sizeof *map, "a traced map is a tensor map");
    if (rank == 0 || rank > MAX_RANK || (uintptr_t)address % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
    for (cuuint32_t i = 0; i < rank; i++) {
        if (sizes[i] == 0 || box[i] == 0 || box[i] > 256) return CUDA_ERROR_INVALID_VALUE;
        if (i + 1 < rank && strides[i] % 16 != 0) return CUDA_ERROR_INVALID_VALUE;
        it.sizes[i] = sizes[i];
        it.box[i] = box[i];
        it.steps[i] = steps[i];
        if (i + 1 < rank) it.strides[i] = strides[i];
    }
    it.swizzle = swizzle;
    it.promotion = promotion;
    it.fill = fill;
    memset(map, 0, sizeof *map);
    memcpy(map, &it, sizeof it);
    return CUDA_SUCCESS;
}

/* ---- the current context of a thread: that of the device, or none ---- */

static int primary;
static __thread CUcontext current;

void trace_make_current(void)
{
    current = (CUcontext)(void *)&primary;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *context)
{
    *context = current;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext context)
{
    current = context;
    return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags,
                                             enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
    cudaError_t error = trace_call("cudaGetDriverEntryPointByVersion", cudaErrorUnknown);
    *function = NULL;
    if (error != cudaSuccess) return error;
    *found = cudaDriverEntryPointSymbolNotFound;
    const struct {
        const char *name;
        void *function;
    } all[] = {{"cuTensorMapEncodeTiled", (void *)encode_tiled},
               {"cuCtxGetCurrent", (void *)cuCtxGetCurrent},
               {"cuCtxSetCurrent", (void *)cuCtxSetCurrent}};
    for (size_t i = 0; i < sizeof all / sizeof *all && *function == NULL; i++)
        if (strcmp(symbol, all[i].name) == 0) *function = all[i].function;
    if (*function) *found = cudaDriverEntryPointSuccess;
    return cudaSuccess;
}
