/* offload_copy_cuda.c - copies to and from the host beside what the device computes: a stream of their own, which waits for what was
 * enqueued before them and is waited for where it matters. Both can be captured. See ops/elementwise/offload_copy.h. */
#include "ops/elementwise/offload_copy.h"

#include "device/cuda/cuda.h"

#ifdef NIBBLE_CUDA_BUILT

#include <cuda_runtime_api.h>

struct nbl__cuda_aside {
    cudaStream_t stream;
    cudaEvent_t before, done[NBL_ASIDE_SLOTS];
};

static nbl_status check(nbl__cuda *cuda, cudaError_t error)
{
    if (error == cudaSuccess) return NBL_OK;
    cudaGetLastError();
    return nbl__fail(cuda->ctx, NBL_ERROR_INTERNAL, "CUDA device %d: copies beside the computation: %s",
                     cuda->index, cudaGetErrorString(error));
}

nbl_status nbl__cuda_aside_open(nbl__cuda *cuda)
{
    if (cuda->aside) return NBL_OK;
    struct nbl__cuda_aside *aside = nbl__alloc(cuda->ctx, sizeof *aside);
    if (aside == NULL) return NBL_ERROR_MEMORY;
    cuda->aside = aside;
    cudaError_t error = cudaSetDevice(cuda->index);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&aside->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&aside->before, cudaEventDisableTiming);
    for (int i = 0; i < NBL_ASIDE_SLOTS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&aside->done[i], cudaEventDisableTiming);
    return check(cuda, error);
}

void nbl__cuda_aside_close(nbl__cuda *cuda)
{
    struct nbl__cuda_aside *aside = cuda->aside;
    if (aside == NULL) return;
    if (aside->stream) cudaStreamDestroy(aside->stream);
    if (aside->before) cudaEventDestroy(aside->before);
    for (int i = 0; i < NBL_ASIDE_SLOTS; i++)
        if (aside->done[i]) cudaEventDestroy(aside->done[i]);
    nbl__free(cuda->ctx, aside, sizeof *aside);
    cuda->aside = NULL;
}

static nbl_status copy(nbl__cuda *cuda, int slot, void *to, const void *from, size_t bytes,
                       enum cudaMemcpyKind kind)
{
    struct nbl__cuda_aside *aside = cuda->aside;
    cudaError_t error = cudaEventRecord(aside->before, cuda->stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(aside->stream, aside->before, 0);
    if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, kind, aside->stream);
    if (error == cudaSuccess) error = cudaEventRecord(aside->done[slot], aside->stream);
    return check(cuda, error);
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__aside *a = arguments;
    nbl__cuda *cuda = call->cuda;
    switch (a->what) {
    case NBL_ASIDE_PUT:
        return copy(cuda, a->slot, a->host, a->x.data, nbl__aside_bytes(&a->x), cudaMemcpyDeviceToHost);
    case NBL_ASIDE_GET:
        return copy(cuda, a->slot, a->y.data, a->host, nbl__aside_bytes(&a->y), cudaMemcpyHostToDevice);
    default: return check(cuda, cudaStreamWaitEvent(cuda->stream, cuda->aside->done[a->slot], 0));
    }
}

extern const nbl__impl nbl__aside_cuda;
const nbl__impl nbl__aside_cuda = {"aside_cuda", NBL_ISA_SCALAR, NULL, NULL, run};

#else

nbl_status nbl__cuda_aside_open(nbl__cuda *cuda)
{
    (void)cuda;
    return NBL_ERROR_INTERNAL;
}

void nbl__cuda_aside_close(nbl__cuda *cuda)
{
    (void)cuda;
}

#endif
