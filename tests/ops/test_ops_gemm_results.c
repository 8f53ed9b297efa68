/* test_ops_gemm_results.c - what becomes of a product: stages that read each other, c_transposed results,
 * precision, sums with products of codes, NaN. */
#include "ops/ops_gemm_support.h"

static void a_second_stage_reads_what_the_first_made(void **state)
{
    (void)state;
    enum { IN = 80, RANK = 16, OUT = 48, MAX = 1100 };
    const int64_t sizes[] = {1, 20, 40, 300, MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        int64_t m = sizes[i];
        float *xa = own(MAX * RANK * 4);
        nbl__gemm_matrix x = {0}, a = {.transposed = true}, w = {.transposed = true},
                         b = {.transposed = true};
        fill_dense(&x, m, IN);
        fill_dense(&a, RANK, IN);
        fill_dense(&w, OUT, IN);
        fill_dense(&b, OUT, RANK);
        nbl__gemm_matrix made = {.data = xa, .stride = RANK};
        nbl__gemm_term terms[] = {{.a = x, .b = a, .k = IN, .alpha = 0.5f},
                                  {.a = x, .b = w, .k = IN, .alpha = 1},
                                  {.a = made, .b = b, .k = RANK, .alpha = 1}};
        nbl__gemm_product products[] = {
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

static void a_result_may_be_transposed(void **state)
{
    (void)state;
    enum { N = 100, K = 70 };
    for (int64_t m = 1; m <= 40; m += 13)
        for (int accumulate = 0; accumulate < 2; accumulate++) {
            nbl__gemm_matrix a = {.transposed = true}, b = {0};
            fill_dense(&a, K, m);
            fill_dense(&b, K, N);
            nbl__gemm_term term = {.a = a, .b = b, .k = K, .alpha = 1};
            float *c = own((size_t)(N * m) * 4);
            nbl__gemm_product p = {.m = m,
                                   .n = N,
                                   .terms = &term,
                                   .term_count = 1,
                                   .c = c,
                                   .stride = m,
                                   .c_transposed = true,
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
    nbl__gemm_matrix a = {0}, b = {.transposed = true};
    fill_dense(&a, M, K);
    fill_dense(&b, N, K);
    nbl__gemm_term term = {.a = a, .b = b, .k = K, .alpha = 1};
    nbl__gemm_product p = {.m = M, .n = N, .terms = &term, .term_count = 1, .stride = N, .c = own(M * N * 4)};
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
        nbl__gemm_term terms[2] = {{.k = k, .alpha = 1, .compute = NBL_DTYPE_F16}, {.k = 8, .alpha = 0.5f}};
        terms[0].a.dtype = NBL_DTYPE_I8;
        fill_dense(&terms[0].a, m, k);
        terms[0].b.weight = make_weight(contexts[0][0], NBL_FORMAT_INT8, 0, 0, false, n, k);
        terms[0].b.transposed = true;
        fill_dense(&terms[1].a, m, 8);
        fill_dense(&terms[1].b, n, 8);
        terms[1].b.transposed = true;
        nbl__gemm_product p = {.m = m, .n = n, .terms = terms, .term_count = 2, .dtype = NBL_DTYPE_F16};
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
            nbl__gemm_term term = {.k = K, .alpha = 1, .compute = compute};
            fill_dense(&term.a, M, K);
            nbl_weight *w = make_weight(contexts[0][0], NBL_FORMAT_NF4, 0, 64, false, N, K);
            term.b.weight = w;
            term.b.transposed = true;
            if (where == 0) ((float *)(uintptr_t)term.a.data)[5 * term.a.stride + 3] = NAN;
            if (where == 1) ((float *)(uintptr_t)w->scales)[7] = nbl__from_bits(0x7fffffff);
            if (where == 2) ((float *)(uintptr_t)w->scales)[7] = INFINITY;
            nbl__gemm_product p = {.m = M, .n = N, .terms = &term, .term_count = 1};
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
        cmocka_unit_test(a_second_stage_reads_what_the_first_made),
        cmocka_unit_test(a_result_may_be_transposed),
        cmocka_unit_test(f32_products_have_the_precision_of_f32),
        cmocka_unit_test(codes_times_codes_join_a_sum),
        cmocka_unit_test(a_nan_stays_in_its_row_or_column),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
