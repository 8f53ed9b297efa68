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
    if (nbl__ends_with(name, ".bias") || nbl__ends_with(name, "_bias"))
        return strstr(name, "dt_bias") ? NBL_WEIGHT_RECURRENT : NBL_WEIGHT_BIAS;
    if (strstr(name, ".experts.")) return NBL_WEIGHT_EXPERTS;
    if (strstr(name, ".gate.") || strstr(name, ".router.")) return NBL_WEIGHT_ROUTER;
    if (strstr(name, "sinks")) return NBL_WEIGHT_SINKS;
    if (strstr(name, "conv1d") || strstr(name, "A_log") || strstr(name, "dt_bias"))
        return NBL_WEIGHT_RECURRENT;
    if (strstr(name, "norm.")) return NBL_WEIGHT_NORM;
    if (strstr(name, "embed_tokens")) return NBL_WEIGHT_EMBEDDING;
    return strstr(name, "lm_head") ? NBL_WEIGHT_HEAD : NBL_WEIGHT_LINEAR;
}

static void every_weight_gets_its_role_and_load_converts_linear_layers_and_experts(void **state)
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
            bool converted = it->role == NBL_WEIGHT_LINEAR || it->role == NBL_WEIGHT_EXPERTS;
            assert_int_equal(it->weight.format, converted ? NBL_FORMAT_NF4 : NBL_FORMAT_DENSE);
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

/* Reads a configuration of 8 layers with 32 heads that has only the sizes without a default. */
static void read_config(nbl_context *ctx, nbl__arena *arena, const char *type, const char *keys,
                        nbl__decoder *d)
{
    char config[1024];
    int size = snprintf(
        config, sizeof config,
        "{\"model_type\": \"%s\", \"vocab_size\": 200000, \"hidden_size\": 256, "
        "\"intermediate_size\": 24, \"num_hidden_layers\": 8, \"num_attention_heads\": 32%s%s}",
        type, keys[0] ? ", " : "", keys);
    assert_in_range(size, 1, sizeof config - 1);
    const nbl__json *root;
    assert_ok(ctx, nbl__json_parse(arena, "config.json", nbl__arena_strdup(arena, config), (size_t)size,
                                   NBL_JSON_PYTHON, &root));
    assert_ok(ctx, nbl__decoder_read(ctx, "config.json", root, d));
}

static unsigned layers_of(const bool *layers)
{
    unsigned mask = 0;
    for (int i = 0; i < 8; i++) mask |= (unsigned)layers[i] << i;
    return mask;
}

/* Values of the configuration classes of transformers 5.22. */
static void missing_keys_have_the_defaults_of_transformers(void **state)
{
    (void)state;
    static const struct {
        const char *type, *keys;
        int64_t kv_heads, head_dim, positions;
        float norm_eps, theta, local_theta;
        int64_t padding, window;
        unsigned sliding, no_rope, chunked; /* a bit per layer */
        bool tied;
    } rows[] = {
        {"llama", "", 32, 8, 2048, 1e-6f, 1e4f, 0, -1, 0, 0, 0, 0, false},
        {"mistral", "", 8, 8, 131072, 1e-6f, 1e4f, 0, -1, 4096, 0xff, 0, 0, false},
        {"mistral", "\"sliding_window\": null", 8, 8, 131072, 1e-6f, 1e4f, 0, -1, 0, 0, 0, 0, false},
        {"mistral", "\"num_key_value_heads\": null", 32, 8, 131072, 1e-6f, 1e4f, 0, -1, 4096, 0xff, 0, 0,
         false},
        {"qwen2", "", 32, 8, 32768, 1e-6f, 1e4f, 0, -1, 0, 0, 0, 0, false},
        {"qwen2", "\"use_sliding_window\": true, \"max_window_layers\": 5", 32, 8, 32768, 1e-6f, 1e4f, 0, -1,
         4096, 0xe0, 0, 0, false},
        {"qwen3", "", 32, 128, 32768, 1e-6f, 1e4f, 0, -1, 0, 0, 0, 0, false},
        {"gemma2", "", 4, 256, 8192, 1e-6f, 1e4f, 0, 0, 4096, 0x55, 0, 0, true},
        {"gemma3_text", "", 4, 256, 131072, 1e-6f, 1e6f, 1e4f, 0, 4096, 0xdf, 0, 0, true},
        {"gemma3_text", "\"sliding_window_pattern\": 3", 4, 256, 131072, 1e-6f, 1e6f, 1e4f, 0, 4096, 0xdb, 0,
         0, true},
        {"phi3", "", 32, 8, 4096, 1e-5f, 1e4f, 0, 32000, 0, 0, 0, 0, false},
        {"smollm3", "", 4, 8, 32768, 1e-6f, 2e6f, 0, 128004, 0, 0, 0x88, 0, true},
        {"smollm3", "\"use_sliding_window\": true, \"sliding_window\": 9", 4, 8, 32768, 1e-6f, 2e6f, 0,
         128004, 9, 0x88, 0x88, 0, true},
        {"ministral", "", 8, 8, 131072, 1e-6f, 1e4f, 0, -1, 4096, 0xff, 0, 0, false},
        {"ministral3", "", 8, 128, 262144, 1e-5f, 1e6f, 0, 11, 0, 0, 0, 0, false},
        {"olmo2", "", 32, 8, 2048, 1e-5f, 1e4f, 0, 1, 0, 0, 0, 0, false},
        {"olmo3", "", 32, 8, 2048, 1e-5f, 5e5f, 5e5f, 1, 4096, 0x77, 0, 0, false},
        {"olmo3", "\"rope_theta\": 7.0", 32, 8, 2048, 1e-5f, 7, 5e5f, 1, 4096, 0x77, 0, 0, false},
        {"granite", "", 32, 8, 2048, 1e-6f, 1e4f, 0, -1, 0, 0, 0, 0, false},
        {"cohere2", "", 32, 8, 8192, 1e-5f, 1e4f, 0, 0, 4096, 0x77, 0x88, 0, true},
        {"cohere2", "\"sliding_window_pattern\": 2", 32, 8, 8192, 1e-5f, 1e4f, 0, 0, 4096, 0x55, 0xaa, 0,
         true},
        {"llama4_text", "\"moe_layers\": []", 8, 128, 131072, 1e-5f, 5e5f, 0, -1, 0, 0, 0x88, 0x77, false},
    };
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    nbl__arena arena = nbl__arena_make(ctx);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nbl__decoder d;
        read_config(ctx, &arena, rows[i].type, rows[i].keys, &d);
        print_message("%s %s\n", rows[i].type, rows[i].keys);
        assert_int_equal(d.kv_heads, rows[i].kv_heads);
        assert_int_equal(d.head_dim, rows[i].head_dim);
        assert_int_equal(d.positions, rows[i].positions);
        assert_true(d.norm_eps == rows[i].norm_eps);
        assert_true(d.rope.theta == rows[i].theta && d.local_rope.theta == rows[i].local_theta);
        assert_int_equal(d.padding, rows[i].padding);
        assert_int_equal(d.window, rows[i].window);
        assert_int_equal(layers_of(d.sliding), rows[i].sliding);
        assert_int_equal(layers_of(d.no_rope), rows[i].no_rope);
        assert_int_equal(layers_of(d.chunked), rows[i].chunked);
        assert_int_equal(d.tied, rows[i].tied);
    }
    nbl__decoder d;
    read_config(ctx, &arena, "ministral3", "", &d);
    assert_true(d.rope.kind == NBL_ROPE_YARN && d.rope.factor == 16 && d.rope.query_beta == 0);
    assert_true(d.query_rope.kind == NBL_ROPE_YARN && d.query_rope.query_beta == 0.1);
    assert_true(nbl__rope_query_scale(&d.query_rope, 16383) == 1);
    assert_true(nbl__rope_query_scale(&d.query_rope, 16384) > 1);
    read_config(ctx, &arena, "llama4_text", "\"moe_layers\": []", &d);
    assert_true(d.inner == 16384 && d.chunk == 8192 && d.unit_norm && d.rope.interleaved);
    assert_true(nbl__rope_query_scale(&d.query_rope, 8190) == 1);
    assert_true(nbl__rope_query_scale(&d.query_rope, 8191) > 1);
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

/* The same rope in the spellings of several versions of transformers. */
static void a_rope_is_read_in_every_spelling(void **state)
{
    (void)state;
#define FACTORS "\"short_factor\": [1, 2], \"long_factor\": [3, 4]"
    static const struct {
        const char *type, *keys;
        nbl__rope_kind kind;
        double theta, partial, original, local_theta;
    } rows[] = {
        {"phi3", "\"rope_parameters\": {\"rope_theta\": 5, \"partial_rotary_factor\": 0.5}", NBL_ROPE_DEFAULT,
         5, 0.5, 4096, 0},
        {"phi3", "\"rope_theta\": 5, \"partial_rotary_factor\": 0.5, \"rope_scaling\": null",
         NBL_ROPE_DEFAULT, 5, 0.5, 4096, 0},
        {"phi3",
         "\"partial_rotary_factor\": 0.5, \"original_max_position_embeddings\": 64, \"rope_scaling\": "
         "{\"type\": \"su\", " FACTORS "}",
         NBL_ROPE_LONGROPE, 1e4, 0.5, 64, 0},
        {"phi3", "\"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": \"yarn\", " FACTORS "}",
         NBL_ROPE_LONGROPE, 1e4, 0.5, 4096, 0},
        /* the one beside the parameters counts */
        {"phi3",
         "\"original_max_position_embeddings\": 64, \"rope_parameters\": {\"rope_type\": \"longrope\", "
         "\"partial_rotary_factor\": 0.5, \"original_max_position_embeddings\": 32, " FACTORS "}",
         NBL_ROPE_LONGROPE, 1e4, 0.5, 64, 0},
        /* rope_scaling rules over rope_parameters, an empty one does not */
        {"llama",
         "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_theta\": 7, \"rope_parameters\": "
         "{\"rope_theta\": 5}",
         NBL_ROPE_LINEAR, 7, 0, 0, 0},
        {"llama", "\"rope_scaling\": {}, \"rope_parameters\": {\"rope_theta\": 5}", NBL_ROPE_DEFAULT, 5, 0, 0,
         0},
        {"gemma3_text", "\"rope_theta\": 5, \"rope_scaling\": {\"rope_type\": \"linear\", \"factor\": 8}",
         NBL_ROPE_LINEAR, 5, 0, 0, 1e4},
        {"gemma3_text", "\"rope_local_base_freq\": 6", NBL_ROPE_DEFAULT, 1e6, 0, 0, 6},
        {"gemma3_text", "\"rope_parameters\": {\"sliding_attention\": {\"rope_theta\": 6}}", NBL_ROPE_DEFAULT,
         1e6, 0, 0, 6},
        {"gemma3_text",
         "\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5}, \"sliding_attention\": "
         "{\"rope_theta\": "
         "6}}",
         NBL_ROPE_DEFAULT, 5, 0, 0, 6},
        {"ministral3",
         "\"rope_theta\": 5, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
         "\"original_max_position_embeddings\": 9, \"max_position_embeddings\": 36}",
         NBL_ROPE_YARN, 5, 0, 9, 0},
    };
    nbl_context *ctx;
    assert_int_equal(nbl_context_create(NULL, &ctx), NBL_OK);
    nbl__arena arena = nbl__arena_make(ctx);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        nbl__decoder d;
        read_config(ctx, &arena, rows[i].type, rows[i].keys, &d);
        const nbl__rope *full = &d.rope, *local = &d.local_rope;
        print_message("%s %s\n", rows[i].type, rows[i].keys);
        assert_int_equal(full->kind, rows[i].kind);
        assert_true((double)(full->rope_theta > 0 ? full->rope_theta : full->theta) == rows[i].theta);
        assert_true(full->partial_rotary_factor == rows[i].partial);
        assert_true(full->original_max_position_embeddings == rows[i].original);
        assert_true((double)(local->rope_theta > 0 ? local->rope_theta : local->theta) ==
                    rows[i].local_theta);
        assert_int_equal(local->kind, NBL_ROPE_DEFAULT);
    }
#undef FACTORS
    nbl__arena_free(&arena);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_field_that_is_no_slot_is_refused_by_name),
        cmocka_unit_test(a_typed_builder_is_the_node_that_names_build),
        cmocka_unit_test(a_node_is_shown_with_its_layer_once),
        cmocka_unit_test(every_weight_gets_its_role_and_load_converts_linear_layers_and_experts),
        cmocka_unit_test(missing_keys_have_the_defaults_of_transformers),
        cmocka_unit_test(a_rope_is_read_in_every_spelling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
