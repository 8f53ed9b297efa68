/* cuda_borrowed.cu - contexts on a stream of the caller's (nbl_context_use_cuda_stream), on the first device. Only the public
 * header is used, as a framework does.
 *
 *   cuda_borrowed test
 *
 *     order      dequantize and products on a side stream, behind a kernel that takes long and then writes the weight
 *     offsets    nested_offset_at gives the bits of nested_offset, in every kernel that reads nested scales; a captured
 *                graph reads a new one
 *     graphs     forward and backward of a layer with dropout in one captured graph: replayed with new inputs and seeds,
 *                it gives the bits of direct calls
 *     faults     a label outside the vocabulary fails the next call, and no other
 *     threads    contexts of four threads that share a handle give the bits of one
 *
 * Exit status 77: there is no device. */
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

#include "examine.cuh"
#include "nibble.h"

namespace
{

constexpr int64_t IN = 512, OUT = 384, RANK = 8, TOKENS = 200, VOCABULARY = 1000;
constexpr size_t SCRATCH = size_t{256} << 20;
int failures;

/* ---- data ---- */

__host__ __device__ inline uint32_t hash_of(uint64_t i, uint32_t seed)
{
    uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(seed) * 0xd1b54a32d192ed03u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return static_cast<uint32_t>((z ^ z >> 31) >> 16);
}

/* Waits for `cycles`, then fills `to` with bytes (kind 0), f32 (1), bf16 (2) or positive f32 (3). One block. */
__global__ void fill_late(long long cycles, void *to, int kind, int64_t n, float size, uint32_t seed)
{
    long long begin = clock64();
    while (clock64() - begin < cycles) {
    }
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
        uint32_t bits = hash_of(i, seed);
        float value = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f * size;
        if (kind == 0) static_cast<uint8_t *>(to)[i] = static_cast<uint8_t>(bits);
        else if (kind == 1) static_cast<float *>(to)[i] = value;
        else if (kind == 2) static_cast<__nv_bfloat16 *>(to)[i] = __float2bfloat16_rn(value);
        else static_cast<float *>(to)[i] = fabsf(value);
    }
}

constexpr long long LONG = 20 << 20; /* cycles: some ten milliseconds */

void fill(cudaStream_t stream, void *to, int kind, int64_t n, float size, uint32_t seed, long long cycles = 0)
{
    fill_late<<<1, 1024, 0, stream>>>(cycles, to, kind, n, size, seed);
    CUDA(cudaGetLastError());
}

void *device_memory(size_t bytes)
{
    void *memory = NULL;
    CUDA(cudaMalloc(&memory, bytes));
    CUDA(cudaMemset(memory, 0xff, bytes)); /* NaN: what is not written shows */
    return memory;
}

void *filled(int kind, int64_t n, float size, uint32_t seed)
{
    void *memory = device_memory(static_cast<size_t>(n) * (kind == 0 ? 1 : kind == 2 ? 2 : 4));
    fill(NULL, memory, kind, n, size, seed);
    CUDA(cudaDeviceSynchronize());
    return memory;
}

/* A tensor of rank 2, or with rows 0 of rank 1. */
nbl_tensor tensor(nbl_dtype dtype, int64_t rows, int64_t columns, void *data)
{
    return rows ? nbl_matrix(dtype, rows, columns, data) : nbl_vector(dtype, columns, data);
}

nbl_weight packed_weight(int64_t rows, int64_t columns, uint32_t seed)
{
    nbl_weight w = {};
    int64_t n = rows * columns, blocks = (n + 63) / 64;
    w.format = NBL_FORMAT_NF4;
    w.dtype = NBL_DTYPE_BF16;
    w.rank = 2;
    w.shape[0] = rows;
    w.shape[1] = columns;
    w.block = 64;
    w.data = filled(0, (n + 1) / 2, 1, seed);
    w.scale_codes = static_cast<const uint8_t *>(filled(0, blocks, 1, seed + 1));
    w.nested_scales = static_cast<const float *>(filled(3, (blocks + 255) / 256, 0.02f, seed + 2));
    w.nested_table = static_cast<const float *>(filled(3, 256, 1, seed + 3));
    w.nested_block = 256;
    w.nested_offset = 0.0625f;
    return w;
}

/* A copy in host memory. */
template <typename T> T *on_host(const void *from, size_t count)
{
    T *to = static_cast<T *>(aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64 + 64));
    if (to == NULL) stop("aligned_alloc", "out of memory", __LINE__);
    CUDA(cudaMemcpy(to, from, count * sizeof(T), cudaMemcpyDeviceToHost));
    return to;
}

nbl_weight weight_on_host(const nbl_weight *w)
{
    nbl_weight h = *w;
    size_t n = static_cast<size_t>(w->shape[0] * w->shape[1]), blocks = (n + 63) / 64;
    h.data = on_host<uint8_t>(w->data, (n + 1) / 2);
    h.scale_codes = on_host<uint8_t>(w->scale_codes, blocks);
    h.nested_scales = on_host<float>(w->nested_scales, (blocks + 255) / 256);
    h.nested_table = on_host<float>(w->nested_table, 256);
    return h;
}

void expect_same(const char *what, const void *got, const void *expected, size_t bytes)
{
    uint8_t *a = on_host<uint8_t>(got, bytes), *b = on_host<uint8_t>(expected, bytes);
    size_t i = 0;
    while (i < bytes && a[i] == b[i]) i++;
    if (i < bytes) {
        printf("  WRONG: %s: byte %zu of %zu\n", what, i, bytes);
        failures++;
    }
    free(a);
    free(b);
}

nbl_context *borrowing(cudaStream_t stream, nbl_context *share)
{
    nbl_context *ctx = NULL;
    if (nbl_context_create(NULL, &ctx) != NBL_OK) stop("nbl_context_create", "failed", __LINE__);
    NIBBLE(nbl_context_use_cuda_stream(ctx, 0, stream, share));
    return ctx;
}

cudaStream_t new_stream()
{
    cudaStream_t stream;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

/* Runs a linear layer. */
void linear(nbl_context *ctx, const nbl_linear *a, bool backward, void *scratch)
{
    size_t bytes = 0;
    NIBBLE(nbl_linear_scratch(ctx, a, backward, &bytes));
    if (bytes > SCRATCH) stop("nbl_linear_scratch", "too much", __LINE__);
    NIBBLE(backward ? nbl_linear_backward(ctx, a, scratch, bytes) : nbl_linear_forward(ctx, a, scratch, bytes));
}

/* ---- order ---- */

void test_order(nbl_context *ctx, void *scratch)
{
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
    cudaStream_t side = new_stream();
    nbl_weight w = packed_weight(OUT, IN, 1);
    nbl_context *cpu = NULL;
    if (nbl_context_create(NULL, &cpu) != NBL_OK) stop("nbl_context_create", "failed", __LINE__);
    void *out = device_memory(OUT * IN * 4), *expected = device_memory(OUT * IN * 4);
    void *values = malloc(OUT * IN * 4);
    NIBBLE(nbl_context_set_stream(ctx, side));
    for (int i = 0; i < 12; i++) {
        nbl_dtype dtype = dtypes[i % 3];
        bool transpose = i / 3 % 2;
        int64_t begin = i < 6 ? 0 : 5, end = i < 6 ? OUT : 78; /* 73 rows from the 5th on */
        size_t bytes = static_cast<size_t>((end - begin) * IN) * (dtype == NBL_DTYPE_F32 ? 4 : 2);
        CUDA(cudaMemset(const_cast<void *>(w.data), 0, OUT * IN / 2));
        CUDA(cudaMemset(out, 0xff, bytes));
        CUDA(cudaDeviceSynchronize());
        fill(side, const_cast<void *>(w.data), 0, OUT * IN / 2, 1, 100 + i, LONG);
        NIBBLE(nbl_dequantize(ctx, &w, begin, end, dtype, transpose, out));
        CUDA(cudaStreamSynchronize(side));
        nbl_weight h = weight_on_host(&w);
        if (nbl_dequantize(cpu, &h, begin, end, dtype, transpose, values) != NBL_OK)
            stop("nbl_dequantize", nbl_error_message(cpu), __LINE__);
        CUDA(cudaMemcpy(expected, values, bytes, cudaMemcpyHostToDevice));
        expect_same("dequantize behind a long kernel", out, expected, bytes);
    }
    /* One row reads its weight ahead of the stream, but not before it is written. */
    nbl_linear a = {};
    a.dtype = NBL_DTYPE_BF16;
    a.x = tensor(NBL_DTYPE_BF16, 1, IN, filled(2, IN, 1, 9));
    a.w = w;
    a.y = tensor(NBL_DTYPE_BF16, 1, OUT, out);
    for (int dense = 0; dense < 2; dense++) {
        if (dense) {
            a.w = {};
            a.w.dtype = NBL_DTYPE_BF16;
            a.w.rank = 2;
            a.w.shape[0] = OUT;
            a.w.shape[1] = IN;
            a.w.data = filled(2, OUT * IN, 1, 10);
        }
        void *data = const_cast<void *>(a.w.data);
        int64_t n = dense ? OUT * IN : OUT * IN / 2;
        a.y.data = expected;
        fill(side, data, dense ? 2 : 0, n, 1, 77);
        CUDA(cudaStreamSynchronize(side));
        linear(ctx, &a, false, scratch);
        CUDA(cudaStreamSynchronize(side));
        a.y.data = out;
        for (int i = 0; i < 20; i++) {
            CUDA(cudaMemsetAsync(data, 0, static_cast<size_t>(n) * (dense ? 2 : 1), side));
            CUDA(cudaMemsetAsync(out, 0xff, OUT * 2, side));
            fill(side, data, dense ? 2 : 0, n, 1, 77, i % 2 ? 0 : LONG / 16);
            linear(ctx, &a, false, scratch);
            CUDA(cudaStreamSynchronize(side));
            expect_same(dense ? "a dense row of x after its weight" : "a packed row of x after its weight", out,
                        expected, OUT * 2);
        }
    }
    free(values);
    nbl_context_destroy(cpu);
    CUDA(cudaStreamDestroy(side));
}

/* ---- offsets ---- */

/* One way to read a nested scale. */
struct reader {
    const char *name;
    nbl_dtype dtype;
    int64_t rows;    /* of x; 0: dequantize; -1: transposed; -2: to an address that is not aligned; -3: dora_norm */
    int64_t columns; /* of the weight */
};
const reader readers[] = {{"dequantize_tiles", NBL_DTYPE_BF16, 0, IN},
                          {"dequantize_tiles, f32", NBL_DTYPE_F32, 0, IN},
                          {"dequantize_transposed", NBL_DTYPE_F16, -1, IN},
                          {"dequantize_any", NBL_DTYPE_BF16, -2, IN},
                          {"norms", NBL_DTYPE_BF16, -3, IN},
                          {"gemv_one", NBL_DTYPE_BF16, 1, IN},
                          {"gemv_one, f16", NBL_DTYPE_F16, 1, IN},
                          {"gemv_ring", NBL_DTYPE_BF16, 3, IN},
                          {"gemv_ring, ragged", NBL_DTYPE_F16, 8, IN - 64},
                          {"gemv_ring_f32", NBL_DTYPE_F32, 1, IN},
                          {"gemv_ring_f32, 4 rows", NBL_DTYPE_F32, 4, IN},
                          {"gemv_plain", NBL_DTYPE_BF16, 2, IN - 8},
                          {"gemv_plain, elements", NBL_DTYPE_F32, 2, IN - 3},
                          {"a large batch", NBL_DTYPE_BF16, 64, IN}};

void read_with(nbl_context *ctx, const reader *r, const nbl_weight *w, const nbl_linear *layer, void *out, void *scratch)
{
    if (r->rows == -3) {
        nbl_dora_norm d = {};
        d.dtype = r->dtype;
        d.w = *w;
        d.lora_a = layer->lora_a, d.lora_b = layer->lora_b;
        d.scale = 1;
        d.norm = nbl_vector(NBL_DTYPE_F32, OUT, out);
        NIBBLE(nbl_dora_norm_forward(ctx, &d, scratch, SCRATCH));
    } else if (r->rows <= 0) {
        char *to = static_cast<char *>(out) + (r->rows == -2 ? 2 : 0);
        NIBBLE(nbl_dequantize(ctx, w, 0, OUT, r->dtype, r->rows == -1, to));
    } else {
        nbl_linear a = {};
        a.dtype = r->dtype;
        a.x = tensor(r->dtype, r->rows, r->columns, layer->x.data); /* any bits will do, f16 and f32 too */
        a.w = *w;
        a.y = tensor(r->dtype, r->rows, OUT, out);
        linear(ctx, &a, false, scratch);
    }
}

void test_offsets(nbl_context *ctx, void *scratch)
{
    cudaStream_t stream = new_stream();
    size_t bytes = OUT * IN * 4;
    void *plain = device_memory(bytes), *pointed = device_memory(bytes);
    float *offset = static_cast<float *>(device_memory(4)), values[2] = {0.0625f, -0.4375f};
    nbl_linear layer = {};
    layer.x.data = filled(2, 64 * IN * 2, 1, 20);
    layer.lora_a = tensor(NBL_DTYPE_F32, RANK, IN, filled(1, RANK * IN, 0.1f, 21));
    layer.lora_b = tensor(NBL_DTYPE_F32, OUT, RANK, filled(1, OUT * RANK, 0.1f, 22));
    NIBBLE(nbl_context_set_stream(ctx, stream));
    for (const reader &r : readers) {
        nbl_weight w = packed_weight(OUT, r.columns, 23), at = w;
        cudaGraph_t graph;
        cudaGraphExec_t ready;
        at.nested_offset = NAN;
        at.nested_offset_at = offset;
        CUDA(cudaMemset(pointed, 0xff, bytes));
        CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        read_with(ctx, &r, &at, &layer, pointed, scratch);
        CUDA(cudaStreamEndCapture(stream, &graph));
        CUDA(cudaGraphInstantiate(&ready, graph, 0));
        for (float value : values) {
            w.nested_offset = value;
            CUDA(cudaMemset(plain, 0xff, bytes));
            CUDA(cudaMemset(pointed, 0xff, bytes));
            CUDA(cudaMemcpy(offset, &value, 4, cudaMemcpyHostToDevice));
            CUDA(cudaDeviceSynchronize());
            read_with(ctx, &r, &w, &layer, plain, scratch);
            read_with(ctx, &r, &at, &layer, pointed, scratch);
            CUDA(cudaStreamSynchronize(stream));
            expect_same(r.name, pointed, plain, bytes);
            CUDA(cudaMemset(pointed, 0xff, bytes));
            CUDA(cudaDeviceSynchronize());
            CUDA(cudaGraphLaunch(ready, stream));
            CUDA(cudaStreamSynchronize(stream));
            expect_same(r.name, pointed, plain, bytes);
        }
        CUDA(cudaGraphExecDestroy(ready));
        CUDA(cudaGraphDestroy(graph));
    }
    CUDA(cudaStreamDestroy(stream));
}

/* ---- graphs ---- */

/* A layer with all its tensors. */
struct layer {
    nbl_linear a;
    size_t sizes[4];
    void *results[5]; /* y, dx, dA, dB */
};

layer new_layer(nbl_dtype dtype, int64_t tokens, bool dora)
{
    layer l = {};
    nbl_linear *a = &l.a;
    int kind = dtype == NBL_DTYPE_BF16 ? 2 : 1;
    size_t size = dtype == NBL_DTYPE_BF16 ? 2 : 4;
    a->dtype = dtype;
    a->x = tensor(dtype, tokens, IN, filled(kind, tokens * IN, 1, 30));
    a->w = packed_weight(OUT, IN, 31);
    a->lora_a = tensor(NBL_DTYPE_F32, RANK, IN, filled(1, RANK * IN, 0.1f, 32));
    a->lora_b = tensor(NBL_DTYPE_F32, OUT, RANK, filled(1, OUT * RANK, 0.1f, 33));
    if (dora) a->magnitude = tensor(NBL_DTYPE_F32, 0, OUT, filled(3, OUT, 1, 34));
    a->scale = 2;
    a->dropout = 0.25f;
    a->seed = 12345;
    a->seeds = nbl_vector(NBL_DTYPE_I64, 1, device_memory(8));
    a->dy = tensor(dtype, tokens, OUT, filled(kind, tokens * OUT, 1, 35));
    l.sizes[0] = static_cast<size_t>(tokens * OUT) * size;
    l.sizes[1] = static_cast<size_t>(tokens * IN) * size;
    l.sizes[2] = RANK * IN * 4;
    l.sizes[3] = OUT * RANK * 4;
    for (int i = 0; i < 4; i++) l.results[i] = device_memory(l.sizes[i]);
    a->y = tensor(dtype, tokens, OUT, l.results[0]);
    a->dx = tensor(dtype, tokens, IN, l.results[1]);
    a->dlora_a = tensor(NBL_DTYPE_F32, RANK, IN, l.results[2]);
    a->dlora_b = tensor(NBL_DTYPE_F32, OUT, RANK, l.results[3]);
    return l;
}

void test_graph(nbl_context *ctx, void *scratch, nbl_dtype dtype, int64_t tokens, bool dora, bool saves)
{
    static const char *const names[4] = {"y", "dx", "dA", "dB"};
    cudaStream_t stream = new_stream();
    NIBBLE(nbl_context_set_stream(ctx, stream));
    layer l = new_layer(dtype, tokens, dora);
    void *copies[4];
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    size_t bytes = 0;
    NIBBLE(nbl_linear_saved(ctx, &l.a, &bytes));
    if (saves && bytes > 0) l.a.saved = device_memory(bytes), l.a.saved_bytes = bytes;
    for (int i = 0; i < 4; i++) copies[i] = device_memory(l.sizes[i]);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    linear(ctx, &l.a, false, scratch);
    linear(ctx, &l.a, true, scratch);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&ready, graph, 0));
    uint8_t *before = NULL;
    for (int64_t step = 0; step < 4; step++) {
        int kind = dtype == NBL_DTYPE_BF16 ? 2 : 1;
        int64_t seed = step / 2 * 1000003 - 7; /* two steps have one seed, and new inputs */
        fill(stream, l.a.x.data, kind, tokens * IN, 1, 40 + static_cast<uint32_t>(step % 2));
        fill(stream, l.a.dy.data, kind, tokens * OUT, 1, 50 + static_cast<uint32_t>(step % 2));
        CUDA(cudaMemcpyAsync(l.a.seeds.data, &seed, 8, cudaMemcpyHostToDevice, stream));
        for (int i = 0; i < 4; i++) CUDA(cudaMemsetAsync(l.results[i], 0xff, l.sizes[i], stream));
        CUDA(cudaGraphLaunch(ready, stream));
        for (int i = 0; i < 4; i++) {
            CUDA(cudaMemcpyAsync(copies[i], l.results[i], l.sizes[i], cudaMemcpyDeviceToDevice, stream));
            CUDA(cudaMemsetAsync(l.results[i], 0xff, l.sizes[i], stream));
        }
        linear(ctx, &l.a, false, scratch);
        linear(ctx, &l.a, true, scratch);
        CUDA(cudaStreamSynchronize(stream));
        for (int i = 0; i < 4; i++) expect_same(names[i], copies[i], l.results[i], l.sizes[i]);
        /* The seed is read by the kernels: steps 0 and 2 differ in nothing else. */
        uint8_t *now = on_host<uint8_t>(l.results[0], l.sizes[0]);
        if (step == 0) before = now;
        else if (step == 2 && memcmp(before, now, l.sizes[0]) == 0) {
            printf("  WRONG: another seed gives the same y\n");
            failures++;
        }
        if (step > 0) free(now);
    }
    free(before);
    CUDA(cudaGraphExecDestroy(ready));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaStreamDestroy(stream));
}

/* `saved` spares work and changes nothing but the last bits of gradients: t is the one of forward. */
void test_saved(nbl_context *ctx, void *scratch)
{
    NIBBLE(nbl_context_set_stream(ctx, NULL));
    layer with = new_layer(NBL_DTYPE_BF16, TOKENS, false), without = with;
    size_t bytes = 0;
    int64_t seed = 99;
    CUDA(cudaMemcpy(with.a.seeds.data, &seed, 8, cudaMemcpyHostToDevice));
    NIBBLE(nbl_linear_saved(ctx, &with.a, &bytes));
    if (bytes == 0) printf("  WRONG: nothing is saved\n"), failures++;
    with.a.saved = device_memory(bytes + 64);
    with.a.saved_bytes = bytes;
    for (int i = 0; i < 4; i++) without.results[i] = device_memory(with.sizes[i]);
    without.a.y.data = without.results[0], without.a.dx.data = without.results[1];
    without.a.dlora_a.data = without.results[2], without.a.dlora_b.data = without.results[3];
    linear(ctx, &with.a, false, scratch);
    linear(ctx, &without.a, false, scratch);
    CUDA(cudaMemset(scratch, 0xff, SCRATCH));
    with.a.y = {}; /* backward does not need it */
    linear(ctx, &with.a, true, scratch);
    CUDA(cudaMemset(scratch, 0xff, SCRATCH));
    linear(ctx, &without.a, true, scratch);
    CUDA(cudaDeviceSynchronize());
    expect_same("y", with.results[0], without.results[0], with.sizes[0]);
    expect_same("dx", with.results[1], without.results[1], with.sizes[1]);
    expect_same("dA", with.results[2], without.results[2], with.sizes[2]);
    float *a = on_host<float>(with.results[3], OUT * RANK), *b = on_host<float>(without.results[3], OUT * RANK);
    double off = 0, norm = 0;
    for (int64_t i = 0; i < OUT * RANK; i++) off += pow(a[i] - b[i], 2), norm += pow(b[i], 2);
    printf("  dB with t of forward: %.2g of the norm off\n", sqrt(off / norm));
    if (!(sqrt(off / norm) < 1e-2)) printf("  WRONG: dB\n"), failures++;
    /* Not a byte behind `saved` is written. */
    uint8_t *end = on_host<uint8_t>(static_cast<char *>(with.a.saved) + bytes, 64);
    for (int i = 0; i < 64; i++)
        if (end[i] != 0xff) printf("  WRONG: behind saved\n"), failures++;
    free(a);
    free(b);
    free(end);
}

/* ---- faults ---- */

void test_faults(nbl_context *ctx, void *scratch)
{
    cudaStream_t stream = new_stream();
    NIBBLE(nbl_context_set_stream(ctx, stream));
    nbl_cross_entropy c = {};
    int32_t labels[TOKENS];
    for (int64_t i = 0; i < TOKENS; i++) labels[i] = static_cast<int32_t>(i * 5 % VOCABULARY);
    labels[17] = VOCABULARY;
    c.dtype = NBL_DTYPE_BF16;
    c.x = tensor(NBL_DTYPE_BF16, TOKENS, IN, filled(2, TOKENS * IN, 1, 60));
    c.w = packed_weight(VOCABULARY, IN, 61);
    c.labels = nbl_vector(NBL_DTYPE_I32, TOKENS, device_memory(sizeof labels));
    c.loss = nbl_vector(NBL_DTYPE_F32, 1, device_memory(4));
    c.logprobs = nbl_vector(NBL_DTYPE_F32, TOKENS, device_memory(TOKENS * 4));
    c.lse = tensor(NBL_DTYPE_F32, 2, TOKENS, device_memory(2 * TOKENS * 4));
    CUDA(cudaMemcpy(c.labels.data, labels, sizeof labels, cudaMemcpyHostToDevice));
    size_t bytes = 0;
    NIBBLE(nbl_cross_entropy_scratch(ctx, &c, false, &bytes));
    void *more = device_memory(bytes);
    NIBBLE(nbl_cross_entropy_forward(ctx, &c, more, bytes));
    CUDA(cudaStreamSynchronize(stream));
    nbl_status status = nbl_cross_entropy_forward(ctx, &c, more, bytes);
    if (status != NBL_ERROR_ARGUMENT || strstr(nbl_error_message(ctx), "labels: 1000 at index 17") == NULL) {
        printf("  WRONG: a bad label: %s: %s\n", nbl_status_name(status), nbl_error_message(ctx));
        failures++;
    }
    labels[17] = -100;
    CUDA(cudaMemcpy(c.labels.data, labels, sizeof labels, cudaMemcpyHostToDevice));
    for (int i = 0; i < 2; i++) {
        NIBBLE(nbl_cross_entropy_forward(ctx, &c, more, bytes));
        CUDA(cudaStreamSynchronize(stream));
    }
    (void)scratch;
    CUDA(cudaStreamDestroy(stream));
}

/* ---- threads ---- */

struct worker {
    nbl_context *share;
    const layer *mine;
    void *scratch;
};

void *work(void *argument)
{
    const worker *w = static_cast<const worker *>(argument);
    cudaStream_t stream = new_stream();
    nbl_context *ctx = borrowing(stream, w->share);
    for (int i = 0; i < 50; i++) {
        linear(ctx, &w->mine->a, false, w->scratch);
        linear(ctx, &w->mine->a, true, w->scratch);
    }
    CUDA(cudaStreamSynchronize(stream));
    nbl_context_destroy(ctx);
    CUDA(cudaStreamDestroy(stream));
    return NULL;
}

void test_threads(nbl_context *ctx, void *scratch)
{
    enum { THREADS = 4 };
    layer layers[THREADS];
    worker workers[THREADS];
    pthread_t threads[THREADS];
    int64_t seed = 5;
    for (int i = 0; i < THREADS; i++) {
        layers[i] = new_layer(NBL_DTYPE_BF16, TOKENS, false);
        CUDA(cudaMemcpy(layers[i].a.seeds.data, &seed, 8, cudaMemcpyHostToDevice));
        workers[i] = {ctx, &layers[i], device_memory(SCRATCH)};
    }
    for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, &workers[i]);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    layer own = new_layer(NBL_DTYPE_BF16, TOKENS, false);
    CUDA(cudaMemcpy(own.a.seeds.data, &seed, 8, cudaMemcpyHostToDevice));
    NIBBLE(nbl_context_set_stream(ctx, NULL));
    linear(ctx, &own.a, false, scratch);
    linear(ctx, &own.a, true, scratch);
    CUDA(cudaDeviceSynchronize());
    for (int i = 0; i < THREADS; i++)
        for (int r = 0; r < 4; r++) expect_same("a thread's result", layers[i].results[r], own.results[r], own.sizes[r]);
}

} // namespace

int main(int argc, char **argv)
{
    nbl_context *ctx = NULL;
    nbl_cuda_device device;
    NBL_RESULT_INIT(device);
    if (argc != 2 || strcmp(argv[1], "test") != 0) {
        fprintf(stderr, "usage: cuda_borrowed test\n");
        return 2;
    }
    if (nbl_context_create(NULL, &ctx) != NBL_OK) stop("nbl_context_create", "failed", __LINE__);
    if (nbl_cuda_device_get(ctx, 0, &device) != NBL_OK) {
        printf("cuda_borrowed: skipped: %s\n", nbl_error_message(ctx));
        nbl_context_destroy(ctx);
        return 77;
    }
    printf("%s, compute capability %d.%d\n", device.name, device.major, device.minor);
    size_t free_before = 0, free_after = 0, all = 0;
    CUDA(cudaFree(NULL));
    void *scratch = device_memory(SCRATCH);
    CUDA(cudaMemGetInfo(&free_before, &all));
    NIBBLE(nbl_context_use_cuda_stream(ctx, 0, NULL, NULL));
    CUDA(cudaMemGetInfo(&free_after, &all));
    printf("opening takes %.1f MiB of device memory\n", static_cast<double>(free_before - free_after) / (1 << 20));
    printf("order\n");
    test_order(ctx, scratch);
    printf("offsets\n");
    test_offsets(ctx, scratch);
    printf("graphs\n");
    for (int saves = 0; saves < 2; saves++) {
        test_graph(ctx, scratch, NBL_DTYPE_BF16, TOKENS, false, saves);
        test_graph(ctx, scratch, NBL_DTYPE_BF16, TOKENS, true, saves);
        test_graph(ctx, scratch, NBL_DTYPE_F32, 24, false, saves);
        test_graph(ctx, scratch, NBL_DTYPE_BF16, 5, false, saves);
    }
    test_saved(ctx, scratch);
    printf("faults\n");
    test_faults(ctx, scratch);
    printf("threads\n");
    test_threads(ctx, scratch);
    nbl_context_destroy(ctx);
    printf(failures ? "cuda_borrowed: %d WRONG\n" : "cuda_borrowed: passed\n", failures);
    return failures != 0;
}
