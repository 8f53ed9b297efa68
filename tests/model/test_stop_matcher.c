/* test_stop_matcher.c - stop strings in a text that comes in pieces: what is shown, what is held back, where it ends. */
#include "support.h"

static nbl_string string_of(const char *text)
{
    return (nbl_string){text, strlen(text)};
}

static nbl_stop_matcher *matcher_of(nbl_context *ctx, int64_t count, const char *const *stops)
{
    nbl_string strings[8];
    nbl_stop_matcher *m;
    for (int64_t i = 0; i < count; i++) strings[i] = string_of(stops[i]);
    assert_ok(ctx, nbl_stop_matcher_open(ctx, strings, count, &m));
    return m;
}

/* Pushes a piece; it must show `shown` and say `stopped`. */
static void push(nbl_context *ctx, nbl_stop_matcher *m, const char *piece, const char *shown, bool stopped)
{
    nbl_string got;
    bool end = !stopped;
    assert_ok(ctx, nbl_stop_matcher_push(m, string_of(piece), &got, &end));
    assert_int_equal(got.size, strlen(shown));
    assert_memory_equal(got.text, shown, got.size);
    assert_int_equal(end, stopped);
}

static void finish(nbl_stop_matcher *m, const char *rest)
{
    nbl_string got = nbl_stop_matcher_finish(m);
    assert_int_equal(got.size, strlen(rest));
    assert_memory_equal(got.text, rest, got.size);
}

static void a_stop_string_across_pieces_is_found_and_never_shown(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_stop_matcher *m = matcher_of(ctx, 1, (const char *const[]){"<|end|>"});
    push(ctx, m, "Hello, wo", "Hello, wo", 0);
    push(ctx, m, "rld <", "rld ", 0);
    push(ctx, m, "|e", "", 0);
    push(ctx, m, "nd|> more", "", 1);
    push(ctx, m, "and more", "", 1);
    finish(m, "");
    push(ctx, m, "it begins anew <", "it begins anew ", 0);
    finish(m, "<");
    nbl_stop_matcher_close(m);
    nbl_context_destroy(ctx);
}

static void what_was_held_back_is_shown_once_it_cannot_be_a_stop_string(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_stop_matcher *m = matcher_of(ctx, 1, (const char *const[]){"aab"});
    push(ctx, m, "a", "", 0);
    push(ctx, m, "a", "", 0);
    push(ctx, m, "a", "a", 0); /* "aa" may still become "aab" */
    push(ctx, m, "c", "aac", 0);
    push(ctx, m, "aaa", "a", 0);
    push(ctx, m, "b", "", 1);
    nbl_stop_matcher_close(m);
    nbl_context_destroy(ctx);
}

static void the_first_string_to_be_complete_counts_and_the_longest_of_those(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_stop_matcher *m = matcher_of(ctx, 3, (const char *const[]){"abcd", "bc", "xbc"});
    push(ctx, m, "-abcd", "-a", 1);
    finish(m, "");
    push(ctx, m, "-xbcd", "-", 1);
    nbl_stop_matcher_close(m);
    nbl_context_destroy(ctx);
}

static void without_stop_strings_everything_is_shown(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_stop_matcher *m = matcher_of(ctx, 0, NULL);
    push(ctx, m, "", "", 0);
    push(ctx, m, "any\xc3\xa9", "any\xc3\xa9", 0);
    finish(m, "");
    nbl_stop_matcher_close(m);
    nbl_stop_matcher_close(NULL);
    nbl_context_destroy(ctx);
}

static void empty_and_broken_stop_strings_are_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_stop_matcher *m;
    nbl_string bad[] = {{"ok", 2}, {"", 0}};
    assert_int_equal(nbl_stop_matcher_open(ctx, bad, 2, &m), NBL_ERROR_ARGUMENT);
    assert_null(m);
    assert_non_null(strstr(nbl_error_message(ctx), "stop string 1 is empty"));
    bad[1] = (nbl_string){"\xc3", 1};
    assert_int_equal(nbl_stop_matcher_open(ctx, bad, 2, &m), NBL_ERROR_ARGUMENT);
    assert_int_equal(nbl_stop_matcher_open(ctx, NULL, 1, &m), NBL_ERROR_ARGUMENT);
    nbl_context_destroy(ctx);
}

/* Random texts of two letters, cut at random: as searching the whole text, byte by byte, would have it. */
static void any_pieces_give_what_the_whole_text_gives(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    uint32_t random = 1;
    for (int round = 0; round < 3000; round++) {
        char text[41], stops[3][6], shown[64];
        const char *list[3];
        size_t used = 0, cut = 40;
        for (int i = 0; i < 40; i++) text[i] = "ab"[(random = random * 1664525 + 1013904223) >> 31];
        text[40] = '\0';
        for (int s = 0; s < 3; s++) {
            size_t n = 3 + (size_t)((random = random * 1664525 + 1013904223) >> 30) % 3;
            for (size_t i = 0; i < n; i++) stops[s][i] = "ab"[(random = random * 1664525 + 1013904223) >> 31];
            stops[s][n] = '\0';
            list[s] = stops[s];
        }
        bool found = false;
        for (size_t end = 1; end <= 40 && !found; end++)
            for (int s = 0; s < 3; s++) {
                size_t n = strlen(stops[s]);
                if (n > end || memcmp(text + end - n, stops[s], n) != 0) continue;
                if (!found || end - n < cut) cut = end - n;
                found = true;
            }
        nbl_stop_matcher *m = matcher_of(ctx, 3, list);
        bool stopped = false;
        nbl_string piece;
        for (size_t at = 0, n; at < 40; at += n) {
            n = 1 + (size_t)((random = random * 1664525 + 1013904223) >> 29);
            if (n > 40 - at) n = 40 - at;
            assert_ok(ctx, nbl_stop_matcher_push(m, (nbl_string){text + at, n}, &piece, &stopped));
            memcpy(shown + used, piece.text, piece.size);
            used += piece.size;
        }
        piece = nbl_stop_matcher_finish(m);
        memcpy(shown + used, piece.text, piece.size);
        used += piece.size;
        assert_int_equal(stopped, found);
        assert_int_equal(used, cut);
        assert_memory_equal(shown, text, used);
        nbl_stop_matcher_close(m);
    }
    nbl_context_destroy(ctx);
}

/* ---- memory that runs out ---- */

typedef struct faults {
    int64_t left, live; /* allocations until one fails; pieces that are held */
} faults;

static void *faulty_alloc(void *user, size_t size, size_t align)
{
    faults *f = user;
    void *memory;
    if (f->left-- <= 0 ||
        posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, size + !size))
        return NULL;
    f->live++;
    return memory;
}

static void faulty_free(void *user, void *memory, size_t size)
{
    (void)size;
    if (memory) ((faults *)user)->live--;
    free(memory);
}

static void any_allocation_may_fail(void **state)
{
    (void)state;
    bool all = false;
    for (int64_t n = 0; !all; n++) {
        faults f = {.left = 1000};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = {faulty_alloc, faulty_free, &f}};
        nbl_context *ctx;
        assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
        nbl_stop_matcher *m = NULL;
        nbl_string stop = string_of("stop"), shown;
        bool stopped = false;
        f.left = n;
        nbl_status status = nbl_stop_matcher_open(ctx, &stop, 1, &m);
        if (status == NBL_OK) status = nbl_stop_matcher_push(m, string_of("a st"), &shown, &stopped);
        all = status == NBL_OK;
        if (!all) assert_int_equal(status, NBL_ERROR_MEMORY);
        f.left = 1000;
        nbl_stop_matcher_close(m);
        nbl_context_destroy(ctx);
        assert_int_equal(f.live, 0);
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stop_string_across_pieces_is_found_and_never_shown),
        cmocka_unit_test(what_was_held_back_is_shown_once_it_cannot_be_a_stop_string),
        cmocka_unit_test(the_first_string_to_be_complete_counts_and_the_longest_of_those),
        cmocka_unit_test(without_stop_strings_everything_is_shown),
        cmocka_unit_test(empty_and_broken_stop_strings_are_refused),
        cmocka_unit_test(any_pieces_give_what_the_whole_text_gives),
        cmocka_unit_test(any_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
