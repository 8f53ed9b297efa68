/* attention_tensors.h - tensors of cuda_attention.c, on the host in f32 and on the device in their dtype, and calls of
 * one implementation. Part of that program: all is static. */
#ifndef NBL_ATTENTION_TENSORS_H
#define NBL_ATTENTION_TENSORS_H

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/attention/attention.h"
#include "device/cuda/cuda.h"

static nbl_context *cpu, *gpu;
static const nbl__device *device;
static int failures, checks;

#define NIBBLE(ctx, call)                                                                                    \
    do {                                                                                                     \
        if ((call) != NBL_OK) stop(#call, nbl_error_message(ctx), __LINE__);                                 \
    } while (0)

static void stop(const char *call, const char *why, int line)
{
    fprintf(stderr, "cuda_attention: line %d: %s: %s\n", line, call, why);
    exit(1);
}

/* Counts a check, and prints the first 40 failures. */
static void check(bool good, const char *what, const char *which, double value)
{
    checks++;
    if (good) return;
    failures++;
    if (failures < 40) printf("FAILED %s: %s: %.3g\n", which, what, value);
}

/* ---- tensors: on the host in f32, on the device in their dtype ---- */

static uint64_t random_state;
static float random_unit(void) /* roughly normal */
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    uint64_t x = random_state ^ random_state >> 29;
    int32_t sum = (int32_t)(x & 0xffff) + (int32_t)(x >> 16 & 0xffff) + (int32_t)(x >> 32 & 0xffff) +
                  (int32_t)(x >> 48);
    return (float)(sum - 2 * 0xffff) * (1.7f / 65536);
}

/* Zeroed host memory, 64 bytes aligned. The program ends if there is none. */
static void *host(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (memory == NULL) stop("aligned_alloc", "out of memory", __LINE__);
    memset(memory, 0, (bytes + 64) / 64 * 64);
    return memory;
}

static nbl_tensor tensor(nbl_dtype dtype, int rank, int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (nbl_tensor){.dtype = dtype, .rank = rank, .shape = {a, b, c, d}};
}

static size_t bytes_of(const nbl_tensor *t)
{
    return (size_t)nbl__tensor_elements(t) * (t->dtype == NBL_DTYPE_I32 ? 4 : nbl__size_of(t->dtype));
}

enum { GUARD = 64 };

/* Device memory for a tensor, `skew` elements off its alignment, all bytes 0xff: NaN. */
static void allocate(nbl_tensor *t, int64_t skew)
{
    size_t bytes = bytes_of(t) + GUARD;
    uint8_t *memory = device->alloc(gpu, bytes, false);
    if (memory == NULL) stop("nbl__cuda_alloc", nbl_error_message(gpu), __LINE__);
    NIBBLE(gpu, device->fill(gpu, memory, 0xff, bytes));
    t->data = memory + (size_t)skew * nbl__size_of(t->dtype);
}

/* Frees device memory of allocate(), whose skew is below 256 bytes. */
static void displace(nbl_tensor *t)
{
    if (t->data) cudaFree((void *)((uintptr_t)t->data / 256 * 256));
    t->data = NULL;
}

/* Random values in `dtype` on the device, the same ones as f32 on the host. */
static void make_random(nbl_tensor *on_host, nbl_tensor *on_device, nbl_tensor shape, nbl_dtype dtype,
                        float size, int64_t skew)
{
    *on_host = *on_device = shape;
    int64_t n = nbl__tensor_elements(&shape);
    on_host->dtype = NBL_DTYPE_F32;
    on_device->dtype = dtype;
    float *values = on_host->data = host(bytes_of(on_host));
    void *rounded = host(bytes_of(on_device));
    for (int64_t i = 0; i < n; i++) values[i] = random_unit() * size;
    NIBBLE(cpu, nbl_convert(cpu, NBL_DTYPE_F32, values, dtype, rounded, n));
    NIBBLE(cpu, nbl_convert(cpu, dtype, rounded, NBL_DTYPE_F32, values, n));
    allocate(on_device, skew);
    NIBBLE(gpu, device->write(gpu, on_device->data, rounded, bytes_of(on_device)));
    free(rounded);
}

/* The same integers on both sides. */
static void make_integers(nbl_tensor *on_host, nbl_tensor *on_device, const int32_t *values, int64_t n)
{
    *on_host = *on_device = tensor(NBL_DTYPE_I32, 1, n, 0, 0, 0);
    on_host->data = host(bytes_of(on_host));
    memcpy(on_host->data, values, bytes_of(on_host));
    allocate(on_device, 0);
    NIBBLE(gpu, device->write(gpu, on_device->data, values, bytes_of(on_device)));
}

static void *read_back(const nbl_tensor *t)
{
    void *memory = host(bytes_of(t));
    NIBBLE(gpu, device->read(gpu, memory, t->data, bytes_of(t)));
    return memory;
}

/* ‖got − want‖ / ‖want‖. */
static double error_of(const nbl_tensor *got, const nbl_tensor *want)
{
    int64_t n = nbl__tensor_elements(want);
    void *raw = read_back(got);
    float *values = host((size_t)n * sizeof *values);
    NIBBLE(cpu, nbl_convert(cpu, got->dtype, raw, NBL_DTYPE_F32, values, n));
    double off = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        double w = (double)((const float *)want->data)[i], d = (double)values[i] - w;
        off += d * d;
        all += w * w;
    }
    free(raw);
    free(values);
    return all > 0 ? sqrt(off / all) : sqrt(off);
}

/* Compares two tensors of the device byte by byte. */
static bool same_bits(const nbl_tensor *a, const nbl_tensor *b)
{
    void *x = read_back(a), *y = read_back(b);
    bool same = memcmp(x, y, bytes_of(a)) == 0;
    free(x);
    free(y);
    return same;
}

/* ---- running ---- */

/* Infers, chooses (impl NULL), and runs one operator with scratch of NaN bytes. Waits for the
 * device. */
static nbl_status run_impl(nbl_context *ctx, const nbl__op *op, const nbl__impl *impl, void *arguments)
{
    NBL_TRY(op->infer(ctx, arguments));
    if (impl == NULL) NBL_TRY(nbl__op_choose(ctx, op, arguments, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, arguments);
    void *scratch = ctx == gpu ? device->alloc(gpu, bytes, false) : host(bytes);
    if (ctx == gpu) NBL_TRY(device->fill(gpu, scratch, 0xff, bytes));
    nbl_status status = nbl__op_run(ctx, op, impl, arguments, scratch, bytes);
    if (ctx == gpu) {
        if (status == NBL_OK) status = device->wait(gpu, op->name);
        device->free(gpu, scratch, bytes);
    } else {
        free(scratch);
    }
    return status;
}

#endif
