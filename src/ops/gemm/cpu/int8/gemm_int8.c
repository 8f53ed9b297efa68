/* gemm_int8.c - the product of int8 codes: the loops over blocks, the scalar algorithm, and the step
 * from sums to the tile. See gemm_int8.h; the loops are drawn in gemm_int8_kernels.h.
 *
 * Limit: multiplication from 256 rows on (packing is a few percent), the reading of W with a small
 * batch. */
#include "ops/gemm/cpu/int8/gemm_int8_kernels.h"

/* Sums of this many products of codes fit i32: 127 · 128 · 131072 < 2^31. A longer k is cut. */
enum { EXACT_K = 131072 };

/* NULL: the scalar algorithm. */
static const nbl__int8_kernel *kernel_of(nbl_isa isa)
{
#if defined(__x86_64__)
    if (isa >= NBL_ISA_AMX) return &nbl__int8_amx;
    if (isa >= NBL_ISA_AVX512) return &nbl__int8_avx512;
    if (isa >= NBL_ISA_AVX2) return &nbl__int8_avx2;
#endif
    (void)isa;
    return NULL;
}

typedef struct job {
    const nbl__gemm_term *term;
    const int8_t *a, *w; /* at the first k of this part */
    int64_t a_stride, w_stride, k;
    int64_t m_begin, m_end, n_begin, n_end;
    float *tile;
    int64_t tile_stride;
} job;

/* ---- small batch, and the scalar algorithm ---- */

static void dot_scalar(int rows, const int8_t *a, int64_t stride, const int8_t *w, int64_t count,
                       int32_t *sums)
{
    for (int i = 0; i < rows; i++) {
        int32_t sum = 0;
        for (int64_t k = 0; k < count; k++) sum += a[i * stride + k] * w[k];
        sums[i] = sum;
    }
}

static int32_t sum_codes(const int8_t *codes, int64_t n)
{
    int32_t sum = 0;
    for (int64_t i = 0; i < n; i++) sum += codes[i];
    return sum;
}

/* One sum to the tile, with the same roundings as the kernels' `finish`. */
static void add_to_tile(const job *j, int64_t row, int64_t column, int32_t sum)
{
    float row_factor = j->term->alpha * j->term->a.scales[row] / (127.0f * 127.0f);
    float factor = row_factor * j->term->b.weight->scales[column];
    j->tile[(row - j->m_begin) * j->tile_stride + column - j->n_begin] += (float)sum * factor;
}

/* The small batch: a row of W is read from memory once for all rows of A. */
static void run_direct(const job *j, const nbl__int8_kernel *kernel)
{
    int32_t a_sums[NBL_INT8_SMALL_BATCH] = {0}, sums[4];
    assert(kernel == NULL || j->m_end - j->m_begin <= NBL_INT8_SMALL_BATCH);
    for (int64_t m = j->m_begin; kernel && m < j->m_end; m++)
        a_sums[m - j->m_begin] = sum_codes(j->a + m * j->a_stride, j->k);
    for (int64_t n = j->n_begin; n < j->n_end; n++)
        for (int64_t m = j->m_begin; m < j->m_end; m += 4) {
            int rows = (int)nbl__min_i64(4, j->m_end - m);
            const int8_t *a = j->a + m * j->a_stride, *w = j->w + n * j->w_stride;
            if (kernel) kernel->dot(rows, a, j->a_stride, w, j->k, a_sums + (m - j->m_begin), sums);
            else dot_scalar(rows, a, j->a_stride, w, j->k, sums);
            for (int i = 0; i < rows; i++) add_to_tile(j, m + i, n, sums[i]);
        }
}

/* ---- blocks ---- */

/* The memory of one block. */
typedef struct scratch {
    uint8_t *w, *a;
    int32_t *sums;   /* [rows / kernel rows][columns / panel][kernel rows][panel] */
    int32_t *a_sums; /* [rows] */
} scratch;

/* Cuts n into as few blocks as `largest` allows, of nearly equal size, each a multiple of `step`. */
static int64_t block_size(int64_t n, int64_t largest, int64_t step)
{
    return nbl__ceil_div(nbl__ceil_div(n, nbl__ceil_div(n, largest)), step) * step;
}

static size_t layout(const nbl__int8_kernel *kernel, int64_t m, int64_t n, void *base, scratch *s)
{
    nbl__bump bump = {base, 0};
    int64_t rows = nbl__min_i64(nbl__ceil_div(m, kernel->rows) * kernel->rows, NBL_INT8_M);
    int64_t columns = nbl__min_i64(nbl__ceil_div(n, kernel->panel) * kernel->panel, NBL_INT8_N);
    NBL_BUMP_ALLOC(&bump, s->w, columns * NBL_INT8_K * kernel->code_bytes);
    NBL_BUMP_ALLOC(&bump, s->a, (int64_t)kernel->rows * NBL_INT8_K * kernel->code_bytes);
    NBL_BUMP_ALLOC(&bump, s->sums, rows * columns);
    NBL_BUMP_ALLOC(&bump, s->a_sums, rows);
    return bump.used;
}

size_t nbl__int8_product_scratch(nbl_isa isa, const nbl__gemm_term *term, int64_t m, int64_t n)
{
    (void)term;
    const nbl__int8_kernel *kernel = kernel_of(isa);
    scratch s;
    return kernel && m > kernel->small ? layout(kernel, m, n, NULL, &s) : 0;
}

/* One block of k: starts the sums of rows [m, m + rows) and columns [n, n + columns), or adds to
 * them. */
static void multiply_block(const job *j, const nbl__int8_kernel *kernel, const scratch *s, int64_t m,
                           int64_t rows, int64_t n, int64_t columns, int64_t k)
{
    const int64_t count = nbl__min_i64(NBL_INT8_K, j->k - k);
    const int64_t padded = nbl__ceil_div(count, kernel->step) * kernel->step;
    const int64_t panels = nbl__ceil_div(columns, kernel->panel);
    const int64_t panel_bytes = (int64_t)kernel->panel * NBL_INT8_K * kernel->code_bytes;
    const int64_t row_bytes = (int64_t)NBL_INT8_K * kernel->code_bytes;
    assert(count > 0 && padded <= NBL_INT8_K && rows <= NBL_INT8_M && columns <= NBL_INT8_N);
    for (int64_t p = 0; p < panels; p++) {
        int64_t first = n + p * kernel->panel;
        kernel->pack_w(j->w + first * j->w_stride + k, j->w_stride,
                       nbl__min_i64(kernel->panel, n + columns - first), count, s->w + p * panel_bytes);
    }
    for (int64_t r = 0; r < rows; r += kernel->rows) {
        for (int64_t i = 0; i < kernel->rows; i++) {
            const int8_t *codes = j->a + (m + r + i) * j->a_stride + k;
            bool there = r + i < rows;
            if (there) s->a_sums[r + i] += kernel->pack_a(codes, count, s->a + i * row_bytes);
            else memset(s->a + i * row_bytes, 0, (size_t)(padded * kernel->code_bytes));
        }
        int32_t *sums = s->sums + r * panels * kernel->panel;
        for (int64_t p = 0; p < panels; p++)
            kernel->multiply(s->a, s->w + p * panel_bytes, padded, k > 0,
                             sums + p * kernel->rows * kernel->panel);
    }
}

static void finish_block(const job *j, const nbl__int8_kernel *kernel, const scratch *s, int64_t m,
                         int64_t rows, int64_t n, int64_t columns)
{
    const int64_t panels = nbl__ceil_div(columns, kernel->panel);
    const float *w_scales = j->term->b.weight->scales;
    for (int64_t r = 0; r < rows; r++) {
        const int32_t *sums = s->sums +
                              (r / kernel->rows * panels * kernel->rows + r % kernel->rows) * kernel->panel;
        const float row_factor = j->term->alpha * j->term->a.scales[m + r] / (127.0f * 127.0f);
        const int32_t extra = kernel->offset * s->a_sums[r];
        float *tile = j->tile + (m + r - j->m_begin) * j->tile_stride + n - j->n_begin;
        for (int64_t c = 0; c < columns; c += kernel->panel) {
            kernel->finish(sums, extra, row_factor, w_scales + n + c,
                           nbl__min_i64(kernel->panel, columns - c), tile + c);
            sums += kernel->rows * kernel->panel;
        }
    }
}

static void run_blocks(const job *j, const nbl__int8_kernel *kernel, void *memory)
{
    scratch s;
    layout(kernel, j->m_end - j->m_begin, j->n_end - j->n_begin, memory, &s);
    const int64_t height = block_size(j->m_end - j->m_begin, NBL_INT8_M, kernel->rows);
    const int64_t width = block_size(j->n_end - j->n_begin, NBL_INT8_N, kernel->panel);
    assert(height % kernel->rows == 0 && width % kernel->panel == 0 && j->k <= EXACT_K);
    for (int64_t n = j->n_begin; n < j->n_end; n += width)
        for (int64_t m = j->m_begin; m < j->m_end; m += height) {
            int64_t rows = nbl__min_i64(height, j->m_end - m), columns = nbl__min_i64(width, j->n_end - n);
            memset(s.a_sums, 0, (size_t)rows * sizeof *s.a_sums);
            for (int64_t k = 0; k < j->k; k += NBL_INT8_K)
                multiply_block(j, kernel, &s, m, rows, n, columns, k);
            finish_block(j, kernel, &s, m, rows, n, columns);
        }
}

void nbl__int8_product(nbl_isa isa, const nbl__gemm_term *term, int64_t m_begin, int64_t m_end,
                       int64_t n_begin, int64_t n_end, float *tile, int64_t tile_stride, void *memory)
{
    assert(term->a.dtype == NBL_DTYPE_I8 && term->b.transposed && term->b.weight->format == NBL_FORMAT_INT8);
    const nbl__int8_kernel *kernel = kernel_of(isa);
    const nbl_weight *weight = term->b.weight;
    assert(term->a.scales && !term->a.k_index && !term->a.transposed && n_end <= weight->shape[0]);
    if (m_begin >= m_end || n_begin >= n_end) return;
    for (int64_t k = 0; k < term->k; k += EXACT_K) {
        job j = {term,
                 (const int8_t *)term->a.data + k,
                 (const int8_t *)weight->data + k,
                 term->a.stride,
                 weight->shape[weight->rank - 1],
                 nbl__min_i64(EXACT_K, term->k - k),
                 m_begin,
                 m_end,
                 n_begin,
                 n_end,
                 tile,
                 tile_stride};
        if (kernel == NULL || m_end - m_begin <= kernel->small) {
            run_direct(&j, kernel);
            continue;
        }
        if (kernel->begin) kernel->begin();
        run_blocks(&j, kernel, memory);
        if (kernel->end) kernel->end();
    }
}
