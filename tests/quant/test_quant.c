/* test_quant.c - bit for bit what bitsandbytes, transformers and torch compute: golden records, on every
 * instruction set of this machine. */
#include "quant/test_quant.h"

static golden_file golden;

static int open_golden(void **state)
{
    (void)state;
    golden = golden_open();
    return 0;
}

static int close_golden(void **state)
{
    (void)state;
    free(golden.data);
    return 0;
}

static void assert_dequantizes_to_golden(nbl_isa isa, const nbl_weight *w, int64_t n, bool signed_zero,
                                         const char *prefix)
{
    for (int d = 0; d < 3; d++) {
        char name[128];
        void *out = malloc((size_t)n * 4);
        snprintf(name, sizeof name, "%s/%s", prefix, nbl_dtype_name(dtypes[d]));
        nbl__dequantize(isa, w, 0, n, dtypes[d], out, false);
        assert_golden_crc(&golden, dtypes[d], out, n, signed_zero, name);
        free(out);
    }
}

static void nf4_and_fp4_of_every_block_dequantize_as_in_bitsandbytes(void **state) /* HAZARDS E10 */
{
    (void)state;
    for (int b = 0; b < COUNT(blocks); b++) {
        int64_t n = 2 * blocks[b] + (b % 2 ? 37 : 22), size;
        float *scales = golden_get(&golden, &size, "fourbit/%d/scales", (int)blocks[b]);
        assert_int_equal(size, 12);
        for (int fp4 = 0; fp4 < 2; fp4++) {
            char prefix[64];
            snprintf(prefix, sizeof prefix, "fourbit/%d/%s", (int)blocks[b], fp4 ? "fp4" : "nf4");
            void *codes = golden_get(&golden, &size, "%s/codes", prefix);
            nbl_weight w = {.format = fp4 ? NBL_FORMAT_FP4 : NBL_FORMAT_NF4,
                            .rank = 1,
                            .shape = {n},
                            .data = codes,
                            .block = blocks[b],
                            .scales = scales};
            FOR_EACH_ISA(isa) assert_dequantizes_to_golden(isa, &w, n, !fp4, prefix);
            free(codes);
        }
        free(scales);
    }
}

static void nf4_and_fp4_of_every_block_encode_to_the_bytes_of_bitsandbytes(void **state) /* HAZARDS E10 */
{
    (void)state;
    for (int b = 0; b < COUNT(blocks); b++) {
        int64_t n = 2 * blocks[b] + (b % 2 ? 37 : 22), size;
        void *source = NULL;
        nbl_dtype dtype = NBL_DTYPE_F32;
        for (int d = 0; d < 3 && !source; d++) {
            dtype = dtypes[d];
            source = golden_get(&golden, NULL, "fourbit/%d/source/%s", (int)blocks[b], nbl_dtype_name(dtype));
        }
        assert_non_null(source);
        float *scales = golden_get(&golden, &size, "fourbit/%d/scales", (int)blocks[b]);
        for (int fp4 = 0; fp4 < 2; fp4++) {
            const char *kind = fp4 ? "fp4" : "nf4";
            uint8_t *codes = golden_get(&golden, &size, "fourbit/%d/%s/codes", (int)blocks[b], kind);
            assert_int_equal(size, (n + 1) / 2);
            FOR_EACH_ISA(isa)
            {
                uint8_t *got = malloc((size_t)size);
                float got_scales[3];
                int64_t bad = nbl__fourbit_encode(isa, fp4 ? NBL_FORMAT_FP4 : NBL_FORMAT_NF4, blocks[b],
                                                  dtype, source, n, got, got_scales);
                assert_int_equal(bad, 0);
                assert_same_bytes(got_scales, scales, 12, "%s block %d scales", kind, (int)blocks[b]);
                assert_same_bytes(got, codes, size, "%s block %d %s", kind, (int)blocks[b],
                                  nbl__isa_name(isa));
                free(got);
            }
            free(codes);
        }
        free(source), free(scales);
    }
}

static void nested_scales_dequantize_with_two_roundings(void **state)
{
    (void)state;
    int64_t n = 32 * 300 + 15, size;
    float *offset = golden_get(&golden, &size, "nested/offset");
    assert_int_equal(size, 4);
    float *scales = golden_get(&golden, &size, "nested/scales"), got[301];
    assert_int_equal(size, sizeof got);
    nbl_weight w = {.format = NBL_FORMAT_NF4,
                    .rank = 1,
                    .shape = {n},
                    .block = 32,
                    .data = golden_get(&golden, &size, "nested/codes"),
                    .scale_codes = golden_get(&golden, &size, "nested/scale_codes"),
                    .nested_scales = golden_get(&golden, &size, "nested/nested_scales"),
                    .nested_table = nbl__dynamic_map_signed,
                    .nested_block = 256,
                    .nested_offset = *offset};
    nbl__nested_dequantize(&w, 0, 301, got);
    assert_same_bytes(got, scales, sizeof got, "scales");
    nbl__nested_dequantize(&w, 250, 10, got); /* across the nested block */
    assert_same_bytes(got, scales + 250, 40, "scales from 250");
    FOR_EACH_ISA(isa) assert_dequantizes_to_golden(isa, &w, n, true, "nested");
    free((void *)w.data), free((void *)w.scale_codes), free((void *)w.nested_scales), free(offset),
        free(scales);
}

static void zeros_nan_infinities_and_subnormals_encode_as_on_cuda(void **state)
{
    (void)state;
    int64_t n = 64 * 9 + 11, size, scales_size;
    void *source = golden_get(&golden, &size, "edges/source");
    assert_int_equal(size, 2 * n);
    void *scales = golden_get(&golden, &scales_size, "edges/scales");
    for (int fp4 = 0; fp4 < 2; fp4++) {
        void *codes = golden_get(&golden, &size, "edges/%s", fp4 ? "fp4" : "nf4");
        FOR_EACH_ISA(isa)
        {
            uint8_t got[512];
            float got_scales[10];
            int64_t bad = nbl__fourbit_encode(isa, fp4 ? NBL_FORMAT_FP4 : NBL_FORMAT_NF4, 64, NBL_DTYPE_BF16,
                                              source, n, got, got_scales);
            assert_int_equal(bad, 2 + 1 + 2 + 64);
            assert_same_bytes(got_scales, scales, scales_size, "scales %s", nbl__isa_name(isa));
            assert_same_bytes(got, codes, size, "%s %s", fp4 ? "fp4" : "nf4", nbl__isa_name(isa));
        }
        free(codes);
    }
    free(source), free(scales);
}

static void int8_rows_encode_and_dequantize_as_in_bitsandbytes(void **state)
{
    (void)state;
    for (int d = 0; d < 3; d++) {
        const char *name = nbl_dtype_name(dtypes[d]);
        int64_t size, n = 7 * 83;
        void *source = golden_get(&golden, &size, "int8/%s/source", name);
        int8_t *codes = golden_get(&golden, &size, "int8/%s/codes", name), got[7 * 83];
        float *scales = golden_get(&golden, &size, "int8/%s/scales", name), got_scales[7];
        nbl_weight w = {
            .format = NBL_FORMAT_INT8, .rank = 2, .shape = {7, 83}, .data = codes, .scales = scales};
        FOR_EACH_ISA(isa)
        {
            char prefix[64];
            assert_int_equal(nbl__int8_encode(isa, dtypes[d], source, 7, 83, got, got_scales), 0);
            assert_same_bytes(got_scales, scales, 28, "%s scales", name);
            assert_same_bytes(got, codes, n, "%s codes %s", name, nbl__isa_name(isa));
            snprintf(prefix, sizeof prefix, "int8/%s", name);
            assert_dequantizes_to_golden(isa, &w, n, true, prefix);
        }
        free(source), free(codes), free(scales);
    }
}

static void every_int8_code_dequantizes_as_in_bitsandbytes_under_tiny_and_huge_scales(void **state)
{
    (void)state;
    int64_t size;
    int8_t codes[64 * 256];
    for (int i = 0; i < 64 * 256; i++) codes[i] = (int8_t)(i % 256 - 128);
    float *scales = golden_get(&golden, &size, "int8/all/scales");
    nbl_weight w = {
        .format = NBL_FORMAT_INT8, .rank = 2, .shape = {64, 256}, .data = codes, .scales = scales};
    FOR_EACH_ISA(isa) assert_dequantizes_to_golden(isa, &w, 64 * 256, true, "int8/all");
    free(scales);
}

static void
every_mxfp4_code_dequantizes_as_in_transformers_under_all_256_scales(void **state) /* HAZARDS E14 */
{
    (void)state;
    uint8_t codes[256 * 16], scales[256];
    for (int i = 0; i < 256 * 16; i++) codes[i] = (uint8_t)(2 * i % 16 + 16 * ((2 * i + 1) % 16));
    for (int i = 0; i < 256; i++) scales[i] = (uint8_t)i;
    nbl_weight w = {.format = NBL_FORMAT_MXFP4,
                    .rank = 2,
                    .shape = {256, 32},
                    .data = codes,
                    .block = 32,
                    .scale_codes = scales};
    FOR_EACH_ISA(isa) assert_dequantizes_to_golden(isa, &w, 256 * 32, true, "mxfp4/all");
}

static void the_dynamic_maps_are_those_of_bitsandbytes(void **state)
{
    (void)state;
    int64_t size;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        void *map = golden_get(&golden, &size, "dynamic8/%s/map", is_signed ? "signed" : "unsigned");
        assert_int_equal(size, 1024);
        assert_same_bytes(nbl_dynamic_map(is_signed), map, 1024, "map %d", is_signed);
        free(map);
    }
    assert_int_equal(crc32_of(nbl__dynamic_map_signed, 1024), 0x1b137aeb);
    assert_int_equal(crc32_of(nbl__dynamic_map_unsigned, 1024), 0xe871278f);
}

static void dynamic8_codes_are_the_nearest_with_ties_to_the_even_index(void **state)
{
    (void)state;
    for (int is_signed = 0; is_signed < 2; is_signed++) {
        const char *name = is_signed ? "signed" : "unsigned";
        const float *map = nbl_dynamic_map(is_signed);
        int64_t size;
        float *source = golden_get(&golden, &size, "dynamic8/%s/source", name), beside[766];
        for (int i = 0; i < 255; i++) {
            beside[i] = (map[i] + map[i + 1]) * 0.5f;
            beside[i + 255] = nextafterf(beside[i], 9);
            beside[i + 510] = nextafterf(beside[i], -9);
        }
        beside[765] = 1;
        const struct {
            const char *what;
            const float *values;
            int64_t n, block;
        } cases[] = {{"256", source, 1000, 256}, {"64", source, 1000, 64}, {"midpoints", beside, 766, 766}};
        for (int c = 0; c < 3; c++) {
            uint8_t *codes = golden_get(&golden, &size, "dynamic8/%s/%s/codes", name, cases[c].what),
                    got[1000];
            assert_int_equal(size, cases[c].n);
            void *scales = golden_get(&golden, &size, "dynamic8/%s/%s/scales", name, cases[c].what);
            FOR_EACH_ISA(isa)
            {
                float got_scales[16], values[1000];
                char record[64];
                nbl__dynamic8_encode(isa, map, cases[c].block, cases[c].values, cases[c].n, got, got_scales);
                assert_same_bytes(got_scales, scales, size, "%s %s scales", name, cases[c].what);
                assert_same_bytes(got, codes, cases[c].n, "%s %s %s", name, cases[c].what,
                                  nbl__isa_name(isa));
                nbl__dynamic8_dequantize(isa, map, cases[c].block, got, got_scales, cases[c].n, values);
                snprintf(record, sizeof record, "dynamic8/%s/%s/values", name, cases[c].what);
                assert_golden_crc(&golden, NBL_DTYPE_F32, values, cases[c].n, true, record);
            }
            free(codes), free(scales);
        }
        free(source);
    }
}

static void conversions_round_as_torch_does(void **state)
{
    (void)state;
    static const uint32_t lows[] = {0,      1,      0x0fff, 0x1000, 0x1001, 0x2fff,
                                    0x3000, 0x3001, 0x7fff, 0x8000, 0x8001, 0xffff};
    uint32_t *wide = malloc(65536 * 4);
    uint16_t *narrow = malloc(65536 * 2);
    char name[64];
    FOR_EACH_ISA(isa)
    {
        for (int d = 1; d < 3; d++) {
            for (int i = 0; i < 65536; i++) narrow[i] = (uint16_t)i;
            nbl__to_f32(isa, dtypes[d], narrow, (float *)(void *)wide, 65536);
            snprintf(name, sizeof name, "convert/%s/f32", nbl_dtype_name(dtypes[d]));
            assert_golden_crc(&golden, NBL_DTYPE_F32, wide, 65536, true, name);
            for (int k = 0; k < COUNT(lows); k++) {
                for (uint32_t i = 0; i < 65536; i++) wide[i] = i << 16 | lows[k];
                nbl__from_f32(isa, (float *)(void *)wide, dtypes[d], narrow, 65536);
                snprintf(name, sizeof name, "convert/f32/%s/%04x", nbl_dtype_name(dtypes[d]), lows[k]);
                assert_golden_crc(&golden, dtypes[d], narrow, 65536, true, name);
            }
        }
    }
    free(wide), free(narrow);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nf4_and_fp4_of_every_block_dequantize_as_in_bitsandbytes),
        cmocka_unit_test(nf4_and_fp4_of_every_block_encode_to_the_bytes_of_bitsandbytes),
        cmocka_unit_test(nested_scales_dequantize_with_two_roundings),
        cmocka_unit_test(zeros_nan_infinities_and_subnormals_encode_as_on_cuda),
        cmocka_unit_test(int8_rows_encode_and_dequantize_as_in_bitsandbytes),
        cmocka_unit_test(every_int8_code_dequantizes_as_in_bitsandbytes_under_tiny_and_huge_scales),
        cmocka_unit_test(every_mxfp4_code_dequantizes_as_in_transformers_under_all_256_scales),
        cmocka_unit_test(the_dynamic_maps_are_those_of_bitsandbytes),
        cmocka_unit_test(dynamic8_codes_are_the_nearest_with_ties_to_the_even_index),
        cmocka_unit_test(conversions_round_as_torch_does),
    };
    return cmocka_run_group_tests(tests, open_golden, close_golden);
}
