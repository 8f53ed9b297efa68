/* test_quant_convert.c - f32, f16 and bf16: exact, rounded to nearest even, the same bits on every
 * instruction set. */
#include "quant/test_quant.h"

static void every_f16_and_bf16_pattern_widens_exactly_and_comes_back(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint16_t h = (uint16_t)i;
        uint32_t exponent = h >> 10 & 31, mantissa = h & 1023;
        double f16 = exponent == 0    ? ldexp(mantissa, -24)
                     : exponent == 31 ? (mantissa ? NAN : INFINITY)
                                      : ldexp(1024 + mantissa, (int)exponent - 25);
        float got = nbl__f16_to_f32(h);
        assert_true(isnan(f16) ? isnan(got) : fabsf(got) == f16);
        assert_int_equal(signbit(got) != 0, h >> 15);
        assert_int_equal(nbl__f32_to_f16(got), isnan(got) ? h | 0x0200 : h);

        exponent = h >> 7 & 255, mantissa = h & 127;
        double bf16 = exponent == 0     ? ldexp(mantissa, -133)
                      : exponent == 255 ? (mantissa ? NAN : INFINITY)
                                        : ldexp(128 + mantissa, (int)exponent - 134);
        got = nbl__bf16_to_f32(h);
        assert_true(isnan(bf16) ? isnan(got) : fabsf(got) == bf16);
        assert_int_equal(signbit(got) != 0, h >> 15);
        assert_int_equal(nbl__f32_to_bf16(got), isnan(got) ? h | 0x0040 : h);
    }
}

static void check_rounding(uint32_t bits)
{
    float value = nbl__from_bits(bits);
    for (int d = 1; d < 3; d++) {
        uint16_t h = dtypes[d] == NBL_DTYPE_F16 ? nbl__f32_to_f16(value) : nbl__f32_to_bf16(value);
        float got = dtypes[d] == NBL_DTYPE_F16 ? nbl__f16_to_f32(h) : nbl__bf16_to_f32(h);
        double want = round_to(dtypes[d], value);
        bool same = isnan(value) ? isnan(got) : got == want && !signbit(got) == !signbit(value);
        if (!same) fail_msg("%08x to %s: %a, expected %a", bits, nbl_dtype_name(dtypes[d]), got, want);
    }
}

static void rounding_is_to_nearest_even_on_and_beside_every_boundary(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 65536; i++) {
        uint32_t bf16_half = (i << 16) + 0x8000; /* between two neighbours in bf16 */
        for (int d = -1; d <= 1; d++)
            check_rounding(bf16_half + (uint32_t)d), check_rounding((i << 16) + (uint32_t)d);
        float a = nbl__f16_to_f32((uint16_t)i), b = nbl__f16_to_f32((uint16_t)(i + 1));
        if (!isfinite(a) || !isfinite(b)) continue;
        uint32_t f16_half = nbl__bits_of((a + b) / 2);
        for (int d = -1; d <= 1; d++) check_rounding(f16_half + (uint32_t)d);
    }
    for (int d = -2; d <= 2; d++) check_rounding(nbl__bits_of(65520) + (uint32_t)d); /* where f16 overflows */
}

static void random_patterns_round_to_nearest_even(void **state)
{
    (void)state;
    for (int64_t i = 0; i < 1000000; i++) check_rounding(random_word(1, i));
}

static void all_instruction_sets_convert_to_the_same_bits(void **state)
{
    (void)state;
    enum { N = 100003 };
    uint32_t *bits = malloc(4 * N);
    float *wide = malloc(4 * N), *want_wide = malloc(4 * N);
    uint16_t *half = malloc(2 * N), *want = malloc(2 * N);
    for (int64_t i = 0; i < N; i++) bits[i] = random_word(2, i) | (i % 7 == 0 ? 0x7f800000 : 0);
    FOR_EACH_ISA(isa)
    {
        for (int d = 1; d < 3; d++) {
            nbl__from_f32(NBL_ISA_SCALAR, (float *)(void *)bits, dtypes[d], want, N);
            nbl__from_f32(isa, (float *)(void *)bits, dtypes[d], half, N);
            assert_same_bytes(half, want, 2 * N, "f32 to %s, %s", nbl_dtype_name(dtypes[d]),
                              nbl__isa_name(isa));
            nbl__to_f32(NBL_ISA_SCALAR, dtypes[d], bits, want_wide, N);
            nbl__to_f32(isa, dtypes[d], bits, wide, N);
            assert_same_bytes(wide, want_wide, 4 * N, "%s to f32, %s", nbl_dtype_name(dtypes[d]),
                              nbl__isa_name(isa));
        }
    }
    free(bits), free(wide), free(want_wide), free(half), free(want);
}

static void conversions_take_any_length_and_alignment_and_stay_inside(void **state)
{
    (void)state;
    uint8_t source[4 * 70 + 3];
    fill_random(3, source, sizeof source);
    FOR_EACH_ISA(isa)
    {
        for (int64_t n = 0; n < 67; n++) {
            int64_t shift = n % 4;
            for (int d = 0; d < 3; d++) {
                int64_t bytes = n * (int64_t)nbl__size_of(dtypes[d]);
                float *wide = guarded_alloc(4 * n, 0), aligned[67];
                nbl__to_f32(isa, dtypes[d], source + shift, wide, n);
                for (int64_t i = 0; i < n; i++) {
                    float want = value_at(dtypes[d], source + shift, i);
                    assert_same_bytes(wide + i, &want, 4, "element %d of %d", (int)i, (int)n);
                }
                guarded_free(wide, 4 * n, 0);
                for (int64_t i = 0; i < n; i++) aligned[i] = (float)i * 0.37f;
                uint8_t *narrow = guarded_alloc(bytes, shift);
                nbl__from_f32(isa, aligned, dtypes[d], narrow, n);
                for (int64_t i = 0; i < n; i++) {
                    uint8_t want[4];
                    set_value(dtypes[d], want, 0, aligned[i]);
                    assert_same_bytes(narrow + i * (int64_t)nbl__size_of(dtypes[d]), want,
                                      (int64_t)nbl__size_of(dtypes[d]), "element %d of %d", (int)i, (int)n);
                }
                guarded_free(narrow, bytes, shift);
            }
        }
    }
}

static void the_public_conversion_goes_through_f32_and_refuses_other_dtypes(void **state)
{
    (void)state;
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    enum { N = 3000 };
    uint16_t from[N], to[N];
    fill_random(4, from, sizeof from);
    assert_int_equal(nbl_convert(ctx, NBL_DTYPE_F16, from, NBL_DTYPE_BF16, to, N), NBL_OK);
    for (int i = 0; i < N; i++) assert_int_equal(to[i], nbl__f32_to_bf16(nbl__f16_to_f32(from[i])));
    assert_int_equal(nbl_convert(ctx, NBL_DTYPE_F16, from, NBL_DTYPE_F16, to, N), NBL_OK);
    assert_memory_equal(from, to, sizeof from); /* NaN payloads included */
    assert_int_equal(nbl_convert(ctx, NBL_DTYPE_F16, from, NBL_DTYPE_BF16, from, N), NBL_OK); /* in place */
    assert_int_equal(nbl_convert(ctx, NBL_DTYPE_F16, NULL, NBL_DTYPE_BF16, NULL, 0), NBL_OK);
    assert_int_equal(nbl_convert(ctx, NBL_DTYPE_F16, from, NBL_DTYPE_I8, to, N), NBL_ERROR_DTYPE);
    assert_non_null(strstr(nbl_error_message(ctx), "i8"));
    assert_int_equal(nbl_convert(ctx, NBL_DTYPE_F16, from, NBL_DTYPE_BF16, to, -1), NBL_ERROR_ARGUMENT);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_f16_and_bf16_pattern_widens_exactly_and_comes_back),
        cmocka_unit_test(rounding_is_to_nearest_even_on_and_beside_every_boundary),
        cmocka_unit_test(random_patterns_round_to_nearest_even),
        cmocka_unit_test(all_instruction_sets_convert_to_the_same_bits),
        cmocka_unit_test(conversions_take_any_length_and_alignment_and_stay_inside),
        cmocka_unit_test(the_public_conversion_goes_through_f32_and_refuses_other_dtypes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
