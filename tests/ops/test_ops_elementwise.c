/* test_ops_elementwise.c - add, cast, scale, gated, check_finite: fast against reference, infinities and NaN,
 * the message of check_finite, refusals. */
#include "ops/op_runner.h"

#include "ops/elementwise/elementwise.h"

static const int64_t sizes[] = {0, 1, 7, 16, 33, 100003};

static void sums_products_and_casts_have_the_bits_of_the_reference(void **state)
{
    (void)state;
    for (int s = 0; s < 6; s++)
        for (int d = 0; d < 3; d++) {
            nbl_dtype dtype = compute_dtypes[d];
            nbl_tensor x = random_tensor(dtype, 1, 1, SHAPE(sizes[s])),
                       y = random_tensor(dtype, 2, 1, SHAPE(sizes[s]));
            if (sizes[s] > 20) set_value(&x, 17, NAN), set_value(&x, 5, -INFINITY), set_value(&x, 6, 1e-7f);
            nbl__add a = {.dtype = dtype, .a = x, .b = y}, b = a;
            compare_with_reference(&nbl__add_family, &a, &b, 0);
            nbl__scale e = {.dtype = dtype, .factor = 1 / 3.0f, .x = x}, f = e;
            compare_with_reference(&nbl__scale_family, &e, &f, 0);
            for (int to = 0; to < 3; to++) {
                nbl__cast g = {.to = compute_dtypes[to], .x = x}, h = g;
                compare_with_reference(&nbl__cast_family, &g, &h, 0);
            }
            free(x.data);
            free(y.data);
        }
}

static nbl__gated make_gated(int dtype, int act, int64_t n)
{
    nbl_dtype d = compute_dtypes[dtype];
    return (nbl__gated){.dtype = d,
                        .act = act,
                        .gate = random_tensor(d, 1, 3, 1, &n),
                        .up = random_tensor(d, 2, 1, 1, &n),
                        .dh = random_tensor(d, 3, 1, 1, &n)};
}

static void free_gated(nbl__gated *a)
{
    free(a->gate.data);
    free(a->up.data);
    free(a->dh.data);
}

static void gated_agrees_with_the_reference_for_every_activation(void **state)
{
    (void)state;
    for (int s = 0; s < 6; s++)
        for (int d = 0; d < 3; d++)
            for (int act = 0; act < 3; act++) {
                nbl__gated a = make_gated(d, act, sizes[s]), b = a;
                compare_with_reference(&nbl__gated_family, &a, &b, dtype_bounds[d]);
                free_gated(&a);
            }
}

static void extreme_gates_stay_what_they_are(void **state)
{
    (void)state;
    static const float extremes[] = {0,     -0.0f,  1e-30f, 12,     -12, 60,       -60, 90,   -90,
                                     1e19f, -1e19f, 3e38f,  -3e38f, NAN, INFINITY, 104, -104, 5e-39f};
    for (int act = 0; act < 3; act++) {
        nbl__gated a = make_gated(0, act, 18), b;
        for (int i = 0; i < 18; i++) {
            set_value(&a.gate, i, extremes[i]);
            set_value(&a.up, i, 1);
            set_value(&a.dh, i, 1);
        }
        b = a;
        nbl_context *ctx = new_context();
        run_both(ctx, &nbl__gated_family, &a, "ref");
        run_both(ctx, &nbl__gated_family, &b, NULL);
        for (int i = 0; i < 18; i++) {
            const nbl_tensor *fast[] = {&b.h, &b.dgate, &b.dup}, *exact[] = {&a.h, &a.dgate, &a.dup};
            for (int k = 0; k < 3; k++) {
                double x = value_at(fast[k], i), y = value_at(exact[k], i);
                if (!(x == y || (isnan(x) && isnan(y)) || fabs(x - y) < 3e-6 * (1 + fabs(y))))
                    fail_msg("act %d, gate %g, output %d: %g, not %g", act, (double)extremes[i], k, x, y);
            }
        }
        free_outputs(&nbl__gated_family, &a);
        free_outputs(&nbl__gated_family, &b);
        free_gated(&a);
        nbl_context_destroy(ctx);
    }
}

static void an_f16_product_that_is_too_large_is_infinite(void **state)
{
    (void)state;
    nbl__gated a = make_gated(1, NBL_ACT_SILU, 40);
    nbl_context *ctx = new_context();
    set_value(&a.gate, 21, 3000);
    set_value(&a.up, 21, -3000);
    run_both(ctx, &nbl__gated_family, &a, NULL);
    for (int i = 0; i < 40; i++) assert_int_equal(isinf(value_at(&a.h, i)) != 0, i == 21);
    free_outputs(&nbl__gated_family, &a);
    free_gated(&a);
    nbl_context_destroy(ctx);
}

static void check_finite_counts_and_finds_the_first(void **state)
{
    (void)state;
    static const char *const isas[] = {"scalar", "avx2", "avx512"};
    static const int64_t indices[] = {0, 3, 4095, 4096, 32767, 32768, 70000, 100002};
    for (int d = 0; d < 3; d++)
        for (int i = 0; i < 3; i++)
            for (int threads = 1; threads <= 2; threads++) {
                nbl_context *ctx = context_of(isas[i], threads);
                nbl__finite a = {.x = random_tensor(compute_dtypes[d], 1, 1, SHAPE(100003))};
                set_value(&a.x, 50,
                          compute_dtypes[d] == NBL_DTYPE_F16 ? 65504 : 0x1.fep127f); /* the largest */
                set_value(&a.x, 51, -1e-7f);
                run_both(ctx, &nbl__check_finite_family, &a, NULL);
                assert_int_equal(*(int64_t *)a.first.data, -1);
                assert_int_equal(*(int64_t *)a.count.data, 0);
                for (int p = 7; p >= 0; p--) {
                    float bad[] = {NAN, INFINITY, -INFINITY};
                    set_value(&a.x, indices[p], bad[p % 3]);
                    assert_ok(ctx, run_one(ctx, &nbl__check_finite_family.forward, &a, p & 1 ? "ref" : NULL));
                    assert_int_equal(*(int64_t *)a.first.data, indices[p]);
                    assert_int_equal(*(int64_t *)a.count.data, 8 - p);
                }
                free_outputs(&nbl__check_finite_family, &a);
                free(a.x.data);
                nbl_context_destroy(ctx);
            }
}

static void check_finite_says_what_where_and_how_many(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tensor t = random_tensor(NBL_DTYPE_BF16, 1, 1, SHAPE(40, 50));
    assert_ok(ctx, nbl__check_finite(ctx, "step 7", "layers.3.lora_a", &t));
    set_value(&t, 1234, -INFINITY);
    set_value(&t, 1999, NAN);
    assert_int_equal(nbl__check_finite(ctx, "step 7", "layers.3.lora_a", &t), NBL_ERROR_ARGUMENT);
    assert_string_equal(nbl_error_message(ctx),
                        "step 7: layers.3.lora_a (bf16 [40, 50]) is -inf at index 1234; "
                        "2 of 2000 values are not finite");
    t.shape[0] = 0; /* nothing is finite */
    assert_ok(ctx, nbl__check_finite(ctx, "step 7", "nothing", &t));
    t.dtype = NBL_DTYPE_I32;
    assert_int_equal(nbl__check_finite(ctx, "step 7", "integers", &t), NBL_ERROR_DTYPE);
    free(t.data);
    nbl_context_destroy(ctx);
}

static void mismatches_name_operator_tensor_dtypes_and_shapes(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tensor x = random_tensor(NBL_DTYPE_F32, 1, 1, SHAPE(4, 8)), y = x, z = x;
    y.shape[1] = 9;
    z.dtype = NBL_DTYPE_F16;
    nbl__add add = {.dtype = NBL_DTYPE_F32, .a = x, .b = y};
    ASSERT_REFUSED(ctx, nbl__add_family.forward, &add, NBL_ERROR_SHAPE, "add", "b", "[4, 9]", "[4, 8]");
    add.b = z;
    ASSERT_REFUSED(ctx, nbl__add_family.forward, &add, NBL_ERROR_DTYPE, "add", "b", "f16", "f32");
    nbl__cast cast = {.to = NBL_DTYPE_I8, .x = x};
    ASSERT_REFUSED(ctx, nbl__cast_family.forward, &cast, NBL_ERROR_DTYPE, "cast", "i8");
    nbl__scale scale = {.dtype = NBL_DTYPE_BF16, .x = x};
    ASSERT_REFUSED(ctx, nbl__scale_family.forward, &scale, NBL_ERROR_DTYPE, "scale", "x", "f32", "bf16");
    nbl__gated gated = {.dtype = NBL_DTYPE_F32, .gate = x, .up = y};
    ASSERT_REFUSED(ctx, nbl__gated_family.forward, &gated, NBL_ERROR_SHAPE, "gated", "up", "[4, 9]",
                   "[4, 8]");
    gated.up = x;
    gated.dh = z;
    ASSERT_REFUSED(ctx, nbl__gated_family.backward, &gated, NBL_ERROR_DTYPE, "dh", "f16", "f32");
    free(x.data);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_products_and_casts_have_the_bits_of_the_reference),
        cmocka_unit_test(gated_agrees_with_the_reference_for_every_activation),
        cmocka_unit_test(extreme_gates_stay_what_they_are),
        cmocka_unit_test(an_f16_product_that_is_too_large_is_infinite),
        cmocka_unit_test(check_finite_counts_and_finds_the_first),
        cmocka_unit_test(check_finite_says_what_where_and_how_many),
        cmocka_unit_test(mismatches_name_operator_tensor_dtypes_and_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
