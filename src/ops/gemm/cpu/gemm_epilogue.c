/* gemm_epilogue.c - see gemm_epilogue.h.
 *
 *   for each row of the tile:   load C (accumulate), factor, add, bias, round, store
 *
 * Bytes: the tile is read once, C is written once, and read once with accumulate. Limit: the
 * caches' bandwidth. */
#include "ops/gemm/cpu/gemm_epilogue.h"

#include "ops/linear/cpu/dropout.h"

#if defined(__x86_64__)
#include <immintrin.h>

/* values = old + factor · values + bias, in groups of 8; NULL: without. Returns how many were
 * done. */
NBL_TARGET_AVX2 static int64_t finish_values_avx2(float *values, const float *factor, const float *old,
                                                  const float *bias, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 v = _mm256_loadu_ps(values + i);
        if (factor) v = _mm256_mul_ps(_mm256_loadu_ps(factor + i), v);
        if (old) v = _mm256_add_ps(_mm256_loadu_ps(old + i), v);
        if (bias) v = _mm256_add_ps(v, _mm256_loadu_ps(bias + i));
        _mm256_storeu_ps(values + i, v);
    }
    return i;
}
#endif

/* The same for n values, on any instruction set. */
static void finish_values(nbl_isa isa, float *values, const float *factor, const float *old,
                          const float *bias, int64_t n)
{
    int64_t i = 0;
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AVX2) i = finish_values_avx2(values, factor, old, bias, n);
#else
    (void)isa;
#endif
    for (; i < n; i++) {
        float v = values[i];
        if (factor) v = factor[i] * v;
        if (old) v = old[i] + v;
        if (bias) v = v + bias[i];
        values[i] = v;
    }
}

/* Writes C transposed. C is narrow here: as wide as the rank of an adapter. */
static void store_transposed(const nbl__gemm_product *p, int64_t row, int64_t rows, int64_t n_begin,
                             int64_t n_end, const float *tile, int64_t stride)
{
    for (int64_t n = n_begin; n < n_end; n++, tile++) {
        float *c = (float *)p->c + n * p->stride + row;
        for (int64_t r = 0; r < rows; r++) c[r] = (p->accumulate ? c[r] : 0) + tile[r * stride];
    }
}

void nbl__gemm_epilogue(nbl_isa isa, const nbl__gemm_product *p, int64_t row, int64_t rows, int64_t n_begin,
                        int64_t n_end, float *tile, int64_t stride, float *line)
{
    if (p->c_transposed) {
        store_transposed(p, row, rows, n_begin, n_end, tile, stride);
        return;
    }
    int64_t n = n_end - n_begin;
    size_t size = nbl__size_of(p->dtype);
    float *bias = NULL, *old = line + n;
    const float *factor = p->factor ? p->factor + n_begin : NULL;
    if (p->bias) {
        bias = line;
        nbl__to_f32(isa, p->bias->dtype,
                    (const uint8_t *)p->bias->data + (size_t)n_begin * nbl__size_of(p->bias->dtype), bias, n);
    }
    for (int64_t r = 0; r < rows; r++, tile += stride) {
        uint8_t *c = (uint8_t *)p->c + (size_t)((row + r) * p->stride + n_begin) * size;
        if (p->accumulate) nbl__to_f32(isa, p->dtype, c, old, n);
        if (p->accumulate || factor || bias)
            finish_values(isa, tile, factor, p->accumulate ? old : NULL, bias, n);
        if (p->dtype == NBL_DTYPE_F32) memcpy(c, tile, (size_t)n * size);
        else nbl__from_f32(isa, tile, p->dtype, c, n);
    }
}

void nbl__gemm_join(nbl_isa isa, const nbl__gemm_product *p, const nbl__gemm_term *term, int64_t row,
                    int64_t rows, int64_t n_begin, int64_t n_end, float *part, float *tile, int64_t stride)
{
    for (int64_t r = row; r < row + rows; r++, part += stride, tile += stride) {
        nbl__drop_f32(isa, term->seed, term->dropout, term->drop_first + r * p->n + n_begin, n_end - n_begin,
                      part);
        finish_values(isa, tile, NULL, part, NULL, n_end - n_begin);
    }
}
