/* cuda_borrowed.c - contexts on a stream of the caller's: nbl_context_use_cuda_stream, nbl_context_set_stream.
 *
 * Such a context is for the operators of a framework, which has the memory, the streams and the captured graphs. It
 * differs from a context with a stream of its own (cuda_device.c):
 *
 *     stream       a pointer, replaced between calls. It is never created, destroyed or waited for, except by grad_norm,
 *                  which waits for its result
 *     workspace    the end of the scratch of a call, for rows that use one (workspace_bytes)
 *     faults       looked for when the next call of the context begins, without a wait. That call fails and does not run
 *     device       made current during a call only. The calling thread then gets back what it had
 *     models       refused (nbl__check_models)
 *
 * Shared. Contexts of one device share the cuBLASLt handle, its table of plans, and blocks of pinned host memory with a
 * slot for each context. A lock guards them. The last context to close frees them, whichever it is. So they lie in memory
 * of the C library: a context's allocator may be gone earlier. A slot stays valid after its context is closed: a captured
 * graph that holds its address may still be replayed. Before the last context closes, all work must be done.
 *
 * Capture. Another thread may be capturing a stream when a context is opened or closed, in the mode that forbids
 * allocations to all threads. These then happen in the relaxed mode. They touch no stream, so the capture stays as it
 * is. */
#include "device/cuda/cuda.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>

#include "ops/gemm/cuda/cublaslt.h"

enum { SLOTS = 15, FAULT_BYTES = 64, SLOT_BYTES = NBL_DEVICE_MAILBOX + FAULT_BYTES };

/* Pinned host memory: a mailbox and a fault for each of SLOTS contexts. */
typedef struct block {
    struct block *next;
    uint8_t *memory;
    bool taken[SLOTS];
} block;

struct nbl__cuda_shared {
    pthread_mutex_t lock; /* of `users` and `blocks` */
    int users;            /* contexts */
    block *blocks;
    struct nbl__blas *blas;
    CUcontext primary; /* the device's */
    /* functions of the driver */
    CUresult(CUDAAPI *get_current)(CUcontext *);
    CUresult(CUDAAPI *set_current)(CUcontext);
};

/* ---- the current device ---- */

/* Makes the device current, and remembers what was. The driver's contexts are those of all CUDA runtimes of the
 * process; the runtime's own idea of a current device is not. */
static nbl_status enter(nbl__cuda *cuda)
{
    CUcontext now = NULL;
    NBL_CHECK(cuda->ctx, cuda->shared->get_current(&now) == CUDA_SUCCESS, NBL_ERROR_INTERNAL,
              "CUDA device %d: cuCtxGetCurrent failed", cuda->index);
    cuda->caller = now;
    if (now == NULL || now != cuda->shared->primary)
        NBL_CUDA_TRY(cuda, "current device", cudaSetDevice(cuda->index));
    return NBL_OK;
}

static void leave(nbl__cuda *cuda)
{
    if (cuda->caller == NULL || cuda->caller != cuda->shared->primary)
        cuda->shared->set_current(cuda->caller);
}

/* ---- around calls ---- */

/* Has a kernel stored a whole fault? */
static bool has_fault(const nbl__cuda *cuda)
{
    const volatile nbl__cuda_fault *fault = cuda->fault;
    return fault->kind != NBL_CUDA_FAULT_NONE && fault->index != NBL_CUDA_FAULT_UNWRITTEN &&
           fault->value != NBL_CUDA_FAULT_UNWRITTEN;
}

static nbl_status call_begin(nbl_context *ctx)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (has_fault(cuda)) {
        nbl_status status = nbl__cuda_report(cuda);
        return nbl__hint(ctx, status, "an earlier call on this context read it");
    }
    cuda->first_launch = true;
    cudaGetLastError(); /* what an earlier call left is not an error of this one */
    return enter(cuda);
}

static nbl_status is_captured(nbl__cuda *cuda, bool *captured)
{
    enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    NBL_CUDA_TRY(cuda, "capture", cudaStreamIsCapturing(cuda->stream, &status));
    *captured = status != cudaStreamCaptureStatusNone;
    return NBL_OK;
}

/* Waits for the stream. The device is current. */
static nbl_status synchronize(nbl__cuda *cuda, const char *what)
{
    NBL_CUDA_TRY(cuda, what, cudaStreamSynchronize(cuda->stream));
    return has_fault(cuda) ? nbl__cuda_report(cuda) : NBL_OK;
}

/* NIBBLE_CUDA_DEBUG=1: a call outside of captures is waited for. */
static nbl_status check_call(nbl__cuda *cuda, const char *what)
{
    bool captured = false;
    NBL_TRY(is_captured(cuda, &captured));
    return captured ? NBL_OK : synchronize(cuda, what);
}

static nbl_status call_end(nbl_context *ctx, const char *what, nbl_status status)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (status == NBL_OK && cuda->debug) status = check_call(cuda, what);
    leave(cuda);
    return status;
}

static size_t workspace_bytes(const nbl_context *ctx, const nbl__impl *impl)
{
    (void)ctx;
    return nbl__cuda_uses_workspace(impl) ? NBL_CUDA_WORKSPACE : 0;
}

/* ---- calls without scratch of their own: adamw, which needs none, and grad_norm, which waits ---- */

static nbl_status take_scratch(nbl__cuda *cuda, const char *op, size_t bytes, void **scratch)
{
    bool captured = false;
    NBL_TRY(is_captured(cuda, &captured));
    NBL_CHECK(cuda->ctx, !captured, NBL_ERROR_UNSUPPORTED,
              "%s waits for its result, and the stream is being captured", op);
    NBL_CUDA_TRY(cuda, op, cudaMallocAsync(scratch, bytes, cuda->stream));
    return NBL_OK;
}

/* Memory of the device's pool, in the order of the stream. */
static nbl_status borrow_scratch(nbl_context *ctx, const char *op, size_t bytes, void **scratch)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    *scratch = NULL;
    if (bytes == 0) return NBL_OK;
    NBL_TRY(enter(cuda));
    nbl_status status = take_scratch(cuda, op, bytes, scratch);
    leave(cuda);
    return status;
}

static void return_scratch(nbl_context *ctx, void *scratch, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    (void)bytes;
    if (scratch == NULL || enter(cuda) != NBL_OK) return;
    cudaFreeAsync(scratch, cuda->stream);
    leave(cuda);
}

static nbl_status wait(nbl_context *ctx, const char *what)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    NBL_TRY(enter(cuda));
    nbl_status status = synchronize(cuda, what);
    leave(cuda);
    return status;
}

/* ---- slots of pinned memory ---- */

/* The first free slot; NULL: there is none. The caller holds the lock. */
static bool *free_slot(struct nbl__cuda_shared *shared, uint8_t **memory)
{
    for (block *b = shared->blocks; b; b = b->next)
        for (int i = 0; i < SLOTS; i++)
            if (!b->taken[i]) {
                *memory = b->memory + i * SLOT_BYTES;
                return &b->taken[i];
            }
    return NULL;
}

/* Adds a block in the relaxed capture mode. The device is current. The caller holds the lock. */
static nbl_status add_block(nbl__cuda *cuda)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    void *memory = NULL;
    block *added = calloc(1, sizeof *added);
    NBL_CHECK(cuda->ctx, added, NBL_ERROR_MEMORY, "no memory for a context on a borrowed stream");
    cudaError_t error = cudaThreadExchangeStreamCaptureMode(&mode);
    if (error == cudaSuccess) {
        error = cudaHostAlloc(&memory, (size_t)SLOTS * SLOT_BYTES, cudaHostAllocMapped);
        cudaThreadExchangeStreamCaptureMode(&mode);
    }
    if (error != cudaSuccess) {
        free(added);
        return nbl__cuda_failed(cuda, "host memory", (int)error);
    }
    *added = (block){.next = cuda->shared->blocks, .memory = memory};
    cuda->shared->blocks = added;
    return NBL_OK;
}

/* Gives the context its mailbox and fault. */
static nbl_status take_slot(nbl__cuda *cuda)
{
    uint8_t *memory;
    nbl_status status = NBL_OK;
    pthread_mutex_lock(&cuda->shared->lock);
    bool *slot = free_slot(cuda->shared, &memory);
    if (slot == NULL) {
        status = enter(cuda);
        if (status == NBL_OK) {
            status = add_block(cuda);
            leave(cuda);
        }
        if (status == NBL_OK) slot = free_slot(cuda->shared, &memory);
    }
    if (slot) {
        *slot = true;
        cuda->device.mailbox = memory;
        cuda->fault = (nbl__cuda_fault *)(void *)(memory + NBL_DEVICE_MAILBOX);
        nbl__cuda_clear_fault(cuda->fault);
    }
    pthread_mutex_unlock(&cuda->shared->lock);
    return status;
}

/* The caller holds the lock. */
static void return_slot(nbl__cuda *cuda)
{
    for (block *b = cuda->shared->blocks; b && cuda->device.mailbox; b = b->next) {
        ptrdiff_t at = (uint8_t *)cuda->device.mailbox - b->memory;
        if (at >= 0 && at < SLOTS * SLOT_BYTES) b->taken[at / SLOT_BYTES] = false;
    }
}

/* ---- opening and closing ---- */

static bool find_function(const char *name, void *slot)
{
    enum cudaDriverEntryPointQueryResult found;
    void *function = NULL;
    if (cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess || function == NULL)
        return false;
    memcpy(slot, &function, sizeof function);
    return true;
}

/* Makes the device current in cuda->shared, whose functions have been found, for the first context on it. */
static nbl_status open_current(nbl__cuda *cuda)
{
    struct nbl__cuda_shared *shared = cuda->shared;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    NBL_TRY(nbl__cuda_describe(cuda));
    if (shared->get_current(&shared->primary) != CUDA_SUCCESS) shared->primary = NULL;
    NBL_CUDA_TRY(cuda, "open", cudaThreadExchangeStreamCaptureMode(&mode));
    nbl_status status = nbl__blas_open(cuda->ctx, true, &shared->blas);
    cudaThreadExchangeStreamCaptureMode(&mode);
    return status;
}

/* Opens what contexts share. After a failure close_borrowed frees what exists. */
static nbl_status open_shared(nbl__cuda *cuda)
{
    nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
    NBL_TRY(nbl_cuda_device_get(cuda->ctx, cuda->index, &device));
    NBL_TRY(nbl__cuda_supports(cuda->ctx, cuda->index, &device));
    struct nbl__cuda_shared *shared = calloc(1, sizeof *shared);
    NBL_CHECK(cuda->ctx, shared, NBL_ERROR_MEMORY, "no memory for a context on a borrowed stream");
    pthread_mutex_init(&shared->lock, NULL);
    shared->users = 1;
    cuda->shared = shared;
    NBL_CHECK(cuda->ctx,
              find_function("cuCtxGetCurrent", &shared->get_current) &&
                  find_function("cuCtxSetCurrent", &shared->set_current),
              NBL_ERROR_UNSUPPORTED,
              "CUDA device %d: the driver lacks functions that borrowing a stream needs", cuda->index);
    NBL_TRY(enter(cuda));
    nbl_status status = open_current(cuda);
    leave(cuda);
    return status;
}

static nbl_status open_borrowed(nbl__cuda *cuda, nbl__cuda *other)
{
    if (other == NULL) {
        NBL_TRY(open_shared(cuda));
    } else {
        pthread_mutex_lock(&other->shared->lock);
        other->shared->users++;
        pthread_mutex_unlock(&other->shared->lock);
        cuda->shared = other->shared;
        cuda->major = other->major;
        cuda->minor = other->minor;
        cuda->multiprocessors = other->multiprocessors;
        cuda->memory = other->memory;
    }
    cuda->blas = cuda->shared->blas;
    return take_slot(cuda);
}

/* Frees what the contexts shared. Where the device cannot be made current, its objects are lost with it. */
static void close_shared(nbl__cuda *cuda)
{
    struct nbl__cuda_shared *shared = cuda->shared;
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    bool current = shared->get_current && shared->set_current && enter(cuda) == NBL_OK;
    if (current) cudaThreadExchangeStreamCaptureMode(&mode);
    if (shared->blas) nbl__blas_close(shared->blas);
    for (block *b = shared->blocks, *next; b; b = next) {
        next = b->next;
        cudaFreeHost(b->memory);
        free(b);
    }
    if (current) cudaThreadExchangeStreamCaptureMode(&mode);
    if (current) leave(cuda);
    pthread_mutex_destroy(&shared->lock);
    free(shared);
}

/* Works for a device that is partly open. Waits for nothing. */
static void close_borrowed(nbl__device *device)
{
    nbl__cuda *cuda = (nbl__cuda *)(void *)device;
    if (cuda->shared) {
        pthread_mutex_lock(&cuda->shared->lock);
        return_slot(cuda);
        bool last = --cuda->shared->users == 0;
        pthread_mutex_unlock(&cuda->shared->lock);
        if (last) close_shared(cuda);
    }
    nbl__free(cuda->ctx, cuda, sizeof *cuda);
}

nbl_status nbl_context_use_cuda_stream(nbl_context *ctx, int index, void *stream, nbl_context *share)
{
    NBL_CHECK(ctx, nbl__context_device(ctx) == NULL, NBL_ERROR_ARGUMENT,
              "the context already runs on a device");
    nbl__cuda *other = share ? nbl__cuda_of(share) : NULL;
    NBL_CHECK(ctx, share == NULL || (other && other->shared && other->index == index), NBL_ERROR_ARGUMENT,
              "the context to share with borrows no stream of CUDA device %d", index);
    nbl__cuda *cuda = nbl__alloc(ctx, sizeof *cuda);
    if (cuda == NULL) return NBL_ERROR_MEMORY;
    const char *debug = getenv("NIBBLE_CUDA_DEBUG");
    cuda->device = nbl__cuda_template;
    cuda->device.captures = false;
    cuda->device.operators_only = true;
    cuda->device.workspace_bytes = workspace_bytes;
    cuda->device.call_begin = call_begin;
    cuda->device.call_end = call_end;
    cuda->device.borrow_scratch = borrow_scratch;
    cuda->device.return_scratch = return_scratch;
    cuda->device.wait = wait;
    cuda->debug = debug && strcmp(debug, "1") == 0;
    cuda->ctx = ctx;
    cuda->index = index;
    cuda->stream = stream;
    nbl_status status = open_borrowed(cuda, other);
    if (status == NBL_OK) nbl__context_set_device(ctx, &cuda->device, close_borrowed);
    else close_borrowed(&cuda->device);
    return status;
}

nbl_status nbl_context_set_stream(nbl_context *ctx, void *stream)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    NBL_CHECK(ctx, cuda && cuda->shared, NBL_ERROR_ARGUMENT,
              "the context borrows no stream: nbl_context_use_cuda_stream makes one that does");
    cuda->stream = stream;
    return NBL_OK;
}
