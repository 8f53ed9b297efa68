/* test_interface.c - rules that nibble.h states for all of its structs and enums: sizes, names, results of callers
 * that were compiled against another version. */
#include "support.h"

#define assert_refused(ctx, status, code, words)                                                             \
    do {                                                                                                     \
        assert_int_equal(status, code);                                                                      \
        assert_non_null(strstr(nbl_error_message(ctx), words));                                              \
    } while (0)

/* ---- sizes ---- */

/* Lists belong behind getters. Only the arguments of linear exceed a kilobyte: they are fourteen tensors and a
 * weight. */
static void no_struct_is_large(void **state)
{
    (void)state;
#define SIZE(type)                                                                                           \
    {                                                                                                        \
#type, sizeof(type)                                                                                  \
    }
    static const struct {
        const char *type;
        size_t size;
    } all[] = {
        SIZE(nbl_adamw),
        SIZE(nbl_adamw_tensor),
        SIZE(nbl_adapter_summary),
        SIZE(nbl_adapter_tensor),
        SIZE(nbl_allocator),
        SIZE(nbl_chat),
        SIZE(nbl_chat_variable),
        SIZE(nbl_checkpoint_summary),
        SIZE(nbl_context_options),
        SIZE(nbl_convert_report),
        SIZE(nbl_cuda_device),
        SIZE(nbl_data_summary),
        SIZE(nbl_dequantize_options),
        SIZE(nbl_evaluate_options),
        SIZE(nbl_evaluation),
        SIZE(nbl_export_options),
        SIZE(nbl_export_report),
        SIZE(nbl_generate_options),
        SIZE(nbl_generated),
        SIZE(nbl_gguf_entry),
        SIZE(nbl_gguf_special),
        SIZE(nbl_gguf_summary),
        SIZE(nbl_gguf_tensor),
        SIZE(nbl_ids),
        SIZE(nbl_isa_level),
        SIZE(nbl_library),
        SIZE(nbl_merge_options),
        SIZE(nbl_merge_report),
        SIZE(nbl_model_options),
        SIZE(nbl_model_plan_summary),
        SIZE(nbl_plan_arenas),
        SIZE(nbl_planned_cast),
        SIZE(nbl_planned_op),
        SIZE(nbl_planned_value),
        SIZE(nbl_preview),
        SIZE(nbl_preview_part),
        SIZE(nbl_progress),
        SIZE(nbl_quantize_options),
        SIZE(nbl_quantized_parts),
        SIZE(nbl_quantized_sizes),
        SIZE(nbl_rmsnorm),
        SIZE(nbl_run_info),
        SIZE(nbl_string),
        SIZE(nbl_tensor),
        SIZE(nbl_tensor_diff),
        SIZE(nbl_tensor_info),
        SIZE(nbl_train_event),
        SIZE(nbl_train_options),
        SIZE(nbl_train_summary),
        SIZE(nbl_weight),
    };
#undef SIZE
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].size > 1024) fail_msg("%s has %zu bytes", all[i].type, all[i].size);
    assert_true(sizeof(nbl_linear) <= 2048);
}

/* ---- names ---- */

/* Every constant from `first` to `last` has a name that parses back to it. The one after it has none. */
#define CHECK_NAMES(type, first, last)                                                                       \
    do {                                                                                                     \
        type value_ = (first);                                                                               \
        for (int i_ = (first); i_ <= (int)(last); i_++) {                                                    \
            const char *name_ = type##_name((type)i_);                                                       \
            assert_string_not_equal(name_, "unknown");                                                       \
            assert_true(type##_parse(name_, &value_));                                                       \
            assert_int_equal(value_, i_);                                                                    \
        }                                                                                                    \
        assert_string_equal(type##_name((type)((last) + 1)), "unknown");                                     \
        assert_string_equal(type##_name((type)-1), "unknown");                                               \
        assert_false(type##_parse("unknown", &value_));                                                      \
        assert_false(type##_parse("", &value_));                                                             \
        assert_false(type##_parse(NULL, &value_));                                                           \
        assert_int_equal(value_, last);                                                                      \
    } while (0)

static void constants_have_names_that_parse(void **state)
{
    (void)state;
    CHECK_NAMES(nbl_dtype, NBL_DTYPE_F32, NBL_DTYPE_COUNT - 1);
    CHECK_NAMES(nbl_format, NBL_FORMAT_DENSE, NBL_FORMAT_MXFP4);
    CHECK_NAMES(nbl_compute_dtype, NBL_COMPUTE_F32, NBL_COMPUTE_BF16);
    CHECK_NAMES(nbl_device_kind, NBL_DEVICE_CPU, NBL_DEVICE_CUDA);
    CHECK_NAMES(nbl_export_type, NBL_EXPORT_DEFAULT, NBL_EXPORT_Q4_0);
    CHECK_NAMES(nbl_plan_arena, NBL_PLAN_ARENA_WEIGHTS, NBL_PLAN_ARENA_DEVICE);
    CHECK_NAMES(nbl_plan_pass, NBL_PLAN_PASS_PREPARE, NBL_PLAN_PASS_DECODE);
    CHECK_NAMES(nbl_plan_recompute, NBL_PLAN_RECOMPUTE_NONE, NBL_PLAN_RECOMPUTE_LAYERS);
    nbl_compute_dtype dtype = NBL_COMPUTE_F16;
    assert_true(nbl_compute_dtype_parse("default", &dtype));
    assert_int_equal(dtype, NBL_COMPUTE_DEFAULT);
    assert_false(nbl_compute_dtype_parse("i8", &dtype)); /* a dtype, but not one to compute in */
    assert_string_equal(nbl_plan_pass_name(NBL_PLAN_PASS_RECOMPUTE), "again");
}

/* A dtype in the place of a compute dtype is an error, not another dtype. */
static void a_dtype_is_no_compute_dtype(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_model *model;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = (nbl_compute_dtype)NBL_DTYPE_BF16};
    assert_refused(ctx, nbl_model_open(ctx, TEST_DATA_DIR "/models/store-f32", &options, &model),
                   NBL_ERROR_ARGUMENT, "nbl_compute_dtype");
    assert_null(model);
    options = (nbl_model_options){NBL_OPTIONS(nbl_model_options), .load = (nbl_format)9};
    assert_refused(ctx, nbl_model_open(ctx, TEST_DATA_DIR "/models/store-f32", &options, &model),
                   NBL_ERROR_ARGUMENT, "nbl_format");
    nbl_context_destroy(ctx);
}

/* ---- results ---- */

enum { BEYOND = 32 }; /* bytes of fields that only the caller knows */

static void a_shorter_result_gets_the_fields_that_it_has(void **state)
{
    (void)state;
    nbl_library whole = {NBL_RESULT(nbl_library)}, shorter;
    assert_true(nbl_library_get(0, &whole));
    assert_true(whole.version[0] != '\0');
    memset(&shorter, 0x5a, sizeof shorter);
    shorter.struct_size = offsetof(nbl_library, version);
    assert_true(nbl_library_get(0, &shorter));
    assert_int_equal(shorter.struct_size, offsetof(nbl_library, version));
    assert_string_equal(shorter.name, whole.name);
    for (size_t i = 0; i < sizeof shorter.version; i++) assert_int_equal(shorter.version[i], 0x5a);
}

static void a_longer_result_gets_zeros_at_its_end(void **state)
{
    (void)state;
    struct {
        nbl_isa_level known;
        uint8_t beyond[BEYOND];
    } longer;
    nbl_context *ctx = new_context();
    memset(&longer, 0x5a, sizeof longer);
    longer.known.struct_size = sizeof longer;
    assert_true(nbl_isa_level_get(ctx, 0, &longer.known));
    assert_string_equal(longer.known.name, "scalar");
    for (int i = 0; i < BEYOND; i++) assert_int_equal(longer.beyond[i], 0);
    nbl_context_destroy(ctx);
}

static void a_result_without_its_size_is_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char temp[64];
    make_temp(temp);
    nbl_convert_report report = {0};
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_NF4};
    const char *in = TEST_DATA_DIR "/folders/llama", *out = in_folder(temp, "out");
    assert_refused(ctx, nbl_checkpoint_quantize(ctx, in, out, &how, &report), NBL_ERROR_ARGUMENT,
                   "nbl_convert_report: struct_size is 0");
    assert_non_null(strstr(nbl_error_hint(ctx), "NBL_RESULT(nbl_convert_report)"));
    nbl_merge_report merged = {0};
    assert_refused(ctx, nbl_merge(ctx, in, in, out, NULL, &merged), NBL_ERROR_ARGUMENT, "nbl_merge_report");
    nbl_export_report exported = {0};
    nbl_export_options type = {NBL_OPTIONS(nbl_export_options), .type = NBL_EXPORT_F32};
    assert_refused(ctx, nbl_export(ctx, in, out, &type, &exported), NBL_ERROR_ARGUMENT, "nbl_export_report");
    type.type = (nbl_export_type)99;
    assert_refused(ctx, nbl_export(ctx, in, out, &type, NULL), NBL_ERROR_ARGUMENT, "nbl_export_type");
    nbl_isa_level level = {0};
    assert_false(nbl_isa_level_get(ctx, 0, &level));
    nbl_library library = {0};
    assert_false(nbl_library_get(0, &library));
    nbl_cuda_device device = {0};
    assert_refused(ctx, nbl_cuda_device_get(ctx, 0, &device), NBL_ERROR_ARGUMENT, "nbl_cuda_device");
    nbl_options_init(&report, sizeof report);
    assert_int_equal(report.struct_size, sizeof report);
    assert_int_equal(entries_in(temp), 0);
    remove_tree(temp);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_struct_is_large),
        cmocka_unit_test(constants_have_names_that_parse),
        cmocka_unit_test(a_dtype_is_no_compute_dtype),
        cmocka_unit_test(a_shorter_result_gets_the_fields_that_it_has),
        cmocka_unit_test(a_longer_result_gets_zeros_at_its_end),
        cmocka_unit_test(a_result_without_its_size_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
