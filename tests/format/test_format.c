/* test_format.c - files: safetensors in and out, the index, config.json, 4-bit states, grouping. */
#include "support.h"

#include "base/alloc.h"
#include "format/hf/bnb_state.h"
#include "format/hf/checkpoint.h"
#include "format/hf/config.h"
#include "format/hf/shard_index.h"

/* ---- safetensors: reading ---- */

static nbl_context *ctx;

static int set_up(void **state)
{
    (void)state;
    ctx = new_context();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    nbl_context_destroy(ctx);
    return 0;
}

/* Parses length + header + `data` zero bytes. */
static nbl_status parse(const char *header, size_t data, int64_t *count)
{
    size_t length = strlen(header), size = 8 + length + data;
    uint8_t *file = calloc(1, size);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(length >> (8 * i));
    memcpy(file + 8, header, length);
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__stored *tensors;
    nbl_status status = nbl__safetensors_parse(&arena, "f.safetensors", file, size, &tensors, count);
    nbl__arena_free(&arena);
    free(file);
    return status;
}

static void a_sound_header_is_read(void **state)
{
    (void)state;
    int64_t n;
    assert_ok(ctx, parse("{}", 0, &n));
    assert_int_equal(n, 0);
    assert_ok(ctx, parse("{\"__metadata__\":{\"a\":\"b\"}}   ", 0, &n));
    assert_ok(ctx, parse("{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[2,10]},"
                         "\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[0,2]},"
                         "\"e\":{\"dtype\":\"F64\",\"shape\":[0,7],\"data_offsets\":[2,2]}}",
                         10, &n));
    assert_int_equal(n, 3);
    assert_ok(ctx, parse("{\"a\":{\"dtype\":\"F4\",\"shape\":[2,3],\"data_offsets\":[0,3]}}", 3, &n));
}

/* As safetensors' own reader has it. */
static void white_space_before_a_header_is_read(void **state)
{
    (void)state;
    static const char *const good[] = {" {}", "\t{}", "\n{}", "\r{}", " \t\r\n  {} \n"},
                             *const bad[] = {"\f{}", "\v{}", "\xc2\xa0{}", "\xef\xbb\xbf{}", " ", "  []", ""};
    int64_t n;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_ok(ctx, parse(good[i], 0, &n));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(parse(bad[i], 0, &n), NBL_ERROR_FORMAT);
    assert_ok(ctx, parse("\n {\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]}}", 3, &n));
    assert_int_equal(n, 1);
}

static void every_dtype_of_the_format_is_known(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        int bytes_of_8;
    } dtypes[] = {{"BOOL", 8},    {"U8", 8},          {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8},
                  {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},
                  {"F16", 16},    {"BF16", 16},       {"I32", 32},        {"U32", 32},    {"F32", 32},
                  {"C64", 64},    {"F64", 64},        {"I64", 64},        {"U64", 64},    {"F4", 4},
                  {"F6_E2M3", 6}, {"F6_E3M2", 6}};
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        char header[128];
        int64_t n;
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%d]}}",
                 dtypes[i].name, dtypes[i].bytes_of_8);
        assert_ok(ctx, parse(header, (size_t)dtypes[i].bytes_of_8, &n));
    }
}

static void an_unsound_header_is_refused_with_the_tensors_name(void **state)
{
    (void)state;
#define ENTRY(dtype, shape, offsets)                                                                         \
    "{\"w\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
    static const char *const bad[] = {
        ENTRY("\"F32\"", "[2]", "[0,9]"),
        ENTRY("\"F32\"", "[2]", "[8,0]"),
        ENTRY("\"F32\"", "[2]", "[-8,0]"),
        ENTRY("\"F32\"", "[2]", "[8,16]"),
        ENTRY("\"F32\"", "[2]", "[0]"),
        ENTRY("\"F32\"", "[2]", "[0,8,8]"),
        ENTRY("\"F32\"", "[2]", "[0,8.0]"),
        ENTRY("\"F32\"", "[2]", "\"0,8\""),
        ENTRY("\"F32\"", "[-2]", "[0,8]"),
        ENTRY("\"F32\"", "[2.0]", "[0,8]"),
        ENTRY("\"F32\"", "2", "[0,8]"),
        ENTRY("\"F32\"", "null", "[0,8]"),
        ENTRY("\"F99\"", "[2]", "[0,8]"),
        ENTRY("7", "[2]", "[0,8]"),
        ENTRY("\"F32\"", "[3]", "[0,8]"),
        ENTRY("\"F32\"", "[4611686018427387904,4]", "[0,0]"),
        ENTRY("\"F32\"", "[4294967296,4294967296]", "[0,8]"),
        ENTRY("\"F32\"", "[4294967296,4294967296,0]", "[0,0]"),
        ENTRY("\"F4\"", "[3]", "[0,2]"),
        ENTRY("\"U8\"", "[1,1,1,1,1,1,1,1,8]", "[0,8]"),
        "{\"w\":[]}",
        "{\"w\":{\"dtype\":\"F32\",\"shape\":[2]}}",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t n;
        if (parse(bad[i], 8, &n) != NBL_ERROR_FORMAT) fail_msg("accepted: %s", bad[i]);
        if (!strstr(nbl_error_message(ctx), "\"w\"") || !strstr(nbl_error_message(ctx), "f.safetensors"))
            fail_msg("does not name the place: %s", nbl_error_message(ctx));
    }
}

static void holes_overlaps_and_rubbish_are_refused(void **state)
{
    (void)state;
#define PAIR(a, b)                                                                                           \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" a                                             \
    "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" b "}}"
    static const char *const bad[] = {
        PAIR("[0,4]", "[2,6]"),
        PAIR("[0,4]", "[0,4]"),
        PAIR("[0,4]", "[5,9]"),
        PAIR("[1,5]", "[5,9]"),
        PAIR("[0,4]", "[4,8]") "x",
        "[]",
        "",
        "{",
        "null",
        "{\"__metadata__\":{\"a\":1}}",
        "{\"__metadata__\":5}",
        "{\"a\":1}\xff",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int64_t n;
        size_t data = strstr(bad[i], "dtype") ? 9 : 0;
        if (parse(bad[i], data, &n) != NBL_ERROR_FORMAT) fail_msg("accepted: %s", bad[i]);
    }
    int64_t n;
    assert_int_equal(parse(PAIR("[0,4]", "[4,8]"), 9, &n), NBL_ERROR_FORMAT); /* bytes after the last */
    assert_ok(ctx, parse(PAIR("[4,8]", "[0,4]"), 8, &n));                     /* unsorted is fine */
    assert_int_equal(parse("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
                           "\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}",
                           4, &n),
                     NBL_ERROR_FORMAT);
}

static void a_header_length_that_lies_is_refused(void **state)
{
    (void)state;
    static const uint64_t lengths[] = {3, 1000, 100000001, (uint64_t)1 << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++) {
        uint8_t file[10] = {0};
        for (int i = 0; i < 8; i++) file[i] = (uint8_t)(lengths[k] >> (8 * i));
        memcpy(file + 8, "{}", 2);
        nbl__arena arena = nbl__arena_make(ctx);
        nbl__stored *tensors;
        int64_t n;
        for (uint64_t size = 0; size <= sizeof file; size++)
            assert_int_equal(nbl__safetensors_parse(&arena, "f", file, size, &tensors, &n), NBL_ERROR_FORMAT);
        nbl__arena_free(&arena);
    }
}

/* ---- safetensors: writing ---- */

static void what_is_written_reads_back_and_is_laid_out_as_upstream_does(void **state)
{
    (void)state;
    char folder[64];
    make_temp(folder);
    nbl__safetensors_writer *w;
    nbl__output *output;
    int64_t u8, f32, bf16, scalar, shape[2] = {2, 3};
    uint64_t bytes, written;
    int files;
    assert_ok(ctx, nbl__safetensors_writer_create(ctx, &w));
    assert_ok(ctx,
              nbl__safetensors_writer_declare(w, 0, "z\"\t\xc3\xa9", NBL_DTYPE_U8, 1, &(int64_t){5}, &u8));
    assert_ok(ctx, nbl__safetensors_writer_declare(w, 0, "y", NBL_DTYPE_F32, 2, shape, &f32));
    assert_ok(ctx, nbl__safetensors_writer_declare(w, 1, "x", NBL_DTYPE_BF16, 1, &(int64_t){2}, &bf16));
    assert_ok(ctx, nbl__safetensors_writer_declare(w, 1, "a", NBL_DTYPE_F32, 0, NULL, &scalar));
    assert_ok(ctx, nbl__safetensors_writer_layout(w, 1000, &bytes, &files));
    assert_int_equal(files, 1);
    assert_ok(ctx, nbl__output_begin(ctx, in_folder(folder, "out"), bytes, &output));
    assert_ok(ctx, nbl__safetensors_writer_begin_group(w, output, 0));
    assert_ok(ctx, nbl__safetensors_writer_write(w, u8, "12345", 5, 0));
    assert_ok(ctx, nbl__safetensors_writer_write(w, f32, "aaaabbbbccccdddd", 16, 0));
    assert_ok(ctx, nbl__safetensors_writer_write(w, f32, "eeeeffff", 8, 16));
    assert_ok(ctx, nbl__safetensors_writer_begin_group(w, output, 1));
    assert_ok(ctx, nbl__safetensors_writer_write(w, bf16, "BFBF", 4, 0));
    assert_ok(ctx, nbl__safetensors_writer_write(w, scalar, "1111", 4, 0));
    assert_ok(ctx, nbl__safetensors_writer_finish(w, output, &written));
    assert_ok(ctx, nbl__output_commit(output));
    nbl__safetensors_writer_free(w);
    /* As safetensors.save_file writes these tensors: widest dtype first, then by name. */
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"y\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[4,28]},"
        "\"x\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[28,32]},"
        "\"z\\\"\\t\xc3\xa9\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[32,37]}}";
    char want[512];
    size_t length = (strlen(header) + 7) / 8 * 8, size = 8 + length + 37;
    memset(want, ' ', sizeof want);
    for (int i = 0; i < 8; i++) want[i] = (char)(length >> (8 * i));
    memcpy(want + 8, header, strlen(header));
    memcpy(want + 8 + length, "1111aaaabbbbccccddddeeeeffffBFBF12345", 37);
    assert_int_equal(written, size);
    assert_int_equal(bytes, size);
    assert_file_equals(in_folder(folder, "out/model.safetensors"), want, size);
    remove_tree(folder);
}

static void shards_are_cut_between_groups_and_indexed(void **state)
{
    (void)state;
    char folder[64];
    make_temp(folder);
    nbl__safetensors_writer *w;
    nbl__output *output;
    uint64_t bytes, written;
    int files;
    int64_t numbers[10][2];
    assert_ok(ctx, nbl__safetensors_writer_create(ctx, &w));
    for (int g = 0; g < 10; g++)
        for (int k = 0; k < 2; k++) {
            char name[16];
            snprintf(name, sizeof name, "g%d.%d", g, k);
            if (k) assert_ok(ctx, nbl__safetensors_writer_declare_late(w, g, name, 40, &numbers[g][k]));
            else
                assert_ok(ctx,
                          nbl__safetensors_writer_declare(w, g, name, NBL_DTYPE_U8, 1,
                                                          &(int64_t){g == 4 ? 500 : 60}, &numbers[g][k]));
        }
    assert_ok(ctx, nbl__safetensors_writer_layout(w, 250, &bytes, &files));
    assert_int_equal(files, 6); /* 2 + 2 + one large + 2 + 2 + 1 */
    assert_ok(ctx, nbl__output_begin(ctx, in_folder(folder, "out"), bytes, &output));
    for (int g = 0; g < 10; g++) {
        uint8_t data[500];
        memset(data, 'a' + g, sizeof data);
        assert_ok(ctx, nbl__safetensors_writer_begin_group(w, output, g));
        assert_ok(ctx, nbl__safetensors_writer_write(w, numbers[g][0], data, g == 4 ? 500 : 60, 0));
        assert_ok(ctx,
                  /* shorter than declared */
                  nbl__safetensors_writer_write_late(w, numbers[g][1], data, (size_t)g * 4));
    }
    assert_ok(ctx, nbl__safetensors_writer_finish(w, output, &written));
    assert_ok(ctx, nbl__output_commit(output));
    nbl__safetensors_writer_free(w);
    assert_int_equal(entries_in(in_folder(folder, "out")), 7);

    nbl_checkpoint *c;
    assert_ok(ctx, nbl_checkpoint_open(ctx, in_folder(folder, "out"), NBL_OPEN_STRICT, &c));
    assert_int_equal(nbl_checkpoint_get_summary(c)->tensors, 20);
    for (int64_t i = 0; i < 20; i++) {
        const nbl_tensor_info *t = nbl_checkpoint_get_tensor(c, i);
        int g = t->name[1] - '0';
        assert_int_equal(t->bytes, t->name[3] == '0' ? (g == 4 ? 500 : 60) : g * 4);
        for (uint64_t k = 0; k < t->bytes; k++) assert_int_equal(((const char *)t->weight.data)[k], 'a' + g);
    }
    assert_null(nbl_checkpoint_get_tensor(c, 20));
    nbl_checkpoint_close(c);
    size_t size;
    uint8_t *index = read_file(in_folder(folder, "out/model.safetensors.index.json"), &size);
    index[size] = '\0';
    assert_non_null(strstr((char *)index, "\"total_size\": 1220")); /* 9*60 + 500 + 4*(0+…+9) */
    free(index);
    remove_tree(folder);
}

/* ---- the index ---- */

static void an_index_gives_each_file_once_and_no_way_out_of_the_folder(void **state)
{
    (void)state;
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__index index;
    const char *good =
        "{\"weight_map\": {\"a\": \"2.safetensors\", \"b\": \"1.safetensors\", \"c\": \"2.safetensors\"}}";
    assert_ok(ctx, nbl__index_parse(&arena, "i", good, strlen(good), &index));
    assert_int_equal(index.count, 2);
    assert_string_equal(index.files[0], "1.safetensors");
    static const char *const bad[] = {"{}",
                                      "[]",
                                      "{",
                                      "{\"weight_map\": []}",
                                      "{\"weight_map\": {}}",
                                      "{\"weight_map\": {\"a\": 5}}",
                                      "{\"weight_map\": {\"a\": \"\"}}",
                                      "{\"weight_map\": {\"a\": \"..\"}}",
                                      "{\"weight_map\": {\"a\": \"../x\"}}",
                                      "{\"weight_map\": {\"a\": \"/etc/passwd\"}}",
                                      "{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (nbl__index_parse(&arena, "i", bad[i], strlen(bad[i]), &index) != NBL_ERROR_FORMAT)
            fail_msg("accepted: %s", bad[i]);
    nbl__arena_free(&arena);
}

/* ---- config.json ---- */

static void assert_edit(const char *before, const char *key, const char *value, const char *after)
{
    nbl__config config;
    nbl__text out = {.ctx = ctx};
    nbl__arena arena = nbl__arena_make(ctx);
    assert_ok(ctx, nbl__config_parse(&arena, "c", before, strlen(before), &config));
    nbl__config_edit edit = {key, value};
    assert_ok(ctx, nbl__config_apply(ctx, &config, &edit, 1, &out));
    assert_string_equal(out.text, after);
    nbl__text_free(&out);
    nbl__arena_free(&arena);
}

static void an_edit_keeps_every_other_byte_of_a_config(void **state)
{
    (void)state;
    assert_edit("{\"a\": 1e-05, \"b\": {\"q\": \"}\"}, \"c\": 3}", "b", "true",
                "{\"a\": 1e-05, \"b\": true, \"c\": 3}");
    assert_edit("{\"a\": 1, \"b\": [1, {\"b\": 2}], \"c\": 3}", "b", NULL, "{\"a\": 1, \"c\": 3}");
    assert_edit("{\"a\": 1,\n \"b\": 2\n}", "b", NULL, "{\"a\": 1\n}");
    assert_edit("{ \"b\": 2 }", "b", NULL, "{  }");
    assert_edit("{\"a\": 1, \"b\": 2}", "a", NULL, "{\"b\": 2}");
    assert_edit("{\"a\": 1, \"b\": 2}", "q", NULL, "{\"a\": 1, \"b\": 2}");
    assert_edit("{\n  \"a\": 1,\n  \"z\": 2\n}\n", "m", "5", "{\n  \"a\": 1,\n  \"m\": 5,\n  \"z\": 2\n}\n");
    assert_edit("{\n  \"a\": 1\n}\n", "m", "5", "{\n  \"a\": 1,\n  \"m\": 5\n}\n");
    assert_edit("{}", "m", "5", "{\n  \"m\": 5\n}");
    assert_edit("{\"x\": {\"b\": 1}}", "b", "2", "{\"b\": 2,\n  \"x\": {\"b\": 1}}");
    assert_edit("{\"a\": 1, \"quantization\\u005fconfig\": {}}", "quantization_config", NULL, "{\"a\": 1}");
    assert_edit("{\"big\": 123456789012345678901234567890, \"n\": NaN, \"i\": -Infinity, \"e\": 1e999}",
                "big", "1", "{\"big\": 1, \"n\": NaN, \"i\": -Infinity, \"e\": 1e999}");
}

static void a_config_that_is_not_one_is_refused(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "[]",
                                      "{",
                                      "{\"a\": 1} x",
                                      "{\"a\": 1, \"a\": 2}",
                                      "{\"a\": \"\xff\"}",
                                      "{\"a\": nan}",
                                      "{\"a\": NaNN}"};
    nbl__config config;
    nbl__arena arena = nbl__arena_make(ctx);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        if (nbl__config_parse(&arena, "config.json", bad[i], strlen(bad[i]), &config) != NBL_ERROR_FORMAT)
            fail_msg("accepted: %s", bad[i]);
    assert_non_null(strstr(nbl_error_message(ctx), "config.json"));
    nbl__arena_free(&arena);
}

/* ---- JSON ---- */

static void json_takes_memory_in_proportion_to_its_values(void **state)
{
    (void)state;
    enum { PAIRS = 100000 };
    char *text = malloc(PAIRS * 4 + 16), *at = text;
    at += sprintf(at, "{\"a\":[");
    for (int i = 0; i < PAIRS; i++) at += sprintf(at, i ? ",[0]" : "[0]");
    at += sprintf(at, "]}");
    nbl__counter counter = {0};
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                   .allocator = nbl__counting_allocator(&counter)};
    nbl_context *own;
    assert_int_equal(nbl_context_create(&options, &own), NBL_OK);
    nbl__arena arena = nbl__arena_make(own);
    const nbl__json *root;
    assert_ok(own, nbl__json_parse(&arena, "t", text, (size_t)(at - text), NBL_JSON_STRICT, &root));
    assert_int_equal(nbl__json_get(root, "a")->count, PAIRS);
    assert_true(counter.peak_bytes < 60 * (at - text));
    nbl__arena_free(&arena);
    nbl_context_destroy(own);
    free(text);
}

static void json_numbers_keep_their_kind(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        nbl__json_type type;
        int64_t integer;
    } numbers[] = {{"0", NBL_JSON_INTEGER, 0},
                   {"-0", NBL_JSON_REAL, 0},
                   {"-7", NBL_JSON_INTEGER, -7},
                   {"999999999999999999", NBL_JSON_INTEGER, 999999999999999999},
                   {"1000000000000000001", NBL_JSON_INTEGER, 1000000000000000001},
                   {"9223372036854775808", NBL_JSON_REAL, 0},
                   {"1.0", NBL_JSON_REAL, 0},
                   {"1e2", NBL_JSON_REAL, 0}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        char text[64];
        nbl__arena arena = nbl__arena_make(ctx);
        const nbl__json *root;
        snprintf(text, sizeof text, "{\"n\": %s}", numbers[i].text);
        assert_ok(ctx, nbl__json_parse(&arena, "t", text, strlen(text), NBL_JSON_STRICT, &root));
        const nbl__json *n = nbl__json_get(root, "n");
        assert_int_equal(n->type, numbers[i].type);
        if (n->type == NBL_JSON_INTEGER) assert_int_equal(n->integer, numbers[i].integer);
        nbl__arena_free(&arena);
    }
    static const char *const bad[] = {"01",  "1.",          ".5",          "+1",      "1e",
                                      "--1", "0x1",         "1e999",       "NaN",     "Infinity",
                                      "tru", "\"\\u0000\"", "\"\\ud800\"", "\"\\x\"", "\"\t\""};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[64];
        nbl__arena arena = nbl__arena_make(ctx);
        const nbl__json *root;
        snprintf(text, sizeof text, "{\"n\": %s}", bad[i]);
        if (nbl__json_parse(&arena, "t", text, strlen(text), NBL_JSON_STRICT, &root) != NBL_ERROR_FORMAT)
            fail_msg("accepted: %s", text);
        nbl__arena_free(&arena);
    }
}

/* ---- 4-bit states ---- */

static void assert_state(const char *text)
{
    nbl__bnb_json s;
    nbl__text out = {.ctx = ctx};
    nbl__arena arena = nbl__arena_make(ctx);
    assert_ok(ctx, nbl__bnb_json_parse(&arena, "w", text, strlen(text), &s));
    nbl__bnb_json_print(&out, &s);
    assert_string_equal(out.text, text);
    nbl__text_free(&out);
    nbl__arena_free(&arena);
}

static void a_state_is_printed_as_python_prints_it(void **state)
{
    (void)state;
    assert_state(
        "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [4096, 11008]}");
    assert_state(
        "{\"quant_type\": \"fp4\", \"blocksize\": 4096, \"dtype\": \"float32\", \"shape\": [3, 5, 7]}");
    static const char *const offsets[] = {"0.0",
                                          "1.0",
                                          "9.999999747378752e-05",
                                          "1.2000000424450263e-05",
                                          "0.10000000149011612",
                                          "100.0",
                                          "16777216.0",
                                          "3.4028234663852886e+38",
                                          "1.401298464324817e-45",
                                          "123456.0",
                                          "9999999198822400.0",
                                          "1.0000000272564224e+16",
                                          "-0.5"};
    for (size_t i = 0; i < sizeof offsets / sizeof *offsets; i++) {
        char text[256];
        snprintf(text, sizeof text,
                 "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"float16\", \"shape\": [2, 2], "
                 "\"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": %s}",
                 offsets[i]);
        assert_state(text);
    }
}

static void the_block_size_of_a_state_is_obeyed_or_refused(void **state) /* HAZARDS E10 */
{
    (void)state;
    nbl__arena arena = nbl__arena_make(ctx);
    for (int64_t block = -64; block <= 8192; block++) {
        char text[160];
        nbl__bnb_json s;
        snprintf(text, sizeof text,
                 "{\"quant_type\": \"nf4\", \"blocksize\": %" PRId64
                 ", \"dtype\": \"float16\", \"shape\": [2, 2]}",
                 block);
        nbl_status status = nbl__bnb_json_parse(&arena, "w", text, strlen(text), &s);
        bool valid = block == 32 || block == 64 || block == 128 || block == 256 || block == 512 ||
                     block == 1024 || block == 2048 || block == 4096;
        assert_int_equal(status, valid ? NBL_OK : NBL_ERROR_FORMAT);
        if (valid) assert_int_equal(s.block, block);
    }
    nbl__arena_free(&arena);
}

/* ---- grouping ---- */

static void real_folders_are_described(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *quantization, *architecture;
        int64_t block, tensors, packed;
        int nested;
    } folders[] = {
        {"llama", NULL, "LlamaForCausalLM", 0, 16, 0, 0},
        {"llama-nf4", "nf4", "LlamaForCausalLM", 64, 16, 7, 0},
        {"llama-nf4-nested", "nf4", "LlamaForCausalLM", 64, 16, 7, 1},
        {"llama-fp4", "fp4", "LlamaForCausalLM", 64, 16, 7, 0},
        {"llama-int8", "int8", "LlamaForCausalLM", 0, 16, 7, 0},
        {"gpt-oss-mxfp4", "mxfp4", "GptOssForCausalLM", 32, 20, 2, 0},
    };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        nbl_checkpoint *c;
        assert_ok(ctx, nbl_checkpoint_open(ctx, in_folder(TEST_DATA_DIR "/folders", folders[i].folder),
                                           NBL_OPEN_TOLERANT, &c));
        const nbl_checkpoint_summary *s = nbl_checkpoint_get_summary(c);
        assert_int_equal(s->problems, 0);
        assert_int_equal(s->block, folders[i].block);
        assert_int_equal(s->nested, folders[i].nested);
        assert_int_equal(s->tensors, folders[i].tensors);
        assert_string_equal(s->architecture, folders[i].architecture);
        if (folders[i].quantization) assert_string_equal(s->quantization, folders[i].quantization);
        else assert_null(s->quantization);
        int64_t packed = 0;
        for (int64_t k = 0; k < s->tensors; k++)
            packed += nbl_checkpoint_get_tensor(c, k)->weight.format != NBL_FORMAT_DENSE;
        assert_int_equal(packed, folders[i].packed);
        nbl_checkpoint_close(c);
    }
}

/* A state whose scales were stored at an odd address must read the same. */
static void misaligned_scales_are_read_right(void **state)
{
    (void)state;
    size_t size;
    uint8_t *file = read_file(TEST_DATA_DIR "/folders/llama-int8/model.safetensors", &size);
    uint8_t *moved = malloc(size + 1);
    memcpy(moved + 1, file, size); /* every f32 is misaligned now */
    nbl_checkpoint a = {.ctx = ctx, .arena = nbl__arena_make(ctx), .path = "a"},
                   b = {.ctx = ctx, .arena = nbl__arena_make(ctx), .path = "b"};
    assert_ok(ctx, nbl__safetensors_parse(&a.arena, "a", file, size, &a.stored, &a.stored_count));
    assert_ok(ctx, nbl__safetensors_parse(&b.arena, "b", moved + 1, size, &b.stored, &b.stored_count));
    assert_ok(ctx, nbl__checkpoint_group(&a));
    assert_ok(ctx, nbl__checkpoint_group(&b));
    int compared = 0;
    for (int64_t i = 0; i < a.tensor_count; i++) {
        const nbl_weight *x = &a.tensors[i].weight, *y = &b.tensors[i].weight;
        if (x->format != NBL_FORMAT_INT8) continue;
        size_t n = (size_t)(x->shape[0] * x->shape[1]);
        float *p = malloc(n * 4), *q = malloc(n * 4);
        assert_ok(ctx, nbl_dequantize(ctx, x, 0, x->shape[0], NBL_DTYPE_F32, 0, p));
        assert_ok(ctx, nbl_dequantize(ctx, y, 0, y->shape[0], NBL_DTYPE_F32, 0, q));
        assert_memory_equal(p, q, n * 4);
        free(p);
        free(q);
        compared++;
    }
    assert_int_equal(compared, 7);
    nbl__arena_free(&a.arena);
    nbl__arena_free(&b.arena);
    free(file);
    free(moved);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_sound_header_is_read),
        cmocka_unit_test(white_space_before_a_header_is_read),
        cmocka_unit_test(every_dtype_of_the_format_is_known),
        cmocka_unit_test(an_unsound_header_is_refused_with_the_tensors_name),
        cmocka_unit_test(holes_overlaps_and_rubbish_are_refused),
        cmocka_unit_test(a_header_length_that_lies_is_refused),
        cmocka_unit_test(what_is_written_reads_back_and_is_laid_out_as_upstream_does),
        cmocka_unit_test(shards_are_cut_between_groups_and_indexed),
        cmocka_unit_test(an_index_gives_each_file_once_and_no_way_out_of_the_folder),
        cmocka_unit_test(an_edit_keeps_every_other_byte_of_a_config),
        cmocka_unit_test(a_config_that_is_not_one_is_refused),
        cmocka_unit_test(json_takes_memory_in_proportion_to_its_values),
        cmocka_unit_test(json_numbers_keep_their_kind),
        cmocka_unit_test(a_state_is_printed_as_python_prints_it),
        cmocka_unit_test(the_block_size_of_a_state_is_obeyed_or_refused),
        cmocka_unit_test(real_folders_are_described),
        cmocka_unit_test(misaligned_scales_are_read_right),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
