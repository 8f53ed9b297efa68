/* device_time.c - how long a call takes on the device, and the call without a family: dequantize.
 *
 *     cold   before each call 256 MiB are overwritten. This empties the caches, and gives the host
 *            time to enqueue the call, so that the events around it measure the device alone
 *     warm   a CUDA graph of ROW calls is replayed, and its time divided by ROW
 *
 * Both are medians. Without CUDA every function fails. */
#include <stdlib.h>

#include "device.h"

#ifdef NIBBLE_CUDA_BUILT
#include <cuda_runtime_api.h>

#include "device/cuda/cuda.h"
#include "ops/dequantize/dequantize_cuda.h"

enum { SAMPLES = 20, QUICK_SAMPLES = 5, ROW = 10, FLUSH_BYTES = 256 << 20 };

/* Two events and the memory that is overwritten between calls. */
typedef struct clock {
    nbl__cuda *cuda;
    cudaEvent_t begin, end;
    void *flush;
} clock_of;

/* Turns a CUDA error into a status. */
static nbl_status good(nbl__cuda *cuda, cudaError_t error)
{
    if (error == cudaSuccess) return NBL_OK;
    cudaGetLastError();
    return nbl__fail(cuda->ctx, NBL_ERROR_INTERNAL, "events: %s", cudaGetErrorString(error));
}

static int by_size(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static nbl_status clock_open(nbl__cuda *cuda, clock_of *c)
{
    *c = (clock_of){.cuda = cuda};
    NBL_TRY(good(cuda, cudaEventCreate(&c->begin)));
    NBL_TRY(good(cuda, cudaEventCreate(&c->end)));
    c->flush = cuda->device.alloc(cuda->ctx, FLUSH_BYTES, false);
    return c->flush ? NBL_OK : NBL_ERROR_MEMORY;
}

static void clock_close(clock_of *c)
{
    if (c->begin) cudaEventDestroy(c->begin);
    if (c->end) cudaEventDestroy(c->end);
    c->cuda->device.free(c->cuda->ctx, c->flush, FLUSH_BYTES);
}

/* The call that is timed. */
typedef struct timed_call {
    nbl_context *ctx;
    const nbl__op *op;
    const nbl__impl *impl;
    device_image *image;
    void *graph; /* several calls, or NULL */
} timed_call;

static nbl_status call_once(const timed_call *t)
{
    return nbl__op_run(t->ctx, t->op, t->impl, t->image->arguments, t->image->scratch,
                       t->image->scratch_bytes);
}

/* The median of several samples, in seconds. */
static nbl_status measure(clock_of *c, const timed_call *t, int samples, double *seconds)
{
    float times[SAMPLES];
    for (int i = -1; i < samples; i++) { /* the first warms up */
        if (t->graph == NULL) NBL_TRY(c->cuda->device.fill(c->cuda->ctx, c->flush, i, FLUSH_BYTES));
        NBL_TRY(good(c->cuda, cudaEventRecord(c->begin, c->cuda->stream)));
        NBL_TRY(t->graph ? c->cuda->device.replay(c->cuda->ctx, t->graph) : call_once(t));
        NBL_TRY(good(c->cuda, cudaEventRecord(c->end, c->cuda->stream)));
        NBL_TRY(c->cuda->device.wait(c->cuda->ctx, t->impl->name));
        if (i >= 0) NBL_TRY(good(c->cuda, cudaEventElapsedTime(&times[i], c->begin, c->end)));
    }
    qsort(times, (size_t)samples, sizeof *times, by_size);
    *seconds = (double)times[samples / 2] * 1e-3;
    return NBL_OK;
}

/* Captures ROW calls in a row. */
static nbl_status capture_row(timed_call *t)
{
    nbl__cuda *cuda = nbl__cuda_of(t->ctx);
    nbl_status status = NBL_OK;
    NBL_TRY(cuda->device.capture_begin(cuda->ctx));
    for (int i = 0; status == NBL_OK && i < ROW; i++) status = call_once(t);
    nbl_status ended = cuda->device.capture_end(cuda->ctx, status == NBL_OK, &t->graph);
    return status == NBL_OK ? ended : status;
}

/* Measures both times of an open image. */
static nbl_status time_image(timed_call *t, clock_of *c, int samples, device_times *times)
{
    NBL_TRY(device_scratch(t->image, t->impl));
    NBL_TRY(measure(c, t, samples, &times->cold));
    NBL_TRY(capture_row(t));
    NBL_TRY(measure(c, t, samples, &times->warm));
    times->warm /= ROW;
    return NBL_OK;
}

nbl_status device_time(nbl_context *ctx, const nbl__family *family, const nbl__op *op, const nbl__impl *impl,
                       const void *arguments, bool quick, device_times *times)
{
    device_image *image = calloc(1, sizeof *image);
    if (image == NULL) exit(1);
    timed_call t = {ctx, op, impl, image, NULL};
    clock_of c = {.cuda = nbl__cuda_of(ctx)};
    nbl_status status = device_open(ctx, family, op, arguments, false, image);
    if (status == NBL_OK) status = clock_open(nbl__cuda_of(ctx), &c);
    if (status == NBL_OK) status = time_image(&t, &c, quick ? QUICK_SAMPLES : SAMPLES, times);
    nbl__device_of(ctx)->graph_free(ctx, t.graph);
    clock_close(&c);
    device_close(image);
    free(image);
    return status;
}

/* Times a copy of 512 MiB within the device's memory; each byte is read and written. */
static nbl_status time_copy(clock_of *c, void *from, size_t bytes, double *seconds)
{
    float times[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        NBL_TRY(good(c->cuda, cudaEventRecord(c->begin, c->cuda->stream)));
        NBL_TRY(good(c->cuda, cudaMemcpyAsync((char *)from + bytes, from, bytes, cudaMemcpyDeviceToDevice,
                                              c->cuda->stream)));
        NBL_TRY(good(c->cuda, cudaEventRecord(c->end, c->cuda->stream)));
        NBL_TRY(c->cuda->device.wait(c->cuda->ctx, "copy"));
        NBL_TRY(good(c->cuda, cudaEventElapsedTime(&times[i], c->begin, c->end)));
    }
    qsort(times, SAMPLES, sizeof *times, by_size);
    *seconds = (double)times[SAMPLES / 2] * 1e-3;
    return NBL_OK;
}

nbl_status device_copy_speed(nbl_context *ctx, double *bytes_per_second)
{
    const size_t bytes = (size_t)512 << 20;
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    clock_of c;
    double seconds = 1;
    nbl_status status = clock_open(cuda, &c);
    void *memory = status == NBL_OK ? cuda->device.alloc(cuda->ctx, 2 * bytes, false) : NULL;
    if (status == NBL_OK) status = memory ? time_copy(&c, memory, bytes, &seconds) : NBL_ERROR_MEMORY;
    cuda->device.free(cuda->ctx, memory, 2 * bytes);
    clock_close(&c);
    *bytes_per_second = 2 * (double)bytes / seconds;
    return status;
}

/* ---- dequantize ---- */

typedef struct dequantizing {
    nbl_weight w;
    nbl_tensor y;
} dequantizing;

static nbl_status no_infer(nbl_context *ctx, void *arguments)
{
    (void)ctx, (void)arguments;
    return NBL_OK;
}

nbl_status device_dequantize(nbl_context *ctx, const nbl_weight *weight, nbl_dtype dtype, bool transpose,
                             nbl_tensor *out)
{
    static const nbl__slot slots[] = {
        NBL_SLOT(dequantizing, w, "w", WEIGHT, NULL), NBL_SLOT(dequantizing, y, "y", OUTPUT, NULL), {0}};
    static const nbl__attr attrs[] = {{0}};
    static const nbl__family family = {
        "dequantize", sizeof(dequantizing), slots, attrs, {"dequantize", no_infer, NULL}, {0}, {0}};
    dequantizing a = {*weight, *out};
    int64_t n = nbl__tensor_elements(out), rows = n;
    if (weight->shape[weight->rank - 1] > 0) rows = n / weight->shape[weight->rank - 1];
    device_image *image = calloc(1, sizeof *image);
    if (image == NULL) exit(1);
    nbl_status status = device_open(ctx, &family, &family.forward, &a, false, image);
    const dequantizing *there = image->arguments;
    if (status == NBL_OK)
        status = nbl__cuda_dequantize(ctx, &there->w, 0, rows, dtype, transpose, there->y.data,
                                      nbl__cuda_of(ctx)->stream);
    if (status == NBL_OK) status = device_fetch(image, "dequantize");
    device_close(image);
    free(image);
    return status;
}

#else

nbl_status device_time(nbl_context *ctx, const nbl__family *family, const nbl__op *op, const nbl__impl *impl,
                       const void *arguments, bool quick, device_times *times)
{
    (void)family, (void)op, (void)impl, (void)arguments, (void)quick, (void)times;
    return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "built without CUDA");
}

nbl_status device_copy_speed(nbl_context *ctx, double *bytes_per_second)
{
    *bytes_per_second = 1;
    return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "built without CUDA");
}

nbl_status device_dequantize(nbl_context *ctx, const nbl_weight *weight, nbl_dtype dtype, bool transpose,
                             nbl_tensor *out)
{
    (void)weight, (void)dtype, (void)transpose, (void)out;
    return nbl__fail(ctx, NBL_ERROR_UNSUPPORTED, "built without CUDA");
}

#endif
