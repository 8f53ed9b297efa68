/* test_quant_dequantize.c - decoding any range of any format, on every instruction set, against a reference
 * that decodes one element at a time. */
#include "quant/test_quant.h"

#include <sys/mman.h>

static const nbl_format formats[] = {NBL_FORMAT_DENSE, NBL_FORMAT_NF4, NBL_FORMAT_FP4, NBL_FORMAT_INT8,
                                     NBL_FORMAT_MXFP4};

/* Decodes [begin, end) into guarded memory and compares with the reference. */
static void check_range(nbl_isa isa, const nbl_weight *w, int64_t begin, int64_t end, nbl_dtype dtype,
                        int64_t shift, bool stream)
{
    int64_t size = (int64_t)nbl__size_of(dtype), n = end - begin;
    uint8_t *out = guarded_alloc(n * size, shift * size), want[4];
    nbl__dequantize(isa, w, begin, end, dtype, out, stream);
    for (int64_t i = 0; i < n; i++) {
        set_value(dtype, want, 0, dequantize_one(w, begin + i));
        if (memcmp(out + i * size, want, (size_t)size) != 0)
            fail_msg("%s block %d%s to %s, %s: element %d of [%d, %d) is %g, expected %g",
                     nbl_format_name(w->format), (int)w->block, w->nested_scales ? " nested" : "",
                     nbl_dtype_name(dtype), nbl__isa_name(isa), (int)(begin + i), (int)begin, (int)end,
                     value_at(dtype, out, i), value_at(dtype, want, 0));
    }
    guarded_free(out, n * size, shift * size);
}

static void check_weight_everywhere(const nbl_weight *w, uint32_t seed, int ranges)
{
    int64_t n = w->shape[0] * w->shape[1];
    FOR_EACH_ISA(isa)
    {
        for (int d = 0; d < 3; d++) {
            check_range(isa, w, 0, n, dtypes[d], 0, false);
            check_range(isa, w, 0, n, dtypes[d], 0, true);
            for (int k = 0; k < ranges; k++) {
                int64_t a = random_word(seed, 4 * k) % (n + 1), b = random_word(seed, 4 * k + 1) % (n + 1);
                if (k % 2) b = a + b % nbl__min_i64(70, n - a + 1); /* short ones */
                check_range(isa, w, nbl__min_i64(a, b), nbl__max_i64(a, b), dtypes[d],
                            random_word(seed, 4 * k + 2) % 3 * 16 + random_word(seed, 4 * k + 3) % 2,
                            k % 3 == 0);
            }
        }
    }
}

static void any_range_of_nf4_and_fp4_dequantizes_for_every_block(void **state) /* HAZARDS E10 */
{
    (void)state;
    for (int fp4 = 0; fp4 < 2; fp4++)
        for (int b = 0; b < COUNT(blocks); b++)
            for (int nested = 0; nested < 2; nested++) {
                void *memory;
                int64_t rows = 3 + blocks[b] / 64, columns = 191;
                nbl_weight w = random_weight((uint32_t)b, fp4 ? NBL_FORMAT_FP4 : NBL_FORMAT_NF4, rows,
                                             columns, blocks[b], nested, 4, &memory);
                check_weight_everywhere(&w, (uint32_t)(100 + b), 24);
                free(memory);
            }
}

static void any_range_of_int8_dequantizes_across_rows(void **state)
{
    (void)state;
    static const int64_t columns[] = {1, 7, 32, 83, 4099};
    for (int c = 0; c < COUNT(columns); c++) {
        void *memory;
        nbl_weight w = random_weight((uint32_t)c, NBL_FORMAT_INT8, 9, columns[c], 0, false, 12, &memory);
        check_weight_everywhere(&w, (uint32_t)(200 + c), 24);
        free(memory);
    }
}

static void any_range_of_mxfp4_dequantizes(void **state)
{
    (void)state;
    void *memory;
    nbl_weight w = random_weight(7, NBL_FORMAT_MXFP4, 71, 96, 32, false, 1, &memory);
    check_weight_everywhere(&w, 300, 40);
    free(memory);
}

static void any_range_of_dense_values_converts_with_one_rounding(void **state)
{
    (void)state;
    uint8_t values[4 * 7 * 333 + 1];
    fill_random(11, values, sizeof values);
    for (int d = 0; d < 3; d++) {
        for (int64_t i = 0; i < 7 * 333; i++) set_value(dtypes[d], values + 1, i, random_normal(12, i));
        nbl_weight w = {
            .format = NBL_FORMAT_DENSE, .dtype = dtypes[d], .rank = 2, .shape = {7, 333}, .data = values + 1};
        check_weight_everywhere(&w, 400, 24);
    }
}

static void a_scale_of_any_bits_gives_the_same_bits_on_all_instruction_sets(void **state)
{
    (void)state;
    enum { N = 64 * 500 };
    uint8_t codes[N];
    float scales[1000];
    fill_random(21, codes, sizeof codes);
    for (int i = 0; i < 1000; i++) scales[i] = nbl__from_bits(random_word(22, i));
    scales[0] = INFINITY, scales[1] = -INFINITY, scales[2] = NAN, scales[3] = 0, scales[4] = -0.0f;
    scales[5] = nbl__from_bits(0x7f800001), scales[6] = 0x1p-149f, scales[7] = 0x1p-127f,
    scales[8] = 0x1.fffffep127f;
    uint8_t *want = malloc(4 * N), *got = malloc(4 * N);
    for (int f = 1; f < COUNT(formats); f++) {
        bool int8 = formats[f] == NBL_FORMAT_INT8;
        nbl_weight w = {.format = formats[f],
                        .rank = 2,
                        .shape = {N / 32, 32},
                        .data = codes,
                        .block = 32,
                        .scales = scales,
                        .scale_codes = codes};
        int64_t n = int8 || formats[f] == NBL_FORMAT_MXFP4 ? N : 32 * 1000;
        for (int d = 0; d < 3; d++) {
            int64_t bytes = n * (int64_t)nbl__size_of(dtypes[d]);
            nbl__dequantize(NBL_ISA_SCALAR, &w, 0, n, dtypes[d], want, false);
            FOR_EACH_ISA(isa)
            {
                nbl__dequantize(isa, &w, 0, n, dtypes[d], got, false);
                assert_same_bytes(got, want, bytes, "%s to %s, %s", nbl_format_name(formats[f]),
                                  nbl_dtype_name(dtypes[d]), nbl__isa_name(isa));
            }
        }
    }
    free(want), free(got);
}

static void zero_code_of_an_all_zero_nf4_block_is_minus_zero_as_on_cuda(void **state)
{
    (void)state;
    uint8_t codes[16] = {0}, fp4_codes[16];
    float scale = 0, one = 1, out[32];
    memset(fp4_codes, 0x88, sizeof fp4_codes);
    FOR_EACH_ISA(isa)
    {
        nbl_weight w = {
            .format = NBL_FORMAT_NF4, .rank = 1, .shape = {32}, .data = codes, .block = 32, .scales = &scale};
        nbl__dequantize(isa, &w, 0, 32, NBL_DTYPE_F32, out, false);
        for (int i = 0; i < 32; i++) assert_int_equal(nbl__bits_of(out[i]), 0x80000000);
        w = (nbl_weight){.format = NBL_FORMAT_FP4,
                         .rank = 1,
                         .shape = {32},
                         .data = fp4_codes,
                         .block = 32,
                         .scales = &one};
        nbl__dequantize(isa, &w, 0, 32, NBL_DTYPE_F32, out, false); /* code 8 */
        for (int i = 0; i < 32; i++) assert_int_equal(nbl__bits_of(out[i]), 0x80000000);
    }
}

static void nested_blocks_need_not_be_256(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 3, 255, 1000, INT64_MAX};
    uint8_t scale_codes[600];
    float nested_scales[600], scales[600];
    fill_random(31, scale_codes, sizeof scale_codes);
    for (int i = 0; i < 600; i++) nested_scales[i] = 1 + (float)i;
    for (int k = 0; k < COUNT(sizes); k++) {
        nbl_weight w = {.nested_scales = nested_scales,
                        .nested_block = sizes[k],
                        .scale_codes = scale_codes,
                        .nested_table = nbl__dynamic_map_signed,
                        .nested_offset = 0.25f};
        for (int64_t first = 0; first < 600; first += 199) {
            nbl__nested_dequantize(&w, first, 600 - first, scales);
            for (int64_t i = first; i < 600; i++) {
                volatile float product = nbl__dynamic_map_signed[scale_codes[i]] *
                                         nested_scales[i / sizes[k]];
                assert_true(scales[i - first] == product + 0.25f);
            }
        }
    }
}

/* A mapping that costs only the pages that are touched. */
static void *sparse(int64_t bytes)
{
    void *memory = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? NULL : memory;
}

static void elements_beyond_two_to_the_31_dequantize(void **state) /* HAZARDS E20 */
{
    (void)state;
    const int64_t columns = 4096, rows = (INT64_C(1) << 33) / columns, n = rows * columns;
    uint8_t *codes = sparse(n), *scale_codes = sparse(n / 32);
    float *scales = sparse(n / 32 * 4), *nested_scales = sparse(n / 32 / 256 * 4 + 4);
    if (!codes || !scale_codes || !scales || !nested_scales) skip();
    static const int64_t indices[] = {(INT64_C(1) << 31) - 33, (INT64_C(1) << 32) + 7,
                                      (INT64_C(1) << 33) - 100};
    for (int p = 0; p < COUNT(indices); p++)
        for (int f = 1; f < COUNT(formats); f++)
            for (int nested = 0; nested < 2; nested++) {
                nbl_weight w = {.format = formats[f],
                                .rank = 2,
                                .shape = {rows, columns},
                                .data = codes,
                                .block = 32,
                                .scales = scales,
                                .scale_codes = scale_codes};
                bool int8 = formats[f] == NBL_FORMAT_INT8;
                int64_t begin = indices[p], end = begin + 100, at = int8 ? begin : begin / 2;
                if (nested && f > 2) continue;
                if (nested)
                    w.nested_scales = nested_scales, w.nested_table = nbl__dynamic_map_signed,
                    w.nested_block = 256;
                fill_random(41, codes + at, 100);
                for (int64_t b = begin / 32; b <= (end - 1) / 32; b++) {
                    scale_codes[b] = (uint8_t)(120 + b % 5);
                    nested_scales[b / 256] = 3;
                    scales[b] = (float)(b % 9);
                }
                if (int8) scales[begin / columns] = 5, scales[(end - 1) / columns] = 6;
                FOR_EACH_ISA(isa)
                for (int d = 0; d < 3; d++) check_range(isa, &w, begin, end, dtypes[d], 0, false);
            }
    munmap(codes, (size_t)n), munmap(scale_codes, (size_t)(n / 32)), munmap(scales, (size_t)(n / 32 * 4));
    munmap(nested_scales, (size_t)(n / 32 / 256 * 4 + 4));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_range_of_nf4_and_fp4_dequantizes_for_every_block),
        cmocka_unit_test(any_range_of_int8_dequantizes_across_rows),
        cmocka_unit_test(any_range_of_mxfp4_dequantizes),
        cmocka_unit_test(any_range_of_dense_values_converts_with_one_rounding),
        cmocka_unit_test(a_scale_of_any_bits_gives_the_same_bits_on_all_instruction_sets),
        cmocka_unit_test(zero_code_of_an_all_zero_nf4_block_is_minus_zero_as_on_cuda),
        cmocka_unit_test(nested_blocks_need_not_be_256),
        cmocka_unit_test(elements_beyond_two_to_the_31_dequantize),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
