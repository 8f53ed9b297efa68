/* test_ops_norms.c - rmsnorm and layernorm: fast against reference over odd shapes, threads, rounding as in
 * transformers, NaN, refusals. */
#include "ops/op_runner.h"

#include "ops/norm/layernorm.h"
#include "ops/norm/rmsnorm.h"

static const int64_t row_shapes[][2] = {{1, 64},   {3, 1},     {5, 7},  {2, 33},
                                        {70, 100}, {130, 576}, {0, 64}, {1, 4099}};
enum { SHAPES = sizeof row_shapes / sizeof *row_shapes };

static nbl__rmsnorm make_rms(int dtype, int weight_dtype, const int64_t *shape, bool residual, bool gemma)
{
    nbl_dtype d = compute_dtypes[dtype];
    nbl__rmsnorm a = {.dtype = d,
                      .eps = 1e-6f,
                      .offset = gemma ? 1 : 0,
                      .round = gemma ? NBL_ROUND_AFTER_WEIGHT : NBL_ROUND_BEFORE_WEIGHT,
                      .x = random_tensor(d, 1, 3, 2, shape),
                      .w = random_tensor(compute_dtypes[weight_dtype], 2, 1, 1, shape + 1),
                      .dy = random_tensor(d, 3, 1, 2, shape)};
    if (residual) {
        a.residual = random_tensor(d, 4, 3, 2, shape);
        a.dresidual = random_tensor(d, 5, 1, 2, shape);
    }
    return a;
}

static void free_rms(nbl__rmsnorm *a)
{
    nbl_tensor *all[] = {&a->x, &a->w, &a->dy, &a->residual, &a->dresidual};
    for (int i = 0; i < 5; i++) free(all[i]->data);
}

/* A row of one element: its gradient is 0, all that one sees of it is rounding. */
static void drop_gradients(nbl__rmsnorm *a)
{
    free(a->dy.data);
    free(a->dresidual.data);
    a->dy = a->dresidual = (nbl_tensor){0};
}

static void rmsnorm_agrees_with_the_reference_whatever_the_shape_dtype_and_threads(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int d = 0; d < 3; d++)
            for (int kind = 0; kind < 4; kind++) {
                nbl__rmsnorm a = make_rms(d, (d + kind) % 3, row_shapes[s], kind & 1, kind & 2), b;
                if (row_shapes[s][1] == 1) drop_gradients(&a);
                b = a;
                compare_with_reference(&nbl__rmsnorm_family, &a, &b, dtype_bounds[d]);
                free_rms(&a);
            }
}

static nbl__layernorm make_layer(int dtype, int weight_dtype, const int64_t *shape, bool bias)
{
    nbl_dtype d = compute_dtypes[dtype], w = compute_dtypes[weight_dtype];
    nbl__layernorm a = {.dtype = d,
                        .eps = 1e-5f,
                        .x = random_tensor(d, 1, 3, 2, shape),
                        .w = random_tensor(w, 2, 1, 1, shape + 1),
                        .dy = random_tensor(d, 3, 1, 2, shape)};
    if (bias) a.bias = random_tensor(w, 4, 1, 1, shape + 1);
    return a;
}

static void free_layer(nbl__layernorm *a)
{
    nbl_tensor *all[] = {&a->x, &a->w, &a->dy, &a->bias};
    for (int i = 0; i < 4; i++) free(all[i]->data);
}

static void layernorm_agrees_with_the_reference_whatever_the_shape_dtype_and_threads(void **state)
{
    (void)state;
    for (int s = 0; s < SHAPES; s++)
        for (int d = 0; d < 3; d++)
            for (int bias = 0; bias < 2; bias++) {
                if (row_shapes[s][1] == 1) continue; /* as above */
                nbl__layernorm a = make_layer(d, (d + bias) % 3, row_shapes[s], bias), b = a;
                compare_with_reference(&nbl__layernorm_family, &a, &b, dtype_bounds[d]);
                free_layer(&a);
            }
}

static void a_mean_far_from_zero_does_not_hurt_the_variance(void **state)
{
    (void)state;
    nbl__layernorm a = make_layer(0, 0, (int64_t[]){4, 301}, true);
    for (int64_t i = 0; i < 4 * 301; i++) set_value(&a.x, i, (float)value_at(&a.x, i) + 3000);
    nbl__layernorm b = a;
    compare_with_reference(&nbl__layernorm_family, &a, &b, 2e-4); /* x itself has only 12 bits left */
    free_layer(&a);
}

/* Llama: weight * normed.to(dtype). Gemma: (normed * (1 + weight)).to(dtype). */
static void the_rounding_is_that_of_the_model(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    for (int gemma = 0; gemma < 2; gemma++) {
        nbl__rmsnorm a = make_rms(2, 0, (int64_t[]){9, 64}, false, gemma);
        drop_gradients(&a);
        run_both(ctx, &nbl__rmsnorm_family, &a, NULL);
        int differ = 0;
        for (int64_t r = 0; r < 9; r++) {
            double squares = 0;
            for (int k = 0; k < 64; k++) squares += value_at(&a.x, r * 64 + k) * value_at(&a.x, r * 64 + k);
            for (int k = 0; k < 64; k++) {
                float n = (float)(value_at(&a.x, r * 64 + k) / sqrt(squares / 64 + 1e-6));
                float w = (float)value_at(&a.w, k) + (gemma ? 1 : 0);
                float y = gemma ? n * w : nbl__bf16_to_f32(nbl__f32_to_bf16(n)) * w;
                differ += nbl__bf16_to_f32(nbl__f32_to_bf16(y)) != (float)value_at(&a.y, r * 64 + k);
            }
        }
        assert_true(differ <= 2); /* a tie that the f32 sum decides */
        free_outputs(&nbl__rmsnorm_family, &a);
        free_rms(&a);
    }
    nbl_context_destroy(ctx);
}

static void large_f16_values_do_not_overflow(void **state)
{
    (void)state;
    nbl__rmsnorm a = make_rms(1, 1, (int64_t[]){3, 100}, false, false), b = a;
    for (int64_t i = 0; i < 300; i++) set_value(&a.x, i, i % 2 ? 60000.0f : -50000.0f);
    compare_with_reference(&nbl__rmsnorm_family, &a, &b, dtype_bounds[1]);
    free_rms(&a);
}

static void a_nan_stays_in_its_row(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        nbl__rmsnorm a = make_rms(d, 0, (int64_t[]){7, 50}, true, false), b;
        nbl_context *ctx = new_context();
        set_value(&a.x, 3 * 50 + 49, NAN);
        b = a;
        run_both(ctx, &nbl__rmsnorm_family, &b, NULL);
        for (int64_t i = 0; i < 350; i++) {
            assert_int_equal(isnan(value_at(&b.y, i)) != 0, i / 50 == 3);
            assert_int_equal(isnan(value_at(&b.dx, i)) != 0, i / 50 == 3);
            assert_int_equal(isnan(value_at(&b.residual_out, i)) != 0, i == 3 * 50 + 49);
        }
        free_outputs(&nbl__rmsnorm_family, &b);
        nbl_context_destroy(ctx);
        free_rms(&a);
    }
}

static void gradients_are_added_or_left_out_as_asked(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__rmsnorm a = make_rms(0, 0, (int64_t[]){40, 70}, false, false), b;
    run_both(ctx, &nbl__rmsnorm_family, &a, NULL);
    b = a;
    b.dw = tensor_of(NBL_DTYPE_F32, 1, (int64_t[]){70});
    for (int k = 0; k < 70; k++) set_value(&b.dw, k, 5);
    b.dx.data = NULL; /* not wanted */
    b.accumulate = true;
    assert_ok(ctx, run_one(ctx, &nbl__rmsnorm_family.backward, &b, NULL));
    for (int k = 0; k < 70; k++) assert_true(fabs(value_at(&b.dw, k) - value_at(&a.dw, k) - 5) < 1e-5);
    free(b.dw.data);
    b.dw.data = NULL;
    b.dx = tensor_of(NBL_DTYPE_F32, 2, (int64_t[]){40, 70});
    assert_ok(ctx, run_one(ctx, &nbl__rmsnorm_family.backward, &b, NULL));
    assert_memory_equal(a.dx.data, b.dx.data, 40 * 70 * 4);
    free(b.dx.data);
    b.dx.data = b.dy.data; /* on the spot */
    assert_ok(ctx, run_one(ctx, &nbl__rmsnorm_family.backward, &b, NULL));
    assert_memory_equal(a.dx.data, b.dx.data, 40 * 70 * 4);
    free_outputs(&nbl__rmsnorm_family, &a);
    free_rms(&a);
    nbl_context_destroy(ctx);
}

static void mismatches_name_operator_tensor_dtypes_and_shapes(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__rmsnorm good = make_rms(0, 0, (int64_t[]){4, 32}, true, false), a;
#define REFUSED(change, ...)                                                                                 \
    a = good;                                                                                                \
    change;                                                                                                  \
    ASSERT_REFUSED(ctx, nbl__rmsnorm_family.backward, &a, __VA_ARGS__)
    REFUSED(a.x.dtype = NBL_DTYPE_BF16, NBL_ERROR_DTYPE, "rmsnorm", "x", "bf16", "f32", "[4, 32]");
    REFUSED(a.dtype = NBL_DTYPE_I8, NBL_ERROR_DTYPE, "i8");
    REFUSED(a.w.shape[0] = 31, NBL_ERROR_SHAPE, "w", "[31]", "[32]");
    REFUSED(a.w.dtype = NBL_DTYPE_I32, NBL_ERROR_DTYPE, "w", "i32");
    REFUSED(a.residual.shape[0] = 3, NBL_ERROR_SHAPE, "residual", "[3, 32]", "[4, 32]");
    REFUSED(a.residual.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "residual", "f16", "f32");
    REFUSED(a.dy.dtype = NBL_DTYPE_F16, NBL_ERROR_DTYPE, "dy", "f16", "f32");
    REFUSED(a.dresidual.shape[1] = 30, NBL_ERROR_SHAPE, "dresidual", "[4, 30]");
    REFUSED(a.eps = -1, NBL_ERROR_ARGUMENT, "eps");
    REFUSED(a.eps = NAN, NBL_ERROR_ARGUMENT, "eps");
#undef REFUSED
    free_rms(&good);
    nbl__layernorm layer = make_layer(0, 0, (int64_t[]){4, 32}, true);
    layer.bias.shape[0] = 33;
    ASSERT_REFUSED(ctx, nbl__layernorm_family.forward, &layer, NBL_ERROR_SHAPE, "layernorm", "b", "[33]",
                   "[32]");
    free_layer(&layer);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm_agrees_with_the_reference_whatever_the_shape_dtype_and_threads),
        cmocka_unit_test(layernorm_agrees_with_the_reference_whatever_the_shape_dtype_and_threads),
        cmocka_unit_test(a_mean_far_from_zero_does_not_hurt_the_variance),
        cmocka_unit_test(the_rounding_is_that_of_the_model),
        cmocka_unit_test(large_f16_values_do_not_overflow),
        cmocka_unit_test(a_nan_stays_in_its_row),
        cmocka_unit_test(gradients_are_added_or_left_out_as_asked),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
