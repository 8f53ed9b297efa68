/* Files that another process changes while they are mapped. */
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "support.h"

#include "base/file/file.h"
#include "base/team.h"

enum { SIZE = 256 << 10 };

/* Its modification time lies back, so that a write is later even where clocks are coarse. */
static const char *make_file(const char *folder)
{
    char *bytes = calloc(1, SIZE);
    memset(bytes, 'x', SIZE);
    write_file(folder, "weights", bytes, SIZE);
    free(bytes);
    const char *path = in_folder(folder, "weights");
    struct timespec long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    return path;
}

static void a_file_that_was_overwritten_is_named(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char folder[64];
    make_temp(folder);
    const char *path = make_file(folder);
    nbl__file file, again;
    assert_ok(ctx, nbl__file_map(ctx, path, &file));
    assert_ok(ctx, nbl__file_map(ctx, path, &again));
    assert_ok(ctx, nbl__files_check(ctx));
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "y", 1, 100), 1);
    close(fd);
    assert_int_equal(nbl__files_check(ctx), NBL_ERROR_IO);
    assert_non_null(strstr(nbl_error_message(ctx), path));
    assert_non_null(strstr(nbl_error_message(ctx), "changed while it was being used"));
    nbl__file_unmap(&file);
    assert_int_equal(nbl__files_check(ctx), NBL_ERROR_IO);
    nbl__file_unmap(&again);
    assert_ok(ctx, nbl__files_check(ctx)); /* what is not mapped any more may change */
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

static void a_file_that_was_replaced_by_another_stays_what_it_was(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char folder[64];
    make_temp(folder);
    const char *path = make_file(folder);
    nbl__file file;
    assert_ok(ctx, nbl__file_map(ctx, path, &file));
    write_file(folder, "other", "short", 5);
    assert_int_equal(rename(in_folder(folder, "other"), in_folder(folder, "weights")), 0);
    assert_ok(ctx, nbl__files_check(ctx));
    assert_int_equal(file.data[SIZE - 1], 'x');
    nbl__file_unmap(&file);
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

static nbl_status read_page(void *data, int64_t item, int worker)
{
    (void)worker;
    return ((const volatile uint8_t *)data)[item * 4096] ? NBL_ERROR_INTERNAL : NBL_OK;
}

/* The context's threads block the signals that are for the caller's own. */
static void check_threads(void)
{
    nbl_context *ctx = new_context_with(4);
    char folder[64];
    make_temp(folder);
    for (int i = 0; i < 50; i++) { /* in turns, any of the threads is the first to meet a page that is gone */
        nbl__file file;
        assert_ok(ctx, nbl__file_map(ctx, make_file(folder), &file));
        assert_int_equal(truncate(in_folder(folder, "weights"), 0), 0);
        nbl_status status = nbl__team_run(ctx, SIZE / 4096, read_page, (void *)(uintptr_t)file.data, "");
        assert_true(status == NBL_OK ||
                    status == NBL_ERROR_IO); /* the team may have noticed between two items */
        assert_int_equal(nbl__files_check(ctx), NBL_ERROR_IO);
        nbl__file_unmap(&file);
    }
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

static void a_truncated_file_is_an_error_and_no_signal(void **state)
{
    (void)state;
    assert_int_equal(nbl_guard_mapped_files(), NBL_OK);
    nbl_context *ctx = new_context();
    char folder[64];
    make_temp(folder);
    const char *path = make_file(folder);
    nbl__file file;
    assert_ok(ctx, nbl__file_map(ctx, path, &file));
    assert_int_equal(truncate(path, 5000), 0);
    const volatile uint8_t *data = file.data;
    assert_int_equal(data[SIZE - 1], 0); /* SIGBUS without the guard */
    assert_int_equal(data[20000], 0);
    assert_int_equal(data[100], 'x');
    assert_int_equal(nbl__files_check(ctx), NBL_ERROR_IO);
    assert_non_null(strstr(nbl_error_message(ctx), path));
    nbl__file_unmap(&file);

    /* Also when the file has its size back, and looks as it did. */
    assert_ok(ctx, nbl__file_map(ctx, make_file(folder), &file));
    assert_int_equal(truncate(in_folder(folder, "weights"), 0), 0);
    data = file.data;
    assert_int_equal(data[SIZE / 2], 0);
    make_file(folder);
    assert_int_equal(nbl__files_check(ctx), NBL_ERROR_IO);
    assert_non_null(strstr(nbl_error_message(ctx), "could not be read"));
    nbl__file_unmap(&file);
    assert_ok(ctx, nbl__files_check(ctx));
    check_threads(); /* in this test, because cmocka sets its own handler before each */
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

static void earlier_handler(int number)
{
    (void)number;
    _exit(42);
}

/* The first test: in the child nobody has called nbl_guard_mapped_files yet. */
static void a_bus_error_elsewhere_goes_to_the_earlier_handler(void **state)
{
    (void)state;
    char folder[64];
    make_temp(folder);
    const char *path = make_file(folder);
    pid_t child = fork();
    if (child == 0) {
        int fd = open(path, O_RDWR);
        const volatile uint8_t *data = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
        signal(SIGBUS, earlier_handler);
        if (nbl_guard_mapped_files() != NBL_OK || ftruncate(fd, 0) != 0) _exit(1);
        alarm(10);
        _exit(data[0] == 1);
    }
    int how;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 42);
    remove_tree(folder);
}

/* While weights are read their file is filled with NaN: what is wrong is the file, not its values. */
static bool spoil(void *user, const nbl_progress *at)
{
    uint8_t nan[4096];
    (void)at;
    memset(nan, 0xff, sizeof nan);
    int fd = open(user, O_WRONLY);
    for (off_t k = 1; k < 256; k++)
        assert_int_equal(pwrite(fd, nan, sizeof nan, k * (off_t)sizeof nan), sizeof nan);
    close(fd);
    return 0;
}

static void a_file_that_changes_is_told_before_its_values(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json", "model.safetensors"};
    char folder[64], path[128];
    make_temp(folder);
    for (int i = 0; i < 2; i++) {
        size_t size;
        uint8_t *bytes = read_file(in_folder(TEST_DATA_DIR "/../../models/nibble-tiny", names[i]), &size);
        write_file(folder, names[i], bytes, size);
        free(bytes);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    struct timespec long_ago[2] = {{1000000000, 0}, {1000000000, 0}};
    assert_int_equal(utimensat(AT_FDCWD, path, long_ago, 0), 0);
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 2, .progress = spoil,
                                   .progress_user = path};
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_NF4, .block = 64};
    assert_int_equal(nbl_checkpoint_quantize(ctx, folder, in_folder(folder, "out"), &how, NULL),
                     NBL_ERROR_IO);
    assert_non_null(strstr(nbl_error_message(ctx), "changed while it was being used"));
    nbl_context_destroy(ctx);
    remove_tree(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bus_error_elsewhere_goes_to_the_earlier_handler),
        cmocka_unit_test(a_file_that_was_overwritten_is_named),
        cmocka_unit_test(a_file_that_was_replaced_by_another_stays_what_it_was),
        cmocka_unit_test(a_file_that_changes_is_told_before_its_values),
        cmocka_unit_test(
            a_truncated_file_is_an_error_and_no_signal), /* the last: every later question checks */
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
