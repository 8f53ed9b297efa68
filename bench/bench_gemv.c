/* bench_gemv.c - how fast products with few rows read packed weights, and products of 8-bit codes.
 *
 *     nibble-bench-gemv [--shape OUTxIN] [--rounds N] [--only TEXT] [--isa NAME]
 *
 * One core. A round times, one after the other, a plain read of the packed bytes and each number of rows; the
 * median over all rounds is printed. The weights are larger than the last-level cache unless --shape says
 * otherwise. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/philox.h"
#include "ops/gemv/cpu/gemv.h"
#include "ops/gemm/cpu/int8/gemm_int8.h"
#include "quant/quant.h"

#ifndef NBL_COMMIT
#define NBL_COMMIT "unknown"
#endif

enum { MAX_ROUNDS = 101, ROW_COUNTS = 4 };
static const int64_t row_counts[ROW_COUNTS] = {1, 2, 4, 8};

typedef struct bench_case {
    const char *name;
    nbl_format format;
    nbl_dtype compute; /* and of x; of a dense weight, too */
    int64_t block;
    bool nested, backward;
} bench_case;

static const bench_case cases[] = {
    {"nf4 f32", NBL_FORMAT_NF4, NBL_DTYPE_F32, 64, false, false},
    {"nf4-nested f32", NBL_FORMAT_NF4, NBL_DTYPE_F32, 64, true, false},
    {"nf4 bf16", NBL_FORMAT_NF4, NBL_DTYPE_BF16, 64, false, false},
    {"nf4-nested bf16", NBL_FORMAT_NF4, NBL_DTYPE_BF16, 64, true, false},
    {"nf4 f16", NBL_FORMAT_NF4, NBL_DTYPE_F16, 64, false, false},
    {"fp4 f32", NBL_FORMAT_FP4, NBL_DTYPE_F32, 64, false, false},
    {"mxfp4 f32", NBL_FORMAT_MXFP4, NBL_DTYPE_F32, 32, false, false},
    {"mxfp4 bf16", NBL_FORMAT_MXFP4, NBL_DTYPE_BF16, 32, false, false},
    {"int8 f32", NBL_FORMAT_INT8, NBL_DTYPE_F32, 0, false, false},
    {"int8 bf16", NBL_FORMAT_INT8, NBL_DTYPE_BF16, 0, false, false},
    {"dense-bf16 bf16", NBL_FORMAT_DENSE, NBL_DTYPE_BF16, 0, false, false},
    {"dense-f32 f32", NBL_FORMAT_DENSE, NBL_DTYPE_F32, 0, false, false},
    {"backward nf4 f32", NBL_FORMAT_NF4, NBL_DTYPE_F32, 64, false, true},
    {"backward nf4 bf16", NBL_FORMAT_NF4, NBL_DTYPE_BF16, 64, false, true},
};

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *times, int n)
{
    qsort(times, (size_t)n, sizeof *times, by_size);
    return times[n / 2];
}

static void *must(size_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 1 << 21, bytes) != 0) {
        fprintf(stderr, "nibble-bench-gemv: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return memory;
}

/* Reads all bytes, some lines ahead of itself; returns something that depends on them. */
#if defined(__x86_64__)
__attribute__((target("avx2")))
#endif
static uint64_t
read_all(const void *memory, size_t bytes)
{
    typedef uint64_t wide __attribute__((vector_size(32)));
    const wide *from = memory;
    wide a = {0}, b = {0}, c = {0}, d = {0};
    for (size_t i = 0; i < bytes / 128 * 4; i += 4) {
        __builtin_prefetch(from + i + 64);
        __builtin_prefetch(from + i + 66);
        a ^= from[i];
        b ^= from[i + 1];
        c ^= from[i + 2];
        d ^= from[i + 3];
    }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1] ^ a[2] ^ a[3];
}

typedef struct bench {
    int64_t out, in; /* 0: large enough */
    int rounds;
    const char *only;
    uint8_t *data;
    size_t capacity;
    float *scales, *tile;
    uint8_t *scale_codes, *x;
    nbl_isa isa;
} bench;

static volatile uint64_t sink;

static size_t bytes_of(const bench_case *c, int64_t n)
{
    size_t per = c->format == NBL_FORMAT_DENSE  ? 2 * nbl__size_of(c->compute)
                 : c->format == NBL_FORMAT_INT8 ? 2
                                                : 1;
    return (size_t)n * per / 2;
}

static void run_case(const bench *b, const bench_case *c)
{
    double times[ROW_COUNTS + 1][MAX_ROUNDS];
    int64_t in = b->in, out = b->out;
    while ((size_t)(bytes_of(c, out * in)) > b->capacity) out /= 2;
    int64_t n = out * in;
    nbl_weight w = {.format = c->format, .dtype = c->compute, .rank = 2, .shape = {out, in}, .data = b->data};
    w.block = c->block;
    if (c->nested || c->format == NBL_FORMAT_MXFP4) w.scale_codes = b->scale_codes;
    else w.scales = b->scales;
    if (c->nested) {
        w.nested_scales = b->scales;
        w.nested_table = nbl__dynamic_map_signed;
        w.nested_block = 256;
        w.nested_offset = 0.02f;
    }
    size_t bytes = bytes_of(c, n);
    nbl__gemm_term t = {.a = {.dtype = c->compute, .data = b->x, .stride = c->backward ? out : in},
                        .b = {.weight = &w, .transposed = !c->backward},
                        .k = c->backward ? out : in,
                        .alpha = 1,
                        .compute = c->compute};
    for (int round = -1; round < b->rounds; round++) { /* the first is not counted */
        int at = round < 0 ? 0 : round;
        double start = now();
        sink = read_all(b->data, bytes);
        times[ROW_COUNTS][at] = now() - start;
        for (int r = 0; r < ROW_COUNTS; r++) {
            start = now();
            nbl__gemv(b->isa, &t, row_counts[r], 0, c->backward ? in : out, b->tile, c->backward ? in : out);
            times[r][at] = now() - start;
        }
    }
    double yardstick = median(times[ROW_COUNTS], b->rounds);
    for (int r = 0; r < ROW_COUNTS; r++) {
        double seconds = median(times[r], b->rounds);
        printf("%-18s %-10s %4d %11.2f %9.2f %9.2f %9.2f\n", c->name, nbl__isa_name(b->isa),
               (int)row_counts[r], (double)n / seconds * 1e-9, (double)bytes / seconds * 1e-9,
               (double)bytes / yardstick * 1e-9, yardstick / seconds);
    }
}

/* ---- products of 8-bit codes ---- */

#if defined(__x86_64__)
/* Products per second that this core's fma units do in f32 at a level: the bound of a product of f32. */
typedef float lanes8 __attribute__((vector_size(32)));
typedef float lanes16 __attribute__((vector_size(64)));
#define FMA_LOOP(name, target_names, type, asm_line)                                                         \
    __attribute__((target(target_names))) static double name(void)                                           \
    {                                                                                                        \
        enum { STEPS = 2000000 };                                                                            \
        type s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0, s9 = s0,      \
             x = s0;                                                                                         \
        double start = now();                                                                                \
        for (int i = 0; i < STEPS; i++)                                                                      \
            __asm__ volatile(asm_line(0) asm_line(1) asm_line(2) asm_line(3) asm_line(4) asm_line(5)         \
                                 asm_line(6) asm_line(7) asm_line(8) asm_line(9)                             \
                             : "+x"(s0), "+x"(s1), "+x"(s2), "+x"(s3), "+x"(s4), "+x"(s5), "+x"(s6),         \
                               "+x"(s7), "+x"(s8), "+x"(s9)                                                  \
                             : "x"(x));                                                                      \
        return 10.0 * STEPS * (double)(sizeof x / 4) / (now() - start);                                      \
    }
#define FMA_LINE(n) "vfmadd231ps %10, %10, %" #n "\n\t"
FMA_LOOP(fma_rate_avx2, "avx2,fma", lanes8, FMA_LINE)
FMA_LOOP(fma_rate_avx512, "avx512f", lanes16, FMA_LINE)

static void run_int8(const bench *b)
{
    enum { N = 1024, K = 4096 };
    static const int64_t tokens[] = {1, 4, 8, 16, 64, 256, 512};
    printf(
        "\nproducts of 8-bit codes, [tokens, %d] by [%d, %d]; yardstick: the f32 fma rate of one core at the "
        "same level\n%-18s %-10s %6s %11s %11s %9s\n",
        K, N, K, "case", "with", "tokens", "Gproduct/s", "fma G/s", "ratio");
    int8_t *codes = must(512 * K);
    float *scales = must(512 * 4), *tile = must(512 * N * 4), *x = must(512 * K * 4);
    for (int64_t i = 0; i < 512 * K; i++) x[i] = (float)(i % 1013 - 506);
    memset(tile, 0, 512 * N * 4);
    nbl_weight w = {
        .format = NBL_FORMAT_INT8, .rank = 2, .shape = {N, K}, .data = b->data, .scales = b->scales};
    nbl__gemm_term t = {.a = {.dtype = NBL_DTYPE_I8, .data = codes, .stride = K, .scales = scales},
                        .b = {.weight = &w, .transposed = true},
                        .k = K,
                        .alpha = 1};
    void *scratch = must(nbl__int8_product_scratch(b->isa, &t, 512, N) + 64);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        double times[3][MAX_ROUNDS];
        for (int round = -1; round < b->rounds; round++) {
            int at = round < 0 ? 0 : round;
            times[0][at] = 1 / (b->isa >= NBL_ISA_AVX512 ? fma_rate_avx512 : fma_rate_avx2)();
            double start = now();
            nbl__int8_rows(b->isa, NBL_DTYPE_F32, x, K, 0, tokens[i], K, 0, NULL, codes, scales);
            times[1][at] = now() - start;
            start = now();
            nbl__int8_product(b->isa, &t, 0, tokens[i], 0, N, tile, N, scratch);
            times[2][at] = now() - start;
        }
        double fma = 1e-9 / median(times[0], b->rounds), products = (double)(tokens[i] * N) * K * 1e-9;
        double rate = products / median(times[2], b->rounds);
        printf("%-18s %-10s %6d %11.1f %11.1f %9.2f\n", "int8 product", nbl__isa_name(b->isa), (int)tokens[i],
               rate, fma, rate / fma);
        if (tokens[i] != 512) continue;
        printf("%-18s %-10s %6d %11.2f\n", "int8 rows Gvalue/s", nbl__isa_name(b->isa), (int)tokens[i],
               (double)(tokens[i] * K) * 1e-9 / median(times[1], b->rounds));
    }
    free(scratch);
    free(codes);
    free(scales);
    free(tile);
    free(x);
}
#endif

static void print_protocol(const bench *b)
{
    char model[256];
    if (!nbl_processor_name(model, sizeof model)) strcpy(model, "unknown");
    printf("machine    %s, one core of %d, last-level cache %zu MiB\n", model, nbl__core_count(),
           nbl__cache_bytes() >> 20);
    printf("version    nibble %s, commit %s, %s\n", nbl_version(), NBL_COMMIT, __VERSION__);
    printf("weight     [%" PRId64 ", %" PRId64
           "] (fewer rows where %zu MiB do not hold them), random codes\n",
           b->out, b->in, b->capacity >> 20);
    printf("measure    median of %d rounds, interleaved; CPU time\n", b->rounds);
    printf("yardstick  a plain read of the packed bytes (without scales)\n");
    printf("\n%-18s %-10s %4s %11s %9s %9s %9s\n", "case", "with", "rows", "Gweight/s", "GB/s", "read GB/s",
           "ratio");
}

int main(int argc, char **argv)
{
    bench b = {.out = 131072, .in = 4096, .rounds = 5, .capacity = (size_t)512 << 20};
    nbl_isa only_isa = NBL_ISA_COUNT;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        bool good = true;
        if (strcmp(argv[i], "--shape") == 0) good = sscanf(value, "%" SCNd64 "x%" SCNd64, &b.out, &b.in) == 2;
        else if (strcmp(argv[i], "--rounds") == 0) b.rounds = atoi(value);
        else if (strcmp(argv[i], "--only") == 0) b.only = value;
        else if (strcmp(argv[i], "--isa") == 0) good = nbl__isa_choose(value, nbl__isa_detect(), &only_isa);
        else good = false;
        if (!good || b.rounds < 1 || b.rounds > MAX_ROUNDS || b.out < 1 || b.in < 32 || b.in % 32) {
            fprintf(stderr,
                    "usage: nibble-bench-gemv [--shape OUTxIN] [--rounds N] [--only TEXT] [--isa NAME]\n");
            return 2;
        }
    }
    int64_t longest = nbl__max_i64(b.out, b.in);
    b.data = must(b.capacity + 64);
    b.scales = must((size_t)nbl__max_i64(b.out * b.in / 32 + 64, b.out) * 4);
    b.scale_codes = must((size_t)(b.out * b.in / 32 + 64));
    b.tile = must((size_t)longest * 8 * 4);
    b.x = must((size_t)longest * 8 * 4);
    memset(b.tile, 0, (size_t)longest * 8 * 4);
    for (size_t i = 0; i < b.capacity; i += 16) {
        uint32_t words[4];
        nbl__philox((uint32_t[4]){(uint32_t)(i / 16 % 65537), 0, 0, 0}, (uint32_t[2]){1, 2}, words);
        for (int k = 0; k < 4; k++) words[k] = (words[k] & 0x80ff80ff) | 0x3f003f00; /* as bf16: 0.5 ... 2 */
        memcpy(b.data + i, words, 16);
    }
    for (int64_t i = 0; i < b.out * b.in / 32 + 64; i++) b.scales[i] = 0.01f + 1e-7f * (float)(i % 1000);
    for (int64_t i = 0; i < b.out * b.in / 32; i++) b.scale_codes[i] = (uint8_t)(118 + i % 16);
    for (int64_t i = 0; i < longest * 8; i++) {
        float value = (float)(i % 17 - 8) * 0.125f;
        memcpy(b.x + 4 * i, &value, 4);
    }
    print_protocol(&b);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int isa = NBL_ISA_AVX2; isa <= NBL_ISA_AVX512BF16 && isa <= (int)nbl__isa_detect(); isa++) {
            if (only_isa != NBL_ISA_COUNT && isa != (int)only_isa) continue;
            b.isa = (nbl_isa)isa;
            if (b.only == NULL || strstr(cases[i].name, b.only)) run_case(&b, &cases[i]);
        }
#if defined(__x86_64__)
    for (int isa = NBL_ISA_AVX2; isa <= (int)nbl__isa_detect(); isa++) {
        if (isa == NBL_ISA_AVX512BF16 || (only_isa != NBL_ISA_COUNT && isa != (int)only_isa)) continue;
        b.isa = (nbl_isa)isa;
        if (b.only == NULL || strstr("int8 product", b.only)) run_int8(&b);
    }
#endif
    return 0;
}
