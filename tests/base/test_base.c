/* test_base.c - the base layer: errors, memory, arena, threads, random numbers, files, atomic output. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support.h"

#include "base/alloc.h"
#include "base/arena.h"
#include "base/file/file.h"
#include "base/file/output.h"
#include "base/philox.h"
#include "base/processor.h"
#include "base/team.h"

/* ---- status and errors ---- */

static void status_numbers_and_names_are_stable(void **state)
{
    (void)state;
    static const struct {
        int number;
        const char *name;
    } known[] = {{0, "NBL_OK"},
                 {1, "NBL_ERROR_ARGUMENT"},
                 {2, "NBL_ERROR_MEMORY"},
                 {3, "NBL_ERROR_IO"},
                 {4, "NBL_ERROR_FORMAT"},
                 {5, "NBL_ERROR_DTYPE"},
                 {6, "NBL_ERROR_SHAPE"},
                 {7, "NBL_ERROR_UNSUPPORTED"},
                 {8, "NBL_ERROR_EXISTS"},
                 {9, "NBL_ERROR_NOT_FOUND"},
                 {10, "NBL_ERROR_NO_SPACE"},
                 {11, "NBL_ERROR_CANCELLED"},
                 {12, "NBL_ERROR_INTERNAL"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_string_equal(nbl_status_name((nbl_status)known[i].number), known[i].name);
    assert_string_equal(nbl_status_name((nbl_status)999), "NBL_ERROR_INTERNAL");
    assert_true(strlen(nbl_status_text(NBL_ERROR_FORMAT)) > 5);
}

static void a_message_is_one_line_of_valid_utf8(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__fail(ctx, NBL_ERROR_FORMAT, "%s", "a\nb\x01\xff\xc3\xa9\xe2\x82z\x7f");
    assert_string_equal(nbl_error_message(ctx), "a\\nb\\x01\\xff\xc3\xa9\\xe2\\x82z\\x7f");
    nbl__fail(ctx, NBL_ERROR_FORMAT, "%s",
              "\x1b[31m \xc2\x9b \xe2\x80\xae \xe2\x81\xa6 \xe2\x80\xa8 \xd8\x9c\r\t");
    assert_string_equal(nbl_error_message(ctx), "\\x1b[31m \\u009b \\u202e \\u2066 \\u2028 \\u061c\\r\\t");
    assert_string_equal(nbl_error_hint(ctx), "");
    nbl__hint(ctx, NBL_ERROR_FORMAT, "%s", "\x1b");
    assert_string_equal(nbl_error_hint(ctx), "\\x1b");
    nbl__fail_lines(ctx, NBL_ERROR_FORMAT, "one\x1b\ntwo");
    assert_string_equal(nbl_error_message(ctx), "one\\x1b\ntwo");
    char longer[8000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    nbl__fail(ctx, NBL_ERROR_FORMAT, "%s", longer);
    assert_true(strlen(nbl_error_message(ctx)) < 4096);
    /* A character cut in two by the buffer's end must not leave half of itself. */
    for (int pad = 0; pad < 4; pad++) {
        char text[4300];
        memset(text, 'x', sizeof text);
        for (size_t i = 4080 + (size_t)pad; i + 3 < sizeof text; i += 3) memcpy(text + i, "\xe2\x82\xac", 3);
        text[4080 + pad + 40 * 3] = '\0';
        nbl__fail(ctx, NBL_ERROR_FORMAT, "%s", text);
        const char *end = nbl_error_message(ctx) + strlen(nbl_error_message(ctx));
        assert_memory_equal(end - 3, "\xe2\x82\xac", 3);
    }
    nbl_context_destroy(ctx);
}

static void errno_becomes_a_status(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    assert_int_equal(nbl__fail_errno(ctx, ENOSPC, "f"), NBL_ERROR_NO_SPACE);
    assert_int_equal(nbl__fail_errno(ctx, EFBIG, "f"), NBL_ERROR_NO_SPACE);
    assert_int_equal(nbl__fail_errno(ctx, ENOENT, "f"), NBL_ERROR_NOT_FOUND);
    assert_int_equal(nbl__fail_errno(ctx, EACCES, "f"), NBL_ERROR_IO);
    assert_string_equal(nbl_error_message(ctx), "f: Permission denied");
    nbl__hint(ctx, NBL_ERROR_IO, "try %d", 5);
    assert_string_equal(nbl_error_hint(ctx), "try 5");
    nbl__fail(ctx, NBL_ERROR_IO, "another");
    assert_string_equal(nbl_error_hint(ctx), "");
    nbl_context_destroy(ctx);
}

/* ---- memory ---- */

static void every_allocation_is_counted_and_can_fail(void **state)
{
    (void)state;
    nbl__counter counter = {.fail_at = 3};
    nbl_context *ctx;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options),
                                   .allocator = nbl__counting_allocator(&counter)};
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    void *first = nbl__alloc(ctx, 100);
    assert_non_null(first);
    assert_int_equal((uintptr_t)first % 64, 0);
    assert_null(nbl__alloc(ctx, 100));
    assert_non_null(strstr(nbl_error_message(ctx), "100 bytes"));
    assert_null(nbl__alloc_array(ctx, SIZE_MAX / 2, 4));
    assert_int_equal(counter.live, 2);
    nbl__free(ctx, first, 100);
    nbl_context_destroy(ctx);
    assert_int_equal(counter.live, 0);
    assert_int_equal(counter.bytes, 0);
    counter = (nbl__counter){.fail_at = 1};
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_ERROR_MEMORY);
    assert_null(ctx);
}

static void arena_pieces_are_zeroed_aligned_and_do_not_overlap(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__arena arena = nbl__arena_make(ctx);
    uint8_t *pieces[200];
    size_t sizes[200];
    for (size_t i = 0; i < 200; i++) {
        sizes[i] = i * i * 7 % 9000 + (i == 100 ? 1000000 : 0);
        pieces[i] = nbl__arena_alloc(&arena, sizes[i]);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(pieces[i][k], 0);
        memset(pieces[i], (int)i + 1, sizes[i]);
    }
    for (size_t i = 0; i < 200; i++)
        for (size_t k = 0; k < sizes[i]; k++) assert_int_equal(pieces[i][k], (uint8_t)(i + 1));
    assert_string_equal(nbl__arena_printf(&arena, "%s-%d", "x", 7), "x-7");
    assert_null(nbl__arena_alloc(&arena, SIZE_MAX - 8));
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

/* ---- threads ---- */

typedef struct tally {
    nbl_context *ctx;
    atomic_int seen[1000];
    int fail_at;
} tally;

static nbl_status count_item(void *argument, int64_t item, int worker)
{
    tally *t = argument;
    (void)worker;
    atomic_fetch_add(&t->seen[item], 1);
    if (item == t->fail_at) return nbl__fail(t->ctx, NBL_ERROR_SHAPE, "item %d", (int)item);
    return NBL_OK;
}

static void a_team_does_every_item_once_for_any_number_of_threads(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 7; threads++) {
        nbl_context *ctx = new_context_with(threads);
        tally *t = calloc(1, sizeof *t);
        *t = (tally){.ctx = ctx, .fail_at = -1};
        assert_int_equal(nbl__team_run(ctx, 1000, count_item, t, NULL), NBL_OK);
        for (int i = 0; i < 1000; i++) assert_int_equal(t->seen[i], 1);
        assert_int_equal(nbl__team_run(ctx, 0, count_item, t, NULL), NBL_OK);
        assert_int_equal(nbl__team_size(ctx, 1), 1);
        free(t);
        nbl_context_destroy(ctx);
    }
}

static void the_first_failure_of_a_team_is_retransposed_with_its_message(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 3; threads++) {
        nbl_context *ctx = new_context_with(threads);
        tally *t = calloc(1, sizeof *t);
        *t = (tally){.ctx = ctx, .fail_at = 10};
        assert_int_equal(nbl__team_run(ctx, 1000, count_item, t, NULL), NBL_ERROR_SHAPE);
        assert_string_equal(nbl_error_message(ctx), "item 10");
        /* Other threads may take items until the failing one is told: how many is not known. */
        if (threads == 1) assert_int_equal(t->seen[11], 0);
        free(t);
        nbl_context_destroy(ctx);
    }
}

static bool stop_at_once(void *user, const nbl_progress *progress)
{
    (void)progress;
    return ++*(int *)user >= 5;
}

static void progress_can_stop_a_team(void **state)
{
    (void)state;
    int calls = 0;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1, .progress = stop_at_once,
                                   .progress_user = &calls};
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    tally *t = calloc(1, sizeof *t);
    *t = (tally){.ctx = ctx, .fail_at = -1};
    assert_int_equal(nbl__team_run(ctx, 1000, count_item, t, "work"), NBL_ERROR_CANCELLED);
    assert_int_equal(calls, 5);
    assert_int_equal(t->seen[5], 0);
    free(t);
    nbl_context_destroy(ctx);
}

/* ---- random numbers: the known answers of the Random123 distribution ---- */

static void philox_gives_the_published_vectors(void **state)
{
    (void)state;
    static const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e,
         0xa20bc7c6, 0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb,
         0x5001e420, 0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        nbl__philox(cases[i], cases[i] + 4, out);
        assert_memory_equal(out, cases[i] + 6, sizeof out);
    }
    assert_true(nbl__uniform(0) == 0.0f && nbl__uniform(UINT32_MAX) < 1.0f);
}

/* ---- instruction sets ---- */

static void an_instruction_set_can_be_lowered_but_not_raised(void **state)
{
    (void)state;
    nbl_isa isa;
    assert_true(nbl__isa_choose(NULL, NBL_ISA_AVX2, &isa) && isa == NBL_ISA_AVX2);
    assert_true(nbl__isa_choose("scalar", NBL_ISA_AVX2, &isa) && isa == NBL_ISA_SCALAR);
    assert_true(nbl__isa_choose("amx", NBL_ISA_AVX2, &isa) && isa == NBL_ISA_AVX2);
    assert_false(nbl__isa_choose("sse9", NBL_ISA_AVX2, &isa));
    setenv("NIBBLE_ISA", "sse9", 1);
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_ERROR_ARGUMENT);
    setenv("NIBBLE_ISA", "scalar", 1);
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    assert_string_equal(nbl_isa_name(ctx), "scalar");
    nbl_context_destroy(ctx);
    unsetenv("NIBBLE_ISA");
}

static void every_instruction_set_used_was_found(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_isa_level level = {NBL_RESULT(nbl_isa_level)};
    int64_t count = 0;
    for (; nbl_isa_level_get(ctx, count, &level); count++) {
        assert_true(level.name[0] && level.enables[0] && (level.found || !level.used));
        if (count == 0) assert_true(strcmp(level.name, "scalar") == 0 && level.found && level.used);
#if defined(__aarch64__) /* every such processor has NEON; no kernel uses it */
        if (count > 0) assert_false(level.used);
        if (count == 1) assert_true(strcmp(level.name, "neon") == 0 && level.found);
#endif
    }
#if defined(__aarch64__)
    assert_int_equal(count, 8);
#else
    assert_int_equal(count, NBL_ISA_COUNT);
#endif
    assert_false(nbl_isa_level_get(ctx, -1, &level));
    nbl_context_destroy(ctx);
}

static void a_processor_is_named_by_its_model_or_its_parts(void **state)
{
    (void)state;
    static const struct {
        const char *text, *name;
    } cases[] = {
        {"processor\t: 0\nmodel name\t: AMD EPYC 7763  \nmodel name\t: other\n", "AMD EPYC 7763"},
        {"model names\t: no\nmodel name: Virt CPU", "Virt CPU"},
        {"processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: 0xd0c\n\n"
         "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
         "Arm Neoverse-N1"},
        {"CPU implementer : 0x41\nCPU part : 0xd05\nCPU implementer : 0x41\nCPU part : 0xd0b\nCPU part : "
         "0xd05\n",
         "Arm Cortex-A55, Arm Cortex-A76"},
        {"CPU implementer : 0x7b\nCPU part : 0x12\n", "implementer 0x7b part 0x012"},
        {"CPU implementer : 0x41\nCPU part : 0xfff\n", "Arm part 0xfff"},
        {"model name :\nHardware : BCM2835\n", ""},
        {"", ""},
    };
    char folder[64], name[256], small[8];
    make_temp(folder);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(folder, "cpuinfo", cases[i].text, strlen(cases[i].text));
        assert_int_equal(nbl__processor_in(in_folder(folder, "cpuinfo"), name, sizeof name),
                         cases[i].name[0] != 0);
        assert_string_equal(name, cases[i].name);
        nbl__processor_in(in_folder(folder, "cpuinfo"), small, sizeof small);
        assert_memory_equal(small, name, strnlen(name, sizeof small - 1));
        assert_true(strlen(small) < sizeof small);
    }
    assert_false(nbl__processor_in(in_folder(folder, "missing"), name, sizeof name));
    remove_tree(folder);
}

/* ---- files ---- */

static void a_file_is_mapped_or_refused_with_its_name(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char folder[64];
    make_temp(folder);
    nbl__file file;
    write_file(folder, "full", "hello", 5);
    write_file(folder, "empty", "", 0);
    assert_int_equal(nbl__file_map(ctx, in_folder(folder, "full"), &file), NBL_OK);
    assert_int_equal(file.size, 5);
    assert_memory_equal(file.data, "hello", 5);
    nbl__file_drop(&file, file.data, file.size);
    nbl__file_need(file.data, file.size);
    nbl__file_unmap(&file);
    assert_int_equal(nbl__file_map(ctx, in_folder(folder, "empty"), &file), NBL_OK);
    assert_int_equal(file.size, 0);
    nbl__file_unmap(&file);
    assert_int_equal(nbl__file_map(ctx, folder, &file), NBL_ERROR_IO);
    assert_int_equal(nbl__file_map(ctx, in_folder(folder, "absent"), &file), NBL_ERROR_NOT_FOUND);
    assert_non_null(strstr(nbl_error_message(ctx), "absent"));
    assert_int_equal(mkfifo(in_folder(folder, "pipe"), 0600), 0);
    assert_int_equal(nbl__file_map(ctx, in_folder(folder, "pipe"), &file), NBL_ERROR_IO); /* does not hang */
    char *text;
    size_t size;
    assert_int_equal(nbl__file_read(ctx, in_folder(folder, "full"), 4, &text, &size), NBL_ERROR_FORMAT);
    assert_int_equal(nbl__file_read(ctx, in_folder(folder, "full"), 5, &text, &size), NBL_OK);
    assert_string_equal(text, "hello");
    nbl__free(ctx, text, size + 1);
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

/* ---- atomic output ---- */

static void an_output_appears_only_when_committed(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char folder[64];
    make_temp(folder);
    const char *target = strdup(in_folder(folder, "out"));
    nbl__output *output;
    assert_int_equal(nbl__output_begin(ctx, target, 10, &output), NBL_OK);
    assert_int_equal(nbl__output_put(output, "a", "abc", 3), NBL_OK);
    assert_int_equal(nbl__output_subfolder(output, "sub"), NBL_OK);
    assert_int_equal(nbl__output_put(output, "sub/b", "d", 1), NBL_OK);
    assert_false(nbl__exists(target));
    assert_int_equal(nbl__output_commit(output), NBL_OK);
    assert_file_equals(in_folder(target, "sub/b"), "d", 1);
    assert_int_equal(entries_in(folder), 1);

    /* The target exists now: refused, untouched. */
    assert_int_equal(nbl__output_begin(ctx, target, 10, &output), NBL_ERROR_EXISTS);
    assert_file_equals(in_folder(target, "a"), "abc", 3);
    remove_tree(target);

    assert_int_equal(nbl__output_begin(ctx, target, 10, &output), NBL_OK);
    assert_int_equal(nbl__output_put(output, "a", "abc", 3), NBL_OK);
    assert_int_equal(nbl__output_subfolder(output, "sub"), NBL_OK);
    assert_int_equal(nbl__output_put(output, "sub/b", "d", 1), NBL_OK);
    nbl__output_abort(output);
    assert_int_equal(entries_in(folder), 0);
    free((void *)(uintptr_t)target);
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

static void a_target_that_appears_meanwhile_is_not_replaced(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char folder[64];
    make_temp(folder);
    nbl__output *output;
    assert_int_equal(nbl__output_begin(ctx, in_folder(folder, "out/"), 0, &output), NBL_OK);
    assert_int_equal(nbl__output_put(output, "a", "abc", 3), NBL_OK);
    assert_int_equal(mkdir(in_folder(folder, "out"), 0755), 0);
    assert_int_equal(nbl__output_commit(output), NBL_ERROR_EXISTS);
    assert_int_equal(entries_in(folder), 1);
    assert_int_equal(entries_in(in_folder(folder, "out")), 0);
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

static void an_output_that_cannot_fit_is_refused_before_anything_is_written(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char folder[64];
    make_temp(folder);
    nbl__output *output;
    assert_int_equal(nbl__output_begin(ctx, in_folder(folder, "out"), UINT64_MAX / 2, &output),
                     NBL_ERROR_NO_SPACE);
    assert_non_null(strstr(nbl_error_message(ctx), "out"));
    assert_int_equal(entries_in(folder), 0);
    assert_int_equal(nbl__output_begin(ctx, in_folder(folder, "no/such/out"), 0, &output),
                     NBL_ERROR_NOT_FOUND);
    assert_int_equal(nbl__output_begin(ctx, "", 0, &output), NBL_ERROR_ARGUMENT);
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_numbers_and_names_are_stable),
        cmocka_unit_test(a_message_is_one_line_of_valid_utf8),
        cmocka_unit_test(errno_becomes_a_status),
        cmocka_unit_test(every_allocation_is_counted_and_can_fail),
        cmocka_unit_test(arena_pieces_are_zeroed_aligned_and_do_not_overlap),
        cmocka_unit_test(a_team_does_every_item_once_for_any_number_of_threads),
        cmocka_unit_test(the_first_failure_of_a_team_is_retransposed_with_its_message),
        cmocka_unit_test(progress_can_stop_a_team),
        cmocka_unit_test(philox_gives_the_published_vectors),
        cmocka_unit_test(an_instruction_set_can_be_lowered_but_not_raised),
        cmocka_unit_test(every_instruction_set_used_was_found),
        cmocka_unit_test(a_processor_is_named_by_its_model_or_its_parts),
        cmocka_unit_test(a_file_is_mapped_or_refused_with_its_name),
        cmocka_unit_test(an_output_appears_only_when_committed),
        cmocka_unit_test(a_target_that_appears_meanwhile_is_not_replaced),
        cmocka_unit_test(an_output_that_cannot_fit_is_refused_before_anything_is_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
