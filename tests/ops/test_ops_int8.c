/* test_ops_int8.c - LLM.int8: outlier columns, quantized rows and the product of codes, against loops in f64
 * and exact integers, on every instruction set. */
#include "quant/test_quant.h"

#include "ops/gemm/cpu/int8/gemm_int8.h"

/* ---- rows and outliers ---- */

static void quantize_slowly(nbl_dtype dtype, const void *x, int64_t begin, int64_t columns, double limit,
                            const uint8_t *outlier, int8_t *codes, float *scale)
{
    double largest = 0;
    for (int64_t c = 0; c < columns; c++) {
        double value = fabs((double)value_at(dtype, x, begin + c));
        if (value < limit) largest = fmax(largest, value);
    }
    for (int64_t c = 0; c < columns; c++) {
        double value = (double)value_at(dtype, x, begin + c);
        bool stays = !(outlier && outlier[c]) && isfinite(value) && largest > 0;
        codes[c] = stays ? (int8_t)nearbyint(value * 127 / largest) : 0;
    }
    *scale = (float)largest;
}

static void rows_get_the_codes_of_f64_arithmetic(void **state)
{
    (void)state;
    enum { ROWS = 40, COLUMNS = 1037, STRIDE = COLUMNS + 3 };
    for (int64_t d = 0; d < COUNT(dtypes); d++)
        for (int marked = 0; marked < 2; marked++) {
            uint8_t *x = malloc(ROWS * STRIDE * 4), outlier[COLUMNS];
            int8_t *codes = malloc(ROWS * COLUMNS), want[COLUMNS];
            float scales[ROWS], want_scale;
            for (int64_t i = 0; i < ROWS * STRIDE; i++) {
                int64_t row = i / STRIDE, c = i % STRIDE;
                float value = random_normal(3, i % 4096) * (row % 5 == 4 ? 1e-38f : 1);
                if (row % 5 == 1) value = (float)((int)(random_word(4, i) % 255) - 127) * 0.5f; /* ties */
                if (row % 5 == 2) value = (float)((int)(random_word(4, i) % 763) - 381);        /* 127 · 3 */
                if (row % 5 == 3 && c % 97 == 5) value = c % 2 ? NAN : INFINITY;
                if (row == 10) value = 0;
                set_value(dtypes[d], x, i, value);
            }
            float threshold = marked ? 300 : 0;
            nbl__int8_outliers(NBL_ISA_SCALAR, dtypes[d], x, STRIDE, ROWS, COLUMNS, threshold, outlier);
            for (int64_t c = 0; c < COLUMNS; c++) outlier[c] |= random_word(5, c) % 50 == 0;
            FOR_EACH_ISA(isa)
            {
                memset(codes, 99, ROWS * COLUMNS);
                nbl__int8_rows(isa, dtypes[d], x, STRIDE, 0, 7, COLUMNS, threshold, marked ? outlier : NULL,
                               codes, scales);
                nbl__int8_rows(isa, dtypes[d], x, STRIDE, 7, ROWS, COLUMNS, threshold,
                               marked ? outlier : NULL, codes, scales);
                for (int64_t r = 0; r < ROWS; r++) {
                    quantize_slowly(dtypes[d], x, r * STRIDE, COLUMNS, marked ? 300 : INFINITY,
                                    marked ? outlier : NULL, want, &want_scale);
                    assert_true(scales[r] == want_scale);
                    assert_same_bytes(codes + r * COLUMNS, want, COLUMNS, "row %d, %s", (int)r,
                                      nbl__isa_name(isa));
                }
            }
            free(x);
            free(codes);
        }
}

static void outliers_are_large_values_and_all_that_is_not_finite(void **state)
{
    (void)state;
    enum { ROWS = 5, COLUMNS = 1030, STRIDE = COLUMNS + 1 };
    static const float thresholds[] = {6, 0, -1, NAN, INFINITY};
    for (int64_t d = 0; d < COUNT(dtypes); d++)
        for (int64_t t = 0; t < COUNT(thresholds); t++) {
            uint8_t *x = malloc(ROWS * STRIDE * 4), outlier[COLUMNS], want[COLUMNS] = {0};
            for (int64_t i = 0; i < ROWS * STRIDE; i++) {
                uint32_t word = random_word(8, i) % 400;
                float value = word == 0   ? 6
                              : word == 1 ? -7
                              : word == 2 ? NAN
                              : word == 3 ? -INFINITY
                                          : 5.9375f;
                set_value(dtypes[d], x, i, value);
                if (i % STRIDE >= COLUMNS) continue;
                if (!isfinite(value) || (thresholds[t] > 0 && fabsf(value) >= thresholds[t]))
                    want[i % STRIDE] = 1;
            }
            FOR_EACH_ISA(isa)
            {
                memset(outlier, 7, sizeof outlier);
                nbl__int8_outliers(isa, dtypes[d], x, STRIDE, ROWS, COLUMNS, thresholds[t], outlier);
                assert_same_bytes(outlier, want, COLUMNS, "threshold %g, %s", (double)thresholds[t],
                                  nbl__isa_name(isa));
            }
            free(x);
        }
}

/* ---- the product ---- */

typedef struct problem {
    int64_t m, n, k;
    int8_t *a, *w;
    float *a_scales, *w_scales;
    nbl_weight weight;
    nbl__gemm_term term;
} problem;

static void make_problem(problem *p, int64_t m, int64_t n, int64_t k, bool extreme)
{
    *p = (problem){.m = m, .n = n, .k = k, .a = malloc((size_t)(m * (k + 7))), .w = malloc((size_t)(n * k))};
    p->a_scales = malloc((size_t)m * 4);
    p->w_scales = malloc((size_t)n * 4);
    for (int64_t i = 0; i < m * (k + 7); i++)
        p->a[i] = (int8_t)(extreme ? -127 : (int)(random_word(1, i) % 255) - 127);
    for (int64_t i = 0; i < n * k; i++)
        p->w[i] = (int8_t)(extreme ? -128 : (int)(random_word(2, i) % 256) - 128);
    for (int64_t i = 0; i < m; i++) p->a_scales[i] = 0.5f + nbl__uniform(random_word(3, i));
    for (int64_t i = 0; i < n; i++) p->w_scales[i] = 0.5f + nbl__uniform(random_word(4, i));
    p->weight = (nbl_weight){.format = NBL_FORMAT_INT8,
                             .dtype = NBL_DTYPE_F16,
                             .rank = 2,
                             .shape = {n, k},
                             .data = p->w,
                             .scales = p->w_scales};
}

static void free_problem(problem *p)
{
    free(p->a);
    free(p->w);
    free(p->a_scales);
    free(p->w_scales);
}

/* Part of the product into a part of the tile, with poisoned scratch of just the size asked for. */
static void run_part(nbl_isa isa, const problem *p, int64_t m0, int64_t m1, int64_t n0, int64_t n1,
                     float *tile)
{
    size_t bytes = nbl__int8_product_scratch(isa, &p->term, m1 - m0, n1 - n0);
    void *scratch = NULL;
    assert_int_equal(posix_memalign(&scratch, 64, bytes + 64), 0);
    memset(scratch, 0xff, bytes + 64);
    nbl__int8_product(isa, &p->term, m0, m1, n0, n1, tile + m0 * (p->n + 2) + n0, p->n + 2, scratch);
    for (size_t i = bytes; i < bytes + 64; i++) assert_int_equal(((uint8_t *)scratch)[i], 0xff);
    free(scratch);
}

static void check_problem(problem *p)
{
    p->term = (nbl__gemm_term){
        .a = {.dtype = NBL_DTYPE_I8, .data = p->a, .stride = p->k + 7, .scales = p->a_scales},
        .b = {.weight = &p->weight, .transposed = true},
        .k = p->k,
        .alpha = 0.25f};
    size_t bytes = (size_t)(p->m * (p->n + 2)) * 4;
    float *tile = malloc(bytes), *parts = malloc(bytes), *first = NULL;
    FOR_EACH_ISA(isa)
    {
        for (size_t i = 0; i < bytes / 4; i++) tile[i] = parts[i] = 1;
        run_part(isa, p, 0, p->m, 0, p->n, tile);
        run_part(isa, p, 0, p->m / 3, 0, p->n, parts);
        run_part(isa, p, p->m / 3, p->m, 0, p->n / 2, parts);
        run_part(isa, p, p->m / 3, p->m, p->n / 2, p->n, parts);
        assert_same_bytes(parts, tile, (int64_t)bytes, "split, %s", nbl__isa_name(isa));
        if (first) assert_same_bytes(tile, first, (int64_t)bytes, "%s", nbl__isa_name(isa));
        else first = memcpy(malloc(bytes), tile, bytes);
    }
    for (int64_t i = 0; i < p->m; i++)
        for (int64_t c = 0; c < p->n; c++) {
            int64_t sum = 0;
            for (int64_t k = 0; k < p->k; k++) sum += p->a[i * (p->k + 7) + k] * p->w[c * p->k + k];
            double want = 1 + 0.25 * (double)sum * (double)p->a_scales[i] * (double)p->w_scales[c] /
                                  (127.0 * 127.0);
            double got = (double)first[i * (p->n + 2) + c];
            if (!(fabs(got - want) <= 1e-6 * (fabs(want) + 1)))
                fail_msg("%dx%dx%d: [%d, %d] is %.9g, expected %.9g", (int)p->m, (int)p->n, (int)p->k, (int)i,
                         (int)c, got, want);
        }
    free(tile);
    free(parts);
    free(first);
}

static void products_are_exact_on_every_level_and_split(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},       {3, 5, 31},    {4, 17, 64},   {8, 33, 100},
                                        {9, 16, 129},    {13, 31, 63},  {30, 40, 65},  {64, 65, 1024},
                                        {40, 200, 1100}, {400, 20, 96}, {33, 33, 2049}};
    for (int64_t s = 0; s < COUNT(shapes); s++) {
        problem p;
        make_problem(&p, shapes[s][0], shapes[s][1], shapes[s][2], false);
        check_problem(&p);
        free_problem(&p);
    }
}

static void the_largest_codes_do_not_overflow(void **state)
{
    (void)state;
    for (int64_t m = 2; m <= 34; m += 16) {
        problem p;
        make_problem(&p, m, 3, 132500, true); /* 127 · 128 · k is past 2^31 */
        check_problem(&p);
        free_problem(&p);
    }
}

static void a_nan_scale_reaches_its_own_column_only(void **state)
{
    (void)state;
    problem p;
    make_problem(&p, 20, 9, 70, false);
    p.w_scales[4] = NAN;
    p.term = (nbl__gemm_term){
        .a = {.dtype = NBL_DTYPE_I8, .data = p.a, .stride = p.k + 7, .scales = p.a_scales},
        .b = {.weight = &p.weight, .transposed = true},
        .k = p.k,
        .alpha = 1};
    FOR_EACH_ISA(isa)
    {
        float tile[20 * 11] = {0};
        run_part(isa, &p, 0, p.m, 0, p.n, tile);
        for (int64_t i = 0; i < p.m; i++)
            for (int64_t c = 0; c < p.n; c++) assert_int_equal(isnan(tile[i * 11 + c]) != 0, c == 4);
    }
    free_problem(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_get_the_codes_of_f64_arithmetic),
        cmocka_unit_test(outliers_are_large_values_and_all_that_is_not_finite),
        cmocka_unit_test(products_are_exact_on_every_level_and_split),
        cmocka_unit_test(the_largest_codes_do_not_overflow),
        cmocka_unit_test(a_nan_scale_reaches_its_own_column_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
