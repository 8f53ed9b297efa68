/* cuda_step.cu - times what a training step does outside its layers, on the first CUDA device.
 *
 *   cuda_step     the optimizer over the 448 tensors (42 million parameters) of LoRA adapters of rank 16 for
 *                 all projections of Llama-3.1-8B, the norm of their gradients, and heads with their loss
 *                 for 8192 tokens
 *
 * nibble-ops perf times single tensors; here are many, and sizes that a host would take long to fill.
 * Values are hashed counters, made on the device. Each line: the median of 20 calls, bytes or operations
 * per second, and the share of a plain copy's, or of the products' alone, in the same run. */
#include <initializer_list>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "examine.cuh"

#include "ops/common/load.cuh"

extern "C" {
#include "ops/optimizer/adamw.h"
#include "ops/loss/cross_entropy.h"
#include "ops/families.h"
#include "ops/optimizer/grad_norm.h"
}

using namespace nbl_cuda;

namespace
{

constexpr int SAMPLES = 20, LAYERS = 32, RANK = 16, HIDDEN = 4096, WIDE = 14336, KEYS = 1024, TOKENS = 8192,
              VOCABULARY = 128256, TENSORS = LAYERS * 7 * 2;

enum kind { ZERO, VALUES, POSITIVE, LABELS };

template <typename T> __global__ void fill_kernel(T *to, int64_t n, kind what, float size, uint32_t seed)
{
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
         i += gridDim.x * blockDim.x) {
        uint64_t z = (static_cast<uint64_t>(i) + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        float unit = static_cast<float>(static_cast<int32_t>(z >> 32)) * 0x1p-31f;
        if (what == POSITIVE) unit = fabsf(unit) + 0.01f;
        if constexpr (sizeof(T) == 1) to[i] = static_cast<uint8_t>(z >> 40);
        else if constexpr (__is_same(T, int32_t)) to[i] = static_cast<int32_t>((z >> 40) % VOCABULARY);
        else to[i] = from_f32<T>(unit * size);
    }
}

template <typename T> void fill(void *to, int64_t n, kind what, float size)
{
    static uint32_t seed = 1;
    fill_kernel<T><<<1024, 256>>>(static_cast<T *>(to), n, what, size, seed++);
    CUDA(cudaGetLastError());
}

nbl_tensor tensor_of(nbl_dtype dtype, int64_t rows, int64_t columns, kind what, float size)
{
    nbl_tensor t = {};
    int64_t n = rows * columns;
    t.dtype = dtype;
    t.rank = columns > 1 ? 2 : 1;
    t.shape[0] = rows;
    t.shape[1] = columns;
    CUDA(cudaMalloc(&t.data, static_cast<size_t>(n) * 4));
    if (dtype == NBL_DTYPE_U8) fill<uint8_t>(t.data, n, what, size);
    else if (dtype == NBL_DTYPE_I32) fill<int32_t>(t.data, n, what, size);
    else NBL_BY_DTYPE(dtype, T, fill<T>(t.data, n, what, size));
    return t;
}

int by_size(const void *a, const void *b)
{
    float x = *static_cast<const float *>(a), y = *static_cast<const float *>(b);
    return x < y ? -1 : x > y;
}

/* The median time of a call, in seconds. */
template <typename F> double median_of(cudaStream_t stream, F call)
{
    float times[SAMPLES];
    cudaEvent_t begin, end;
    CUDA(cudaEventCreate(&begin));
    CUDA(cudaEventCreate(&end));
    for (int i = -2; i < SAMPLES; i++) {
        CUDA(cudaEventRecord(begin, stream));
        call();
        CUDA(cudaEventRecord(end, stream));
        CUDA(cudaEventSynchronize(end));
        if (i >= 0) CUDA(cudaEventElapsedTime(&times[i], begin, end));
    }
    qsort(times, SAMPLES, sizeof *times, by_size);
    return static_cast<double>(times[SAMPLES / 2]) * 1e-3;
}

double time_op(nbl_context *ctx, const nbl__op *op, void *arguments)
{
    const nbl__impl *impl;
    void *scratch;
    NIBBLE(op->infer(ctx, arguments));
    NIBBLE(nbl__op_choose(ctx, op, arguments, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, arguments);
    CUDA(cudaMalloc(&scratch, bytes + 64));
    CUDA(cudaDeviceSynchronize());
    cudaStream_t stream = static_cast<cudaStream_t>(nbl__cuda_of(ctx)->stream);
    double seconds = median_of(stream,
                               [=] { NIBBLE(nbl__op_run(ctx, op, impl, arguments, scratch, bytes)); });
    NIBBLE(nbl__device_of(ctx)->wait(ctx, op->name));
    CUDA(cudaFree(scratch));
    return seconds;
}

void print_line(const char *what, double seconds, double amount, const char *unit, double yardstick)
{
    double rate = amount / seconds * 1e-12;
    printf("%-44s %9.1f us  %8.3f %s  %.2f\n", what, seconds * 1e6, rate, unit, rate / yardstick);
}

/* The adapters of a layer: of q, k, v, o, gate, up and down. */
void make_adapters(bool eight, nbl__adamw_tensor *to)
{
    static const int shapes[7][2] = {{HIDDEN, HIDDEN}, {KEYS, HIDDEN}, {KEYS, HIDDEN}, {HIDDEN, HIDDEN},
                                     {WIDE, HIDDEN},   {WIDE, HIDDEN}, {HIDDEN, WIDE}};
    for (int i = 0; i < LAYERS * 7; i++)
        for (int half = 0; half < 2; half++) {
            int64_t rows = half ? shapes[i % 7][0] : RANK, columns = half ? RANK : shapes[i % 7][1];
            int64_t blocks = rows * columns / NBL_ADAMW_BLOCK;
            nbl_dtype state = eight ? NBL_DTYPE_U8 : NBL_DTYPE_F32;
            nbl__adamw_tensor t = {};
            t.p = tensor_of(NBL_DTYPE_F32, rows, columns, VALUES, 0.1f);
            t.g = tensor_of(NBL_DTYPE_F32, rows, columns, VALUES, 1e-3f);
            t.m = tensor_of(state, rows, columns, VALUES, 1e-3f);
            t.v = tensor_of(state, rows, columns, POSITIVE, 1e-6f);
            if (eight) t.m_absmax = tensor_of(NBL_DTYPE_F32, blocks, 1, POSITIVE, 1e-3f);
            if (eight) t.v_absmax = tensor_of(NBL_DTYPE_F32, blocks, 1, POSITIVE, 1e-6f);
            *to++ = t;
        }
}

void time_optimizer(nbl_context *ctx, double copy)
{
    for (int eight = 0; eight < 2; eight++) {
        nbl__adamw_tensor all[TENSORS];
        nbl_tensor gradients[TENSORS];
        make_adapters(eight, all);
        nbl__adamw a = {};
        double n = 0;
        for (const nbl__adamw_tensor &t : all) n += static_cast<double>(nbl__tensor_elements(&t.p));
        a.tensors = all;
        a.count = TENSORS;
        a.lr = 1e-4, a.beta1 = 0.9, a.beta2 = 0.999, a.eps = 1e-8, a.weight_decay = 0.01, a.grad_scale = 1;
        a.step = 10;
        a.bits = eight ? 8 : 32;
        double seconds = time_op(ctx, &nbl__adamw_family.forward, &a);
        print_line(eight ? "adamw, 8 bits, 448 tensors" : "adamw, 32 bits, 448 tensors", seconds,
                   n * (eight ? 16 + 16.0 / int{NBL_ADAMW_BLOCK} : 28), "TB/s", copy);
        for (int clip = 0; clip < 2 && !eight; clip++) {
            for (int i = 0; i < TENSORS; i++) gradients[i] = all[i].g;
            nbl__grad_norm g = {};
            g.gradients = gradients;
            g.count = a.count;
            g.max_norm = clip ? 1e-6 : 0; /* so small that each call multiplies */
            g.norm = tensor_of(NBL_DTYPE_F32, 1, 1, ZERO, 0);
            seconds = time_op(ctx, &nbl__grad_norm_family.forward, &g);
            print_line(clip ? "grad_norm and clipping" : "grad_norm", seconds, n * (clip ? 12 : 4), "TB/s", copy);
        }
        for (const nbl__adamw_tensor &t : all)
            for (void *part : {t.p.data, t.g.data, t.m.data, t.v.data, t.m_absmax.data, t.v_absmax.data})
                CUDA(cudaFree(part));
    }
}

/* The head of a model: with its loss for 8192 tokens. */
void time_head(nbl_context *ctx, const char *model, int64_t hidden, int64_t vocabulary)
{
    nbl__cross_entropy a = {};
    nbl_tensor w = tensor_of(NBL_DTYPE_BF16, vocabulary, hidden, VALUES, 0.05f);
    a.dtype = NBL_DTYPE_BF16;
    a.x = tensor_of(NBL_DTYPE_BF16, TOKENS, hidden, VALUES, 1);
    a.labels = tensor_of(NBL_DTYPE_I32, TOKENS, 1, LABELS, 1);
    a.w.format = NBL_FORMAT_DENSE;
    a.w.dtype = NBL_DTYPE_BF16;
    a.w.rank = 2;
    a.w.shape[0] = vocabulary;
    a.w.shape[1] = hidden;
    a.w.data = w.data;
    a.loss = tensor_of(NBL_DTYPE_F32, 1, 1, ZERO, 0);
    a.logprobs = tensor_of(NBL_DTYPE_F32, TOKENS, 1, ZERO, 0);
    a.lse = tensor_of(NBL_DTYPE_F32, 2, TOKENS, ZERO, 0);
    a.dx_in_forward = tensor_of(NBL_DTYPE_F32, TOKENS, hidden, ZERO, 0);
    double one = 2.0 * TOKENS * static_cast<double>(hidden * vocabulary);
    nbl__call call = {ctx, "cuda_step", NULL, 0, nbl__device_of(ctx), {}, {}};
    nbl__cublaslt_gemm g = {};
    g.dtype = NBL_DTYPE_BF16;
    g.c_dtype = NBL_DTYPE_F32;
    g.m = 1024;
    g.n = vocabulary;
    g.k = hidden;
    g.a = a.x.data;
    g.b = w.data;
    g.b_transposed = true;
    g.alpha = 1;
    CUDA(cudaMalloc(&g.c, static_cast<size_t>(g.m * g.n) * 4));
    double alone = median_of(static_cast<cudaStream_t>(nbl__call_cuda(&call)->stream),
                             [&] { NIBBLE(nbl__cuda_gemm(&call, &g)); });
    double rate = one * 1024 / TOKENS / alone * 1e-12;
    printf("%s: %d tokens x %" PRId64 " x %" PRId64 "\n", model, TOKENS, hidden, vocabulary);
    print_line("the product of 1024 tokens alone", alone, one * 1024 / TOKENS, "TFLOP/s", rate);
    for (int grad_in_forward = 0; grad_in_forward < 2; grad_in_forward++) {
        a.grad_in_forward = grad_in_forward;
        print_line(grad_in_forward ? "cross_entropy with dx" : "cross_entropy",
                   time_op(ctx, &nbl__cross_entropy_family.forward, &a), (1 + grad_in_forward) * one, "TFLOP/s", rate);
    }
    a.grad_in_forward = false;
    a.dx = tensor_of(NBL_DTYPE_BF16, TOKENS, hidden, ZERO, 0);
    a.dloss = tensor_of(NBL_DTYPE_F32, 1, 1, POSITIVE, 1);
    print_line("cross_entropy_backward", time_op(ctx, &nbl__cross_entropy_family.backward, &a), 2 * one, "TFLOP/s",
               rate);
    for (const nbl_tensor *t :
         {&w, &a.x, &a.labels, &a.loss, &a.logprobs, &a.lse, &a.dx_in_forward, &a.dx, &a.dloss})
        CUDA(cudaFree(t->data));
    CUDA(cudaFree(g.c));
}

} // namespace

int main(void)
{
    nbl_context *ctx;
    int count;
    if (nbl_context_create(NULL, &ctx) != NBL_OK) return 1;
    if (nbl_cuda_device_count(ctx, &count) != NBL_OK) {
        printf("cuda_step: %s\n", nbl_error_message(ctx));
        return 77;
    }
    NIBBLE(nbl_context_use_cuda(ctx, 0));
    const size_t bytes = size_t{1} << 30;
    void *from, *to;
    CUDA(cudaMalloc(&from, bytes));
    CUDA(cudaMalloc(&to, bytes));
    cudaStream_t stream = static_cast<cudaStream_t>(nbl__cuda_of(ctx)->stream);
    double seconds = median_of(
        stream, [=] { CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream)); });
    double copy = 2.0 * static_cast<double>(bytes) / seconds * 1e-12;
    print_line("a copy", seconds, 2.0 * static_cast<double>(bytes), "TB/s", copy);
    CUDA(cudaFree(from));
    CUDA(cudaFree(to));
    time_optimizer(ctx, copy);
    time_head(ctx, "Llama-3.2-1B", 2048, 128256);
    time_head(ctx, "Qwen3-1.7B", 2048, 151936);
    time_head(ctx, "Llama-3.1-8B", 4096, 128256);
    nbl_context_destroy(ctx);
    return 0;
}
