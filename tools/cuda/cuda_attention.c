/* cuda_attention.c - examines attention on the first CUDA device: every implementation against the
 * CPU, and its speed.
 *
 *   cuda_attention test [--quick]   shapes of real models and awkward ones. Checks: results within
 *                                   the operators' bounds of the CPU's f32; the same bits twice, on
 *                                   unaligned memory, for a sequence alone and beside one of NaN;
 *                                   wrong data is reported; a captured decode follows its lengths.
 *                                   Without a device it says so and exits with 77. --quick: few
 *                                   small shapes, for compute-sanitizer
 *   cuda_attention bench [NAME]     milliseconds and TFLOP/s of forward and backward, TB/s of
 *                                   decode, medians. NAME: this implementation only, no decode
 *
 * nibble-ops has the exhaustive table. This program has what needs a device: large shapes, captured
 * graphs, faults. */
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "ops/attention/attention.h"
#include "ops/attention/cache.h"
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

/* One attention problem: sequences, heads, masks. large: too slow for compute-sanitizer and for all
 * combinations. */
typedef struct shape {
    int32_t lengths[6]; /* 0 at the end; -1: an empty sequence */
    int64_t heads, key_heads, size;
    bool causal, sinks;
    int64_t window;
    float softcap, scale;
    bool large;
} shape;

static const shape shapes[] = {
    {{37}, 4, 1, 16, true, false, 0, 0, 0, false},
    {{5, -1, 35}, 4, 2, 32, true, false, 7, 0, 0, false},
    {{1, 1, 130}, 4, 2, 64, true, true, 0, 0, 0, false},
    {{200, 63, 64, 65}, 4, 4, 64, true, false, 0, 0, 0, false},
    {{129, 70}, 8, 2, 128, true, false, 0, 0, 0, false},
    {{129, 70}, 8, 2, 128, false, false, 0, 0, 0, false},
    {{300, 70}, 2, 1, 128, false, false, 33, 0, 0, false},
    {{300, 70}, 2, 1, 128, true, true, 100, 20, 0.3f, false},
    {{150}, 3, 1, 80, true, false, 0, 0, 0, false},
    {{150}, 2, 1, 24, true, true, 0, 5, 0, false},
    {{90, 41}, 2, 2, 37, true, false, 0, 0, 0, false},
    {{140}, 4, 2, 256, true, false, 0, 50, 0, false},
    {{140, 90}, 2, 1, 192, true, true, 64, 0, 0, false},
    {{33, 20}, 2, 1, 320, true, false, 0, 0, 0, false},
    {{100}, 2, 1, 64, true, false, 0, 0, -0.2f, false},
    {{2048}, 32, 8, 128, true, false, 0, 0, 0, true},
    {{1000, 1048}, 32, 8, 64, true, false, 0, 0, 0, true},
    {{1500, 600}, 16, 2, 64, true, true, 128, 0, 0, true},
    {{1024}, 8, 4, 256, true, false, 512, 50, 0, true},
};

typedef struct problem {
    nbl__attention host, device;
} problem;

/* Fills at[] with the offsets of the sequences, and returns their number. */
static int sequences_of(const shape *s, int32_t *at)
{
    int count = 0;
    at[0] = 0;
    for (; count < 6 && s->lengths[count]; count++)
        at[count + 1] = at[count] + (s->lengths[count] > 0 ? s->lengths[count] : 0);
    return count;
}

/* Inputs, and memory for all outputs on both sides. */
static void make_problem(const shape *s, nbl_dtype dtype, int64_t skew, problem *p)
{
    int32_t at[8];
    int count = sequences_of(s, at);
    int64_t tokens = at[count], q = s->heads, k = s->key_heads, d = s->size;
    nbl__attention base = {
        .causal = s->causal, .window = s->window, .softcap = s->softcap, .scale = s->scale};
    random_state = 12345;
    p->host = p->device = base;
    p->host.dtype = NBL_DTYPE_F32;
    p->device.dtype = dtype;
    make_random(&p->host.q, &p->device.q, tensor(dtype, 3, tokens, q, d, 0), dtype, 1, skew);
    make_random(&p->host.k, &p->device.k, tensor(dtype, 3, tokens, k, d, 0), dtype, 1, skew);
    make_random(&p->host.v, &p->device.v, tensor(dtype, 3, tokens, k, d, 0), dtype, 1, skew);
    make_random(&p->host.dout, &p->device.dout, tensor(dtype, 3, tokens, q, d, 0), dtype, 1, skew);
    if (s->sinks) make_random(&p->host.sinks, &p->device.sinks, tensor(dtype, 1, q, 0, 0, 0), dtype, 1, 0);
    make_integers(&p->host.cu_seqlens, &p->device.cu_seqlens, at, count + 1);
    nbl_tensor *outs[2][6] = {
        {&p->host.out, &p->host.lse, &p->host.dq, &p->host.dk, &p->host.dv, &p->host.dsinks},
        {&p->device.out, &p->device.lse, &p->device.dq, &p->device.dk, &p->device.dv, &p->device.dsinks}};
    for (int side = 0; side < 2; side++) {
        nbl_dtype kind = side ? dtype : NBL_DTYPE_F32;
        *outs[side][0] = *outs[side][2] = tensor(kind, 3, tokens, q, d, 0);
        *outs[side][3] = *outs[side][4] = tensor(kind, 3, tokens, k, d, 0);
        *outs[side][1] = tensor(NBL_DTYPE_F32, 2, tokens, q, 0, 0);
        *outs[side][5] = tensor(NBL_DTYPE_F32, 1, q, 0, 0, 0);
        for (int i = 0; i < 6; i++) {
            if (i == 5 && !s->sinks) continue;
            if (side) allocate(outs[side][i], skew);
            else outs[side][i]->data = host(bytes_of(outs[side][i]));
        }
    }
}

static void free_problem(problem *p)
{
    nbl_tensor *all[2][12];
    for (int side = 0; side < 2; side++) {
        nbl__attention *a = side ? &p->device : &p->host;
        nbl_tensor *list[12] = {&a->q,   &a->k,   &a->v,  &a->dout, &a->sinks, &a->cu_seqlens,
                                &a->out, &a->lse, &a->dq, &a->dk,   &a->dv,    &a->dsinks};
        memcpy(all[side], list, sizeof list);
    }
    for (int i = 0; i < 12; i++) {
        free(all[0][i]->data);
        displace(all[1][i]);
    }
}

/* The operators' bounds (docs/NUMERICS.md). */
static double bound_of(nbl_dtype dtype)
{
    return dtype == NBL_DTYPE_F32 ? 1e-5 : dtype == NBL_DTYPE_F16 ? 1e-3 : 8e-3;
}

static const nbl_dtype dtypes[3] = {NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16};
static double worst[3][6];

/* Compares all results of a problem with the CPU's, and remembers the worst errors. */
static void compare(const problem *p, int dtype, const char *name, const char *impl)
{
    static const char *const names[6] = {"out", "lse", "dq", "dk", "dv", "dsinks"};
    const nbl_tensor *want[6] = {&p->host.out, &p->host.lse, &p->host.dq,
                                 &p->host.dk,  &p->host.dv,  &p->host.dsinks},
                     *got[6] = {&p->device.out, &p->device.lse, &p->device.dq,
                                &p->device.dk,  &p->device.dv,  &p->device.dsinks};
    for (int i = 0; i < 6; i++) {
        char which[256];
        if (got[i]->data == NULL) continue;
        double error = error_of(got[i], want[i]), bound = bound_of(dtypes[dtype]);
        snprintf(which, sizeof which, "%s %s %s", impl, nbl_dtype_name(dtypes[dtype]), name);
        check(error <= bound, names[i], which, error);
        if (!(error <= worst[dtype][i])) worst[dtype][i] = error;
    }
}

/* Checks that two runs gave the same bits. */
static void same_results(const problem *a, const problem *b, const char *which, const char *when)
{
    const nbl_tensor *x[6] = {&a->device.out, &a->device.lse, &a->device.dq,
                              &a->device.dk,  &a->device.dv,  &a->device.dsinks},
                     *y[6] = {&b->device.out, &b->device.lse, &b->device.dq,
                              &b->device.dk,  &b->device.dv,  &b->device.dsinks};
    for (int i = 0; i < 6; i++)
        if (x[i]->data) check(same_bits(x[i], y[i]), when, which, i);
}

/* The last sequence alone gives the bits that it has in the pack. */
static void alone(const shape *s, int dtype, const problem *packed, const nbl__impl *forward,
                  const nbl__impl *backward, const char *which)
{
    const nbl__family *family = nbl__family_find("attention");
    int32_t at[8], start[2] = {0, 0};
    int count = sequences_of(s, at);
    if (count < 2 || s->size % 8) return;
    int64_t tokens = at[count] - at[count - 1];
    nbl__attention a = packed->device;
    nbl_tensor *parts[9] = {&a.q, &a.k, &a.v, &a.dout, &a.out, &a.lse, &a.dq, &a.dk, &a.dv}, whole[9];
    nbl_tensor unused;
    start[1] = (int32_t)tokens;
    make_integers(&unused, &a.cu_seqlens, start, 2);
    for (int i = 0; i < 9; i++) {
        whole[i] = *parts[i];
        size_t row = bytes_of(parts[i]) / (size_t)at[count];
        whole[i].data = (uint8_t *)whole[i].data + (size_t)at[count - 1] * row;
        whole[i].shape[0] = tokens;
        *parts[i] = whole[i];
        if (i >= 4) allocate(parts[i], 0);
    }
    a.dsinks.data = NULL;
    NIBBLE(gpu, run_impl(gpu, &family->forward, forward, &a));
    NIBBLE(gpu, run_impl(gpu, &family->backward, backward, &a));
    for (int i = 4; i < 9; i++) check(same_bits(parts[i], &whole[i]), "other bits alone", which, i);
    for (int i = 4; i < 9; i++) displace(parts[i]);
    displace(&a.cu_seqlens);
    free(unused.data);
    (void)dtype;
}

/* The first sequence keeps its bits when all the others are NaN. */
static void beside_nan(const shape *s, const problem *packed, problem *again, const nbl__impl *forward,
                       const nbl__impl *backward, const char *which)
{
    const nbl__family *family = nbl__family_find("attention");
    int32_t at[8];
    int count = sequences_of(s, at);
    if (count < 2) return;
    const nbl__attention *a = &packed->device;
    nbl__attention *b = &again->device;
    nbl_tensor *inputs[4] = {&b->q, &b->k, &b->v, &b->dout};
    const nbl_tensor *want[5] = {&a->out, &a->lse, &a->dq, &a->dk, &a->dv},
                     *got[5] = {&b->out, &b->lse, &b->dq, &b->dk, &b->dv};
    for (int i = 0; i < 4; i++) {
        size_t bytes = bytes_of(inputs[i]), from = bytes / (size_t)at[count] * (size_t)at[1];
        NIBBLE(gpu, device->fill(gpu, (uint8_t *)inputs[i]->data + from, 0xff, bytes - from));
    }
    NIBBLE(gpu, run_impl(gpu, &family->forward, forward, b));
    NIBBLE(gpu, run_impl(gpu, &family->backward, backward, b));
    for (int i = 0; i < 5; i++) {
        nbl_tensor x = *want[i], y = *got[i];
        x.shape[0] = y.shape[0] = at[1];
        check(same_bits(&x, &y), "other bits beside NaN", which, i);
    }
}

/* All checks of one shape in one dtype, for each implementation that takes it. */
static void test_shape(const shape *s, int dtype, bool with_reference)
{
    const nbl__family *family = nbl__family_find("attention");
    const nbl__impl *const *forward = nbl__cuda_impls(&family->forward), *const *backward = nbl__cuda_impls(
                                                                             &family->backward);
    for (int i = 0; forward[i]; i++) {
        problem p, again, skewed;
        char name[200], which[400];
        int32_t at[8];
        int count = sequences_of(s, at);
        snprintf(name, sizeof name, "T=%d S=%d Hq=%d Hkv=%d D=%d%s w=%d cap=%g%s", at[count], count,
                 (int)s->heads, (int)s->key_heads, (int)s->size, s->causal ? " causal" : "", (int)s->window,
                 (double)s->softcap, s->sinks ? " sinks" : "");
        snprintf(which, sizeof which, "%s %s %s", forward[i]->name, nbl_dtype_name(dtypes[dtype]), name);
        make_problem(s, dtypes[dtype], 0, &p);
        NIBBLE(gpu, family->forward.infer(gpu, &p.device));
        if (forward[i]->can(gpu, &p.device) || (s->large && i > 1 && dtype > 0)) {
            free_problem(&p);
            continue;
        }
        if (with_reference) {
            NIBBLE(cpu, run_impl(cpu, &family->forward, NULL, &p.host));
            NIBBLE(cpu, run_impl(cpu, &family->backward, NULL, &p.host));
        }
        NIBBLE(gpu, run_impl(gpu, &family->forward, forward[i], &p.device));
        NIBBLE(gpu, run_impl(gpu, &family->backward, backward[i], &p.device));
        if (with_reference) compare(&p, dtype, name, forward[i]->name);
        make_problem(s, dtypes[dtype], 0, &again);
        NIBBLE(gpu, run_impl(gpu, &family->forward, forward[i], &again.device));
        NIBBLE(gpu, run_impl(gpu, &family->backward, backward[i], &again.device));
        same_results(&p, &again, which, "other bits the second time");
        beside_nan(s, &p, &again, forward[i], backward[i], which);
        free_problem(&again);
        make_problem(s, dtypes[dtype], 1, &skewed);
        NIBBLE(gpu, run_impl(gpu, &family->forward, forward[i], &skewed.device));
        NIBBLE(gpu, run_impl(gpu, &family->backward, backward[i], &skewed.device));
        same_results(&p, &skewed, which, "other bits on unaligned memory");
        free_problem(&skewed);
        alone(s, dtype, &p, forward[i], backward[i], which);
        free_problem(&p);
    }
}

/* ---- decode and the cache ---- */

static double worst_decode;

/* attention_decode against the CPU, and a captured graph that is replayed with other lengths. */
static void test_decode(nbl_dtype dtype, nbl_dtype kept, int64_t heads, int64_t key_heads, int64_t size,
                        int64_t cached, int64_t window, float softcap, bool sinks, int64_t skew)
{
    const nbl__family *family = nbl__family_find("attention_decode");
    const int32_t lengths[3] = {(int32_t)cached, 1, (int32_t)(cached / 2 + 1)};
    nbl__attention_decode h = {.dtype = NBL_DTYPE_F32, .causal = true, .window = window, .softcap = softcap},
                          d = h;
    char which[256];
    snprintf(which, sizeof which, "decode %s over %s Hq=%d Hkv=%d D=%d S=%d w=%d%s skew=%d",
             nbl_dtype_name(dtype), nbl_dtype_name(kept), (int)heads, (int)key_heads, (int)size, (int)cached,
             (int)window, sinks ? " sinks" : "", (int)skew);
    random_state = 99;
    d.dtype = dtype;
    make_random(&h.q, &d.q, tensor(dtype, 3, 3, heads, size, 0), dtype, 1, skew);
    make_random(&h.k, &d.k, tensor(kept, 4, 3, cached, key_heads, size), kept, 1, skew);
    make_random(&h.v, &d.v, tensor(kept, 4, 3, cached, key_heads, size), kept, 1, skew);
    if (sinks) make_random(&h.sinks, &d.sinks, tensor(dtype, 1, heads, 0, 0, 0), dtype, 1, 0);
    make_integers(&h.lengths, &d.lengths, lengths, 3);
    h.out = h.q, d.out = d.q;
    h.out.data = host(bytes_of(&h.out));
    allocate(&d.out, skew);
    NIBBLE(cpu, run_impl(cpu, &family->forward, NULL, &h));
    NIBBLE(gpu, run_impl(gpu, &family->forward, NULL, &d));
    double error = error_of(&d.out, &h.out), bound = bound_of(dtype);
    check(error <= bound, "out", which, error);
    if (!(error / bound <= worst_decode)) worst_decode = error / bound;

    /* Captured while the sequences were short, replayed when they are long. */
    const nbl__impl *impl;
    void *graph, *first = read_back(&d.out);
    const int32_t grad_in_forward[3] = {1, 1, 1};
    NIBBLE(gpu, nbl__op_choose(gpu, &family->forward, &d, NULL, &impl));
    size_t bytes = nbl__op_scratch(gpu, impl, &d);
    void *scratch = device->alloc(gpu, bytes, false);
    NIBBLE(gpu, device->write(gpu, d.lengths.data, grad_in_forward, sizeof grad_in_forward));
    NIBBLE(gpu, device->capture_begin(gpu));
    nbl_status status = nbl__op_run(gpu, &family->forward, impl, &d, scratch, bytes);
    NIBBLE(gpu, device->capture_end(gpu, status == NBL_OK, &graph));
    NIBBLE(gpu, device->replay(gpu, graph));
    NIBBLE(gpu, device->write(gpu, d.lengths.data, lengths, sizeof lengths));
    NIBBLE(gpu, device->replay(gpu, graph));
    NIBBLE(gpu, device->wait(gpu, "replay"));
    void *second = read_back(&d.out);
    check(memcmp(first, second, bytes_of(&d.out)) == 0, "other bits when replayed", which, 0);
    device->graph_free(gpu, graph);
    device->free(gpu, scratch, bytes);
    free(first), free(second);
    nbl_tensor *on_host[6] = {&h.q, &h.k, &h.v, &h.sinks, &h.lengths, &h.out},
               *on_device[6] = {&d.q, &d.k, &d.v, &d.sinks, &d.lengths, &d.out};
    for (int i = 0; i < 6; i++) free(on_host[i]->data), displace(on_device[i]);
}

/* kv_write and take_rows against the CPU: the same bytes. */
static void test_cache(nbl_dtype from, nbl_dtype to, int64_t size, int64_t skew)
{
    const int32_t rows[3] = {7, 0, 4};
    nbl__kv_write h = {0}, d = {0};
    nbl__take_rows taken_h = {0}, taken_d = {0};
    nbl_tensor cache;
    random_state = 7;
    make_random(&h.x, &d.x, tensor(from, 3, 3, 2, size, 0), from, 1, skew);
    make_random(&cache, &d.cache, tensor(to, 4, 2, 4, 2, size), to, 1, skew);
    make_integers(&h.rows, &d.rows, rows, 3);
    h.cache = d.cache;
    h.cache.data = host(bytes_of(&h.cache));
    NIBBLE(cpu, nbl_convert(cpu, NBL_DTYPE_F32, cache.data, to, h.cache.data, nbl__tensor_elements(&cache)));
    NIBBLE(cpu, run_impl(cpu, &nbl__family_find("kv_write")->forward, NULL, &h));
    NIBBLE(gpu, run_impl(gpu, &nbl__family_find("kv_write")->forward, NULL, &d));
    void *got = read_back(&d.cache);
    check(memcmp(got, h.cache.data, bytes_of(&h.cache)) == 0, "kv_write", nbl_dtype_name(to), (double)size);
    taken_h.x = h.cache, taken_d.x = d.cache;
    taken_h.rows = h.rows, taken_d.rows = d.rows;
    for (int i = 0; i < 4; i++) { /* 16 rows of `size` */
        taken_h.x.shape[i] = taken_d.x.shape[i] = i == 0 ? 16 : size;
        taken_h.x.rank = taken_d.x.rank = 2;
    }
    taken_h.y = taken_d.y = tensor(to, 2, 3, size, 0, 0);
    taken_h.y.data = host(bytes_of(&taken_h.y));
    allocate(&taken_d.y, skew);
    NIBBLE(cpu, run_impl(cpu, &nbl__family_find("take_rows")->forward, NULL, &taken_h));
    NIBBLE(gpu, run_impl(gpu, &nbl__family_find("take_rows")->forward, NULL, &taken_d));
    void *taken = read_back(&taken_d.y);
    check(memcmp(taken, taken_h.y.data, bytes_of(&taken_h.y)) == 0, "take_rows", nbl_dtype_name(to),
          (double)size);
    free(got), free(taken), free(taken_h.y.data), displace(&taken_d.y), free(cache.data);
    free(h.x.data), free(h.rows.data), free(h.cache.data), displace(&d.x), displace(&d.rows),
        displace(&d.cache);
}

static void expect_fault(nbl_status status, const char *what)
{
    check(status == NBL_ERROR_ARGUMENT, "was not reported", what, (double)status);
}

/* Data that infer cannot see must be reported by the wait after the run. */
static void test_faults(void)
{
    static const shape small = {{20, 20}, 2, 1, 64, true, false, 0, 0, 0, false};
    static const int32_t bad[5][3] = {{1, 20, 40}, {0, 41, 40}, {0, 20, 39}, {0, -5, 40}, {0, 20, 1 << 30}};
    const nbl__family *family = nbl__family_find("attention");
    const nbl__impl *const *forward = nbl__cuda_impls(&family->forward), *const *backward = nbl__cuda_impls(
                                                                             &family->backward);
    problem p;
    make_problem(&small, NBL_DTYPE_BF16, 0, &p);
    for (int i = 0; forward[i]; i++)
        for (int k = 0; k < 5; k++) {
            NIBBLE(gpu, device->write(gpu, p.device.cu_seqlens.data, bad[k], sizeof bad[k]));
            expect_fault(run_impl(gpu, &family->forward, forward[i], &p.device), forward[i]->name);
            expect_fault(run_impl(gpu, &family->backward, backward[i], &p.device), backward[i]->name);
        }
    nbl__take_rows take = {.x = p.device.q};
    nbl_tensor unused, lengths;
    const int32_t row = 80, length = 21;
    take.x.rank = 2, take.x.shape[0] = 80, take.x.shape[1] = 64;
    make_integers(&unused, &take.rows, &row, 1);
    take.y = tensor(NBL_DTYPE_BF16, 2, 1, 64, 0, 0);
    allocate(&take.y, 0);
    expect_fault(run_impl(gpu, &nbl__family_find("take_rows")->forward, NULL, &take), "take_rows");
    free(unused.data), displace(&take.rows);
    nbl__attention_decode d = {.dtype = NBL_DTYPE_BF16, .causal = true};
    make_integers(&unused, &lengths, &length, 1);
    d.lengths = lengths;
    d.q = tensor(NBL_DTYPE_BF16, 3, 1, 2, 64, 0), d.k = d.v = tensor(NBL_DTYPE_BF16, 4, 1, 20, 2, 64);
    d.q.data = take.y.data, d.k.data = p.device.q.data, d.v.data = p.device.q.data, d.out = d.q;
    allocate(&d.out, 0);
    expect_fault(run_impl(gpu, &nbl__family_find("attention_decode")->forward, NULL, &d), "attention_decode");
    free(unused.data), displace(&lengths), displace(&d.out), displace(&take.y);
    free_problem(&p);
}

static int test(bool quick)
{
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int dtype = 0; dtype < 3; dtype++) {
            if (quick && (shapes[i].large || (int)(i % 3) != dtype)) continue;
            if (shapes[i].large && dtype == 0 && i % 2) continue;
            test_shape(&shapes[i], dtype, !quick);
        }
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 3; k++) {
            if (quick && i != k) continue;
            test_decode(dtypes[i], dtypes[k], 8, 2, 128, quick ? 70 : 1000, 0, 0, false, 0);
            test_decode(dtypes[i], dtypes[k], 6, 2, 64, 300, 100, 5, true, 0);
            test_decode(dtypes[i], dtypes[k], 14, 2, 128, 200, 0, 0, true, 1);
            test_decode(dtypes[i], dtypes[k], 2, 2, 256, 129, 0, 0, false, 0);
            test_decode(dtypes[i], dtypes[k], 3, 1, 37, 100, 30, 0, false, 0);
            test_cache(dtypes[i], dtypes[k], 64, 0);
            test_cache(dtypes[i], dtypes[k], 64, 1);
            test_cache(dtypes[i], dtypes[k], 13, 0);
        }
    if (!quick) test_faults(); /* compute-sanitizer does not know atomics on host memory */
    printf("relative errors, worst:      out       lse        dq        dk        dv    dsinks\n");
    for (int dtype = 0; dtype < 3; dtype++) {
        printf("  %-5s bound %8.1e", nbl_dtype_name(dtypes[dtype]), bound_of(dtypes[dtype]));
        for (int i = 0; i < 6; i++) printf(" %9.2e", worst[dtype][i]);
        printf("\n");
    }
    printf("decode: worst error is %.2f of its bound\n", worst_decode);
    printf("%d checks, %d failed\n", checks, failures);
    return failures ? 1 : 0;
}

/* ---- speed ---- */

static int ascending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The median time of `impl` in milliseconds, over several sets of arguments in turn. One run follows the other
 * without a pause, as in a step of training: the clock is that of a busy chip. */
static double time_of(const nbl__op *op, const nbl__impl *impl, void *const *arguments, int sets)
{
    enum { MAX = 201 };
    float times[MAX], first;
    cudaEvent_t marks[MAX + 1];
    size_t bytes = nbl__op_scratch(gpu, impl, arguments[0]);
    void *scratch = device->alloc(gpu, bytes, false);
    for (int i = 0; i <= MAX; i++) cudaEventCreate(&marks[i]);
    int runs = 3;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i <= runs; i++) {
            cudaEventRecord(marks[i], nbl__cuda_of(gpu)->stream);
            if (i < runs) NIBBLE(gpu, nbl__op_run(gpu, op, impl, arguments[i % sets], scratch, bytes));
        }
        NIBBLE(gpu, device->wait(gpu, "bench"));
        cudaEventElapsedTime(&first, marks[runs - 1], marks[runs]);
        if (round == 0) runs = first > 5 ? 5 : MAX;
    }
    for (int i = 0; i < runs; i++) cudaEventElapsedTime(&times[i], marks[i], marks[i + 1]);
    qsort(times, (size_t)runs, sizeof *times, ascending);
    for (int i = 0; i <= MAX; i++) cudaEventDestroy(marks[i]);
    device->free(gpu, scratch, bytes);
    return (double)times[runs / 2];
}

static void bench_shape(const shape *s, nbl_dtype dtype, const char *only)
{
    const nbl__family *family = nbl__family_find("attention");
    const nbl__impl *const *forward = nbl__cuda_impls(&family->forward), *const *backward = nbl__cuda_impls(
                                                                             &family->backward);
    problem p;
    int32_t at[8];
    int count = sequences_of(s, at);
    double pairs = 0;
    for (int i = 0; i < count; i++) pairs += (double)s->lengths[i] * s->lengths[i] / 2;
    make_problem(s, dtype, 0, &p);
    NIBBLE(gpu, family->forward.infer(gpu, &p.device));
    for (int i = 0; forward[i]; i++) {
        void *arguments[1] = {&p.device};
        if (forward[i]->can(gpu, &p.device) || (i > 1 && dtype != NBL_DTYPE_F32)) continue;
        if (only && strcmp(only, forward[i]->name) != 0) continue;
        double flop = 4 * pairs * (double)(s->heads * s->size);
        double f = time_of(&family->forward, forward[i], arguments, 1);
        double b = time_of(&family->backward, backward[i], arguments, 1);
        nbl__attention queries = p.device;
        void *without_keys[1] = {&queries};
        queries.dk.data = queries.dv.data = NULL;
        double dq = time_of(&family->backward, backward[i], without_keys, 1);
        printf("%-14s %-4s %dx%-5d Hq %2d Hkv %d D %3d   forward %7.3f ms %4.0f TFLOP/s   backward %7.3f ms "
               "%4.0f TFLOP/s, "
               "dq alone %7.3f ms\n",
               forward[i]->name, nbl_dtype_name(dtype), count, s->lengths[0], (int)s->heads,
               (int)s->key_heads, (int)s->size, f, flop / f * 1e-9, b, 2.5 * flop / b * 1e-9, dq);
    }
    free_problem(&p);
}

static void bench_decode(int64_t batch, int64_t cached, int64_t heads, int64_t key_heads, int64_t size,
                         nbl_dtype dtype)
{
    enum { SETS = 8 };
    const nbl__family *family = nbl__family_find("attention_decode");
    const nbl__impl *impl;
    nbl__attention_decode d[SETS];
    void *arguments[SETS];
    nbl_tensor h;
    int32_t lengths[64];
    for (int i = 0; i < 64; i++) lengths[i] = (int32_t)cached;
    for (int i = 0; i < SETS; i++) {
        d[i] = (nbl__attention_decode){.dtype = dtype, .causal = true};
        arguments[i] = &d[i];
        make_random(&h, &d[i].q, tensor(dtype, 3, batch, heads, size, 0), dtype, 1, 0);
        free(h.data);
        if (i == 0) {
            make_random(&h, &d[0].k, tensor(dtype, 4, batch, cached, key_heads, size), dtype, 1, 0);
            free(h.data);
        } else { /* the same values in other memory: the device's cache does not hold it all */
            d[i].k = d[0].k;
            allocate(&d[i].k, 0);
            cudaMemcpy(d[i].k.data, d[0].k.data, bytes_of(&d[0].k), cudaMemcpyDeviceToDevice);
        }
        d[i].v = d[i].k;
        allocate(&d[i].v, 0);
        cudaMemcpy(d[i].v.data, d[0].k.data, bytes_of(&d[0].k), cudaMemcpyDeviceToDevice);
        make_integers(&h, &d[i].lengths, lengths, batch);
        free(h.data);
        d[i].out = d[i].q;
        allocate(&d[i].out, 0);
        NIBBLE(gpu, family->forward.infer(gpu, &d[i]));
    }
    NIBBLE(gpu, nbl__op_choose(gpu, &family->forward, &d[0], NULL, &impl));
    double ms = time_of(&family->forward, impl, arguments, SETS), bytes = 2.0 * (double)bytes_of(&d[0].k);
    printf("%-16s %-4s B %2d S %d Hq %d Hkv %d D %d   %7.1f us  %.2f TB/s\n", impl->name,
           nbl_dtype_name(dtype), (int)batch, (int)cached, (int)heads, (int)key_heads, (int)size, ms * 1e3,
           bytes / ms * 1e-9);
    for (int i = 0; i < SETS; i++)
        displace(&d[i].q), displace(&d[i].k), displace(&d[i].v), displace(&d[i].lengths), displace(&d[i].out);
}

static int bench(const char *only)
{
    static const shape real[] = {
        {{2048, 2048, 2048, 2048}, 32, 8, 128, true, false, 0, 0, 0, true},
        {{2048}, 32, 8, 128, true, false, 0, 0, 0, true},
        {{2048, 2048, 2048, 2048}, 32, 8, 64, true, false, 0, 0, 0, true},
        {{2048}, 32, 8, 64, true, false, 0, 0, 0, true},
        {{2048, 2048, 2048, 2048}, 16, 8, 128, true, false, 0, 0, 0, true},
        {{8192}, 32, 8, 128, true, false, 0, 0, 0, true},
        {{700, 1300, 2000, 300, 1800, 2092}, 32, 8, 128, true, false, 0, 0, 0, true},
        {{4096}, 8, 4, 256, true, false, 0, 0, 0, true},
    };
    for (size_t i = 0; i < sizeof real / sizeof *real; i++) bench_shape(&real[i], NBL_DTYPE_BF16, only);
    if (only) return 0;
    bench_shape(&real[1], NBL_DTYPE_F16, NULL);
    bench_shape(&real[3], NBL_DTYPE_F32, NULL);
    bench_decode(1, 4096, 32, 8, 128, NBL_DTYPE_BF16);
    bench_decode(8, 4096, 32, 8, 128, NBL_DTYPE_BF16);
    bench_decode(1, 4096, 32, 8, 64, NBL_DTYPE_BF16);
    bench_decode(8, 4096, 32, 8, 64, NBL_DTYPE_BF16);
    bench_decode(1, 4096, 16, 16, 128, NBL_DTYPE_BF16);
    bench_decode(1, 4096, 32, 8, 128, NBL_DTYPE_F32);
    return 0;
}

int main(int argc, char **argv)
{
    int count;
    bool run_bench = argc > 1 && strcmp(argv[1], "bench") == 0,
         quick = argc > 2 && strcmp(argv[2], "--quick") == 0;
    if (argc < 2 || (!run_bench && strcmp(argv[1], "test") != 0)) {
        fprintf(stderr, "Usage: cuda_attention test [--quick] | bench [NAME]\n");
        return 2;
    }
    if (nbl_context_create(NULL, &cpu) != NBL_OK || nbl_context_create(NULL, &gpu) != NBL_OK) return 1;
    if (nbl_cuda_device_count(gpu, &count) != NBL_OK) {
        printf("skipped: %s\n", nbl_error_message(gpu));
        return 77;
    }
    NIBBLE(gpu, nbl_context_use_cuda(gpu, 0));
    device = nbl__device_of(gpu);
    setvbuf(stdout, NULL, _IOLBF, 0);
    int status = run_bench ? bench(argc > 2 ? argv[2] : NULL) : test(quick);
    nbl_context_destroy(gpu);
    nbl_context_destroy(cpu);
    return status;
}
