/* test_tokenizer_files.c - tokenizers without tokenizer.json: each folder of data/tokenizer_files becomes the tokenizer.json
 * that transformers makes of it (upstream.json, by oracle/make_tokenizer_files_golden.py); damaged files, the order of the
 * files, and memory that runs out. */
#include "support.h"

#include "base/alloc.h"
#include "text/base64.h"
#include "text/files/tokenizer_files.h"
#include "text/files/sentencepiece.h"

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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_folder_becomes_what_transformers_makes_of_it)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
