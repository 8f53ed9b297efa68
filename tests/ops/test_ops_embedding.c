/* test_ops_embedding.c - embedding: every storage format, gradients of rows that repeat, Gemma's scale, ids
 * that are out of range. */
#include "ops/op_runner.h"

#include "ops/embedding/embedding.h"

enum { VOCABULARY = 37, COLUMNS = 96 };

/* A weight in a storage format; its memory hangs on `values`. */
typedef struct packed {
    nbl_tensor values;
    nbl_quantized_parts parts;
    nbl_weight weight;
} packed;

static packed pack(nbl_context *ctx, nbl_format format, nbl_dtype dtype, int64_t columns)
{
    int64_t shape[] = {VOCABULARY, columns};
    packed p = {.values = random_tensor(dtype, 9, 1, 2, shape)};
    if (format == NBL_FORMAT_DENSE) {
        p.weight = (nbl_weight){.format = format, .dtype = dtype, .rank = 2, .shape = {VOCABULARY, columns}};
        p.weight.data = p.values.data;
        return p;
    }
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = format, .block = 64,
                                .nested = format == NBL_FORMAT_NF4};
    nbl_quantized_sizes sizes;
    if (format == NBL_FORMAT_MXFP4) how.block = 0;
    assert_ok(ctx, nbl_quantize_sizes(ctx, &how, 2, shape, &sizes));
    p.parts = (nbl_quantized_parts){malloc(sizes.data + 1), malloc(sizes.scales + 4),
                                    malloc(sizes.scale_codes + 1), malloc(sizes.nested_scales + 4)};
    assert_ok(ctx, nbl_quantize(ctx, &how, dtype, 2, shape, p.values.data, &p.parts, &p.weight));
    return p;
}

static void free_packed(packed *p)
{
    free(p->values.data);
    free(p->parts.data);
    free(p->parts.scales);
    free(p->parts.scale_codes);
    free(p->parts.nested_scales);
}

static nbl_tensor ids_of(int64_t tokens)
{
    nbl_tensor t = tensor_of(NBL_DTYPE_I32, 2, (int64_t[]){tokens, 2});
    for (int64_t i = 0; i < tokens * 2; i++)
        ((int32_t *)t.data)[i] = (int32_t)(i * i % 23 + (i % 5 == 0 ? 14 : 0));
    return t;
}

static void every_storage_format_agrees_with_the_reference(void **state)
{
    (void)state;
    static const nbl_format formats[] = {NBL_FORMAT_DENSE, NBL_FORMAT_NF4, NBL_FORMAT_FP4, NBL_FORMAT_INT8,
                                         NBL_FORMAT_MXFP4};
    nbl_context *ctx = new_context();
    for (int f = 0; f < 5; f++)
        for (int d = 0; d < 3; d++)
            for (int64_t tokens = 0; tokens < 30; tokens += 29) {
                int64_t columns = formats[f] == NBL_FORMAT_MXFP4 ? COLUMNS
                                                                 : COLUMNS + 5; /* blocks straddle rows */
                packed p = pack(ctx, formats[f], compute_dtypes[(f + d) % 3], columns);
                nbl__embedding a = {.dtype = compute_dtypes[d],
                                    .scale = d == 1 ? 1 : 9.797959f,
                                    .padding = -1,
                                    .ids = ids_of(tokens),
                                    .w = p.weight},
                               b;
                a.dy = random_tensor(a.dtype, 3, 1, SHAPE(tokens, 2, columns));
                b = a;
                /* values are the reference's, bit for bit; sums of dw are f32 */
                compare_with_reference(&nbl__embedding_family, &a, &b, 1e-6);
                free(a.ids.data);
                free(a.dy.data);
                free_packed(&p);
            }
    nbl_context_destroy(ctx);
}

static void only_rows_that_occur_get_a_gradient(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed p = pack(ctx, NBL_FORMAT_DENSE, NBL_DTYPE_F32, 3);
    nbl__embedding a = {.dtype = NBL_DTYPE_F32,
                        .scale = 2,
                        .padding = -1,
                        .ids = tensor_of(NBL_DTYPE_I32, SHAPE(3)),
                        .w = p.weight};
    int32_t *ids = a.ids.data;
    ids[0] = ids[2] = 7;
    ids[1] = 36;
    a.dy = random_tensor(NBL_DTYPE_F32, 3, 1, SHAPE(3, 3));
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        assert_ok(ctx, nbl__embedding_family.backward.infer(ctx, &a));
        make_outputs(&nbl__embedding_family, &a, true, accumulate ? 0 : 0xff);
        for (int64_t i = 0; accumulate && i < VOCABULARY * 3; i++) set_value(&a.dw, i, 5);
        a.accumulate = accumulate;
        assert_ok(ctx, run_one(ctx, &nbl__embedding_family.backward, &a, NULL));
        for (int64_t i = 0; i < VOCABULARY * 3; i++) {
            int64_t k = i % 3;
            double sum = i / 3 == 7    ? value_at(&a.dy, k) + value_at(&a.dy, 6 + k)
                         : i / 3 == 36 ? value_at(&a.dy, 3 + k)
                                       : 0;
            assert_true(fabs(value_at(&a.dw, i) - 2 * sum - (accumulate ? 5 : 0)) < 1e-6);
        }
        free_outputs(&nbl__embedding_family, &a);
    }
    free(a.ids.data);
    free(a.dy.data);
    free_packed(&p);
    nbl_context_destroy(ctx);
}

/* transformers: embedding(ids) * torch.tensor(scale).to(dtype), in the dtype. */
static void the_scale_is_rounded_as_gemma_does(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed p = pack(ctx, NBL_FORMAT_DENSE, NBL_DTYPE_BF16, COLUMNS);
    nbl__embedding a = {.dtype = NBL_DTYPE_BF16, .scale = 55.4256f, .ids = ids_of(20), .w = p.weight};
    run_both(ctx, &nbl__embedding_family, &a, NULL);
    assert_int_equal(a.y.rank, 3);
    for (int64_t i = 0; i < 40 * COLUMNS; i++) {
        int64_t row = ((int32_t *)a.ids.data)[i / COLUMNS];
        float product = (float)value_at(&p.values, row * COLUMNS + i % COLUMNS) * 55.5f; /* 55.4256 in bf16 */
        assert_true((float)value_at(&a.y, i) == nbl__bf16_to_f32(nbl__f32_to_bf16(product)));
    }
    free_outputs(&nbl__embedding_family, &a);
    free(a.ids.data);
    free_packed(&p);
    nbl_context_destroy(ctx);
}

static void an_id_out_of_range_is_named_with_its_index(void **state)
{
    (void)state;
    static const struct {
        int32_t id;
        const char *text;
    } bad[] = {{37, "37"}, {-1, "-1"}, {INT32_MAX, "2147483647"}, {INT32_MIN, "-2147483648"}};
    static const char *const impls[] = {"ref", "cpu"};
    nbl_context *ctx = new_context();
    packed p = pack(ctx, NBL_FORMAT_DENSE, NBL_DTYPE_F32, 3);
    nbl__embedding a = {.dtype = NBL_DTYPE_F32, .scale = 1, .ids = ids_of(4), .w = p.weight};
    assert_ok(ctx, nbl__embedding_family.forward.infer(ctx, &a));
    make_outputs(&nbl__embedding_family, &a, false, 0);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 2; k++) {
            ((int32_t *)a.ids.data)[5] = bad[i].id;
            assert_int_equal(run_one(ctx, &nbl__embedding_family.forward, &a, impls[k]), NBL_ERROR_ARGUMENT);
            assert_non_null(strstr(nbl_error_message(ctx), bad[i].text));
            assert_non_null(strstr(nbl_error_message(ctx), "index 5"));
            assert_non_null(strstr(nbl_error_message(ctx), "[37, "));
        }
    free_outputs(&nbl__embedding_family, &a);
    free(a.ids.data);
    free_packed(&p);
    nbl_context_destroy(ctx);
}

static void mismatches_name_operator_tensor_dtypes_and_shapes(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    packed p = pack(ctx, NBL_FORMAT_DENSE, NBL_DTYPE_F32, 3);
    nbl__embedding good = {.dtype = NBL_DTYPE_F32, .scale = 1, .ids = ids_of(4), .w = p.weight}, a;
    good.dy = random_tensor(NBL_DTYPE_F32, 3, 1, SHAPE(4, 2, 3));
#define REFUSED(change, ...)                                                                                 \
    a = good;                                                                                                \
    change;                                                                                                  \
    ASSERT_REFUSED(ctx, nbl__embedding_family.backward, &a, __VA_ARGS__)
    REFUSED(a.ids.dtype = NBL_DTYPE_I64, NBL_ERROR_DTYPE, "embedding", "ids", "i64", "i32", "[4, 2]");
    REFUSED(a.ids.rank = 8, NBL_ERROR_SHAPE, "ids");
    REFUSED(a.w.rank = 1, NBL_ERROR_SHAPE, "w", "[37]");
    REFUSED(a.w.dtype = NBL_DTYPE_I32, NBL_ERROR_DTYPE, "w", "i32", "[37, 3]");
    REFUSED(a.dy.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "dy", "f16", "f32");
    REFUSED(a.dy.shape[2] = 4, NBL_ERROR_SHAPE, "dy", "[4, 2, 4]", "3");
    REFUSED(a.scale = INFINITY, NBL_ERROR_ARGUMENT, "scale");
    REFUSED(a.dtype = NBL_DTYPE_I32, NBL_ERROR_DTYPE, "i32");
#undef REFUSED
    free(good.ids.data);
    free(good.dy.data);
    free_packed(&p);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_storage_format_agrees_with_the_reference),
        cmocka_unit_test(only_rows_that_occur_get_a_gradient),
        cmocka_unit_test(the_scale_is_rounded_as_gemma_does),
        cmocka_unit_test(an_id_out_of_range_is_named_with_its_index),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
