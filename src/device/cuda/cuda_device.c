/* cuda_device.c - a CUDA device opened for a context, as cuda.h has it. */
#include "device/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>

#include "ops/gemm/cuda/cublaslt.h"

#ifdef NIBBLE_CUDA_BUILT
#include <cuda_runtime_api.h>

/* ---- a device of a context ---- */

enum { WORKSPACE_BYTES = 64 << 20 };

/* What is taken of the device once all is open that opening takes: context, libraries and workspace. Other processes' memory
 * cannot be told from that; a context takes a quarter to half a GiB, so what is beyond MAX_CONTEXT is theirs. Kernels
 * that are loaded when first used, and recorded schedules, will take some MiB. */
static size_t taken_beside(nbl__cuda *cuda)
{
    enum { MAX_CONTEXT = 640 << 20, LATER = 8 << 20 };
    size_t left = nbl__cuda_left(cuda), taken = left ? cuda->memory - left : 0;
    return (taken < MAX_CONTEXT ? taken : MAX_CONTEXT) + LATER;
}

nbl__cuda *nbl__cuda_of(const nbl_context *ctx)
{
    return nbl__accelerator(ctx);
}

static nbl_status failed(nbl__cuda *cuda, const char *what, cudaError_t error)
{
    cudaGetLastError(); /* told here, not by the next launch */
    nbl_status status = error == cudaErrorMemoryAllocation ? NBL_ERROR_MEMORY : NBL_ERROR_INTERNAL;
    return nbl__fail(cuda->ctx, status, "CUDA device %d: %s: %s", cuda->index, what,
                     cudaGetErrorString(error));
}

#define CUDA_TRY(cuda, what, call)                                                                           \
    do {                                                                                                     \
        cudaError_t error_ = (call);                                                                         \
        if (error_ != cudaSuccess) return failed((cuda), (what), error_);                                    \
    } while (0)

static nbl_status open_device(nbl__cuda *cuda)
{
    struct cudaDeviceProp properties;
    nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
    cudaStream_t stream;
    void *fault, *mailbox;
    NBL_TRY(nbl_cuda_device_get(cuda->ctx, cuda->index, &device));
    NBL_TRY(nbl__cuda_supports(cuda->ctx, cuda->index, &device));
    CUDA_TRY(cuda, "open", cudaSetDevice(cuda->index));
    CUDA_TRY(cuda, "properties", cudaGetDeviceProperties(&properties, cuda->index));
    cuda->major = properties.major;
    cuda->minor = properties.minor;
    cuda->multiprocessors = properties.multiProcessorCount;
    cuda->memory = properties.totalGlobalMem;
    CUDA_TRY(cuda, "stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda->stream = stream;
    for (int i = 0; i < NBL_CUDA_EVENTS; i++) {
        cudaEvent_t event;
        CUDA_TRY(cuda, "event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        cuda->events[i] = event;
    }
    CUDA_TRY(cuda, "host memory", cudaHostAlloc(&fault, sizeof *cuda->fault, cudaHostAllocMapped));
    cuda->fault = fault;
    memset(fault, 0, sizeof *cuda->fault);
    CUDA_TRY(cuda, "host memory", cudaHostAlloc(&mailbox, NBL_CUDA_MAILBOX, cudaHostAllocMapped));
    cuda->mailbox = mailbox;
    cuda->workspace_bytes = WORKSPACE_BYTES;
    cuda->workspace = nbl__cuda_alloc(cuda, cuda->workspace_bytes);
    if (cuda->workspace == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__blas_open(cuda, &cuda->blas));
    cuda->beside = taken_beside(cuda);
    return NBL_OK;
}

static void close_device(void *device)
{
    nbl__cuda *cuda = device;
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    nbl__cuda_offload_close(cuda);
    if (cuda->blas) nbl__blas_close(cuda, cuda->blas);
    nbl__cuda_free(cuda, cuda->workspace, cuda->workspace_bytes);
    if (cuda->fault) cudaFreeHost(cuda->fault);
    if (cuda->mailbox) cudaFreeHost(cuda->mailbox);
    if (cuda->staging) cudaFreeHost(cuda->staging);
    for (int i = 0; i < NBL_CUDA_EVENTS; i++)
        if (cuda->events[i]) cudaEventDestroy(cuda->events[i]);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    nbl__free(cuda->ctx, cuda, sizeof *cuda);
}

nbl_status nbl_context_use_cuda(nbl_context *ctx, int index)
{
    NBL_CHECK(ctx, nbl__cuda_of(ctx) == NULL, NBL_ERROR_ARGUMENT, "the context already runs on a device");
    nbl__cuda *cuda = nbl__alloc(ctx, sizeof *cuda);
    if (cuda == NULL) return NBL_ERROR_MEMORY;
    const char *verbose = getenv("NIBBLE_VERBOSE"), *debug = getenv("NIBBLE_CUDA_DEBUG");
    cuda->ctx = ctx;
    cuda->index = index;
    cuda->debugs = debug && strcmp(debug, "1") == 0;
    cuda->profiles = verbose && strcmp(verbose, "profile") == 0;
    nbl_status status = open_device(cuda);
    if (status == NBL_OK) nbl__set_accelerator(ctx, cuda, close_device);
    else close_device(cuda);
    return status;
}

/* ---- memory ---- */

/* Other threads may have other devices current. */
static cudaError_t make_current(const nbl__cuda *cuda)
{
    return cudaSetDevice(cuda->index);
}

void *nbl__cuda_alloc(nbl__cuda *cuda, size_t bytes)
{
    void *memory = NULL;
    cudaError_t error = make_current(cuda);
    if (error == cudaSuccess) error = cudaMalloc(&memory, bytes ? bytes : 1);
    if (error == cudaSuccess) {
        cuda->allocated += bytes;
        return memory;
    }
    size_t free_bytes = 0, all = 0;
    cudaGetLastError();
    cudaMemGetInfo(&free_bytes, &all);
    nbl__fail(cuda->ctx, NBL_ERROR_MEMORY, "CUDA device %d: no memory for %zu bytes; %zu of %zu are free",
              cuda->index, bytes, free_bytes, all);
    return NULL;
}

void nbl__cuda_free(nbl__cuda *cuda, void *memory, size_t bytes)
{
    if (memory == NULL) return;
    make_current(cuda);
    cudaFree(memory);
    cuda->allocated -= bytes;
}

size_t nbl__cuda_left(nbl__cuda *cuda)
{
    size_t left = 0, all = 0;
    return make_current(cuda) == cudaSuccess && cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

void *nbl__cuda_alloc_host(nbl__cuda *cuda, size_t bytes)
{
    void *memory = NULL;
    cudaError_t error = make_current(cuda);
    if (error == cudaSuccess) error = cudaHostAlloc(&memory, bytes ? bytes : 1, cudaHostAllocDefault);
    if (error == cudaSuccess) return memory;
    failed(cuda, "host memory for copies", error);
    return NULL;
}

void nbl__cuda_free_host(nbl__cuda *cuda, void *memory)
{
    if (memory == NULL) return;
    make_current(cuda);
    cudaFreeHost(memory);
}

nbl_status nbl__cuda_stage(nbl__cuda *cuda, size_t bytes, void **host)
{
    if (bytes > cuda->staging_bytes) {
        nbl__cuda_free_host(cuda, cuda->staging);
        cuda->staging_bytes = 0;
        cuda->staging = nbl__cuda_alloc_host(cuda, bytes);
        if (cuda->staging == NULL) return NBL_ERROR_MEMORY;
        cuda->staging_bytes = bytes;
    }
    *host = cuda->staging;
    return NBL_OK;
}

static nbl_status copy(nbl__cuda *cuda, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                       bool wait)
{
    if (bytes == 0) return NBL_OK;
    CUDA_TRY(cuda, "copy", make_current(cuda));
    CUDA_TRY(cuda, "copy", cudaMemcpyAsync(to, from, bytes, kind, cuda->stream));
    return wait ? nbl__cuda_wait(cuda, "copy") : NBL_OK;
}

nbl_status nbl__cuda_write(nbl__cuda *cuda, void *to, const void *from, size_t bytes)
{
    return copy(cuda, to, from, bytes, cudaMemcpyHostToDevice, true);
}

nbl_status nbl__cuda_read(nbl__cuda *cuda, void *to, const void *from, size_t bytes)
{
    return copy(cuda, to, from, bytes, cudaMemcpyDeviceToHost, true);
}

nbl_status nbl__cuda_write_later(nbl__cuda *cuda, void *to, const void *from, size_t bytes)
{
    return copy(cuda, to, from, bytes, cudaMemcpyHostToDevice, false);
}

nbl_status nbl__cuda_read_later(nbl__cuda *cuda, void *to, const void *from, size_t bytes)
{
    return copy(cuda, to, from, bytes, cudaMemcpyDeviceToHost, false);
}

nbl_status nbl__cuda_fill(nbl__cuda *cuda, void *to, int byte, size_t bytes)
{
    CUDA_TRY(cuda, "fill", make_current(cuda));
    CUDA_TRY(cuda, "fill", cudaMemsetAsync(to, byte, bytes, cuda->stream));
    return NBL_OK;
}

/* ---- the stream ---- */

static nbl_status report(nbl__cuda *cuda)
{
    static const char *const texts[] = {
        [NBL_CUDA_FAULT_ID] = "ids: %" PRId64 " at place %" PRId64 " is not in the vocabulary",
        [NBL_CUDA_FAULT_LABEL] = "labels: %" PRId64 " at place %" PRId64 " is not in the vocabulary",
        [NBL_CUDA_FAULT_ROW] = "rows: %" PRId64 " at place %" PRId64 " is out of range",
        [NBL_CUDA_FAULT_LENGTH] = "lengths: %" PRId64 " at place %" PRId64 " is out of range",
        [NBL_CUDA_FAULT_SEQUENCES] = "cu_seqlens: %" PRId64 " at place %" PRId64 " is out of order"};
    nbl__cuda_fault fault = *cuda->fault;
    memset(cuda->fault, 0, sizeof *cuda->fault);
    const char *text = texts[fault.kind];
    char said[160];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(said, sizeof said, text, fault.value, fault.index);
#pragma GCC diagnostic pop
    return nbl__fail(cuda->ctx, NBL_ERROR_ARGUMENT, "%s", said);
}

nbl_status nbl__cuda_wait(nbl__cuda *cuda, const char *what)
{
    CUDA_TRY(cuda, what, make_current(cuda));
    cudaError_t error = cudaStreamSynchronize(cuda->stream);
    if (error == cudaSuccess) return cuda->fault->kind ? report(cuda) : NBL_OK;
    nbl_status status = failed(cuda, what, error);
    return cuda->debugs ? status
                        : nbl__hint(cuda->ctx, status, "NIBBLE_CUDA_DEBUG=1 names the operator that failed");
}

nbl_status nbl__cuda_event_record(nbl__cuda *cuda, int64_t *index)
{
    *index = cuda->noted + 1;
    CUDA_TRY(cuda, "note", make_current(cuda));
    CUDA_TRY(cuda, "note", cudaEventRecord(cuda->events[*index % NBL_CUDA_EVENTS], cuda->stream));
    cuda->noted = *index;
    return NBL_OK;
}

nbl_status nbl__cuda_wait_for(nbl__cuda *cuda, int64_t index, const char *what)
{
    if (index == 0) return NBL_OK;
    CUDA_TRY(cuda, what, make_current(cuda));
    CUDA_TRY(cuda, what, cudaEventSynchronize(cuda->events[index % NBL_CUDA_EVENTS])); /* or of a later one */
    return cuda->fault->kind ? report(cuda) : NBL_OK;
}

nbl_status nbl__cuda_timers_open(nbl__cuda *cuda, int count)
{
    CUDA_TRY(cuda, "marks", make_current(cuda));
    NBL_TRY(NBL_ALLOC(cuda->ctx, cuda->timers, count));
    cuda->timer_count = count;
    for (int i = 0; i < count; i++) {
        cudaEvent_t event;
        CUDA_TRY(cuda, "marks", cudaEventCreate(&event));
        cuda->timers[i] = event;
    }
    return NBL_OK;
}

void nbl__cuda_timers_close(nbl__cuda *cuda)
{
    for (int i = 0; i < cuda->timer_count; i++)
        if (cuda->timers[i]) cudaEventDestroy(cuda->timers[i]);
    nbl__free(cuda->ctx, cuda->timers, (size_t)cuda->timer_count * sizeof *cuda->timers);
    cuda->timers = NULL;
    cuda->timer_count = 0;
}

nbl_status nbl__cuda_timer_record(nbl__cuda *cuda, int timer)
{
    CUDA_TRY(cuda, "mark", cudaEventRecord(cuda->timers[timer], cuda->stream));
    return NBL_OK;
}

nbl_status nbl__cuda_timer_elapsed(nbl__cuda *cuda, int from, int to, double *milliseconds)
{
    float elapsed = 0;
    CUDA_TRY(cuda, "mark", cudaEventElapsedTime(&elapsed, cuda->timers[from], cuda->timers[to]));
    *milliseconds = (double)elapsed;
    return NBL_OK;
}

nbl_status nbl__cuda_capture_begin(nbl__cuda *cuda)
{
    CUDA_TRY(cuda, "capture", make_current(cuda));
    CUDA_TRY(cuda, "capture", cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    return NBL_OK;
}

nbl_status nbl__cuda_capture_end(nbl__cuda *cuda, bool good, void **graph)
{
    cudaGraph_t recorded = NULL;
    cudaGraphExec_t ready = NULL;
    *graph = NULL;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &recorded);
    if (error == cudaSuccess && good) error = cudaGraphInstantiate(&ready, recorded, 0);
    if (recorded) cudaGraphDestroy(recorded);
    if (!good) {
        cudaGetLastError();
        return NBL_OK; /* what went wrong was told already */
    }
    CUDA_TRY(cuda, "capture", error);
    *graph = ready;
    return NBL_OK;
}

nbl_status nbl__cuda_replay(nbl__cuda *cuda, void *graph)
{
    CUDA_TRY(cuda, "replay", make_current(cuda));
    CUDA_TRY(cuda, "replay", cudaGraphLaunch(graph, cuda->stream));
    return NBL_OK;
}

void nbl__cuda_graph_free(nbl__cuda *cuda, void *graph)
{
    if (graph == NULL) return;
    make_current(cuda);
    cudaGraphExecDestroy(graph);
}

#endif
