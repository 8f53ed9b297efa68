/* test_ops_gemm.c - the product behind the linear layers against a loop in f64: formats, orientations, compute
 * dtypes, ragged sizes, instruction sets; and that the number of threads changes no bit. */
#include <math.h>

#include "support.h"

#include "base/philox.h"
#include "ops/gemm/cpu/pack.h"
#include "ops/linear/linear.h"
#include "quant/quant.h"

enum { MAX_TERMS = 3, MAX_PRODUCTS = 2, TEAMS = 2 };
static const int teams[TEAMS] = {1, 3};

static nbl_context *contexts[NBL_ISA_COUNT][TEAMS]; /* NULL: the machine lacks the level */

static int open_contexts(void **state)
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

static int close_contexts(void **state)
{
    (void)state;
    for (int isa = 0; isa < NBL_ISA_COUNT; isa++)
        for (int t = 0; t < TEAMS; t++) nbl_context_destroy(contexts[isa][t]);
    return 0;
}

/* ---- chance ---- */

static uint32_t dice_at;

static uint32_t word(void)
{
    uint32_t words[4];
    nbl__philox((uint32_t[4]){dice_at++, 5, 0, 0}, (uint32_t[2]){17, 4}, words);
    return words[0];
}
static int64_t pick_of(const int64_t *list, int count)
{
    return list[word() % (uint32_t)count];
}
#define PICK(...) pick_of((const int64_t[]){__VA_ARGS__}, (int)(sizeof((const int64_t[]){__VA_ARGS__}) / 8))

static float value(void)
{
    return nbl__uniform(word()) * 2 - 1;
}

/* ---- memory that a case owns ---- */

static void *owned[256];
static int owned_count;

static void *own(size_t bytes)
{
    assert_true(owned_count < 256);
    void *memory = aligned_alloc(64, (bytes + 127) / 64 * 64);
    memset(memory, 0, bytes);
    return owned[owned_count++] = memory;
}

static void free_owned(void)
{
    while (owned_count > 0) free(owned[--owned_count]);
}

/* ---- operands ---- */

static void fill_dense(nbl__mat *m, int64_t rows, int64_t columns)
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

static nbl_weight *make_weight(nbl_context *ctx, nbl_format format, nbl_dtype dtype, int64_t block,
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
static double stored(const nbl__mat *m, nbl_dtype compute, int64_t row, int64_t column)
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

static int32_t *make_pick(int64_t k, int64_t among)
{
    int32_t *pick = own((size_t)(k + 1) * 4);
    for (int64_t i = 0; i < k; i++) pick[i] = (int32_t)(word() % (uint32_t)among);
    return pick;
}

/* ---- the loop in f64 ---- */

static void reference(const nbl__product *p, const double *before, double *c)
{
    for (int64_t i = 0; i < p->m * p->n; i++) c[i] = 0;
    for (int t = 0; t < p->term_count; t++) {
        const nbl__term *term = &p->terms[t];
        double *a = malloc((size_t)(p->m * term->k + 1) * 8), *b = malloc((size_t)(p->n * term->k + 1) * 8);
        /* Codes times codes are summed as integers: the weight is not rounded to the compute dtype. */
        bool codes = term->a.dtype == NBL_DTYPE_I8 && term->b.transpose && term->b.weight &&
                     term->b.weight->format == NBL_FORMAT_INT8;
        nbl_dtype compute = codes ? NBL_DTYPE_F32 : term->compute;
        for (int64_t k = 0; k < term->k; k++) {
            int64_t ka = term->a.pick ? term->a.pick[k] : k, kb = term->b.pick ? term->b.pick[k] : k;
            for (int64_t i = 0; i < p->m; i++)
                a[i * term->k + k] = stored(&term->a, term->compute, term->a.transpose ? ka : i,
                                            term->a.transpose ? i : ka);
            for (int64_t j = 0; j < p->n; j++)
                b[j * term->k + k] = stored(&term->b, compute, term->b.transpose ? j : kb,
                                            term->b.transpose ? kb : j);
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
static void check_products(nbl__product *products, int count)
{
    double *expected[MAX_PRODUCTS], *before[MAX_PRODUCTS];
    uint8_t *start[MAX_PRODUCTS];
    size_t bytes[MAX_PRODUCTS];
    for (int i = 0; i < count; i++) {
        nbl__product *p = &products[i];
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
                const nbl__product *p = &products[i];
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
                             (int)p->terms[0].b.transpose, (int)p->terms[0].compute, sqrt(error / norm));
            }
        }
    }
}

static void *new_result(nbl__product *p)
{
    p->stride = p->n + (int64_t)(word() % 4);
    int64_t count = p->m * p->stride;
    float *wide = own((size_t)(count + 1) * 4);
    for (int64_t i = 0; i < count; i++) wide[i] = value();
    void *c = own((size_t)(count + 1) * 4);
    nbl__from_f32(NBL_ISA_SCALAR, wide, p->dtype, c, count);
    return c;
}

static nbl_dtype any_float(void)
{
    return (nbl_dtype)PICK(NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16);
}

/* ---- tests ---- */

typedef struct kind {
    nbl_format format;
    nbl_dtype dtype;
    int64_t block;
    bool nested;
} kind;
static const kind kinds[] = {
    {NBL_FORMAT_NF4, 0, 64, false},
    {NBL_FORMAT_NF4, 0, 64, true},
    {NBL_FORMAT_NF4, 0, 128, false},
    {NBL_FORMAT_NF4, 0, 32, true},
    {NBL_FORMAT_NF4, 0, 4096, true},
    {NBL_FORMAT_FP4, 0, 64, false},
    {NBL_FORMAT_INT8, 0, 0, false},
    {NBL_FORMAT_MXFP4, 0, 0, false},
    {NBL_FORMAT_DENSE, NBL_DTYPE_F32, 0, false},
    {NBL_FORMAT_DENSE, NBL_DTYPE_F16, 0, false},
    {NBL_FORMAT_DENSE, NBL_DTYPE_BF16, 0, false},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void one_weight(const kind *what, bool transpose, nbl_dtype compute, nbl_dtype a_dtype, int64_t m,
                       int64_t n, int64_t k)
{
    int64_t *columns = transpose ? &k : &n;
    if (what->format == NBL_FORMAT_MXFP4) *columns = (*columns + 31) / 32 * 32;
    nbl__term term = {.k = k, .alpha = 1, .compute = compute};
    term.a.dtype = a_dtype;
    fill_dense(&term.a, m, k);
    term.b.weight = make_weight(contexts[0][0], what->format, what->dtype, what->block, what->nested,
                                transpose ? n : k, transpose ? k : n);
    term.b.transpose = transpose;
    nbl__product p = {.m = m, .n = n, .terms = &term, .term_count = 1, .dtype = a_dtype};
    p.c = new_result(&p);
    check_products(&p, 1);
    free_owned();
}

static void every_format_both_ways_in_every_compute_dtype(void **state)
{
    (void)state;
    for (int f = 0; f < KINDS; f++)
        for (int transpose = 0; transpose < 2; transpose++)
            for (int c = 0; c < 3; c++) {
                nbl_dtype compute = (nbl_dtype[]){NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16}[c];
                one_weight(&kinds[f], transpose, compute, compute, 33, 96, 416);
                one_weight(&kinds[f], transpose, compute, compute, 9, 70, 70);
                one_weight(&kinds[f], transpose, compute, compute, 3, 45, 39);
                one_weight(&kinds[f], transpose, compute, any_float(), 18, 96, 96);
            }
}

static void ragged_sizes_around_every_edge(void **state)
{
    (void)state;
    for (int i = 0; i < 240; i++)
        one_weight(
            &kinds[word() % KINDS], word() % 2, any_float(), any_float(),
            PICK(1, 2, 3, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 16, 17, 28, 29, 31, 32, 33, 40, 65, 130),
            PICK(1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 40, 48, 63, 64, 65, 96, 127, 128, 129, 160),
            PICK(1, 2, 3, 15, 31, 32, 33, 63, 64, 65, 96, 128, 319, 320, 321, 352, 511, 512, 513, 640, 1025));
}

static void many_rows_go_in_windows(void **state)
{
    (void)state;
    one_weight(&kinds[1], true, NBL_DTYPE_F32, NBL_DTYPE_F32, 1031, 17, 64);
    one_weight(&kinds[1], false, NBL_DTYPE_BF16, NBL_DTYPE_BF16, 513, 64, 33);
    one_weight(&kinds[0], true, NBL_DTYPE_BF16, NBL_DTYPE_BF16, 2050, 32, 64);
}

static void nothing_to_multiply_is_fine(void **state)
{
    (void)state;
    for (int zero = 0; zero < 3; zero++)
        for (int m = 1; m < 20; m += 18)
            one_weight(&kinds[8], true, NBL_DTYPE_F32, NBL_DTYPE_F32, zero == 0 ? 0 : m, zero == 1 ? 0 : 20,
                       zero == 2 ? 0 : 40);
}

/* A term with everything that a term may have. */
static void random_term(nbl__term *t, int64_t m, int64_t n)
{
    nbl_context *ctx = contexts[0][0];
    t->k = PICK(1, 4, 8, 16, 33, 64, 100, 330);
    t->alpha = word() % 2 ? 1 : value();
    t->compute = any_float();
    int64_t ka = t->k, kb = t->k;
    if (word() % 4 == 0) t->a.pick = make_pick(t->k, ka = t->k + 5);
    if (word() % 4 == 0) t->b.pick = make_pick(t->k, kb = t->k + 3);
    t->a.dtype = word() % 6 ? any_float() : NBL_DTYPE_I8;
    t->a.transpose = word() % 3 == 0;
    fill_dense(&t->a, t->a.transpose ? ka : m, t->a.transpose ? m : ka);
    if (word() % 3 == 0 && t->a.dtype != NBL_DTYPE_I8) {
        t->a.dropout = 0.25f;
        t->a.seed = word();
        t->a.drop_first = (int64_t)(t->a.seed % 1000);
        t->a.drop_columns = (t->a.transpose ? m : ka) + 3;
    }
    t->b.transpose = word() % 2;
    int64_t rows = t->b.transpose ? n : kb, columns = t->b.transpose ? kb : n;
    if (word() % 2) {
        t->b.dtype = any_float();
        fill_dense(&t->b, rows, columns);
        if (word() % 4 == 0) {
            t->b.dropout = 0.5f;
            t->b.seed = word();
            t->b.drop_first = (int64_t)(t->b.seed % 1000);
            t->b.drop_columns = columns;
        }
    } else {
        const kind *what = &kinds[word() % KINDS];
        if (what->format == NBL_FORMAT_MXFP4 && columns % 32) what = &kinds[6];
        t->b.weight = make_weight(ctx, what->format, what->dtype, what->block, what->nested, rows, columns);
    }
    if (word() % 4 == 0) {
        t->dropout = 0.3f;
        t->seed = word();
        t->drop_first = (int64_t)(t->seed % 1000);
    }
}

static void random_product(nbl__product *p, nbl__term *terms, int64_t m, int64_t n)
{
    *p = (nbl__product){
        .m = m, .n = n, .terms = terms, .term_count = (int)PICK(1, 1, 2, 3), .dtype = any_float()};
    memset(terms, 0, MAX_TERMS * sizeof *terms);
    for (int t = 0; t < p->term_count; t++) random_term(&terms[t], m, n);
    p->accumulate = word() % 3 == 0;
    if (word() % 3 == 0) {
        float *factor = own((size_t)(n + 1) * 4);
        for (int64_t i = 0; i < n; i++) factor[i] = value();
        p->factor = factor;
    }
    if (word() % 3 == 0) {
        nbl_tensor *bias = own(sizeof *bias);
        nbl__mat dense = {.dtype = any_float()};
        fill_dense(&dense, 1, n);
        *bias = (nbl_tensor){
            .dtype = dense.dtype, .rank = 1, .shape = {n}, .data = (void *)(uintptr_t)dense.data};
        p->bias = bias;
    }
    p->c = new_result(p);
}

static void terms_products_masks_and_picks_in_any_mixture(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        nbl__term terms[MAX_PRODUCTS][MAX_TERMS];
        nbl__product products[MAX_PRODUCTS];
        int count = 1 + (int)(word() % MAX_PRODUCTS);
        int64_t m = PICK(1, 3, 8, 9, 16, 20, 33, 70);
        for (int p = 0; p < count; p++)
            random_product(&products[p], terms[p], m, PICK(1, 8, 16, 31, 32, 64, 100, 192));
        if (count == 2 && word() % 2) { /* a shared left operand */
            terms[1][0].a = terms[0][0].a;
            int64_t k = terms[1][0].k = terms[0][0].k;
            terms[1][0].b = (nbl__mat){.dtype = any_float()};
            fill_dense(&terms[1][0].b, k, products[1].n);
        }
        check_products(products, count);
        free_owned();
    }
}

/* The machine's own choice of kernels leaves some of them out. */
static void every_kernel_multiplies_what_was_packed(void **state)
{
    (void)state;
    enum { M = 61, N = 48, K = 129, ROWS = 64 };
    const nbl__kernel *const kernels[] = {
#define ADDRESS(name) &nbl__##name,
        NBL_GEMM_KERNELS(ADDRESS)
#undef ADDRESS
    };
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        for (int way = 0; way < 4; way++) {
            const nbl__kernel *kernel = kernels[i];
            if (kernel->needs > nbl__isa_detect()) continue;
            nbl__mat a = {.dtype = NBL_DTYPE_BF16, .transpose = way & 1};
            nbl__mat b = {.dtype = NBL_DTYPE_BF16, .transpose = way & 2};
            fill_dense(&a, a.transpose ? K : M, a.transpose ? M : K);
            fill_dense(&b, b.transpose ? N : K, b.transpose ? K : N);
            nbl__source left = {kernel->needs, kernel, &a, NBL_DTYPE_BF16, !a.transpose};
            nbl__source right = {kernel->needs, kernel, &b, NBL_DTYPE_BF16, b.transpose};
            int64_t panels = (M + kernel->rows - 1) / kernel->rows;
            int64_t k = nbl__round_up(K, kernel->k_step);
            nbl__pack_rows part = {.rows = M, .panels = panels, .panel_end = panels, .k_count = K};
            nbl__block block = {.rows = kernel->padded ? panels * kernel->rows : M,
                                .panels = panels,
                                .panel_end = panels,
                                .strips = N / NBL_STRIP,
                                .k = k,
                                .alpha = 2,
                                .tile = own(ROWS * N * sizeof(float)),
                                .stride = N};
            void *packed_a = own((size_t)(ROWS * k) * 6), *packed_b = own((size_t)(N * k) * 6);
            void *scratch = own(nbl__pack_scratch(K, ROWS));
            nbl__pack_a(&left, &part, packed_a, scratch);
            nbl__pack_b(&right, 0, N, 0, K, packed_b, scratch);
            block.a = packed_a;
            block.b = packed_b;
            block.b_parts = nbl__b_parts(&right);
            block.b_line = NBL_STRIP;
            block.b_strip = k * NBL_STRIP;
            kernel->run(&block);
            block.add = true;
            block.alpha = -1;
            kernel->run(&block);
            for (int64_t m = 0; m < M; m++)
                for (int64_t n = 0; n < N; n++) {
                    double sum = 0;
                    for (int64_t x = 0; x < K; x++)
                        sum += stored(&a, NBL_DTYPE_F32, a.transpose ? x : m, a.transpose ? m : x) *
                               stored(&b, NBL_DTYPE_F32, b.transpose ? n : x, b.transpose ? x : n);
                    if (fabs((double)block.tile[m * N + n] - sum) > 1e-4) fail_msg("%s", kernel->name);
                }
            free_owned();
        }
}

/* xa = x·Aᵀ, y = x·Wᵀ + xa·Bᵀ in one call, in one window and in several. */
static void a_second_stage_reads_what_the_first_made(void **state)
{
    (void)state;
    enum { IN = 80, RANK = 16, OUT = 48, MAX = 1100 };
    const int64_t sizes[] = {1, 20, 40, 300, MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t m = sizes[i];
        float *xa = own(MAX * RANK * 4);
        nbl__mat x = {0}, a = {.transpose = true}, w = {.transpose = true}, b = {.transpose = true};
        fill_dense(&x, m, IN);
        fill_dense(&a, RANK, IN);
        fill_dense(&w, OUT, IN);
        fill_dense(&b, OUT, RANK);
        nbl__mat made = {.data = xa, .stride = RANK};
        nbl__term terms[] = {{.a = x, .b = a, .k = IN, .alpha = 0.5f},
                             {.a = x, .b = w, .k = IN, .alpha = 1},
                             {.a = made, .b = b, .k = RANK, .alpha = 1}};
        nbl__product products[] = {
            {.m = m, .n = RANK, .terms = terms, .term_count = 1, .c = xa, .stride = RANK},
            {.m = m, .n = OUT, .terms = terms + 1, .term_count = 2, .stage = 1}};
        products[1].c = new_result(&products[1]);
        for (int isa = 0; isa < NBL_ISA_COUNT && contexts[isa][0]; isa++)
            for (int t = 0; t < TEAMS; t++) {
                nbl_context *ctx = contexts[isa][t];
                void *scratch = aligned_alloc(
                    64, (nbl__gemm_scratch(ctx, nbl__gemm_best(ctx), products, 2) + 63) / 64 * 64);
                memset(xa, 0xff, MAX * RANK * 4);
                assert_ok(ctx, nbl__gemm(ctx, nbl__gemm_best(ctx), products, 2, scratch));
                free(scratch);
                for (int64_t r = 0; r < m; r++)
                    for (int64_t n = 0; n < OUT; n++) {
                        double sum = 0;
                        for (int64_t k = 0; k < IN; k++)
                            sum += stored(&x, NBL_DTYPE_F32, r, k) * stored(&w, NBL_DTYPE_F32, n, k);
                        for (int64_t q = 0; q < RANK; q++) {
                            double inner = 0;
                            for (int64_t k = 0; k < IN; k++)
                                inner += stored(&x, NBL_DTYPE_F32, r, k) * stored(&a, NBL_DTYPE_F32, q, k);
                            sum += 0.5 * inner * stored(&b, NBL_DTYPE_F32, n, q);
                        }
                        float got = ((const float *)products[1].c)[r * products[1].stride + n];
                        if (fabs((double)got - sum) > 1e-3) fail_msg("%s", nbl__isa_name((nbl_isa)isa));
                    }
            }
        free_owned();
    }
}

static void a_result_may_be_flipped(void **state)
{
    (void)state;
    enum { N = 100, K = 70 };
    for (int64_t m = 1; m <= 40; m += 13)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            nbl__mat a = {.transpose = true}, b = {0};
            fill_dense(&a, K, m);
            fill_dense(&b, K, N);
            nbl__term term = {.a = a, .b = b, .k = K, .alpha = 1};
            float *c = own((size_t)(N * m) * 4);
            nbl__product p = {.m = m,
                              .n = N,
                              .terms = &term,
                              .term_count = 1,
                              .c = c,
                              .stride = m,
                              .flipped = true,
                              .accumulate = accumulate};
            for (int isa = 0; isa < NBL_ISA_COUNT && contexts[isa][0]; isa++) {
                nbl_context *ctx = contexts[isa][TEAMS - 1];
                void *scratch = aligned_alloc(64, (nbl__gemm_scratch(ctx, nbl__gemm_best(ctx), &p, 1) + 63) /
                                                      64 * 64);
                for (int64_t i = 0; i < N * m; i++) c[i] = 1;
                assert_ok(ctx, nbl__gemm(ctx, nbl__gemm_best(ctx), &p, 1, scratch));
                free(scratch);
                for (int64_t r = 0; r < m; r++)
                    for (int64_t n = 0; n < N; n++) {
                        double sum = accumulate;
                        for (int64_t k = 0; k < K; k++)
                            sum += stored(&a, NBL_DTYPE_F32, k, r) * stored(&b, NBL_DTYPE_F32, k, n);
                        assert_true(fabs((double)c[n * m + r] - sum) < 1e-4);
                    }
            }
            free_owned();
        }
}

/* Also where a value is the sum of several of fewer bits. */
static void f32_products_have_the_precision_of_f32(void **state)
{
    (void)state;
    enum { M = 48, N = 32, K = 512 };
    nbl__mat a = {0}, b = {.transpose = true};
    fill_dense(&a, M, K);
    fill_dense(&b, N, K);
    nbl__term term = {.a = a, .b = b, .k = K, .alpha = 1};
    nbl__product p = {.m = M, .n = N, .terms = &term, .term_count = 1, .stride = N, .c = own(M * N * 4)};
    for (int isa = 0; isa < NBL_ISA_COUNT && contexts[isa][0]; isa++) {
        void *scratch = aligned_alloc(
            64,
            (nbl__gemm_scratch(contexts[isa][0], nbl__gemm_best(contexts[isa][0]), &p, 1) + 63) / 64 * 64);
        assert_ok(contexts[isa][0],
                  nbl__gemm(contexts[isa][0], nbl__gemm_best(contexts[isa][0]), &p, 1, scratch));
        free(scratch);
        for (int64_t r = 0; r < M; r++)
            for (int64_t n = 0; n < N; n++) {
                double sum = 0, size = 0;
                for (int64_t k = 0; k < K; k++) {
                    double product = stored(&a, NBL_DTYPE_F32, r, k) * stored(&b, NBL_DTYPE_F32, n, k);
                    sum += product;
                    size += fabs(product);
                }
                double error = fabs((double)((const float *)p.c)[r * N + n] - sum);
                if (error > 0x1p-22 * size)
                    fail_msg("%s: an error of %g of %g", nbl__isa_name((nbl_isa)isa), error, size);
            }
    }
    free_owned();
}

static void codes_times_codes_join_a_sum(void **state)
{
    (void)state;
    for (int i = 0; i < 12; i++) {
        int64_t m = PICK(1, 7, 20, 70), n = PICK(5, 32, 100), k = PICK(16, 64, 100);
        nbl__term terms[2] = {{.k = k, .alpha = 1, .compute = NBL_DTYPE_F16}, {.k = 8, .alpha = 0.5f}};
        terms[0].a.dtype = NBL_DTYPE_I8;
        fill_dense(&terms[0].a, m, k);
        terms[0].b.weight = make_weight(contexts[0][0], NBL_FORMAT_INT8, 0, 0, false, n, k);
        terms[0].b.transpose = true;
        fill_dense(&terms[1].a, m, 8);
        fill_dense(&terms[1].b, n, 8);
        terms[1].b.transpose = true;
        nbl__product p = {.m = m, .n = n, .terms = terms, .term_count = 2, .dtype = NBL_DTYPE_F16};
        p.c = new_result(&p);
        check_products(&p, 1);
        free_owned();
    }
}

static void a_nan_stays_in_its_row_or_column(void **state)
{
    (void)state;
    enum { M = 20, N = 40, K = 64 };
    for (int where = 0; where < 3; where++)
        for (int c = 0; c < 3; c++) {
            nbl_dtype compute = (nbl_dtype[]){NBL_DTYPE_F32, NBL_DTYPE_F16, NBL_DTYPE_BF16}[c];
            nbl__term term = {.k = K, .alpha = 1, .compute = compute};
            fill_dense(&term.a, M, K);
            nbl_weight *w = make_weight(contexts[0][0], NBL_FORMAT_NF4, 0, 64, false, N, K);
            term.b.weight = w;
            term.b.transpose = true;
            if (where == 0) ((float *)(uintptr_t)term.a.data)[5 * term.a.stride + 3] = NAN;
            if (where == 1) ((float *)(uintptr_t)w->scales)[7] = nbl__from_bits(0x7fffffff);
            if (where == 2) ((float *)(uintptr_t)w->scales)[7] = INFINITY;
            nbl__product p = {.m = M, .n = N, .terms = &term, .term_count = 1};
            p.c = new_result(&p);
            for (int isa = 0; isa < NBL_ISA_COUNT && contexts[isa][0]; isa++) {
                size_t room = nbl__gemm_scratch(contexts[isa][0], nbl__gemm_best(contexts[isa][0]), &p, 1);
                void *scratch = aligned_alloc(64, room + 64 - room % 64);
                memset(scratch, 0xff, room);
                assert_ok(contexts[isa][0],
                          nbl__gemm(contexts[isa][0], nbl__gemm_best(contexts[isa][0]), &p, 1, scratch));
                free(scratch);
                for (int i = 0; i < M; i++)
                    for (int j = 0; j < N; j++) {
                        bool finite = isfinite(((float *)p.c)[i * p.stride + j]);
                        assert_int_equal(finite, where == 0 ? i != 5 : j != 7);
                    }
            }
            free_owned();
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_both_ways_in_every_compute_dtype),
        cmocka_unit_test(ragged_sizes_around_every_edge),
        cmocka_unit_test(many_rows_go_in_windows),
        cmocka_unit_test(nothing_to_multiply_is_fine),
        cmocka_unit_test(terms_products_masks_and_picks_in_any_mixture),
        cmocka_unit_test(every_kernel_multiplies_what_was_packed),
        cmocka_unit_test(a_second_stage_reads_what_the_first_made),
        cmocka_unit_test(a_result_may_be_flipped),
        cmocka_unit_test(f32_products_have_the_precision_of_f32),
        cmocka_unit_test(codes_times_codes_join_a_sum),
        cmocka_unit_test(a_nan_stays_in_its_row_or_column),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
