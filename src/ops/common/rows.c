/* rows.c - divides rows among the threads of a context, and sums partial rows. See rows.h.
 *
 * Invariant: an item's rows, and the order in which partial rows are added, depend on sizes
 * alone. */
#include "ops/common/rows.h"

#include "ops/common/vmath.h"

typedef struct rows_job {
    int64_t rows, per_item;
    nbl__rows_fn fn;
    const void *job;
} rows_job;

/* An item of the team: rows [item·per_item, …), cut at the end. */
static nbl_status run_item(void *argument, int64_t item, int worker)
{
    const rows_job *j = argument;
    int64_t begin = item * j->per_item;
    assert(begin < j->rows);
    (void)worker;
    j->fn(j->job, begin, nbl__min_i64(begin + j->per_item, j->rows), item);
    return NBL_OK;
}

nbl_status nbl__rows_run(nbl_context *ctx, int64_t rows, int64_t rows_per_item, nbl__rows_fn fn,
                         const void *job)
{
    assert(rows >= 0 && rows_per_item >= 1);
    rows_job j = {rows, rows_per_item, fn, job};
    return nbl__team_run(ctx, nbl__ceil_div(rows, rows_per_item), run_item, &j, NULL);
}

#if defined(__x86_64__)

NBL_TARGET_AVX2 static void add_scaled_avx2(nbl_dtype dtype, const uint8_t *x, float scale, float *y,
                                            int64_t n)
{
    __m256 factor = _mm256_set1_ps(scale);
    for (int64_t i = 0; i < n; i += 8) {
        __m256 value = nbl__get_avx2(dtype, x + (size_t)i * nbl__size_of(dtype), n - i);
        __m256 sum = _mm256_fmadd_ps(value, factor, nbl__get_avx2(NBL_DTYPE_F32, y + i, n - i));
        nbl__put_avx2(NBL_DTYPE_F32, y + i, sum, n - i);
    }
}

NBL_TARGET_AVX512 static void add_scaled_avx512(nbl_dtype dtype, const uint8_t *x, float scale, float *y,
                                                int64_t n)
{
    __m512 factor = _mm512_set1_ps(scale);
    for (int64_t i = 0; i < n; i += 16) {
        __m512 value = nbl__get_avx512(dtype, x + (size_t)i * nbl__size_of(dtype), n - i);
        __m512 sum = _mm512_fmadd_ps(value, factor, nbl__get_avx512(NBL_DTYPE_F32, y + i, n - i));
        nbl__put_avx512(NBL_DTYPE_F32, y + i, sum, n - i);
    }
}

#endif

/* f32 arithmetic with one fma per element on AVX2 and AVX-512. The scalar code rounds twice. */
void nbl__add_scaled(nbl_isa isa, nbl_dtype dtype, const void *x, float scale, float *y, int64_t n)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX512) add_scaled_avx512(dtype, x, scale, y, n);
    else if (isa >= NBL_ISA_AVX2) add_scaled_avx2(dtype, x, scale, y, n);
    if (isa >= NBL_ISA_AVX2) return;
#endif
    for (int64_t i = 0; i < n; i++) {
        float value;
        nbl__to_f32(isa, dtype, (const uint8_t *)x + (size_t)i * nbl__size_of(dtype), &value, 1);
        y[i] += scale * value;
    }
}

typedef struct sum_job {
    nbl_isa isa;
    const float *partial;
    int64_t blocks, stride;
    float *out;
    bool accumulate;
} sum_job;

/* Sums the partial rows over columns [begin, end), in the order of blocks. */
static void sum_columns(const void *job, int64_t begin, int64_t end, int64_t item)
{
    const sum_job *j = job;
    (void)item;
    if (!j->accumulate) memset(j->out + begin, 0, (size_t)(end - begin) * sizeof *j->out);
    for (int64_t b = 0; b < j->blocks; b++)
        nbl__add_scaled(j->isa, NBL_DTYPE_F32, j->partial + b * j->stride + begin, 1, j->out + begin,
                        end - begin);
}

nbl_status nbl__blocks_add(nbl_context *ctx, const float *partial, int64_t blocks, int64_t stride,
                           int64_t columns, float *out, bool accumulate)
{
    assert(blocks >= 0 && stride >= columns && partial != out);
    sum_job j = {nbl__isa(ctx), partial, blocks, stride, out, accumulate};
    return nbl__rows_run(ctx, columns, 2048, sum_columns, &j);
}
