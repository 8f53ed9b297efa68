/* gemv.c - see gemv.h. */
#include "ops/cpu/gemv.h"

#include "quant/quant.h"

static float element(const nbl__mat *m, nbl_dtype compute, int64_t row, int64_t column)
{
    float value;
    uint32_t raw;
    if (m->weight) {
        int64_t i = row * m->weight->shape[1] + column;
        nbl__decode(NBL_ISA_SCALAR, m->weight, i, i + 1, compute, &raw, false);
        nbl__to_f32(NBL_ISA_SCALAR, compute, &raw, &value, 1);
        return value;
    }
    size_t at = (size_t)(row * m->stride + column) * nbl__size_of(m->dtype);
    nbl__to_f32(NBL_ISA_SCALAR, m->dtype, (const uint8_t *)m->data + at, &value, 1);
    return value;
}

void nbl__gemv(nbl_isa isa, const nbl__term *term, int64_t m, int64_t n_begin, int64_t n_end, float *tile,
               int64_t tile_stride)
{
    (void)isa;
    for (int64_t n = n_begin; n < n_end; n++) {
        float sums[NBL_GEMV_MAX_ROWS] = {0};
        for (int64_t k = 0; k < term->k; k++) {
            float w = element(&term->b, term->compute, term->b.transpose ? n : k, term->b.transpose ? k : n);
            for (int64_t i = 0; i < m; i++) sums[i] += element(&term->a, NBL_DTYPE_F32, i, k) * w;
        }
        for (int64_t i = 0; i < m; i++) tile[i * tile_stride + n - n_begin] += term->alpha * sums[i];
    }
}
