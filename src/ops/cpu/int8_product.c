/* int8_product.c - see int8_product.h. */
#include "ops/cpu/int8_product.h"

size_t nbl__int8_product_scratch(nbl_isa isa, const nbl__term *term, int64_t rows, int64_t columns)
{
    (void)isa, (void)term, (void)rows, (void)columns;
    return 0;
}

void nbl__int8_product(nbl_isa isa, const nbl__term *term, int64_t m_begin, int64_t m_end, int64_t n_begin,
                       int64_t n_end, float *tile, int64_t tile_stride, void *scratch)
{
    (void)isa, (void)scratch;
    const int8_t *weight = term->b.weight->data;
    for (int64_t i = m_begin; i < m_end; i++)
        for (int64_t n = n_begin; n < n_end; n++) {
            const int8_t *x = (const int8_t *)term->a.data + i * term->a.stride, *w = weight + n * term->k;
            double sum = 0;
            for (int64_t k = 0; k < term->k; k++) sum += x[k] * w[k];
            float scale = term->a.scales[i] * term->b.weight->scales[n];
            tile[(i - m_begin) * tile_stride + n - n_begin] += term->alpha * (float)sum * scale / (127 * 127);
        }
}
