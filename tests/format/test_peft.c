/* test_peft.c - PEFT adapters: settings, PEFT's rules of matching, folders written and read, and what must be
 * refused. tests/oracle/test_readers.py does the same with PEFT itself. */
#include "support.h"

#include "base/alloc.h"
#include "format/peft/peft.h"

#define HEAD "{\"peft_type\": \"LORA\", "
#define TARGETS "\"target_modules\": [\"q_proj\", \"up_proj\"]"

/* ---- settings ---- */

typedef struct fixture {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__peft_settings settings;
    nbl__peft_rules *rules;
} fixture;

static nbl_status read_text(fixture *f, const char *text)
{
    *f = (fixture){.ctx = new_context()};
    f->arena = nbl__arena_make(f->ctx);
    NBL_TRY(nbl__peft_settings_read(&f->arena, "adapter_config.json", text, strlen(text), &f->settings));
    return nbl__peft_rules_make(f->ctx, "adapter_config.json", &f->settings, &f->rules);
}

static void drop(fixture *f)
{
    nbl__peft_rules_free(f->rules);
    nbl__arena_free(&f->arena);
    nbl_context_destroy(f->ctx);
}

static void read_good(fixture *f, const char *text)
{
    nbl_status status = read_text(f, text);
    if (status != NBL_OK) fail_msg("%s: %s", text, nbl_error_message(f->ctx));
}

static void assert_refused(const char *text, const char *word)
{
    fixture f;
    assert_int_not_equal(read_text(&f, text), NBL_OK);
    if (strstr(nbl_error_message(f.ctx), word) == NULL)
        fail_msg("\"%s\" is not in: %s", word, nbl_error_message(f.ctx));
    drop(&f);
}

static bool targets(const fixture *f, const char *path, nbl__peft_kind kind)
{
    bool targeted = false;
    assert_ok(f->ctx, nbl__peft_targets(f->rules, path, kind, &targeted));
    return targeted;
}

static void settings_are_read_and_printed_in_order(void **state)
{
    (void)state;
    fixture f, again;
    read_good(
        &f, HEAD
        "\"r\": 16, \"lora_alpha\": 32, \"lora_dropout\": 0.05, \"use_rslora\": true, \"use_dora\": false, "
        "\"base_model_name_or_path\": \"b\\u00e4se/\\ud83d\\ude00\", \"task_type\": \"CAUSAL_LM\", "
        "\"rank_pattern\": {\"v_proj\": 2}, \"alpha_pattern\": {\"v_proj\": 0.5}, "
        "\"modules_to_save\": [\"lm_head\"], \"layers_to_transform\": 3, " TARGETS "}");
    assert_int_equal(f.settings.r, 16);
    assert_true(f.settings.alpha == 32 && f.settings.dropout == 0.05 && f.settings.rslora);
    assert_string_equal(f.settings.base_model, "bäse/😀");
    assert_int_equal(f.settings.layer_count, 1);
    nbl__text text = {.ctx = f.ctx};
    nbl__peft_settings_print(&text, &f.settings);
    assert_non_null(strstr(text.text, "\"base_model_name_or_path\": \"b\\u00e4se/\\ud83d\\ude00\","));
    assert_non_null(strstr(text.text, "\"lora_alpha\": 32,"));
    assert_non_null(strstr(text.text, "\"lora_dropout\": 0.05,"));
    assert_non_null(strstr(text.text, "\"target_modules\": [\n    \"q_proj\",\n    \"up_proj\"\n  ],"));
    assert_non_null(strstr(text.text, "\"alpha_pattern\": {\n    \"v_proj\": 0.5\n  },"));
    assert_non_null(strstr(text.text, "\"exclude_modules\": null,"));
    read_good(&again, text.text);
    nbl__text second = {.ctx = f.ctx};
    nbl__peft_settings_print(&second, &again.settings);
    assert_string_equal(text.text, second.text);
    nbl__text_free(&text);
    nbl__text_free(&second);
    drop(&f);
    drop(&again);
}

static void options_that_change_the_adapter_are_refused_by_name(void **state)
{
    (void)state;
    static const char *const options[][2] = {
        {"bias", "\"all\""},
        {"bias", "null"},
        {"fan_in_fan_out", "true"},
        {"use_qalora", "true"},
        {"alora_invocation_tokens", "[1, 2]"},
        {"trainable_token_indices", "[1]"},
        {"trainable_token_indices", "{\"embed_tokens\": [1]}"},
        {"layer_replication", "[[0, 2]]"},
        {"megatron_config", "{\"a\": 1}"},
        {"loftq_config", "{\"loftq_bits\": 4}"},
        {"init_lora_weights", "\"pissa_niter_4\""},
        {"init_lora_weights", "3"},
        {"ensure_weight_tying", "true"},
        {"use_bdlora", "{\"nblocks\": 2}"},
        {"kasa_config", "{\"a\": 1}"},
        {"task_type", "\"SEQ_CLS\""},
        {"an_option_of_tomorrow", "1"},
        {"an_option_of_tomorrow", "true"},
        {"r", "0"},
        {"r", "2.5"},
        {"r", "\"8\""},
        {"lora_alpha", "null"},
        {"lora_alpha", "NaN"},
        {"lora_dropout", "1.5"},
        {"use_dora", "1"},
        {"rank_pattern", "{\"a\": 1.5}"},
        {"rank_pattern", "{\"a\": 1e300}"},
        {"rank_pattern", "[1]"},
        {"alpha_pattern", "{\"a\": \"b\"}"},
        {"alpha_pattern", "{\"(\": 1}"},
        {"modules_to_save", "\"lm_head\""},
        {"modules_to_save", "[\"\"]"},
        {"layers_to_transform", "[-1]"},
        {"layers_pattern", "\"layers\""},
        {"exclude_modules", "\"(\""},
        {"exclude_modules", "[3]"},
    };
    char text[512];
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        snprintf(text, sizeof text, HEAD "\"%s\": %s, " TARGETS "}", options[i][0], options[i][1]);
        assert_refused(text, options[i][0]);
    }
    assert_refused("{\"peft_type\": \"LOHA\", " TARGETS "}", "LOHA");
    assert_refused("{" TARGETS "}", "peft_type");
    assert_refused(HEAD "\"r\": 8}", "target_modules");
    assert_refused(HEAD "\"target_modules\": null}", "target_modules");
    assert_refused(HEAD "\"target_modules\": [\"a\", 1]}", "target_modules");
    assert_refused(HEAD "\"target_modules\": \"(q_proj\"}", "target_modules");
    assert_refused(HEAD "\"target_modules\": \"q_proj\", \"layers_to_transform\": [1]}",
                   "layers_to_transform");
    assert_refused(HEAD "\"use_dora\": true, \"lora_bias\": true, " TARGETS "}", "lora_bias");
}

static void options_at_their_defaults_pass_also_unknown_ones(void **state)
{
    (void)state;
    fixture f;
    read_good(
        &f,
        HEAD "\"an_option_of_tomorrow\": null, \"another\": false, \"third\": {}, \"fourth\": [], "
             "\"megatron_core\": \"x\", \"qalora_group_size\": 32, \"runtime_config\": {\"a\": true}, "
             "\"init_lora_weights\": \"gaussian\", \"auto_mapping\": {\"a\": 1}, \"bias\": \"none\", " TARGETS
             "}");
    assert_int_equal(f.settings.r, 8);
    drop(&f);
}

/* ---- rules ---- */

static void names_match_whole_paths_or_their_ends(void **state)
{
    (void)state;
    fixture f;
    read_good(&f, HEAD "\"target_modules\": [\"q_proj\", \"mlp.up_proj\", \"lm_head\"]}");
    assert_true(targets(&f, "model.layers.0.self_attn.q_proj", NBL_PEFT_LINEAR));
    assert_true(targets(&f, "model.layers.11.mlp.up_proj", NBL_PEFT_LINEAR));
    assert_true(targets(&f, "lm_head", NBL_PEFT_HEAD));
    assert_false(targets(&f, "model.layers.0.self_attn.eq_proj", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "model.layers.0.experts.up_proj", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "model.layers.0.self_attn.q_proj.more", NBL_PEFT_LINEAR));
    drop(&f);
    read_good(&f, HEAD "\"target_modules\": \"All-Linear\", \"exclude_modules\": [\"down_proj\"]}");
    assert_true(targets(&f, "anything", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "lm_head", NBL_PEFT_HEAD));
    assert_false(targets(&f, "model.embed_tokens", NBL_PEFT_EMBEDDING));
    assert_false(targets(&f, "a.down_proj", NBL_PEFT_LINEAR));
    drop(&f);
}

static void an_expression_matches_the_whole_path(void **state)
{
    (void)state;
    fixture f;
    read_good(
        &f, HEAD
        "\"target_modules\": \".*layers\\\\.0\\\\..*(k_proj|gate_proj)\", \"exclude_modules\": \".*mlp.*\"}");
    assert_true(targets(&f, "model.layers.0.self_attn.k_proj", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "model.layers.0.mlp.gate_proj", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "model.layers.0.self_attn.k_proj.x", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "model.layers.10.self_attn.k_proj", NBL_PEFT_LINEAR));
    drop(&f);
    read_good(&f, HEAD "\"target_modules\": \"(a+)+[bd]\"}");
    bool targeted;
    assert_int_equal(
        nbl__peft_targets(f.rules, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaac", NBL_PEFT_LINEAR, &targeted),
        NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(f.ctx), "target_modules"));
    drop(&f);
}

static void layers_are_the_first_number_behind_their_name(void **state)
{
    (void)state;
    fixture f;
    read_good(&f, HEAD
              "\"layers_to_transform\": [1], \"target_modules\": [\"up_proj\", \"model.layers.0.up_proj\"]}");
    assert_true(targets(&f, "model.layers.1.experts.0.up_proj", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "model.layers.0.experts.1.up_proj", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "model.up_proj", NBL_PEFT_LINEAR));
    assert_true(targets(&f, "model.layers.0.up_proj", NBL_PEFT_LINEAR)); /* named in full */
    drop(&f);
    read_good(&f,
              HEAD "\"layers_to_transform\": [1], \"layers_pattern\": [\"h\", \"experts\"], " TARGETS "}");
    assert_true(targets(&f, "model.layers.0.experts.1.up_proj", NBL_PEFT_LINEAR));
    assert_false(targets(&f, "model.layers.1.experts.0.up_proj", NBL_PEFT_LINEAR));
    assert_true(targets(&f, "h.1.up_proj", NBL_PEFT_LINEAR));
    drop(&f);
}

static void the_first_pattern_that_matches_gives_rank_and_alpha(void **state)
{
    (void)state;
    fixture f;
    int64_t r;
    double alpha, scale;
    read_good(
        &f, HEAD
        "\"r\": 4, \"lora_alpha\": 8, \"use_rslora\": true, \"rank_pattern\": {\"layers\\\\.1\\\\..*\": 9, "
        "\"q_proj\": 16}, \"alpha_pattern\": {\"^model.layers.0.mlp.up_proj\": 3}, " TARGETS "}");
    assert_ok(f.ctx, nbl__peft_rank(f.rules, "model.layers.0.self_attn.q_proj", &r, &alpha, &scale));
    assert_true(r == 16 && alpha == 8 && scale == 2);
    assert_ok(f.ctx, nbl__peft_rank(f.rules, "model.layers.1.self_attn.q_proj", &r, &alpha, &scale));
    assert_true(r == 9 && alpha == 8 && scale == 8.0 / 3);
    assert_ok(f.ctx, nbl__peft_rank(f.rules, "model.layers.0.mlp.up_proj", &r, &alpha, &scale));
    assert_true(r == 4 && alpha == 3 && scale == 1.5);
    drop(&f);
}

static void modules_to_save_are_not_adapted_but_replaced(void **state)
{
    (void)state;
    fixture f;
    read_good(&f, HEAD "\"modules_to_save\": [\"norm\", \"mlp\"], " TARGETS "}");
    assert_false(targets(&f, "model.layers.0.mlp.up_proj", NBL_PEFT_LINEAR));
    assert_true(targets(&f, "model.layers.0.self_attn.q_proj", NBL_PEFT_LINEAR));
    assert_true(nbl__peft_saves(f.rules, "model.layers.0.mlp.up_proj"));
    assert_true(nbl__peft_saves(f.rules, "model.layers.0.input_layernorm")); /* PEFT asks for no point */
    assert_false(nbl__peft_saves(f.rules, "model.layers.0.self_attn.q_proj"));
    drop(&f);
}

/* ---- folders ---- */

enum { RANK = 2, WIDTH = 3, VOCABULARY = 5 };
static float numbers[64];

typedef struct adapter {
    nbl__peft_new_module modules[3];
    nbl__peft_new_tensor head;
    nbl__peft_description description;
} adapter;

static const char *const target_names[] = {"q_proj", "embed_tokens"};
static const char *const saved_names[] = {"lm_head"};
static const nbl__peft_target expected_targets[] = {
    {"model.embed_tokens", NBL_PEFT_EMBEDDING, WIDTH, VOCABULARY, 0},
    {"model.layers.0.q_proj", NBL_PEFT_LINEAR, WIDTH, WIDTH, 0},
    {"model.layers.0.norm", NBL_PEFT_OTHER, WIDTH, 0, 0},
    {"model.layers.1.q_proj", NBL_PEFT_LINEAR, WIDTH, WIDTH, 0},
    {"lm_head", NBL_PEFT_HEAD, VOCABULARY, WIDTH, 0},
};

static void make_adapter(adapter *a, bool dora)
{
    static const char *const paths[] = {"model.layers.0.q_proj", "model.layers.1.q_proj",
                                        "model.embed_tokens"};
    for (int i = 0; i < 64; i++) numbers[i] = (float)i / 8;
    *a = (adapter){0};
    for (int i = 0; i < 3; i++) {
        int64_t in = i < 2 ? WIDTH : VOCABULARY;
        a->modules[i] = (nbl__peft_new_module){.path = paths[i],
                                               .is_embedding = i == 2,
                                               .a = nbl_matrix(NBL_DTYPE_F32, RANK, in, numbers + i),
                                               .b = nbl_matrix(NBL_DTYPE_BF16, WIDTH, RANK, numbers + 9)};
        if (dora) a->modules[i].magnitude = nbl_vector(NBL_DTYPE_F32, WIDTH, numbers + 20);
    }
    a->head = (nbl__peft_new_tensor){"lm_head.weight", nbl_matrix(NBL_DTYPE_F16, VOCABULARY, WIDTH, numbers)};
    a->description = (nbl__peft_description){
        .settings = {.r = RANK,
                     .alpha = 4,
                     .dora = dora,
                     .task_type = "CAUSAL_LM",
                     .target = {.list = {target_names, 2}},
                     .modules_to_save = {saved_names, 1}},
        .modules = a->modules,
        .module_count = 3,
        .replacements = &a->head,
        .replacement_count = 1,
    };
}

static void a_written_adapter_reads_back_bit_for_bit(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char temp[64];
    make_temp(temp);
    for (int dora = 0; dora < 2; dora++) {
        adapter a;
        nbl__peft *peft;
        const char *folder = in_folder(temp, dora ? "dora" : "lora");
        make_adapter(&a, dora);
        assert_ok(ctx, nbl__peft_write(ctx, folder, &a.description));
        assert_int_equal(entries_in(folder), 2);
        assert_int_not_equal(nbl__peft_write(ctx, folder, &a.description), NBL_OK); /* never over something */
        assert_ok(ctx, nbl__peft_open(ctx, folder, &peft));
        assert_ok(ctx, nbl__peft_check(peft, expected_targets, 5));
        assert_int_equal(peft->module_count, 3);
        const nbl__peft_module *q = nbl__peft_find(peft, "model.layers.1.q_proj");
        assert_int_equal(q->r, RANK);
        assert_true(q->scale == 2 && q->alpha == 4);
        assert_int_equal(q->b->dtype, NBL_DTYPE_BF16);
        assert_memory_equal(q->a->data, numbers + 1, RANK * WIDTH * 4);
        assert_memory_equal(q->b->data, numbers + 9, RANK * WIDTH * 2);
        assert_int_equal(q->magnitude != NULL, dora);
        const nbl__peft_module *e = nbl__peft_find(peft, "model.embed_tokens");
        assert_true(e->is_embedding && e->in == VOCABULARY && e->out == WIDTH);
        assert_memory_equal(nbl__peft_replacement_find(peft, "lm_head.weight")->stored->data, numbers,
                            VOCABULARY * WIDTH * 2);
        assert_null(nbl__peft_find(peft, "lm_head"));
        nbl__peft_close(peft);
    }
    remove_tree(temp);
    nbl_context_destroy(ctx);
}

static void all_linear_is_written_as_the_modules_it_meant(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char temp[64];
    adapter a;
    nbl__peft *peft;
    make_temp(temp);
    make_adapter(&a, false);
    a.description.module_count = 2;
    a.description.settings.target.list.count = 0;
    a.description.settings.all_linear = true;
    assert_ok(ctx, nbl__peft_write(ctx, in_folder(temp, "a"), &a.description));
    assert_ok(ctx, nbl__peft_open(ctx, in_folder(temp, "a"), &peft));
    assert_false(peft->settings.all_linear);
    assert_int_equal(peft->settings.target.list.count, 2);
    assert_string_equal(peft->settings.target.list.names[1], "model.layers.1.q_proj");
    assert_ok(ctx, nbl__peft_check(peft, expected_targets, 5));
    nbl__peft_close(peft);
    remove_tree(temp);
    nbl_context_destroy(ctx);
}

/* Writes the adapter, opens and checks it: it must be refused with this word. */
static void assert_folder_refused(const adapter *a, const char *word)
{
    nbl_context *ctx = new_context();
    char temp[64];
    nbl__peft *peft;
    make_temp(temp);
    assert_ok(ctx, nbl__peft_write(ctx, in_folder(temp, "a"), &a->description));
    nbl_status status = nbl__peft_open(ctx, in_folder(temp, "a"), &peft);
    if (status == NBL_OK) status = nbl__peft_check(peft, expected_targets, 5);
    assert_int_not_equal(status, NBL_OK);
    if (strstr(nbl_error_message(ctx), word) == NULL)
        fail_msg("\"%s\" is not in: %s", word, nbl_error_message(ctx));
    nbl__peft_close(peft);
    remove_tree(temp);
    nbl_context_destroy(ctx);
}

static void tensors_and_settings_that_disagree_are_refused_by_name(void **state)
{
    (void)state;
    adapter a;
    make_adapter(&a, false);
    a.description.module_count = 1;
    assert_folder_refused(&a, "\"model.embed_tokens\": target_modules names it");
    make_adapter(&a, false);
    a.description.settings.target.list.count = 1;
    assert_folder_refused(&a, "\"model.embed_tokens\": it has tensors");
    make_adapter(&a, false);
    a.description.replacement_count = 0;
    assert_folder_refused(&a, "\"lm_head\": modules_to_save names it");
    make_adapter(&a, false);
    a.description.settings.modules_to_save.count = 0;
    a.head.name = "model.layers.0.norm.weight";
    assert_folder_refused(&a, "model.layers.0.norm.weight");
    make_adapter(&a, false);
    a.description.settings.r = 3;
    assert_folder_refused(&a, "lora_embedding_A\" is [2, 5], [3, 5] was expected");
    make_adapter(&a, false);
    a.description.settings.dora = true;
    assert_folder_refused(&a, "lora_magnitude_vector is missing");
    make_adapter(&a, true);
    a.description.settings.dora = false;
    assert_folder_refused(&a, "use_dora is false");
    make_adapter(&a, false);
    a.description.settings.lora_bias = true;
    assert_folder_refused(&a, "lora_B.bias is missing");
    make_adapter(&a, false);
    a.modules[1].path = "model.layers.7.q_proj";
    assert_folder_refused(&a, "\"model.layers.7.q_proj\": the model has none");
    make_adapter(&a, false);
    a.modules[1].a = nbl_matrix(NBL_DTYPE_F32, RANK, 4, numbers);
    assert_folder_refused(&a, "takes 3 and gives 3 values, its adapter 4 and 3");
    make_adapter(&a, false);
    a.modules[2].is_embedding = false;
    assert_folder_refused(&a, "the module is an embedding");
    make_adapter(&a, false);
    a.head.tensor = nbl_matrix(NBL_DTYPE_F32, WIDTH, VOCABULARY, numbers);
    assert_folder_refused(&a, "lm_head.weight\" has 3 rows of 5");
    make_adapter(&a, false);
    a.modules[0].b.dtype = NBL_DTYPE_I8;
    assert_folder_refused(&a, "is i8");
}

static void a_folder_without_its_files_says_which(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char temp[64];
    nbl__peft *peft;
    make_temp(temp);
    assert_int_equal(nbl__peft_open(ctx, temp, &peft), NBL_ERROR_NOT_FOUND);
    assert_non_null(strstr(nbl_error_message(ctx), "adapter_config.json"));
    write_file(temp, "adapter_config.json", HEAD TARGETS "}", strlen(HEAD TARGETS "}"));
    write_file(temp, "adapter_model.bin", "x", 1);
    assert_int_equal(nbl__peft_open(ctx, temp, &peft), NBL_ERROR_NOT_FOUND);
    assert_non_null(strstr(nbl_error_message(ctx), "adapter_model.safetensors"));
    assert_non_null(strstr(nbl_error_hint(ctx), "adapter_model.bin"));
    remove_tree(temp);
    nbl_context_destroy(ctx);
}

/* ---- faults ---- */

static nbl_status write_and_open(nbl_context *ctx, const char *folder)
{
    adapter a;
    nbl__peft *peft;
    make_adapter(&a, true);
    static const nbl__peft_pattern pattern = {"nothing", 5};
    a.description.settings.rank_pattern = &pattern;
    a.description.settings.rank_pattern_count = 1;
    NBL_TRY(nbl__peft_write(ctx, folder, &a.description));
    NBL_TRY(nbl__peft_open(ctx, folder, &peft));
    nbl_status status = nbl__peft_check(peft, expected_targets, 5);
    nbl__peft_close(peft);
    return status;
}

static void memory_that_runs_out_is_told_and_none_is_lost(void **state)
{
    (void)state;
    char temp[64];
    make_temp(temp);
    for (int64_t n = 2;; n++) { /* the first is the context itself */
        nbl__counter counter = {.fail_at = n};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx;
        assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
        nbl_status status = write_and_open(ctx, in_folder(temp, "a"));
        bool done = counter.calls < n;
        if (done) assert_ok(ctx, status);
        else assert_int_equal(status, NBL_ERROR_MEMORY);
        nbl_context_destroy(ctx);
        assert_int_equal(counter.live, 0);
        remove_tree(in_folder(temp, "a"));
        assert_int_equal(entries_in(temp), 0);
        if (!done) continue;
        assert_true(n > 10);
        break;
    }
    remove_tree(temp);
}

static void a_write_that_fails_leaves_nothing(void **state)
{
    (void)state;
    char temp[64];
    make_temp(temp);
    for (int64_t n = 1;; n++) {
        nbl_context *ctx = new_context();
        adapter a;
        make_adapter(&a, true);
        nbl__inject_write(ctx, n);
        nbl_status status = nbl__peft_write(ctx, in_folder(temp, "a"), &a.description);
        bool done = nbl__write_count(ctx) < n;
        nbl_context_destroy(ctx);
        if (done) {
            assert_int_equal(status, NBL_OK);
            assert_true(n > 4);
            break;
        }
        assert_int_not_equal(status, NBL_OK);
        assert_int_equal(entries_in(temp), 0);
    }
    remove_tree(temp);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(settings_are_read_and_printed_in_order),
        cmocka_unit_test(options_that_change_the_adapter_are_refused_by_name),
        cmocka_unit_test(options_at_their_defaults_pass_also_unknown_ones),
        cmocka_unit_test(names_match_whole_paths_or_their_ends),
        cmocka_unit_test(an_expression_matches_the_whole_path),
        cmocka_unit_test(layers_are_the_first_number_behind_their_name),
        cmocka_unit_test(the_first_pattern_that_matches_gives_rank_and_alpha),
        cmocka_unit_test(modules_to_save_are_not_adapted_but_replaced),
        cmocka_unit_test(a_written_adapter_reads_back_bit_for_bit),
        cmocka_unit_test(all_linear_is_written_as_the_modules_it_meant),
        cmocka_unit_test(tensors_and_settings_that_disagree_are_refused_by_name),
        cmocka_unit_test(a_folder_without_its_files_says_which),
        cmocka_unit_test(memory_that_runs_out_is_told_and_none_is_lost),
        cmocka_unit_test(a_write_that_fails_leaves_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
