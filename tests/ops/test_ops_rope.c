/* test_ops_rope.c - rotary embeddings: frequencies as transformers gives them, positions up to a million,
 * fast against reference, tables made once, refusals. */
#include "ops/op_runner.h"

#include "base/arena.h"
#include "ops/rope/rope.h"

/* ---- frequencies: recorded from transformers 5, LlamaRotaryEmbedding of a LlamaConfig ---- */

static const struct {
    const char *scaling; /* JSON */
    int64_t dim;
    float theta;
    int64_t max; /* max_position_embeddings */
    double attention;
    int at[8];
    uint32_t bits[8];
} recorded[] = {
    {"{\"rope_type\": \"default\"}",
     64,
     1e4f,
     256,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f3ff911, 0x3dcccccd, 0x3d99940d, 0x3c5a7bf2, 0x3c23d70a, 0x3b8a2e77, 0x393a7753}},
    {"{\"type\": \"linear\", \"factor\": 4.0}",
     64,
     1e4f,
     256,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3e800000, 0x3e3ff911, 0x3ccccccd, 0x3c99940d, 0x3b5a7bf2, 0x3b23d70a, 0x3a8a2e77, 0x383a7753}},
    {"{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192, \"rope_theta\": 500000.0}",
     128,
     1,
     131072,
     1,
     {0, 1, 16, 17, 31, 32, 35, 62},
     {0x3f800000, 0x3f508ac1, 0x3d1a08c8, 0x3cfaf53f, 0x3a60979e, 0x3a0995d2, 0x38c86886, 0x34ca41b0}},
    {"{\"rope_type\": \"llama3\", \"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192}",
     64,
     5e5f,
     131072,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f29e1c6, 0x3d1a08c8, 0x3ccc6f49, 0x3aa9279b, 0x39e13620, 0x3758ac81, 0x341864a7}},
    {"{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32768}",
     128,
     1e6f,
     131072,
     0x1.237d37fe5d298p+0,
     {0, 1, 16, 17, 31, 32, 35, 62},
     {0x3f800000, 0x3f4e4bad, 0x3d0186e3, 0x3cd0c1a8, 0x3a527db8, 0x3a1e0eb2, 0x39811c3e, 0x34ceaf79}},
    {"{\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
     "\"original_max_position_embeddings\": 4096, \"truncate\": false}",
     64,
     150000,
     131072,
     0x1.58b90bfbe8e7cp+0,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f306535, 0x3d502194, 0x3d01ddd5, 0x3a89f778, 0x39ef543c, 0x37dd6dfc, 0x34eb93eb}},
    {"{\"rope_type\": \"yarn\", \"factor\": 40, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 0.8, \"original_max_position_embeddings\": 4096}",
     64,
     1e4f,
     163840,
     0x1.0e955731baefdp+0,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f3ff911, 0x3dcccccd, 0x3d99940d, 0x3c088d77, 0x3bb43959, 0x3ab3a2cd, 0x36952c42}},
    {"{\"rope_type\": \"yarn\", \"factor\": null, \"attention_factor\": 0.9, "
     "\"original_max_position_embeddings\": 64}",
     64,
     1e4f,
     256,
     0.9,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f2ff9a5, 0x3d088888, 0x3c99940d, 0x3b5a7bf2, 0x3b23d70a, 0x3a8a2e77, 0x383a7753}},
};

static nbl_status read_text(nbl_context *ctx, const char *text, nbl__rope *rope)
{
    nbl__arena arena = nbl__arena_make(ctx);
    const nbl__json *object;
    nbl_status status = nbl__json_parse(&arena, "test", text, strlen(text), NBL_JSON_PYTHON, &object);
    if (status == NBL_OK) status = nbl__rope_read_scaling(ctx, object, rope);
    nbl__arena_free(&arena);
    return status;
}

static void the_frequencies_are_those_of_transformers(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    int exact = 0;
    for (size_t c = 0; c < sizeof recorded / sizeof *recorded; c++) {
        nbl__rope rope = {.theta = recorded[c].theta, .max_position_embeddings = recorded[c].max};
        float frequencies[64], attention;
        assert_ok(ctx, read_text(ctx, recorded[c].scaling, &rope));
        assert_ok(ctx, nbl__rope_check(ctx, "rope", &rope));
        nbl__rope_frequencies(&rope, recorded[c].dim, frequencies, &attention);
        assert_true(attention == (float)recorded[c].attention);
        for (int i = 0; i < 8; i++) {
            int64_t apart = (int64_t)nbl__bits_of(frequencies[recorded[c].at[i]]) - recorded[c].bits[i];
            if (apart < -2 || apart > 2)
                fail_msg("%s: frequency %d is %a", recorded[c].scaling, recorded[c].at[i],
                         (double)frequencies[recorded[c].at[i]]);
            exact += apart == 0;
        }
    }
    print_message("%d of 64 bit for bit\n", exact);
    assert_true(exact >= 48); /* the rest: their power is the machine's */
    nbl_context_destroy(ctx);
}

static void what_is_not_known_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{\"rope_type\": \"longrope\"}", "longrope"},
        {"{\"rope_type\": \"dynamic\", \"factor\": 2}", "dynamic"},
        {"{\"type\": \"mrope\"}", "mrope"},
        {"{\"rope_type\": \"default\", \"mrope_section\": [1, 2]}", "mrope_section"},
        {"{\"rope_type\": \"yarn\", \"llama_4_scaling_beta\": 0.1}", "llama_4_scaling_beta"},
        {"{\"rope_type\": 3}", "rope_type"},
        {"{\"rope_type\": \"linear\", \"factor\": \"four\"}", "factor"},
        {"{\"rope_type\": \"linear\", \"factor\": NaN}", "factor"},
        {"{\"rope_type\": \"yarn\", \"truncate\": 1}", "truncate"},
        {"{\"rope_theta\": \"x\"}", "rope_theta"},
        {"{\"rope_theta\": -1}", "rope_theta"},
        {"{\"rope_theta\": 0}", "rope_theta"},
        {"{\"rope_theta\": 1e-60}", "rope_theta"},
    };
    nbl_context *ctx = new_context();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        nbl__rope rope = {.theta = 1e4f};
        assert_int_not_equal(read_text(ctx, bad[i].text, &rope), NBL_OK);
        if (!strstr(nbl_error_message(ctx), bad[i].says)) fail_msg("%s", nbl_error_message(ctx));
    }
    nbl__rope rope = {.theta = 1e4f, .kind = NBL_ROPE_LINEAR};
    assert_ok(ctx, nbl__rope_read_scaling(ctx, NULL, &rope));
    assert_int_equal(rope.kind, NBL_ROPE_DEFAULT);
    static const char *const without[] = {
        "{\"rope_type\": \"linear\"}",
        "{\"rope_type\": \"llama3\", \"factor\": 8, \"original_max_position_embeddings\": 64}",
        "{\"rope_type\": \"yarn\", \"factor\": 8}",
        "{\"rope_type\": \"yarn\", \"factor\": -8, \"original_max_position_embeddings\": 64}",
    };
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        rope = (nbl__rope){.theta = 1e4f};
        assert_ok(ctx, read_text(ctx, without[i], &rope));
        assert_int_equal(nbl__rope_check(ctx, "rope", &rope), NBL_ERROR_ARGUMENT);
    }
    nbl_context_destroy(ctx);
}

/* ---- tables and rotations ---- */

static nbl_tensor positions_of(int64_t tokens, int32_t step)
{
    nbl_tensor t = tensor_of(NBL_DTYPE_I32, 1, &tokens);
    for (int64_t i = 0; i < tokens; i++) ((int32_t *)t.data)[i] = (int32_t)i * step;
    return t;
}

static void tables_are_exact_to_a_million_and_beyond(void **state)
{
    (void)state;
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    static const int32_t steps[] = {1, 7919, 262147, -12345, 15000017};
    for (int s = 0; s < 5; s++)
        for (int i = 0; i < 3; i++) {
            nbl_context *ctx = context_of(isas[i], 2);
            nbl__rope_table a = {.rope = {.theta = 5e5f, .rotary_dim = 70},
                                 .positions = positions_of(131, steps[s])};
            float frequencies[35], attention;
            run_both(ctx, &nbl__rope_table_family, &a, NULL);
            nbl__rope_frequencies(&a.rope, 70, frequencies, &attention);
            for (int64_t t = 0; t < 131; t++)
                for (int64_t k = 0; k < 35; k++) {
                    double angle = (double)((int32_t *)a.positions.data)[t] * (double)frequencies[k];
                    assert_true(fabs(value_at(&a.cos, t * 35 + k) - cos(angle)) < 1.2e-7);
                    assert_true(fabs(value_at(&a.sin, t * 35 + k) - sin(angle)) < 1.2e-7);
                }
            free_outputs(&nbl__rope_table_family, &a);
            free(a.positions.data);
            nbl_context_destroy(ctx);
        }
}

static nbl__rope_apply make_rope(int dtype, int64_t tokens, int64_t heads, int64_t columns, int64_t rotary)
{
    nbl_dtype d = compute_dtypes[dtype];
    int64_t shape[] = {tokens, heads, columns};
    return (nbl__rope_apply){.dtype = d,
                             .rope = {.theta = 1e4f,
                                      .rotary_dim = rotary,
                                      .kind = NBL_ROPE_YARN,
                                      .factor = 4,
                                      .original_max_position_embeddings = 64},
                             .x = random_tensor(d, 1, 1, 3, shape),
                             .dy = random_tensor(d, 2, 1, 3, shape),
                             .positions = positions_of(tokens, 3)};
}

static void free_rope(nbl__rope_apply *a)
{
    free(a->x.data);
    free(a->dy.data);
    free(a->positions.data);
}

static void rope_agrees_with_the_reference_whatever_the_shape_dtype_and_threads(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {{1, 1, 2, 0},  {5, 3, 6, 4},     {40, 2, 64, 0}, {17, 9, 80, 32},
                                        {0, 4, 64, 0}, {300, 4, 128, 0}, {3, 0, 64, 0},  {9, 2, 70, 66}};
    for (int s = 0; s < 8; s++)
        for (int d = 0; d < 3; d++) {
            nbl__rope_apply a = make_rope(d, shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3]), b = a;
            compare_with_reference(&nbl__rope_family, &a, &b, dtype_bounds[d]);
            free_rope(&a);
        }
}

static void a_table_gives_the_bits_of_positions_and_the_output_may_be_the_input(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int d = 0; d < 3; d++) {
        nbl__rope_apply a = make_rope(d, 33, 3, 80, 48), b = a;
        nbl__rope_table table = {.rope = a.rope, .positions = a.positions};
        run_both(ctx, &nbl__rope_family, &a, NULL);
        run_both(ctx, &nbl__rope_table_family, &table, NULL);
        b.cos = table.cos;
        b.sin = table.sin;
        b.positions = (nbl_tensor){0};
        run_both(ctx, &nbl__rope_family, &b, NULL);
        assert_outputs_equal(&nbl__rope_family, &a, &b);
        free_outputs(&nbl__rope_family, &b);
        for (int64_t i = 0; i < 33 * 3 * 80; i++) /* what does not rotate is untouched */
            if (i % 80 >= 48) assert_true(value_at(&a.y, i) == value_at(&a.x, i));
        b.y = b.x;
        assert_ok(ctx, run_one(ctx, &nbl__rope_family.forward, &b, NULL));
        assert_memory_equal(a.y.data, b.x.data, 33 * 3 * 80 * nbl__size_of(a.dtype));
        free_outputs(&nbl__rope_family, &a);
        free_outputs(&nbl__rope_table_family, &table);
        free_rope(&a);
    }
    nbl_context_destroy(ctx);
}

static void a_nan_reaches_its_pair_and_nothing_else(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__rope_apply a = make_rope(2, 5, 2, 40, 32);
    set_value(&a.x, 3 * 80 + 40 + 5, NAN);
    set_value(&a.x, 1 * 80 + 39, INFINITY);
    run_both(ctx, &nbl__rope_family, &a, NULL);
    for (int64_t i = 0; i < 400; i++) {
        bool hit = i == 3 * 80 + 40 + 5 || i == 3 * 80 + 40 + 5 + 16 || i == 80 + 39;
        assert_int_equal(!isfinite(value_at(&a.y, i)), hit);
    }
    free_outputs(&nbl__rope_family, &a);
    free_rope(&a);
    nbl_context_destroy(ctx);
}

static void mismatches_name_operator_tensor_dtypes_and_shapes(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__rope_apply good = make_rope(0, 4, 2, 32, 0), a;
#define REFUSED(change, ...)                                                                                 \
    a = good;                                                                                                \
    change;                                                                                                  \
    ASSERT_REFUSED(ctx, nbl__rope_family.backward, &a, __VA_ARGS__)
    REFUSED(a.x.dtype = NBL_DTYPE_BF16, NBL_ERROR_DTYPE, "rope", "x", "bf16", "f32", "[4, 2, 32]");
    REFUSED(a.positions.shape[0] = 3, NBL_ERROR_SHAPE, "positions", "[3]", "4");
    REFUSED(a.positions.dtype = NBL_DTYPE_I64, NBL_ERROR_DTYPE, "positions", "i64", "i32");
    REFUSED(a.positions.data = NULL, NBL_ERROR_ARGUMENT, "positions", "cos");
    REFUSED(a.rope.rotary_dim = 34, NBL_ERROR_SHAPE, "rotary_dim", "34", "32");
    REFUSED(a.rope.rotary_dim = 7, NBL_ERROR_SHAPE, "rotary_dim", "7");
    REFUSED(a.rope.rotary_dim = -2, NBL_ERROR_SHAPE, "rotary_dim", "-2");
    REFUSED(a.cos = good.x, NBL_ERROR_ARGUMENT, "cos", "sin");
    REFUSED((a.cos = good.x, a.sin = good.x), NBL_ERROR_SHAPE, "cos", "[4, 2, 32]", "16");
    REFUSED(a.dy.shape[1] = 3, NBL_ERROR_SHAPE, "dy", "[4, 3, 32]");
    REFUSED(a.rope.theta = 0, NBL_ERROR_ARGUMENT, "theta");
#undef REFUSED
    free_rope(&good);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_frequencies_are_those_of_transformers),
        cmocka_unit_test(what_is_not_known_is_refused_by_name),
        cmocka_unit_test(tables_are_exact_to_a_million_and_beyond),
        cmocka_unit_test(rope_agrees_with_the_reference_whatever_the_shape_dtype_and_threads),
        cmocka_unit_test(a_table_gives_the_bits_of_positions_and_the_output_may_be_the_input),
        cmocka_unit_test(a_nan_reaches_its_pair_and_nothing_else),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
