/* cuda_trace_product.c - products that do run, where kernels do. See cuda_trace.h.
 *
 * Sums are in f64, from the first column on, and are rounded to f32 once, before alpha and beta. int8 sums are whole
 * numbers. */
#include "cuda_trace.h"
#include "ptx/ptx_math.h"

#include <stdio.h>
#include <stdlib.h>

static size_t bytes_of(cudaDataType_t type)
{
    switch (type) {
    case CUDA_R_16F:
    case CUDA_R_16BF: return 2;
    case CUDA_R_8I: return 1;
    default: return 4;
    }
}

static double read_element(cudaDataType_t type, const char *from)
{
    uint32_t bits = 0;
    int32_t whole;
    memcpy(&bits, from, bytes_of(type));
    memcpy(&whole, &bits, sizeof whole);
    switch (type) {
    case CUDA_R_16F: return (double)ptx_from_half(bits);
    case CUDA_R_16BF: return (double)ptx_float(bits << 16);
    case CUDA_R_8I: return (double)(int8_t)bits;
    case CUDA_R_32I: return (double)whole;
    default: return (double)ptx_float(bits);
    }
}

static void write_element(cudaDataType_t type, char *to, double value)
{
    int32_t whole = type == CUDA_R_32I ? (int32_t)value : 0;
    uint32_t bits = type == CUDA_R_16F    ? ptx_to_half((float)value)
                    : type == CUDA_R_16BF ? ptx_to_bfloat((float)value)
                                          : ptx_bits((float)value);
    if (type == CUDA_R_32I) memcpy(to, &whole, sizeof whole);
    else memcpy(to, &bits, bytes_of(type));
}

static bool lies_in_memory(const trace_matrix *it, const char *name)
{
    size_t each = bytes_of(it->type);
    uint64_t elements = (it->batch - 1) * it->stride + (it->columns - 1) * it->ld + it->rows;
    if (trace_is_device(it->data) && trace_is_allocated(it->data, elements * each) &&
        (uintptr_t)it->data % each == 0)
        return true;
    fprintf(stderr, "cuda_trace: a product: matrix %s at %p, %llu elements, lies in no allocation\n", name,
            it->data, (unsigned long long)elements);
    return false;
}

/* Rows of op(it): [count of rows, k]. */
static double *copy_rows(const trace_matrix *it, uint64_t batch, bool by_row, uint64_t rows, uint64_t k)
{
    const char *data = trace_contents(it->data);
    size_t each = bytes_of(it->type);
    double *copy = malloc((rows * k + 1) * sizeof *copy);
    if (copy == NULL) abort();
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t p = 0; p < k; p++) {
            uint64_t at = batch * it->stride + (by_row ? i * it->ld + p : p * it->ld + i);
            copy[i * k + p] = read_element(it->type, data + at * each);
        }
    return copy;
}

/* Four sums at once, so that they overlap; each is in its own order. */
static void multiply_batch(const trace_product *it, uint64_t batch)
{
    uint64_t m = it->d.rows, n = it->d.columns, k = it->a_transposed ? it->a.rows : it->a.columns;
    double *a = copy_rows(&it->a, batch, it->a_transposed, m, k),
           *b = copy_rows(&it->b, batch, !it->b_transposed, n, k);
    char *d = trace_contents(it->d.data);
    const char *c = trace_contents(it->c.data);
    size_t each = bytes_of(it->d.type);
    for (uint64_t j = 0; j < n; j++)
        for (uint64_t i = 0; i < m; i += 4) {
            double sums[4] = {0};
            uint64_t rows = m - i < 4 ? m - i : 4;
            const double *row[4];
            for (uint64_t r = 0; r < 4; r++) row[r] = a + (i + (r < rows ? r : 0)) * k;
            for (uint64_t p = 0; p < k; p++)
                for (int r = 0; r < 4; r++) sums[r] += row[r][p] * b[j * k + p];
            for (uint64_t r = 0; r < rows; r++) {
                bool whole = it->d.type == CUDA_R_32I;
                double value = whole ? sums[r] : (double)(float)sums[r];
                value *= it->alpha;
                if (it->beta != 0)
                    value += it->beta *
                             read_element(it->c.type,
                                          c + (batch * it->c.stride + j * it->c.ld + i + r) * each);
                write_element(it->d.type, d + (batch * it->d.stride + j * it->d.ld + i + r) * each, value);
            }
        }
    free(a);
    free(b);
}

void trace_multiply(void *work)
{
    const trace_product *it = work;
    uint64_t k = it->a_transposed ? it->a.rows : it->a.columns;
    bool fits = it->d.rows == (it->a_transposed ? it->a.columns : it->a.rows) &&
                it->d.columns == (it->b_transposed ? it->b.rows : it->b.columns) &&
                k == (it->b_transposed ? it->b.columns : it->b.rows);
    if (!fits) fprintf(stderr, "cuda_trace: a product: the matrices do not fit\n");
    if (!fits || !lies_in_memory(&it->a, "a") || !lies_in_memory(&it->b, "b") ||
        !lies_in_memory(&it->d, "d") || (it->beta != 0 && !lies_in_memory(&it->c, "c"))) {
        trace_break(cudaErrorLaunchFailure);
        return;
    }
    for (uint64_t batch = 0; batch < it->d.batch; batch++) multiply_batch(it, batch);
}
