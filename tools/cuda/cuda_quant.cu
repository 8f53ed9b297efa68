/* cuda_quant.cu - examines the CUDA kernels on the first device.
 *
 *   cuda_quant test [--quick]   every kernel against the CPU: decoding bit for bit, products within the bounds of the
 *                               operators, twice the same bits, nothing written beside the output. Without a device
 *                               it says so and exits with 77. --quick: every seventh case, for compute-sanitizer
 *   cuda_quant bench            bytes per second, beside a plain copy of as many bytes in the same run
 *
 * Weights are random bytes, so that every code occurs; scales of the tests include zero, subnormals, infinities and
 * NaN. Parts are allocated to the byte: a checker sees every access past their end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "quant_weights.cuh"

#include "ops/dequantize/dequantize_value.cuh"
#include "ops/dequantize/dequantize_cuda.h"
#include "ops/gemv/cuda/gemv_cuda.h"

namespace
{

/* ---- tests ---- */

struct tally {
    int64_t cases, failed;
};

void report(tally *t, bool good, const nbl_weight *w, nbl_dtype dtype, const char *what)
{
    t->cases++;
    if (good) return;
    if (++t->failed <= 20)
        printf("FAILED %s%s block %d [%d, %d] %s: %s\n", nbl_format_name(w->format),
               w->nested_scales ? " nested" : "", static_cast<int>(w->block), static_cast<int>(w->shape[0]),
               static_cast<int>(w->shape[1]), nbl_dtype_name(dtype), what);
}

enum { CANARY = 256 };

/* Runs `launch(out)` on poisoned memory of `bytes`, `shift` past an aligned address, and fetches what it made. False
 * when something beside it was written. */
template <typename F> bool run_guarded(size_t bytes, size_t shift, uint8_t *result, F launch)
{
    uint8_t *memory = NULL;
    size_t all = shift + bytes + CANARY;
    CUDA(cudaMalloc(&memory, all));
    CUDA(cudaMemset(memory, 0xa5, all));
    launch(memory + shift);
    CUDA(cudaDeviceSynchronize());
    uint8_t *copy = static_cast<uint8_t *>(host(all));
    CUDA(cudaMemcpy(copy, memory, all, cudaMemcpyDeviceToHost));
    bool clean = true;
    for (size_t i = 0; i < shift; i++) clean &= copy[i] == 0xa5;
    for (size_t i = shift + bytes; i < all; i++) clean &= copy[i] == 0xa5;
    memcpy(result, copy + shift, bytes);
    free(copy);
    CUDA(cudaFree(memory));
    return clean;
}

void test_dequantize(nbl_context *ctx, tally *t, const both_sides *b, int64_t from, int64_t to,
                     bool transpose, size_t shift)
{
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
    for (nbl_dtype dtype : dtypes) {
        size_t size = nbl__size_of(dtype), bytes = static_cast<size_t>((to - from) * b->host.shape[1]) * size;
        uint8_t *want = static_cast<uint8_t *>(host(bytes)), *got = static_cast<uint8_t *>(host(bytes));
        NIBBLE(nbl_dequantize(ctx, &b->host, from, to, dtype, transpose, want));
        bool clean = run_guarded(bytes, shift ? size : 0, got, [&](void *out) {
            NIBBLE(nbl__cuda_dequantize(ctx, &b->device, from, to, dtype, transpose, out, NULL));
        });
        char what[200];
        size_t i = 0;
        while (i < bytes && want[i] == got[i]) i++;
        snprintf(what, sizeof what, "rows %d to %d%s%s: %s element %d", static_cast<int>(from),
                 static_cast<int>(to), transpose ? " transposed" : "", shift ? " unaligned" : "",
                 i < bytes ? "wrong bits, first at" : "wrote past its end; of", static_cast<int>(i / size));
        report(t, i == bytes && clean, &b->host, dtype, what);
        free(want);
        free(got);
    }
}

void test_product(nbl_context *ctx, tally *t, const both_sides *b, int m, uint32_t seed, size_t shift)
{
    static const struct {
        nbl_dtype dtype;
        double bound;
    } kinds[] = {{NBL_DTYPE_F32, 1e-5}, {NBL_DTYPE_F16, 2e-3}, {NBL_DTYPE_BF16, 1.6e-2}};
    int64_t rows = b->host.shape[0], columns = b->host.shape[1];
    float *w = static_cast<float *>(host(static_cast<size_t>(rows * columns) * 4));
    NIBBLE(nbl_dequantize(ctx, &b->host, 0, rows, NBL_DTYPE_F32, 0, w));
    size_t x_count = static_cast<size_t>(m * columns), y_count = static_cast<size_t>(m * rows);
    float *x = static_cast<float *>(host(x_count * 4)), *y = static_cast<float *>(host(y_count * 4));
    for (auto kind : kinds) {
        size_t size = nbl__size_of(kind.dtype), offset = shift ? size : 0;
        uint8_t *x_bytes = static_cast<uint8_t *>(host(x_count * size));
        uint8_t *first = static_cast<uint8_t *>(host(y_count * size)),
                *second = static_cast<uint8_t *>(host(y_count * size));
        for (size_t i = 0; i < x_count; i++) x[i] = unit_of(i, seed) + unit_of(i, seed + 1);
        NIBBLE(nbl_convert(ctx, NBL_DTYPE_F32, x, kind.dtype, x_bytes, static_cast<int64_t>(x_count)));
        NIBBLE(nbl_convert(ctx, kind.dtype, x_bytes, NBL_DTYPE_F32, x, static_cast<int64_t>(x_count)));
        both_sides on = {};
        void *device_x = on_device(&on, x_bytes, x_count * size, offset);
        auto launch = [&](void *out) {
            NIBBLE(nbl__cuda_gemv(ctx, &b->device, kind.dtype, m, device_x, out, NULL));
        };
        bool clean = run_guarded(y_count * size, offset, first, launch);
        clean &= run_guarded(y_count * size, offset, second, launch);
        bool same = memcmp(first, second, y_count * size) == 0;
        NIBBLE(nbl_convert(ctx, kind.dtype, first, NBL_DTYPE_F32, y, static_cast<int64_t>(y_count)));
        double wrong = 0, norm = 0, typical = 0;
        for (int n = 0; n < m; n++) {
            for (int64_t r = 0; r < rows; r++) {
                double sum = 0, squares = 0;
                for (int64_t k = 0; k < columns; k++) {
                    double term = static_cast<double>(x[n * columns + k]) *
                                  static_cast<double>(w[r * columns + k]);
                    sum += term;
                    squares += term * term;
                }
                double difference = static_cast<double>(y[n * rows + r]) - sum;
                wrong += difference * difference;
                norm += sum * sum;
                typical += squares;
            }
        }
        if (norm < typical) norm = typical; /* one output alone may be near 0 by chance; its terms are not */
        double error = norm > 0 ? sqrt(wrong / norm) : wrong;
        char what[200];
        snprintf(what, sizeof what, "product with %d rows%s: relative error %.3g, bound %.3g; %s, %s", m,
                 shift ? " unaligned" : "", error, kind.bound,
                 same ? "the same twice" : "differs from run to run",
                 clean ? "nothing beside it" : "wrote past its end");
        report(t, error <= kind.bound && same && clean, &b->host, kind.dtype, what); /* NaN fails */
        CUDA(cudaFree(on.to_free[0]));
        free(x_bytes);
        free(first);
        free(second);
    }
    free(w);
    free(x);
    free(y);
}

/* What must be refused, with a message, and without a launch. */
void test_refusals(nbl_context *ctx, tally *t)
{
    sizes bytes;
    nbl_weight w = weight_of(NBL_FORMAT_NF4, false, 64, 2, 64, &bytes), mx = w, dense = w;
    both_sides b;
    make_both(w, bytes, 1, false, 0, &b);
    mx = b.device;
    mx.format = NBL_FORMAT_MXFP4;
    mx.scale_codes = static_cast<const uint8_t *>(b.device.data);
    dense = b.device;
    dense.format = NBL_FORMAT_DENSE;
    void *out = const_cast<void *>(b.device.data);
    const float *x = b.device.scales;
    report(t, nbl__cuda_dequantize(ctx, &b.device, 0, 3, NBL_DTYPE_F32, 0, out, NULL) == NBL_ERROR_ARGUMENT,
           &w, NBL_DTYPE_F32, "rows past the end are refused");
    report(t, nbl__cuda_dequantize(ctx, &b.device, 0, 2, NBL_DTYPE_I8, 0, out, NULL) == NBL_ERROR_DTYPE, &w,
           NBL_DTYPE_I8, "another dtype is refused");
    report(t, nbl__cuda_dequantize(ctx, &b.device, 0, 2, NBL_DTYPE_F32, 0, NULL, NULL) == NBL_ERROR_ARGUMENT,
           &w, NBL_DTYPE_F32, "no output is refused");
    report(t, nbl__cuda_dequantize(ctx, &dense, 0, 2, NBL_DTYPE_F32, 0, out, NULL) == NBL_ERROR_UNSUPPORTED,
           &w, NBL_DTYPE_F32, "a dense weight is refused");
    report(t, nbl__cuda_gemv(ctx, &mx, NBL_DTYPE_F32, 1, x, out, NULL) == NBL_ERROR_UNSUPPORTED, &w,
           NBL_DTYPE_F32, "a product with mxfp4 is refused");
    report(t, nbl__cuda_gemv(ctx, &b.device, NBL_DTYPE_F32, 9, x, out, NULL) == NBL_ERROR_ARGUMENT, &w,
           NBL_DTYPE_F32, "nine rows are refused");
    free_both(&b);
}

/* Values of a 16-bit dtype on both sides: as floats here, as they are there. */
float *make_row(nbl_context *ctx, both_sides *b, nbl_dtype dtype, int64_t n, uint32_t seed, void **device)
{
    float *values = static_cast<float *>(host(static_cast<size_t>(n) * 4));
    uint8_t *bytes = static_cast<uint8_t *>(host(static_cast<size_t>(n) * 2));
    for (int64_t i = 0; i < n; i++) values[i] = unit_of(static_cast<uint64_t>(i), seed);
    NIBBLE(nbl_convert(ctx, NBL_DTYPE_F32, values, dtype, bytes, n));
    NIBBLE(nbl_convert(ctx, dtype, bytes, NBL_DTYPE_F32, values, n));
    *device = on_device(b, bytes, static_cast<size_t>(n) * 2, 0);
    free(bytes);
    return values;
}

float *fetch(nbl_context *ctx, nbl_dtype dtype, const void *device, int64_t n)
{
    uint8_t *bytes = static_cast<uint8_t *>(host(static_cast<size_t>(n) * 2));
    float *values = static_cast<float *>(host(static_cast<size_t>(n) * 4));
    CUDA(cudaMemcpy(bytes, device, static_cast<size_t>(n) * 2, cudaMemcpyDeviceToHost));
    NIBBLE(nbl_convert(ctx, dtype, bytes, NBL_DTYPE_F32, values, n));
    free(bytes);
    return values;
}

double distance(const float *got, const double *want, int64_t n)
{
    double wrong = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = static_cast<double>(got[i]) - want[i];
        wrong += d * d, norm += want[i] * want[i];
    }
    return sqrt(wrong / norm);
}

/* One row, its norm and residual sum, and two weights in one launch: each its product, or silu(first)·second. */
void test_joined(nbl_context *ctx, tally *t, nbl_dtype dtype, bool nested, bool gated, bool normed,
                 int64_t rows, int64_t columns)
{
    double bound = dtype == NBL_DTYPE_F16 ? 2e-3 : 1.6e-2;
    both_sides weights[2], on = {};
    sizes bytes;
    for (int i = 0; i < 2; i++) {
        int64_t mine = gated || i == 0 ? rows : 32;
        nbl_weight w = weight_of(NBL_FORMAT_NF4, nested, 64, mine, columns, &bytes);
        make_both(w, bytes, static_cast<uint32_t>(40 + i), false, 0, &weights[i]);
    }
    void *x_there, *more_there, *scale_there, *sum_there, *y_there, *out_there[2];
    float *x = make_row(ctx, &on, dtype, columns, 1, &x_there),
          *more = make_row(ctx, &on, dtype, columns, 2, &more_there),
          *scale = make_row(ctx, &on, dtype, columns, 3, &scale_there);
    free(make_row(ctx, &on, dtype, columns, 4, &sum_there));
    free(make_row(ctx, &on, dtype, columns, 5, &y_there));
    for (void *&out : out_there) free(make_row(ctx, &on, dtype, rows, 6, &out));
    nbl_rmsnorm norm = {};
    norm.dtype = dtype, norm.eps = 1e-5f, norm.round = NBL_ROUND_BEFORE_WEIGHT;
    norm.x = nbl_matrix(dtype, 1, columns, x_there),
    norm.residual = nbl_matrix(dtype, 1, columns, more_there);
    norm.w = nbl_vector(dtype, columns, scale_there), norm.y = nbl_matrix(dtype, 1, columns, y_there);
    norm.residual_out = nbl_matrix(dtype, 1, columns, sum_there);
    nbl__gemv_one one = {
        .dtype = dtype,
        .x = normed ? y_there : x_there,
        .count = 2,
        .act = gated ? 0 : -1, /* silu is the first */
        .norm = normed ? &norm : NULL,
        .parts = {{&weights[0].device, {}, out_there[0]}, {&weights[1].device, {}, out_there[1]}}};
    bool takes = nbl__cuda_gemv_one_takes(&one);
    if (takes) NIBBLE(nbl__cuda_gemv_one(ctx, &one, NULL));
    CUDA(cudaDeviceSynchronize());

    double *row = static_cast<double *>(host(static_cast<size_t>(columns) * 8)), squares = 0;
    float *sum = fetch(ctx, dtype, sum_there, columns);
    for (int64_t k = 0; k < columns; k++) {
        row[k] = static_cast<double>(normed ? x[k] + more[k] : x[k]);
        squares += row[k] * row[k];
    }
    double error = normed ? distance(sum, row, columns) : 0;
    for (int64_t k = 0; k < columns && normed; k++)
        row[k] *= static_cast<double>(scale[k]) / sqrt(squares / static_cast<double>(columns) + 1e-5);
    float *y = fetch(ctx, dtype, y_there, columns);
    if (normed) error = fmax(error, distance(y, row, columns));
    double *want[2];
    for (int i = 0; i < 2; i++) {
        const nbl_weight *w = &weights[i].host;
        int64_t n = w->shape[0];
        float *values = static_cast<float *>(host(static_cast<size_t>(n * columns) * 4));
        want[i] = static_cast<double *>(host(static_cast<size_t>(n) * 8));
        NIBBLE(nbl_dequantize(ctx, w, 0, n, NBL_DTYPE_F32, 0, values));
        for (int64_t r = 0; r < n; r++) {
            want[i][r] = 0;
            for (int64_t k = 0; k < columns; k++)
                want[i][r] += row[k] * static_cast<double>(values[r * columns + k]);
        }
        free(values);
    }
    for (int64_t r = 0; r < rows && gated; r++) want[0][r] = want[0][r] / (1 + exp(-want[0][r])) * want[1][r];
    for (int i = 0; i < (gated ? 1 : 2); i++) {
        float *out = fetch(ctx, dtype, out_there[i], weights[i].host.shape[0]);
        error = fmax(error, distance(out, want[i], weights[i].host.shape[0]));
        free(out);
    }
    char what[200];
    snprintf(what, sizeof what, "two weights at once%s%s: %s, relative error %.3g, bound %.3g",
             gated ? ", gated" : "", normed ? ", normed" : "", takes ? "taken" : "not taken", error, bound);
    report(t, takes && error <= bound, &weights[0].host, dtype, what);
    for (int i = 0; i < 2; i++) free_both(&weights[i]), free(want[i]);
    for (int i = 0; i < on.count; i++) CUDA(cudaFree(on.to_free[i]));
    for (void *it : {static_cast<void *>(x), static_cast<void *>(more), static_cast<void *>(scale),
                     static_cast<void *>(sum), static_cast<void *>(y), static_cast<void *>(row)})
        free(it);
}

void test_joined_ones(nbl_context *ctx, tally *t)
{
    static const int64_t shapes[][2] = {{64, 256}, {64, 2048}, {6144, 4096}, {48, 4096}, {4400, 512}};
    nbl_cuda_device device;
    NBL_RESULT_INIT(device);
    if (nbl_cuda_device_get(ctx, 0, &device) != NBL_OK || device.major != 9) return;
    for (auto shape : shapes)
        for (nbl_dtype dtype : {NBL_DTYPE_F16, NBL_DTYPE_BF16})
            for (int how = 0; how < 8; how++)
                test_joined(ctx, t, dtype, how & 1, how & 2, how & 4, shape[0], shape[1]);
}

int run_tests(nbl_context *ctx, bool quick)
{
    static const struct {
        nbl_format format;
        bool nested;
        int64_t block;
    } kinds[] = {{NBL_FORMAT_NF4, false, 64},  {NBL_FORMAT_NF4, true, 64},   {NBL_FORMAT_NF4, false, 32},
                 {NBL_FORMAT_NF4, true, 4096}, {NBL_FORMAT_FP4, false, 128}, {NBL_FORMAT_FP4, true, 32},
                 {NBL_FORMAT_INT8, false, 0},  {NBL_FORMAT_MXFP4, false, 32}};
    static const int64_t shapes[][2] = {
        {1, 1},      {1, 2},     {3, 5},     {7, 33},    {5, 64},     {17, 96},  {64, 64},   {33, 127},
        {31, 1000},  {129, 200}, {257, 513}, {9, 4096},  {40, 320},   {1, 8192}, {1000, 72}, {66, 2080},
        {130, 1536}, {4097, 31}, {48, 256},  {64, 2304}, {8480, 256}, {8500, 64}};
    tally t = {0, 0};
    int number = 0;
    test_refusals(ctx, &t);
    test_joined_ones(ctx, &t);
    for (auto kind : kinds) {
        for (auto shape : shapes) {
            int64_t rows = shape[0], columns = shape[1];
            if (kind.format == NBL_FORMAT_MXFP4 && columns % 32 != 0) continue;
            if (number++ % 7 != 0 && quick) continue;
            sizes bytes;
            nbl_weight w = weight_of(kind.format, kind.nested, kind.block, rows, columns, &bytes);
            for (int variant = 0; variant < 3; variant++) { /* plain, hostile scales, unaligned parts */
                both_sides b;
                size_t shift = variant == 2 ? 1 : 0;
                make_both(w, bytes, static_cast<uint32_t>(number * 16 + variant), variant == 1, shift, &b);
                for (int transpose = 0; transpose < 2; transpose++) {
                    test_dequantize(ctx, &t, &b, 0, rows, transpose, shift);
                    if (rows > 2) test_dequantize(ctx, &t, &b, 1, rows - 1, transpose, shift);
                }
                if (kind.format != NBL_FORMAT_MXFP4 && variant != 1)
                    for (int m = 1; m <= 8; m += quick ? 7 : 1)
                        test_product(ctx, &t, &b, m, static_cast<uint32_t>(number + m), shift);
                free_both(&b);
            }
        }
    }
    printf("cuda_quant: %d cases, %d failed\n", static_cast<int>(t.cases), static_cast<int>(t.failed));
    return t.failed != 0;
}

/* ---- benchmarks ---- */

__global__ void fill_bytes(uint32_t *to, size_t words, uint32_t seed)
{
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < words;
         i += static_cast<size_t>(gridDim.x) * blockDim.x)
        to[i] = hash_of(i, seed);
}
__global__ void fill_floats(float *to, size_t count, uint32_t seed)
{
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<size_t>(gridDim.x) * blockDim.x)
        to[i] = 0.02f + 0.01f * unit_of(i, seed);
}

int compare(const void *a, const void *b)
{
    float x = *static_cast<const float *>(a), y = *static_cast<const float *>(b);
    return (x > y) - (x < y);
}

/* Seconds of one call: the median of 21 replays of a graph of `calls` of them. */
template <typename F> double seconds_of(int calls, F launch)
{
    enum { REPLAYS = 21 };
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t begin, end;
    CUDA(cudaStreamCreate(&stream));
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < calls; i++) launch(i, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    float times[REPLAYS];
    for (int i = -3; i < REPLAYS; i++) {
        CUDA(cudaEventRecord(begin, stream));
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaEventRecord(end, stream));
        CUDA(cudaEventSynchronize(end));
        if (i >= 0) CUDA(cudaEventElapsedTime(&times[i], begin, end));
    }
    qsort(times, REPLAYS, sizeof times[0], compare);
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(begin));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaStreamDestroy(stream));
    return times[REPLAYS / 2] * 1e-3 / calls;
}

/* One large piece of device memory; every benchmark cuts what it needs from its beginning. */
struct pool {
    char *memory;
    size_t size, used;
};

void *cut(pool *p, size_t bytes)
{
    void *piece = p->memory + p->used;
    p->used += (bytes + 255) / 256 * 256;
    if (p->used > p->size) stop("cut", "the pool is too small", __LINE__);
    return piece;
}

double copy_rate(pool *p, size_t bytes) /* read and written together; the same amount of traffic as `bytes` */
{
    size_t half = bytes / 2 / 256 * 256, pairs = p->size / (2 * half);
    int calls = static_cast<int>(pairs < 64 ? pairs : 64);
    if (calls < 4) calls = 4;
    double seconds = seconds_of(calls, [&](int i, cudaStream_t stream) {
        char *from = p->memory + static_cast<size_t>(i) % pairs * 2 * half;
        CUDA(cudaMemcpyAsync(from + half, from, half, cudaMemcpyDeviceToDevice, stream));
    });
    return 2 * static_cast<double>(half) / seconds * 1e-12;
}

struct bench_case {
    nbl_format format;
    bool nested;
    int m; /* 0: decode; -1: decode, transposed */
    nbl_dtype dtype;
};

/* `only`: those whose name has this word in it. */
void bench(nbl_context *ctx, pool *p, const char *only, bench_case c, int64_t rows, int64_t columns)
{
    enum { COPIES = 64 };
    char name[64];
    if (c.m > 0) snprintf(name, sizeof name, "gemv m=%d", c.m);
    else snprintf(name, sizeof name, "dequantize%s", c.m < 0 ? " transposed" : "");
    if (only && strstr(name, only) == NULL) return;
    static const size_t flush = size_t(600) << 20; /* ten times the L2 cache */
    sizes bytes;
    nbl_weight w = weight_of(c.format, c.nested, 64, rows, columns, &bytes), copies[COPIES];
    void *outs[COPIES];
    size_t size = nbl__size_of(c.dtype), n = static_cast<size_t>(rows * columns);
    size_t packed_bytes = bytes.data + bytes.scales + bytes.scale_codes + bytes.nested_scales;
    size_t out_bytes = c.m > 0 ? static_cast<size_t>(c.m * rows) * size : n * size;
    size_t traffic = c.m > 0 ? packed_bytes : packed_bytes + out_bytes;
    int count = static_cast<int>(nbl__min_i64(COPIES, static_cast<int64_t>(flush / traffic) + 1));
    p->used = 0;
    float *table = static_cast<float *>(cut(p, 1024));
    CUDA(cudaMemcpy(table, nbl_dynamic_map(1), 1024, cudaMemcpyHostToDevice));
    float *x = static_cast<float *>(cut(p, static_cast<size_t>(8 * columns) * 4));
    fill_floats<<<256, 256>>>(x, static_cast<size_t>(8 * columns),
                              9); /* as 16-bit values: random, and finite enough */
    if (size == 2) CUDA(cudaMemset(x, 0x3c, static_cast<size_t>(8 * columns) * 4));
    for (int i = 0; i < count; i++) {
        nbl_weight *it = &copies[i];
        *it = w;
        uint32_t *data = static_cast<uint32_t *>(cut(p, bytes.data));
        fill_bytes<<<2048, 256>>>(data, bytes.data / 4, static_cast<uint32_t>(i));
        it->data = data;
        if (bytes.scales) {
            float *scales = static_cast<float *>(cut(p, bytes.scales));
            fill_floats<<<512, 256>>>(scales, bytes.scales / 4, static_cast<uint32_t>(i) + 100);
            it->scales = scales;
        }
        if (bytes.scale_codes) {
            uint32_t *codes = static_cast<uint32_t *>(cut(p, bytes.scale_codes));
            if (c.format == NBL_FORMAT_MXFP4) CUDA(cudaMemset(codes, 120, bytes.scale_codes));
            else fill_bytes<<<512, 256>>>(codes, bytes.scale_codes / 4, static_cast<uint32_t>(i) + 200);
            it->scale_codes = reinterpret_cast<uint8_t *>(codes);
        }
        if (bytes.nested_scales) {
            float *nested = static_cast<float *>(cut(p, bytes.nested_scales));
            fill_floats<<<64, 256>>>(nested, bytes.nested_scales / 4, static_cast<uint32_t>(i) + 300);
            it->nested_scales = nested;
            it->nested_table = table;
        }
        outs[i] = cut(p, out_bytes);
    }
    CUDA(cudaDeviceSynchronize());
    int calls = count < 8 ? 8 : count;
    double seconds = seconds_of(calls, [&](int i, cudaStream_t stream) {
        const nbl_weight *it = &copies[i % count];
        if (c.m > 0) NIBBLE(nbl__cuda_gemv(ctx, it, c.dtype, c.m, x, outs[i % count], stream));
        else NIBBLE(nbl__cuda_dequantize(ctx, it, 0, rows, c.dtype, c.m < 0, outs[i % count], stream));
    });
    CUDA(cudaDeviceSynchronize());
    double rate = static_cast<double>(traffic) / seconds * 1e-12, copied = copy_rate(p, traffic);
    printf("%-22s %-5s %-6s %-4s %6dx%-6d %9.2f us %6.2f TB/s   copy %5.2f   %3.0f %%\n", name,
           nbl_format_name(c.format), c.nested ? "nested" : "flat", nbl_dtype_name(c.dtype),
           static_cast<int>(rows), static_cast<int>(columns), seconds * 1e6, rate, copied,
           100 * rate / copied);
    fflush(stdout);
}

int run_bench(nbl_context *ctx, const char *only)
{
    static const bench_case cases[] = {
        {NBL_FORMAT_NF4, false, 0, NBL_DTYPE_BF16},  {NBL_FORMAT_NF4, true, 0, NBL_DTYPE_BF16},
        {NBL_FORMAT_NF4, true, 0, NBL_DTYPE_F16},    {NBL_FORMAT_NF4, false, 0, NBL_DTYPE_F32},
        {NBL_FORMAT_INT8, false, 0, NBL_DTYPE_BF16}, {NBL_FORMAT_MXFP4, false, 0, NBL_DTYPE_BF16},
        {NBL_FORMAT_NF4, false, -1, NBL_DTYPE_BF16}, {NBL_FORMAT_NF4, true, -1, NBL_DTYPE_BF16},
        {NBL_FORMAT_NF4, false, 1, NBL_DTYPE_BF16},  {NBL_FORMAT_NF4, false, 2, NBL_DTYPE_BF16},
        {NBL_FORMAT_NF4, false, 4, NBL_DTYPE_BF16},  {NBL_FORMAT_NF4, false, 8, NBL_DTYPE_BF16},
        {NBL_FORMAT_NF4, true, 1, NBL_DTYPE_BF16},   {NBL_FORMAT_NF4, true, 8, NBL_DTYPE_BF16},
        {NBL_FORMAT_NF4, true, 1, NBL_DTYPE_F16},    {NBL_FORMAT_INT8, false, 1, NBL_DTYPE_BF16},
        {NBL_FORMAT_INT8, false, 8, NBL_DTYPE_BF16}, {NBL_FORMAT_NF4, false, 1, NBL_DTYPE_F32},
        {NBL_FORMAT_NF4, false, 8, NBL_DTYPE_F32},
    };
    static const int64_t shapes[][2] = {{28672, 8192}, {4096, 4096}, {14336, 4096}};
    /* what a model of 1 or 8 billion parameters reads for a token */
    static const int64_t dequantize[][2] = {{2048, 2048}, {8192, 2048},  {2048, 8192},  {512, 2048},
                                            {4096, 4096}, {14336, 4096}, {4096, 14336}, {1024, 4096}};
    pool p = {NULL, size_t(4) << 30, 0};
    CUDA(cudaMalloc(&p.memory, p.size));
    fill_bytes<<<4096, 256>>>(reinterpret_cast<uint32_t *>(p.memory), p.size / 4, 77);
    CUDA(cudaDeviceSynchronize());
    printf("traffic counted: decode, packed bytes read and values written; gemv, packed bytes read. copy: "
           "device to "
           "device, as many bytes read and written\n");
    for (auto shape : shapes)
        for (auto c : cases) bench(ctx, &p, only, c, shape[0], shape[1]);
    for (auto shape : dequantize)
        for (bool nested : {false, true})
            bench(ctx, &p, only, {NBL_FORMAT_NF4, nested, 1, NBL_DTYPE_BF16}, shape[0], shape[1]);
    CUDA(cudaFree(p.memory));
    return 0;
}

} // namespace

int main(int argc, char **argv)
{
    bool test = argc >= 2 && strcmp(argv[1], "test") == 0,
         measure = argc >= 2 && strcmp(argv[1], "bench") == 0;
    bool quick = argc == 3 && strcmp(argv[2], "--quick") == 0;
    if ((!test && !measure) || argc > 3 || (test && argc == 3 && !quick)) {
        fprintf(stderr, "usage: cuda_quant test [--quick] | bench [gemv|dequantize]\n");
        return 2;
    }
    nbl_context *ctx = NULL;
    nbl_cuda_device device;
    NBL_RESULT_INIT(device);
    if (nbl_context_create(NULL, &ctx) != NBL_OK) stop("nbl_context_create", "failed", __LINE__);
    if (nbl_cuda_device_get(ctx, 0, &device) != NBL_OK) {
        printf("cuda_quant: skipped: %s\n", nbl_error_message(ctx));
        nbl_context_destroy(ctx);
        return 77;
    }
    printf("%s, compute capability %d.%d, %.0f GiB\n", device.name, device.major, device.minor,
           static_cast<double>(device.memory_bytes) / (1 << 30));
    int status = test ? run_tests(ctx, quick) : run_bench(ctx, argc == 3 ? argv[2] : NULL);
    nbl_context_destroy(ctx);
    return status;
}
