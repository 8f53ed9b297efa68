/* test_text_part.c - folders of vision-language models: the names of their text model, what conversions do to the
 * other parts, and adapters under either class's names. The model's results are in tests/model/test_models.c. */
#include "support.h"

#include <sys/stat.h>

#include "format/hf/checkpoint.h"
#include "format/hf/text_part.h"
#include "format/peft/peft.h"
#include "model/language_model.h"

static char temp[64];
#define VISION TEST_DATA_DIR "/models/gemma3-vision"

static int set_up(void **state)
{
    (void)state;
    make_temp(temp);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(temp);
    return 0;
}

static void names_of_the_text_model_are_mapped_both_ways(void **state)
{
    (void)state;
    static const struct {
        const char *stored, *own, *prefix;
    } cases[] = {
        {"model.language_model.layers.0.mlp.up_proj", "model.layers.0.mlp.up_proj", "model.language_model."},
        {"language_model.model.norm.weight", "model.norm.weight", "language_model.model."},
        {"language_model.lm_head.weight", "lm_head.weight", "language_model.model."},
        {"model.text_model.embed_tokens", "model.embed_tokens", "model.text_model."},
        {"model.layers.1.x", "model.layers.1.x", NULL},
        {"lm_head.weight", "lm_head.weight", NULL},
        {"language_models.model.x", "language_models.model.x", NULL},
    };
    nbl_context *ctx = new_context();
    nbl__arena arena = nbl__arena_make(ctx);
    char memory[64];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_string_equal(nbl__text_name(&arena, cases[i].stored), cases[i].own);
        const char *prefix = nbl__text_prefix(cases[i].stored);
        if (cases[i].prefix) assert_string_equal(prefix, cases[i].prefix);
        else assert_null(prefix);
        assert_string_equal(nbl__text_spell(prefix, cases[i].own, memory, sizeof memory), cases[i].stored);
    }
    assert_null(nbl__text_spell("model.language_model.", "model.layers.0", memory, 8));
    assert_true(nbl__text_part_is_other("vision_tower.layers.0.weight"));
    assert_true(nbl__text_part_is_other("model.visual.blocks.0.attn.qkv.weight"));
    assert_true(nbl__text_part_is_other("mtp.fc.weight"));
    assert_false(nbl__text_part_is_other("model.visuals.weight"));
    assert_false(nbl__text_part_is_other("model.language_model.layers.0.mtp.weight"));
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

/* The config.json of Gemma 3 4B says little of its text model. */
static void a_text_config_without_sizes_has_those_of_its_class(void **state)
{
    (void)state;
    static const char text[] =
        "{\"model_type\": \"gemma3\", \"mm_tokens_per_image\": 256, \"torch_dtype\": \"bfloat16\", "
        "\"text_config\": {\"hidden_size\": 2560, \"intermediate_size\": 10240, \"model_type\": "
        "\"gemma3_text\", \"num_hidden_layers\": 34, \"rope_scaling\": {\"factor\": 8.0, \"rope_type\": "
        "\"linear\"}, \"sliding_window\": 1024}, \"vision_config\": {\"hidden_size\": 1152}}";
    nbl_context *ctx = new_context();
    nbl__arena arena = nbl__arena_make(ctx);
    const nbl__json *root;
    nbl__decoder d;
    assert_ok(ctx, nbl__json_parse(&arena, "config.json", text, sizeof text - 1, NBL_JSON_PYTHON, &root));
    assert_ok(ctx, nbl__decoder_read(ctx, "config.json", root, &d));
    assert_string_equal(d.arch->model_type, "gemma3_text");
    assert_int_equal(d.vocabulary, 262208);
    assert_int_equal(d.hidden, 2560);
    assert_int_equal(d.heads, 8);
    assert_int_equal(d.kv_heads, 4);
    assert_int_equal(d.head_dim, 256);
    assert_int_equal(d.window, 1024);
    assert_int_equal(d.dtype, NBL_DTYPE_BF16);
    assert_true(d.tied && d.sliding[0] && !d.sliding[5]);
    assert_true(d.rope.kind == NBL_ROPE_LINEAR && d.rope.theta == 1e6f);
    assert_true(d.local_rope.kind == NBL_ROPE_DEFAULT && d.local_rope.theta == 1e4f);
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

/* Every tensor of other parts has the same bytes and dtype in both folders; returns how many. */
static int assert_others_same(nbl_context *ctx, const char *one, const char *other)
{
    nbl_checkpoint *a, *b;
    int count = 0;
    assert_ok(ctx, nbl_checkpoint_open(ctx, one, NBL_OPEN_STRICT, &a));
    assert_ok(ctx, nbl_checkpoint_open(ctx, other, NBL_OPEN_STRICT, &b));
    for (int64_t i = 0; i < a->tensor_count; i++) {
        const nbl_tensor_info *t = &a->tensors[i], *same = NULL;
        if (a->text_names[i]) continue;
        for (int64_t k = 0; k < b->tensor_count; k++)
            if (strcmp(b->tensors[k].name, t->name) == 0) same = &b->tensors[k];
        if (same == NULL) fail_msg("%s: no \"%s\"", other, t->name);
        assert_int_equal(same->weight.format, NBL_FORMAT_DENSE);
        assert_int_equal(same->weight.dtype, t->weight.dtype);
        assert_int_equal(same->bytes, t->bytes);
        assert_memory_equal(same->weight.data, t->weight.data, t->bytes);
        count++;
    }
    nbl_checkpoint_close(a);
    nbl_checkpoint_close(b);
    return count;
}

static void conversions_leave_other_parts_untouched(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char merged[128], packed[128], plain[128];
    snprintf(merged, sizeof merged, "%s/merged", temp);
    snprintf(packed, sizeof packed, "%s/packed", temp);
    snprintf(plain, sizeof plain, "%s/plain", temp);
    nbl_merge_options merge = {NBL_OPTIONS(nbl_merge_options), .dtype = NBL_COMPUTE_F32};
    assert_ok(ctx, nbl_merge(ctx, VISION, VISION "/lora", merged, &merge, NULL));
    assert_int_equal(assert_others_same(ctx, VISION, merged), 34);
    nbl_quantize_options quantize = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_NF4};
    assert_ok(ctx, nbl_checkpoint_quantize(ctx, VISION, packed, &quantize, NULL));
    assert_int_equal(assert_others_same(ctx, VISION, packed), 34);
    size_t size;
    uint8_t *config = read_file(in_folder(packed, "config.json"), &size);
    assert_non_null(
        strstr((char *)config, "\"model.vision_tower\"")); /* transformers must not quantize it either */
    free(config);
    nbl_dequantize_options dequantize = {NBL_OPTIONS(nbl_dequantize_options)};
    assert_ok(ctx, nbl_checkpoint_dequantize(ctx, packed, plain, &dequantize, NULL));
    assert_int_equal(assert_others_same(ctx, VISION, plain), 34);
    nbl_model *model;
    assert_ok(ctx, nbl_model_open(ctx, merged, NULL, &model));
    nbl_model_close(model);
    nbl_context_destroy(ctx);
}

/* Opens a new adapter that adapts `target`, and returns the prefix of its names. */
static const char *prefix_of(nbl_context *ctx, const char *target)
{
    nbl_model *model;
    const char *const names[] = {target};
    nbl__peft_settings settings = {.r = 2, .alpha = 2, .target.list = {names, 1}};
    assert_ok(ctx, nbl_model_open(ctx, VISION, NULL, &model));
    assert_ok(ctx, nbl__model_new_adapter(model, "run.yml", &settings));
    const char *prefix = model->peft->prefix;
    nbl_model_close(model);
    return prefix;
}

static void new_adapters_are_named_as_transformers_loads_the_folder(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    assert_string_equal(prefix_of(ctx, "q_proj"), "model.language_model.");
    assert_string_equal(prefix_of(ctx, "model.language_model.layers.0.mlp.up_proj"), "model.language_model.");
    assert_null(prefix_of(ctx, "model.layers.0.mlp.up_proj"));
    nbl_context_destroy(ctx);
}

/* The golden adapter under the names of a text model, and one that mixes both. */
static void adapters_are_read_under_either_name_but_not_mixed(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__peft *peft;
    assert_ok(ctx, nbl__peft_open(ctx, VISION "/lora", &peft));
    assert_string_equal(peft->prefix, "model.language_model.");
    assert_non_null(nbl__peft_find(peft, "model.layers.0.self_attn.q_proj"));
    nbl__stored *items = peft->tensors;
    for (int mixed = 0; mixed < 2; mixed++) {
        char folder[128], config[512];
        snprintf(folder, sizeof folder, "%s/%s", temp, mixed ? "mixed" : "text");
        assert_int_equal(mkdir(folder, 0755), 0);
        int size = snprintf(config, sizeof config,
                            "{\"peft_type\": \"LORA\", \"r\": 2, \"lora_alpha\": 3, \"target_modules\": "
                            "[\"q_proj\", \"k_proj\", \"v_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", "
                            "\"down_proj\"]}");
        write_file(folder, "adapter_config.json", config, (size_t)size);
        for (int64_t i = mixed; i < peft->tensor_count && !mixed; i++)
            items[i].name = nbl__arena_printf(&peft->arena, "base_model.model.model.%s",
                                              items[i].name +
                                                  strlen("base_model.model.model.language_model."));
        if (mixed)
            items[0].name = nbl__arena_printf(&peft->arena, "base_model.model.model.language_model.%s",
                                              items[0].name + strlen("base_model.model.model."));
        nbl__text image = {.ctx = ctx};
        assert_ok(ctx, nbl__safetensors_build(&peft->arena, items, peft->tensor_count, &image));
        write_file(folder, "adapter_model.safetensors", image.text, image.size);
        nbl__text_free(&image);
        nbl_model *model;
        nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .adapter = folder};
        nbl_status status = nbl_model_open(ctx, VISION, &options, &model);
        if (mixed) {
            assert_int_equal(status, NBL_ERROR_FORMAT);
            assert_non_null(strstr(nbl_error_message(ctx), "is named as in a text model"));
        } else {
            assert_ok(ctx, status);
            assert_null(model->peft->prefix);
            nbl_model_close(model);
        }
    }
    nbl__peft_close(peft);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_of_the_text_model_are_mapped_both_ways),
        cmocka_unit_test(a_text_config_without_sizes_has_those_of_its_class),
        cmocka_unit_test_setup_teardown(conversions_leave_other_parts_untouched, set_up, tear_down),
        cmocka_unit_test(new_adapters_are_named_as_transformers_loads_the_folder),
        cmocka_unit_test_setup_teardown(adapters_are_read_under_either_name_but_not_mixed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
