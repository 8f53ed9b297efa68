/* test_json.c - what the dialects of the JSON parser accept, and what the styles of the writer
 * write. test_format.c has the limits and the hostile texts. */
#include "support.h"

#include "base/json/json_write.h"

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

/* Reads a text in a dialect and writes it in a style. NULL: it is not JSON. Free it. */
static char *rewritten(const char *text, unsigned dialect, const nbl__json_style *style, nbl__json_error *why)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__text out = {.ctx = ctx};
    nbl__json_writer w = nbl__json_to_text(&out, style);
    const nbl__json *root;
    char *copy = NULL;
    nbl_status status = nbl__json_read(&arena, text, strlen(text), dialect, &root, why);
    if (status == NBL_OK) {
        assert_int_equal(nbl__json_write(&w, root), NBL_OK);
        copy = strdup(out.text);
    } else {
        assert_int_equal(status, NBL_ERROR_FORMAT);
    }
    nbl__text_free(&out);
    nbl__arena_free(&arena);
    return copy;
}

static void assert_written(const char *text, unsigned dialect, const nbl__json_style *style, const char *want)
{
    nbl__json_error why;
    char *got = rewritten(text, dialect, style, &why);
    if (got == NULL) fail_msg("%s: %s", text, why.what);
    assert_string_equal(got, want);
    free(got);
}

static void loads_reads_what_python_reads(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"{\"a\": 1, \"b\": 2, \"a\": 3}", "{\"a\": 3, \"b\": 2}"},
        {"{\"a\": 1, \"a\": 2, \"a\": 3, \"\": {\"x\": 0, \"x\": 1}}", "{\"a\": 3, \"\": {\"x\": 1}}"},
        {"[18446744073709551616, -9223372036854775808, 4611686018427387904]",
         "[18446744073709551616, -9223372036854775808, 4611686018427387904]"},
        {"-0", "0"},
        {"-0.0", "-0.0"},
        {"1e400", "null"}, /* infinite; JSON has no infinities */
        {"\"\\u0000 \\u00e9 \\ud83d\\ude00\"", "\"\\u0000 é 😀\""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_written(rows[i].text, NBL_JSON_LOADS, &nbl__json_style_line, rows[i].want);
}

static void without_a_flag_these_are_errors_with_their_position(void **state)
{
    (void)state;
    static const struct {
        const char *text, *what;
        int64_t line, column;
    } rows[] = {
        {"{\"a\": 1,\n \"a\": 2}", "a key is there twice in the object that ends here", 2, 9},
        {"[1,\n1e400]", "a number that is too large", 2, 6},
        {"\"\\u0000\"", "a bad \\u escape", 1, 8},
        {"[NaN]", "an unknown word", 1, 2},
        {"1 2", "something follows the end", 1, 3},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nbl__json_error why;
        assert_null(rewritten(rows[i].text, NBL_JSON_STRICT, &nbl__json_style_line, &why));
        assert_string_equal(why.what, rows[i].what);
        assert_int_equal(why.line, rows[i].line);
        assert_int_equal(why.column, rows[i].column);
        assert_true((why.key != NULL) == (i == 0));
    }
}

static void a_kept_integer_has_up_to_4300_digits(void **state)
{
    (void)state;
    char text[4400];
    nbl__json_error why;
    memset(text, '7', sizeof text);
    text[4300] = '\0';
    assert_written(text, NBL_JSON_LOADS, &nbl__json_style_line, text);
    text[4300] = '7', text[4301] = '\0';
    assert_null(rewritten(text, NBL_JSON_LOADS, &nbl__json_style_line, &why));
    assert_string_equal(why.what, "an integer of more than 4300 digits");
}

static void levels_are_limited_to_128_or_450(void **state)
{
    (void)state;
    for (int deep = 0; deep < 2; deep++) {
        int max = deep ? 450 : 128;
        for (int levels = max; levels <= max + 1; levels++) {
            char text[1000], *got;
            nbl__json_error why;
            memset(text, '[', (size_t)levels);
            memset(text + levels, ']', (size_t)levels);
            text[2 * levels] = '\0';
            got = rewritten(text, deep ? NBL_JSON_DEEP : NBL_JSON_STRICT, &nbl__json_style_line, &why);
            assert_true((got != NULL) == (levels == max));
            if (got == NULL) assert_string_equal(why.what, "nested too deep");
            free(got);
        }
    }
}

static void styles_write_as_python_and_jansson_do(void **state)
{
    (void)state;
    static const nbl__json_style lines = {
        .indent = "  ", .indent_size = 2, .item = {",", 1}, .key = {": ", 2}, .jansson = true};
    static const nbl__json_style ascii = {.item = {",", 1}, .key = {":", 1}, .ascii = true};
    static const nbl__json_style no_nulls = {.item = {",", 1}, .key = {":", 1}, .no_nulls = true};
    const char *text =
        "{\"a\": [], \"b\": {}, \"c\": [1, [2.0, null]], \"d\": \"\\u001b\\n\\\"/\x7f é😀\", \"e\": null}";
    assert_written(
        text, NBL_JSON_STRICT, &nbl__json_style_line,
        "{\"a\": [], \"b\": {}, \"c\": [1, [2.0, null]], \"d\": \"\\u001b\\n\\\"/\x7f é😀\", \"e\": null}");
    assert_written(
        text, NBL_JSON_STRICT, &lines,
        "{\n  \"a\": [],\n  \"b\": {},\n  \"c\": [\n    1,\n    [\n      2.0,\n      null\n    ]\n  ],\n"
        "  \"d\": \"\\u001B\\n\\\"/\x7f é😀\",\n  \"e\": null\n}");
    assert_written(
        text, NBL_JSON_STRICT, &ascii,
        "{\"a\":[],\"b\":{},\"c\":[1,[2.0,null]],\"d\":\"\\u001b\\n\\\"/\\u007f \\u00e9\\ud83d\\ude00\","
        "\"e\":null}");
    assert_written(text, NBL_JSON_STRICT, &no_nulls,
                   "{\"a\":[],\"b\":{},\"c\":[1,[2.0,null]],\"d\":\"\\u001b\\n\\\"/\x7f é😀\"}");
}

static void reals_have_pythons_or_janssons_digits(void **state)
{
    (void)state;
    static const nbl__json_style jansson = {.jansson = true};
    static const struct {
        const char *text, *python, *jansson;
    } rows[] = {
        {"0.1", "0.1", "0.10000000000000001"},
        {"1e-5", "1e-05", "1.0000000000000001e-5"},
        {"1e20", "1e+20", "1e20"},
        {"1e15", "1000000000000000.0", "1000000000000000.0"},
        {"1e16", "1e+16", "10000000000000000.0"},
        {"0.0001", "0.0001", "0.0001"},
        {"-2.0", "-2.0", "-2.0"},
        {"-0.0", "-0.0", "-0.0"},
        {"5e-324", "5e-324", "4.9406564584124654e-324"},
        {"5.684341886080802e-14", "5.684341886080802e-14", "5.6843418860808015e-14"}, /* 2^-44 */
        {"1.7976931348623157e308", "1.7976931348623157e+308", "1.7976931348623157e308"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_written(rows[i].text, NBL_JSON_STRICT, &nbl__json_style_line, rows[i].python);
        assert_written(rows[i].text, NBL_JSON_STRICT, &jansson, rows[i].jansson);
    }
}

/* Names of files may be any bytes. */
static void bytes_that_are_not_utf8_are_copied(void **state)
{
    (void)state;
    nbl__text text = {.ctx = ctx};
    nbl__text_json(&text, "a\xf0\"");
    assert_string_equal(text.text, "\"a\xf0\\\"\"");
    nbl__text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loads_reads_what_python_reads),
        cmocka_unit_test(without_a_flag_these_are_errors_with_their_position),
        cmocka_unit_test(a_kept_integer_has_up_to_4300_digits),
        cmocka_unit_test(levels_are_limited_to_128_or_450),
        cmocka_unit_test(styles_write_as_python_and_jansson_do),
        cmocka_unit_test(reals_have_pythons_or_janssons_digits),
        cmocka_unit_test(bytes_that_are_not_utf8_are_copied),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
