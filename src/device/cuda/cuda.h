/* cuda.h - a CUDA device as its operators use it: one stream, its memory, and the libraries beside it.
 *
 * nbl_context_use_cuda makes it the device of a context (device/device.h). Its operators are those of cuda_impls.h: every
 * tensor and weight that they get lies in the device's memory (the structs themselves are the host's). They enqueue on
 * the context's stream and return: no waiting, no allocation, and nothing that a stream capture forbids. What only the
 * data can tell (an id outside the vocabulary) is written down by the kernel, and the next wait reports it.
 *
 * Builds without CUDA have cuda_absent.c and nothing else of this folder. */
#ifndef NBL_CUDA_H
#define NBL_CUDA_H

#include "device/cuda/cuda_impls.h"
#include "device/device.h"

/* What a kernel found wrong in its data, the first one to do so. In host memory that kernels can write. */
typedef enum nbl__cuda_fault_kind {
    NBL_CUDA_FAULT_NONE,
    NBL_CUDA_FAULT_ID,       /* `value` is not in the vocabulary; at `place` */
    NBL_CUDA_FAULT_LABEL,    /* as a label */
    NBL_CUDA_FAULT_ROW,      /* a row number that is out of range */
    NBL_CUDA_FAULT_LENGTH,   /* a length of a cache that is out of range */
    NBL_CUDA_FAULT_SEQUENCES /* cu_seqlens falls, or does not run from 0 to the number of tokens */
} nbl__cuda_fault_kind;

typedef struct nbl__cuda_fault {
    int kind; /* nbl__cuda_fault_kind */
    int pad;
    int64_t index, value;
} nbl__cuda_fault;

typedef struct nbl__cuda {
    nbl__device device; /* first: a pointer to it is a pointer to this struct */
    nbl_context *ctx;
    int index;
    int major, minor, multiprocessors;
    size_t memory;          /* of the device, all of it */
    void *stream;           /* cudaStream_t */
    nbl__cuda_fault *fault; /* the same address on host and device */
    void *workspace;        /* of the device, for libraries; calls on one stream may share it */
    size_t workspace_bytes;
    struct nbl__blas *blas;  /* cublaslt.h; NULL: its library was not found */
    void *tensor_map_encode; /* gemm_sm90.h; found at its first use */
    size_t allocated;        /* bytes of the device's memory that live */
    void *staging;           /* pinned host memory for nbl__device.lend */
    size_t staging_bytes;
    void **timers; /* cudaEvent_t */
    int timer_count;
    void *events[NBL_DEVICE_EVENTS]; /* cudaEvent_t */
    int64_t event_count;
    struct nbl__cuda_offload *offload; /* offload_copy_cuda.c; NULL: not opened */
} nbl__cuda;

/* The device of a context; NULL: it is not a CUDA device. */
static inline nbl__cuda *nbl__cuda_of(const nbl_context *ctx)
{
    nbl__device *device = nbl__context_device(ctx);
    return device && device->impls == nbl__cuda_impls ? (nbl__cuda *)(void *)device : NULL;
}
/* The device that a call of a CUDA implementation runs on. */
static inline nbl__cuda *nbl__call_cuda(const nbl__call *call)
{
    return (nbl__cuda *)(void *)call->device;
}

/* Functions and facts of every CUDA device; nbl_context_use_cuda adds those of one. */
extern const nbl__device nbl__cuda_template;

/* linear_cuda.c: nbl__device.kept. */
size_t nbl__cuda_kept(const nbl__impl *impl, const void *arguments);

/* Is it of a kind that the kernels are made for? */
nbl_status nbl__cuda_supports(nbl_context *ctx, int index, const nbl_cuda_device *device);

/* offload_copy_cuda.c: nbl__device.offload_open, and its end. */
nbl_status nbl__cuda_offload_open(nbl_context *ctx);
void nbl__cuda_offload_close(nbl__cuda *cuda);

#endif
