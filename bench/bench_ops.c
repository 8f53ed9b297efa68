/* bench_ops.c - how fast linear layers are, forward and backward, through the operator table.
 *
 *     nibble-bench-ops --shapes bench/shapes/linear.txt [--threads N] [--only TEXT] [--quick] [--tsv]
 *
 * Cases, each at every shape and number of tokens:
 *
 *     lora fwd+bwd    a nested NF4 weight with an f32 adapter of rank 16: y, then dx, dA and dB
 *     lora forward    its forward alone
 *     dense forward   a dense weight in the compute dtype, no adapter
 *     int8 forward    an LLM.int8 weight, no adapter
 *
 * The median of at least three rounds and 0.2 s (--quick: 0.05 s). --tsv prints lines for bench/run, which runs torch_ops.py
 * beside it under the same names: case, threads, flops, implementation, seconds. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "ops/families.h"
#include "ops/linear/linear.h"
#include "quant/quant.h"

enum { MAX_ROUNDS = 64, RANK = 16, MAX_PIECES = 32 };

typedef enum kind { LORA_BOTH, LORA_FORWARD, DENSE_FORWARD, INT8_FORWARD } kind;

static const struct {
    const char *name; /* shared with torch_ops.py */
    kind kind;
    nbl_dtype dtype;
} cases[] = {
    {"lora fwd+bwd f32", LORA_BOTH, NBL_DTYPE_F32},
    {"lora fwd+bwd bf16", LORA_BOTH, NBL_DTYPE_BF16},
    {"lora forward f32", LORA_FORWARD, NBL_DTYPE_F32},
    {"lora forward bf16", LORA_FORWARD, NBL_DTYPE_BF16},
    {"dense forward f32", DENSE_FORWARD, NBL_DTYPE_F32},
    {"dense forward bf16", DENSE_FORWARD, NBL_DTYPE_BF16},
    {"int8 forward f32", INT8_FORWARD, NBL_DTYPE_F32},
};
static const int64_t all_tokens[] = {1, 8, 64, 256, 512, 2048, 0}, quick_tokens[] = {1, 64, 512, 0};

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
    fprintf(stderr, "nibble-bench-ops: %s\n", what);
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

/* About normal values of the given spread. */
static void *values(bench *b, nbl_dtype dtype, int64_t n, float spread, uint32_t seed)
{
    float *wide = take(b, (size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        uint32_t words[4];
        nbl__philox((uint32_t[4]){(uint32_t)i, 0, 0, 0}, (uint32_t[2]){seed, 1}, words);
        float sum = -2;
        for (int w = 0; w < 4; w++) sum += nbl__uniform(words[w]);
        wide[i] = spread * 1.7f * sum;
    }
    if (dtype == NBL_DTYPE_F32) return wide;
    void *narrow = take(b, (size_t)n * nbl__size_of(dtype));
    nbl__from_f32(nbl__isa(b->ctx), wide, dtype, narrow, n);
    return narrow;
}

static nbl_tensor matrix(bench *b, nbl_dtype dtype, int64_t rows, int64_t columns, float spread,
                         uint32_t seed)
{
    return (nbl_tensor){.dtype = dtype,
                        .rank = 2,
                        .shape = {rows, columns},
                        .data = values(b, dtype, rows * columns, spread, seed)};
}

static nbl_weight weight_of(bench *b, kind k, nbl_dtype dtype, int64_t out, int64_t in)
{
    int64_t shape[2] = {out, in};
    if (k == DENSE_FORWARD)
        return (nbl_weight){.format = NBL_FORMAT_DENSE,
                            .dtype = dtype,
                            .rank = 2,
                            .shape = {out, in},
                            .data = values(b, dtype, out * in, 0.02f, 1)};
    nbl_weight weight;
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options),
                                .format = k == INT8_FORWARD ? NBL_FORMAT_INT8 : NBL_FORMAT_NF4, .block = 64,
                                .nested = k != INT8_FORWARD};
    nbl_quantized_sizes sizes;
    check(b, nbl_quantize_sizes(b->ctx, &how, 2, shape, &sizes));
    nbl_quantized_parts parts = {take(b, sizes.data), take(b, sizes.scales), take(b, sizes.scale_codes),
                                 take(b, sizes.nested_scales)};
    void *dense = values(b, NBL_DTYPE_BF16, out * in, 0.02f, 1);
    check(b, nbl_quantize(b->ctx, &how, NBL_DTYPE_BF16, 2, shape, dense, &parts, &weight));
    return weight;
}

/* Memory for what infer has given a shape. */
static void give_memory(bench *b, const nbl__family *family, nbl__linear *a)
{
    for (const nbl__slot *slot = family->slots; slot->name; slot++) {
        bool made = slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED ||
                    slot->role == NBL_ROLE_GRADIENT;
        nbl_tensor *tensor = nbl__slot_tensor(slot, a);
        uint64_t bytes;
        if (!made || tensor->rank == 0) continue;
        nbl__dtype_bytes(tensor->dtype, (uint64_t)nbl__tensor_elements(tensor), &bytes);
        tensor->data = take(b, bytes);
    }
}

typedef struct step {
    const nbl__op *op;
    const nbl__impl *impl;
    void *scratch;
    size_t scratch_bytes;
} step;

static step prepare(bench *b, const nbl__op *op, const nbl__linear *a)
{
    step s = {.op = op};
    check(b, nbl__op_choose(b->ctx, op, a, NULL, &s.impl));
    s.scratch_bytes = nbl__op_scratch(b->ctx, s.impl, a);
    s.scratch = take(b, s.scratch_bytes);
    return s;
}

static double median_time(const bench *b, const nbl__linear *a, const step *steps, int count)
{
    double times[MAX_ROUNDS], total = 0;
    int rounds = 0;
    for (int round = -1; round < MAX_ROUNDS && (rounds < 3 || total < (b->quick ? 0.05 : 0.2));
         round++) { /* the first is not counted */
        double start = now(b);
        for (int i = 0; i < count; i++)
            check(b, nbl__op_run(b->ctx, steps[i].op, steps[i].impl, a, steps[i].scratch,
                                 steps[i].scratch_bytes));
        double took = now(b) - start;
        if (round < 0) continue;
        times[rounds++] = took;
        total += took;
    }
    qsort(times, (size_t)rounds, sizeof *times, by_size);
    return rounds % 2 ? times[rounds / 2] : (times[rounds / 2 - 1] + times[rounds / 2]) / 2;
}

static void run_case(bench *b, int c, const char *model, int64_t in, int64_t out, int64_t tokens)
{
    char name[160];
    snprintf(name, sizeof name, "%s %s %" PRId64 ">%" PRId64 " %" PRId64, cases[c].name, model, in, out,
             tokens);
    if (b->only && strstr(name, b->only) == NULL) return;
    const nbl__family *family = &nbl__linear_family;
    nbl_dtype dtype = cases[c].dtype;
    kind k = cases[c].kind;
    bool lora = k == LORA_BOTH || k == LORA_FORWARD, backward = k == LORA_BOTH;
    nbl__linear a = {0};
    nbl__attrs_reset(family, &a);
    a.dtype = dtype;
    a.x = matrix(b, dtype, tokens, in, 1, 2);
    a.w = weight_of(b, k, dtype, out, in);
    if (lora) {
        a.scale = 2;
        a.lora_a = matrix(b, NBL_DTYPE_F32, RANK, in, 0.05f, 3);
        a.lora_b = matrix(b, NBL_DTYPE_F32, out, RANK, 0.05f, 4);
    }
    if (backward) a.dy = matrix(b, dtype, tokens, out, 1, 5);
    check(b, family->forward.infer(b->ctx, &a));
    if (backward) check(b, family->backward.infer(b->ctx, &a));
    give_memory(b, family, &a);
    step steps[2] = {prepare(b, &family->forward, &a)};
    if (backward) steps[1] = prepare(b, &family->backward, &a);
    double seconds = median_time(b, &a, steps, backward ? 2 : 1);

    double base = 2.0 * (double)(tokens * in) * (double)out;
    double small = 2.0 * (double)tokens * RANK * (double)(in + out);
    double flops = (backward ? 2 : 1) * base + (lora ? backward ? 3 : 1 : 0) * small;
    const char *impl = steps[backward ? 1 : 0].impl->name;
    if (b->tsv) printf("%s\t%d\t%.0f\t%s\t%.9f\n", name, b->threads, flops, impl, seconds);
    else
        printf("%-52s %7d %10.3f ms %9.1f GFLOP/s  %s\n", name, b->threads, 1e3 * seconds,
               1e-9 * flops / seconds, impl);
    fflush(stdout);
    drop_all(b);
}

static void run_shapes(bench *b)
{
    char line[256], model[64], mark[16];
    long long in, out;
    FILE *file = fopen(b->shapes, "r");
    if (file == NULL) fail("cannot read the file of --shapes");
    while (fgets(line, sizeof line, file)) {
        int fields = sscanf(line, "%63s %lld %lld %15s", model, &in, &out, mark);
        if (line[0] == '#' || fields < 3 || (b->quick && fields < 4)) continue;
        for (const int64_t *t = b->quick ? quick_tokens : all_tokens; *t; t++)
            for (int c = 0; c < (int)(sizeof cases / sizeof *cases); c++) run_case(b, c, model, in, out, *t);
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
                "usage: nibble-bench-ops --shapes FILE [--threads N] [--only TEXT] [--quick] [--tsv]\n");
        return 2;
    }
    if (nbl_context_create(&(nbl_context_options){NBL_OPTIONS(nbl_context_options), .threads = b.threads},
                           &b.ctx) != NBL_OK)
        fail("no context");
    run_shapes(&b);
    nbl_context_destroy(b.ctx);
    return 0;
}
