/* test_gguf_model.c - models in GGUF files: configurations, names and rows as checkpoints have them, chat templates, what is
 * not understood, memory that runs out. */
#include "format/gguf_support.h"

#include "base/alloc.h"
#include "base/json/json.h"

static nbl_status open_model(nbl_context *ctx, const builder *b, uint8_t **file, nbl__gguf_model **model)
{
    size_t size;
    nbl__gguf *gguf;
    *file = finish(b, &size);
    *model = NULL;
    nbl_status status = nbl__gguf_parse(ctx, "model.gguf", *file, size, &gguf);
    return status == NBL_OK ? nbl__gguf_model_of(ctx, gguf, model) : status;
}

/* The model must be refused with a message that has all these words. */
static void assert_model_refused(const builder *b, const char *const *words)
{
    nbl_context *ctx = new_context();
    uint8_t *file;
    nbl__gguf_model *model;
    assert_int_not_equal(open_model(ctx, b, &file, &model), NBL_OK);
    for (; *words; words++)
        if (strstr(nbl_error_message(ctx), *words) == NULL)
            fail_msg("\"%s\" is not in: %s", *words, nbl_error_message(ctx));
    free(file);
    nbl_context_destroy(ctx);
}
#define MODEL_REFUSED(b, ...) assert_model_refused(b, (const char *const[]){__VA_ARGS__, NULL})

static builder b; /* large; every test fills it anew */

/* ---- models ---- */

static int64_t config_integer(const nbl__gguf_model *model, const char *key)
{
    int64_t value = -1;
    assert_true(nbl__json_natural(nbl__json_get(model->config.root, key), &value));
    return value;
}

static double config_number(const nbl__gguf_model *model, const char *key)
{
    double value = 0;
    assert_true(nbl__json_number(nbl__json_get(model->config.root, key), &value));
    return value;
}

static const float *floats_of(const nbl__gguf_model *model, const char *gguf_name)
{
    return (const float *)(const void *)nbl__gguf_tensor_find(model->gguf, gguf_name)->data;
}

static void a_llama_gets_its_config_and_its_rows_in_halves(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    uint8_t *file;
    nbl__gguf_model *model;
    build_model(&b, "llama");
    assert_ok(ctx, open_model(ctx, &b, &file, &model));
    assert_string_equal(model->config.model_type, "llama");
    assert_string_equal(model->config.architecture, "LlamaForCausalLM");
    assert_int_equal(model->config.tied, NBL_TIED_YES);
    assert_int_equal(config_integer(model, "num_hidden_layers"), LAYERS);
    assert_int_equal(config_integer(model, "head_dim"), HEAD_DIM);
    assert_int_equal(config_integer(model, "num_key_value_heads"), KV_HEADS);
    assert_int_equal(config_integer(model, "vocab_size"), VOCABULARY);
    assert_int_equal(config_integer(model, "eos_token_id"), 2);
    assert_true(config_number(model, "rms_norm_eps") == (double)1e-5f);
    assert_true(config_number(model, "rope_theta") == 500000);
    assert_null(nbl__json_get(model->config.root, "rope_scaling"));
    assert_int_equal(model->weight_count, b.tensor_count);

    const nbl__gguf_weight *q = nbl__gguf_weight_find(model, "model.layers.1.self_attn.q_proj.weight");
    const float *stored = floats_of(model, "blk.1.attn_q.weight");
    static const int order[] = {0, 2, 1, 3, 4, 6, 5, 7}; /* rows of two heads of four */
    float row[HIDDEN], all[HEADS * HEAD_DIM * HIDDEN];
    for (int i = 0; i < HEADS * HEAD_DIM; i++) {
        assert_ok(ctx, nbl__gguf_weight_rows(ctx, q, i, i + 1, NBL_DTYPE_F32, row));
        assert_memory_equal(row, stored + order[i] * HIDDEN, sizeof row);
    }
    assert_ok(ctx, nbl__gguf_weight_rows(ctx, q, 0, q->rows, NBL_DTYPE_F32, all));
    assert_memory_equal(all + 5 * HIDDEN, stored + 6 * HIDDEN, sizeof row);
    const nbl__gguf_weight *v = nbl__gguf_weight_find(model, "model.layers.0.self_attn.v_proj.weight");
    assert_ok(ctx, nbl__gguf_weight_rows(ctx, v, 1, 2, NBL_DTYPE_F32, row));
    assert_memory_equal(row, floats_of(model, "blk.0.attn_v.weight") + HIDDEN, sizeof row);
    assert_int_equal(nbl__gguf_weight_rows(ctx, v, 2, 5, NBL_DTYPE_F32, row), NBL_ERROR_ARGUMENT);
    assert_int_equal(nbl__gguf_weight_rows(ctx, v, 0, 1, NBL_DTYPE_I8, row), NBL_ERROR_DTYPE);
    assert_null(nbl__gguf_weight_find(model, "lm_head.weight"));
    nbl__gguf_model_close(model);
    free(file);
    nbl_context_destroy(ctx);
}

static void llama_biases_are_transposed_with_their_rows(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    uint8_t *file;
    nbl__gguf_model *model;
    char name[64];
    build_model(&b, "llama");
    for (int layer = 0; layer < LAYERS; layer++) {
        static const char *const biases[] = {"attn_q", "attn_k", "attn_v", "attn_output"};
        for (int i = 0; i < 4; i++) {
            snprintf(name, sizeof name, "blk.%d.%s.bias", layer, biases[i]);
            add_tensor(&b, name, 0, i == 0 || i == 3 ? HIDDEN : HEAD_DIM, 0);
        }
    }
    assert_ok(ctx, open_model(ctx, &b, &file, &model));
    assert_true(nbl__json_is(nbl__json_get(model->config.root, "attention_bias"), NBL_JSON_TRUE));
    float values[HIDDEN], wanted[] = {0, 2, 1, 3, 4, 6, 5, 7};
    const nbl__gguf_weight *bias = nbl__gguf_weight_find(model, "model.layers.1.self_attn.q_proj.bias");
    assert_int_equal(nbl__gguf_weight_rank(bias), 1);
    assert_ok(ctx, nbl__gguf_weight_rows(ctx, bias, 0, 1, NBL_DTYPE_F32, values));
    assert_memory_equal(values, wanted, sizeof wanted);
    nbl__gguf_model_close(model);
    free(file);

    build_model(&b, "llama");
    add_tensor(&b, "blk.0.attn_q.bias", 0, HIDDEN, 0);
    MODEL_REFUSED(&b, "blk.0.attn_k.bias", "missing");
    nbl_context_destroy(ctx);
}

static void qwen_and_gemma_get_their_names_and_gemma_its_norms_less_one(void **state)
{
    (void)state;
    static const char *const archs[] = {"qwen2", "qwen3", "gemma2", "gemma3"};
    static const char *const types[] = {"qwen2", "qwen3", "gemma2", "gemma3_text"};
    nbl_context *ctx = new_context();
    for (int i = 0; i < 4; i++) {
        uint8_t *file;
        nbl__gguf_model *model;
        build_model(&b, archs[i]);
        add_tensor(&b, "output.weight", VOCABULARY, HIDDEN, 0);
        assert_ok(ctx, open_model(ctx, &b, &file, &model));
        assert_string_equal(model->config.model_type, types[i]);
        assert_int_equal(model->config.tied, NBL_TIED_NO);
        assert_int_equal(model->weight_count, b.tensor_count);
        float row[HIDDEN];
        const nbl__gguf_weight *norm = nbl__gguf_weight_find(
            model, "model.layers.1.post_attention_layernorm.weight");
        assert_ok(ctx, nbl__gguf_weight_rows(ctx, norm, 0, 1, NBL_DTYPE_F32, row));
        const float *stored = floats_of(model,
                                        i < 2 ? "blk.1.ffn_norm.weight" : "blk.1.post_attention_norm.weight");
        assert_true(row[3] == stored[3] - (i < 2 ? 0 : 1));
        const nbl__gguf_weight *q = nbl__gguf_weight_find(model, "model.layers.0.self_attn.q_proj.weight");
        assert_ok(ctx, nbl__gguf_weight_rows(ctx, q, 1, 2, NBL_DTYPE_F32, row));
        assert_memory_equal(row, floats_of(model, "blk.0.attn_q.weight") + HIDDEN, sizeof row);
        if (i >= 2) {
            const nbl__json *types_of = nbl__json_get(model->config.root, "layer_types");
            assert_int_equal(types_of->count, LAYERS);
            assert_string_equal(types_of->items[0].string, "sliding_attention");
            assert_string_equal(types_of->items[1].string, i == 2 ? "full_attention" : "sliding_attention");
            assert_int_equal(config_integer(model, "sliding_window"), 16);
            assert_int_equal(config_integer(model, "query_pre_attn_scalar"), HEAD_DIM);
            assert_non_null(nbl__gguf_weight_find(model, "model.layers.0.pre_feedforward_layernorm.weight"));
            assert_non_null(nbl__gguf_weight_find(model, "model.layers.0.post_feedforward_layernorm.weight"));
        }
        if (i == 2) assert_true(config_number(model, "final_logit_softcapping") == 30);
        if (i == 3) assert_true(config_number(model, "rope_local_base_freq") == 10000);
        nbl__gguf_model_close(model);
        free(file);
    }
    nbl_context_destroy(ctx);
}

static void phi3_gets_its_fused_matrices_and_its_window(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    uint8_t *file;
    nbl__gguf_model *model;
    float row[HIDDEN];
    for (uint32_t window = 0; window < 32; window += 16) { /* 0: the file says that there is none */
        build_model(&b, "phi3");
        add_u32(&b, "phi3.attention.sliding_window", window);
        add_u32(&b, "phi3.rope.dimension_count", HEAD_DIM);
        add_u32(&b, "phi3.rope.scaling.original_context_length", 64);
        assert_ok(ctx, open_model(ctx, &b, &file, &model));
        assert_string_equal(model->config.model_type, "phi3");
        assert_string_equal(model->config.architecture, "Phi3ForCausalLM");
        assert_int_equal(model->weight_count, b.tensor_count);
        if (window) assert_int_equal(config_integer(model, "sliding_window"), window);
        else assert_null(nbl__json_get(model->config.root, "sliding_window"));
        const nbl__gguf_weight *up = nbl__gguf_weight_find(model, "model.layers.1.mlp.gate_up_proj.weight");
        const nbl__gguf_weight *qkv = nbl__gguf_weight_find(model,
                                                            "model.layers.1.self_attn.qkv_proj.weight");
        assert_int_equal(up->rows, 2 * INNER);
        assert_int_equal(qkv->rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM);
        assert_ok(ctx, nbl__gguf_weight_rows(ctx, qkv, 1, 2, NBL_DTYPE_F32, row));
        assert_memory_equal(row, floats_of(model, "blk.1.attn_qkv.weight") + HIDDEN, sizeof row);
        nbl__gguf_model_close(model);
        free(file);
    }
    build_model(&b, "phi3"); /* longrope, of half of a head */
    add_u32(&b, "phi3.rope.dimension_count", 2);
    add_u32(&b, "phi3.rope.scaling.original_context_length", 64);
    add_f32(&b, "phi3.rope.scaling.attn_factor", 1.25f);
    add_tensor(&b, "rope_factors_long.weight", 0, 1, 8);
    add_tensor(&b, "rope_factors_short.weight", 0, 1, 2);
    assert_ok(ctx, open_model(ctx, &b, &file, &model));
    assert_true(config_number(model, "partial_rotary_factor") == 0.5);
    assert_int_equal(config_integer(model, "original_max_position_embeddings"), 64);
    const nbl__json *rope = nbl__json_get(model->config.root, "rope_scaling");
    assert_string_equal(nbl__json_text(rope, "type"), "longrope");
    assert_true(nbl__json_get(rope, "attention_factor")->real == 1.25);
    double factor;
    assert_true(nbl__json_number(&nbl__json_get(rope, "short_factor")->items[0], &factor) && factor == 2);
    assert_true(nbl__json_number(&nbl__json_get(rope, "long_factor")->items[0], &factor) && factor == 8);
    nbl__gguf_model_close(model);
    free(file);
    build_model(&b, "phi3"); /* one list without the other, and of another size */
    add_tensor(&b, "rope_factors_long.weight", 0, HEAD_DIM / 2, 1);
    MODEL_REFUSED(&b, "rope_factors_short.weight");
    build_model(&b, "phi3");
    add_tensor(&b, "rope_factors_short.weight", 0, HEAD_DIM / 2, 1);
    add_tensor(&b, "rope_factors_long.weight", 0, HEAD_DIM, 1);
    MODEL_REFUSED(&b, "rope_factors_long.weight");
    build_model(&b, "phi3");
    add_u32(&b, "phi3.rope.dimension_count", 3);
    MODEL_REFUSED(&b, "phi3.rope.dimension_count", "not rotated");
    build_model(&b, "llama");
    add_f32(&b, "llama.rope.scaling.attn_factor", 1.25f);
    MODEL_REFUSED(&b, "llama.rope.scaling.attn_factor");
    build_model(&b, "phi3");
    add_f32(&b, "phi3.final_logit_softcapping", 2);
    MODEL_REFUSED(&b, "phi3.final_logit_softcapping");
    build_model(&b, "phi3");
    add_tensor(&b, "blk.0.attn_q.weight", HEADS * HEAD_DIM, HIDDEN, 0);
    MODEL_REFUSED(&b, "blk.0.attn_q.weight");
    nbl_context_destroy(ctx);
}

static void rotary_scaling_is_told_or_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    uint8_t *file;
    nbl__gguf_model *model;
    build_model(&b, "llama");
    add_text(&b, "llama.rope.scaling.type", "yarn");
    add_f32(&b, "llama.rope.scaling.factor", 4);
    add_u32(&b, "llama.rope.scaling.original_context_length", 16);
    assert_ok(ctx, open_model(ctx, &b, &file, &model));
    const nbl__json *scaling = nbl__json_get(model->config.root, "rope_scaling");
    assert_string_equal(nbl__json_text(scaling, "rope_type"), "yarn");
    assert_int_equal(nbl__json_get(scaling, "original_max_position_embeddings")->integer, 16);
    nbl__gguf_model_close(model);
    free(file);

    build_model(&b, "llama"); /* Llama 3's: a divisor for each frequency */
    add_tensor(&b, "rope_freqs.weight", 0, HEAD_DIM / 2, 1);
    float divisors[] = {1, 8};
    memcpy(b.data.data + b.data.size - 32, divisors, sizeof divisors);
    assert_ok(ctx, open_model(ctx, &b, &file, &model));
    scaling = nbl__json_get(model->config.root, "rope_scaling");
    assert_string_equal(nbl__json_text(scaling, "rope_type"), "llama3");
    assert_true(nbl__json_get(scaling, "factor")->real == 8);
    nbl__gguf_model_close(model);
    free(file);

    divisors[0] = 3;
    memcpy(b.data.data + b.data.size - 32, divisors, sizeof divisors);
    MODEL_REFUSED(&b, "rope_freqs.weight", "divisors");
    build_model(&b, "llama");
    add_text(&b, "llama.rope.scaling.type", "longrope");
    MODEL_REFUSED(&b, "llama.rope.scaling.type", "only none, linear and yarn");
    nbl_context_destroy(ctx);
}

static void what_is_not_understood_is_refused_by_name(void **state)
{
    (void)state;
    build_model(&b, "llama");
    add_tensor(&b, "blk.0.ffn_gate_exps.weight", 4, 8, 0);
    MODEL_REFUSED(&b, "blk.0.ffn_gate_exps.weight");
    build_model(&b, "llama");
    add_tensor(&b, "blk.2.attn_norm.weight", 0, 8, 0);
    MODEL_REFUSED(&b, "blk.2.attn_norm.weight");
    build_model(&b, "llama");
    add_f32(&b, "llama.logit_scale", 2);
    MODEL_REFUSED(&b, "llama.logit_scale");
    build_model(&b, "llama");
    add_u32(&b, "llama.expert_count", 8);
    MODEL_REFUSED(&b, "llama.expert_count", "only 0");
    build_model(&b, "llama");
    add_u32(&b, "llama.attention.sliding_window", 8);
    MODEL_REFUSED(&b, "llama.attention.sliding_window");
    build_model(&b, "llama");
    add_u32(&b, "llama.rope.dimension_count", 2);
    MODEL_REFUSED(&b, "blk.0.attn_q.weight", "shape");
    build_model(&b, "qwen2");
    add_u32(&b, "qwen2.rope.dimension_count", 2);
    MODEL_REFUSED(&b, "qwen2.rope.dimension_count", "not rotated");
    build_model(&b, "llama");
    add_u32(&b, "split.count", 3);
    MODEL_REFUSED(&b, "split.count");
    build_model(&b, "llama");
    add_u32(&b, "llama.vocab_size", VOCABULARY + 1);
    MODEL_REFUSED(&b, "llama.vocab_size", "token_embd.weight");
    memset(&b, 0, sizeof b);
    add_text(&b, "general.architecture", "mamba");
    MODEL_REFUSED(&b, "architecture \"mamba\"");
    memset(&b, 0, sizeof b);
    MODEL_REFUSED(&b, "general.architecture");
    build_model(&b, "llama");
    b.tensor_count--; /* the last tensor's entry is not read */
    MODEL_REFUSED(&b, "blk.1.ffn_down.weight", "missing");
}

/* ---- chat ---- */

static void add_tokens(builder *to, int count)
{
    char name[16];
    add_key(to, "tokenizer.ggml.tokens", NBL_GGUF_ARRAY);
    put_u32(&to->head, NBL_GGUF_STRING);
    put_u64(&to->head, (uint64_t)count);
    for (int i = 0; i < count; i++) {
        snprintf(name, sizeof name, "<%d>", i);
        put_name(&to->head, name);
    }
}

/* The text that the file's template gives; free it. */
static char *render_file(nbl_context *ctx, const char *path, const char *tools)
{
    nbl_chat_template *t;
    nbl_rendering *r;
    nbl_chat chat = {.messages = {"[]", 2}};
    if (tools) chat.tools = (nbl_string){tools, strlen(tools)};
    assert_ok(ctx, nbl_chat_template_open(ctx, path, NULL, &t));
    nbl_status status = nbl_chat_template_render(t, &chat, &r);
    char *text = strdup(status == NBL_OK ? nbl_rendering_text(r).text : nbl_error_message(ctx));
    nbl_rendering_free(r);
    nbl_chat_template_close(t);
    return text;
}

static void templates_tokens_and_ends_of_a_file_are_read(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char folder[64];
    nbl_model *model;
    nbl_chat_template *t;
    int32_t ends[4];
    size_t size;
    make_temp(folder);
    build_model(&b, "llama");
    uint8_t *file = finish(&b, &size);
    write_file(folder, "plain.gguf", file, size);
    free(file);
    char *text = render_file(ctx, in_folder(folder, "plain.gguf"), NULL);
    assert_non_null(strstr(text, "no chat template"));
    free(text);
    assert_ok(ctx, nbl_model_open(ctx, in_folder(folder, "plain.gguf"), NULL, &model));
    assert_int_equal(nbl_model_eos_ids(model, ends, 4), 1);
    assert_int_equal(ends[0], 2);
    nbl_model_close(model);

    add_tokens(&b, VOCABULARY);
    add_u32(&b, "tokenizer.ggml.eot_token_id", 5);
    add_u32(&b, "tokenizer.ggml.eom_token_id", 2);              /* as eos: counts once */
    add_u32(&b, "tokenizer.ggml.unknown_token_id", VOCABULARY); /* no such token */
    add_text(&b, "tokenizer.chat_template", "D{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}");
    add_text(&b, "tokenizer.chat_template.tool_use", "T{{ bos_token }}");
    file = finish(&b, &size);
    write_file(folder, "chat.gguf", file, size);
    free(file);
    text = render_file(ctx, in_folder(folder, "chat.gguf"), NULL);
    assert_string_equal(text, "D<1><2>False");
    free(text);
    text = render_file(ctx, in_folder(folder, "chat.gguf"), "[{}]");
    assert_string_equal(text, "T<1>");
    free(text);
    assert_ok(ctx, nbl_model_open(ctx, in_folder(folder, "chat.gguf"), NULL, &model));
    assert_int_equal(nbl_model_eos_ids(model, ends, 4), 2);
    assert_int_equal(ends[0], 2);
    assert_int_equal(ends[1], 5);
    assert_int_equal(nbl_model_eos_ids(model, NULL, 0), 2);
    nbl_model_close(model);

    build_model(&b, "llama");
    add_u32(&b, "tokenizer.chat_template", 7);
    file = finish(&b, &size);
    write_file(folder, "odd.gguf", file, size);
    free(file);
    assert_int_equal(nbl_chat_template_open(ctx, in_folder(folder, "odd.gguf"), NULL, &t), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "tokenizer.chat_template is not a text"));
    assert_null(t);
    remove_tree(folder);
    nbl_context_destroy(ctx);
}

/* ---- memory ---- */

static void memory_that_runs_out_is_told_and_none_is_lost(void **state)
{
    (void)state;
    build_model(&b, "gemma3");
    for (int64_t n = 1;; n++) {
        nbl__counter counter = {0};
        nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1,
                                       .allocator = nbl__counting_allocator(&counter)};
        nbl_context *ctx;
        uint8_t *file;
        nbl__gguf_model *model;
        assert_int_equal(nbl_context_create(&options, &ctx), NBL_OK);
        int64_t before = counter.calls;
        counter.fail_at = before + n;
        nbl_status status = open_model(ctx, &b, &file, &model);
        bool reached = counter.calls >= counter.fail_at;
        nbl__gguf_model_close(model);
        free(file);
        nbl_context_destroy(ctx);
        assert_int_equal(counter.live, 0);
        if (!reached) {
            assert_int_equal(status, NBL_OK);
            assert_true(n > 3);
            break;
        }
        assert_int_equal(status, NBL_ERROR_MEMORY);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_llama_gets_its_config_and_its_rows_in_halves),
        cmocka_unit_test(llama_biases_are_transposed_with_their_rows),
        cmocka_unit_test(qwen_and_gemma_get_their_names_and_gemma_its_norms_less_one),
        cmocka_unit_test(phi3_gets_its_fused_matrices_and_its_window),
        cmocka_unit_test(rotary_scaling_is_told_or_refused),
        cmocka_unit_test(what_is_not_understood_is_refused_by_name),
        cmocka_unit_test(templates_tokens_and_ends_of_a_file_are_read),
        cmocka_unit_test(memory_that_runs_out_is_told_and_none_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
