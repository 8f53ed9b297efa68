/* test_ops_gemv.c - products with few rows, against loops in f64 over decoded elements: every format,
 * instruction set and number of rows, blocks and rows that start anywhere, splits, NaN. */
#include "quant/test_quant.h"

#include "ops/gemv/cpu/gemv.h"
#include "ops/linear/linear.h"

enum { MAX_K = 5000, N = 9, STRIDE = N + 3 };

typedef struct kind {
    const char *name;
    nbl_format format;
    int64_t block;
    bool nested;
} kind;
static const kind kinds[] = {
    {"nf4", NBL_FORMAT_NF4, 64, false},           {"nf4 nested", NBL_FORMAT_NF4, 64, true},
    {"nf4 of 32", NBL_FORMAT_NF4, 32, false},     {"nf4 of 32 nested", NBL_FORMAT_NF4, 32, true},
    {"nf4 of 128", NBL_FORMAT_NF4, 128, false},   {"nf4 of 256 nested", NBL_FORMAT_NF4, 256, true},
    {"nf4 of 4096", NBL_FORMAT_NF4, 4096, false}, {"fp4", NBL_FORMAT_FP4, 64, false},
    {"fp4 nested", NBL_FORMAT_FP4, 64, true},     {"int8", NBL_FORMAT_INT8, 0, false},
    {"mxfp4", NBL_FORMAT_MXFP4, 32, false},       {"dense", NBL_FORMAT_DENSE, 0, false},
};

/* Memory for a dense matrix of random values. */
static void *random_values(uint32_t seed, nbl_dtype dtype, int64_t n)
{
    void *values = malloc((size_t)(4 * n + 4));
    for (int64_t i = 0; i < n; i++) set_value(dtype, values, i, nbl__uniform(random_word(seed, i)) * 2 - 1);
    return values;
}

static nbl_weight make_weight(const kind *k, nbl_dtype dense, int64_t rows, int64_t columns, void **memory)
{
    if (k->format != NBL_FORMAT_DENSE)
        return random_weight(31, k->format, rows, columns, k->block, k->nested, 1, memory);
    *memory = random_values(32, dense, rows * columns);
    return (nbl_weight){
        .format = k->format, .dtype = dense, .rank = 2, .shape = {rows, columns}, .data = *memory};
}

/* An element of a matrix as it lies in memory. */
static double element(const nbl__gemm_matrix *mat, nbl_dtype compute, int64_t row, int64_t column)
{
    float value;
    if (mat->weight) {
        int64_t i = row * mat->weight->shape[1] + column;
        uint32_t word;
        nbl__dequantize(NBL_ISA_SCALAR, mat->weight, i, i + 1, compute, &word, false);
        value = value_at(compute, &word, 0);
    } else {
        value = value_at(mat->dtype, mat->data, row * mat->stride + column);
    }
    if (mat->dropout > 0 &&
        !nbl__dropout_keeps(mat->seed, mat->dropout, mat->drop_first + row * mat->drop_columns + column))
        return 0;
    return (double)value / (1 - (double)mat->dropout);
}

static double wanted(const nbl__gemm_term *t, int64_t i, int64_t n, double *size)
{
    double sum = 0, squares = 0;
    for (int64_t k = 0; k < t->k; k++) {
        int64_t ka = t->a.k_index ? t->a.k_index[k] : k, kb = t->b.k_index ? t->b.k_index[k] : k;
        double a = t->a.transposed ? element(&t->a, NBL_DTYPE_F32, ka, i)
                                   : element(&t->a, NBL_DTYPE_F32, i, ka);
        double b = t->b.transposed ? element(&t->b, t->compute, n, kb) : element(&t->b, t->compute, kb, n);
        sum += a * b;
        squares += a * b * a * b;
    }
    *size = fabs((double)t->alpha) * sqrt(squares);
    return (double)t->alpha * sum;
}

/* Runs a term over all columns, then in two parts, on every level. */
static void check_term(const nbl__gemm_term *t, int64_t m, int64_t n, const char *what)
{
    float start = 0.5f;
    double want[8 * N], size[8 * N];
    for (int64_t i = 0; i < m; i++)
        for (int64_t c = 0; c < n; c++) want[i * N + c] = wanted(t, i, c, &size[i * N + c]) + (double)start;
    FOR_EACH_ISA(isa)
    {
        float tile[8 * STRIDE], halves[8 * STRIDE];
        for (int i = 0; i < 8 * STRIDE; i++) tile[i] = halves[i] = start;
        nbl__gemv(isa, t, m, 0, n, tile, STRIDE);
        nbl__gemv(isa, t, m, 0, n / 3, halves, STRIDE);
        nbl__gemv(isa, t, m, n / 3, n, halves + n / 3, STRIDE);
        assert_same_bytes(halves, tile, sizeof tile, "%s, split, %s", what, nbl__isa_name(isa));
        for (int64_t i = 0; i < 8; i++)
            for (int64_t c = 0; c < STRIDE; c++) {
                double got = (double)tile[i * STRIDE + c];
                if (i >= m || c >= n) {
                    if (got != (double)start) fail_msg("%s: wrote outside the tile", what);
                    continue;
                }
                double bound = 4e-7 * (size[i * N + c] * 4 + 1) + 1e-6 * fabs(want[i * N + c]);
                if (!(fabs(got - want[i * N + c]) <= bound))
                    fail_msg("%s, %s, m %d: [%d, %d] is %.9g, expected %.9g", what, nbl__isa_name(isa),
                             (int)m, (int)i, (int)c, got, want[i * N + c]);
            }
    }
}

static void every_format_equals_the_f64_loop(void **state)
{
    (void)state;
    static const int64_t lengths[] = {1, 31, 32, 63, 64, 96, 128, 160, 192, 517, 1088, 2880, 4480};
    for (int64_t f = 0; f < COUNT(kinds); f++)
        for (int64_t l = 0; l < COUNT(lengths); l++)
            for (int64_t d = 0; d < COUNT(dtypes); d++) {
                if (kinds[f].format == NBL_FORMAT_MXFP4 && lengths[l] % 32) continue;
                int64_t k = lengths[l], m = k > 1000 ? 1 + (l + d + f) % 8 : 1 + (5 * l + 3 * d + f) % 8;
                void *memory;
                nbl_dtype dense = dtypes[(l + d) % 3];
                nbl_weight w = make_weight(&kinds[f], dense, N, k, &memory);
                nbl__gemm_term t = {.a = {.dtype = dtypes[l % 2 ? d : (d + l / 2) % 3], .stride = k + 5},
                                    .b = {.weight = &w, .transposed = true},
                                    .k = k,
                                    .alpha = 0.75f,
                                    .compute = dtypes[d]};
                void *x = random_values(7, t.a.dtype, 8 * (k + 5));
                t.a.data = x;
                char what[128];
                snprintf(what, sizeof what, "%s, k %d, compute %s, x %s", kinds[f].name, (int)k,
                         nbl_dtype_name(t.compute), nbl_dtype_name(t.a.dtype));
                check_term(&t, m, N, what);
                free(x);
                free(memory);
            }
}

static void every_number_of_rows_equals_the_f64_loop(void **state)
{
    (void)state;
    for (int64_t f = 0; f < COUNT(kinds); f++)
        for (int64_t d = 0; d < COUNT(dtypes); d++)
            for (int64_t m = 1; m <= 8; m++) {
                int64_t k = 224 + 32 * (m % 2);
                void *memory;
                nbl_weight w = make_weight(&kinds[f], dtypes[d], N, k, &memory);
                nbl__gemm_term t = {.a = {.dtype = dtypes[d], .stride = k},
                                    .b = {.weight = &w, .transposed = true},
                                    .k = k,
                                    .alpha = 1,
                                    .compute = dtypes[d]};
                void *x = random_values(7, t.a.dtype, 8 * k);
                t.a.data = x;
                check_term(&t, m, N, kinds[f].name);
                free(x);
                free(memory);
            }
}

static void a_weight_that_is_not_transposed_works(void **state)
{
    (void)state;
    for (int64_t f = 0; f < COUNT(kinds); f++)
        for (int64_t d = 0; d < COUNT(dtypes); d++) {
            int64_t k = 37 + 600 * (d == 0), m = 1 + (f + d) % 8;
            int64_t columns = kinds[f].format == NBL_FORMAT_MXFP4 ? 32 : N;
            void *memory;
            nbl_weight w = make_weight(&kinds[f], dtypes[(d + 1) % 3], k, columns, &memory);
            nbl__gemm_term t = {.a = {.dtype = dtypes[d], .stride = k},
                                .b = {.weight = &w},
                                .k = k,
                                .alpha = -1.5f,
                                .compute = dtypes[d]};
            void *x = random_values(7, t.a.dtype, 8 * k);
            t.a.data = x;
            check_term(&t, m, N, kinds[f].name);
            free(x);
            free(memory);
        }
}

static void dense_factors_k_indices_and_dropout_work(void **state)
{
    (void)state;
    static const int32_t index_a[6] = {3, 9, 40, 41, 77, 100}, index_b[6] = {0, 9, 10, 41, 99, 100};
    for (int mode = 0; mode < 16; mode++)
        for (int64_t d = 0; d < COUNT(dtypes); d++) {
            bool transposed = mode & 1, indexed = mode & 2, dropout = mode & 4, packed = mode & 8;
            int64_t k = 101, b_rows = transposed ? N : k, b_columns = transposed ? k : N;
            void *x = random_values(7, dtypes[d], 8 * k),
                 *y = random_values(8, dtypes[(d + 1) % 3], N * (k + 2));
            void *memory;
            nbl_weight w = make_weight(&kinds[9], dtypes[d], b_rows, b_columns, &memory); /* int8 */
            nbl__gemm_term t = {
                .a = {.dtype = dtypes[d],
                      .data = x,
                      .stride = k,
                      .dropout = dropout ? 0.25f : 0,
                      .seed = 5,
                      .drop_first = 13,
                      .drop_columns = k},
                .b = {.dtype = dtypes[(d + 1) % 3],
                      .data = y,
                      .stride = b_columns,
                      .transposed = transposed,
                      .dropout = dropout && !packed ? 0.5f : 0,
                      .seed = 6,
                      .drop_first = 6,
                      .drop_columns = b_columns},
                .k = indexed ? 6 : k,
                .alpha = 2,
                .compute = dtypes[d],
            };
            if (packed) t.b.weight = &w;
            if (indexed) t.a.k_index = index_a, t.b.k_index = index_b;
            check_term(&t, 1 + mode % 8, N, "dense");
            t.a.transposed = true;
            t.a.stride = t.a.drop_columns = 8;
            check_term(&t, 1 + mode % 8, N, "dense, A transposed");
            free(memory);
            free(x);
            free(y);
        }
}

static void a_nan_reaches_its_own_row_and_column_only(void **state)
{
    (void)state;
    for (int64_t f = 0; f < COUNT(kinds); f++)
        for (int64_t d = 0; d < COUNT(dtypes); d++) {
            int64_t k = 320, m = 3, bad_row = 1, bad_column = 4;
            void *memory;
            nbl_weight w = make_weight(&kinds[f], dtypes[d], N, k, &memory);
            float *x = random_values(7, NBL_DTYPE_F32, m * k), bad_scales[N * 320 / 32];
            void *half = malloc((size_t)(4 * m * k));
            x[bad_row * k + 17] = NAN;
            for (int64_t i = 0; i < m * k; i++) set_value(dtypes[d], half, i, x[i]);
            bool scaled = w.scales != NULL && w.block <= 64; /* no block in two rows */
            if (scaled) {
                int64_t per_row = w.block ? k / w.block : 1;
                memcpy(bad_scales, w.scales, (size_t)(N * per_row) * sizeof *bad_scales);
                bad_scales[bad_column * per_row] = nbl__from_bits(0x7fffffff);
                w.scales = bad_scales;
            }
            nbl__gemm_term t = {.a = {.dtype = dtypes[d], .data = half, .stride = k},
                                .b = {.weight = &w, .transposed = true},
                                .k = k,
                                .alpha = 1,
                                .compute = dtypes[d]};
            FOR_EACH_ISA(isa)
            {
                float tile[3 * N] = {0};
                nbl__gemv(isa, &t, m, 0, N, tile, N);
                for (int64_t i = 0; i < m; i++)
                    for (int64_t c = 0; c < N; c++) {
                        bool expected = i == bad_row || (scaled && c == bad_column);
                        if (isnan(tile[i * N + c]) != expected)
                            fail_msg("%s, %s: [%d, %d]", kinds[f].name, nbl__isa_name(isa), (int)i, (int)c);
                    }
            }
            free(half);
            free(x);
            free(memory);
        }
}

static void the_weight_is_read_within_its_bounds(void **state)
{
    (void)state;
    for (int64_t f = 0; f < COUNT(kinds); f++) {
        int64_t k = 416, bytes = kinds[f].format == NBL_FORMAT_DENSE  ? 2 * N * k
                                 : kinds[f].format == NBL_FORMAT_INT8 ? N * k
                                                                      : N * k / 2;
        void *memory, *x = random_values(7, NBL_DTYPE_BF16, k);
        nbl_weight w = make_weight(&kinds[f], NBL_DTYPE_BF16, N, k, &memory);
        uint8_t *exact = malloc((size_t)bytes); /* the address sanitizer watches its end */
        memcpy(exact, w.data, (size_t)bytes);
        w.data = exact;
        for (int64_t d = 0; d < COUNT(dtypes); d++) {
            nbl__gemm_term t = {.a = {.dtype = NBL_DTYPE_BF16, .data = x, .stride = k},
                                .b = {.weight = &w, .transposed = true},
                                .k = k,
                                .alpha = 1,
                                .compute = dtypes[d]};
            check_term(&t, 1, N, kinds[f].name);
        }
        free(exact);
        free(memory);
        free(x);
    }
}

static void nothing_to_do_changes_nothing(void **state)
{
    (void)state;
    float tile[4] = {1, 2, 3, 4}, x[4] = {1, 1, 1, 1};
    nbl__gemm_term t = {.a = {.dtype = NBL_DTYPE_F32, .data = x, .stride = 0},
                        .b = {.dtype = NBL_DTYPE_F32, .data = x, .stride = 0, .transposed = true},
                        .k = 0,
                        .alpha = 1};
    FOR_EACH_ISA(isa)
    {
        nbl__gemv(isa, &t, 2, 0, 2, tile, 2);
        t.k = 1;
        nbl__gemv(isa, &t, 0, 0, 2, tile, 2);
        nbl__gemv(isa, &t, 2, 1, 1, tile, 2);
        t.k = 0;
    }
    for (int i = 0; i < 4; i++) assert_true(tile[i] == (float)(i + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_equals_the_f64_loop),
        cmocka_unit_test(every_number_of_rows_equals_the_f64_loop),
        cmocka_unit_test(a_weight_that_is_not_transposed_works),
        cmocka_unit_test(dense_factors_k_indices_and_dropout_work),
        cmocka_unit_test(a_nan_reaches_its_own_row_and_column_only),
        cmocka_unit_test(the_weight_is_read_within_its_bounds),
        cmocka_unit_test(nothing_to_do_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
