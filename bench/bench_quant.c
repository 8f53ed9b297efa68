/* bench_quant.c - how fast weights are dequantized and quantized, beside memset and memcpy in the same run.
 *
 *     nibble-bench [--shape 4096x14336] [--rounds 9] [--threads N] [--only TEXT] [--tsv | --protocol]
 *
 * Every round times, one after the other, the yardsticks and each instruction set; the median over all
 * rounds is printed. Interleaving keeps a noisy neighbour from striking one row only. Yardsticks: memset over
 * the output for dequantizing, memcpy of the input for quantizing. No --threads: one core, then all.
 * --tsv prints lines for bench/run: case, with what, threads, elements, bytes, median seconds; --protocol only
 * what was measured and how. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "base/team.h"
#include "quant/quant.h"

#ifndef NBL_COMMIT
#define NBL_COMMIT "unknown"
#endif

enum { MAX_ROUNDS = 101, LEVELS = 3, YARDSTICK = LEVELS };

static const nbl_isa levels[LEVELS] = {NBL_ISA_SCALAR, NBL_ISA_AVX2, NBL_ISA_AVX512};

typedef struct bench_case {
    const char *name;
    bool quantize;
    nbl_format format;
    nbl_dtype dtype; /* of the dense side */
    bool nested, transpose;
} bench_case;

/* Names are shared with bitsandbytes_cpu.py. */
static const bench_case cases[] = {
    {"dequantize nf4 f32", false, NBL_FORMAT_NF4, NBL_DTYPE_F32, false, false},
    {"dequantize nf4 bf16", false, NBL_FORMAT_NF4, NBL_DTYPE_BF16, false, false},
    {"dequantize nf4 f16", false, NBL_FORMAT_NF4, NBL_DTYPE_F16, false, false},
    {"dequantize nf4-nested f32", false, NBL_FORMAT_NF4, NBL_DTYPE_F32, true, false},
    {"dequantize nf4-nested bf16", false, NBL_FORMAT_NF4, NBL_DTYPE_BF16, true, false},
    {"dequantize fp4 bf16", false, NBL_FORMAT_FP4, NBL_DTYPE_BF16, false, false},
    {"dequantize int8 f32", false, NBL_FORMAT_INT8, NBL_DTYPE_F32, false, false},
    {"dequantize int8 bf16", false, NBL_FORMAT_INT8, NBL_DTYPE_BF16, false, false},
    {"dequantize mxfp4 f32", false, NBL_FORMAT_MXFP4, NBL_DTYPE_F32, false, false},
    {"dequantize mxfp4 bf16", false, NBL_FORMAT_MXFP4, NBL_DTYPE_BF16, false, false},
    {"dequantize nf4 f32 transposed", false, NBL_FORMAT_NF4, NBL_DTYPE_F32, false, true},
    {"dequantize nf4 bf16 transposed", false, NBL_FORMAT_NF4, NBL_DTYPE_BF16, false, true},
    {"quantize nf4 bf16", true, NBL_FORMAT_NF4, NBL_DTYPE_BF16, false, false},
    {"quantize nf4-nested bf16", true, NBL_FORMAT_NF4, NBL_DTYPE_BF16, true, false},
    {"quantize fp4 bf16", true, NBL_FORMAT_FP4, NBL_DTYPE_BF16, false, false},
    {"quantize int8 bf16", true, NBL_FORMAT_INT8, NBL_DTYPE_BF16, false, false},
    {"quantize mxfp4 bf16", true, NBL_FORMAT_MXFP4, NBL_DTYPE_BF16, false, false},
};

typedef struct bench {
    int64_t shape[2], n;
    int rounds, threads;
    bool tsv, protocol;
    const char *only;
    nbl_context *contexts[LEVELS]; /* NULL where the machine lacks the level */
    uint16_t *source;              /* bf16 [n] */
    uint8_t *dense;                /* 4 n bytes */
    nbl_quantized_parts parts;
} bench;

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

static double median(const double *times, int n)
{
    double sorted[MAX_ROUNDS];
    memcpy(sorted, times, (size_t)n * sizeof *times);
    qsort(sorted, (size_t)n, sizeof *sorted, by_size);
    return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void check(nbl_context *ctx, nbl_status status)
{
    if (status == NBL_OK) return;
    fprintf(stderr, "nibble-bench: %s\n", nbl_error_message(ctx));
    exit(1);
}

/* ---- yardsticks, cut for the threads as the work itself is ---- */

typedef struct copy_job {
    uint8_t *to;
    const uint8_t *from; /* NULL: memset */
    int64_t bytes, piece;
} copy_job;

static nbl_status copy_piece(void *argument, int64_t item, int worker)
{
    (void)worker;
    const copy_job *job = argument;
    size_t count = (size_t)nbl__min_i64(job->piece, job->bytes - item * job->piece);
    if (job->from) memcpy(job->to + item * job->piece, job->from + item * job->piece, count);
    else memset(job->to + item * job->piece, 1, count);
    return NBL_OK;
}

static double time_copy(const bench *b, void *to, const void *from, int64_t bytes)
{
    copy_job job = {to, from, bytes, b->threads == 1 ? bytes : nbl__ceil_div(bytes, 8 * b->threads)};
    nbl_context *ctx = b->contexts[0];
    double start = now(b);
    check(ctx, nbl__team_run(ctx, nbl__ceil_div(bytes, job.piece), copy_piece, &job, NULL));
    return now(b) - start;
}

/* ---- one case ---- */

static double time_case(const bench *b, const bench_case *c, int level, const nbl_weight *packed)
{
    nbl_context *ctx = b->contexts[level];
    double start = now(b);
    if (c->quantize) {
        nbl_weight made;
        nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = c->format, .block = 64,
                                    .nested = c->nested};
        check(ctx, nbl_quantize(ctx, &how, c->dtype, 2, b->shape, b->source, &b->parts, &made));
    } else {
        check(ctx, nbl_dequantize(ctx, packed, 0, b->shape[0], c->dtype, c->transpose, b->dense));
    }
    return now(b) - start;
}

static void report(const bench *b, const bench_case *c, const char *who, double seconds, double yardstick,
                   int64_t bytes)
{
    if (b->tsv) {
        printf("%s\t%s\t%d\t%" PRId64 "\t%" PRId64 "\t%.9f\n", c->name, who, b->threads, b->n, bytes,
               seconds);
        return;
    }
    printf("%-32s %-8s %7d %9.3f %9.2f %9.2f\n", c->name, who, b->threads, (double)b->n / seconds * 1e-9,
           (double)bytes / seconds * 1e-9, yardstick / seconds);
}

static void run_case(const bench *b, const bench_case *c)
{
    double times[LEVELS + 1][MAX_ROUNDS];
    nbl_weight packed = {0};
    nbl_context *best = b->contexts[0];
    for (int l = 1; l < LEVELS; l++)
        if (b->contexts[l]) best = b->contexts[l];
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = c->format, .block = 64,
                                .nested = c->nested};
    check(best, nbl_quantize(best, &how, NBL_DTYPE_BF16, 2, b->shape, b->source, &b->parts, &packed));
    int64_t bytes = b->n * (int64_t)nbl__size_of(c->dtype);
    for (int round = -1; round < b->rounds; round++) { /* the first is not counted */
        int at = round < 0 ? 0 : round;
        times[YARDSTICK][at] = time_copy(b, b->dense, c->quantize ? b->source : NULL, bytes);
        for (int l = 0; l < LEVELS; l++)
            if (b->contexts[l]) times[l][at] = time_case(b, c, l, &packed);
    }
    double yardstick = median(times[YARDSTICK], b->rounds);
    report(b, c, c->quantize ? "memcpy" : "memset", yardstick, yardstick, bytes);
    for (int l = 0; l < LEVELS; l++)
        if (b->contexts[l])
            report(b, c, nbl__isa_name(levels[l]), median(times[l], b->rounds), yardstick, bytes);
}

static void run_all(bench *b)
{
    for (int l = 0; l < LEVELS; l++) {
        if (levels[l] > nbl__isa_detect()) continue;
        setenv("NIBBLE_ISA", nbl__isa_name(levels[l]), 1);
        if (nbl_context_create(
                &(nbl_context_options){NBL_OPTIONS(nbl_context_options), .threads = b->threads},
                &b->contexts[l]) != NBL_OK)
            exit(1);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (b->only == NULL || strstr(cases[i].name, b->only)) run_case(b, &cases[i]);
    for (int l = 0; l < LEVELS; l++) nbl_context_destroy(b->contexts[l]);
}

/* ---- protocol ---- */

static void print_protocol(const bench *b)
{
    char model[256];
    if (!nbl_processor_name(model, sizeof model)) strcpy(model, "unknown");
    printf("machine    %s, %d cores, last-level cache %zu MiB\n", model, nbl__core_count(),
           nbl__cache_bytes() >> 20);
    printf("best isa   %s\n", nbl__isa_name(nbl__isa_detect()));
    printf("version    nibble %s, commit %s, %s\n", nbl_version(), NBL_COMMIT, __VERSION__);
    printf("weight     [%" PRId64 ", %" PRId64 "], normal values, block 64, from bf16\n", b->shape[0],
           b->shape[1]);
    printf("measure    median of %d rounds, interleaved; CPU time with one thread, else wall time\n",
           b->rounds);
    printf("GB/s       of the dense side\n");
    printf("yardstick  memset over the output (dequantize), memcpy of the input (quantize)\n");
}

static void print_head(void)
{
    printf("\n%-32s %-8s %7s %9s %9s %9s\n", "case", "with", "threads", "Gelem/s", "GB/s", "ratio");
}

static void *must(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) {
        fprintf(stderr, "nibble-bench: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    memset(memory, 0, bytes);
    return memory;
}

int main(int argc, char **argv)
{
    bench b = {.shape = {4096, 14336}, .rounds = 9};
    int threads = 0;
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int used = 1;
        if (strcmp(argv[i], "--tsv") == 0) b.tsv = true, used = 0;
        else if (strcmp(argv[i], "--protocol") == 0) b.protocol = true, used = 0;
        else if (strcmp(argv[i], "--shape") == 0 &&
                 sscanf(value, "%" SCNd64 "x%" SCNd64, &b.shape[0], &b.shape[1]) == 2) {
        } else if (strcmp(argv[i], "--rounds") == 0) b.rounds = atoi(value);
        else if (strcmp(argv[i], "--threads") == 0) threads = atoi(value);
        else if (strcmp(argv[i], "--only") == 0) b.only = value;
        else used = -1;
        if (used < 0 || b.rounds < 1 || b.rounds > MAX_ROUNDS || b.shape[0] < 1 || b.shape[1] < 32 ||
            b.shape[1] % 32 || b.shape[0] > INT32_MAX || b.shape[1] > INT32_MAX) {
            fprintf(stderr, "usage: nibble-bench [--shape ROWSxCOLUMNS] [--rounds N] [--threads N] [--only "
                            "TEXT] [--tsv]\n");
            return 2;
        }
        i += used;
    }
    b.n = b.shape[0] * b.shape[1];
    if (!b.tsv) print_protocol(&b);
    if (b.protocol) return 0;
    if (!b.tsv) print_head();
    size_t n = (size_t)b.n;
    b.source = must(2 * n);
    b.dense = must(4 * n);
    b.parts = (nbl_quantized_parts){must(n), must(4 * (n / 32 + (size_t)b.shape[0])), must(n / 32),
                                    must(n / 32)};
    enum { POOL = 1 << 16 }; /* normal values, repeated */
    for (int64_t i = 0; i < b.n; i++) {
        if (i >= POOL) {
            b.source[i] = b.source[i - POOL + 1 - (i / POOL & 1)];
            continue;
        }
        float sum = -6;
        for (uint32_t k = 0; k < 3; k++) {
            uint32_t words[4];
            nbl__philox((uint32_t[4]){(uint32_t)i, k, 0, 0}, (uint32_t[2]){1, 2}, words);
            for (int w = 0; w < 4; w++) sum += nbl__uniform(words[w]);
        }
        b.source[i] = nbl__f32_to_bf16(0.02f * sum);
    }
    int all = nbl__core_count();
    for (int run = 0; run < 2; run++) {
        b.threads = threads ? threads : run == 0 ? 1 : all;
        if (run == 1 && (threads || all == 1)) break;
        run_all(&b);
    }
    return 0;
}
