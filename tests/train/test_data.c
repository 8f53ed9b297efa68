/* test_data.c - from files to rows: rows of every kind, what is wrong with them, and which of them are left out. */
#include "tiny_data.h"

/* ---- rows ---- */

static void rows_come_from_lines_with_marks_blanks_and_no_last_newline(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("a.jsonl",
        "\xef\xbb\xbf{\"text\": \"one\"}\r\n\n  \t\r\n{\"text\": \"tw\\u00f6\", \"more\": [1, {}]}\n"
        "{\"text\": \"three\"}");
    prepare(&f, ctx, "a.jsonl", NBL_DATA_COMPLETION);
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 3);
    expect(&f, 0, "[^one>]");
    expect(&f, 1, "[^tw\xc3\xb6>]");
    expect(&f, 2, "[^three>]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void a_json_list_is_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("a.json", "\n[\n {\"text\": \"a]}\\\"[\"},\n {\"text\": \"b\",\n  \"x\": [[{\"y\": \"]\"}]]} ]\n");
    prepare(&f, ctx, "a.json", NBL_DATA_COMPLETION);
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    expect(&f, 0, "[^a]}\"[>]");
    expect(&f, 1, "[^b>]");
    close_data(&f);
    put("a.json", "{\"text\": \"lines\"}\n{\"text\": \"here\"}\n"); /* told by the first character */
    open_data(&f);
    expect(&f, 1, "[^here>]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void csv_has_quotes_commas_and_line_ends_in_fields(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("a.csv", "id,\"text\",z\r\n1,plain,\r\n\r\n2,\"a, \"\"b\"\"\nc\r\nd\",x\n3,it's \"so\",\"\"");
    prepare(&f, ctx, "a.csv", NBL_DATA_COMPLETION);
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 3);
    expect(&f, 0, "[^plain>]");
    expect(&f, 1, "[^a, \"b\"\nc\r\nd>]");
    expect(&f, 2, "[^it's \"so\">]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void every_line_of_a_text_file_is_a_row(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("a.txt", "first {line}\r\n\n second\n");
    prepare(&f, ctx, "a.txt", NBL_DATA_COMPLETION);
    open_data(&f);
    expect(&f, 0, "[^first {line}>]");
    expect(&f, 1, "[^ second>]");
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    close_data(&f);
    f.dataset.type = NBL_DATA_ALPACA;
    refuse(&f, "completion");
    nbl_context_destroy(ctx);
}

static void what_is_wrong_with_a_file_is_said_with_its_line(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const struct {
        const char *name, *text, *says;
    } cases[] = {
        {"b.jsonl", "", "b.jsonl: the file is empty"},
        {"b.jsonl", "\n \n", "b.jsonl: no row"},
        {"b.jsonl", "{\"text\": \"a\"}\n\n{\"text\": \"a\"\n", "b.jsonl: line 3, column 13"},
        {"b.jsonl", "{\"text\": \"a\"}\n[1, 2]\n", "b.jsonl: line 2: JSON, but not an object"},
        {"b.jsonl", "{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n",
         "b.jsonl: line 2, column 11: not valid JSON: not UTF-8"},
        {"b.jsonl", "{\"text\": \"a\"}\n{\"tex\": \"a\"}\n",
         "b.jsonl: line 2: the field \"text\" is missing"},
        {"b.jsonl", "{\"text\": 3}\n", "b.jsonl: line 1: the field \"text\" is not a text"},
        {"b.jsonl", "{\"a\": 1, \"a\": 2}\n",
         "b.jsonl: line 1, column 17: not valid JSON: a key is there twice"},
        {"b.json", "[\n{\"text\": \"a\"},\n{\"text\": 1}\n]", "b.json: line 3: the field"},
        {"b.json", "[\n{\"text\": \"a\"},\n{\"text\": \n1x}]", "b.json: line 4, column 2: not valid JSON"},
        {"b.json", "[\n{\"text\": \"a\"}\n{\"text\": \"b\"}]", "b.json: line 3, column 1"},
        {"b.json", "[\n{\"text\": \"a\"},\n", "b.json: line 3: "},
        {"b.json", "[{\"text\": \"a\"}]\nx", "b.json: line 2: something follows"},
        {"b.json", "[{\"text\": \"a\"},,{\"text\": \"a\"}]", "b.json: line 1: a row was expected"},
        {"b.csv", "text,b\n1\n", "b.csv: line 2: 1 fields, the header has 2"},
        {"b.csv", "text,b\na,\"x\ny", "b.csv: line 2: a quoted field without end"},
        {"b.csv", "text,text\n", "b.csv: line 1: the column \"text\" is there twice"},
        {"b.csv", "text\n\"a\nb\"\n\xfe\n", "b.csv: line 4, byte 1: not UTF-8"},
        {"b.txt", "ok\n\xc3(\n", "b.txt: line 2, byte 1: not UTF-8"},
        {"b.parquet", "PAR1", "b.parquet: the form of the data is not known"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fixture f;
        put(cases[i].name, cases[i].text);
        prepare(&f, ctx, cases[i].name, NBL_DATA_COMPLETION);
        refuse(&f, cases[i].says);
    }
    fixture f;
    prepare(&f, ctx, "absent.jsonl", NBL_DATA_COMPLETION);
    refuse(&f, "absent.jsonl");
    nbl_context_destroy(ctx);
}

static void bad_rows_are_dropped_and_counted_when_the_run_says_so(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("c.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                   "\"content\": \"a\"}]}\n"
                   "{\"messages\": []}\n{}\nnonsense\n{\"messages\": \"hello\"}\n"
                   "{\"messages\": [{\"role\": \"user\"}, {\"role\": \"assistant\", \"content\": \"b\"}]}\n"
                   "{\"messages\": [{\"content\": \"x\"}]}\n{\"messages\": [7]}\n"
                   "{\"messages\": [{\"role\": \"assistant\", \"content\": \"last\"}]}\n");
    prepare(&f, ctx, "c.jsonl", NBL_DATA_CHAT);
    refuse(&f, "c.jsonl: line 2: the field \"messages\" is empty");
    f.config.skip_bad_rows = true;
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    assert_int_equal(nbl__data_count(f.data).dropped, 7);
    assert_int_equal(nbl__data_count(f.data).bad, 7);
    expect(&f, 1, "<assistant\n[last>]\n");
    close_data(&f);
    nbl_context_destroy(ctx);
}

static void a_split_selects_rows_or_percent(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const struct {
        const char *split;
        int64_t first, last;
    } good[] = {{NULL, 0, 15},          {"train", 0, 15},        {"train[:4]", 0, 4},
                {"train[4:]", 4, 15},   {"train[-3:]", 12, 15},  {"train[10%:50%]", 2, 8},
                {"train[:200]", 0, 15}, {"train[-20%:]", 12, 15}};
    static const char *const bad[] = {"test",       "train[",       "train[1]",  "train[a:]",
                                      "train[5:2]", "train[:101%]", "train[:3]x"};
    int64_t first, last;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_ok(ctx, nbl__data_split(ctx, "f", good[i].split, 15, &first, &last));
        assert_int_equal(first, good[i].first);
        assert_int_equal(last, good[i].last);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(nbl__data_split(ctx, "f", bad[i], 15, &first, &last), NBL_ERROR_ARGUMENT);
    fixture f;
    put("s.txt", "a\nb\nc\nd\n");
    prepare(&f, ctx, "s.txt", NBL_DATA_COMPLETION);
    f.dataset.split = "train[25%:-1]";
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    expect(&f, 0, "[^b>]");
    close_data(&f);
    nbl_context_destroy(ctx);
}

/* ---- rows that are left out ---- */

static void long_rows_are_dropped_cut_or_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("l.jsonl", "{\"segments\": [{\"label\": true, \"text\": \"123456\"}]}\n{\"segments\": [{\"label\": "
                   "true, \"text\": "
                   "\"1234\"}]}\n{\"segments\": [{\"label\": false, \"text\": \"1234\"}, {\"label\": true, "
                   "\"text\": \"5\"}]}\n");
    prepare(&f, ctx, "l.jsonl", NBL_DATA_SEGMENTS);
    f.config.sequence_len = 4;
    open_data(&f);
    nbl__data_counts counts = nbl__data_count(f.data);
    assert_int_equal(counts.examples, 1);
    assert_int_equal(counts.dropped, 2);
    assert_int_equal(counts.too_long, 2);
    close_data(&f);
    f.config.excess = NBL_EXCESS_TRUNCATE;
    open_data(&f);
    counts = nbl__data_count(f.data);
    assert_int_equal(counts.examples, 2);
    assert_int_equal(counts.truncated, 1);
    assert_int_equal(counts.dropped, 1); /* what was trained of it was cut off */
    assert_int_equal(counts.untrained, 1);
    expect(&f, 0, "[1234]");
    close_data(&f);
    f.config.excess = NBL_EXCESS_RAISE;
    refuse(&f, "l.jsonl: line 1: 6 tokens, sequence_len is 4");
    nbl_context_destroy(ctx);
}

static void short_and_equal_examples_are_dropped_on_demand(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
#define SEGMENTS(label, text)                                                                                \
    "{\"segments\": [{\"label\": " label ", \"text\": \"" text "\"}, {\"label\": true, \"text\": \"!\"}]}\n"
    put("l.jsonl", SEGMENTS("true", "12") SEGMENTS("false", "12") SEGMENTS("true", "12") SEGMENTS("true", "1")
                       SEGMENTS("true", "1"));
    put("m.jsonl", SEGMENTS("false", "12") SEGMENTS("true", "123456"));
    prepare(&f, ctx, "l.jsonl", NBL_DATA_SEGMENTS);
    f.config.deduplicate = true;
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 3);
    assert_int_equal(nbl__data_count(f.data).duplicates, 2);
    expect(&f, 0, "[12!]");
    expect(&f, 1, "12[!]"); /* other labels */
    expect(&f, 2, "[1!]");
    close_data(&f);
    f.config.min_sample_len = 3;
    open_data(&f);
    assert_int_equal(nbl__data_count(f.data).examples, 2);
    assert_int_equal(nbl__data_count(f.data).too_short, 2);
    assert_int_equal(nbl__data_count(f.data).dropped, 3);
    close_data(&f);
    f.config.min_sample_len = 64;
    refuse(&f, "nothing to train on: 5 rows were dropped (5 too short)");
    nbl_context_destroy(ctx);
}

static void many_examples_are_told_apart(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__duplicates seen = {0};
    for (int round = 0; round < 2; round++)
        for (int32_t i = 0; i < 20000; i++) {
            int32_t ids[3] = {i / 100, i % 100, 5}, labels[3] = {-100, i % 100, i % 2};
            bool fresh;
            assert_ok(ctx, nbl__duplicates_add(&seen, ctx, ids, labels, 3, &fresh));
            assert_int_equal(fresh, round == 0);
        }
    assert_int_equal(seen.count, 20000);
    nbl__duplicates_free(&seen, ctx);
    nbl_context_destroy(ctx);
}

static void a_name_of_the_hub_says_how_to_get_the_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    fixture f;
    put("l.jsonl", "{\"text\": \"a\"}\n");
    prepare(&f, ctx, "l.jsonl", NBL_DATA_COMPLETION);
    f.dataset.path = "mhenrichsen/alpaca_2k_test";
    refuse(&f, "mhenrichsen/alpaca_2k_test");
    assert_non_null(strstr(nbl_error_hint(ctx), "hf download --repo-type dataset"));
    f.dataset.path = "nowhere/rows.jsonl";
    refuse(&f, "nowhere/rows.jsonl");
    assert_null(nbl_error_hint(ctx) ? strstr(nbl_error_hint(ctx), "hub") : NULL);
    f.dataset.path = "/tmp";
    refuse(&f, "a folder");
    assert_non_null(strstr(nbl_error_hint(ctx), "data_files"));
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_from_lines_with_marks_blanks_and_no_last_newline),
        cmocka_unit_test(a_json_list_is_rows),
        cmocka_unit_test(csv_has_quotes_commas_and_line_ends_in_fields),
        cmocka_unit_test(every_line_of_a_text_file_is_a_row),
        cmocka_unit_test(what_is_wrong_with_a_file_is_said_with_its_line),
        cmocka_unit_test(bad_rows_are_dropped_and_counted_when_the_run_says_so),
        cmocka_unit_test(a_split_selects_rows_or_percent),
        cmocka_unit_test(long_rows_are_dropped_cut_or_refused),
        cmocka_unit_test(short_and_equal_examples_are_dropped_on_demand),
        cmocka_unit_test(many_examples_are_told_apart),
        cmocka_unit_test(a_name_of_the_hub_says_how_to_get_the_rows),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
