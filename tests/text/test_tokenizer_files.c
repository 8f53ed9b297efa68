/* test_tokenizer_files.c - tokenizers without tokenizer.json: each folder of data/tokenizer_files becomes the tokenizer.json
 * that transformers makes of it (upstream.json, by oracle/make_tokenizer_files_golden.py); damaged files, the order of the
 * files, and memory that runs out. */
#include "faults.h"

#include "text/base64.h"
#include "text/files/tokenizer_files.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/vocab/vocab_export.h"

#define FOLDERS TEST_DATA_DIR "/tokenizer_files"

/* The values are equal; objects in any order. Prints where they differ. */
static bool equal(const nbl__json *a, const nbl__json *b, const char *path)
{
    char inner[256];
    double x, y;
    if (a == NULL || b == NULL ||
        (a->type != b->type && !(nbl__json_number(a, &x) && nbl__json_number(b, &y)))) {
        print_message("%s: %s\n", path, a && b ? "another type" : "missing");
        return false;
    }
    bool same = a->type < NBL_JSON_ARRAY || a->count == b->count;
    if (nbl__json_number(a, &x)) same = nbl__json_number(b, &y) && x == y;
    if (a->type == NBL_JSON_STRING)
        same = a->count == b->count && memcmp(a->string, b->string, (size_t)a->count) == 0;
    if (!same) print_message("%s: differs\n", path);
    for (int64_t i = 0; same && a->type >= NBL_JSON_ARRAY && i < a->count; i++) {
        bool object = a->type == NBL_JSON_OBJECT;
        (void)snprintf(inner, sizeof inner, "%.180s/%.40s%d", path, object ? a->items[i].key : "", (int)i);
        same = equal(&a->items[i], object ? nbl__json_get(b, a->items[i].key) : &b->items[i], inner);
    }
    return same;
}

static const nbl__json *parse_file(nbl__arena *arena, const char *path)
{
    const nbl__json *root;
    size_t size;
    char *text = (char *)read_file(path, &size);
    assert_ok(arena->ctx, nbl__json_parse(arena, path, text, size, NBL_JSON_SERDE, &root));
    free(text);
    return root;
}

/* The tokenizer.json of a folder, parsed into the arena. */
static nbl_status convert(nbl__arena *arena, const char *folder, const nbl__json **root)
{
    const char *path;
    nbl__text json = {.ctx = arena->ctx};
    nbl_status status = nbl__tokenizer_find(arena, folder, &path);
    if (status == NBL_OK) {
        assert_non_null(path);
        status = nbl__tokenizer_text(arena->ctx, path, &json);
    }
    if (status == NBL_OK) status = nbl__json_parse(arena, path, json.text, json.size, NBL_JSON_SERDE, root);
    nbl__text_free(&json);
    return status;
}

static void every_folder_becomes_what_transformers_makes_of_it(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    DIR *list = opendir(FOLDERS);
    int count = 0;
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list)) != NULL;) {
        char folder[512];
        const nbl__json *made, *want;
        nbl_tokenizer *tokenizer;
        if (entry->d_name[0] == '.') continue;
        (void)snprintf(folder, sizeof folder, FOLDERS "/%s", entry->d_name);
        nbl__arena arena = nbl__arena_make(ctx);
        assert_ok(ctx, convert(&arena, folder, &made));
        want = parse_file(&arena, in_folder(folder, "upstream.json"));
        static const char *const parts[] = {"model",         "added_tokens",   "normalizer",
                                            "pre_tokenizer", "post_processor", "decoder"};
        for (int i = 0; i < 6; i++) {
            char name[300];
            (void)snprintf(name, sizeof name, "%s: %s", entry->d_name, parts[i]);
            assert_true(equal(nbl__json_get(want, parts[i]), nbl__json_get(made, parts[i]), name));
            assert_true(equal(nbl__json_get(made, parts[i]), nbl__json_get(want, parts[i]), name));
        }
        assert_ok(ctx, nbl_tokenizer_open(ctx, folder, &tokenizer));
        nbl_tokenizer_close(tokenizer);
        nbl__arena_free(&arena);
        count++;
    }
    closedir(list);
    assert_true(count >= 22);
    nbl_context_destroy(ctx);
}

/* ---- files that are not what they should be ---- */

static char room[64];

static int make_room(void **state)
{
    (void)state;
    make_temp(room);
    return 0;
}

static int remove_room(void **state)
{
    (void)state;
    remove_tree(room);
    return 0;
}

static void put(const char *name, const char *text)
{
    write_file(room, name, text, strlen(text));
}

static void refused(nbl_context *ctx, nbl_status want, const char *part)
{
    nbl_tokenizer *tokenizer;
    nbl_status status = nbl_tokenizer_open(ctx, room, &tokenizer);
    if (status != want || strstr(nbl_error_message(ctx), part) == NULL)
        fail_msg("%s: %s; wanted %s: %s", nbl_status_name(status), nbl_error_message(ctx),
                 nbl_status_name(want), part);
    assert_null(tokenizer);
}

static void broken_files_are_named(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    refused(ctx, NBL_ERROR_NOT_FOUND, "/tokenizer.json: no such file; nor is there a tekken.json");
    put("vocab.json", "{\"a\": 0, \"b\": 1}");
    refused(ctx, NBL_ERROR_NOT_FOUND, "/vocab.json: no merges.txt");
    put("merges.txt", "a b c\n");
    put("tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\"}");
    refused(ctx, NBL_ERROR_FORMAT, "merges.txt: line 1 is not two texts");
    put("merges.txt", "#version: 0.2\na b\n");
    refused(ctx, NBL_ERROR_FORMAT, "needs the token \"ab\"");
    put("merges.txt", "");
    put("tokenizer_config.json", "{\"tokenizer_class\": \"BertTokenizer\"}");
    refused(ctx, NBL_ERROR_UNSUPPORTED, "tokenizer_class \"BertTokenizer\" does not either");
    put("tokenizer_config.json", "{}");
    refused(ctx, NBL_ERROR_UNSUPPORTED, "set tokenizer_class in tokenizer_config.json");
    put("tokenizer_config.json", "{\"added_tokens_decoder\": {\"x\": {\"content\": \"a\"}}}");
    refused(ctx, NBL_ERROR_FORMAT, "tokenizer_config.json: added_tokens_decoder: \"x\"");
    put("tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\"}");
    put("vocab.json", "{}, \"merges\": [], \"x\": {\"a\": 0}"); /* would be good inside of a tokenizer.json */
    refused(ctx, NBL_ERROR_FORMAT, "/vocab.json: not valid JSON");

    put("tiktoken.model", "YQ== 0\nYg==\n");
    refused(ctx, NBL_ERROR_FORMAT, "/tiktoken.model: line 2 is not a base64 text and a rank");
    put("tiktoken.model", "YQ== 0\nY 1\n");
    refused(ctx, NBL_ERROR_FORMAT, "token 1 is not base64");
    put("tokenizer.model", "no protobuf");
    refused(ctx, NBL_ERROR_FORMAT, "/tokenizer.model: neither a SentencePiece model nor lines");
    put("tokenizer.model", "\x0a\x03\x0a\x01\xff");
    refused(ctx, NBL_ERROR_FORMAT, "piece 0 of the SentencePiece model is broken");
    put("tokenizer.model", "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    refused(ctx, NBL_ERROR_FORMAT, "neither a SentencePiece model");

    put("tekken.json", "{\"vocab\": []}");
    refused(ctx, NBL_ERROR_FORMAT, "config has no \"pattern\"");
    put("tekken.json", "{\"config\": {\"pattern\": \".\"}, \"vocab\": [], \"special_tokens\": "
                       "[{\"rank\": 1, \"token_str\": \"a\"}]}");
    refused(ctx, NBL_ERROR_FORMAT, "special_tokens: entry 0 needs");
    put("tekken.json", "{\"config\": {\"pattern\": \".\", \"default_vocab_size\": 1}, \"vocab\": []}");
    refused(ctx, NBL_ERROR_FORMAT, "\"default_vocab_size\" is not a number from 20");
    put("tokenizer.json", "{}");
    refused(ctx, NBL_ERROR_FORMAT, "/tokenizer.json: \"model\" is missing");
    nbl_context_destroy(ctx);
}

/* Files cut at every length, and with one byte changed, are read or refused. */
static void damaged_models_are_read_or_refused(void **state)
{
    (void)state;
    static const char *const paths[] = {"/unigram/tokenizer.model", "/tekken/tekken.json",
                                        "/tiktoken/tokenizer.model"};
    nbl_context *ctx = new_context();
    for (int i = 0; i < 3; i++) {
        char path[512];
        size_t size;
        const char *name = strrchr(paths[i], '/') + 1;
        (void)snprintf(path, sizeof path, FOLDERS "%s", paths[i]);
        uint8_t *bytes = read_file(path, &size);
        for (size_t n = 0; n < 300; n++) {
            size_t at = n * size / 300;
            nbl__text json = {.ctx = ctx};
            bytes[at] ^= (uint8_t)(1 << n % 8);
            write_file(room, name, bytes, n % 2 ? at : size);
            nbl_status status = nbl__tokenizer_text(ctx, in_folder(room, name), &json);
            assert_true(status == NBL_OK || status == NBL_ERROR_FORMAT || status == NBL_ERROR_UNSUPPORTED);
            nbl__text_free(&json);
            bytes[at] ^= (uint8_t)(1 << n % 8);
        }
        free(bytes);
    }
    nbl_context_destroy(ctx);
}

static void the_files_count_in_order(void **state)
{
    (void)state;
    static const char *const names[] = {"vocab.json", "tiktoken.model", "tokenizer.model", "tekken.json",
                                        "tokenizer.json"};
    nbl_context *ctx = new_context();
    nbl__arena arena = nbl__arena_make(ctx);
    const char *path;
    assert_ok(ctx, nbl__tokenizer_find(&arena, room, &path));
    assert_null(path);
    for (int i = 0; i < 5; i++) {
        put(names[i], "");
        assert_ok(ctx, nbl__tokenizer_find(&arena, room, &path));
        assert_string_equal(strrchr(path, '/') + 1, names[i]);
    }
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

static nbl_status convert_folder(nbl_context *ctx, int number)
{
    static const char *const paths[] = {FOLDERS "/llama-marked/tokenizer.model",
                                        FOLDERS "/t5/tokenizer.model", FOLDERS "/tekken-settings/tekken.json",
                                        FOLDERS "/tiktoken/tokenizer.model",
                                        FOLDERS "/gpt2-prefix/vocab.json"};
    nbl__text json = {.ctx = ctx};
    nbl_status status = nbl__tokenizer_text(ctx, paths[number], &json);
    nbl__text_free(&json);
    return status;
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    for (int i = 0; i < 5; i++) each_allocation_fails(convert_folder, i, room, 0);
}

/* The pre-tokenizers of models that are fine-tuned today, and the names that llama.cpp has for them. */
static void gguf_names_of_pre_tokenizers(void **state)
{
    (void)state;
#define CONTRACTIONS "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define TAIL "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CASED(end, digits)                                                                                   \
    "[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" end "|[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" end       \
    "|" digits "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
    static const struct {
        const char *pattern;
        const char *name;
    } rows[] = {
        {CASED(CONTRACTIONS "?", "\\p{N}{1,3}"), "gpt-4o"}, /* GPT-OSS, Phi-4-mini, Llama 4 */
        {CASED("", "\\p{N}"), "tekken"},                    /* Ministral */
        {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" TAIL, "llama-bpe"}, /* SmolLM3 */
        {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TAIL, "qwen2"},
        {CONTRACTIONS "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                      "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
         "qwen35"},
    };
    char name[NBL_PRE_NAME];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_true(nbl__gguf_pre_name(&rows[i].pattern, 1, name));
        assert_string_equal(name, rows[i].name);
    }
    const char *const digits[] = {"\\p{N}", NBL_GPT2_PATTERN}; /* Granite, Cohere: as refact and command-r */
    assert_true(nbl__gguf_pre_name(digits, 2, name));
    assert_string_equal(name, "smollm");
    assert_true(nbl__gguf_pre_name(&digits[1], 1, name)); /* OLMo */
    assert_string_equal(name, "gpt-2");
}

static void base64_goes_both_ways(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    unsigned char bytes[40], back[64];
    for (size_t size = 0; size < sizeof bytes; size++) {
        nbl__text text = {.ctx = ctx};
        for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 37 + size);
        nbl__base64_add(&text, bytes, size);
        assert_int_equal(nbl__base64_read(text.text ? text.text : "", text.size, back), size);
        if (size) assert_memory_equal(bytes, back, size);
        nbl__text_free(&text);
    }
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_folder_becomes_what_transformers_makes_of_it),
        cmocka_unit_test_setup_teardown(broken_files_are_named, make_room, remove_room),
        cmocka_unit_test_setup_teardown(damaged_models_are_read_or_refused, make_room, remove_room),
        cmocka_unit_test_setup_teardown(the_files_count_in_order, make_room, remove_room),
        cmocka_unit_test_setup_teardown(every_allocation_may_fail, make_room, remove_room),
        cmocka_unit_test(gguf_names_of_pre_tokenizers),
        cmocka_unit_test(base64_goes_both_ways)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
