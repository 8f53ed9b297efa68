/* test_options.c - struct_size, the first field of every options struct: older, newer and wrong ones.
 *
 * Each call is tried once with all fields. Then it is tried with a shorter struct, whose end is filled
 * with garbage that must not be read, and with longer ones. */
#include "tiny_run.h"

enum { ROOM = 64, SHAPE = 64 };

/* Where results go; the folder is removed after every call. */
static const char *out(const fixture *f)
{
    return in_folder(f->tiny.folder, "result");
}

static nbl_status create(fixture *f, const void *options)
{
    (void)f;
    nbl_context *ctx;
    nbl_status status = nbl_context_create(options, &ctx);
    if (status != NBL_OK) assert_null(ctx);
    nbl_context_destroy(ctx);
    return status;
}

static nbl_status quantize_sizes(fixture *f, const void *options)
{
    nbl_quantized_sizes sizes;
    return nbl_quantize_sizes(f->ctx, options, 1, (int64_t[]){SHAPE}, &sizes);
}

static nbl_status quantize(fixture *f, const void *options)
{
    static const float values[SHAPE];
    uint8_t data[SHAPE / 2];
    float scales[1];
    nbl_quantized_parts parts = {.data = data, .scales = scales};
    nbl_weight weight;
    return nbl_quantize(f->ctx, options, NBL_DTYPE_F32, 1, (int64_t[]){SHAPE}, values, &parts, &weight);
}

static nbl_status checkpoint_quantize(fixture *f, const void *options)
{
    return nbl_checkpoint_quantize(f->ctx, f->tiny.model, out(f), options, NULL);
}

/* The tiny model has no packed weight, so its conversion gets as far as that. */
static nbl_status checkpoint_dequantize(fixture *f, const void *options)
{
    nbl_status status = nbl_checkpoint_dequantize(f->ctx, f->tiny.model, out(f), options, NULL);
    return status == NBL_ERROR_UNSUPPORTED ? NBL_OK : status;
}

static nbl_status open_model(fixture *f, const void *options)
{
    nbl_model *model;
    nbl_status status = nbl_model_open(f->ctx, f->tiny.model, options, &model);
    nbl_model_close(model);
    return status;
}

static nbl_status generate(fixture *f, const void *options)
{
    nbl_model *model;
    int32_t prompt[] = {1, 2}, ids[8];
    nbl_generated result = {.ids = {ids, 0}};
    assert_ok(f->ctx, nbl_model_open(f->ctx, f->tiny.model, NULL, &model));
    nbl_status status = nbl_model_generate(model, &(nbl_ids){prompt, 2}, 1, options, &result);
    nbl_model_close(model);
    return status;
}

static nbl_status evaluate(fixture *f, const void *options)
{
    nbl_model *model;
    int32_t ids[] = {1, 2, 3};
    nbl_evaluation result = {NBL_RESULT(nbl_evaluation)};
    assert_ok(f->ctx, nbl_model_open(f->ctx, f->tiny.model, NULL, &model));
    nbl_status status = nbl_model_evaluate(model, &(nbl_ids){ids, 3}, 1, options, &result);
    nbl_model_close(model);
    return status;
}

static nbl_status train(fixture *f, const void *options)
{
    return train_in(f, f->ctx, "result", "adapter: lora\nlora_r: 4\nlora_target_linear: true\nmax_steps: 1",
                    options);
}

static nbl_status merge(fixture *f, const void *options)
{
    return nbl_merge(f->ctx, f->tiny.model, f->tiny.adapter, out(f), options, NULL);
}

/* The tiny model has no tokenizer, so its export gets as far as that. */
static nbl_status export_model(fixture *f, const void *options)
{
    nbl_status status = nbl_export(f->ctx, f->tiny.model, out(f), options, NULL);
    return status == NBL_ERROR_NOT_FOUND && strstr(nbl_error_message(f->ctx), "tokenizer") ? NBL_OK : status;
}

static const nbl_context_options context_options = {NBL_OPTIONS(nbl_context_options), .threads = 1};
static const nbl_quantize_options quantize_options = {NBL_OPTIONS(nbl_quantize_options),
                                                      .format = NBL_FORMAT_NF4, .block = 64};
static const nbl_dequantize_options dequantize_options = {NBL_OPTIONS(nbl_dequantize_options),
                                                          .dtype = NBL_COMPUTE_BF16};
static const nbl_model_options model_options = {NBL_OPTIONS(nbl_model_options)};
static const nbl_generate_options generate_options = {NBL_OPTIONS(nbl_generate_options), .max_tokens = 4};
static const nbl_evaluate_options evaluate_options = {NBL_OPTIONS(nbl_evaluate_options)};
static const nbl_train_options train_options = {NBL_OPTIONS(nbl_train_options)};
static const nbl_merge_options merge_options = {NBL_OPTIONS(nbl_merge_options)};
static const nbl_export_options export_options = {NBL_OPTIONS(nbl_export_options), .type = NBL_EXPORT_F16};

/* `needed`: bytes up to the last field without a default, a multiple of 8. */
static const struct way {
    const char *type;
    const void *options;
    size_t size, needed;
    nbl_status (*call)(fixture *f, const void *options);
} ways[] = {
    {"nbl_context_options", &context_options, sizeof context_options, 16, create},
    {"nbl_quantize_options", &quantize_options, sizeof quantize_options, 24, quantize_sizes},
    {"nbl_quantize_options", &quantize_options, sizeof quantize_options, 24, quantize},
    {"nbl_quantize_options", &quantize_options, sizeof quantize_options, 24, checkpoint_quantize},
    {"nbl_dequantize_options", &dequantize_options, sizeof dequantize_options, 16, checkpoint_dequantize},
    {"nbl_model_options", &model_options, sizeof model_options, 8, open_model},
    {"nbl_generate_options", &generate_options, sizeof generate_options, 16, generate},
    {"nbl_evaluate_options", &evaluate_options, sizeof evaluate_options, 8, evaluate},
    {"nbl_train_options", &train_options, sizeof train_options, 8, train},
    {"nbl_merge_options", &merge_options, sizeof merge_options, 8, merge},
    {"nbl_export_options", &export_options, sizeof export_options, 16, export_model},
};
enum { WAYS = sizeof ways / sizeof *ways };

/* The call with `count` bytes of the way's options, `rest` in those after them, and a struct_size. */
static nbl_status call(fixture *f, const struct way *w, size_t struct_size, size_t count, int rest)
{
    size_t room = w->size + ROOM;
    char *options = malloc(room);
    memset(options, rest, room);
    memcpy(options, w->options, count);
    memcpy(options, &struct_size, sizeof struct_size);
    nbl_status status = w->call(f, options);
    free(options);
    if (access(out(f), F_OK) == 0) remove_tree(out(f));
    return status;
}

/* Refused, and the message names the struct. */
static void assert_refused(fixture *f, const struct way *w, nbl_status status, const char *why)
{
    assert_int_equal(status, NBL_ERROR_ARGUMENT);
    if (w->call == create) return; /* there is no context for a message */
    const char *message = nbl_error_message(f->ctx);
    if (!strstr(message, w->type) || !strstr(message, why)) fail_msg("%s: \"%s\"", w->type, message);
    assert_string_not_equal(nbl_error_hint(f->ctx), "");
}

static void options_of_this_version_are_taken(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < WAYS; i++) assert_ok(f->ctx, call(f, &ways[i], ways[i].size, ways[i].size, 0));
}

static void fields_that_an_older_caller_lacks_are_zero(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < WAYS; i++) assert_ok(f->ctx, call(f, &ways[i], ways[i].needed, ways[i].needed, 0x5a));
}

static void fields_that_only_a_newer_caller_has_must_be_zero(void **state)
{
    fixture *f = *state;
    for (int i = 0; i < WAYS; i++) {
        size_t larger = ways[i].size + ROOM;
        assert_ok(f->ctx, call(f, &ways[i], larger, ways[i].size, 0));
        assert_refused(f, &ways[i], call(f, &ways[i], larger, ways[i].size, 1), "knows");
    }
}

static void a_struct_size_that_cannot_be_is_refused(void **state)
{
    fixture *f = *state;
    static const size_t sizes[] = {1, sizeof(size_t) + 1, 1 << 20, SIZE_MAX - 7, SIZE_MAX};
    for (int i = 0; i < WAYS; i++) {
        assert_refused(f, &ways[i], call(f, &ways[i], 0, ways[i].size, 0), "struct_size is 0");
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
            assert_refused(f, &ways[i], call(f, &ways[i], sizes[k], ways[i].size, 0), "which no version");
    }
}

static void both_macros_make_the_same_options(void **state)
{
    (void)state;
    nbl_train_options a = {NBL_OPTIONS(nbl_train_options)}, b;
    memset(&b, 0x5a, sizeof b);
    NBL_OPTIONS_INIT(b);
    assert_int_equal(b.struct_size, sizeof b);
    assert_memory_equal(&a, &b, sizeof a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(options_of_this_version_are_taken, setup, teardown),
        cmocka_unit_test_setup_teardown(fields_that_an_older_caller_lacks_are_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(fields_that_only_a_newer_caller_has_must_be_zero, setup, teardown),
        cmocka_unit_test_setup_teardown(a_struct_size_that_cannot_be_is_refused, setup, teardown),
        cmocka_unit_test(both_macros_make_the_same_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
