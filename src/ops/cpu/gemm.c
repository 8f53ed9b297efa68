/* gemm.c - see gemm.h. */
#include "ops/cpu/gemm.h"

#include "ops/linear.h"
#include "quant/quant.h"

static float element(const nbl__mat *m, nbl_dtype compute, int64_t row, int64_t column, int64_t columns)
{
    float value;
    if (m->weight) {
        uint32_t word;
        int64_t i = (m->first_row + row) * m->weight->shape[1] + column;
        nbl__decode(NBL_ISA_SCALAR, m->weight, i, i + 1, compute, &word, false);
        nbl__to_f32(NBL_ISA_SCALAR, compute, &word, &value, 1);
        return value;
    }
    (void)columns;
    int64_t i = row * m->stride + column;
    if (m->dtype == NBL_DTYPE_I8) return (float)((const int8_t *)m->data)[i] * m->scales[row] / 127;
    nbl__to_f32(NBL_ISA_SCALAR, m->dtype, (const uint8_t *)m->data + (size_t)i * nbl__size_of(m->dtype),
                &value, 1);
    if (m->dropout > 0)
        value = nbl__dropout_keeps(m->seed, m->dropout, row * m->drop_columns + column)
                    ? value / (1 - m->dropout)
                    : 0;
    return value;
}

size_t nbl__gemm_scratch(const nbl_context *ctx, const nbl__product *products, int count)
{
    (void)ctx, (void)products, (void)count;
    return 0;
}

nbl_status nbl__gemm(nbl_context *ctx, const nbl__product *products, int count, void *scratch)
{
    (void)ctx, (void)scratch;
    for (const nbl__product *p = products; p < products + count; p++)
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                float sum = 0;
                for (const nbl__term *t = p->terms; t < p->terms + p->term_count; t++) {
                    float part = 0;
                    for (int64_t k = 0; k < t->k; k++) {
                        int64_t ka = t->a.pick ? t->a.pick[k] : k, kb = t->b.pick ? t->b.pick[k] : k;
                        part += element(&t->a, t->compute, t->a.transpose ? ka : i, t->a.transpose ? i : ka,
                                        0) *
                                element(&t->b, t->compute, t->b.transpose ? j : kb, t->b.transpose ? kb : j,
                                        0);
                    }
                    if (t->dropout > 0)
                        part = nbl__dropout_keeps(t->seed, t->dropout, i * p->n + j) ? part / (1 - t->dropout)
                                                                                     : 0;
                    sum += t->alpha * part;
                }
                float bias = 0, old = 0;
                uint8_t *c = (uint8_t *)p->c + (size_t)(i * p->stride + j) * nbl__size_of(p->dtype);
                if (p->bias)
                    nbl__to_f32(NBL_ISA_SCALAR, p->bias->dtype,
                                (const uint8_t *)p->bias->data + (size_t)j * nbl__size_of(p->bias->dtype),
                                &bias, 1);
                if (p->accumulate) nbl__to_f32(NBL_ISA_SCALAR, p->dtype, c, &old, 1);
                float value = old + (p->factor ? p->factor[j] : 1) * sum + bias;
                nbl__from_f32(NBL_ISA_SCALAR, &value, p->dtype, c, 1);
            }
    return NBL_OK;
}
