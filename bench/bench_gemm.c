/* bench_gemm.c - the product behind the linear layers, beside OpenBLAS in the same run.
 *
 *     nibble-bench-gemm [--shapes TEXT] [--tokens 1,8,64,256,512,2048] [--threads 1,2] [--rounds N]
 *                       [--count median|best] [--ways nf4,back,bf16,bf16back,sgemm,sgback,dq,dqback]
 *
 * Per layer shape of a model, number of tokens and threads:
 *
 *     ours      X·Wᵀ with W in NF4 (nested scales, block 64), f32 and bf16; and dY·W ("back")
 *     sgemm     OpenBLAS on the dense f32 weight
 *     dq+sgemm  the weight dequantized to f32 first, then sgemm
 *
 * in GFLOP/s, and ours over the two. Contenders take turns; the median of the rounds counts, or on a busy
 * machine the best. A round lasts at least a few milliseconds. NIBBLE_ISA lowers our instruction set and theirs,
 * OPENBLAS_CORETYPE theirs alone. */
#include <cblas.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/philox.h"
#include "base/team.h"
#include "ops/gemm/cpu/gemm.h"

#ifndef NBL_COMMIT
#define NBL_COMMIT "unknown"
#endif

typedef struct layer {
    const char *name;
    int64_t out, in;
} layer;

static const layer layers[] = {
    {"smollm2-135m.q", 576, 576},      {"smollm2-135m.kv", 192, 576},  {"smollm2-135m.up", 1536, 576},
    {"smollm2-135m.down", 576, 1536},  {"qwen3-0.6b.q", 2048, 1024},   {"qwen3-0.6b.kv", 1024, 1024},
    {"qwen3-0.6b.o", 1024, 2048},      {"qwen3-0.6b.up", 3072, 1024},  {"qwen3-0.6b.down", 1024, 3072},
    {"llama-3.2-1b.q", 2048, 2048},    {"llama-3.2-1b.kv", 512, 2048}, {"llama-3.2-1b.up", 8192, 2048},
    {"llama-3.2-1b.down", 2048, 8192},
};

enum { CONTENDERS = 8, MAX_ROUNDS = 51, MAX_TOKENS = 8192, MAX_WEIGHTS = 8192 * 2048, WIDEST = 8192 };
typedef enum contender { NF4, NF4_BACK, NF4_BF16, NF4_BF16_BACK, SGEMM, SGEMM_BACK, DQ, DQ_BACK } contender;
static const char *const names[CONTENDERS] = {"nf4",   "back",   "bf16", "bf16back",
                                              "sgemm", "sgback", "dq",   "dqback"};

typedef struct bench {
    nbl_context *ctx;
    int threads, rounds;
    bool run[CONTENDERS], best;
    float *x, *y, *dense;
    uint16_t *x16, *y16, *values;
    nbl_weight weight;
    void *scratch;
    size_t scratch_bytes;
} bench;

/* One thread: its CPU time, in which other processes' turns on the core do not count. Several: wall time. */
static double now(const bench *b)
{
    struct timespec t;
    clock_gettime(b->threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *must(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) {
        fprintf(stderr, "nibble-bench-gemm: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

static void check(nbl_context *ctx, nbl_status status)
{
    if (status == NBL_OK) return;
    fprintf(stderr, "nibble-bench-gemm: %s\n", nbl_error_message(ctx));
    exit(1);
}

static void ours(bench *b, const layer *l, int64_t m, bool back, nbl_dtype dtype)
{
    int64_t n = back ? l->in : l->out, k = back ? l->out : l->in;
    bool f32 = dtype == NBL_DTYPE_F32;
    nbl__gemm_term term = {
        .a = {.dtype = dtype, .data = f32 ? (void *)b->x : b->x16, .stride = k},
        .b = {.weight = &b->weight, .transposed = !back},
        .k = k,
        .alpha = 1,
        .compute = dtype,
    };
    nbl__gemm_product p = {.m = m, .n = n, .terms = &term, .term_count = 1, .dtype = dtype, .stride = n};
    p.c = f32 ? (void *)b->y : b->y16;
    size_t bytes = nbl__gemm_scratch(b->ctx, nbl__gemm_best(b->ctx), &p, 1);
    if (bytes > b->scratch_bytes) {
        free(b->scratch);
        b->scratch = must(b->scratch_bytes = bytes);
    }
    check(b->ctx, nbl__gemm(b->ctx, nbl__gemm_best(b->ctx), &p, 1, b->scratch));
}

static void sgemm(bench *b, const layer *l, int64_t m, bool back)
{
    int n = (int)(back ? l->in : l->out), k = (int)(back ? l->out : l->in);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, back ? CblasNoTrans : CblasTrans, (int)m, n, k, 1, b->x, k,
                b->dense, (int)l->in, 0, b->y, n);
}

static void once(bench *b, const layer *l, int64_t m, contender who)
{
    switch (who) {
    case NF4: ours(b, l, m, false, NBL_DTYPE_F32); break;
    case NF4_BACK: ours(b, l, m, true, NBL_DTYPE_F32); break;
    case NF4_BF16: ours(b, l, m, false, NBL_DTYPE_BF16); break;
    case NF4_BF16_BACK: ours(b, l, m, true, NBL_DTYPE_BF16); break;
    case DQ:
    case DQ_BACK:
        check(b->ctx, nbl_dequantize(b->ctx, &b->weight, 0, l->out, NBL_DTYPE_F32, 0, b->dense));
        sgemm(b, l, m, who == DQ_BACK);
        break;
    case SGEMM:
    case SGEMM_BACK: sgemm(b, l, m, who == SGEMM_BACK); break;
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median of n numbers, or the smallest when the best counts; sorts them. */
static double middle(const bench *b, double *numbers)
{
    qsort(numbers, (size_t)b->rounds, sizeof *numbers, by_size);
    return numbers[b->best ? 0 : b->rounds / 2];
}

/* How much faster one contender is than another: the median of the rounds' ratios, which a machine that is slow for
 * some rounds does not change; or the ratio of the best times. */
static double ratio(const bench *b, const double *mine, const double *other)
{
    double list[MAX_ROUNDS], min = mine[0], min_other = other[0];
    for (int i = 0; i < b->rounds; i++) {
        list[i] = other[i] / mine[i];
        if (mine[i] < min) min = mine[i];
        if (other[i] < min_other) min_other = other[i];
    }
    return b->best ? min_other / min : middle(b, list);
}

/* OpenBLAS' threads keep a core busy for a while after a call: they must not do so in the next contender's time. */
static void let_threads_sleep(const bench *b)
{
    if (b->threads > 1) nanosleep(&(struct timespec){.tv_nsec = 3000000}, NULL);
}

static void measure(bench *b, const layer *l, int64_t m)
{
    static const contender turns[CONTENDERS] = {NF4,      SGEMM,      DQ,      NF4_BF16,
                                                NF4_BACK, SGEMM_BACK, DQ_BACK, NF4_BF16_BACK};
    double times[CONTENDERS][MAX_ROUNDS] = {{0}}, sorted[MAX_ROUNDS];
    double flops = 2 * (double)m * (double)l->out * (double)l->in;
    int repeats = (int)(2e8 / flops) + 1;
    for (int round = -1; round < b->rounds; round++) /* the first is not counted */
        for (int i = 0; i < CONTENDERS; i++) {
            contender who = turns[i];
            if (!b->run[who]) continue;
            let_threads_sleep(b);
            once(b, l, m,
                 who); /* as within a training step: threads awake, operands in the caches they fit */
            double start = now(b);
            for (int r = 0; r < repeats; r++) once(b, l, m, who);
            times[who][round < 0 ? 0 : round] = (now(b) - start) / repeats;
        }
    printf("%-18s %5" PRId64 " %2d", l->name, m, b->threads);
    for (int c = 0; c < CONTENDERS; c++) {
        memcpy(sorted, times[c], sizeof sorted);
        printf(" %8.1f", b->run[c] ? flops / middle(b, sorted) * 1e-9 : 0);
    }
    for (int c = NF4; c <= NF4_BF16_BACK; c++)
        printf(" %6.2f/%-6.2f", ratio(b, times[c], times[SGEMM + c % 2]),
               ratio(b, times[c], times[DQ + c % 2]));
    printf("\n");
    fflush(stdout);
}

static void prepare(bench *b, const layer *l)
{
    int64_t shape[2] = {l->out, l->in};
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_NF4, .block = 64,
                                .nested = true};
    nbl_quantized_sizes sizes;
    check(b->ctx, nbl_quantize_sizes(b->ctx, &how, 2, shape, &sizes));
    static nbl_quantized_parts parts;
    if (parts.data == NULL)
        parts = (nbl_quantized_parts){must(MAX_WEIGHTS), must(MAX_WEIGHTS), must(MAX_WEIGHTS),
                                      must(MAX_WEIGHTS)};
    check(b->ctx, nbl_quantize(b->ctx, &how, NBL_DTYPE_BF16, 2, shape, b->values, &parts, &b->weight));
    check(b->ctx, nbl_dequantize(b->ctx, &b->weight, 0, l->out, NBL_DTYPE_F32, 0, b->dense));
}

static void print_protocol(const bench *b)
{
    char model[256];
    if (!nbl_processor_name(model, sizeof model)) strcpy(model, "unknown");
    printf("machine    %s, %d cores\n", model, nbl__core_count());
    printf("isa        %s; OpenBLAS %s as %s\n", nbl__isa_name(nbl__isa(b->ctx)), openblas_get_config(),
           openblas_get_corename());
    printf("version    nibble %s, commit %s, %s\n", nbl_version(), NBL_COMMIT, __VERSION__);
    printf("measure    %s of %d rounds, interleaved; CPU time with one thread, else wall time\n",
           b->best ? "best" : "median", b->rounds);
    printf("columns    GFLOP/s; then ours over sgemm / over dequantise and sgemm, the median of the rounds' "
           "ratios\n");
    printf("\n%-18s %5s %2s", "layer", "tok", "th");
    for (int c = 0; c < CONTENDERS; c++) printf(" %8s", names[c]);
    for (int c = NF4; c <= NF4_BF16_BACK; c++) printf(" %13s", names[c]);
    printf("\n");
}

/* "1,8,64" to numbers. */
static int parse_list(const char *text, int64_t *list, int max)
{
    int count = 0;
    for (char *end; *text && count < max; text = *end ? end + 1 : end) {
        list[count] = strtoll(text, &end, 10);
        if (end == text || list[count] < 1 || list[count] > MAX_TOKENS) return 0;
        count++;
    }
    return count;
}

/* OpenBLAS chooses its kernels when it is loaded, and takes machines newer than itself for very old ones: unless
 * told otherwise, it is told our level, and loaded anew. */
static void choose_core_type(char **argv)
{
    nbl_isa isa = NBL_ISA_SCALAR;
    if (getenv("OPENBLAS_CORETYPE") || !nbl__isa_choose(getenv("NIBBLE_ISA"), nbl__isa_detect(), &isa))
        return;
    setenv("OPENBLAS_THREAD_TIMEOUT", "20", 0); /* 2^20 cycles, see let_threads_sleep */
    setenv("OPENBLAS_CORETYPE",
           isa >= NBL_ISA_AVX512 ? "SkylakeX"
           : isa >= NBL_ISA_AVX2 ? "Haswell"
                                 : "Prescott",
           1);
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    choose_core_type(argv);
    bench b = {.rounds = 5};
    const char *shapes = "";
    int64_t tokens[16] = {1, 8, 64, 256, 512, 2048}, threads[16] = {1, nbl__core_count()};
    int token_count = 6, thread_count = threads[1] > 1 ? 2 : 1;
    for (int c = 0; c < CONTENDERS; c++) b.run[c] = true;
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *value = argv[i + 1];
        if (strcmp(argv[i], "--shapes") == 0) shapes = value;
        else if (strcmp(argv[i], "--tokens") == 0) token_count = parse_list(value, tokens, 16);
        else if (strcmp(argv[i], "--threads") == 0) thread_count = parse_list(value, threads, 16);
        else if (strcmp(argv[i], "--rounds") == 0) b.rounds = atoi(value);
        else if (strcmp(argv[i], "--count") == 0) b.best = strcmp(value, "best") == 0;
        else if (strcmp(argv[i], "--ways") == 0)
            for (int c = 0; c < CONTENDERS; c++) {
                const char *at = strstr(value, names[c]);
                size_t n = strlen(names[c]);
                b.run[c] = false;
                for (; at; at = strstr(at + 1, names[c]))
                    if ((at == value || at[-1] == ',') && (at[n] == 0 || at[n] == ',')) b.run[c] = true;
            }
        else token_count = 0;
    }
    if (argc % 2 == 0 || token_count < 1 || thread_count < 1 || b.rounds < 1 || b.rounds > MAX_ROUNDS) {
        fprintf(stderr,
                "usage: nibble-bench-gemm [--shapes TEXT] [--tokens LIST] [--threads LIST] [--rounds N] "
                "[--count median|best] [--ways LIST]\n");
        return 2;
    }
    b.x = must((size_t)MAX_TOKENS * WIDEST * 4);
    b.y = must((size_t)MAX_TOKENS * WIDEST * 4);
    b.x16 = must((size_t)MAX_TOKENS * WIDEST * 2);
    b.y16 = must((size_t)MAX_TOKENS * WIDEST * 2);
    b.dense = must((size_t)MAX_WEIGHTS * 4);
    b.values = must((size_t)MAX_WEIGHTS * 2);
    for (int64_t i = 0; i < MAX_WEIGHTS; i++) {
        uint32_t words[4] = {0};
        if (i < 65536) nbl__philox((uint32_t[4]){(uint32_t)i, 0, 0, 0}, (uint32_t[2]){1, 2}, words);
        float v = nbl__uniform(words[0]) + nbl__uniform(words[1]) + nbl__uniform(words[2]) - 1.5f;
        b.values[i] = i < 65536 ? nbl__f32_to_bf16(0.05f * v) : b.values[i - 65535];
    }
    for (int64_t i = 0; i < (int64_t)MAX_TOKENS * WIDEST; i++) {
        b.x16[i] = b.values[i % (MAX_WEIGHTS - 77)];
        b.x[i] = nbl__bf16_to_f32(b.x16[i]);
    }
    for (int t = 0; t < thread_count; t++) {
        b.threads = (int)threads[t];
        if (nbl_context_create(&(nbl_context_options){NBL_OPTIONS(nbl_context_options), .threads = b.threads},
                               &b.ctx) != NBL_OK)
            return 1;
        openblas_set_num_threads(b.threads);
        if (t == 0) print_protocol(&b);
        for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
            if (!strstr(layers[i].name, shapes)) continue;
            prepare(&b, &layers[i]);
            for (int k = 0; k < token_count; k++) measure(&b, &layers[i], tokens[k]);
        }
        nbl_context_destroy(b.ctx);
    }
    return 0;
}
