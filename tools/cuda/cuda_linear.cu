/* cuda_linear.cu - how fast linear layers with adapters are on the first device, beside their bare products.
 *
 *   cuda_linear bench [TOKENS ...]    the layers of an 8B model (Llama-3.1), NF4 with nested scales, bf16, rank 16, forward
 *                                     and backward. "bare" is the base products alone, dense bf16 by cuBLASLt in the same
 *                                     run: no adapter, nothing decoded
 *   cuda_linear steps [TOKENS ...]    the steps that a layer is made of, one by one, beside a copy of as many bytes
 *
 * The environment's DROPOUT is the adapters' dropout. Each call is captured in a graph, as training runs it, and replayed; times are medians of 15. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

#include "examine.cuh"

#include "ops/cuda/kernel.cuh"

extern "C" {
#include "ops/cuda/dequantize.h"
#include "ops/cuda/skinny.h"
#include "ops/families.h"
#include "ops/linear_group.h"
}

namespace
{

nbl_context *ctx;
nbl__cuda *cuda;

/* ---- data ---- */

__global__ void fill_kernel(void *to, int kind, int64_t n, float size, uint32_t seed)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
        uint64_t z = (i + 1) * 0x9e3779b97f4a7c15u + seed * 0xd1b54a32d192ed03u;
        z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
        z = (z ^ z >> 27) * 0x94d049bb133111ebu;
        uint32_t bits = static_cast<uint32_t>(z >> 32);
        float value = static_cast<float>(static_cast<int32_t>(bits)) * 0x1p-31f * size;
        if (kind == 0) static_cast<uint8_t *>(to)[i] = static_cast<uint8_t>(bits);
        else if (kind == 1) static_cast<float *>(to)[i] = value;
        else if (kind == 2) static_cast<__nv_bfloat16 *>(to)[i] = __float2bfloat16_rn(value);
        else static_cast<float *>(to)[i] = fabsf(value);
    }
}

/* What was allocated; given back at once after each line of the table. */
struct block {
    void *memory;
    size_t bytes;
} blocks[256];
int block_count;

void *take(size_t bytes)
{
    void *memory = nbl__cuda_alloc(cuda, bytes);
    if (memory == NULL || block_count == 256) stop("memory", nbl_error_message(ctx), __LINE__);
    blocks[block_count++] = {memory, bytes};
    return memory;
}
void give_back()
{
    while (block_count > 0) {
        block_count--;
        nbl__cuda_free(cuda, blocks[block_count].memory, blocks[block_count].bytes);
    }
}
void *filled(int kind, int64_t n, float size)
{
    static uint32_t seed;
    void *memory = take(static_cast<size_t>(n) * (kind == 0 ? 1 : kind == 2 ? 2 : 4));
    fill_kernel<<<1024, 256, 0, static_cast<cudaStream_t>(cuda->stream)>>>(memory, kind, n, size, ++seed);
    return memory;
}
nbl_tensor tensor(nbl_dtype dtype, int64_t rows, int64_t columns, float size)
{
    nbl_tensor t = {};
    t.dtype = dtype;
    t.rank = 2;
    t.shape[0] = rows;
    t.shape[1] = columns;
    t.data = filled(dtype == NBL_DTYPE_BF16 ? 2 : 1, rows * columns, size);
    return t;
}
nbl_weight nf4(int64_t out, int64_t in)
{
    nbl_weight w = {};
    int64_t n = out * in;
    w.format = NBL_FORMAT_NF4;
    w.dtype = NBL_DTYPE_BF16;
    w.rank = 2;
    w.shape[0] = out;
    w.shape[1] = in;
    w.block = 64;
    w.data = filled(0, n / 2, 1);
    w.scale_codes = static_cast<const uint8_t *>(filled(0, n / 64, 1));
    w.nested_scales = static_cast<const float *>(filled(3, (n / 64 + 255) / 256, 0.02f));
    w.nested_table = static_cast<const float *>(filled(3, 256, 1));
    w.nested_block = 256;
    w.nested_offset = 0.02f;
    return w;
}

/* ---- time ---- */

template <typename F> void *captured(F call)
{
    void *graph;
    call(); /* loads what is loaded when first used */
    NIBBLE(nbl__cuda_wait(cuda, "first call"));
    NIBBLE(nbl__cuda_record_begin(cuda));
    call();
    NIBBLE(nbl__cuda_record_end(cuda, true, &graph));
    return graph;
}

/* Medians of the times of up to two graphs, which take turns, so that both meet the device in the same state. */
void measure(void *const *graphs, int count, double *medians)
{
    cudaEvent_t begin, end;
    float times[2][15];
    cudaStream_t stream = static_cast<cudaStream_t>(cuda->stream);
    cudaEventCreate(&begin);
    cudaEventCreate(&end);
    for (int i = -2; i < 15; i++)
        for (int g = 0; g < count; g++) {
            cudaEventRecord(begin, stream);
            NIBBLE(nbl__cuda_replay(cuda, graphs[g]));
            cudaEventRecord(end, stream);
            NIBBLE(nbl__cuda_wait(cuda, "replay"));
            float time;
            cudaEventElapsedTime(&time, begin, end);
            if (i >= 0) times[g][i] = time;
        }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    for (int g = 0; g < count; g++) {
        std::sort(times[g], times[g] + 15);
        medians[g] = times[g][7];
        nbl__cuda_graph_free(cuda, graphs[g]);
    }
}

template <typename F> double milliseconds(F call)
{
    void *graph = captured(call);
    double median;
    measure(&graph, 1, &median);
    return median;
}

nbl__call call_of(const char *op)
{
    nbl__call call = {};
    call.ctx = ctx;
    call.op = op;
    call.cuda = cuda;
    return call;
}

nbl__gemm product_of(int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, bool a_turned,
                     const void *b, int64_t ldb, bool b_turned, void *c, nbl_dtype c_dtype, float beta)
{
    nbl__gemm g = {};
    g.dtype = NBL_DTYPE_BF16;
    g.c_dtype = c_dtype;
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.b = b, g.c = c;
    g.lda = lda, g.ldb = ldb, g.a_turned = a_turned, g.b_turned = b_turned;
    g.alpha = 1, g.beta = beta;
    return g;
}

double gemm(const nbl__gemm &g)
{
    nbl__call call = call_of("product");
    return milliseconds([&] { NIBBLE(nbl__cuda_gemm(&call, &g)); });
}

/* ---- layers ---- */

struct shape {
    const char *name;
    int count;
    int64_t in, outs[3];
};
const shape shapes[] = {{"q, k, v", 3, 4096, {4096, 1024, 1024}},
                        {"o", 1, 4096, {4096}},
                        {"gate, up", 2, 4096, {14336, 14336}},
                        {"down", 1, 14336, {4096}}};
constexpr int64_t RANK = 16;
float dropout;

struct result {
    double ms, bare, flop;
};

/* The bare products of a layer, one after another, captured. */
void *bare(const shape &s, int64_t tokens, bool backward, const void *x)
{
    nbl__gemm products[3];
    nbl__call call = call_of("product");
    void *dx = take(static_cast<size_t>(tokens * s.in * 2));
    for (int i = 0; i < s.count; i++) {
        int64_t out = s.outs[i];
        void *w = filled(2, out * s.in, 0.02f), *y = filled(2, tokens * out, 1);
        products[i] = backward
                          ? product_of(tokens, s.in, out, y, 0, false, w, 0, false, dx, NBL_DTYPE_BF16, 0)
                          : product_of(tokens, out, s.in, x, 0, false, w, 0, true, y, NBL_DTYPE_BF16, 0);
    }
    return captured([&] {
        for (int i = 0; i < s.count; i++) NIBBLE(nbl__cuda_gemm(&call, &products[i]));
    });
}

result layer(const shape &s, int64_t tokens, bool backward)
{
    static nbl__linear_group group;
    group = {};
    nbl__linear &first = group.members[0];
    first.dtype = NBL_DTYPE_BF16;
    first.scale = 2;
    first.threshold = 6;
    first.x = tensor(NBL_DTYPE_BF16, tokens, s.in, 1);
    first.accumulate = true;
    first.dropout = dropout;
    first.seed = 1;
    result r = {};
    for (int i = 0; i < s.count; i++) {
        nbl__linear &a = group.members[i];
        a.w = nf4(s.outs[i], s.in);
        a.lora_a = tensor(NBL_DTYPE_F32, RANK, s.in, 0.02f);
        a.lora_b = tensor(NBL_DTYPE_F32, s.outs[i], RANK, 0.02f);
        if (backward) a.dy = tensor(NBL_DTYPE_BF16, tokens, s.outs[i], 1);
        r.flop += 2.0 * static_cast<double>(tokens) * static_cast<double>(s.in) *
                  static_cast<double>(s.outs[i]);
    }
    const nbl__op *op = backward ? &nbl__linear_group_family.backward : &nbl__linear_group_family.forward;
    NIBBLE(op->infer(ctx, &group));
    for (int i = 0; i < s.count; i++) {
        nbl__linear &a = group.members[i];
        if (!backward) a.y = tensor(NBL_DTYPE_BF16, tokens, s.outs[i], 1);
        if (backward) a.dlora_a = tensor(NBL_DTYPE_F32, RANK, s.in, 1);
        if (backward) a.dlora_b = tensor(NBL_DTYPE_F32, s.outs[i], RANK, 1);
    }
    if (backward) first.dx = tensor(NBL_DTYPE_BF16, tokens, s.in, 1);
    const nbl__impl *impl;
    NIBBLE(nbl__op_choose(ctx, op, &group, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, &group);
    void *scratch = take(bytes);
    double times[2];
    void *graphs[2] = {captured([&] { NIBBLE(nbl__op_run(ctx, op, impl, &group, scratch, bytes)); }),
                       bare(s, tokens, backward, first.x.data)};
    measure(graphs, 2, times);
    r.ms = times[0], r.bare = times[1];
    printf("%6lld  %-9s %-9s %8.3f %8.3f %7.3f %9.0f %9.0f %8.0f\n", static_cast<long long>(tokens), s.name,
           backward ? "backward" : "forward", r.ms, r.bare, r.ms / r.bare, r.flop / r.ms * 1e-9,
           r.flop / r.bare * 1e-9, static_cast<double>(bytes) / (1 << 20));
    give_back();
    return r;
}

void bench(int64_t tokens)
{
    printf("tokens  layers    direction       ms  bare ms   ratio  TFLOP/s  bare TF/s  scratch MiB\n");
    result all = {};
    for (int backward = 0; backward < 2; backward++)
        for (const shape &s : shapes) {
            result r = layer(s, tokens, backward != 0);
            all.ms += r.ms, all.bare += r.bare, all.flop += r.flop;
        }
    printf("%6lld  all                 %8.3f %8.3f %7.3f %9.0f %9.0f\n", static_cast<long long>(tokens),
           all.ms, all.bare, all.ms / all.bare, all.flop / all.ms * 1e-9, all.flop / all.bare * 1e-9);
}

/* ---- steps ---- */

void line(const char *what, int64_t tokens, int64_t in, int64_t out, double ms, double bytes)
{
    printf("%-44s %6lld %6lld %6lld %9.1f us %7.2f TB/s\n", what, static_cast<long long>(tokens),
           static_cast<long long>(in), static_cast<long long>(out), ms * 1e3, bytes / ms * 1e-9);
}

void steps(int64_t tokens)
{
    nbl__call call = call_of("step");
    cudaStream_t stream = static_cast<cudaStream_t>(cuda->stream);
    const int64_t sizes[] = {4096, 14336};
    printf("step                                         tokens     in    out      time\n");
    for (int64_t in : sizes) {
        double n = static_cast<double>(tokens) * static_cast<double>(in);
        void *x = filled(2, tokens * in, 1), *copy = take(static_cast<size_t>(tokens * in * 2));
        void *a = filled(2, 64 * in, 1), *t = filled(2, tokens * 64, 1);
        float *gradient = static_cast<float *>(filled(1, 64 * in, 1));
        void *scratch = take(nbl__cuda_sweep_scratch(tokens, in, 32) +
                             nbl__cuda_sweep_scratch(tokens, in, 16));
        line("copy", tokens, in, 0, milliseconds([&] {
                 cudaMemcpyAsync(copy, x, static_cast<size_t>(tokens * in * 2), cudaMemcpyDeviceToDevice,
                                 stream);
             }),
             4 * n);
        for (int wide = 16; wide <= 48; wide += 16) {
            nbl__project p = {};
            p.rows = tokens, p.columns = in, p.x = x, p.a = a, p.wide = wide, p.to = t, p.to_ld = wide;
            for (float &scale : p.scales) scale = 1;
            line("project", tokens, in, wide, milliseconds([&] { NIBBLE(nbl__cuda_project(&call, &p)); }),
                 2 * n);
            line("the same by cuBLASLt", tokens, in, wide,
                 gemm(product_of(tokens, wide, in, x, 0, false, a, 0, true, t, NBL_DTYPE_BF16, 0)), 2 * n);
            line("outer product by cuBLASLt", tokens, in, wide,
                 gemm(product_of(wide, in, tokens, t, wide, true, x, 0, false, gradient, NBL_DTYPE_F32, 1)),
                 2 * n);
            line("t times B by cuBLASLt", tokens, wide, in,
                 gemm(product_of(tokens, in, wide, t, 0, false, a, 0, true, copy, NBL_DTYPE_BF16, 0)), 2 * n);
            if (wide == 48) continue;
            nbl__sweep sweep = {};
            sweep.rows = tokens, sweep.columns = in, sweep.z = x, sweep.wide = sweep.rank = wide, sweep.a = a;
            sweep.to = t, sweep.to_ld = wide, sweep.scale = 1, sweep.v = t, sweep.v_ld = wide;
            sweep.gradient = gradient;
            sweep.to = take(static_cast<size_t>(tokens * wide * 2));
            line("sweep", tokens, in, wide,
                 milliseconds([&] { NIBBLE(nbl__cuda_sweep(&call, &sweep, scratch)); }), 2 * n);
        }
        give_back();
    }
    const int64_t products[][2] = {{4096, 4096}, {4096, 1024}, {4096, 14336}, {14336, 4096}};
    for (auto &size : products) {
        int64_t in = size[0], out = size[1];
        double n = static_cast<double>(out) * static_cast<double>(in),
               flop = 2.0 * static_cast<double>(tokens) * n;
        nbl_weight w = nf4(out, in);
        void *dense = filled(2, out * (in + 64), 0.02f), *x = filled(2, tokens * (in + 64), 1);
        void *y = filled(2, tokens * (out + 64), 1);
        line("decode", 0, in, out, milliseconds([&] {
                 NIBBLE(nbl__cuda_dequantize(ctx, &w, 0, out, NBL_DTYPE_BF16, 0, dense, cuda->stream));
             }),
             2.53 * n);
        auto product = [&](const char *what, double ms) {
            printf("%-44s %6lld %6lld %6lld %9.1f us %7.0f TFLOP/s\n", what, static_cast<long long>(tokens),
                   static_cast<long long>(in), static_cast<long long>(out), ms * 1e3, flop / ms * 1e-9);
        };
        fill_kernel<<<1024, 256, 0, stream>>>(dense, 2, out * (in + 64), 0.02f, 77);
        product("x W^T",
                gemm(product_of(tokens, out, in, x, 0, false, dense, 0, true, y, NBL_DTYPE_BF16, 0)));
        product("x W^T + y",
                gemm(product_of(tokens, out, in, x, 0, false, dense, 0, true, y, NBL_DTYPE_BF16, 1)));
        product("[x | t] [W | B]^T, 16 more", gemm(product_of(tokens, out, in + 16, x, in + 64, false, dense,
                                                              in + 64, true, y, NBL_DTYPE_BF16, 0)));
        product("[x | t] [W | B]^T, 48 more", gemm(product_of(tokens, out, in + 48, x, in + 64, false, dense,
                                                              in + 64, true, y, NBL_DTYPE_BF16, 0)));
        product("[x | t] [W; B], 16 more", gemm(product_of(tokens, out, in + 16, x, in + 64, false, dense, 0,
                                                           false, y, NBL_DTYPE_BF16, 0)));
        give_back();
    }
}

} // namespace

int main(int argc, char **argv)
{
    bool whole = argc > 1 && strcmp(argv[1], "bench") == 0,
         single = argc > 1 && strcmp(argv[1], "steps") == 0;
    if (!whole && !single) {
        fprintf(stderr, "usage: cuda_linear bench|steps [TOKENS ...]\n");
        return 2;
    }
    if (nbl_context_create(NULL, &ctx) != NBL_OK) stop("context", "out of memory", __LINE__);
    if (nbl_context_use_cuda(ctx, 0) != NBL_OK) {
        fprintf(stderr, "cuda_linear: %s\n", nbl_error_message(ctx));
        return 77;
    }
    cuda = nbl__cuda_of(ctx);
    const char *rate = getenv("DROPOUT");
    if (rate) dropout = static_cast<float>(atof(rate));
    for (int i = 2; i < argc; i++) whole ? bench(atoll(argv[i])) : steps(atoll(argv[i]));
    if (argc == 2) whole ? bench(8192) : steps(8192);
    nbl_context_destroy(ctx);
    return 0;
}
