/* cuda_trace.c - lines of the trace, faults, and the device. See cuda_trace.h. */
#include "cuda_trace.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static FILE *out;
static long calls, failures, fail_at;
static bool fail_later, opened;
static int garbage; /* a byte */
static __thread cudaError_t last_error;
static cudaError_t broken; /* what every call returns */
static const trace_listener *listening;

void trace_lock(void)
{
    pthread_mutex_lock(&lock);
}

void trace_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

static void open_trace(void)
{
    if (opened) return;
    const char *path = getenv("NIBBLE_CUDA_TRACE"), *fail = getenv("NIBBLE_CUDA_TRACE_FAIL");
    opened = true;
    if (path && *path) out = fopen(path, "we");
    const char *byte = getenv("NIBBLE_CUDA_TRACE_GARBAGE");
    garbage = byte ? atoi(byte) & 255 : 0;
    if (fail) {
        fail_at = atol(fail);
        fail_later = strchr(fail, '+') != NULL;
    }
}

void trace_break(cudaError_t error)
{
    if (broken == cudaSuccess) broken = error;
}

void trace_listen(const trace_listener *listener)
{
    listening = listener;
}

void trace_fail(long at, bool later)
{
    open_trace();
    calls = failures = 0;
    fail_at = at;
    fail_later = later;
}

long trace_calls(void)
{
    return calls;
}

trace_live trace_live_now(void)
{
    trace_live live = {0};
    trace_memory_live(&live);
    trace_stream_live(&live);
    trace_blas_live(&live);
    return live;
}

void trace_line(const char *format, ...)
{
    va_list arguments;
    open_trace();
    if (listening && listening->line) {
        static __thread char text[10 * 1024]; /* the arguments of a kernel fit */
        va_start(arguments, format);
        vsnprintf(text, sizeof text, format, arguments);
        va_end(arguments);
        listening->line(text);
    }
    if (out == NULL) return;
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    putc('\n', out);
}

cudaError_t trace_result(const char *name, cudaError_t error)
{
    if (error == cudaSuccess) return error;
    last_error = error;
    failures++;
    trace_line("failed: %s: %s", name, cudaGetErrorString(error));
    return error;
}

/* Arguments of kernels are structs on the caller's stack, and what pads them is what was there before. This is put
 * there. Two runs with different bytes tell which bytes of an argument have no meaning. */
static __attribute__((noinline)) void leave_garbage(void)
{
    volatile unsigned char below[16384];
    memset((unsigned char *)below, garbage, sizeof below);
    __asm__ volatile("" ::"r"(below) : "memory");
}

cudaError_t trace_call(const char *name, cudaError_t error)
{
    open_trace();
    leave_garbage();
    calls++;
    if (listening && listening->call) listening->call(name);
    if (broken != cudaSuccess) return trace_result(name, broken);
    bool fails = fail_at && (fail_later ? calls >= fail_at : calls == fail_at);
    return fails ? trace_result(name, error) : cudaSuccess;
}

/* The last line: what is left over, and how many calls there were. */
static __attribute__((destructor)) void close_trace(void)
{
    trace_memory_summary();
    trace_stream_summary();
    trace_line("end: %ld calls, %ld failed", calls, failures);
    if (out) fclose(out);
    out = NULL;
}

/* ---- errors ---- */

cudaError_t cudaGetLastError(void)
{
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidDeviceFunction: return "invalid device function";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorLaunchOutOfResources: return "too many resources requested for launch";
    case cudaErrorNoKernelImageForDevice: return "no kernel image is available for execution on the device";
    case cudaErrorStreamCaptureUnsupported: return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureUnjoined: return "capturing stream has unjoined work";
    case cudaErrorLaunchFailure: return "unspecified launch failure";
    default: return "unknown error";
    }
}

/* ---- the device ---- */

const trace_limits *trace_device(void)
{
    static const trace_limits h200 = {"traced H200", 9, 0, 132, (size_t)143771 << 20, 233472, 232448},
                              a100 = {"traced A100", 8, 0, 108, (size_t)81920 << 20, 167936, 166912};
    const char *wish = getenv("NIBBLE_CUDA_TRACE_DEVICE");
    if (wish && strcmp(wish, "none") == 0) return NULL;
    bool older = wish ? strcmp(wish, "sm_80") == 0 : trace_runs();
    return older ? &a100 : &h200;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = trace_device() != NULL;
    cudaError_t error = trace_call("cudaGetDeviceCount", cudaErrorUnknown);
    if (error != cudaSuccess) return error;
    return *count ? cudaSuccess : (last_error = cudaErrorNoDevice);
}

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = trace_device() ? CUDART_VERSION : 0;
    return trace_call("cudaDriverGetVersion", cudaErrorUnknown);
}

cudaError_t cudaGetDevice(int *device)
{
    *device = 0;
    return trace_call("cudaGetDevice", cudaErrorUnknown);
}

cudaError_t cudaSetDevice(int device)
{
    if (device != 0 || trace_device() == NULL) return trace_result("cudaSetDevice", cudaErrorInvalidDevice);
    cudaError_t error = trace_call("cudaSetDevice", cudaErrorUnknown);
    if (error == cudaSuccess) trace_make_current();
    return error;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    const trace_limits *limits = trace_device();
    if (device != 0 || limits == NULL) return trace_result("cudaGetDeviceProperties", cudaErrorInvalidDevice);
    memset(properties, 0, sizeof *properties);
    snprintf(properties->name, sizeof properties->name, "%s", limits->name);
    properties->major = limits->major;
    properties->minor = limits->minor;
    properties->multiProcessorCount = limits->multiprocessors;
    properties->totalGlobalMem = limits->memory;
    properties->warpSize = 32;
    properties->maxThreadsPerBlock = 1024;
    properties->maxThreadsPerMultiProcessor = 2048;
    properties->regsPerBlock = properties->regsPerMultiprocessor = 65536;
    properties->sharedMemPerBlock = 49152;
    properties->sharedMemPerBlockOptin = limits->shared_block;
    properties->sharedMemPerMultiprocessor = limits->shared_each;
    return trace_call("cudaGetDeviceProperties", cudaErrorUnknown);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    const trace_limits *limits = trace_device();
    if (device != 0 || limits == NULL) return trace_result("cudaDeviceGetAttribute", cudaErrorInvalidDevice);
    switch ((int)attribute) {
    case cudaDevAttrComputeCapabilityMajor: *value = limits->major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = limits->minor; break;
    case cudaDevAttrMultiProcessorCount: *value = limits->multiprocessors; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)limits->shared_block; break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)limits->shared_each; break;
    default: return trace_result("cudaDeviceGetAttribute", cudaErrorInvalidValue);
    }
    return trace_call("cudaDeviceGetAttribute", cudaErrorUnknown);
}
