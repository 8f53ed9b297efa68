/* test_gguf.c - GGUF files: metadata and tensors of the package gguf, and hostile bytes. */
#include "format/gguf_support.h"

#include "base/json/json.h"

/* ---- the golden file ---- */

static nbl__gguf *open_golden(nbl_context *ctx)
{
    nbl__gguf *gguf;
    assert_ok(ctx, nbl__gguf_open(ctx, TEST_DATA_DIR "/gguf/golden.gguf", &gguf));
    return gguf;
}

static void metadata_of_every_type_is_read(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__gguf *gguf = open_golden(ctx);
    static const struct {
        const char *key;
        int64_t value;
    } integers[] = {
        {"uint8", 200},         {"int8", -100},         {"uint16", 60000},       {"int16", -30000},
        {"uint32", 4000000000}, {"int32", -2000000000}, {"int64", -(1LL << 62)}, {"bool", 1}};
    int64_t integer;
    double number;
    char key[64];
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        snprintf(key, sizeof key, "golden.%s", integers[i].key);
        assert_true(nbl__gguf_integer(nbl__gguf_find(gguf, key), 0, &integer));
        assert_true(integer == integers[i].value);
        assert_true(nbl__gguf_number(nbl__gguf_find(gguf, key), 0, &number));
        assert_true(number == (double)integers[i].value);
    }
    const nbl__gguf_entry *large = nbl__gguf_find(gguf, "golden.uint64");
    assert_false(nbl__gguf_integer(large, 0, &integer));
    assert_true(nbl__gguf_number(large, 0, &number) && number == 0x1p64);
    assert_true(nbl__gguf_number(nbl__gguf_find(gguf, "golden.float32"), 0, &number));
    assert_true(number == (double)(1.0f / 3));
    assert_true(nbl__gguf_number(nbl__gguf_find(gguf, "golden.float64"), 0, &number));
    assert_true(number == 1.0 / 3);
    assert_false(nbl__gguf_integer(nbl__gguf_find(gguf, "golden.float64"), 0, &integer));

    const char *text;
    size_t length;
    assert_true(nbl__gguf_string(nbl__gguf_find(gguf, "golden.string"), 0, &text, &length));
    assert_int_equal(length, strlen("naïve ✓"));
    assert_memory_equal(text, "naïve ✓", length);
    const nbl__gguf_entry *strings = nbl__gguf_find(gguf, "golden.strings");
    assert_int_equal(strings->type, NBL_GGUF_ARRAY);
    assert_int_equal(strings->element, NBL_GGUF_STRING);
    assert_int_equal(strings->count, 3);
    assert_true(nbl__gguf_string(strings, 2, &text, &length));
    assert_int_equal(length, 4);
    assert_memory_equal(text, "ä\0b", 4);
    assert_false(nbl__gguf_string(strings, 3, &text, &length));
    assert_false(nbl__gguf_string(strings, -1, &text, &length));
    assert_false(nbl__gguf_number(strings, 0, &number));
    assert_true(nbl__gguf_integer(nbl__gguf_find(gguf, "golden.integers"), 1, &integer) && integer == -2);
    assert_true(nbl__gguf_number(nbl__gguf_find(gguf, "golden.floats"), 1, &number) && number == -1.5);
    assert_null(nbl__gguf_find(gguf, "golden.nothing"));
    assert_false(nbl__gguf_integer(NULL, 0, &integer));
    nbl__gguf_close(gguf);
    nbl_context_destroy(ctx);
}

static void every_block_type_dequantizes_to_the_bits_of_the_package_gguf(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__gguf *gguf = open_golden(ctx);
    int dequantized = 0;
    for (int64_t i = 0; i < gguf->tensor_count; i++) {
        const nbl__gguf_tensor *packed = &gguf->tensors[i];
        char name[64];
        snprintf(name, sizeof name, "%s.f32", packed->name);
        const nbl__gguf_tensor *wanted = nbl__gguf_tensor_find(gguf, name);
        if (wanted == NULL) continue;
        dequantized++;
        assert_int_equal(packed->rank, 2);
        assert_int_equal(packed->shape[0], 3);
        assert_int_equal(packed->elements, wanted->elements);
        size_t n = (size_t)packed->elements;
        float *values = malloc(n * 4 + 1);
        uint16_t *halves = malloc(n * 2), *own = malloc(n * 2);
        for (nbl_isa isa = NBL_ISA_SCALAR; isa <= nbl__isa_detect(); isa++) {
            void *unaligned = (char *)values + 1;
            nbl__ggml_dequantize(isa, packed->type, packed->data, packed->elements, NBL_DTYPE_F32, unaligned);
            assert_memory_equal(unaligned, wanted->data, n * 4);
            for (nbl_dtype dtype = NBL_DTYPE_F16; dtype <= NBL_DTYPE_BF16; dtype++) {
                nbl__ggml_dequantize(isa, packed->type, packed->data, packed->elements, dtype, halves);
                nbl__from_f32(NBL_ISA_SCALAR, (const float *)(const void *)wanted->data, dtype, own,
                              (int64_t)n);
                assert_memory_equal(halves, own, n * 2);
            }
        }
        free(values);
        free(halves);
        free(own);
    }
    assert_int_equal(dequantized, 12);
    nbl__gguf_close(gguf);
    nbl_context_destroy(ctx);
}

/* ---- hostile files ---- */

static nbl_status parse(nbl_context *ctx, const uint8_t *data, size_t size)
{
    nbl__gguf *gguf;
    uint8_t *exact = malloc(size ? size : 1); /* so that a read behind its end is seen */
    memcpy(exact, data, size);
    nbl_status status = nbl__gguf_parse(ctx, "f.gguf", exact, size, &gguf);
    if (status == NBL_OK) nbl__gguf_close(gguf);
    else assert_null(gguf);
    free(exact);
    return status;
}

static void assert_refused(const builder *b, const char *word)
{
    nbl_context *ctx = new_context();
    size_t size;
    uint8_t *file = finish(b, &size);
    assert_int_equal(parse(ctx, file, size), NBL_ERROR_FORMAT);
    if (strstr(nbl_error_message(ctx), word) == NULL)
        fail_msg("\"%s\" is not in: %s", word, nbl_error_message(ctx));
    free(file);
    nbl_context_destroy(ctx);
}

static builder b; /* large; every test fills it anew */

static void a_file_cut_anywhere_is_refused_with_a_message(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    size_t size;
    build_model(&b, "llama");
    uint8_t *file = finish(&b, &size);
    assert_ok(ctx, parse(ctx, file, size));
    size_t data = size - b.data.size;
    for (size_t cut = 0; cut < data; cut++) assert_int_equal(parse(ctx, file, cut), NBL_ERROR_FORMAT);
    for (size_t cut = data; cut < size; cut += 37) assert_int_equal(parse(ctx, file, cut), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "blk.1.ffn_down.weight"));
    free(file);
    nbl_context_destroy(ctx);
}

static void version_2_opens_and_others_are_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    size_t size;
    build_model(&b, "llama");
    b.version = 2;
    uint8_t *file = finish(&b, &size);
    assert_ok(ctx, parse(ctx, file, size));
    free(file);
    b.version = 1;
    assert_refused(&b, "version 1");
    b.version = 4;
    assert_refused(&b, "version 4");
    b.version = 3u << 24;
    assert_refused(&b, "big-endian");
    nbl_context_destroy(ctx);
}

static void counts_and_lengths_beyond_the_file_are_refused_without_memory(void **state)
{
    (void)state;
    memset(&b, 0, sizeof b);
    b.entry_count = UINT64_MAX / 64;
    assert_refused(&b, "keys");
    memset(&b, 0, sizeof b);
    b.tensor_count = UINT64_MAX;
    assert_refused(&b, "tensors");

    memset(&b, 0, sizeof b);
    put_u64(&b.head, UINT64_MAX); /* the length of a key */
    put(&b.head, "12345678", 8);
    b.entry_count = 1;
    assert_refused(&b, "byte 32");

    for (int element = 0; element < NBL_GGUF_TYPE_COUNT; element++) {
        memset(&b, 0, sizeof b);
        add_key(&b, "a.list", NBL_GGUF_ARRAY);
        put_u32(&b.head, (uint32_t)element);
        put_u64(&b.head, INT64_MAX);
        assert_refused(&b, "\"a.list\"");
    }
    memset(&b, 0, sizeof b);
    add_key(&b, "a.deep", NBL_GGUF_ARRAY);
    for (int i = 0; i < 100; i++) put_u32(&b.head, NBL_GGUF_ARRAY), put_u64(&b.head, 1);
    put_u32(&b.head, NBL_GGUF_U8), put_u64(&b.head, 0);
    assert_refused(&b, "nested");
}

static void arrays_of_arrays_are_stepped_over(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    size_t size;
    nbl__gguf *gguf;
    memset(&b, 0, sizeof b);
    add_key(&b, "a.nested", NBL_GGUF_ARRAY);
    put_u32(&b.head, NBL_GGUF_ARRAY), put_u64(&b.head, 2);
    put_u32(&b.head, NBL_GGUF_STRING), put_u64(&b.head, 1), put_name(&b.head, "text");
    put_u32(&b.head, NBL_GGUF_U16), put_u64(&b.head, 2), put_u32(&b.head, 7);
    add_u32(&b, "after", 5);
    uint8_t *file = finish(&b, &size);
    assert_ok(ctx, nbl__gguf_parse(ctx, "f.gguf", file, size, &gguf));
    int64_t value;
    double number;
    assert_true(nbl__gguf_integer(nbl__gguf_find(gguf, "after"), 0, &value) && value == 5);
    assert_false(nbl__gguf_integer(nbl__gguf_find(gguf, "a.nested"), 0, &value));
    assert_false(nbl__gguf_number(nbl__gguf_find(gguf, "a.nested"), 0, &number));
    nbl__gguf_close(gguf);
    free(file);
    nbl_context_destroy(ctx);
}

static void odd_names_values_and_offsets_are_refused_by_name(void **state)
{
    (void)state;
    memset(&b, 0, sizeof b);
    add_key(&b, "a.bool", NBL_GGUF_BOOL);
    put(&b.head, "\2", 1);
    assert_refused(&b, "\"a.bool\": a bool that is 2");
    memset(&b, 0, sizeof b);
    add_key(&b, "a.type", (nbl__gguf_type)13);
    assert_refused(&b, "\"a.type\": the unknown type 13");
    memset(&b, 0, sizeof b);
    add_u32(&b, "twice", 1);
    add_u32(&b, "twice", 2);
    assert_refused(&b, "\"twice\" is there twice");
    memset(&b, 0, sizeof b);
    add_u32(&b, "", 1);
    assert_refused(&b, "0 bytes");
    memset(&b, 0, sizeof b);
    add_u32(&b, "broken\xff", 1);
    assert_refused(&b, "not UTF-8");
    for (uint32_t alignment = 0; alignment < 100; alignment += 33) {
        memset(&b, 0, sizeof b);
        add_u32(&b, "general.alignment", alignment);
        assert_refused(&b, "general.alignment");
    }
    memset(&b, 0, sizeof b);
    add_tensor(&b, "twice", 0, 8, 0);
    add_tensor(&b, "twice", 0, 8, 0);
    assert_refused(&b, "\"twice\" is there twice");
    memset(&b, 0, sizeof b);
    add_tensor(&b, "one", 0, 8, 0);
    b.data.size = 0;
    add_tensor(&b, "two", 0, 8, 0);
    assert_refused(&b, "overlaps");
}

/* A tensor's entry by hand: sizes (fastest first), type, place. */
static void entry_by_hand(int rank, const uint64_t *sizes, uint32_t type, uint64_t offset)
{
    memset(&b, 0, sizeof b);
    put_name(&b.tensors, "t");
    put_u32(&b.tensors, (uint32_t)rank);
    for (int i = 0; i < rank; i++) put_u64(&b.tensors, sizes[i]);
    put_u32(&b.tensors, type);
    put_u64(&b.tensors, offset);
    b.tensor_count = 1;
    for (int i = 0; i < 64; i++) put(&b.data, "", 1);
}

static void tensor_entries_that_cannot_be_are_refused(void **state)
{
    (void)state;
    entry_by_hand(1, (uint64_t[]){UINT64_MAX}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": a dimension");
    entry_by_hand(2, (uint64_t[]){1ull << 40, 1ull << 40}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": its sizes overflow");
    entry_by_hand(3, (uint64_t[]){1ull << 40, 0, 1ull << 40}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": its sizes overflow");
    entry_by_hand(1, (uint64_t[]){1ull << 62}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": its bytes overflow");
    entry_by_hand(1, (uint64_t[]){17}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": its 68 bytes");
    entry_by_hand(1, (uint64_t[]){8}, NBL_GGML_F32, UINT64_MAX - 31);
    assert_refused(&b, "\"t\": its 32 bytes");
    entry_by_hand(1, (uint64_t[]){8}, NBL_GGML_F32, 8);
    assert_refused(&b, "not a multiple of 32");
    entry_by_hand(1, (uint64_t[]){48}, NBL_GGML_Q8_0, 0);
    assert_refused(&b, "whole number of blocks of q8_0");
    entry_by_hand(1, (uint64_t[]){32}, 4, 0);
    assert_refused(&b, "unknown tensor type 4");
    entry_by_hand(1, (uint64_t[]){32}, 1000000, 0);
    assert_refused(&b, "unknown tensor type 1000000");
    entry_by_hand(0, NULL, NBL_GGML_F32, 0);
    b.tensors.data[9] = 5;
    assert_refused(&b, "5 dimensions");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(metadata_of_every_type_is_read),
        cmocka_unit_test(every_block_type_dequantizes_to_the_bits_of_the_package_gguf),
        cmocka_unit_test(a_file_cut_anywhere_is_refused_with_a_message),
        cmocka_unit_test(version_2_opens_and_others_are_refused),
        cmocka_unit_test(counts_and_lengths_beyond_the_file_are_refused_without_memory),
        cmocka_unit_test(arrays_of_arrays_are_stepped_over),
        cmocka_unit_test(odd_names_values_and_offsets_are_refused_by_name),
        cmocka_unit_test(tensor_entries_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
