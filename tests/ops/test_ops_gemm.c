/* test_ops_gemm.c - the product behind the linear layers against a loop in f64: formats, orientations, compute
 * dtypes, ragged sizes, instruction sets; and that the number of threads changes no bit. */
#include "ops/ops_gemm_support.h"

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
    nbl__gemm_term term = {.k = k, .alpha = 1, .compute = compute};
    term.a.dtype = a_dtype;
    fill_dense(&term.a, m, k);
    term.b.weight = make_weight(contexts[0][0], what->format, what->dtype, what->block, what->nested,
                                transpose ? n : k, transpose ? k : n);
    term.b.transposed = transpose;
    nbl__gemm_product p = {.m = m, .n = n, .terms = &term, .term_count = 1, .dtype = a_dtype};
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
static void random_term(nbl__gemm_term *t, int64_t m, int64_t n)
{
    nbl_context *ctx = contexts[0][0];
    t->k = PICK(1, 4, 8, 16, 33, 64, 100, 330);
    t->alpha = word() % 2 ? 1 : value();
    t->compute = any_float();
    int64_t ka = t->k, kb = t->k;
    if (word() % 4 == 0) t->a.k_index = make_k_index(t->k, ka = t->k + 5);
    if (word() % 4 == 0) t->b.k_index = make_k_index(t->k, kb = t->k + 3);
    t->a.dtype = word() % 6 ? any_float() : NBL_DTYPE_I8;
    t->a.transposed = word() % 3 == 0;
    fill_dense(&t->a, t->a.transposed ? ka : m, t->a.transposed ? m : ka);
    if (word() % 3 == 0 && t->a.dtype != NBL_DTYPE_I8) {
        t->a.dropout = 0.25f;
        t->a.seed = word();
        t->a.drop_first = (int64_t)(t->a.seed % 1000);
        t->a.drop_columns = (t->a.transposed ? m : ka) + 3;
    }
    t->b.transposed = word() % 2;
    int64_t rows = t->b.transposed ? n : kb, columns = t->b.transposed ? kb : n;
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

static void random_product(nbl__gemm_product *p, nbl__gemm_term *terms, int64_t m, int64_t n)
{
    *p = (nbl__gemm_product){
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
        nbl__gemm_matrix dense = {.dtype = any_float()};
        fill_dense(&dense, 1, n);
        *bias = (nbl_tensor){
            .dtype = dense.dtype, .rank = 1, .shape = {n}, .data = (void *)(uintptr_t)dense.data};
        p->bias = bias;
    }
    p->c = new_result(p);
}

static void terms_products_masks_and_k_indices_in_any_mixture(void **state)
{
    (void)state;
    for (int i = 0; i < 200; i++) {
        nbl__gemm_term terms[MAX_PRODUCTS][MAX_TERMS];
        nbl__gemm_product products[MAX_PRODUCTS];
        int count = 1 + (int)(word() % MAX_PRODUCTS);
        int64_t m = PICK(1, 3, 8, 9, 16, 20, 33, 70);
        for (int p = 0; p < count; p++)
            random_product(&products[p], terms[p], m, PICK(1, 8, 16, 31, 32, 64, 100, 192));
        if (count == 2 && word() % 2) { /* a shared left operand */
            terms[1][0].a = terms[0][0].a;
            int64_t k = terms[1][0].k = terms[0][0].k;
            terms[1][0].b = (nbl__gemm_matrix){.dtype = any_float()};
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
    const nbl__gemm_kernel *const kernels[] = {
#define ADDRESS(name) &nbl__##name,
        NBL_GEMM_KERNELS(ADDRESS)
#undef ADDRESS
    };
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        for (int algo = 0; algo < 4; algo++) {
            const nbl__gemm_kernel *kernel = kernels[i];
            if (kernel->needs > nbl__isa_detect()) continue;
            nbl__gemm_matrix a = {.dtype = NBL_DTYPE_BF16, .transposed = algo & 1};
            nbl__gemm_matrix b = {.dtype = NBL_DTYPE_BF16, .transposed = algo & 2};
            fill_dense(&a, a.transposed ? K : M, a.transposed ? M : K);
            fill_dense(&b, b.transposed ? N : K, b.transposed ? K : N);
            nbl__pack_source left = {kernel->needs, kernel, &a, NBL_DTYPE_BF16, !a.transposed};
            nbl__pack_source right = {kernel->needs, kernel, &b, NBL_DTYPE_BF16, b.transposed};
            int64_t panels = (M + kernel->rows - 1) / kernel->rows;
            int64_t k = nbl__round_up(K, kernel->k_step);
            nbl__pack_rows part = {.rows = M, .panels = panels, .panel_end = panels, .k_count = K};
            nbl__gemm_block block = {.rows = kernel->padded ? panels * kernel->rows : M,
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
                        sum += stored(&a, NBL_DTYPE_F32, a.transposed ? x : m, a.transposed ? m : x) *
                               stored(&b, NBL_DTYPE_F32, b.transposed ? n : x, b.transposed ? x : n);
                    if (fabs((double)block.tile[m * N + n] - sum) > 1e-4) fail_msg("%s", kernel->name);
                }
            free_owned();
        }
}

/* xa = x·Aᵀ, y = x·Wᵀ + xa·Bᵀ in one call, in one window and in several. */
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_format_both_ways_in_every_compute_dtype),
        cmocka_unit_test(ragged_sizes_around_every_edge),
        cmocka_unit_test(many_rows_go_in_windows),
        cmocka_unit_test(nothing_to_multiply_is_fine),
        cmocka_unit_test(terms_products_masks_and_k_indices_in_any_mixture),
        cmocka_unit_test(every_kernel_multiplies_what_was_packed),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
