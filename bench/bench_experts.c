/* bench_experts.c - how fast a mixture of experts is, forward and backward, through the operator table.
 *
 *     nibble-bench-experts --shapes bench/shapes/experts.txt [--threads N] [--only TEXT] [--quick] [--tsv]
 *
 * Cases, each at every shape and number of tokens: forward, then dx and the gradients of the routing weights.
 *
 *     frozen    dense stacks in the compute dtype, the outputs of gate_up saved
 *     lora      the same with f32 adapters of rank 16 on both layers, and their gradients
 *     nf4 …     lora on stacks in NF4; beside it stands lora on dense stacks, since others have no experts in 4 bits
 *
 * Tokens choose their experts at random. The median of at least three rounds (--quick: one). --tsv prints lines for
 * bench/run, which runs torch_experts.py beside it: case, threads, flops, implementation, seconds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "ops/families.h"
#include "ops/moe/expert_mlp.h"
#include "ops/moe/expert_order.h"
#include "quant/quant.h"

enum { ROUNDS = 3, RANK = 16, MAX_PIECES = 64 };

static const struct {
    const char *name; /* shared with torch_experts.py */
    bool lora;
    nbl_format format;
    nbl_dtype dtype;
} cases[] = {
    {"frozen fwd+bwd f32", false, NBL_FORMAT_DENSE, NBL_DTYPE_F32},
    {"frozen fwd+bwd bf16", false, NBL_FORMAT_DENSE, NBL_DTYPE_BF16},
    {"lora fwd+bwd f32", true, NBL_FORMAT_DENSE, NBL_DTYPE_F32},
    {"lora fwd+bwd bf16", true, NBL_FORMAT_DENSE, NBL_DTYPE_BF16},
    {"nf4-lora fwd+bwd bf16", true, NBL_FORMAT_NF4, NBL_DTYPE_BF16},
};
static const int64_t all_tokens[] = {64, 512, 2048, 0}, quick_tokens[] = {512, 0};

typedef struct shape {
    char model[64];
    long long experts, top_k, hidden, inner;
} shape;

typedef struct bench {
    nbl_context *ctx;
    int threads;
    bool tsv, quick;
    const char *only, *shapes;
    void *pieces[MAX_PIECES]; /* memory of one case */
    int piece_count;
} bench;

static void fail(const char *what)
{
    fprintf(stderr, "nibble-bench-experts: %s\n", what);
    exit(1);
}

static void check(const bench *b, nbl_status status)
{
    if (status != NBL_OK) fail(nbl_error_message(b->ctx));
}

static void *take(bench *b, size_t bytes)
{
    void *memory = NULL;
    if (b->piece_count == MAX_PIECES || posix_memalign(&memory, 64, bytes + 64) != 0) fail("no memory");
    memset(memory, 0, bytes + 64);
    return b->pieces[b->piece_count++] = memory;
}

static void drop_all(bench *b)
{
    while (b->piece_count > 0) free(b->pieces[--b->piece_count]);
}

/* One thread: its CPU time, in which other processes' turns on the core do not count. Several: wall time. */
static double now(const bench *b)
{
    struct timespec t;
    clock_gettime(b->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- one case ---- */

/* Values in ±spread. */
static void fill(bench *b, nbl_dtype dtype, void *to, int64_t n, float spread, uint32_t seed)
{
    for (int64_t i = 0; i < n; i += 4) {
        uint32_t words[4];
        float values[4];
        nbl__philox((uint32_t[4]){(uint32_t)i, (uint32_t)(i >> 32), 0, 0}, (uint32_t[2]){seed, 1}, words);
        for (int w = 0; w < 4; w++) values[w] = spread * (2 * nbl__uniform(words[w]) - 1);
        nbl__from_f32(nbl__isa(b->ctx), values, dtype, (uint8_t *)to + (size_t)i * nbl__size_of(dtype),
                      nbl__min_i64(4, n - i));
    }
}

static nbl_tensor tensor_of(bench *b, nbl_dtype dtype, int64_t rows, int64_t columns, float spread,
                            uint32_t seed)
{
    nbl_tensor t = nbl_matrix(dtype, rows, columns, NULL);
    t.data = take(b, (size_t)(rows * columns) * (size_t)nbl__dtype_bits(dtype) / 8);
    if (nbl__is_compute(dtype)) fill(b, dtype, t.data, rows * columns, spread, seed);
    return t;
}

static nbl_weight stack_of(bench *b, int c, int64_t experts, int64_t out, int64_t in, uint32_t seed)
{
    int64_t dims[3] = {experts, out, in};
    nbl_dtype dtype = cases[c].dtype;
    void *values = tensor_of(b, dtype, experts * out, in, 0.03f, seed).data;
    nbl_weight w = {.format = NBL_FORMAT_DENSE, .dtype = dtype, .rank = 3, .data = values};
    memcpy(w.shape, dims, sizeof dims);
    if (cases[c].format == NBL_FORMAT_DENSE) return w;
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = cases[c].format};
    nbl_quantized_sizes sizes;
    check(b, nbl_quantize_sizes(b->ctx, &how, 3, dims, &sizes));
    nbl_quantized_parts parts = {take(b, sizes.data), take(b, sizes.scales), NULL, NULL};
    check(b, nbl_quantize(b->ctx, &how, dtype, 3, dims, values, &parts, &w));
    return w;
}

/* Memory for what infer has given a shape. */
static void give_memory(bench *b, const nbl__family *family, void *a)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        bool made = slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED ||
                    slot->role == NBL_ROLE_GRADIENT;
        uint64_t bytes;
        if (!made || nbl__slot_tensor(slot, a)->rank == 0) continue;
        nbl_tensor *tensor = nbl__slot_tensor(slot, a);
        nbl__dtype_bytes(tensor->dtype, (uint64_t)nbl__tensor_elements(tensor), &bytes);
        tensor->data = take(b, bytes);
    }
}

/* Each token's experts, at random, and their order. */
static void route(bench *b, nbl__expert_mlp *a, const shape *s, int64_t tokens)
{
    nbl__expert_order order = {.count = s->experts};
    order.experts = tensor_of(b, NBL_DTYPE_I32, tokens, s->top_k, 0, 0);
    int32_t *experts = order.experts.data;
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t i = 0; i < s->top_k; i++) {
            uint32_t words[4], draw = 0;
            bool taken = true;
            while (taken) {
                nbl__philox((uint32_t[4]){(uint32_t)t, (uint32_t)i, draw++, 0}, (uint32_t[2]){9, 9}, words);
                experts[t * s->top_k + i] = (int32_t)(words[0] % (uint32_t)s->experts);
                taken = false;
                for (int64_t k = 0; k < i; k++)
                    taken |= experts[t * s->top_k + k] == experts[t * s->top_k + i];
            }
        }
    check(b, nbl__expert_order_family.forward.infer(b->ctx, &order));
    give_memory(b, &nbl__expert_order_family, &order);
    nbl__call call = {.ctx = b->ctx, .op = "expert_order"};
    check(b, nbl__expert_order_family.forward.impls[0]->run(&call, &order));
    a->offsets = order.offsets;
    a->pairs = order.pairs;
    a->rows = order.rows;
}

typedef struct step {
    const nbl__op *op;
    const nbl__impl *impl;
    void *scratch;
    size_t scratch_bytes;
} step;

static step prepare(bench *b, const nbl__op *op, const nbl__expert_mlp *a)
{
    step s = {.op = op};
    check(b, nbl__op_choose(b->ctx, op, a, NULL, &s.impl));
    s.scratch_bytes = nbl__op_scratch(b->ctx, s.impl, a);
    s.scratch = take(b, s.scratch_bytes);
    return s;
}

static double median_time(const bench *b, const nbl__expert_mlp *a, const step steps[2])
{
    double times[ROUNDS];
    int rounds = b->quick ? 1 : ROUNDS;
    for (int round = -1; round < rounds; round++) { /* the first is not counted */
        double start = now(b);
        for (int i = 0; i < 2; i++)
            check(b, nbl__op_run(b->ctx, steps[i].op, steps[i].impl, a, steps[i].scratch,
                                 steps[i].scratch_bytes));
        if (round >= 0) times[round] = now(b) - start;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_size);
    return times[rounds / 2];
}

static void run_case(bench *b, int c, const shape *s, int64_t tokens)
{
    char name[192];
    snprintf(name, sizeof name, "%s %s %lld/%lld %lld>%lld %" PRId64, cases[c].name, s->model, s->experts,
             s->top_k, s->hidden, s->inner, tokens);
    if (b->only && strstr(name, b->only) == NULL) return;
    const nbl__family *family = &nbl__expert_mlp_family;
    nbl_dtype dtype = cases[c].dtype;
    int64_t hidden = s->hidden, inner = s->inner, rank = s->experts * RANK;
    nbl__expert_mlp a = {0};
    nbl__attrs_reset(family, &a);
    a.dtype = dtype;
    a.keep = true;
    a.x = tensor_of(b, dtype, tokens, hidden, 1, 1);
    a.dy = tensor_of(b, dtype, tokens, hidden, 1, 2);
    a.weights = tensor_of(b, NBL_DTYPE_F32, tokens, s->top_k, 0.5f, 3);
    a.gate_up.w = stack_of(b, c, s->experts, 2 * inner, hidden, 4);
    a.down.w = stack_of(b, c, s->experts, hidden, inner, 5);
    if (cases[c].lora) {
        a.gate_up.scale = 2;
        a.gate_up.lora_a = tensor_of(b, NBL_DTYPE_F32, rank, hidden, 0.05f, 6);
        a.gate_up.lora_b = tensor_of(b, NBL_DTYPE_F32, 2 * inner, rank, 0.05f, 7);
        a.down.lora_a = tensor_of(b, NBL_DTYPE_F32, rank, inner, 0.05f, 8);
        a.down.lora_b = tensor_of(b, NBL_DTYPE_F32, hidden, rank, 0.05f, 9);
    }
    route(b, &a, s, tokens);
    check(b, family->forward.infer(b->ctx, &a));
    check(b, family->backward.infer(b->ctx, &a));
    give_memory(b, family, &a);
    step steps[2] = {prepare(b, &family->forward, &a), prepare(b, &family->backward, &a)};
    double seconds = median_time(b, &a, steps);
    double flops = family->cost.flops(&a, false) + family->cost.flops(&a, true);
    const char *impl = steps[1].impl->name;
    if (b->tsv) printf("%s\t%d\t%.0f\t%s\t%.9f\n", name, b->threads, flops, impl, seconds);
    else
        printf("%-60s %3d %10.3f ms %8.1f GFLOP/s  %s\n", name, b->threads, 1e3 * seconds,
               1e-9 * flops / seconds, impl);
    fflush(stdout);
    drop_all(b);
}

static void run_shapes(bench *b)
{
    char line[256], mark[16];
    shape s;
    FILE *file = fopen(b->shapes, "r");
    if (file == NULL) fail("cannot read the file of --shapes");
    while (fgets(line, sizeof line, file)) {
        int fields = sscanf(line, "%63s %lld %lld %lld %lld %15s", s.model, &s.experts, &s.top_k, &s.hidden,
                            &s.inner, mark);
        if (line[0] == '#' || fields < 5 || (b->quick && fields < 6)) continue;
        for (const int64_t *t = b->quick ? quick_tokens : all_tokens; *t; t++)
            for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) run_case(b, c, &s, *t);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    bench b = {.threads = 1};
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--tsv") == 0) b.tsv = true;
        else if (strcmp(argv[i], "--quick") == 0) b.quick = true;
        else if (value && strcmp(argv[i], "--threads") == 0) b.threads = atoi(value), i++;
        else if (value && strcmp(argv[i], "--only") == 0) b.only = value, i++;
        else if (value && strcmp(argv[i], "--shapes") == 0) b.shapes = value, i++;
        else b.threads = 0;
    }
    if (b.threads < 1 || b.shapes == NULL) {
        fprintf(stderr,
                "usage: nibble-bench-experts --shapes FILE [--threads N] [--only TEXT] [--quick] [--tsv]\n");
        return 2;
    }
    if (nbl_context_create(&(nbl_context_options){NBL_OPTIONS(nbl_context_options), .threads = b.threads},
                           &b.ctx) != NBL_OK)
        fail("no context");
    run_shapes(&b);
    nbl_context_destroy(b.ctx);
    return 0;
}
