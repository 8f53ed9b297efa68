/* test_whole_weights.c - what a session trains besides adapters: all weights, some by name, modules_to_save; whose
 * memory they are, and that a head is trained apart from the embedding when the adapter brings one. */
#include "support.h"

#include <math.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/philox.h"
#include "model/language_model.h"

enum { VOCABULARY = 32, HIDDEN = 16, INNER = 24, MAX = 32 };

/* ---- a model and an adapter in files ---- */

typedef struct files {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__stored items[MAX];
    int64_t count;
} files;

static void put(files *f, const char *name, nbl_dtype dtype, int64_t rows, int64_t columns)
{
    nbl__stored *it = &f->items[f->count++];
    *it = (nbl__stored){.name = name, .dtype = dtype, .rank = columns ? 2 : 1, .shape = {rows, columns}};
    it->elements = rows * (columns ? columns : 1);
    it->bytes = (uint64_t)it->elements * nbl__size_of(dtype);
    uint8_t *data = nbl__arena_alloc(&f->arena, it->bytes);
    for (int64_t i = 0; i < it->elements; i++) {
        uint32_t counter[4] = {(uint32_t)i, (uint32_t)f->count, 0, 0}, key[2] = {3, 5}, words[4];
        nbl__philox(counter, key, words);
        float value = columns ? nbl__uniform(words[0]) - 0.5f : 1 + 0.2f * nbl__uniform(words[0]);
        nbl__from_f32(NBL_ISA_SCALAR, &value, dtype, data + (size_t)i * nbl__size_of(dtype), 1);
    }
    it->data = data;
}

static void store(files *f, const char *folder, const char *name)
{
    nbl__text image = {.ctx = f->ctx};
    assert_ok(f->ctx, nbl__safetensors_build(&f->arena, f->items, f->count, &image));
    write_file(folder, name, image.text, image.size);
    nbl__text_free(&image);
    nbl__arena_free(&f->arena);
}

static void make_model(nbl_context *ctx, const char *folder, bool tied)
{
    char config[1024];
    files f = {.ctx = ctx, .arena = nbl__arena_make(ctx)};
    snprintf(
        config, sizeof config,
        "{\"model_type\": \"llama\", \"torch_dtype\": \"float32\", \"vocab_size\": %d, \"hidden_size\": %d, "
        "\"intermediate_size\": %d, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
        "\"num_key_value_heads\": 1, \"max_position_embeddings\": 64, \"tie_word_embeddings\": %s}",
        VOCABULARY, HIDDEN, INNER, tied ? "true" : "false");
    mkdir(folder, 0777);
    write_file(folder, "config.json", config, strlen(config));
    put(&f, "model.embed_tokens.weight", NBL_DTYPE_BF16, VOCABULARY, HIDDEN);
    put(&f, "model.layers.0.input_layernorm.weight", NBL_DTYPE_BF16, HIDDEN, 0);
    put(&f, "model.layers.0.self_attn.q_proj.weight", NBL_DTYPE_BF16, HIDDEN, HIDDEN);
    put(&f, "model.layers.0.self_attn.k_proj.weight", NBL_DTYPE_F16, HIDDEN / 2, HIDDEN);
    put(&f, "model.layers.0.self_attn.v_proj.weight", NBL_DTYPE_F32, HIDDEN / 2, HIDDEN);
    put(&f, "model.layers.0.self_attn.o_proj.weight", NBL_DTYPE_BF16, HIDDEN, HIDDEN);
    put(&f, "model.layers.0.post_attention_layernorm.weight", NBL_DTYPE_F32, HIDDEN, 0);
    put(&f, "model.layers.0.mlp.gate_proj.weight", NBL_DTYPE_BF16, INNER, HIDDEN);
    put(&f, "model.layers.0.mlp.up_proj.weight", NBL_DTYPE_BF16, INNER, HIDDEN);
    put(&f, "model.layers.0.mlp.down_proj.weight", NBL_DTYPE_BF16, HIDDEN, INNER);
    put(&f, "model.norm.weight", NBL_DTYPE_BF16, HIDDEN, 0);
    if (!tied) put(&f, "lm_head.weight", NBL_DTYPE_BF16, VOCABULARY, HIDDEN);
    store(&f, folder, "model.safetensors");
}

/* LoRA on v_proj, and a head of its own. */
static void make_adapter(nbl_context *ctx, const char *folder)
{
    static const char config[] =
        "{\"peft_type\": \"LORA\", \"task_type\": \"CAUSAL_LM\", \"r\": 2, \"lora_alpha\": 4, "
        "\"target_modules\": [\"v_proj\"], \"modules_to_save\": [\"lm_head\"]}";
    files f = {.ctx = ctx, .arena = nbl__arena_make(ctx)};
    mkdir(folder, 0777);
    write_file(folder, "adapter_config.json", config, strlen(config));
    put(&f, "base_model.model.model.layers.0.self_attn.v_proj.lora_A.weight", NBL_DTYPE_F32, 2, HIDDEN);
    put(&f, "base_model.model.model.layers.0.self_attn.v_proj.lora_B.weight", NBL_DTYPE_F32, HIDDEN / 2, 2);
    put(&f, "base_model.model.lm_head.weight", NBL_DTYPE_F32, VOCABULARY, HIDDEN);
    store(&f, folder, "adapter_model.safetensors");
}

typedef struct fixture {
    nbl_context *ctx;
    char temp[64];
    nbl_model *model;
} fixture;

static fixture open_fixture(bool tied, bool adapter)
{
    fixture f = {.ctx = new_context()};
    make_temp(f.temp);
    make_model(f.ctx, in_folder(f.temp, "model"), tied);
    make_adapter(f.ctx, in_folder(f.temp, "adapter"));
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options),
                                 .adapter = adapter ? in_folder(f.temp, "adapter") : NULL,
                                 .dtype = NBL_COMPUTE_F32};
    assert_ok(f.ctx, nbl_model_open(f.ctx, in_folder(f.temp, "model"), &options, &f.model));
    return f;
}

static void close_fixture(fixture *f)
{
    nbl_model_close(f->model);
    remove_tree(f->temp);
    nbl_context_destroy(f->ctx);
}

/* ---- sessions ---- */

static const nbl__session_options training = {
    .mode = NBL_MODE_TRAIN, .tokens = 8, .sequences = 1, .train = true};
static const nbl__session_options reading = {.mode = NBL_MODE_LOGITS, .tokens = 8, .sequences = 1};
static int32_t numbers[8] = {1, 5, 9, 2, 6, 31, 0, 4};
static const nbl_ids sequence = {numbers, 8};

/* The parameter of this name; 0: it is a weight where it lies. */
static nbl__value parameter_of(nbl__session *s, const char *name)
{
    for (nbl__value v = 1; v <= s->graph.value_count; v++)
        if (nbl__info(&s->graph, v)->kind == NBL_KIND_PARAMETER &&
            strcmp(nbl__info(&s->graph, v)->name, name) == 0)
            return v;
    return 0;
}

static int count_trained(nbl__session *s)
{
    int count = 0;
    for (nbl__value v = 1; v <= s->graph.value_count; v++) {
        const nbl__value_info *info = nbl__info(&s->graph, v);
        if (!info->trained) continue;
        assert_true(info->gradient > 0);
        assert_int_equal(info->tensor.dtype, NBL_DTYPE_F32);
        assert_int_equal(nbl__info(&s->graph, info->gradient)->kind, NBL_KIND_GRADIENT);
        count++;
    }
    return count;
}

static void every_weight_is_trained_from_its_own_values(void **state)
{
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        fixture f = open_fixture(tied, false);
        nbl__session s;
        f.model->train_all = true;
        assert_ok(f.ctx, nbl__session_open(f.model, &training, &s));
        assert_int_equal(count_trained(&s), f.model->weight_count);
        for (int64_t i = 0; i < f.model->weight_count; i++) {
            const struct nbl__weight_entry *held = &f.model->weights[i];
            nbl__value v = parameter_of(&s, held->name);
            assert_true(v > 0);
            int64_t n = nbl__tensor_elements(&nbl__info(&s.graph, v)->tensor);
            float values[VOCABULARY * HIDDEN];
            assert_ok(f.ctx,
                      nbl_convert(f.ctx, held->weight.dtype, held->weight.data, NBL_DTYPE_F32, values, n));
            assert_memory_equal(nbl__plan_data(&s.plan, v), values, (size_t)n * sizeof *values);
        }
        nbl__session_close(&s);
        close_fixture(&f);
    }
}

static void a_packed_weight_that_is_trained_starts_from_what_it_decodes_to(void **state)
{
    (void)state;
    fixture f = open_fixture(false, false);
    static const char *const names[] = {"model.layers.0.mlp.up_proj.weight"};
    struct nbl__weight_entry *held = nbl__model_find(f.model, names[0]);
    uint8_t codes[INNER * HIDDEN];
    float scales[INNER], values[INNER * HIDDEN];
    nbl_quantize_options how = {NBL_OPTIONS(nbl_quantize_options), .format = NBL_FORMAT_INT8};
    nbl_quantized_parts parts = {.data = codes, .scales = scales};
    nbl_weight dense = held->weight;
    assert_ok(f.ctx,
              nbl_quantize(f.ctx, &how, dense.dtype, 2, dense.shape, dense.data, &parts, &held->weight));
    f.model->trained = names;
    f.model->trained_count = 1;
    nbl__session s;
    assert_ok(f.ctx, nbl__session_open(f.model, &training, &s));
    assert_int_equal(count_trained(&s), 1);
    assert_ok(f.ctx, nbl_dequantize(f.ctx, &held->weight, 0, INNER, NBL_DTYPE_F32, 0, values));
    assert_memory_equal(nbl__plan_data(&s.plan, parameter_of(&s, names[0])), values, sizeof values);
    nbl__session_close(&s);
    close_fixture(&f);
}

static void modules_to_save_are_trained_and_otherwise_read_where_they_lie(void **state)
{
    (void)state;
    fixture f = open_fixture(false, true);
    nbl__session s;
    assert_ok(f.ctx, nbl__session_open(f.model, &training, &s));
    assert_int_equal(count_trained(&s), 3);
    nbl__value head = parameter_of(&s, "lm_head.weight");
    assert_true(head && nbl__info(&s.graph, head)->trained);
    assert_memory_equal(nbl__plan_data(&s.plan, head), f.model->peft->replacements[0].stored->data,
                        VOCABULARY * HIDDEN * sizeof(float));
    nbl__session_close(&s);
    assert_ok(f.ctx, nbl__session_open(f.model, &reading, &s));
    assert_int_equal(parameter_of(&s, "lm_head.weight"), 0);
    nbl__session_close(&s);
    close_fixture(&f);
}

static void a_head_of_modules_to_save_is_no_longer_the_embedding(void **state)
{
    (void)state;
    fixture f = open_fixture(true, true);
    nbl__session s;
    assert_false(f.model->decoder.tied);
    assert_ok(f.ctx, nbl__session_open(f.model, &training, &s));
    assert_int_equal(count_trained(&s), 3);
    assert_true(parameter_of(&s, "lm_head.weight") > 0);
    assert_int_equal(parameter_of(&s, "model.embed_tokens.weight"), 0);
    nbl__session_close(&s);
    close_fixture(&f);
}

static void logits_of(nbl_context *ctx, nbl__session *s, float *logits)
{
    assert_ok(ctx, nbl__session_load(s, &sequence, 1, NULL));
    assert_ok(ctx, nbl__plan_run(&s->plan));
    memcpy(logits, nbl__plan_data(&s->plan, s->build.logits), 8 * VOCABULARY * sizeof *logits);
}

/* Logits and loss are of the weights as they are now, in the memory that the optimizer changes. */
static void a_session_that_shares_sees_what_training_changed(void **state)
{
    (void)state;
    fixture f = open_fixture(true, false);
    nbl__session train, read;
    float before[8 * VOCABULARY], after[8 * VOCABULARY];
    f.model->train_all = true;
    assert_ok(f.ctx, nbl__session_open(f.model, &training, &train));
    nbl__session_options shared = reading;
    shared.shared = &train;
    assert_ok(f.ctx, nbl__session_open(f.model, &shared, &read));
    logits_of(f.ctx, &read, before);
    float *embedding = nbl__plan_data(&train.plan, parameter_of(&train, "model.embed_tokens.weight"));
    for (int i = 0; i < VOCABULARY * HIDDEN; i++) embedding[i] *= 1.5f;
    logits_of(f.ctx, &read, after);
    for (int i = 0; i < 8 * VOCABULARY; i++) assert_true(fabsf(after[i] - before[i]) > 0 || before[i] == 0);
    nbl__session_close(&read);
    nbl__session_close(&train);
    close_fixture(&f);
}

static nbl_status open_and_train(nbl_context *ctx, const char *temp)
{
    nbl_model *model;
    nbl__session s;
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .adapter = in_folder(temp, "adapter"),
                                 .dtype = NBL_COMPUTE_F32};
    NBL_TRY(nbl_model_open(ctx, in_folder(temp, "model"), &options, &model));
    nbl_status status = nbl__session_open(model, &training, &s);
    if (status == NBL_OK) nbl__session_close(&s);
    nbl_model_close(model);
    return status;
}

static void memory_that_runs_out_is_told_and_none_is_lost(void **state)
{
    (void)state;
    fixture f = open_fixture(true, true);
    for (int64_t n = 2;; n++) { /* the first is the context itself */
        nbl__counter counter = {.fail_at = n};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx;
        assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
        nbl_status status = open_and_train(ctx, f.temp);
        bool done = counter.calls < n;
        if (done) assert_ok(ctx, status);
        else assert_int_equal(status, NBL_ERROR_MEMORY);
        nbl_context_destroy(ctx);
        assert_int_equal(counter.live, 0);
        if (!done) continue;
        assert_true(n > 10);
        break;
    }
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_weight_is_trained_from_its_own_values),
        cmocka_unit_test(a_packed_weight_that_is_trained_starts_from_what_it_decodes_to),
        cmocka_unit_test(modules_to_save_are_trained_and_otherwise_read_where_they_lie),
        cmocka_unit_test(a_head_of_modules_to_save_is_no_longer_the_embedding),
        cmocka_unit_test(a_session_that_shares_sees_what_training_changed),
        cmocka_unit_test(memory_that_runs_out_is_told_and_none_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
