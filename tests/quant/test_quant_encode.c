/* test_quant_encode.c - quantizing: every code against the definition of its rule, on every instruction
 * set, for all source dtypes; thresholds, ties and values that are not numbers. */
#include "quant/test_quant.h"

/* ---- the rules, written down a second time ---- */

static unsigned nf4_rule(float y)
{
    unsigned code = 0;
    for (int i = 0; i < 15; i++)
        code += y > (float)(((double)nbl__nf4_table[i] + (double)nbl__nf4_table[i + 1]) / 2);
    return code;
}

/* By mid-points of the table; of two codes at the same distance the one of the smaller value. */
static unsigned fp4_rule(float y)
{
    static const unsigned codes[8] = {0, 1, 6, 7, 4, 5, 2, 3};
    unsigned rank = 0;
    for (int i = 0; i < 7; i++) {
        double sum = (double)nbl__fp4_table[codes[i]] + (double)nbl__fp4_table[codes[i + 1]];
        float middle = (float)(sum / 2);
        rank += y < 0 ? -y >= middle : y > middle;
    }
    return codes[rank] + (y < 0 ? 8 : 0);
}

static unsigned e2m1_rule(float y) /* nearest, ties to the even code, sign kept, NaN to 0 */
{
    static const double grid[8] = {0, 0.5, 1, 1.5, 2, 3, 4, 6};
    unsigned best = 0;
    if (isnan(y)) return 0;
    for (unsigned c = 1; c < 8; c++) {
        double d = fabs(fabs((double)y) - grid[c]) - fabs(fabs((double)y) - grid[best]);
        if (d < 0 || (d == 0 && c % 2 == 0) || (isinf(y) && c == 7)) best = c;
    }
    return best + (signbit(y) ? 8 : 0);
}

static void check_fourbit(nbl_isa isa, nbl_format format, int64_t block, nbl_dtype dtype, const void *values,
                          int64_t n)
{
    int64_t count = nbl__ceil_div(n, block), bytes = (n + 1) / 2, bad = 0;
    uint8_t *codes = guarded_alloc(bytes, 1);
    float *scales = guarded_alloc(4 * count, 0);
    int64_t told = nbl__fourbit_encode(isa, format, block, dtype, values, n, codes, scales);
    for (int64_t b = 0; b < count; b++) {
        float absmax = 0;
        int64_t end = nbl__min_i64(n, (b + 1) * block);
        for (int64_t i = b * block; i < end; i++) {
            float x = value_at(dtype, values, i);
            if (fabsf(x) > absmax) absmax = fabsf(x);
            bad += !isfinite(x);
        }
        if (absmax < 0x1p-126f) absmax = 0;
        if (scales[b] != absmax)
            fail_msg("%s: scale %d is %a, expected %a", nbl__isa_name(isa), (int)b, scales[b], absmax);
        for (int64_t i = b * block; i < end + (end == n && n % 2); i++) { /* with the spare nibble */
            volatile float y = absmax == 0 ? 0 : (i < n ? value_at(dtype, values, i) : 0) * (1 / absmax);
            unsigned want = absmax == 0 ? 0 : format == NBL_FORMAT_NF4 ? nf4_rule(y) : fp4_rule(y);
            unsigned got = codes[i / 2] >> (i % 2 ? 0 : 4) & 15;
            if (got != want)
                fail_msg("%s block %d from %s, %s: element %d of %d (%a) has code %u, expected %u",
                         nbl_format_name(format), (int)block, nbl_dtype_name(dtype), nbl__isa_name(isa),
                         (int)i, (int)n, y, got, want);
        }
    }
    assert_int_equal(told, bad);
    guarded_free(codes, bytes, 1);
    guarded_free(scales, 4 * count, 0);
}

static void nf4_and_fp4_follow_their_rules_for_every_block_dtype_and_length(void **state)
{
    (void)state;
    for (int b = 0; b < COUNT(blocks); b++)
        for (int d = 0; d < 3; d++) {
            static const int64_t extra[] = {0, 1, 2, 31, 33, 63};
            int64_t max = 2 * blocks[b] + 64;
            uint8_t *memory = malloc((size_t)(4 * max + 1)), *values = memory + 1; /* misaligned */
            for (int64_t i = 0; i < max; i++)
                set_value(dtypes[d], values, i, random_normal((uint32_t)b, i) * 0.02f);
            for (int e = 0; e < COUNT(extra); e++) FOR_EACH_ISA(isa)
                {
                    check_fourbit(isa, NBL_FORMAT_NF4, blocks[b], dtypes[d], values,
                                  2 * blocks[b] + extra[e]);
                    check_fourbit(isa, NBL_FORMAT_FP4, blocks[b], dtypes[d], values, blocks[b] + extra[e]);
                    check_fourbit(isa, NBL_FORMAT_NF4, blocks[b], dtypes[d], values,
                                  extra[e]); /* shorter than a block */
                }
            free(memory);
        }
}

static void a_value_on_a_threshold_takes_the_lower_code_and_one_ulp_above_the_upper(void **state)
{
    (void)state;
    for (int exponent = -60; exponent <= 60; exponent += 15) { /* a power of two scales exactly */
        float values[64] = {0}, scale;
        uint8_t codes[32];
        for (int i = 0; i < 15; i++) {
            float t = (float)(((double)nbl__nf4_table[i] + (double)nbl__nf4_table[i + 1]) / 2);
            values[3 * i] = ldexpf(nextafterf(t, -9), exponent);
            values[3 * i + 1] = ldexpf(t, exponent);
            values[3 * i + 2] = ldexpf(nextafterf(t, 9), exponent);
        }
        values[63] = -ldexpf(1, exponent);
        FOR_EACH_ISA(isa)
        {
            nbl__fourbit_encode(isa, NBL_FORMAT_NF4, 64, NBL_DTYPE_F32, values, 64, codes, &scale);
            assert_true(scale == ldexpf(1, exponent));
            for (int i = 0; i < 45; i++)
                assert_int_equal(codes[i / 2] >> (i % 2 ? 0 : 4) & 15, i / 3 + (i % 3 == 2));
            for (int fp4 = 0; fp4 < 2; fp4++) /* fp4's own thresholds: in check_fourbit's rule */
                check_fourbit(isa, fp4 ? NBL_FORMAT_FP4 : NBL_FORMAT_NF4, 64, NBL_DTYPE_F32, values, 64);
        }
        static const uint32_t steps[7] = {0x3b2aaaab, 0x3db00000, 0x3e555556, 0x3e955556,
                                          0x3ed55556, 0x3f155556, 0x3f555556};
        for (int i = 0; i < 63; i++)
            values[i] = ldexpf(nbl__from_bits(steps[i % 7] + (uint32_t)(i / 7 % 3) - 1), exponent) *
                        (i > 30 ? -1 : 1);
        FOR_EACH_ISA(isa) check_fourbit(isa, NBL_FORMAT_FP4, 64, NBL_DTYPE_F32, values, 64);
    }
}

/* Codes that bitsandbytes 0.50.2 gives on the CPU, for values on and beside the mid-points. */
static void fp4_takes_the_smaller_value_at_exact_ties_as_bitsandbytes_does(void **state)
{
    (void)state;
    static const uint32_t middles[7] = {0x3b2aaaab, 0x3db00000, 0x3e555556, 0x3e955556,
                                        0x3ed55556, 0x3f155556, 0x3f555556};
    static const uint8_t lower[7] = {0, 1, 6, 7, 4, 5, 2}, upper[7] = {1, 6, 7, 4, 5, 2, 3};
    float values[64] = {0}, scale;
    uint8_t codes[32];
    for (int i = 0; i < 7; i++) {
        values[4 * i] = nbl__from_bits(middles[i]);
        values[4 * i + 1] = nbl__from_bits(middles[i] + 1);
        values[4 * i + 2] = -nbl__from_bits(middles[i]);
        values[4 * i + 3] = -nbl__from_bits(middles[i] - 1);
    }
    values[63] = 1;
    FOR_EACH_ISA(isa)
    {
        nbl__fourbit_encode(isa, NBL_FORMAT_FP4, 64, NBL_DTYPE_F32, values, 64, codes, &scale);
        for (int i = 0; i < 7; i++) {
            assert_int_equal(codes[2 * i], lower[i] << 4 | upper[i]);
            assert_int_equal(codes[2 * i + 1], (upper[i] | 8) << 4 | lower[i] | 8);
        }
    }
}

static void patterns_of_any_bits_follow_the_rules(void **state)
{
    (void)state;
    enum { N = 64 * 400 + 5 };
    uint32_t *values = malloc(4 * N);
    for (int64_t i = 0; i < N; i++) {
        values[i] = random_word(51, i);
        if (i / 64 % 4 == 1) values[i] &= 0x80ffffff;                           /* subnormal or hardly more */
        if (i / 64 % 4 == 2) values[i] = (values[i] & 0x83ffffff) | 0x7c000000; /* huge, some NaN */
        if (i / 64 % 4 == 3) values[i] &= 0xbfffffff;                           /* no NaN, no infinity */
    }
    FOR_EACH_ISA(isa)
    {
        for (int d = 0; d < 3; d++) {
            check_fourbit(isa, NBL_FORMAT_NF4, 64, dtypes[d], values, N);
            check_fourbit(isa, NBL_FORMAT_FP4, 64, dtypes[d], values, N);
            check_fourbit(isa, NBL_FORMAT_NF4, 4096, dtypes[d], values, N);
        }
    }
    free(values);
}

/* ---- int8 ---- */

static void check_int8(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t rows, int64_t columns)
{
    int8_t *codes = guarded_alloc(rows * columns, 1);
    float *scales = guarded_alloc(4 * rows, 0);
    int64_t told = nbl__int8_encode(isa, dtype, values, rows, columns, codes, scales), bad = 0;
    for (int64_t r = 0; r < rows; r++) {
        float absmax = 0;
        for (int64_t c = 0; c < columns; c++) {
            float a = nbl__f16_to_f32(nbl__f32_to_f16(value_at(dtype, values, r * columns + c)));
            if (fabsf(a) > absmax) absmax = fabsf(a);
            bad += !isfinite(a);
        }
        assert_true(scales[r] == absmax);
        for (int64_t c = 0; c < columns; c++) {
            float a = nbl__f16_to_f32(nbl__f32_to_f16(value_at(dtype, values, r * columns + c)));
            volatile float reciprocal = absmax == 0 ? 0 : 1 / absmax, factor = reciprocal * 127,
                           y = a * factor;
            int want = absmax == 0 || isnan(y) ? 0 : (int)nearbyint(y);
            if (codes[r * columns + c] != want)
                fail_msg("int8 from %s, %s: row %d column %d has code %d, expected %d", nbl_dtype_name(dtype),
                         nbl__isa_name(isa), (int)r, (int)c, codes[r * columns + c], want);
        }
    }
    assert_int_equal(told, bad);
    guarded_free(codes, rows * columns, 1);
    guarded_free(scales, 4 * rows, 0);
}

static void int8_rows_follow_the_rule_for_every_dtype_and_length(void **state)
{
    (void)state;
    static const int64_t columns[] = {0, 1, 15, 31, 32, 33, 100, 4096, 9001};
    uint8_t *memory = malloc(4 * 5 * 9001 + 1), *values = memory + 1;
    for (int d = 0; d < 3; d++) {
        for (int64_t i = 0; i < 5 * 9001; i++) set_value(dtypes[d], values, i, random_normal(61, i));
        for (int c = 0; c < COUNT(columns); c++)
            FOR_EACH_ISA(isa) check_int8(isa, dtypes[d], values, 5, columns[c]);
    }
    free(memory);
}

static void int8_halves_round_to_even_and_values_that_f16_cannot_hold_count_as_infinite(void **state)
{
    (void)state;
    enum { C = 300 };
    float values[6 * C] = {0};
    for (int i = 0; i < C; i++) {
        values[i] = (float)(i % 254) / 2 - 63.5f;     /* absmax 127: codes lie on halves */
        values[C + i] = random_normal(62, i) * 1e-6f; /* f16 subnormals */
        values[2 * C + i] = random_normal(62, i);
        values[3 * C + i] = random_normal(62, i);
        values[4 * C + i] = (float)(i - 150) * 0x1p-26f; /* mostly zero in f16 */
    }
    values[0] = 127;
    values[2 * C + 17] = NAN;
    values[3 * C + 290] = -70000;
    values[3 * C + 291] = NAN;
    FOR_EACH_ISA(isa) check_int8(isa, NBL_DTYPE_F32, values, 6, C);
    int8_t codes[C];
    float scale;
    FOR_EACH_ISA(isa)
    {
        assert_int_equal(nbl__int8_encode(isa, NBL_DTYPE_F32, values + 3 * C, 1, C, codes, &scale), 2);
        assert_true(scale == INFINITY);
        for (int i = 0; i < C; i++) assert_int_equal(codes[i], 0);
    }
}

static void int8_patterns_of_any_bits_follow_the_rule(void **state)
{
    (void)state;
    enum { R = 300, C = 97 };
    uint32_t *values = malloc(4 * R * C);
    for (int64_t i = 0; i < R * C; i++)
        values[i] = random_word(63, i) & (i / C % 2 ? 0xbfffbfff : 0xffffffff);
    FOR_EACH_ISA(isa) for (int d = 0; d < 3; d++) check_int8(isa, dtypes[d], values, R, C);
    free(values);
}

/* ---- mxfp4 ---- */

static void check_mxfp4(nbl_isa isa, nbl_dtype dtype, const void *values, int64_t n)
{
    uint8_t *codes = guarded_alloc(n / 2, 1), *scales = guarded_alloc(n / 32, 1);
    int64_t told = nbl__mxfp4_encode(isa, dtype, values, 1, n, codes, scales), bad = 0;
    for (int64_t b = 0; b < n / 32; b++) {
        float absmax = 0;
        for (int64_t i = 32 * b; i < 32 * b + 32; i++) {
            float x = value_at(dtype, values, i);
            if (fabsf(x) > absmax) absmax = fabsf(x);
            bad += !isfinite(x);
        }
        int e = isinf(absmax) ? 254 : absmax == 0 ? 0 : ilogb((double)absmax) - 2 + 127;
        e = e < 0 ? 0 : e;
        assert_int_equal(scales[b], e);
        for (int64_t i = 32 * b; i < 32 * b + 32; i++) {
            double y = ldexp((double)value_at(dtype, values, i), 127 - e);
            unsigned want = isnan(y) ? 0 : e2m1_rule(fabs(y) > 1e9 ? (float)copysign(INFINITY, y) : (float)y);
            unsigned got = codes[i / 2] >> (i % 2 ? 4 : 0) & 15;
            if (got != want)
                fail_msg("mxfp4 from %s, %s: element %d, scaled %a, has code %u, expected %u",
                         nbl_dtype_name(dtype), nbl__isa_name(isa), (int)i, y, got, want);
        }
    }
    assert_int_equal(told, bad);
    guarded_free(codes, n / 2, 1);
    guarded_free(scales, n / 32, 1);
}

static void mxfp4_codes_are_the_nearest_with_ties_to_the_even_code(void **state)
{
    (void)state;
    enum { N = 32 * 300 };
    uint8_t *memory = malloc(4 * N + 1), *values = memory + 1;
    for (int d = 0; d < 3; d++) {
        for (int64_t i = 0; i < N; i++) { /* every other block lies on a grid of ties */
            float x = i / 32 % 2 ? random_normal(71, i) : (float)(random_word(71, i) % 65) / 8 - 4;
            set_value(dtypes[d], values, i, x * ldexpf(1, (int)(i / 32 % 12) - 6));
        }
        FOR_EACH_ISA(isa) check_mxfp4(isa, dtypes[d], values, N);
    }
    for (int64_t i = 0; i < N; i++) { /* any bits at all */
        uint32_t word = random_word(72, i) & (i / 32 % 3 ? 0xbfffffff : i / 32 % 2 ? 0x80ffffff : 0xffffffff);
        memcpy(values + 4 * i, &word, 4);
    }
    FOR_EACH_ISA(isa) for (int d = 0; d < 3; d++) check_mxfp4(isa, dtypes[d], values, N);
    free(memory);
}

static void mxfp4_saturates_infinities_and_keeps_the_sign_of_zeros(void **state)
{
    (void)state;
    float values[4 * 32] = {0};
    for (int i = 0; i < 64; i++) values[i] = ldexpf(random_normal(76, i), 126); /* near the top */
    values[3] = INFINITY, values[4] = -INFINITY, values[5] = NAN;               /* block 0 */
    values[40] = NAN;                                            /* block 1: the rest is unharmed */
    for (int i = 64; i < 96; i++) values[i] = i % 2 ? -0.0f : 0; /* block 2; block 3: zeros */
    values[97] = nbl__from_bits(0xffc00000);
    FOR_EACH_ISA(isa)
    {
        uint8_t codes[64], scales[4];
        check_mxfp4(isa, NBL_DTYPE_F32, values, 128);
        assert_int_equal(nbl__mxfp4_encode(isa, NBL_DTYPE_F32, values, 1, 128, codes, scales), 5);
        assert_int_equal(scales[0], 254);
        assert_int_equal(codes[1] >> 4, 7);
        assert_int_equal(codes[2], 15);
        assert_int_equal(scales[2], 0);
        assert_int_equal(codes[32], 0x80);
        assert_int_equal(codes[48], 0);
    }
}

static void values_that_were_mxfp4_survive_exactly_under_every_scale(void **state)
{
    (void)state;
    for (int e = 0; e < 256; e++)
        for (unsigned largest = 0; largest < 8; largest++) { /* blocks that do not use the whole grid */
            float values[32], again[32];
            uint8_t codes[16], scale;
            for (int i = 0; i < 32; i++) {
                static const float grid[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
                unsigned code = i == 5 ? largest : random_word(73, e * 999 + i) % (largest + 1);
                values[i] = ldexpf(grid[code], e - 127) * (random_word(74, e * 999 + i) % 2 ? -1 : 1);
            }
            bool finite = true;
            for (int i = 0; i < 32; i++) finite = finite && isfinite(values[i]);
            if (!finite) continue;
            FOR_EACH_ISA(isa)
            {
                nbl__mxfp4_encode(isa, NBL_DTYPE_F32, values, 1, 32, codes, &scale);
                nbl_weight w = {.format = NBL_FORMAT_MXFP4,
                                .rank = 1,
                                .shape = {32},
                                .data = codes,
                                .block = 32,
                                .scale_codes = &scale};
                nbl__dequantize(isa, &w, 0, 32, NBL_DTYPE_F32, again, false);
                assert_same_bytes(again, values, sizeof values, "scale %d, largest code %u", e,
                                  largest); /* also -0 */
            }
        }
}

static void mxfp4_along_columns_equals_mxfp4_of_the_transposed_matrix(void **state)
{
    (void)state;
    enum { IN = 2080, OUT = 7 };
    uint8_t *matrix = malloc(4 * IN * OUT), *transposed = malloc(4 * IN * OUT);
    uint8_t want[IN / 2], got[IN / 2], want_scales[IN / 32], got_scales[IN / 32];
    for (int d = 0; d < 3; d++) {
        int64_t size = (int64_t)nbl__size_of(dtypes[d]);
        for (int64_t i = 0; i < IN * OUT; i++) {
            set_value(dtypes[d], matrix, i, random_normal(75, i));
            set_value(dtypes[d], transposed, i % OUT * IN + i / OUT, random_normal(75, i));
        }
        FOR_EACH_ISA(isa)
        for (int64_t o = 0; o < OUT; o++) {
            nbl__mxfp4_encode(isa, dtypes[d], matrix + o * size, OUT, IN, got, got_scales);
            nbl__mxfp4_encode(isa, dtypes[d], transposed + o * IN * size, 1, IN, want, want_scales);
            assert_same_bytes(got, want, sizeof got, "codes");
            assert_same_bytes(got_scales, want_scales, sizeof got_scales, "scales");
        }
    }
    free(matrix), free(transposed);
}

/* ---- 8-bit dynamic maps and nested scales ---- */

static void a_map_entry_is_its_own_nearest_and_ties_go_to_the_even_index(void **state)
{
    (void)state;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        const float *map = nbl_dynamic_map(is_signed);
        for (int i = 0; i < 256; i++) {
            assert_int_equal(nbl__dynamic8_code(map, map[i]), i);
            if (i == 255) break;
            assert_true(map[i] < map[i + 1]);
            float middle = (map[i] + map[i + 1]) * 0.5f;
            assert_int_equal(nbl__dynamic8_code(map, middle), i + i % 2);
            assert_int_equal(nbl__dynamic8_code(map, nextafterf(middle, -9)), i);
            assert_int_equal(nbl__dynamic8_code(map, nextafterf(middle, 9)), i + 1);
        }
        assert_int_equal(nbl__dynamic8_code(map, NAN), 0);
        assert_int_equal(nbl__dynamic8_code(map, INFINITY), 255);
        assert_int_equal(nbl__dynamic8_code(map, -INFINITY), 0);
        assert_int_equal(nbl__dynamic8_code(map, 2), 255);
    }
}

static void dynamic8_gives_the_same_bits_on_all_instruction_sets_for_any_block(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 7, 64, 256, 300, 4096, 100000};
    enum { N = 10007 };
    float *values = malloc(4 * N), *back = malloc(4 * N), *want_back = malloc(4 * N);
    uint8_t *want = malloc(N);
    float *want_scales = malloc(4 * N);
    for (int64_t i = 0; i < N; i++) {
        uint32_t word = random_word(81, i);
        values[i] = i / 700 % 2 ? nbl__from_bits(word) : random_normal(82, i) * powf(10, -(float)(word % 7));
        if (i / 256 == 3) values[i] = 0;
    }
    for (int is_signed = 0; is_signed < 2; is_signed++)
        for (int s = 0; s < COUNT(sizes); s++) {
            const float *map = nbl_dynamic_map(is_signed);
            int64_t count = nbl__ceil_div(N, sizes[s]);
            nbl__dynamic8_encode(NBL_ISA_SCALAR, map, sizes[s], values, N, want, want_scales);
            nbl__dynamic8_dequantize(NBL_ISA_SCALAR, map, sizes[s], want, want_scales, N, want_back);
            FOR_EACH_ISA(isa)
            {
                uint8_t *codes = guarded_alloc(N, 0);
                float *scales = guarded_alloc(4 * count, 0);
                nbl__dynamic8_encode(isa, map, sizes[s], values, N, codes, scales);
                assert_same_bytes(codes, want, N, "block %d codes %s", (int)sizes[s], nbl__isa_name(isa));
                assert_same_bytes(scales, want_scales, 4 * count, "block %d scales", (int)sizes[s]);
                nbl__dynamic8_dequantize(isa, map, sizes[s], codes, scales, N, back);
                assert_same_bytes(back, want_back, 4 * N, "block %d values", (int)sizes[s]);
                guarded_free(codes, N, 0);
                guarded_free(scales, 4 * count, 0);
            }
        }
    free(values), free(back), free(want_back), free(want), free(want_scales);
}

static void nested_scales_keep_the_mean_and_come_back_close(void **state)
{
    (void)state;
    enum { N = 1000 };
    float scales[N], nested[4], back[N];
    uint8_t codes[N];
    double sum = 0;
    for (int i = 0; i < N; i++) sum += scales[i] = 0.02f + 0.003f * random_normal(91, i);
    float offset = nbl__nested_offset(scales, N);
    assert_true(offset == (float)(sum / N));
    FOR_EACH_ISA(isa)
    {
        nbl__nested_encode(isa, false, scales, N, offset, codes, nested);
        nbl_weight w = {.scale_codes = codes,
                        .nested_scales = nested,
                        .nested_table = nbl__dynamic_map_signed,
                        .nested_block = 256,
                        .nested_offset = offset};
        nbl__nested_dequantize(&w, 0, N, back);
        for (int i = 0; i < N; i++) {
            assert_true(fabsf(back[i] - scales[i]) <= nested[i / 256] / 100);
            assert_true(fabsf(scales[i] - offset) <= nested[i / 256]);
        }
    }
    for (int i = 0; i < N; i++) scales[i] = 0.5f; /* all equal: nothing left to store */
    assert_true(nbl__nested_offset(scales, N) == 0.5f);
    nbl__nested_encode(levels(), false, scales, N, 0.5f, codes, nested);
    for (int i = 0; i < 4; i++) assert_true(nested[i] == 0);
    assert_true(nbl__nested_offset(NULL, 0) == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_and_fp4_follow_their_rules_for_every_block_dtype_and_length),
        cmocka_unit_test(fp4_takes_the_smaller_value_at_exact_ties_as_bitsandbytes_does),
        cmocka_unit_test(a_value_on_a_threshold_takes_the_lower_code_and_one_ulp_above_the_upper),
        cmocka_unit_test(patterns_of_any_bits_follow_the_rules),
        cmocka_unit_test(int8_rows_follow_the_rule_for_every_dtype_and_length),
        cmocka_unit_test(int8_halves_round_to_even_and_values_that_f16_cannot_hold_count_as_infinite),
        cmocka_unit_test(int8_patterns_of_any_bits_follow_the_rule),
        cmocka_unit_test(mxfp4_codes_are_the_nearest_with_ties_to_the_even_code),
        cmocka_unit_test(mxfp4_saturates_infinities_and_keeps_the_sign_of_zeros),
        cmocka_unit_test(values_that_were_mxfp4_survive_exactly_under_every_scale),
        cmocka_unit_test(mxfp4_along_columns_equals_mxfp4_of_the_transposed_matrix),
        cmocka_unit_test(a_map_entry_is_its_own_nearest_and_ties_go_to_the_even_index),
        cmocka_unit_test(dynamic8_gives_the_same_bits_on_all_instruction_sets_for_any_block),
        cmocka_unit_test(nested_scales_keep_the_mean_and_come_back_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
