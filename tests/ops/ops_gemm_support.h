/* ops_gemm_support.h - products of the GEMM against a loop in f64: contexts of every instruction set, random
 * operands of every format, and the comparison. */
#ifndef NBL_TEST_OPS_GEMM_SUPPORT_H
#define NBL_TEST_OPS_GEMM_SUPPORT_H

#include <math.h>

#include "support.h"

#include "base/philox.h"
#include "ops/gemm/cpu/pack.h"
#include "ops/linear/linear.h"
#include "quant/quant.h"

enum { MAX_TERMS = 3, MAX_PRODUCTS = 2, TEAMS = 2 };
static const int teams[TEAMS] = {1, 3};

static nbl_context *contexts[NBL_ISA_COUNT][TEAMS]; /* NULL: the machine lacks the level */

static inline int open_contexts(void **state)
{
    (void)state;
    nbl_isa best = nbl__isa_detect();
    for (int isa = 0; isa <= (int)best; isa++)
        for (int t = 0; t < TEAMS; t++) {
            setenv("NIBBLE_ISA", nbl__isa_name((nbl_isa)isa), 1);
            contexts[isa][t] = new_context_with(teams[t]);
        }
    unsetenv("NIBBLE_ISA");
    return 0;
}

static inline int close_contexts(void **state)
{
    (void)state;
    for (int isa = 0; isa < NBL_ISA_COUNT; isa++)
        for (int t = 0; t < TEAMS; t++) nbl_context_destroy(contexts[isa][t]);
    return 0;
}

/* ---- chance ---- */

static uint32_t dice_at;

static inline uint32_t word(void)
{
    uint32_t words[4];
    nbl__philox((uint32_t[4]){dice_at++, 5, 0, 0}, (uint32_t[2]){17, 4}, words);
    return words[0];
}
static inline int64_t pick_of(const int64_t *list, int count)
{
    return list[word() % (uint32_t)count];
}
#define PICK(...) pick_of((const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / 8))

static inline float value(void)
{
    return nbl__uniform(word()) * 2 - 1;
}

/* ---- memory that a case owns ---- */

static void *owned[256];
static int owned_count;

static inline void *own(size_t bytes)
{
    assert_true(owned_count < 256);
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(memory, 0, bytes);
    return owned[owned_count++] = memory;
}

static inline void free_owned(void)
{
    while (owned_count > 0) free(owned[--owned_count]);
}

/* ---- operands ---- */

static inline void fill_dense(nbl__gemm_matrix *m, int64_t rows, int64_t columns)
{
    m->stride = columns + (int64_t)(word() % 3);
    int64_t count = rows * m->stride;
    if (m->dtype == NBL_DTYPE_I8) {
        int8_t *codes = own((size_t)count + 1);
        float *scales = own((size_t)(rows + 1) * 4);
        for (int64_t i = 0; i < count; i++) codes[i] = (int8_t)((int)(word() % 255) - 127);
        for (int64_t i = 0; i < rows; i++) scales[i] = 0.5f + value() / 4;
        m->data = codes;
        m->scales = scales;
        return;
    }
    float *wide = own((size_t)(count + 1) * 4);
    for (int64_t i = 0; i < count; i++) wide[i] = value();
    void *data = own((size_t)(count + 1) * 4);
    nbl__from_f32(NBL_ISA_SCALAR, wide, m->dtype, data, count);
    m->data = data;
}

static inline nbl_weight *make_weight(nbl_context *ctx, nbl_format format, nbl_dtype dtype, int64_t block,
                                      bool nested, int64_t rows, int64_t columns)
{
    nbl_weight *w = own(sizeof *w);
    int64_t shape[2] = {rows, columns}, n = rows * columns;
    float *values = own((size_t)(n + 1) * 4);
    for (int64_t i = 0; i < n; i++) values[i] = value();
    if (format == NBL_FORMAT_DENSE) {
        void *data = own((size_t)(n + 1) * 4);
        nbl__from_f32(NBL_ISA_SCALAR, values, dtype, data, n);
        *w = (nbl_weight){
            .format = format, .dtype = dtype, .rank = 2, .shape = {rows, columns}, .data = data};
        return w;
    }
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = format, .block = block,
                                .nested = nested};
    nbl_quantized_sizes sizes;
    assert_ok(ctx, nbl_quantize_sizes(ctx, &how, 2, shape, &sizes));
    nbl_quantized_parts parts = {own(sizes.data), own(sizes.scales + (size_t)n), own(sizes.scale_codes),
                                 own(sizes.nested_scales)};
    assert_ok(ctx, nbl_quantize(ctx, &how, NBL_DTYPE_F32, 2, shape, values, &parts, w));
    return w;
}

/* Element [row, column] as stored. */
static inline double stored(const nbl__gemm_matrix *m, nbl_dtype compute, int64_t row, int64_t column)
{
    float v;
    if (m->weight) {
        uint32_t raw;
        int64_t i = row * m->weight->shape[1] + column;
        nbl__dequantize(NBL_ISA_SCALAR, m->weight, i, i + 1, compute, &raw, false);
        nbl__to_f32(NBL_ISA_SCALAR, compute, &raw, &v, 1);
        return (double)v;
    }
    int64_t i = row * m->stride + column;
    if (m->dtype == NBL_DTYPE_I8) return (double)((const int8_t *)m->data)[i] * (double)m->scales[row] / 127;
    nbl__to_f32(NBL_ISA_SCALAR, m->dtype, (const uint8_t *)m->data + (size_t)i * nbl__size_of(m->dtype), &v,
                1);
    if (m->dropout == 0) return (double)v;
    bool keep = nbl__dropout_keeps(m->seed, m->dropout, m->drop_first + row * m->drop_columns + column);
    return keep ? (double)v / (1 - (double)m->dropout) : 0;
}

static inline int32_t *make_k_index(int64_t k, int64_t among)
{
    int32_t *k_index = own((size_t)(k + 1) * 4);
    for (int64_t i = 0; i < k; i++) k_index[i] = (int32_t)(word() % (uint32_t)among);
    return k_index;
}

/* ---- the loop in f64 ---- */

static inline void reference(const nbl__gemm_product *p, const double *before, double *c)
{
    for (int64_t i = 0; i < p->m * p->n; i++) c[i] = 0;
    for (int t = 0; t < p->term_count; t++) {
        const nbl__gemm_term *term = &p->terms[t];
        double *a = malloc((size_t)(p->m * term->k + 1) * 8), *b = malloc((size_t)(p->n * term->k + 1) * 8);
        /* Codes times codes are summed as integers: the weight is not rounded to the compute dtype. */
        bool codes = term->a.dtype == NBL_DTYPE_I8 && term->b.transposed && term->b.weight &&
                     term->b.weight->format == NBL_FORMAT_INT8;
        nbl_dtype compute = codes ? NBL_DTYPE_F32 : term->compute;
        for (int64_t k = 0; k < term->k; k++) {
            int64_t ka = term->a.k_index ? term->a.k_index[k] : k,
                    kb = term->b.k_index ? term->b.k_index[k] : k;
            for (int64_t i = 0; i < p->m; i++)
                a[i * term->k + k] = stored(&term->a, term->compute, term->a.transposed ? ka : i,
                                            term->a.transposed ? i : ka);
            for (int64_t j = 0; j < p->n; j++)
                b[j * term->k + k] = stored(&term->b, compute, term->b.transposed ? j : kb,
                                            term->b.transposed ? kb : j);
        }
        for (int64_t i = 0; i < p->m; i++)
            for (int64_t j = 0; j < p->n; j++) {
                double sum = 0;
                for (int64_t k = 0; k < term->k; k++) sum += a[i * term->k + k] * b[j * term->k + k];
                if (term->dropout > 0)
                    sum = nbl__dropout_keeps(term->seed, term->dropout, term->drop_first + i * p->n + j)
                              ? sum / (1 - (double)term->dropout)
                              : 0;
                c[i * p->n + j] += (double)term->alpha * sum;
            }
        free(a);
        free(b);
    }
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t j = 0; j < p->n; j++) {
            double *v = &c[i * p->n + j];
            float bias = 0;
            if (p->factor) *v *= (double)p->factor[j];
            if (p->bias)
                nbl__to_f32(NBL_ISA_SCALAR, p->bias->dtype,
                            (const uint8_t *)p->bias->data + (size_t)j * nbl__size_of(p->bias->dtype), &bias,
                            1);
            *v += (double)bias + (p->accumulate ? before[i * p->n + j] : 0);
        }
}

/* Runs the products on every level and team, and compares. */
static inline void check_products(nbl__gemm_product *products, int count)
{
    double *expected[MAX_PRODUCTS], *before[MAX_PRODUCTS];
    uint8_t *start[MAX_PRODUCTS];
    size_t bytes[MAX_PRODUCTS];
    for (int i = 0; i < count; i++) {
        nbl__gemm_product *p = &products[i];
        bytes[i] = (size_t)(p->m * p->stride) * nbl__size_of(p->dtype);
        start[i] = own(bytes[i] + 1);
        before[i] = own((size_t)(p->m * p->n + 1) * 8);
        expected[i] = own((size_t)(p->m * p->n + 1) * 8);
        memcpy(start[i], p->c, bytes[i]);
        for (int64_t r = 0; r < p->m; r++)
            for (int64_t j = 0; j < p->n; j++) {
                float v;
                nbl__to_f32(NBL_ISA_SCALAR, p->dtype,
                            start[i] + (size_t)(r * p->stride + j) * nbl__size_of(p->dtype), &v, 1);
                before[i][r * p->n + j] = (double)v;
            }
        reference(p, before[i], expected[i]);
    }
    for (int isa = 0; isa < NBL_ISA_COUNT && contexts[isa][0]; isa++) {
        uint8_t *first[MAX_PRODUCTS] = {0};
        for (int t = 0; t < TEAMS; t++) {
            nbl_context *ctx = contexts[isa][t];
            size_t room = nbl__gemm_scratch(ctx, nbl__gemm_best(ctx), products, count);
            uint8_t *scratch = aligned_alloc(64, room + 128 - room % 64);
            memset(scratch, 0xff, room + 64);
            for (int i = 0; i < count; i++) memcpy(products[i].c, start[i], bytes[i]);
            assert_ok(ctx, nbl__gemm(ctx, nbl__gemm_best(ctx), products, count, scratch));
            for (int b = 0; b < 64; b++) assert_int_equal(scratch[room + (size_t)b], 0xff);
            free(scratch);
            for (int i = 0; i < count; i++) {
                const nbl__gemm_product *p = &products[i];
                if (t > 0) {
                    assert_memory_equal(first[i], p->c, bytes[i]);
                    continue;
                }
                first[i] = own(bytes[i] + 1);
                memcpy(first[i], p->c, bytes[i]);
                double error = 0, norm = 0;
                bool half = p->dtype == NBL_DTYPE_BF16, narrow = p->dtype == NBL_DTYPE_F16;
                for (int64_t r = 0; r < p->m; r++) {
                    const uint8_t *row = (const uint8_t *)p->c +
                                         (size_t)(r * p->stride) * nbl__size_of(p->dtype);
                    for (int64_t j = 0; j < p->n; j++) {
                        float v;
                        nbl__to_f32(NBL_ISA_SCALAR, p->dtype, row + (size_t)j * nbl__size_of(p->dtype), &v,
                                    1);
                        double d = (double)v - expected[i][r * p->n + j];
                        error += d * d;
                        norm += expected[i][r * p->n + j] * expected[i][r * p->n + j];
                    }
                    /* What lies between the rows stays as it was. */
                    size_t used = (size_t)p->n * nbl__size_of(p->dtype),
                           all = (size_t)p->stride * nbl__size_of(p->dtype);
                    assert_memory_equal(row + used, start[i] + (size_t)r * all + used, all - used);
                }
                for (int k = 0; k < p->term_count; k++)
                    half = half || (p->terms[k].compute == NBL_DTYPE_BF16 && isa >= NBL_ISA_AVX512BF16);
                double bound = half ? 8e-3 : narrow ? 1e-3 : 1e-5;
                if (!(sqrt(error) <= bound * sqrt(norm) + 1e-30))
                    fail_msg("%s: m %d n %d k %d, format %d, transpose %d, compute %d: error %g",
                             nbl__isa_name((nbl_isa)isa), (int)p->m, (int)p->n, (int)p->terms[0].k,
                             p->terms[0].b.weight ? (int)p->terms[0].b.weight->format : -1,
                             (int)p->terms[0].b.transposed, (int)p->terms[0].compute, sqrt(error / norm));
            }
        }
    }
}

static inline void *new_result(nbl__gemm_product *p)
{
    p->stride = p->n + (int64_t)(word() % 4);
    int64_t count = p->m * p->stride;
    float *wide = own((size_t)(count + 1) * 4);
    for (int64_t i = 0; i < count; i++) wide[i] = value();
    void *c = own((size_t)(count + 1) * 4);
    nbl__from_f32(NBL_ISA_SCALAR, wide, p->dtype, c, count);
    return c;
}

static inline nbl_dtype any_float(void)
{
    return (nbl_dtype)PICK(NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16);
}

#endif
