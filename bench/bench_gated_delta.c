/* bench_gated_delta.c - how fast the gated delta rule is, forward and forward with backward.
 *
 *     nibble-bench-gated_delta [--threads N] [--rounds 7] [--only TEXT] [--dtype f32|f16|bf16]
 *
 * One sequence with the heads of real models. A line per case: name, what, threads, milliseconds of the
 * median round, and of the fastest. bench/torch_gated_delta.py prints the same lines for transformers'
 * torch code on the CPU. NIBBLE_ISA lowers the instruction set. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "base/team.h"
#include "ops/families.h"
#include "ops/recurrent/gated_delta.h"

#ifndef NBL_COMMIT
#define NBL_COMMIT "unknown"
#endif

enum { MAX_ROUNDS = 101 };

static const struct {
    const char *name;
    int64_t keys, values, size;
} models[] = {{"Qwen3.5-0.8B", 16, 16, 128}, {"Qwen3.5-9B", 16, 32, 128}, {"Qwen3.5-27B", 16, 48, 128}};
static const int64_t lengths[] = {512, 2048};

/* One thread: its CPU time, in which other processes' turns on the core do not count. Several: wall time. */
static double now(const nbl_context *ctx)
{
    struct timespec t;
    clock_gettime(nbl_threads(ctx) == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *must(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (memory == NULL) {
        fprintf(stderr, "nibble-bench-gated_delta: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static void check(nbl_context *ctx, nbl_status status)
{
    if (status == NBL_OK) return;
    fprintf(stderr, "nibble-bench-gated_delta: %s\n", nbl_error_message(ctx));
    exit(1);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A tensor of values like a normal distribution's. size 0: of rank 2, or 1 if there are no heads. */
static nbl_tensor filled(nbl_dtype dtype, int64_t tokens, int64_t heads, int64_t size, uint32_t stream)
{
    nbl_tensor t = {.dtype = dtype, .rank = size ? 3 : heads ? 2 : 1, .shape = {tokens, heads, size}};
    int64_t n = nbl__tensor_elements(&t);
    t.data = must((size_t)n * 4);
    for (int64_t i = 0; i < n; i++) {
        uint32_t words[4];
        nbl__philox((uint32_t[4]){(uint32_t)i, stream, 0, 0}, (uint32_t[2]){3, 4}, words);
        float value = -2;
        for (int w = 0; w < 4; w++) value += nbl__uniform(words[w]);
        value *= 1.7f;
        nbl__from_f32(NBL_ISA_SCALAR, &value, dtype, (char *)t.data + (size_t)i * nbl__size_of(dtype), 1);
    }
    return t;
}

static void time_case(nbl_context *ctx, const char *name, nbl__gated_delta *a, int rounds)
{
    const nbl__op *ops[2] = {&nbl__gated_delta_family.forward, &nbl__gated_delta_family.backward};
    const nbl__impl *impls[2];
    nbl_tensor *outputs[] = {&a->o, &a->dq, &a->dk, &a->dv, &a->da, &a->db};
    double times[2][MAX_ROUNDS];
    for (int i = 0; i < 2; i++) check(ctx, ops[i]->infer(ctx, a));
    for (int i = 0; i < 6; i++) outputs[i]->data = must((size_t)nbl__tensor_elements(outputs[i]) * 4);
    size_t bytes = 0;
    for (int i = 0; i < 2; i++) {
        check(ctx, nbl__op_choose(ctx, ops[i], a, NULL, &impls[i]));
        size_t wanted = nbl__op_scratch(ctx, impls[i], a);
        if (wanted > bytes) bytes = wanted;
    }
    void *scratch = must(bytes);
    for (int round = -1; round < rounds; round++) { /* the first is not counted */
        double start = now(ctx);
        check(ctx, nbl__op_run(ctx, ops[0], impls[0], a, scratch, bytes));
        double middle = now(ctx);
        check(ctx, nbl__op_run(ctx, ops[1], impls[1], a, scratch, bytes));
        times[0][round < 0 ? 0 : round] = middle - start;
        times[1][round < 0 ? 0 : round] = now(ctx) - start;
    }
    for (int i = 0; i < 2; i++) {
        qsort(times[i], (size_t)rounds, sizeof *times[i], by_size);
        printf("%-14s T %-5d %-5s %-8s threads %-3d %8.1f ms, best %8.1f\n", name, (int)a->q.shape[0],
               nbl_dtype_name(a->dtype), i == 0 ? "forward" : "both", nbl_threads(ctx),
               times[i][rounds / 2] * 1e3, times[i][0] * 1e3);
        fflush(stdout);
    }
    free(scratch);
    for (int i = 0; i < 6; i++) free(outputs[i]->data);
}

static void run_case(nbl_context *ctx, int model, int64_t tokens, nbl_dtype dtype, int rounds)
{
    int64_t keys = models[model].keys, values = models[model].values, size = models[model].size;
    int32_t ends[2] = {0, (int32_t)tokens};
    nbl__gated_delta a = {.dtype = dtype,
                          .q = filled(dtype, tokens, keys, size, 1),
                          .k = filled(dtype, tokens, keys, size, 2),
                          .v = filled(dtype, tokens, values, size, 3),
                          .d_o = filled(dtype, tokens, values, size, 4),
                          .a = filled(dtype, tokens, values, 0, 5),
                          .b = filled(dtype, tokens, values, 0, 6),
                          .a_log = filled(NBL_DTYPE_F32, values, 0, 0, 7),
                          .dt_bias = filled(NBL_DTYPE_F32, values, 0, 0, 8),
                          .cu_seqlens = {.dtype = NBL_DTYPE_I32, .rank = 1, .shape = {2}, .data = ends}};
    nbl_tensor *inputs[] = {&a.q, &a.k, &a.v, &a.d_o, &a.a, &a.b, &a.a_log, &a.dt_bias};
    time_case(ctx, models[model].name, &a, rounds);
    for (int i = 0; i < 8; i++) free(inputs[i]->data);
}

int main(int argc, char **argv)
{
    int threads = 1, rounds = 7;
    const char *only = NULL, *dtype = NULL;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(argv[i], "--threads") == 0) threads = atoi(value);
        else if (strcmp(argv[i], "--rounds") == 0) rounds = atoi(value);
        else if (strcmp(argv[i], "--only") == 0) only = value;
        else if (strcmp(argv[i], "--dtype") == 0) dtype = value;
        else rounds = 0;
        if (rounds < 1 || rounds > MAX_ROUNDS || i + 1 >= argc) {
            fprintf(stderr, "usage: nibble-bench-gated_delta [--threads N] [--rounds N] [--only TEXT] "
                            "[--dtype f32|f16|bf16]\n");
            return 2;
        }
    }
    nbl_context *ctx;
    if (nbl_context_create(&(nbl_context_options){NBL_OPTIONS(nbl_context_options), .threads = threads},
                           &ctx) != NBL_OK)
        return 1;
    printf("# nibble %s, commit %s, isa %s, %d of %d cores; B = 1; median of %d rounds, %s time\n",
           nbl_version(), NBL_COMMIT, nbl__isa_name(nbl__isa(ctx)), nbl_threads(ctx), nbl__core_count(),
           rounds, threads == 1 ? "CPU" : "wall");
    static const nbl_dtype dtypes[] = {NBL_DTYPE_F32, NBL_DTYPE_BF16, NBL_DTYPE_F16};
    for (int m = 0; m < 3; m++)
        for (int l = 0; l < 2; l++)
            for (int d = 0; d < (dtype ? 3 : 2); d++) {
                if (dtype && strcmp(nbl_dtype_name(dtypes[d]), dtype) != 0) continue;
                if (only == NULL || strstr(models[m].name, only))
                    run_case(ctx, m, lengths[l], dtypes[d], rounds);
            }
    nbl_context_destroy(ctx);
    return 0;
}
