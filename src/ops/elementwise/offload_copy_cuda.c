/* offload_copy_cuda.c - offload copies on a device. See ops/elementwise/offload_copy.h.
 *
 * Copies run on a stream of their own, beside the computation. A copy waits (by an event) for what
 * was enqueued before it; a `wait` step makes the computation wait for the copy. Both can be part
 * of a captured graph. */
#include "ops/elementwise/offload_copy.h"

#include "device/cuda/cuda.h"

#include <cuda_runtime_api.h>

/* The stream of the copies. `before` is recorded anew for each copy. done[slot] marks the end of
 * the slot's last copy. */
struct nbl__cuda_offload {
    cudaStream_t stream;
    cudaEvent_t before, done[NBL_OFFLOAD_SLOTS];
};

/* Turns an error of CUDA into an error of the library. cudaGetLastError resets the error that CUDA
 * keeps. */
static nbl_status check(nbl__cuda *cuda, cudaError_t error)
{
    if (error == cudaSuccess) return NBL_OK;
    cudaGetLastError();
    return nbl__fail(cuda->ctx, NBL_ERROR_INTERNAL, "CUDA device %d: copies beside the computation: %s",
                     cuda->index, cudaGetErrorString(error));
}

nbl_status nbl__cuda_offload_open(nbl_context *ctx)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda->offload) return NBL_OK;
    struct nbl__cuda_offload *offload = nbl__alloc(ctx, sizeof *offload);
    if (offload == NULL) return NBL_ERROR_MEMORY;
    cuda->offload = offload;
    cudaError_t error = cudaSetDevice(cuda->index);
    if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&offload->stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) error = cudaEventCreateWithFlags(&offload->before, cudaEventDisableTiming);
    for (int i = 0; i < NBL_OFFLOAD_SLOTS && error == cudaSuccess; i++)
        error = cudaEventCreateWithFlags(&offload->done[i], cudaEventDisableTiming);
    return check(cuda, error);
}

void nbl__cuda_offload_close(nbl__cuda *cuda)
{
    struct nbl__cuda_offload *offload = cuda->offload;
    if (offload == NULL) return;
    if (offload->stream) cudaStreamDestroy(offload->stream);
    if (offload->before) cudaEventDestroy(offload->before);
    for (int i = 0; i < NBL_OFFLOAD_SLOTS; i++)
        if (offload->done[i]) cudaEventDestroy(offload->done[i]);
    nbl__free(cuda->ctx, offload, sizeof *offload);
    cuda->offload = NULL;
}

/* Enqueues a copy: event `before` makes it wait for the computation so far, and the slot's event
 * marks its end. */
static nbl_status copy(nbl__cuda *cuda, int slot, void *to, const void *from, size_t bytes,
                       enum cudaMemcpyKind kind)
{
    struct nbl__cuda_offload *offload = cuda->offload;
    assert(offload && slot >= 0 && slot < NBL_OFFLOAD_SLOTS);
    cudaError_t error = cudaEventRecord(offload->before, cuda->stream);
    if (error == cudaSuccess) error = cudaStreamWaitEvent(offload->stream, offload->before, 0);
    if (error == cudaSuccess) error = cudaMemcpyAsync(to, from, bytes, kind, offload->stream);
    if (error == cudaSuccess) error = cudaEventRecord(offload->done[slot], offload->stream);
    return check(cuda, error);
}

static nbl_status run(const nbl__call *call, const void *arguments)
{
    const nbl__offload_copy *a = arguments;
    nbl__cuda *cuda = nbl__call_cuda(call);
    switch (a->what) {
    case NBL_OFFLOAD_STORE:
        return copy(cuda, a->slot, a->host, a->x.data, nbl__offload_copy_bytes(&a->x),
                    cudaMemcpyDeviceToHost);
    case NBL_OFFLOAD_LOAD:
        return copy(cuda, a->slot, a->y.data, a->host, nbl__offload_copy_bytes(&a->y),
                    cudaMemcpyHostToDevice);
    default: return check(cuda, cudaStreamWaitEvent(cuda->stream, cuda->offload->done[a->slot], 0));
    }
}

const nbl__impl nbl__offload_copy_cuda = {"offload_copy_cuda", NBL_ISA_SCALAR, NULL, NULL, run};
