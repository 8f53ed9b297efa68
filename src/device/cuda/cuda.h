/* cuda.h - a CUDA device as its operators use it: one stream, its memory, and the libraries.
 *
 * nbl_context_use_cuda makes it the device of a context (device/device.h). Its operators are those
 * of cuda_impls.h. Every tensor and weight that they get is in device memory; the structs
 * themselves are in host memory. An operator enqueues on the context's stream and returns. It does
 * not wait, allocates nothing, and calls nothing that stream capture forbids. If a kernel finds
 * invalid data (an id outside the vocabulary), it stores a fault in host memory. The next wait
 * reports it.
 *
 * nbl_context_use_cuda_stream makes a device without a stream of its own (cuda_borrowed.c):
 *
 *     its own stream       workspace of the device    faults at waits            models and operators
 *     a borrowed stream    workspace in scratch       faults at the next call    operators only
 *
 * Builds without CUDA have cuda_absent.c and nothing else of this folder. */
#ifndef NBL_CUDA_H
#define NBL_CUDA_H

#include "device/cuda/cuda_impls.h"
#include "device/device.h"

/* The kinds of invalid data that a kernel can find. */
typedef enum nbl__cuda_fault_kind {
    NBL_CUDA_FAULT_NONE,
    NBL_CUDA_FAULT_ID,     /* ids[index] = value is not in the vocabulary */
    NBL_CUDA_FAULT_LABEL,  /* labels[index] = value is not in the vocabulary */
    NBL_CUDA_FAULT_ROW,    /* rows[index] = value is out of range */
    NBL_CUDA_FAULT_LENGTH, /* lengths[index] = value is out of range */
    /* cu_seqlens[index] = value decreases, or the list does not run from 0 to T. */
    NBL_CUDA_FAULT_SEQUENCES,
    NBL_CUDA_FAULT_EXPERT /* experts[index] = value is none */
} nbl__cuda_fault_kind;

/* The first fault since the last report. In pinned host memory that kernels write (report_fault in
 * kernel.cuh): first the kind, then the rest. A host that has not waited may see the kind alone. */
typedef struct nbl__cuda_fault {
    int kind; /* nbl__cuda_fault_kind */
    int pad;
    int64_t index, value; /* NBL_CUDA_FAULT_UNWRITTEN until a kernel stores them */
} nbl__cuda_fault;
#define NBL_CUDA_FAULT_UNWRITTEN INT64_MIN

/* Bytes that libraries get for a call. Algorithms of cuBLASLt depend on it, so it is one constant. */
enum { NBL_CUDA_WORKSPACE = 64 << 20 };

typedef struct nbl__cuda {
    nbl__device device; /* first: a pointer to it is a pointer to this struct */
    nbl_context *ctx;
    int index;
    int major, minor, multiprocessors;
    size_t memory;          /* bytes of device memory, used or not */
    void *stream;           /* cudaStream_t */
    nbl__cuda_fault *fault; /* the same address on host and device */
    /* device memory for libraries, NBL_CUDA_WORKSPACE; calls on one stream may share it. NULL: it is in the scratch */
    void *workspace;
    struct nbl__blas *blas;  /* cublaslt.h; NULL: the library was not found */
    void *tensor_map_encode; /* gemm_sm90.h; found at its first use */
    size_t allocated;        /* bytes of device memory allocated through this struct */
    void *staging;           /* pinned host memory for nbl__device.map_host */
    size_t staging_bytes;
    void **timers; /* cudaEvent_t */
    int timer_count;
    void *events[NBL_DEVICE_EVENTS]; /* cudaEvent_t */
    int64_t event_count;
    struct nbl__cuda_offload *offload; /* offload_copy_cuda.c; NULL: not opened */

    /* cuda_borrowed.c: the stream is the caller's */
    struct nbl__cuda_shared *shared; /* NULL: the stream is the context's own */
    void *caller;                    /* CUcontext of the calling thread, during a call */
    bool debug;                      /* as device.debugs, but not while the stream is captured */
    bool first_launch;               /* the call has made no dependent launch yet: nbl__cuda_overlaps */
} nbl__cuda;

/* The CUDA device of a context; NULL: it has no device, or another kind. */
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

/* Memory for libraries, aligned to 256 bytes, during a call of a row that is WORK in cuda_impls.h. */
static inline void *nbl__call_workspace(const nbl__call *call)
{
    return call->workspace ? call->workspace : nbl__call_cuda(call)->workspace;
}

/* May the next kernel, which reads weights before it waits for its predecessor, start before that has ended
 * (dependent_launch.cuh)? The kernels of this library write no weights. On a borrowed stream the predecessor may be
 * somebody else's and may write them. So the first such kernel of a call starts after everything before it. */
static inline bool nbl__cuda_overlaps(nbl_context *ctx)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda == NULL || !cuda->first_launch) return true;
    cuda->first_launch = false;
    return false;
}

/* Functions and properties that all CUDA devices share. nbl_context_use_cuda copies it and adds the
 * rest. */
extern const nbl__device nbl__cuda_template;

/* ---- cuda_device.c, for cuda_borrowed.c ---- */

/* Fails with the runtime's message. Out of memory has its own status. */
nbl_status nbl__cuda_failed(nbl__cuda *cuda, const char *what, int error);
#define NBL_CUDA_TRY(cuda, what, call)                                                                       \
    do {                                                                                                     \
        cudaError_t error_ = (call);                                                                         \
        if (error_ != cudaSuccess) return nbl__cuda_failed((cuda), (what), (int)error_);                     \
    } while (0)
/* Sets the device's properties, after its check. The device is current. */
nbl_status nbl__cuda_describe(nbl__cuda *cuda);
void nbl__cuda_clear_fault(nbl__cuda_fault *fault);
/* Fails with the fault that a kernel stored, and clears it. */
nbl_status nbl__cuda_report(nbl__cuda *cuda);

/* linear_cuda.c: nbl__device.saved_bytes. */
size_t nbl__cuda_saved_bytes(const nbl__impl *impl, const void *arguments);

/* NBL_OK if the kernels run on this device: compute capability 8.0 or later. */
nbl_status nbl__cuda_supports(nbl_context *ctx, int index, const nbl_cuda_device *device);

/* offload_copy_cuda.c: opens and closes the streams of offloaded values. */
nbl_status nbl__cuda_offload_open(nbl_context *ctx);
void nbl__cuda_offload_close(nbl__cuda *cuda);

#endif
