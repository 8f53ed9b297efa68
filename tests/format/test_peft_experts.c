/* test_peft_experts.c - adapters of stacks of experts: their names, what names of linear layers mean for a new one,
 * files with a module per expert, and stacks that PEFT takes for another orientation. */
#include "support.h"

#include "format/peft/peft.h"

enum { EXPERTS = 3, HIDDEN = 4, INNER = 2 };

static const nbl__peft_target targets[] = {
    {"lm_head", NBL_PEFT_HEAD, 8, HIDDEN, 0},
    {"model.embed_tokens", NBL_PEFT_EMBEDDING, HIDDEN, 8, 0},
    {"model.layers.0.mlp.experts.down_proj", NBL_PEFT_EXPERTS, HIDDEN, INNER, EXPERTS},
    {"model.layers.0.mlp.experts.gate_up_proj", NBL_PEFT_EXPERTS, 2 * INNER, HIDDEN, EXPERTS},
    {"model.layers.0.mlp.gate", NBL_PEFT_ROUTER, EXPERTS, HIDDEN, 0},
    {"model.layers.0.self_attn.q_proj", NBL_PEFT_LINEAR, HIDDEN, HIDDEN, 0},
};
enum { TARGETS = sizeof targets / sizeof *targets };

static nbl_status make(nbl_context *ctx, const char *type, nbl__peft_settings settings, nbl__peft **peft)
{
    settings.r = 2;
    settings.alpha = 3;
    return nbl__peft_new(ctx, "run.yml", type, &settings, NULL, targets, TARGETS, peft);
}

static void a_new_adapter_of_experts_has_pefts_names(void **state)
{
    (void)state;
    static const char *const names[] = {"mlp.experts.gate_up_proj", "mlp.experts.down_proj",
                                        "mlp.gate.weight"};
    nbl_context *ctx = new_context();
    nbl__peft *p;
    assert_ok(ctx, make(ctx, "qwen2_moe", (nbl__peft_settings){.parameters = {names, 3}}, &p));
    assert_int_equal(p->module_count, 3);
    const nbl__peft_module *first = nbl__peft_find(p, targets[3].path),
                           *last = nbl__peft_find(p, targets[2].path);
    assert_string_equal(first->stem, "model.layers.0.mlp.experts.base_layer");
    assert_string_equal(last->stem, "model.layers.0.mlp.experts");
    assert_string_equal(nbl__peft_find(p, targets[4].path)->stem, "model.layers.0.mlp.gate");
    assert_int_equal(first->experts, EXPERTS);
    assert_ptr_equal(nbl__peft_find_parameter(p, "model.layers.0.mlp.experts.base_layer.lora_A.weight"),
                     first);
    assert_ptr_equal(nbl__peft_find_parameter(p, "model.layers.0.mlp.experts.lora_B.weight"), last);
    nbl__peft_close(p);
    /* alone, gate_up_proj has the outer name */
    assert_ok(ctx, make(ctx, "gpt_oss", (nbl__peft_settings){.parameters = {names, 1}}, &p));
    assert_string_equal(nbl__peft_find(p, targets[3].path)->stem, "model.layers.0.mlp.experts");
    nbl__peft_close(p);
    nbl_context_destroy(ctx);
}

static void names_of_transformers_4_mean_the_stacks(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__peft *p;
    assert_ok(ctx, make(ctx, "qwen3_moe", (nbl__peft_settings){.all_linear = true}, &p));
    assert_int_equal(p->module_count, 4); /* both stacks, the router, q_proj */
    assert_int_equal(nbl__peft_find(p, targets[3].path)->r, 4);
    assert_true(nbl__peft_find(p, targets[3].path)->scale == 1.5);
    assert_int_equal(nbl__peft_find(p, targets[2].path)->r, 2);
    assert_int_equal(p->settings.target.list.count, 1);
    assert_int_equal(p->settings.parameters.count, 3);
    assert_string_equal(p->settings.rank_pattern[0].key, ".*\\.gate_up_proj");
    nbl__peft_close(p);
    /* models that PEFT rewrites nothing for */
    assert_ok(ctx, make(ctx, "gpt_oss", (nbl__peft_settings){.all_linear = true}, &p));
    assert_int_equal(p->module_count, 1);
    nbl__peft_close(p);
    static const char *const wrong[][2] = {
        {"qwen3_moe", "gate_proj"}, {"qwen2_moe", "gate"}, {"gpt_oss", "up_proj"}};
    for (int i = 0; i < 3; i++) {
        nbl__peft_settings settings = {.target = {.list = {&wrong[i][1], 1}}};
        assert_int_not_equal(make(ctx, wrong[i][0], settings, &p), NBL_OK);
        assert_non_null(strstr(nbl_error_message(ctx), wrong[i][1]));
    }
    nbl__peft_settings dropout = {.all_linear = true, .dropout = 0.1};
    assert_int_equal(make(ctx, "qwen3_moe", dropout, &p), NBL_ERROR_UNSUPPORTED);
    assert_non_null(strstr(nbl_error_message(ctx), "lora_dropout"));
    nbl_context_destroy(ctx);
}

/* A new folder with these tensors. */
static void write_adapter(nbl_context *ctx, const char *folder, const nbl__peft_new_module *modules,
                          int count, nbl__peft_settings settings)
{
    settings.task_type = "CAUSAL_LM";
    settings.r = 2, settings.alpha = 3;
    nbl__peft_description d = {.settings = settings, .modules = modules, .module_count = count};
    assert_ok(ctx, nbl__peft_write(ctx, folder, &d));
}

static float value_of(const nbl__stored *t, int64_t row, int64_t column)
{
    float value;
    memcpy(&value, t->data + 4 * (row * t->shape[1] + column), 4);
    return value;
}

static void a_module_per_expert_becomes_a_stack(void **state)
{
    (void)state;
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    static float a[9][2 * HIDDEN], b[9][HIDDEN * 2];
    char path[64], folder[80], paths[9][80];
    nbl__peft_new_module modules[9];
    nbl_context *ctx = new_context();
    make_temp(path);
    snprintf(folder, sizeof folder, "%s/adapter", path);
    for (int e = 0; e < EXPERTS; e++)
        for (int k = 0; k < 3; k++) {
            int at = 3 * e + k;
            int64_t out = k < 2 ? INNER : HIDDEN, in = k < 2 ? HIDDEN : INNER;
            snprintf(paths[at], sizeof paths[at], "model.layers.0.mlp.experts.%d.%s", e, parts[k]);
            for (int i = 0; i < 2 * in; i++) a[at][i] = (float)(100 * at + i);
            for (int i = 0; i < 2 * out; i++) b[at][i] = (float)(1000 + 100 * at + i);
            modules[at] = (nbl__peft_new_module){.path = paths[at],
                                                 .a = nbl_matrix(NBL_DTYPE_F32, 2, in, a[at]),
                                                 .b = nbl_matrix(NBL_DTYPE_F32, out, 2, b[at])};
        }
    nbl__peft_settings settings = {.target = {.list = {parts, 3}}};
    write_adapter(ctx, folder, modules, 9, settings);
    nbl__peft *p;
    assert_ok(ctx, nbl__peft_open(ctx, folder, &p));
    assert_int_equal(p->module_count, 2);
    const nbl__peft_module *m = nbl__peft_find(p, targets[3].path);
    assert_non_null(m);
    assert_int_equal(m->r, 4);
    assert_true(m->scale == 1.5);
    assert_string_equal(m->stem, "model.layers.0.mlp.experts.base_layer");
    for (int e = 0; e < EXPERTS; e++)
        for (int k = 0; k < 2; k++)
            for (int j = 0; j < 2; j++) {
                assert_true(value_of(m->a, e * 4 + k * 2 + j, 3) == a[3 * e + k][j * HIDDEN + 3]);
                for (int o = 0; o < 2 * INNER; o++) { /* block-diagonal */
                    float want = o / INNER == k ? b[3 * e + k][o % INNER * 2 + j] : 0;
                    assert_true(value_of(m->b, o, (k * 2 + j) * EXPERTS + e) == want);
                }
            }
    assert_int_equal(nbl__peft_find(p, targets[2].path)->r, 2);
    /* gates and ups of GPT-OSS alternate */
    assert_ok(ctx, nbl__peft_swap_experts(p, "qwen3_moe"));
    assert_int_equal(nbl__peft_swap_experts(p, "gpt_oss"), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "alternate"));
    nbl__peft_close(p);
    remove_tree(folder);
    /* one expert under two names */
    static const char *const both[] = {"gate_proj", "up_proj", "down_proj", "w2"};
    settings.target.list = (nbl__peft_list){both, 4};
    modules[5].path = "model.layers.0.mlp.experts.0.w2";
    write_adapter(ctx, folder, modules, 9, settings);
    assert_int_equal(nbl__peft_open(ctx, folder, &p), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "adapted twice"));
    modules[5].path = paths[5];
    remove_tree(folder);
    /* inspected, a module of the wrong rank is listed and joined to nothing */
    nbl_tensor whole = modules[2].a;
    modules[2].a = nbl_matrix(NBL_DTYPE_F32, 1, INNER, a[2]);
    write_adapter(ctx, folder, modules, 9, settings);
    assert_ok(ctx, nbl__peft_inspect(ctx, folder, &p));
    assert_true(p->found.count >= 2);
    assert_null(nbl__peft_find(p, targets[2].path));
    nbl__peft_close(p);
    modules[2].a = whole;
    remove_tree(folder);
    /* an expert that lacks one projection, an index that is far too large, gate without up */
    modules[4].path = "model.layers.0.mlp.experts.1.other_proj";
    static const char *const more[] = {"gate_proj", "up_proj", "down_proj", "other_proj"};
    settings.target.list = (nbl__peft_list){more, 4};
    write_adapter(ctx, folder, modules, 9, settings);
    assert_int_equal(nbl__peft_open(ctx, folder, &p), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "experts.1.up_proj"));
    remove_tree(folder);
    modules[4].path = "model.layers.0.mlp.experts.99999999.up_proj";
    write_adapter(ctx, folder, modules, 9, settings);
    assert_int_equal(nbl__peft_open(ctx, folder, &p), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "99999999"));
    remove_tree(folder);
    write_adapter(ctx, folder, modules, 1, settings);
    assert_int_equal(nbl__peft_open(ctx, folder, &p), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "together"));
    remove_tree(path);
    nbl_context_destroy(ctx);
}

static void a_swapped_matrix_comes_back(void **state)
{
    (void)state;
    float from[EXPERTS * 2 * 5], wide[EXPERTS * 2 * 5], back[EXPERTS * 2 * 5];
    for (int i = 0; i < EXPERTS * 2 * 5; i++) from[i] = (float)i;
    nbl__peft_swap_matrix(from, true, EXPERTS, 2, 5, wide);
    /* row e·r + j, column i  is  row i, column j·E + e */
    assert_true(wide[3 * 6 + 1 * EXPERTS + 2] == from[(2 * 2 + 1) * 5 + 3]);
    nbl__peft_swap_matrix(wide, false, EXPERTS, 2, 5, back);
    assert_memory_equal(from, back, sizeof from);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_adapter_of_experts_has_pefts_names),
        cmocka_unit_test(names_of_transformers_4_mean_the_stacks),
        cmocka_unit_test(a_module_per_expert_becomes_a_stack),
        cmocka_unit_test(a_swapped_matrix_comes_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
