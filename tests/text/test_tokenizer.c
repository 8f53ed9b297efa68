/* test_tokenizer.c - tokenizers: ids and texts of the tokenizers library (data/tokenizers.json, made by
 * oracle/make_tokenizer_golden.py), damaged files, streams, long texts, and memory that runs out. */
#include "support.h"

#include <time.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "text/chars.h"
#include "text/unicode/regex.h"

static nbl_context *golden_ctx;
static nbl__arena golden_arena;
static const nbl__json *golden;

static int set_up(void **state)
{
    (void)state;
    static const char path[] = TEST_DATA_DIR "/tokenizers.json";
    size_t size;
    char *text = (char *)read_file(path, &size);
    golden_ctx = new_context();
    golden_arena = nbl__arena_make(golden_ctx);
    assert_ok(golden_ctx, nbl__json_parse(&golden_arena, path, text, size, NBL_JSON_SERDE, &golden));
    free(text);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    nbl__arena_free(&golden_arena);
    nbl_context_destroy(golden_ctx);
    return 0;
}

/* NULL behind the end of the list. */
static const nbl__json *item_of(const nbl__json *list, size_t i)
{
    return i < (size_t)list->count ? &list->items[i] : NULL;
}

static nbl_tokenizer *open_case(nbl_context *ctx, size_t i, const nbl__json **rows)
{
    const nbl__json *entry = item_of(nbl__json_get(golden, "cases"), i);
    if (entry == NULL) return NULL;
    const nbl__json *text = nbl__json_get(entry, "tokenizer");
    nbl_tokenizer *tokenizer;
    *rows = nbl__json_get(entry, "rows");
    assert_ok(ctx, nbl_tokenizer_parse(ctx, "tokenizer.json", text->string, (size_t)text->count, &tokenizer));
    nbl_tokenizer_set_truncation_and_padding(tokenizer, 1);
    return tokenizer;
}

static nbl_string text_of(const nbl__json *row, const char *key)
{
    const nbl__json *value = nbl__json_get(row, key);
    return (nbl_string){value->string, (size_t)value->count};
}

static void assert_ids(const nbl__json *want, const nbl_ids *ids)
{
    assert_int_equal((size_t)want->count, ids->count);
    for (int64_t i = 0; i < ids->count; i++) assert_int_equal(item_of(want, (size_t)i)->integer, ids->ids[i]);
}

static void ids_are_those_of_the_tokenizers_library(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tokenizer *tokenizer;
    const nbl__json *rows, *row;
    for (size_t i = 0; (tokenizer = open_case(ctx, i, &rows)) != NULL; i++) {
        for (size_t k = 0; (row = item_of(rows, k)) != NULL; k++) {
            nbl_string text = text_of(row, "text");
            nbl_ids ids;
            assert_ok(ctx, nbl_tokenizer_encode(tokenizer, text.text, text.size, 1, &ids));
            assert_ids(nbl__json_get(row, "special"), &ids);
            nbl_ids_free(ctx, &ids);
            assert_ok(ctx, nbl_tokenizer_encode(tokenizer, text.text, text.size, 0, &ids));
            assert_ids(nbl__json_get(row, "plain"), &ids);
            nbl_ids_free(ctx, &ids);
        }
        nbl_tokenizer_close(tokenizer);
    }
    nbl_context_destroy(ctx);
}

static nbl_ids ids_of(const nbl__json *row, const char *key)
{
    const nbl__json *list = nbl__json_get(row, key);
    nbl_ids ids = {calloc((size_t)list->count + 1, sizeof *ids.ids), list->count};
    for (int64_t i = 0; i < ids.count; i++) ids.ids[i] = (int32_t)item_of(list, (size_t)i)->integer;
    return ids;
}

static void decoded_texts_are_those_of_the_tokenizers_library(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tokenizer *tokenizer;
    const nbl__json *rows, *row;
    for (size_t i = 0; (tokenizer = open_case(ctx, i, &rows)) != NULL; i++) {
        for (size_t k = 0; (row = item_of(rows, k)) != NULL; k++) {
            nbl_ids ids = ids_of(row, "special");
            for (int skip = 0; skip < 2; skip++) {
                nbl_string want = text_of(row, skip ? "bare" : "decoded");
                char *text;
                size_t size;
                assert_ok(ctx, nbl_tokenizer_decode(tokenizer, ids.ids, ids.count, skip, &text, &size));
                assert_int_equal(size, want.size);
                assert_memory_equal(text, want.text, size);
                nbl_text_free(ctx, text, size);
            }
            free(ids.ids);
        }
        nbl_tokenizer_close(tokenizer);
    }
    nbl_context_destroy(ctx);
}

static void a_batch_on_any_number_of_threads_is_the_same(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads += 3) {
        nbl_context *ctx = new_context_with(threads);
        const nbl__json *rows;
        nbl_tokenizer *tokenizer = open_case(ctx, 0, &rows);
        size_t count = (size_t)rows->count;
        nbl_string *texts = calloc(count * 20, sizeof *texts);
        nbl_ids *lists = calloc(count * 20, sizeof *lists);
        for (size_t i = 0; i < count * 20; i++) texts[i] = text_of(item_of(rows, i % count), "text");
        assert_ok(ctx, nbl_tokenizer_encode_batch(tokenizer, (int64_t)count * 20, texts, 1, lists));
        for (size_t i = 0; i < count * 20; i++) {
            assert_ids(nbl__json_get(item_of(rows, i % count), "special"), &lists[i]);
            nbl_ids_free(ctx, &lists[i]);
        }
        free(texts);
        free(lists);
        nbl_tokenizer_close(tokenizer);
        nbl_context_destroy(ctx);
    }
}

/* ---- a tokenizer by hand ---- */

#define HEAD                                                                                                 \
    "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[],\"normalizer\":null,"
#define BYTES                                                                                                \
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_"      \
    "regex\":true},"
#define TAIL                                                                                                 \
    "\"post_processor\":null,\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_"         \
    "offsets\":true},"
#define MODEL                                                                                                \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"\xc3\x83\":3,\"\xc2\xa9\":4,\"aa\":"  \
    "5,\"aaaa\":6},"                                                                                         \
    "\"merges\":[[\"a\",\"b\"],[\"a\",\"a\"],[\"aa\",\"aa\"]]}}"

static nbl_status parse(nbl_context *ctx, const char *text, nbl_tokenizer **tokenizer)
{
    return nbl_tokenizer_parse(ctx, "m/tokenizer.json", text, strlen(text), tokenizer);
}

static void a_stream_never_splits_a_character(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tokenizer *tokenizer;
    nbl_text_stream *stream;
    nbl_string text;
    assert_ok(ctx, parse(ctx, HEAD BYTES TAIL MODEL, &tokenizer));
    assert_ok(ctx, nbl_text_stream_open(tokenizer, 0, &stream));
    const struct {
        int32_t id;
        const char *text;
    } steps[] = {{0, "a"},
                 {3, ""},
                 {4, "\xc3\xa9"},
                 {2, "ab"},
                 {99, ""},
                 {3, ""},
                 {1, "\xef\xbf\xbd"
                     "b"}};
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_ok(ctx, nbl_text_stream_push(stream, steps[i].id, &text));
        assert_int_equal(text.size, strlen(steps[i].text));
        assert_memory_equal(text.text, steps[i].text, text.size);
    }
    assert_ok(ctx, nbl_text_stream_push(stream, 3, &text));
    assert_int_equal(text.size, 0);
    assert_ok(ctx, nbl_text_stream_finish(stream, &text));
    assert_int_equal(text.size, 3);
    nbl_text_stream_close(stream);
    nbl_tokenizer_close(tokenizer);
    nbl_context_destroy(ctx);
}

static void streams_of_any_decoder_hand_out_whole_characters(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tokenizer *tokenizer;
    const nbl__json *rows, *row;
    for (size_t i = 0; (tokenizer = open_case(ctx, i, &rows)) != NULL; i++) {
        nbl_text_stream *stream;
        nbl_string text;
        assert_ok(ctx, nbl_text_stream_open(tokenizer, 0, &stream));
        for (size_t k = 0; (row = item_of(rows, k)) != NULL; k++) {
            nbl_ids ids = ids_of(row, "special");
            for (int64_t n = 0; n <= ids.count; n++) {
                assert_ok(ctx, n < ids.count ? nbl_text_stream_push(stream, ids.ids[n], &text)
                                             : nbl_text_stream_finish(stream, &text));
                assert_int_equal(nbl__utf8_check(text.text, text.size), text.size);
            }
            free(ids.ids);
        }
        nbl_text_stream_close(stream);
        nbl_tokenizer_close(tokenizer);
    }
    nbl_context_destroy(ctx);
}

static void a_megabyte_without_a_space_takes_no_quadratic_time(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tokenizer *tokenizer;
    nbl_ids ids;
    size_t size = 1 << 20;
    char *text = malloc(size);
    memset(text, 'a', size);
    assert_ok(ctx, parse(ctx, HEAD BYTES TAIL MODEL, &tokenizer));
    clock_t begin = clock();
    assert_ok(ctx, nbl_tokenizer_encode(tokenizer, text, size, 0, &ids));
    assert_true((double)(clock() - begin) / CLOCKS_PER_SEC < 20); /* quadratic would be hours */
    assert_int_equal(ids.count, size / 4);
    nbl_ids_free(ctx, &ids);
    nbl_tokenizer_close(tokenizer);
    nbl_context_destroy(ctx);
    free(text);
}

/* From every place of a text of `a` such a token is followed to its end: 8 MB of it took hours. */
static void tokens_that_are_searched_from_every_byte_are_short(void **state)
{
    (void)state;
    static const struct {
        const char *before, *after;
    } forms[] = {
        {"{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[{\"id\":7,\"content\":"
         "\"",
         "\",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":true}],"
         "\"normalizer\":null," BYTES TAIL MODEL},
        {HEAD "\"pre_tokenizer\":null,\"post_processor\":null,\"decoder\":null,"
              "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"<unk>\",0],[\"",
         "\",-1]],\"byte_fallback\":false}}"}};
    nbl_context *ctx = new_context();
    for (int i = 0; i < 2; i++)
        for (size_t size = 1024; size <= 1025; size++) {
            char token[1026] = {0}, text[4096];
            nbl_tokenizer *tokenizer;
            memset(token, 'a', size);
            snprintf(text, sizeof text, "%s%s%s", forms[i].before, token, forms[i].after);
            if (size == 1024) {
                assert_ok(ctx, parse(ctx, text, &tokenizer));
            } else {
                assert_int_equal(parse(ctx, text, &tokenizer), NBL_ERROR_UNSUPPORTED);
                assert_non_null(strstr(nbl_error_message(ctx), "m/tokenizer.json: the token \"aaaa"));
            }
            nbl_tokenizer_close(tokenizer);
        }
    nbl_context_destroy(ctx);
}

static void truncation_and_padding_are_applied_only_when_asked_for(void **state)
{
    (void)state;
    static const char limits[] =
        "{\"version\":\"1.0\",\"truncation\":{\"direction\":\"Right\",\"max_length\":2,\"strategy\":"
        "\"LongestFirst\",\"stride\":0},\"padding\":{\"strategy\":{\"Fixed\":4},\"direction\":\"Right\","
        "\"pad_to_multiple_of\":null,\"pad_id\":6,\"pad_type_id\":0,\"pad_token\":\"aaaa\"},"
        "\"added_tokens\":[],\"normalizer\":null," BYTES TAIL MODEL;
    static const int32_t whole[] = {1, 1, 1, 1, 1}, limited[] = {1, 1, 6, 6};
    nbl_context *ctx = new_context();
    nbl_tokenizer *tokenizer;
    nbl_ids ids;
    assert_ok(ctx, parse(ctx, limits, &tokenizer));
    for (int on = 0; on < 2; on++) {
        nbl_tokenizer_set_truncation_and_padding(tokenizer, on);
        assert_ok(ctx, nbl_tokenizer_encode(tokenizer, "bbbbb", 5, 1, &ids));
        assert_int_equal(ids.count, on ? 4 : 5);
        assert_memory_equal(ids.ids, on ? limited : whole, (size_t)ids.count * sizeof *ids.ids);
        nbl_ids_free(ctx, &ids);
        assert_ok(ctx, nbl_tokenizer_encode(tokenizer, "b", 1, 1, &ids));
        assert_int_equal(ids.count, on ? 4 : 1);
        nbl_ids_free(ctx, &ids);
    }
    nbl_tokenizer_close(tokenizer);
    nbl_context_destroy(ctx);
}

static void text_that_is_not_utf8_is_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tokenizer *tokenizer;
    nbl_ids ids;
    assert_ok(ctx, parse(ctx, HEAD BYTES TAIL MODEL, &tokenizer));
    assert_int_equal(nbl_tokenizer_encode(tokenizer, "ab\xff", 3, 0, &ids), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "UTF-8"));
    assert_int_equal(nbl_tokenizer_encode(tokenizer, "\xed\xa0\x80", 3, 0, &ids), NBL_ERROR_FORMAT);
    nbl_tokenizer_close(tokenizer);
    nbl_context_destroy(ctx);
}

static void a_damaged_file_is_refused_with_its_fault(void **state)
{
    (void)state;
#define PRE(text) HEAD "\"pre_tokenizer\":" text "," TAIL MODEL
#define SPLIT(regex)                                                                                         \
    PRE("{\"type\":\"Split\",\"behavior\":\"Isolated\",\"invert\":false,\"pattern\":{\"Regex\":\"" regex     \
        "\"}}")
#define MERGES(list)                                                                                         \
    HEAD BYTES TAIL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":" list "}}"
    static const char *const bad[][2] = {
        {"", "JSON"},
        {"[]", "object"},
        {"{}", "model"},
        {HEAD BYTES TAIL "\"model\":{\"type\":\"Telepathy\"}}", "Telepathy"},
        {HEAD BYTES TAIL "\"model\":{\"type\":\"BPE\",\"merges\":[]}}", "vocab"},
        {HEAD BYTES TAIL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":-1},\"merges\":[]}}", "vocab"},
        {HEAD BYTES TAIL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":4294967295},\"merges\":[]}}", "vocab"},
        {HEAD BYTES TAIL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":7,\"b\":7},\"merges\":[]}}", "7"},
        {MERGES("[[\"a\",\"b\"]]"), "ab"},
        {MERGES("[[\"a\"]]"), "merge 0"},
        {MERGES("[\"a b\",[\"a\",\"b\"]]"), "merge"},
        {PRE("{\"type\":\"Clairvoyant\"}"), "Clairvoyant"},
        {PRE("{\"type\":\"Sequence\",\"pretokenizers\":5}"), "pretokenizers"},
        {PRE("{\"type\":\"UnicodeScripts\"}"), "UnicodeScripts"},
        {SPLIT("(a"), "regex"},
        {SPLIT("[z-a]"), "regex"},
        {SPLIT("\\\\p{Nonsense}"), "regex"},
        {SPLIT("\\\\X"), "regex"},
        {SPLIT("[[:nonsense:]]"), "regex"},
        {SPLIT("(?s:a)"), "regex"},
        {SPLIT("a\\\\"), "regex"},
        {HEAD BYTES TAIL "\"model\":{\"type\":\"Unigram\",\"unk_id\":3,\"vocab\":[[\"a\",0.5]]}}", "unk_id"},
        {HEAD BYTES TAIL "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"a\",\"x\"]]}}", "vocab"},
    };
    nbl_context *ctx = new_context();
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        nbl_tokenizer *tokenizer;
        nbl_status status = parse(ctx, bad[i][0], &tokenizer);
        if (status == NBL_OK) fail_msg("taken: %s", bad[i][0]);
        assert_null(tokenizer);
        if (strstr(nbl_error_message(ctx), bad[i][1]) == NULL ||
            strstr(nbl_error_message(ctx), "m/tokenizer.json") == NULL)
            fail_msg("\"%s\" does not name %s", nbl_error_message(ctx), bad[i][1]);
    }
    nbl_context_destroy(ctx);
}

/* A merge that gives back one of its parts, and merges that lead from each other to the same token. */
static void merges_in_a_circle_come_to_an_end(void **state)
{
    (void)state;
    static const char *const texts[] = {
        HEAD BYTES TAIL "\"model\":{\"type\":\"BPE\",\"vocab\":{\"\":0,\"a\":1,\"b\":2,\"ab\":3},"
                        "\"merges\":[[\"a\",\"\"],[\"\",\"a\"],[\"\",\"\"],[\"a\",\"b\"]]}}",
        HEAD BYTES TAIL
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":1,\"aa\":2,\"aaa\":3,\"aaaa\":4,\"b\":5},"
        "\"merges\":[[\"aaa\",\"a\"],[\"aa\",\"aa\"],[\"a\",\"aa\"],[\"aa\",\"a\"],[\"a\",\"a\"]]}}",
    };
    nbl_context *ctx = new_context();
    enum { LENGTH = 20000 };
    char *text = malloc(LENGTH);
    for (int i = 0; i < LENGTH; i++) text[i] = i % 7 == 6 ? 'b' : 'a';
    for (int i = 0; i < 2; i++) {
        nbl_tokenizer *tokenizer;
        nbl_ids ids;
        if (parse(ctx, texts[i], &tokenizer) != NBL_OK) continue; /* refused is as good */
        assert_ok(ctx, nbl_tokenizer_encode(tokenizer, text, LENGTH, 0, &ids));
        assert_true(ids.count > 0 && ids.count <= LENGTH);
        nbl_ids_free(ctx, &ids);
        nbl_tokenizer_close(tokenizer);
    }
    free(text);
    nbl_context_destroy(ctx);
}

static void a_regex_that_would_never_end_is_given_up(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_tokenizer *tokenizer;
    nbl_ids ids;
    char text[200];
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'b';
    assert_ok(ctx, parse(ctx, SPLIT("(a|a)*[cd]"), &tokenizer));
    assert_int_equal(nbl_tokenizer_encode(tokenizer, text, sizeof text, 0, &ids), NBL_ERROR_UNSUPPORTED);
    assert_non_null(strstr(nbl_error_message(ctx), "steps"));
    nbl_tokenizer_close(tokenizer);
    nbl_context_destroy(ctx);
}

/* ---- patterns of Oniguruma ---- */

/* The matches of a pattern in a text, each in brackets. */
static void matches(nbl_context *ctx, const char *pattern, const char *text, char *out)
{
    nbl__regex *regex;
    nbl__matcher matcher = {.ctx = ctx};
    nbl__search search;
    bool found;
    size_t begin, end;
    *out = '\0';
    assert_ok(ctx, nbl__regex_compile(ctx, "test", pattern, strlen(pattern), &regex));
    assert_ok(ctx, nbl__search_begin(&search, &matcher, regex, text, strlen(text)));
    for (;;) {
        assert_ok(ctx, nbl__search_next(&search, &found, &begin, &end));
        if (!found) break;
        out += sprintf(out, "[%.*s]", (int)(end - begin), text + begin);
    }
    nbl__matcher_free(&matcher);
    nbl__regex_free(ctx, regex);
}

static void patterns_mean_what_they_mean_in_ruby(void **state)
{
    (void)state;
    static const char *const rows[][3] = {
        {"^a", "ba\na", "[a]"},
        {"a$", "a\nab", "[a]"},
        {".", "\n", ""},
        {"(?m:.)", "\n", "[\n]"},
        {"\\h+", "fg1", "[f][1]"},
        {"[a-z&&[^b]]+", "abc", "[a][c]"},
        {"[a[bc]]+", "abcd", "[abc]"},
        {"[^a[bc]]+", "abcd", "[d]"},
        {"[]a]+", "]a[", "[]a]"},
        {"a{,2}b", "aaab", "[aab]"},
        {"(?:a{2}+)b", "aaaab", "[aaaab]"},
        {"\\s+",
         "a\xe1\xa0\x8e"
         "b\xe3\x80\x80",
         "[\xe3\x80\x80]"},
        {"(?i:'s)", "'\xc5\xbf'S", "['\xc5\xbf]['S]"},
        {"\\w+", "x\xc2\xb2", "[x\xc2\xb2]"},
        {"[\\w]+", "x\xc2\xb2", "[x]"},
        {"x*", "ab", "[][][]"},
        {"(.)\\1", "abba", "[bb]"},
        {"\\p{^L}+", "a12b", "[12]"},
        {"[[:punct:]]+", "a+.b", "[+.]"},
        {"\\bab\\b", "ab abc", "[ab]"},
        {"\\p{L}+", "\xf0\x91\xbc\x84\xf0\x91\xbc\x85",
         "[\xf0\x91\xbc\x84\xf0\x91\xbc\x85]"},                         /* of Unicode 15 */
        {"\\p{Han}", "\xf0\x9d\x8d\xae\xe6\x97\xa5", "[\xe6\x97\xa5]"}, /* a counting rod only extends Han */
        {"[^\\p{Han}]", "\xf0\x9d\x8d\xae\xe6\x97\xa5", "[\xf0\x9d\x8d\xae]"},
    };
    nbl_context *ctx = new_context();
    char found[256];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        matches(ctx, rows[i][0], rows[i][1], found);
        if (strcmp(found, rows[i][2]) != 0) fail_msg("%s in %s: %s", rows[i][0], rows[i][1], found);
    }
    nbl_context_destroy(ctx);
}

/* ---- memory ---- */

static nbl_status use_everything(nbl_context *ctx, const nbl__json *entry)
{
    const nbl__json *text = nbl__json_get(entry, "tokenizer"),
                    *row = item_of(nbl__json_get(entry, "rows"), 3);
    nbl_string input = text_of(row, "text");
    nbl_tokenizer *tokenizer;
    nbl_text_stream *stream = NULL;
    nbl_string piece;
    nbl_ids ids;
    char *decoded;
    size_t size;
    nbl_status status = nbl_tokenizer_parse(ctx, "tokenizer.json", text->string, (size_t)text->count,
                                            &tokenizer);
    if (status != NBL_OK) return status;
    nbl_tokenizer_set_truncation_and_padding(tokenizer, 1);
    status = nbl_tokenizer_encode(tokenizer, input.text, input.size, 1, &ids);
    if (status == NBL_OK) {
        status = nbl_tokenizer_decode(tokenizer, ids.ids, ids.count, 0, &decoded, &size);
        if (status == NBL_OK) nbl_text_free(ctx, decoded, size);
        if (status == NBL_OK) status = nbl_text_stream_open(tokenizer, 0, &stream);
        for (int64_t i = 0; status == NBL_OK && i < ids.count; i++)
            status = nbl_text_stream_push(stream, ids.ids[i], &piece);
        nbl_text_stream_close(stream);
        nbl_ids_free(ctx, &ids);
    }
    nbl_tokenizer_close(tokenizer);
    return status;
}

static void memory_that_runs_out_is_an_error_without_a_leak(void **state)
{
    (void)state;
    const nbl__json *cases = nbl__json_get(golden, "cases");
    for (size_t i = 0; i < (size_t)cases->count; i += 2) {
        for (int64_t fail_at = 2;; fail_at++) {
            nbl__counter counter = {0};
            nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                           .allocator = nbl__counting_allocator(&counter)};
            nbl_context *ctx;
            assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
            int64_t before = counter.calls;
            counter.fail_at = before + fail_at - 1;
            nbl_status status = use_everything(ctx, item_of(cases, i));
            bool reached = counter.calls >= counter.fail_at;
            nbl_context_destroy(ctx);
            assert_int_equal(counter.live, 0);
            if (!reached) {
                assert_int_equal(status, NBL_OK);
                break;
            }
            if (status != NBL_OK)
                assert_int_equal(status, NBL_ERROR_MEMORY); /* without its compiler a regex works as well */
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_are_those_of_the_tokenizers_library),
        cmocka_unit_test(decoded_texts_are_those_of_the_tokenizers_library),
        cmocka_unit_test(a_batch_on_any_number_of_threads_is_the_same),
        cmocka_unit_test(a_stream_never_splits_a_character),
        cmocka_unit_test(streams_of_any_decoder_hand_out_whole_characters),
        cmocka_unit_test(a_megabyte_without_a_space_takes_no_quadratic_time),
        cmocka_unit_test(tokens_that_are_searched_from_every_byte_are_short),
        cmocka_unit_test(truncation_and_padding_are_applied_only_when_asked_for),
        cmocka_unit_test(text_that_is_not_utf8_is_refused),
        cmocka_unit_test(a_damaged_file_is_refused_with_its_fault),
        cmocka_unit_test(merges_in_a_circle_come_to_an_end),
        cmocka_unit_test(a_regex_that_would_never_end_is_given_up),
        cmocka_unit_test(patterns_mean_what_they_mean_in_ruby),
        cmocka_unit_test(memory_that_runs_out_is_an_error_without_a_leak),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
