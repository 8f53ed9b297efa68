/* roofline.c - see roofline.h.
 *
 * The loops hold everything in registers: 12 or more independent chains, so that the latency of a
 * multiply-add (4 to 5 cycles, two per cycle) does not show. Scalar code has 8 chains, which the
 * compiler may vectorize.
 *
 * The copy is of memory larger than the caches; its bytes are counted twice, read and written. */
#include "roofline.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/team.h"

double roofline_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

enum { ROUNDS = 2000000, SCALAR_CHAINS = 8 };

/* Each returns its floating point operations. `sink` keeps the compiler from dropping the work. */
typedef double (*peak_loop)(float *sink);

static double peak_scalar(float *sink)
{
    float sums[SCALAR_CHAINS] = {0};
    for (int i = 0; i < ROUNDS; i++)
        for (int k = 0; k < SCALAR_CHAINS; k++) sums[k] = sums[k] * 0.999f + 0.001f;
    for (int k = 0; k < SCALAR_CHAINS; k++) *sink += sums[k];
    return 2.0 * SCALAR_CHAINS * ROUNDS;
}

#if defined(__x86_64__)
#include <immintrin.h>

enum { CHAINS = 12, TILE_BYTES = 1024 };

/* 8 lanes, 12 chains: one fused multiply-add is two operations. */
NBL_TARGET_AVX2 static double peak_avx2(float *sink)
{
    __m256 sums[CHAINS], a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
    for (int k = 0; k < CHAINS; k++) sums[k] = _mm256_setzero_ps();
    for (int i = 0; i < ROUNDS; i++)
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++) sums[k] = _mm256_fmadd_ps(sums[k], a, b);
    for (int k = 0; k < CHAINS; k++) *sink += _mm256_cvtss_f32(sums[k]);
    return 2.0 * 8 * CHAINS * ROUNDS;
}

/* 16 lanes. */
NBL_TARGET_AVX512 static double peak_avx512(float *sink)
{
    __m512 sums[CHAINS], a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
    for (int k = 0; k < CHAINS; k++) sums[k] = _mm512_setzero_ps();
    for (int i = 0; i < ROUNDS; i++)
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++) sums[k] = _mm512_fmadd_ps(sums[k], a, b);
    for (int k = 0; k < CHAINS; k++) *sink += _mm512_cvtss_f32(sums[k]);
    return 2.0 * 16 * CHAINS * ROUNDS;
}

/* 16 sums of two products each: 32 multiply-adds per instruction. */
__attribute__((target("avx512f,avx512bf16"))) static double peak_avx512bf16(float *sink)
{
    __m512 sums[CHAINS];
    __m512bh a = (__m512bh)_mm512_set1_epi16(0x3f7f), b = (__m512bh)_mm512_set1_epi16(0x3a83);
    for (int k = 0; k < CHAINS; k++) sums[k] = _mm512_setzero_ps();
    for (int i = 0; i < ROUNDS; i++)
#pragma GCC unroll 12
        for (int k = 0; k < CHAINS; k++) sums[k] = _mm512_dpbf16_ps(sums[k], a, b);
    for (int k = 0; k < CHAINS; k++) *sink += _mm512_cvtss_f32(sums[k]);
    return 2.0 * 32 * CHAINS * ROUNDS;
}

/* Four sums from two tiles on each side, as a product's inner loop has them. */
__attribute__((target("amx-tile,amx-bf16"))) static double peak_amx(float *sink)
{
    enum { TILE_ROUNDS = ROUNDS / 8, TILES = 8 };
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } __attribute__((packed)) shape = {.palette = 1};
    uint16_t zeros[TILE_BYTES / 2] = {0};
    for (int i = 0; i < TILES; i++) {
        shape.row_bytes[i] = 64;
        shape.rows[i] = 16;
    }
    _tile_loadconfig(&shape);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, zeros, 64);
    _tile_loadd(5, zeros, 64);
    _tile_loadd(6, zeros, 64);
    _tile_loadd(7, zeros, 64);
    for (int i = 0; i < TILE_ROUNDS; i++) {
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, zeros, 64);
    _tile_release();
    *sink += (float)zeros[0];
    return 4.0 * 2 * 16 * 16 * 32 * TILE_ROUNDS;
}

static const peak_loop f32_loops[NBL_ISA_COUNT] = {peak_scalar, peak_avx2, peak_avx512, peak_avx512,
                                                   peak_avx512},
                       bf16_loops[NBL_ISA_COUNT] = {peak_scalar, peak_avx2, peak_avx512, peak_avx512bf16,
                                                    peak_amx};
#else
static const peak_loop f32_loops[NBL_ISA_COUNT] = {peak_scalar}, bf16_loops[NBL_ISA_COUNT] = {peak_scalar};
#endif

/* One measurement: work[i] is what thread i has done. */
typedef struct job {
    peak_loop loop;
    double work[NBL_MAX_THREADS];
    float sink[NBL_MAX_THREADS];
    uint8_t *from, *to;
    size_t piece;
} job;

/* Thread task: one loop. */
static nbl_status run_loop(void *argument, int64_t item, int worker)
{
    job *j = argument;
    (void)worker;
    j->work[item] = j->loop(&j->sink[item]);
    return NBL_OK;
}

/* Thread task: copies one piece. */
static nbl_status run_copy(void *argument, int64_t item, int worker)
{
    job *j = argument;
    (void)worker;
    memcpy(j->to + (size_t)item * j->piece, j->from + (size_t)item * j->piece, j->piece);
    j->work[item] = 2.0 * (double)j->piece;
    return NBL_OK;
}

/* The best of a few rounds: work per second. */
static double best(nbl_context *ctx, nbl__team_fn fn, job *j, int rounds)
{
    double max = 0;
    for (int round = 0; round < rounds; round++) {
        double began = roofline_seconds(), work = 0;
        int items = nbl_threads(ctx);
        if (nbl__team_run(ctx, items, fn, j, NULL) != NBL_OK) return 0;
        double seconds = roofline_seconds() - began;
        for (int i = 0; i < items; i++) work += j->work[i];
        if (work / seconds > max) max = work / seconds;
    }
    return max;
}

roofline roofline_measure(nbl_context *ctx)
{
    enum { ROUNDS_EACH = 5 };
    roofline r = {0};
    job *j = calloc(1, sizeof *j);
    size_t bytes = 2 * nbl__cache_bytes() + ((size_t)64 << 20);
    if (j == NULL) return r;
    j->loop = f32_loops[nbl__isa(ctx)];
    r.f32_flops = best(ctx, run_loop, j, ROUNDS_EACH);
    j->loop = bf16_loops[nbl__isa(ctx)];
    r.bf16_flops = best(ctx, run_loop, j, ROUNDS_EACH);
    j->from = malloc(bytes);
    j->to = malloc(bytes);
    j->piece = bytes / (size_t)nbl_threads(ctx);
    if (j->from && j->to) {
        memset(j->from, 1, bytes);
        memset(j->to, 2, bytes);
        r.copy_bytes = best(ctx, run_copy, j, ROUNDS_EACH);
    }
    free(j->from);
    free(j->to);
    free(j);
    return r;
}
