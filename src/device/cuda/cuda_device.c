/* cuda_device.c - a CUDA device opened for a context: the functions of device/device.h over one
 * stream. See cuda.h.
 *
 * Copies, fills and kernels run in the order of the stream. Event n is events[n %
 * NBL_DEVICE_EVENTS], and later events overwrite older ones: a wait for an overwritten event waits
 * for a later one. Functions that use the current device set it first: another context of the
 * thread may have changed it. */
#include "device/cuda/cuda.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/dequantize/dequantize_cuda.h"
#include "ops/gemm/cuda/cublaslt.h"

nbl_status nbl__cuda_failed(nbl__cuda *cuda, const char *what, int error)
{
    cudaGetLastError(); /* reported here; clears it for the next call */
    nbl_status status = error == cudaErrorMemoryAllocation ? NBL_ERROR_MEMORY : NBL_ERROR_INTERNAL;
    return nbl__fail(cuda->ctx, status, "CUDA device %d: %s: %s", cuda->index, what,
                     cudaGetErrorString((cudaError_t)error));
}

/* The current device belongs to the calling thread. */
static cudaError_t make_current(const nbl__cuda *cuda)
{
    return cudaSetDevice(cuda->index);
}

/* ---- memory ---- */

/* Device memory, aligned to 256 bytes. A failure names the bytes that were requested and those that
 * are free. */
static void *take(nbl__cuda *cuda, size_t bytes)
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

/* Frees device memory. cudaFree waits for the device. NULL is allowed. */
static void release(nbl__cuda *cuda, void *memory, size_t bytes)
{
    if (memory == NULL) return;
    assert(bytes <= cuda->allocated); /* the size that it was taken with */
    make_current(cuda);
    cudaFree(memory);
    cuda->allocated -= bytes;
}

/* Free device memory in bytes, for all processes; 0 if it cannot be read. */
static size_t free_bytes_of(const nbl__cuda *cuda)
{
    size_t left = 0, all = 0;
    return make_current(cuda) == cudaSuccess && cudaMemGetInfo(&left, &all) == cudaSuccess ? left : 0;
}

/* Enqueues a fill with a byte. */
static nbl_status fill(nbl_context *ctx, void *to, int byte, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    NBL_CUDA_TRY(cuda, "fill", make_current(cuda));
    NBL_CUDA_TRY(cuda, "fill", cudaMemsetAsync(to, byte, bytes, cuda->stream));
    return NBL_OK;
}

/* Device memory; `cleared`: zeros, in stream order. NULL: the context has the failure. */
static void *allocate(nbl_context *ctx, size_t bytes, bool cleared)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    void *memory = take(cuda, bytes);
    if (memory == NULL || !cleared || fill(ctx, memory, 0, bytes) == NBL_OK) return memory;
    release(cuda, memory, bytes);
    return NULL;
}

static void deallocate(nbl_context *ctx, void *memory, size_t bytes)
{
    release(nbl__cuda_of(ctx), memory, bytes);
}

static uint64_t bytes_free(nbl_context *ctx)
{
    return free_bytes_of(nbl__cuda_of(ctx));
}

/* Pinned host memory: copies to and from it can be asynchronous. */
static void *alloc_host(nbl_context *ctx, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    void *memory = NULL;
    cudaError_t error = make_current(cuda);
    if (error == cudaSuccess) error = cudaHostAlloc(&memory, bytes ? bytes : 1, cudaHostAllocDefault);
    if (error == cudaSuccess) return memory;
    nbl__cuda_failed(cuda, "host memory for copies", (int)error);
    return NULL;
}

static void free_host(nbl_context *ctx, void *memory, size_t bytes)
{
    (void)bytes;
    if (memory == NULL) return;
    make_current(nbl__cuda_of(ctx));
    cudaFreeHost(memory);
}

/* Lends the workspace. No owner is kept: calls on one stream may share it. */
static nbl_status borrow_scratch(nbl_context *ctx, const char *op, size_t bytes, void **scratch)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    NBL_CHECK(ctx, bytes <= NBL_CUDA_WORKSPACE, NBL_ERROR_MEMORY, "%s: %zu bytes of scratch are too many", op,
              bytes);
    *scratch = cuda->workspace;
    return NBL_OK;
}

static void return_scratch(nbl_context *ctx, void *scratch, size_t bytes)
{
    (void)ctx, (void)scratch, (void)bytes;
}

/* ---- waiting ---- */

/* The kind goes last: while it stands, kernels store nothing. */
void nbl__cuda_clear_fault(nbl__cuda_fault *fault)
{
    fault->index = fault->value = NBL_CUDA_FAULT_UNWRITTEN;
    __atomic_store_n(&fault->kind, NBL_CUDA_FAULT_NONE, __ATOMIC_RELEASE);
}

nbl_status nbl__cuda_report(nbl__cuda *cuda)
{
    static const char *const texts[] = {
        [NBL_CUDA_FAULT_ID] = "ids: %" PRId64 " at index %" PRId64 " is not in the vocabulary",
        [NBL_CUDA_FAULT_LABEL] = "labels: %" PRId64 " at index %" PRId64 " is not in the vocabulary",
        [NBL_CUDA_FAULT_ROW] = "rows: %" PRId64 " at index %" PRId64 " is out of range",
        [NBL_CUDA_FAULT_LENGTH] = "lengths: %" PRId64 " at index %" PRId64 " is out of range",
        [NBL_CUDA_FAULT_SEQUENCES] = "cu_seqlens: %" PRId64 " at index %" PRId64 " is out of order",
        [NBL_CUDA_FAULT_EXPERT] = "experts: %" PRId64 " at index %" PRId64 " is none"};
    nbl__cuda_fault fault = *cuda->fault;
    assert(fault.kind > 0 && (size_t)fault.kind < sizeof texts / sizeof *texts);
    nbl__cuda_clear_fault(cuda->fault);
    const char *text = texts[fault.kind];
    char said[160];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(said, sizeof said, text, fault.value, fault.index);
#pragma GCC diagnostic pop
    return nbl__fail(cuda->ctx, NBL_ERROR_ARGUMENT, "%s", said);
}

/* Waits for the stream, then reports an error of the device or a fault of a kernel. */
static nbl_status wait(nbl_context *ctx, const char *what)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    NBL_CUDA_TRY(cuda, what, make_current(cuda));
    cudaError_t error = cudaStreamSynchronize(cuda->stream);
    if (error == cudaSuccess) return cuda->fault->kind ? nbl__cuda_report(cuda) : NBL_OK;
    nbl_status status = nbl__cuda_failed(cuda, what, (int)error);
    return cuda->device.debugs ? status
                               : nbl__hint(ctx, status, "NIBBLE_CUDA_DEBUG=1 names the operator that failed");
}

/* Records the next event. Its number is in *event; numbers start at 1. */
static nbl_status event_record(nbl_context *ctx, int64_t *event)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    *event = cuda->event_count + 1;
    NBL_CUDA_TRY(cuda, "note", make_current(cuda));
    NBL_CUDA_TRY(cuda, "note", cudaEventRecord(cuda->events[*event % NBL_DEVICE_EVENTS], cuda->stream));
    cuda->event_count = *event;
    return NBL_OK;
}

/* Waits for an event, not for the rest of the stream. Event 0 is over already. */
static nbl_status event_wait(nbl_context *ctx, int64_t event, const char *what)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (event == 0) return NBL_OK;
    assert(event > 0 && event <= cuda->event_count); /* recorded */
    NBL_CUDA_TRY(cuda, what, make_current(cuda));
    NBL_CUDA_TRY(cuda, what,
                 cudaEventSynchronize(cuda->events[event % NBL_DEVICE_EVENTS])); /* or a later one */
    return cuda->fault->kind ? nbl__cuda_report(cuda) : NBL_OK;
}

/* ---- copies ---- */

/* Enqueues a copy in the order of the stream, and waits for it if `waits`. */
static nbl_status copy(nbl_context *ctx, void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                       bool waits)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (bytes == 0) return NBL_OK;
    NBL_CUDA_TRY(cuda, "copy", make_current(cuda));
    NBL_CUDA_TRY(cuda, "copy", cudaMemcpyAsync(to, from, bytes, kind, cuda->stream));
    return waits ? wait(ctx, "copy") : NBL_OK;
}

static nbl_status write_now(nbl_context *ctx, void *to, const void *host, size_t bytes)
{
    return copy(ctx, to, host, bytes, cudaMemcpyHostToDevice, true);
}

static nbl_status read_now(nbl_context *ctx, void *host, const void *from, size_t bytes)
{
    return copy(ctx, host, from, bytes, cudaMemcpyDeviceToHost, true);
}

/* The host memory of these two must stay valid and unchanged until the copy is over. */
static nbl_status write_async(nbl_context *ctx, void *to, const void *host, size_t bytes)
{
    return copy(ctx, to, host, bytes, cudaMemcpyHostToDevice, false);
}

static nbl_status read_async(nbl_context *ctx, void *host, const void *from, size_t bytes)
{
    return copy(ctx, host, from, bytes, cudaMemcpyDeviceToHost, false);
}

/* Maps the staging memory, pinned and as large as the largest request so far, with a copy of
 * `memory` if `read`. There is one: the next call overwrites it. unmap_host writes it to the
 * device. */
static nbl_status map_host(nbl_context *ctx, void *memory, size_t bytes, bool read, void **host)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (bytes > cuda->staging_bytes) {
        free_host(ctx, cuda->staging, cuda->staging_bytes);
        cuda->staging_bytes = 0;
        cuda->staging = alloc_host(ctx, bytes);
        if (cuda->staging == NULL) return NBL_ERROR_MEMORY;
        cuda->staging_bytes = bytes;
    }
    *host = cuda->staging;
    return read ? read_now(ctx, *host, memory, bytes) : NBL_OK;
}

/* ---- captured graphs: a cudaGraphExec_t ---- */

/* Until capture_end, calls on the stream are recorded into a graph and do not run. */
static nbl_status capture_begin(nbl_context *ctx)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    NBL_CUDA_TRY(cuda, "capture", make_current(cuda));
    NBL_CUDA_TRY(cuda, "capture", cudaStreamBeginCapture(cuda->stream, cudaStreamCaptureModeThreadLocal));
    return NBL_OK;
}

/* Ends the capture. With `good` the graph becomes executable; otherwise it is dropped. */
static nbl_status capture_end(nbl_context *ctx, bool good, void **graph)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    cudaGraph_t captured = NULL;
    cudaGraphExec_t ready = NULL;
    *graph = NULL;
    cudaError_t error = cudaStreamEndCapture(cuda->stream, &captured);
    if (error == cudaSuccess && good) error = cudaGraphInstantiate(&ready, captured, 0);
    if (captured) cudaGraphDestroy(captured);
    if (!good) {
        cudaGetLastError();
        return NBL_OK; /* the failure was reported when it happened */
    }
    NBL_CUDA_TRY(cuda, "capture", error);
    *graph = ready;
    return NBL_OK;
}

static nbl_status replay(nbl_context *ctx, void *graph)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    NBL_CUDA_TRY(cuda, "replay", make_current(cuda));
    NBL_CUDA_TRY(cuda, "replay", cudaGraphLaunch(graph, cuda->stream));
    return NBL_OK;
}

static void graph_free(nbl_context *ctx, void *graph)
{
    if (graph == NULL) return;
    make_current(nbl__cuda_of(ctx));
    cudaGraphExecDestroy(graph);
}

/* ---- timers ---- */

/* Creates `count` timers, which are events with timing. */
static nbl_status timers_open(nbl_context *ctx, int count)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    NBL_CUDA_TRY(cuda, "marks", make_current(cuda));
    assert(cuda->timers == NULL);
    NBL_TRY(NBL_ALLOC(ctx, cuda->timers, count));
    cuda->timer_count = count;
    for (int i = 0; i < count; i++) {
        cudaEvent_t event;
        NBL_CUDA_TRY(cuda, "marks", cudaEventCreate(&event));
        cuda->timers[i] = event;
    }
    return NBL_OK;
}

static void timers_close(nbl_context *ctx)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    for (int i = 0; i < cuda->timer_count; i++)
        if (cuda->timers[i]) cudaEventDestroy(cuda->timers[i]);
    nbl__free(ctx, cuda->timers, (size_t)cuda->timer_count * sizeof *cuda->timers);
    cuda->timers = NULL;
    cuda->timer_count = 0;
}

static nbl_status timer_record(nbl_context *ctx, int timer)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    assert(timer >= 0 && timer < cuda->timer_count);
    NBL_CUDA_TRY(cuda, "mark", cudaEventRecord(cuda->timers[timer], cuda->stream));
    return NBL_OK;
}

/* Milliseconds between two timers. Both must be over: call after wait. */
static nbl_status timer_elapsed(nbl_context *ctx, int from, int to, double *milliseconds)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    float elapsed = 0;
    NBL_CUDA_TRY(cuda, "mark", cudaEventElapsedTime(&elapsed, cuda->timers[from], cuda->timers[to]));
    *milliseconds = (double)elapsed;
    return NBL_OK;
}

/* ---- opening ---- */

/* Dense rows are copied; to convert them is not what a framework needs this for. */
static nbl_status copy_dense(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin, int64_t row_end,
                             nbl_dtype dtype, bool transpose, void *to)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    size_t row = (size_t)weight->shape[weight->rank - 1] * nbl__size_of(dtype);
    NBL_CHECK(
        ctx, weight->dtype == dtype && !transpose, NBL_ERROR_UNSUPPORTED,
        "dequantize: a dense weight in %s of shape %s to %s%s; on a CUDA device only packed weights change "
        "dtype or layout",
        nbl_dtype_name(weight->dtype), nbl__show_shape(weight->rank, weight->shape).text,
        nbl_dtype_name(dtype), transpose ? ", transposed" : "");
    NBL_CUDA_TRY(cuda, "copy",
                 cudaMemcpyAsync(to, (const uint8_t *)weight->data + (size_t)row_begin * row,
                                 (size_t)(row_end - row_begin) * row, cudaMemcpyDeviceToDevice,
                                 cuda->stream));
    return NBL_OK;
}

static nbl_status dequantize(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin, int64_t row_end,
                             nbl_dtype dtype, bool transpose, void *to)
{
    if (weight->format == NBL_FORMAT_DENSE)
        return copy_dense(ctx, weight, row_begin, row_end, dtype, transpose, to);
    return nbl__cuda_dequantize(ctx, weight, row_begin, row_end, dtype, transpose, to,
                                nbl__cuda_of(ctx)->stream);
}

/* The name of the device, in the arena. */
static nbl_status machine(nbl_context *ctx, nbl__arena *arena, const char **name)
{
    nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
    NBL_TRY(nbl_cuda_device_get(ctx, nbl__cuda_of(ctx)->index, &device));
    *name = nbl__arena_strdup(arena, device.name);
    return *name ? NBL_OK : NBL_ERROR_MEMORY;
}

const nbl__device nbl__cuda_template = {
    .name = "CUDA",
    .asynchronous = true,
    .separate_memory = true,
    .reads_host = true,
    .captures = true,
    .splits_mlp = true,
    .fuses_rope_attention = true,
    .fuses_norm_rope = true,
    .operations_per_host_byte = 12000, /* 600 TFLOP/s, 50 GB/s */
    .impls = nbl__cuda_impls,
    .saved_bytes = nbl__cuda_saved_bytes,
    .dequantize = dequantize,
    .machine = machine,
    .alloc = allocate,
    .free = deallocate,
    .bytes_free = bytes_free,
    .alloc_host = alloc_host,
    .free_host = free_host,
    .borrow_scratch = borrow_scratch,
    .return_scratch = return_scratch,
    .fill = fill,
    .write = write_now,
    .read = read_now,
    .write_async = write_async,
    .read_async = read_async,
    .map_host = map_host,
    .unmap_host = write_now,
    .offload_open = nbl__cuda_offload_open,
    .wait = wait,
    .event_record = event_record,
    .event_wait = event_wait,
    .capture_begin = capture_begin,
    .capture_end = capture_end,
    .replay = replay,
    .graph_free = graph_free,
    .timers_open = timers_open,
    .timers_close = timers_close,
    .timer_record = timer_record,
    .timer_elapsed = timer_elapsed,
};

/* Estimates the device memory that an open device uses beside its allocations: context, libraries
 * and workspace. It is the total minus what is free now. That includes memory of other processes,
 * so it is limited to MAX_CONTEXT: a context takes a quarter to half a GiB. LATER is for kernels
 * that are loaded at first use, and for captured graphs. */
static size_t measure_overhead(const nbl__cuda *cuda)
{
    enum { MAX_CONTEXT = 640 << 20, LATER = 8 << 20 };
    size_t free_bytes = free_bytes_of(cuda), taken = free_bytes ? cuda->memory - free_bytes : 0;
    return (taken < MAX_CONTEXT ? taken : MAX_CONTEXT) + LATER;
}

nbl_status nbl__cuda_describe(nbl__cuda *cuda)
{
    struct cudaDeviceProp properties;
    NBL_CUDA_TRY(cuda, "properties", cudaGetDeviceProperties(&properties, cuda->index));
    cuda->major = properties.major;
    cuda->minor = properties.minor;
    cuda->multiprocessors = properties.multiProcessorCount;
    cuda->memory = properties.totalGlobalMem;
    return NBL_OK;
}

/* Opens stream, events, host memory, workspace and library, in this order. After a failure
 * close_device frees what exists. */
static nbl_status open_device(nbl__cuda *cuda)
{
    nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
    cudaStream_t stream;
    void *fault;
    NBL_TRY(nbl_cuda_device_get(cuda->ctx, cuda->index, &device));
    NBL_TRY(nbl__cuda_supports(cuda->ctx, cuda->index, &device));
    NBL_CUDA_TRY(cuda, "open", cudaSetDevice(cuda->index));
    NBL_TRY(nbl__cuda_describe(cuda));
    NBL_CUDA_TRY(cuda, "stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cuda->stream = stream;
    for (int i = 0; i < NBL_DEVICE_EVENTS; i++) {
        cudaEvent_t event;
        NBL_CUDA_TRY(cuda, "event", cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
        cuda->events[i] = event;
    }
    NBL_CUDA_TRY(cuda, "host memory", cudaHostAlloc(&fault, sizeof *cuda->fault, cudaHostAllocMapped));
    cuda->fault = fault;
    nbl__cuda_clear_fault(cuda->fault);
    NBL_CUDA_TRY(cuda, "host memory",
                 cudaHostAlloc(&cuda->device.mailbox, NBL_DEVICE_MAILBOX, cudaHostAllocMapped));
    cuda->workspace = take(cuda, NBL_CUDA_WORKSPACE);
    if (cuda->workspace == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(nbl__blas_open(cuda->ctx, false, &cuda->blas));
    cuda->device.overhead_bytes = measure_overhead(cuda);
    return NBL_OK;
}

/* Waits for the stream, then frees everything that open_device made. Works for a device that is
 * partly open. */
static void close_device(nbl__device *device)
{
    nbl__cuda *cuda = (nbl__cuda *)(void *)device;
    if (cuda->stream) cudaStreamSynchronize(cuda->stream);
    nbl__cuda_offload_close(cuda);
    if (cuda->blas) nbl__blas_close(cuda->blas);
    release(cuda, cuda->workspace, NBL_CUDA_WORKSPACE);
    if (cuda->fault) cudaFreeHost(cuda->fault);
    if (cuda->device.mailbox) cudaFreeHost(cuda->device.mailbox);
    if (cuda->staging) cudaFreeHost(cuda->staging);
    for (int i = 0; i < NBL_DEVICE_EVENTS; i++)
        if (cuda->events[i]) cudaEventDestroy(cuda->events[i]);
    if (cuda->stream) cudaStreamDestroy(cuda->stream);
    nbl__free(cuda->ctx, cuda, sizeof *cuda);
}

nbl_status nbl_context_use_cuda(nbl_context *ctx, int index)
{
    NBL_CHECK(ctx, nbl__context_device(ctx) == NULL, NBL_ERROR_ARGUMENT,
              "the context already runs on a device");
    nbl__cuda *cuda = nbl__alloc(ctx, sizeof *cuda);
    if (cuda == NULL) return NBL_ERROR_MEMORY;
    /* NIBBLE_CUDA_DEBUG=1 waits for every operator. NIBBLE_VERBOSE=profile times them. */
    const char *verbose = getenv("NIBBLE_VERBOSE"), *debug = getenv("NIBBLE_CUDA_DEBUG");
    cuda->device = nbl__cuda_template;
    cuda->device.debugs = debug && strcmp(debug, "1") == 0;
    cuda->device.captures = !cuda->device.debugs; /* a captured graph cannot wait for each kernel */
    cuda->device.profiles = verbose && strcmp(verbose, "profile") == 0;
    cuda->ctx = ctx;
    cuda->index = index;
    nbl_status status = open_device(cuda);
    if (status == NBL_OK) nbl__context_set_device(ctx, &cuda->device, close_device);
    else close_device(&cuda->device);
    return status;
}
