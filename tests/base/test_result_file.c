/* Results that are one file: what they may replace, and what a killed writer leaves. */
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support.h"

#include "base/file/file.h"
#include "base/file/output.h"
#include "base/json/json.h"
#include "format/hf/result_file.h"
#include "tiny_model.h"

typedef struct fixture {
    nbl_context *ctx;
    nbl__arena arena;
    char folder[64];
} fixture;

static fixture open_fixture(void)
{
    fixture f = {.ctx = new_context()};
    f.arena = nbl__arena_make(f.ctx);
    make_temp(f.folder);
    return f;
}

static void close_fixture(fixture *f)
{
    remove_tree(f->folder);
    nbl__arena_free(&f->arena);
    nbl_context_destroy(f->ctx);
}

static const char *path_of(fixture *f, const char *name)
{
    return nbl__arena_printf(&f->arena, "%s/%s", f->folder, name);
}

static nbl_status write_result(fixture *f, const char *path, bool replace, const char *byte)
{
    nbl__stored tensor = {.name = "x",
                          .dtype = NBL_DTYPE_U8,
                          .rank = 1,
                          .shape = {1},
                          .elements = 1,
                          .data = (const uint8_t *)byte,
                          .bytes = 1};
    return nbl__result_file_write(&f->arena, path, replace, &tensor, 1);
}

static void assert_refused(fixture *f, const char *path, const char *why)
{
    for (int replace = 0; replace < 2; replace++) {
        assert_int_equal(nbl__result_file_check(f->ctx, path, replace), NBL_ERROR_EXISTS);
        assert_non_null(strstr(nbl_error_message(f->ctx), path));
        if (replace) assert_non_null(strstr(nbl_error_message(f->ctx), why));
        assert_int_equal(write_result(f, path, replace, "b"), NBL_ERROR_EXISTS);
    }
}

static void only_a_result_is_replaced_and_only_when_asked(void **state)
{
    (void)state;
    fixture f = open_fixture();
    const char *path = path_of(&f, "result");
    char *text;
    size_t size;
    assert_ok(f.ctx, write_result(&f, path, false, "a"));
    assert_int_equal(write_result(&f, path, false, "b"), NBL_ERROR_EXISTS);
    assert_non_null(strstr(nbl_error_hint(f.ctx), "--force"));
    assert_ok(f.ctx, nbl__file_read(f.ctx, path, 1000, &text, &size));
    assert_int_equal(text[size - 1], 'a');
    nbl__free(f.ctx, text, size + 1);
    assert_ok(f.ctx, write_result(&f, path, true, "b"));
    assert_ok(f.ctx, nbl__file_read(f.ctx, path, 1000, &text, &size));
    assert_int_equal(text[size - 1], 'b');
    nbl__free(f.ctx, text, size + 1);
    assert_int_equal(entries_in(f.folder), 1);

    /* Any other file: text, nothing at all, a .safetensors file without the mark, one that is cut short. */
    static const char plain[] = "\x1c\0\0\0\0\0\0\0{\"__metadata__\":{\"a\":\"b\"}}  ";
    static const char cut[] = "\xff\0\0\0\0\0\0\0{\"__metadata__\":{\"nibble\":\"result\"}}";
    write_file(f.folder, "text", "[[1, 2]]", 8);
    write_file(f.folder, "empty", "", 0);
    write_file(f.folder, "plain", plain, sizeof plain - 1);
    write_file(f.folder, "cut", cut, sizeof cut - 1);
    assert_refused(&f, path_of(&f, "text"), "not a result");
    assert_refused(&f, path_of(&f, "empty"), "not a result");
    assert_refused(&f, path_of(&f, "plain"), "not a result");
    assert_refused(&f, path_of(&f, "cut"), "not a result");
    assert_file_equals(path_of(&f, "text"), "[[1, 2]]", 8);
    assert_file_equals(path_of(&f, "plain"), plain, sizeof plain - 1);
    close_fixture(&f);
}

static void what_is_no_regular_file_is_refused(void **state)
{
    (void)state;
    fixture f = open_fixture();
    assert_ok(f.ctx, write_result(&f, path_of(&f, "result"), false, "a"));
    assert_int_equal(symlink("result", path_of(&f, "link")), 0);
    assert_int_equal(symlink("nowhere", path_of(&f, "dangling")), 0);
    assert_int_equal(mkfifo(path_of(&f, "pipe"), 0666), 0);
    assert_int_equal(mkdir(path_of(&f, "folder"), 0777), 0);
    assert_refused(&f, path_of(&f, "link"), "a link");
    assert_refused(&f, path_of(&f, "dangling"), "a link");
    assert_refused(&f, path_of(&f, "pipe"), "a FIFO");
    assert_refused(&f, path_of(&f, "folder"), "a folder");
    assert_int_equal(nbl__result_file_check(f.ctx, "/dev/null", true), NBL_ERROR_EXISTS);
    assert_non_null(strstr(nbl_error_message(f.ctx), "a device"));
    assert_int_equal(entries_in(f.folder), 5);
    close_fixture(&f);
}

/* A file of the context's own is never written, under any name and with any mark. */
static void a_result_never_becomes_part_of_a_model(void **state)
{
    (void)state;
    fixture f = open_fixture();
    static const char *const configs[] = {"config.json", "adapter_config.json"};
    static const char *const parts[] = {"model.safetensors",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00002.safetensors",
                                        "adapter_model.safetensors",
                                        "special_tokens_map.json",
                                        "chat_template.jinja",
                                        "x.gguf"};
    for (int i = 0; i < 7; i++) {
        assert_ok(f.ctx, write_result(&f, path_of(&f, parts[i]), false, "a")); /* no model is here yet */
        assert_int_equal(unlink(path_of(&f, parts[i])), 0);
    }
    for (int c = 0; c < 2; c++) {
        write_file(f.folder, configs[c], "{}", 2);
        for (int i = 0; i < 7; i++) {
            assert_refused(&f, path_of(&f, parts[i]), "part of the model");
            assert_false(nbl__exists(path_of(&f, parts[i])));
        }
        assert_ok(f.ctx, write_result(&f, path_of(&f, "logits.safetensors"), c > 0, "a"));
        unlink(path_of(&f, configs[c]));
    }
    close_fixture(&f);
}

static void an_input_is_refused(void **state)
{
    (void)state;
    fixture f = open_fixture();
    nbl__file file;
    assert_ok(f.ctx, write_result(&f, path_of(&f, "input"), false, "a"));
    assert_int_equal(link(path_of(&f, "input"), path_of(&f, "other-name")), 0);
    assert_ok(f.ctx, nbl__file_map(f.ctx, path_of(&f, "input"), &file));
    assert_refused(&f, path_of(&f, "input"), "an input");
    assert_refused(&f, path_of(&f, "other-name"), "an input");
    nbl__file_unmap(&file);
    assert_ok(f.ctx, write_result(&f, path_of(&f, "input"), true, "b"));
    close_fixture(&f);
}

/* Gradients have the names of an adapter's tensors, so a result may come back as one: it is an input then. */
static void weights_and_adapter_are_inputs(void **state)
{
    (void)state;
    fixture f = open_fixture();
    tiny_model tiny;
    tiny_write(f.ctx, 0, false, &tiny);
    const char *const inputs[] = {nbl__arena_printf(&f.arena, "%s/model.safetensors", tiny.model),
                                  nbl__arena_printf(&f.arena, "%s/adapter_model.safetensors", tiny.adapter)};
    for (int i = 0; i < 2; i++) { /* with the mark */
        nbl__file file;
        nbl__stored *tensors;
        int64_t count;
        assert_ok(f.ctx, nbl__file_map(f.ctx, inputs[i], &file));
        assert_ok(f.ctx, nbl__safetensors_parse(&f.arena, inputs[i], file.data, file.size, &tensors, &count));
        assert_ok(f.ctx, nbl__result_file_write(&f.arena, path_of(&f, "marked"), false, tensors, count));
        nbl__file_unmap(&file);
        assert_int_equal(rename(path_of(&f, "marked"), inputs[i]), 0);
    }
    nbl_model *model;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .adapter = tiny.adapter};
    int32_t ids[] = {1, 2, 3};
    nbl_ids list = {ids, 3};
    double loss;
    int64_t trained;
    assert_ok(f.ctx, nbl_model_open(f.ctx, tiny.model, &options, &model));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(nbl_model_write_logits(model, &list, 1, inputs[i], 1), NBL_ERROR_EXISTS);
        assert_non_null(strstr(nbl_error_message(f.ctx), "an input"));
        assert_int_equal(
            nbl_model_write_gradients(model, &list, &list, 1, 0, 0, inputs[i], 1, &loss, &trained),
            NBL_ERROR_EXISTS);
        assert_non_null(strstr(nbl_error_message(f.ctx), "an input"));
    }
    const char *out = path_of(&f, "out");
    assert_ok(f.ctx, nbl_model_write_gradients(model, &list, &list, 1, 0, 0, out, 0, &loss, &trained));
    assert_int_equal(nbl_model_write_logits(model, &list, 1, out, 0), NBL_ERROR_EXISTS);
    assert_ok(f.ctx, nbl_model_write_logits(model, &list, 1, out, 1));
    nbl_model_close(model);
    remove_tree(tiny.folder);
    close_fixture(&f);
}

/* ---- temporaries ---- */

/* A child begins an output of a folder and a file, tells so, and waits. */
static pid_t start_writer(fixture *f)
{
    int ready[2];
    char byte;
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        nbl__output *output;
        nbl__new_file file;
        bool good = nbl__output_begin(f->ctx, path_of(f, "out"), 0, &output) == NBL_OK &&
                    nbl__output_subfolder(output, "sub") == NBL_OK &&
                    nbl__output_put(output, "sub/a", "abc", 3) == NBL_OK &&
                    nbl__new_file_open(f->ctx, path_of(f, "file"), false, 0, &file) == NBL_OK &&
                    nbl__new_file_write(&file, "abc", 3, 0) == NBL_OK;
        if (!good || write(ready[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void end_writer(pid_t child)
{
    int status;
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
}

static void write_both(fixture *f, const char *folder, const char *file)
{
    nbl__output *output;
    assert_ok(f->ctx, nbl__output_begin(f->ctx, folder, 0, &output));
    assert_ok(f->ctx, nbl__output_commit(output));
    assert_ok(f->ctx, nbl__file_put_new(f->ctx, file, 0666, "d", 1));
}

static void what_a_killed_writer_left_is_removed_by_the_next(void **state)
{
    (void)state;
    fixture f = open_fixture();
    pid_t child = start_writer(&f);
    assert_int_equal(entries_in(f.folder), 2);
    end_writer(child);
    assert_int_equal(entries_in(f.folder), 2);
    write_both(&f, path_of(&f, "other"), path_of(&f, "another")); /* not theirs */
    assert_int_equal(entries_in(f.folder), 4);
    write_both(&f, path_of(&f, "out"), path_of(&f, "file"));
    assert_int_equal(entries_in(f.folder), 4);
    close_fixture(&f);
}

static void a_live_writer_is_spared(void **state)
{
    (void)state;
    fixture f = open_fixture();
    pid_t child = start_writer(&f);
    write_both(&f, path_of(&f, "out"), path_of(&f, "file"));
    assert_int_equal(entries_in(f.folder), 4); /* the child's two are still there */
    end_writer(child);
    assert_ok(f.ctx, nbl__file_put(f.ctx, path_of(&f, "file"), "e", 1));
    assert_int_equal(entries_in(f.folder), 3);
    close_fixture(&f);
}

static void names_that_are_not_ours_are_spared(void **state)
{
    (void)state;
    static const char *const names[] = {"out.partial-abcde",   "out.partial-abcdefg", "out.partial-ABCDEF",
                                        "out.partial-abc.ef",  "xout.partial-abcdef", "out.partial-final",
                                        "out.partial-12345.x", "out.partial-"};
    enum { COUNT = sizeof names / sizeof *names };
    fixture f = open_fixture();
    for (int i = 0; i < COUNT; i++) write_file(f.folder, names[i], "mine", 4);
    assert_int_equal(mkdir(path_of(&f, "elsewhere"), 0777), 0);
    assert_int_equal(symlink("elsewhere", path_of(&f, "out.partial-linked")),
                     0); /* a link is never followed */
    assert_int_equal(mkfifo(path_of(&f, "out.partial-afifo1"), 0666), 0);
    write_file(path_of(&f, "elsewhere"), "kept", "mine", 4);
    write_file(f.folder, "out.partial-abc123", "left", 4);
    nbl__output *output;
    assert_ok(f.ctx, nbl__output_begin(f.ctx, path_of(&f, "out/"), 0, &output));
    nbl__output_abort(output);
    assert_false(nbl__exists(path_of(&f, "out.partial-abc123")));
    assert_int_equal(entries_in(f.folder), COUNT + 3);
    assert_file_equals(path_of(&f, "elsewhere/kept"), "mine", 4);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_a_result_is_replaced_and_only_when_asked),
        cmocka_unit_test(what_is_no_regular_file_is_refused),
        cmocka_unit_test(a_result_never_becomes_part_of_a_model),
        cmocka_unit_test(an_input_is_refused),
        cmocka_unit_test(weights_and_adapter_are_inputs),
        cmocka_unit_test(what_a_killed_writer_left_is_removed_by_the_next),
        cmocka_unit_test(a_live_writer_is_spared),
        cmocka_unit_test(names_that_are_not_ours_are_spared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
