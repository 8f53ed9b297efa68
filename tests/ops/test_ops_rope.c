/* test_ops_rope.c - rotary embeddings: frequencies as transformers gives them, positions up to a million,
 * fast against reference, tables made once, refusals. */
#include "ops/op_runner.h"

#include "base/arena.h"
#include "ops/rope/rope.h"

/* ---- frequencies: recorded from transformers 5, LlamaRotaryEmbedding of a LlamaConfig ---- */

/* short factors 1 + i / 10, long ones 1.5 + 2.5·i */
#define LONGROPE                                                                                             \
    "{\"type\": \"longrope\", \"original_max_position_embeddings\": 4096, \"short_factor\": [1, 1.1, 1.2, "  \
    "1.3, "                                                                                                  \
    "1.4, 1.5, 1.6, 1.7, 1.8, 1.9, 2, 2.1, 2.2, 2.3, 2.4, 2.5, 2.6, 2.7, 2.8, 2.9, 3, 3.1, 3.2, 3.3, 3.4, "  \
    "3.5, 3.6, 3.7, 3.8, 3.9, 4, 4.1], \"long_factor\": [1.5, 4, 6.5, 9, 11.5, 14, 16.5, 19, 21.5, 24, "     \
    "26.5, 29, 31.5, 34, 36.5, 39, 41.5, 44, 46.5, 49, 51.5, 54, 56.5, 59, 61.5, 64, 66.5, 69, 71.5, 74, "   \
    "76.5, 79]}"

static const struct {
    const char *scaling; /* JSON */
    int64_t dim;
    float theta;
    int64_t max; /* max_position_embeddings */
    double attention;
    int at[8];
    uint32_t bits[8];
    int64_t length; /* of the sequence */
} recorded[] = {
    {"{\"rope_type\": \"default\"}",
     64,
     1e4f,
     256,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f3ff911, 0x3dcccccd, 0x3d99940d, 0x3c5a7bf2, 0x3c23d70a, 0x3b8a2e77, 0x393a7753},
     0},
    {"{\"type\": \"linear\", \"factor\": 4.0}",
     64,
     1e4f,
     256,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3e800000, 0x3e3ff911, 0x3ccccccd, 0x3c99940d, 0x3b5a7bf2, 0x3b23d70a, 0x3a8a2e77, 0x383a7753},
     0},
    {"{\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192, \"rope_theta\": 500000.0}",
     128,
     1,
     131072,
     1,
     {0, 1, 16, 17, 31, 32, 35, 62},
     {0x3f800000, 0x3f508ac1, 0x3d1a08c8, 0x3cfaf53f, 0x3a60979e, 0x3a0995d2, 0x38c86886, 0x34ca41b0},
     0},
    {"{\"rope_type\": \"llama3\", \"factor\": 32.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
     "\"original_max_position_embeddings\": 8192}",
     64,
     5e5f,
     131072,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f29e1c6, 0x3d1a08c8, 0x3ccc6f49, 0x3aa9279b, 0x39e13620, 0x3758ac81, 0x341864a7},
     0},
    {"{\"rope_type\": \"yarn\", \"factor\": 4.0, \"original_max_position_embeddings\": 32768}",
     128,
     1e6f,
     131072,
     0x1.237d37fe5d298p+0,
     {0, 1, 16, 17, 31, 32, 35, 62},
     {0x3f800000, 0x3f4e4bad, 0x3d0186e3, 0x3cd0c1a8, 0x3a527db8, 0x3a1e0eb2, 0x39811c3e, 0x34ceaf79},
     0},
    {"{\"rope_type\": \"yarn\", \"factor\": 32.0, \"beta_fast\": 32.0, \"beta_slow\": 1.0, "
     "\"original_max_position_embeddings\": 4096, \"truncate\": false}",
     64,
     150000,
     131072,
     0x1.58b90bfbe8e7cp+0,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f306535, 0x3d502194, 0x3d01ddd5, 0x3a89f778, 0x39ef543c, 0x37dd6dfc, 0x34eb93eb},
     0},
    {"{\"rope_type\": \"yarn\", \"factor\": 40, \"beta_fast\": 32, \"beta_slow\": 1, \"mscale\": 1.0, "
     "\"mscale_all_dim\": 0.8, \"original_max_position_embeddings\": 4096}",
     64,
     1e4f,
     163840,
     0x1.0e955731baefdp+0,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f3ff911, 0x3dcccccd, 0x3d99940d, 0x3c088d77, 0x3bb43959, 0x3ab3a2cd, 0x36952c42},
     0},
    {"{\"rope_type\": \"yarn\", \"factor\": null, \"attention_factor\": 0.9, "
     "\"original_max_position_embeddings\": 64}",
     64,
     1e4f,
     256,
     0.9,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f2ff9a5, 0x3d088888, 0x3c99940d, 0x3b5a7bf2, 0x3b23d70a, 0x3a8a2e77, 0x383a7753},
     0},
    {LONGROPE,
     64,
     1e4f,
     131072,
     0x1.30b3713738289p+0,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f2e8555, 0x3d638e39, 0x3d21a951, 0x3baec98f, 0x3b7c0fc1, 0x3abe985d, 0x383a7753},
     4096},
    {LONGROPE,
     64,
     1e4f,
     131072,
     0x1.30b3713738289p+0,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f2aaaab, 0x3e3ff911, 0x3b9868c8, 0x3b4cc567, 0x39b344e0, 0x397cab3e, 0x38b47b62, 0x361bff70},
     4097},
    {"{\"rope_type\": \"dynamic\", \"factor\": 4.0}",
     64,
     1e4f,
     256,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f3ff911, 0x3dcccccd, 0x3d99940d, 0x3c5a7bf2, 0x3c23d70a, 0x3b8a2e77, 0x393a7753},
     100},
    {"{\"rope_type\": \"dynamic\", \"factor\": 4.0}",
     64,
     1e4f,
     256,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f800000, 0x3f30e534, 0x3d54e5d7, 0x3d131ca1, 0x3b801d24, 0x3b310d7b, 0x3a69a9f5, 0x37803a50},
     1000},
    {"{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.3, \"factor\": 2.0}",
     64,
     1e6f,
     256,
     1,
     {0, 1, 8, 9, 15, 16, 19, 30},
     {0x3f000000, 0x3ea63de0, 0x3c8186e3, 0, 0, 0, 0, 0},
     0},
};

/* The lists of *rope are the arena's. */
static nbl_status read_text(nbl__arena *arena, const char *text, nbl__rope *rope)
{
    const nbl__json *object;
    NBL_TRY(nbl__json_parse(arena, "test", text, strlen(text), NBL_JSON_PYTHON, &object));
    return nbl__rope_read_scaling(arena->ctx, object, rope);
}

static void the_frequencies_are_those_of_transformers(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__arena arena = nbl__arena_make(ctx);
    int exact = 0;
    for (size_t c = 0; c < sizeof recorded / sizeof *recorded; c++) {
        nbl__rope rope = {.theta = recorded[c].theta, .max_position_embeddings = recorded[c].max};
        float frequencies[64], attention;
        assert_ok(ctx, read_text(&arena, recorded[c].scaling, &rope));
        assert_ok(ctx, nbl__rope_check(ctx, "rope", &rope));
        assert_ok(ctx, nbl__rope_check_dim(ctx, "rope", &rope, recorded[c].dim));
        assert_int_equal(nbl__rope_dim(&rope, recorded[c].dim), recorded[c].dim);
        nbl__rope_frequencies(&rope, recorded[c].dim, recorded[c].length, frequencies, &attention);
        assert_true(attention == (float)recorded[c].attention);
        for (int i = 0; i < 8; i++) {
            int64_t apart = (int64_t)nbl__bits_of(frequencies[recorded[c].at[i]]) - recorded[c].bits[i];
            if (apart < -2 || apart > 2)
                fail_msg("%s: frequency %d is %a", recorded[c].scaling, recorded[c].at[i],
                         (double)frequencies[recorded[c].at[i]]);
            exact += apart == 0;
        }
    }
    print_message("%d of 104 bit for bit\n", exact);
    assert_true(exact >= 80); /* the rest: their power is the machine's */
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

static void what_is_not_known_is_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"{\"rope_type\": \"axial\"}", "axial"},
        {"{\"rope_type\": \"longrope\", \"short_factor\": 2}", "short_factor"},
        {"{\"rope_type\": \"longrope\", \"long_factor\": [1, 0]}", "long_factor"},
        {"{\"rope_type\": \"longrope\", \"long_factor\": [\"1\"]}", "long_factor"},
        {"{\"type\": \"mrope\"}", "mrope"},
        {"{\"rope_type\": \"default\", \"mrope_of_mine\": [1, 2]}", "mrope_of_mine"},
        {"{\"rope_type\": \"yarn\", \"llama_4_scaling_beta\": \"0.1\"}", "llama_4_scaling_beta"},
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
    nbl__arena arena = nbl__arena_make(ctx);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        nbl__rope rope = {.theta = 1e4f};
        assert_int_not_equal(read_text(&arena, bad[i].text, &rope), NBL_OK);
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
        "{\"rope_type\": \"dynamic\"}",
        "{\"rope_type\": \"dynamic\", \"factor\": 2}",
        "{\"rope_type\": \"longrope\", \"factor\": 2}",
        "{\"rope_type\": \"longrope\", \"factor\": 2, \"original_max_position_embeddings\": 1}",
        "{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 1.5}",
        "{\"llama_4_scaling_beta\": 0.1}",
    };
    for (size_t i = 0; i < sizeof without / sizeof *without; i++) {
        rope = (nbl__rope){.theta = 1e4f};
        assert_ok(ctx, read_text(&arena, without[i], &rope));
        assert_int_equal(nbl__rope_check(ctx, "rope", &rope), NBL_ERROR_ARGUMENT);
    }
    /* each pair needs its factor */
    rope = (nbl__rope){.theta = 1e4f, .max_position_embeddings = 64};
    assert_ok(ctx, read_text(&arena, "{\"rope_type\": \"longrope\", \"short_factor\": [1, 2]}", &rope));
    assert_ok(ctx, nbl__rope_check(ctx, "rope", &rope));
    assert_int_equal(nbl__rope_check_dim(ctx, "rope", &rope, 4), NBL_ERROR_SHAPE);
    assert_non_null(strstr(nbl_error_message(ctx), "long_factor"));
    assert_int_equal(nbl__rope_check_dim(ctx, "rope", &rope, 6), NBL_ERROR_SHAPE);
    assert_non_null(strstr(nbl_error_message(ctx), "short_factor"));
    nbl__arena_free(&arena);
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
            nbl__rope_frequencies(&a.rope, 70, 0, frequencies, &attention);
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

/* The rows of a table for packed sequences are those of a table for each sequence alone, and without
 * cu_seqlens each token is the last of its sequence. */
static void a_table_takes_frequencies_by_the_length_of_each_sequence(void **state)
{
    (void)state;
    enum { HALF = 32, TOKENS = 20 + 64 + 65 + 64 };
    static const char *const texts[] = {LONGROPE, "{\"rope_type\": \"dynamic\", \"factor\": 3}"};
    static const int32_t starts[] = {0, 20, 20, 84, 149, TOKENS};
    nbl_context *ctx = new_context();
    nbl__arena arena = nbl__arena_make(ctx);
    for (int i = 0; i < 2; i++) {
        const int64_t tokens = TOKENS, bounds = 6;
        nbl__rope_table all = {.rope = {.theta = 1e4f, .rotary_dim = 2 * HALF, .max_position_embeddings = 64},
                               .positions = positions_of(tokens, 0),
                               .cu_seqlens = tensor_of(NBL_DTYPE_I32, 1, &bounds)};
        assert_ok(ctx, read_text(&arena, texts[i], &all.rope));
        all.rope.original_max_position_embeddings = 64;
        memcpy(all.cu_seqlens.data, starts, sizeof starts);
        for (int s = 0; s < 5; s++)
            for (int32_t t = starts[s]; t < starts[s + 1]; t++)
                ((int32_t *)all.positions.data)[t] = t - starts[s];
        run_both(ctx, &nbl__rope_table_family, &all, NULL);
        for (int s = 0; s < 5; s++) {
            int32_t length = starts[s + 1] - starts[s];
            float frequencies[HALF], attention;
            nbl__rope_frequencies(&all.rope, 2 * HALF, length, frequencies, &attention);
            for (int32_t t = 0; t < length; t++)
                for (int k = 0; k < HALF; k++) {
                    double angle = (double)t * (double)frequencies[k];
                    double got = value_at(&all.cos, (starts[s] + t) * HALF + k);
                    assert_true(fabs(got - cos(angle) * (double)attention) < 2.4e-7);
                }
        }
        /* 64 and 65 tokens have other frequencies */
        assert_true(value_at(&all.cos, (20 + 50) * HALF + 1) != value_at(&all.cos, (84 + 50) * HALF + 1));
        nbl__rope_table steps = all;
        steps.cu_seqlens = steps.cos = steps.sin = (nbl_tensor){0};
        run_both(ctx, &nbl__rope_table_family, &steps, NULL);
        for (int s = 2; s < 5; s++) /* the last token of each */
            for (int k = 0; k < HALF; k++)
                assert_true(value_at(&steps.cos, (starts[s + 1] - 1) * HALF + k) ==
                            value_at(&all.cos, (starts[s + 1] - 1) * HALF + k));
        free_outputs(&nbl__rope_table_family, &steps);
        /* sequences that do not fit are refused before they are read */
        ((int32_t *)all.cu_seqlens.data)[5] = TOKENS + 1;
        assert_int_equal(run_one(ctx, &nbl__rope_table_family.forward, &all, NULL), NBL_ERROR_ARGUMENT);
        assert_non_null(strstr(nbl_error_message(ctx), "cu_seqlens"));
        free_outputs(&nbl__rope_table_family, &all);
        free(all.positions.data);
        free(all.cu_seqlens.data);
    }
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
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
            a.rope.interleaved = b.rope.interleaved = true;
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
    REFUSED((a.rope.kind = NBL_ROPE_DYNAMIC, a.rope.max_position_embeddings = 9), NBL_ERROR_ARGUMENT,
            "rope_table");
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
        cmocka_unit_test(a_table_takes_frequencies_by_the_length_of_each_sequence),
        cmocka_unit_test(rope_agrees_with_the_reference_whatever_the_shape_dtype_and_threads),
        cmocka_unit_test(a_table_gives_the_bits_of_positions_and_the_output_may_be_the_input),
        cmocka_unit_test(a_nan_reaches_its_pair_and_nothing_else),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
