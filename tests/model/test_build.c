/* test_build.c - the typed builders of a graph, names of nodes in messages, and the roles that the builders of
 * architectures give to weights; missing keys of a config. */
#include "tiny_model.h"

#include "graph/build.h"
#include "model/graph_by_name.h"
#include "model/language_model.h"
#include "ops/elementwise/elementwise.h"
#include "ops/families.h"

static void a_field_that_is_no_slot_is_refused_by_name(void **state)
{
    (void)state;
    nbl_context *ctx;
    nbl__graph g;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    nbl__graph_open(ctx, &g);
    nbl__value x = nbl__graph_value(&g, NBL_KIND_INPUT, "x", NBL_DTYPE_F32, 2, (int64_t[]){2, 3});
    nbl__add *a = nbl__graph_begin(&g, &nbl__add_family, "sum");
    nbl__graph_bind(&g, &a->a, x);
    nbl__graph_bind(&g, &a->dtype, x);
    assert_int_equal(nbl__graph_status(&g), NBL_ERROR_INTERNAL);
    assert_non_null(strstr(nbl_error_message(ctx), "sum: add has no slot"));
    nbl__graph_close(&g);
    nbl_context_destroy(ctx);
}

static void a_typed_builder_is_the_node_that_names_build(void **state)
{
    (void)state;
    nbl_context *ctx;
    nbl__graph g;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    nbl__graph_open(ctx, &g);
    nbl__value x = nbl__graph_value(&g, NBL_KIND_INPUT, "x", NBL_DTYPE_F32, 2, (int64_t[]){2, 3});
    nbl__value y = nbl__graph_value(&g, NBL_KIND_INPUT, "y", NBL_DTYPE_F32, 2, (int64_t[]){2, 3});
    nbl__value typed = nbl__build_add(&g, "sum", x, y, NBL_DTYPE_F32);
    nbl__add *a = graph_begin(&g, "add", "sum");
    a->dtype = NBL_DTYPE_F32;
    graph_bind(&g, "a", x);
    graph_bind(&g, "b", y);
    nbl__value named = nbl__graph_end(&g);
    assert_ok(ctx, nbl__graph_status(&g));
    assert_int_equal(g.nodes[0].family == g.nodes[1].family, 1);
    assert_int_equal(named, typed + 1);
    int slots = 0;
    for (; g.nodes[0].family->slots[slots].name; slots++)
        if (g.nodes[0].family->slots[slots].role != NBL_ROLE_OUTPUT)
            assert_int_equal(g.nodes[0].bound[slots], g.nodes[1].bound[slots]);
    assert_int_not_equal(slots, 0);
    nbl__graph_close(&g);
    nbl_context_destroy(ctx);
}

static void a_node_is_shown_with_its_layer_once(void **state)
{
    (void)state;
    static const char scope[] = "model.layers.3.";
    nbl__node inside = {.name = "self_attn.qkv", .scope = scope, .layer = 3};
    nbl__node full = {.name = "model.layers.3.mlp.up_proj", .scope = scope, .layer = 3};
    nbl__node outside = {.name = "lm_head", .layer = -1};
    assert_string_equal(nbl__show_node(&inside).text, "model.layers.3.self_attn.qkv");
    assert_string_equal(nbl__show_node(&full).text, "model.layers.3.mlp.up_proj");
    assert_string_equal(nbl__show_node(&outside).text, "lm_head");
}

/* The role that a tensor of these models has by its name. */
static nbl__weight_role role_by_name(const char *name)
{
    if (nbl__ends_with(name, ".bias")) return NBL_WEIGHT_BIAS;
    if (strstr(name, "conv1d") || strstr(name, "A_log") || strstr(name, "dt_bias"))
        return NBL_WEIGHT_RECURRENT;
    if (strstr(name, "norm.")) return NBL_WEIGHT_NORM;
    if (strstr(name, "embed_tokens")) return NBL_WEIGHT_EMBEDDING;
    return strstr(name, "lm_head") ? NBL_WEIGHT_HEAD : NBL_WEIGHT_LINEAR;
}

static void every_weight_gets_its_role_and_load_converts_linear_layers_alone(void **state)
{
    (void)state;
    for (int i = 0; i < TINY_ARCHITECTURES; i++) {
        nbl_context *ctx;
        tiny_model tiny;
        nbl_model *model;
        assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
        tiny_write(ctx, i, false, &tiny);
        nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = NBL_COMPUTE_F32,
                                     .load = NBL_FORMAT_NF4, .adapter = tiny.adapter};
        assert_ok(ctx, nbl_model_open(ctx, tiny.model, &options, &model));
        int linear = 0, layers = tiny_linear_layers(i);
        for (int64_t k = 0; k < model->weight_count; k++) {
            const struct nbl__weight_entry *it = &model->weights[k];
            assert_int_equal(it->role, role_by_name(it->name));
            linear += it->role == NBL_WEIGHT_LINEAR;
            assert_int_equal(it->weight.format,
                             it->role == NBL_WEIGHT_LINEAR ? NBL_FORMAT_NF4 : NBL_FORMAT_DENSE);
        }
        assert_int_equal(linear, layers);
        assert_string_equal(nbl__model_find_role(model, NBL_WEIGHT_EMBEDDING)->name,
                            "model.embed_tokens.weight");
        /* The graph's values have the roles of their weights; an adapter's parameters have their own. */
        nbl__session s;
        nbl__session_options training = {.mode = NBL_MODE_TRAIN, .tokens = 8, .sequences = 1, .train = true};
        assert_ok(ctx, nbl__session_plan(model, &training, &s));
        int adapters = 0;
        for (nbl__value v = 1; v <= s.graph.value_count; v++) {
            const nbl__value_info *info = nbl__info(&s.graph, v);
            if (info->kind != NBL_KIND_WEIGHT && info->kind != NBL_KIND_PARAMETER) {
                assert_int_equal(info->role, NBL_WEIGHT_NONE);
                continue;
            }
            bool a = nbl__ends_with(info->name, ".lora_A.weight"),
                 b = nbl__ends_with(info->name, ".lora_B.weight");
            adapters += a || b;
            assert_int_equal(info->role, a   ? NBL_WEIGHT_LORA_A
                                         : b ? NBL_WEIGHT_LORA_B
                                             : role_by_name(info->name));
        }
        assert_int_equal(adapters, 2 * layers);
        nbl__session_close(&s);
        nbl_model_close(model);
        nbl_context_destroy(ctx);
        remove_tree(tiny.folder);
    }
}

/* Values of Phi3Config in transformers 5.22; its rms_norm_eps and positions are not those of LlamaConfig. */
static void missing_keys_of_phi3_have_transformers_defaults(void **state)
{
    (void)state;
    static const char config[] = "{\"model_type\": \"phi3\", \"vocab_size\": 32064, \"hidden_size\": 64, "
                                 "\"intermediate_size\": 24, \"num_hidden_layers\": 2, "
                                 "\"num_attention_heads\": 4}";
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    nbl__arena arena = nbl__arena_make(ctx);
    const nbl__json *root;
    nbl__decoder d;
    assert_ok(ctx, nbl__json_parse(&arena, "config.json", config, sizeof config - 1, NBL_JSON_PYTHON, &root));
    assert_ok(ctx, nbl__decoder_read(ctx, "config.json", root, &d));
    assert_true(d.norm_eps == 1e-5f);
    assert_true(d.rope.theta == 10000);
    assert_int_equal(d.positions, 4096);
    assert_int_equal(d.padding, 32000);
    assert_int_equal(d.kv_heads, 4);
    assert_int_equal(d.head_dim, 16);
    assert_int_equal(d.act, NBL_ACT_SILU);
    assert_int_equal(d.window, 0);
    assert_false(d.tied || d.sliding[0]);
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_field_that_is_no_slot_is_refused_by_name),
        cmocka_unit_test(a_typed_builder_is_the_node_that_names_build),
        cmocka_unit_test(a_node_is_shown_with_its_layer_once),
        cmocka_unit_test(every_weight_gets_its_role_and_load_converts_linear_layers_alone),
        cmocka_unit_test(missing_keys_of_phi3_have_transformers_defaults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
