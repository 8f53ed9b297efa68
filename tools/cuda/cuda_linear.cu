/* cuda_linear.cu - how fast linear layers with adapters are on the first device, beside their bare products.
 *
 *   cuda_linear bench [TOKENS ...]    the layers of models of some sizes, NF4 with nested scales, bf16, rank 16,
 *                                     forward and backward. "bare" is the base products alone, dense bf16 by cuBLASLt,
 *                                     in turns with the layer: no adapter, nothing decoded. Then what backward's
 *                                     gradients are off, against sums in f64 (and WRONG before a line, also when a
 *                                     second run gives other bits), and the layer's kernels, in their order and
 *                                     microseconds: between events, which cost two or three of them each
 *
 * The environment's DROPOUT is the adapters' dropout, MODEL the only model wanted. Layer and bare products are captured
 * many times over in one graph, so that they run as hot as in training; times are medians. */
#include <cuda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>

#include "examine.cuh"

#include "ops/common/kernel.cuh"

extern "C" {
#include "ops/families.h"
#include "ops/linear/linear_group.h"
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
    void *memory = cuda->device.alloc(cuda->ctx, bytes, false);
    if (memory == NULL || block_count == 256) stop("memory", nbl_error_message(ctx), __LINE__);
    blocks[block_count++] = {memory, bytes};
    return memory;
}
void free_all()
{
    while (block_count > 0) {
        block_count--;
        cuda->device.free(cuda->ctx, blocks[block_count].memory, blocks[block_count].bytes);
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

nbl__call call_of(const char *op)
{
    nbl__call call = {};
    call.ctx = ctx;
    call.op = op;
    call.device = &cuda->device;
    return call;
}

nbl__cublaslt_gemm product_of(int64_t m, int64_t n, int64_t k, const void *a, int64_t lda, bool a_transposed,
                              const void *b, int64_t ldb, bool b_transposed, void *c, nbl_dtype c_dtype, float beta)
{
    nbl__cublaslt_gemm g = {};
    g.dtype = NBL_DTYPE_BF16;
    g.c_dtype = c_dtype;
    g.m = m, g.n = n, g.k = k;
    g.a = a, g.b = b, g.c = c;
    g.lda = lda, g.ldb = ldb, g.a_transposed = a_transposed, g.b_transposed = b_transposed;
    g.alpha = 1, g.beta = beta;
    return g;
}

/* ---- layers ---- */

struct shape {
    const char *name;
    int count;
    int64_t in, outs[3];
};
struct model {
    const char *name;
    int64_t hidden, queries, keys, inner;
};
const model models[] = {{"8B", 4096, 4096, 1024, 14336},
                        {"1B", 2048, 2048, 512, 8192},
                        {"Qwen3-1.7B", 2048, 2048, 1024, 6144},
                        {"Qwen3-0.6B", 1024, 2048, 1024, 3072}};
constexpr int64_t RANK = 16;
float dropout;

struct result {
    double ms, bare, flop;
};

struct products {
    nbl__cublaslt_gemm list[3];
    int count;
};

/* The bare products of a layer. */
products bare(const shape &s, int64_t tokens, bool backward, const void *x)
{
    products p = {};
    void *dx = take(static_cast<size_t>(tokens * s.in * 2));
    for (int i = 0; i < s.count; i++) {
        int64_t out = s.outs[i];
        void *w = filled(2, out * s.in, 0.02f), *y = filled(2, tokens * out, 1);
        p.list[p.count++] = backward ? product_of(tokens, s.in, out, y, 0, false, w, 0, false, dx,
                                                  NBL_DTYPE_BF16, 0)
                                     : product_of(tokens, out, s.in, x, 0, false, w, 0, true, y,
                                                  NBL_DTYPE_BF16, 0);
    }
    return p;
}

/* ---- the kernels of a graph ---- */

enum { NODES = 1024, KERNELS = 40 };

/* The function's own name, out of a mangled one or as it is. */
void short_name(const char *name, char *to, size_t size)
{
    const char *at = strncmp(name, "_ZN", 3) == 0 ? name + 3 : strncmp(name, "_Z", 2) == 0 ? name + 2 : name;
    size_t length = strlen(name);
    if (at != name)
        while (*at >= '0' && *at <= '9') {
            char *end;
            length = strtoul(at, &end, 10);
            name = end;
            at = end + (length < strlen(end) ? length : strlen(end));
        }
    length = length < 22 ? length : 22;
    snprintf(to, size, "%.*s", static_cast<int>(length), name);
}

template <typename F> F driver(const char *name)
{
    void *function = NULL;
    cudaDriverEntryPointQueryResult found;
    CUDA(cudaGetDriverEntryPointByVersion(name, &function, 12030, cudaEnableDefault, &found));
    if (function == NULL) stop(name, "the driver has it not", __LINE__);
    return reinterpret_cast<F>(function);
}

/* What is captured is a chain: its nodes in order. */
struct chain {
    cudaGraph_t graph;
    cudaGraphNode_t nodes[NODES];
    int count;
};

template <typename F> void record(chain *c, F call)
{
    cudaStream_t stream = static_cast<cudaStream_t>(cuda->stream);
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    call();
    CUDA(cudaStreamEndCapture(stream, &c->graph));
    size_t roots = 1;
    CUDA(cudaGraphGetRootNodes(c->graph, c->nodes, &roots));
    for (c->count = 1;; c->count++) {
        size_t next = 1;
        CUDA(cudaGraphNodeGetDependentNodes(c->nodes[c->count - 1], NULL, NULL, &next));
        if (next == 0) return;
        if (next > 1 || c->count == NODES) stop("capture", "not a chain", __LINE__);
        cudaGraphEdgeData edge;
        CUDA(cudaGraphNodeGetDependentNodes(c->nodes[c->count - 1], &c->nodes[c->count], &edge, &next));
    }
}

void name_of(cudaGraphNode_t node, char *to, size_t size)
{
    cudaGraphNodeType type;
    CUDA(cudaGraphNodeGetType(node, &type));
    snprintf(to, size, "%s", type == cudaGraphNodeTypeMemset ? "memset" : "?");
    if (type != cudaGraphNodeTypeKernel) return;
    CUDA_KERNEL_NODE_PARAMS p = {};
    const char *name = "?";
    driver<CUresult (*)(CUgraphNode, CUDA_KERNEL_NODE_PARAMS *)>("cuGraphKernelNodeGetParams")(node, &p);
    if (p.func) driver<CUresult (*)(const char **, CUfunction)>("cuFuncGetName")(&name, p.func);
    else if (p.kern) driver<CUresult (*)(const char **, CUkernel)>("cuKernelGetName")(&name, p.kern);
    short_name(name, to, size);
}

cudaEvent_t events[NODES + 1];

/* An event before each node that is `wanted`, and one at the end. */
template <typename F> void insert_events(chain *c, F wanted)
{
    int used = 0;
    for (int i = 0; i < c->count; i++) {
        if (!wanted(i)) continue;
        cudaGraphNode_t event, *node = &c->nodes[i], *before = i > 0 ? node - 1 : NULL;
        cudaGraphEdgeData edge;
        size_t one = 1;
        if (before) {
            CUDA(cudaGraphNodeGetDependencies(*node, before, &edge, &one));
            CUDA(cudaGraphRemoveDependencies(c->graph, before, node, &edge, 1));
        }
        CUDA(cudaGraphAddEventRecordNode(&event, c->graph, before, before ? 1 : 0, events[used++]));
        CUDA(cudaGraphAddDependencies(c->graph, &event, node, NULL, 1));
    }
    cudaGraphNode_t last;
    CUDA(cudaGraphAddEventRecordNode(&last, c->graph, &c->nodes[c->count - 1], 1, events[used]));
}

/* Runs it twice and frees it. */
void replay(chain *c)
{
    cudaGraphExec_t ready;
    CUDA(cudaGraphInstantiate(&ready, c->graph, 0));
    for (int i = 0; i < 2; i++) CUDA(cudaGraphLaunch(ready, static_cast<cudaStream_t>(cuda->stream)));
    NIBBLE(cuda->device.wait(cuda->ctx, "replay"));
    CUDA(cudaGraphExecDestroy(ready));
    CUDA(cudaGraphDestroy(c->graph));
}

/* The median of the times between event `from` and the `length`th after it, over all turns. */
double median_of(int from, int length, int period, int turns)
{
    float times[64];
    for (int i = 0; i < turns; i++)
        CUDA(cudaEventElapsedTime(&times[i], events[i * period + from], events[i * period + from + length]));
    std::sort(times, times + turns);
    return static_cast<double>(times[turns / 2]);
}

/* Times of a layer and of the bare products, in turns, and then of each kernel of the layer. */
template <typename F, typename G>
void measure_layer(F call, G bare_call, double *ms, double *bare_ms, char *text, size_t size)
{
    static chain c;
    if (events[0] == NULL)
        for (cudaEvent_t &event : events) CUDA(cudaEventCreate(&event));
    call();
    bare_call();
    NIBBLE(cuda->device.wait(cuda->ctx, "first call"));
    record(&c, call);
    int kernels = c.count;
    CUDA(cudaGraphDestroy(c.graph));
    record(&c, bare_call);
    int period = kernels + c.count, turns = NODES / period;
    CUDA(cudaGraphDestroy(c.graph));
    turns = turns < 21 ? turns : 21;
    auto in_turns = [&] {
        for (int i = 0; i < turns; i++) {
            call();
            bare_call();
        }
    };
    record(&c, in_turns);
    insert_events(&c, [&](int i) { return i % period == 0 || i % period == kernels; });
    replay(&c);
    *ms = median_of(0, 1, 2, turns);
    *bare_ms = median_of(1, 1, 2, turns);
    record(&c, in_turns);
    char names[KERNELS][32];
    for (int i = 0; i < kernels && i < KERNELS; i++) name_of(c.nodes[i], names[i], sizeof names[i]);
    insert_events(&c, [](int) { return true; });
    replay(&c);
    size_t at = 0;
    for (int i = 0; i < kernels && i < KERNELS && at < size; i++)
        at += static_cast<size_t>(
            snprintf(text + at, size - at, " %s %.1f", names[i], median_of(i, 1, period, turns) * 1e3));
}

/* ---- are they right? ---- */

__global__ void column_kernel(double *to, const void *from, nbl_dtype dtype, int64_t first, int64_t step,
                              int64_t n)
{
    int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < n) to[i] = static_cast<double>(nbl_cuda::load_one(from, dtype, first + i * step));
}
/* to[i] = scale·Σ_k m[i, k]·v[k] of a matrix in bf16, a warp for each; `transposed`: of m[k, i], a thread for each */
__global__ void dots_kernel(double *to, const void *m, int64_t n, int64_t k, bool transposed, const double *v,
                            double scale)
{
    int64_t i = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / (transposed ? 1 : 32);
    double sum = 0;
    if (i >= n) return;
    for (int64_t j = transposed ? 0 : threadIdx.x % 32; j < k; j += transposed ? 1 : 32)
        sum += static_cast<double>(nbl_cuda::load_one(m, NBL_DTYPE_BF16, transposed ? j * n + i : i * k + j)) *
               v[j];
    for (int o = 16; o > 0 && !transposed; o /= 2) sum += __shfl_xor_sync(nbl_cuda::WARP, sum, o);
    to[i] = sum * scale;
}
__global__ void error_kernel(double *sums, const double *should, const float *is, int64_t first, int64_t step,
                             int64_t n) /* one warp */
{
    double wrong = 0, all = 0;
    for (int64_t i = threadIdx.x; i < n; i += 32) {
        double e = static_cast<double>(is[first + i * step]) - should[i];
        wrong += e * e;
        all += should[i] * should[i];
    }
    for (int o = 16; o > 0; o /= 2) {
        wrong += __shfl_xor_sync(nbl_cuda::WARP, wrong, o);
        all += __shfl_xor_sync(nbl_cuda::WARP, all, o);
    }
    if (threadIdx.x == 0) sums[0] = wrong, sums[1] = all;
}

double *dots(const void *m, int64_t n, int64_t k, bool transposed, const double *v, double scale)
{
    double *to = static_cast<double *>(take(static_cast<size_t>(n) * 8));
    int64_t threads = n * (transposed ? 1 : 32);
    dots_kernel<<<static_cast<unsigned>((threads + 255) / 256), 256, 0,
                  static_cast<cudaStream_t>(cuda->stream)>>>(to, m, n, k, transposed, v, scale);
    return to;
}
double *column(const nbl_tensor &t, int64_t first, int64_t step, int64_t n)
{
    double *to = static_cast<double *>(take(static_cast<size_t>(n) * 8));
    column_kernel<<<static_cast<unsigned>((n + 255) / 256), 256, 0,
                    static_cast<cudaStream_t>(cuda->stream)>>>(to, t.data, t.dtype, first, step, n);
    return to;
}
double error_of(const double *should, const nbl_tensor &is, int64_t first, int64_t step, int64_t n)
{
    double *sums = static_cast<double *>(take(16)), both[2];
    error_kernel<<<1, 32, 0, static_cast<cudaStream_t>(cuda->stream)>>>(
        sums, should, static_cast<const float *>(is.data), first, step, n);
    NIBBLE(cuda->device.read(cuda->ctx, both, sums, 16));
    return sqrt(both[0] / both[1]);
}

/* The largest error of one rank's gradients of every member: against sums in f64, relative to their norm. */
double gradient_error(const nbl__linear_group &group)
{
    const nbl__linear &first = group.members[0];
    int64_t tokens = first.x.shape[0], in = first.x.shape[1], r = 5;
    double worst = 0;
    for (int i = 0; i < group.count; i++) {
        const nbl__linear &a = group.members[i];
        int64_t out = a.w.shape[0];
        double scale = static_cast<double>(first.scale);
        double *t = dots(first.x.data, tokens, in, false, column(a.lora_a, r * in, 1, in), scale);
        double *u = dots(a.dy.data, tokens, out, false, column(a.lora_b, r, RANK, out), scale);
        worst = fmax(worst, error_of(dots(first.x.data, in, tokens, true, u, 1), a.dlora_a, r * in, 1, in));
        worst = fmax(worst, error_of(dots(a.dy.data, out, tokens, true, t, 1), a.dlora_b, r, RANK, out));
    }
    return worst;
}

__global__ void bits_kernel(unsigned long long *sum, const uint16_t *from, int64_t n)
{
    int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    unsigned long long mine = 0;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step)
        mine += (static_cast<unsigned long long>(i) * 2 + 1) * 0x9e3779b97f4a7c15u * (from[i] + 1u);
    atomicAdd(sum, mine);
}

/* A number for the bits of a tensor that is there. */
unsigned long long bits_of(const nbl_tensor &t)
{
    if (t.data == NULL) return 0;
    unsigned long long *sum = static_cast<unsigned long long *>(take(8)), result;
    NIBBLE(cuda->device.fill(cuda->ctx, sum, 0, 8));
    bits_kernel<<<1024, 256, 0, static_cast<cudaStream_t>(cuda->stream)>>>(
        sum, static_cast<const uint16_t *>(t.data),
        t.shape[0] * t.shape[1] * (t.dtype == NBL_DTYPE_F32 ? 2 : 1));
    NIBBLE(cuda->device.read(cuda->ctx, &result, sum, 8));
    return result;
}
unsigned long long bits_of(const nbl__linear_group &group)
{
    unsigned long long all = bits_of(group.members[0].dx);
    for (int i = 0; i < group.count; i++) {
        const nbl__linear &a = group.members[i];
        all = all * 3 + bits_of(a.y) + 5 * bits_of(a.dlora_a) + 7 * bits_of(a.dlora_b);
    }
    return all;
}

/* The outputs of a group, and room for what a forward call leaves for its backward call, which it leaves there. */
void *run_forward(nbl__linear_group *group, int64_t tokens)
{
    const nbl__op *op = &nbl__linear_group_family.forward;
    const nbl__impl *impl;
    NIBBLE(op->infer(ctx, group));
    for (int i = 0; i < group->count; i++)
        group->members[i].y = tensor(NBL_DTYPE_BF16, tokens, group->members[i].w.shape[0], 1);
    NIBBLE(nbl__op_choose(ctx, op, group, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, group), kept_bytes = nbl__cuda_saved_bytes(impl, group);
    void *kept = kept_bytes > 0 ? take(kept_bytes) : NULL;
    NIBBLE(nbl__op_run_within(ctx, op, impl, group, take(bytes), bytes, kept));
    NIBBLE(cuda->device.wait(cuda->ctx, "forward"));
    return kept;
}

result layer(const model &m, const shape &s, int64_t tokens, bool backward)
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
    void *kept = run_forward(&group, tokens); /* as training does */
    const nbl__op *op = backward ? &nbl__linear_group_family.backward : &nbl__linear_group_family.forward;
    NIBBLE(op->infer(ctx, &group));
    for (int i = 0; i < s.count; i++) {
        nbl__linear &a = group.members[i];
        if (backward) a.dlora_a = tensor(NBL_DTYPE_F32, RANK, s.in, 1);
        if (backward) a.dlora_b = tensor(NBL_DTYPE_F32, s.outs[i], RANK, 1);
    }
    if (backward) first.dx = tensor(NBL_DTYPE_BF16, tokens, s.in, 1);
    const nbl__impl *impl;
    NIBBLE(nbl__op_choose(ctx, op, &group, NULL, &impl));
    size_t bytes = nbl__op_scratch(ctx, impl, &group);
    void *scratch = take(bytes);
    unsigned long long bits[2];
    double error = 0;
    first.accumulate = false;
    for (int turn = 0; turn < 2; turn++) {
        NIBBLE(nbl__op_run_within(ctx, op, impl, &group, scratch, bytes, kept));
        bits[turn] = bits_of(group);
    }
    if (backward && dropout == 0) error = gradient_error(group);
    if (bits[0] != bits[1] || !(error < 6e-3))
        printf("WRONG: error %.2g, bits %llx %llx: ", error, bits[0], bits[1]);
    first.accumulate = true;
    products plain = bare(s, tokens, backward, first.x.data);
    nbl__call call = call_of("product");
    char text[2000] = "";
    measure_layer([&] { NIBBLE(nbl__op_run_within(ctx, op, impl, &group, scratch, bytes, kept)); },
                  [&] {
                      for (int i = 0; i < plain.count; i++) NIBBLE(nbl__cuda_gemm(&call, &plain.list[i]));
                  },
                  &r.ms, &r.bare, text, sizeof text);
    printf("%-10s %5lld %-8s %-8s %9.1f %9.1f %7.3f %6.0f %6.0f %6.0f %.1e |%s\n", m.name,
           static_cast<long long>(tokens), s.name, backward ? "backward" : "forward", r.ms * 1e3,
           r.bare * 1e3, r.ms / r.bare, r.flop / r.ms * 1e-9, r.flop / r.bare * 1e-9,
           static_cast<double>(bytes) / (1 << 20), error, text);
    free_all();
    return r;
}

void bench(int64_t tokens)
{
    printf(
        "model     tokens layers   direction        us   bare us   ratio TFLOP/s bare  scratch MiB  error | "
        "kernels\n");
    const char *only = getenv("MODEL");
    for (const model &m : models) {
        if (only && strcmp(only, m.name) != 0) continue;
        const shape shapes[] = {{"qkv", 3, m.hidden, {m.queries, m.keys, m.keys}},
                                {"o", 1, m.queries, {m.hidden}},
                                {"gate_up", 2, m.hidden, {m.inner, m.inner}},
                                {"down", 1, m.inner, {m.hidden}}};
        result all = {};
        for (int backward = 0; backward < 2; backward++)
            for (const shape &s : shapes) {
                result r = layer(m, s, tokens, backward != 0);
                all.ms += r.ms, all.bare += r.bare, all.flop += r.flop;
            }
        printf("%-10s %5lld all               %9.1f %9.1f %7.3f %6.0f %6.0f\n", m.name,
               static_cast<long long>(tokens), all.ms * 1e3, all.bare * 1e3, all.ms / all.bare,
               all.flop / all.ms * 1e-9, all.flop / all.bare * 1e-9);
    }
}

} // namespace

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "bench") != 0) {
        fprintf(stderr, "usage: cuda_linear bench [TOKENS ...]\n");
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
    for (int i = 2; i < argc; i++) bench(atoll(argv[i]));
    if (argc == 2) bench(8192);
    nbl_context_destroy(ctx);
    return 0;
}
