/* test_models.c - whole models through the public interface against transformers, PEFT and bitsandbytes: every
 * architecture, rope and storage under tests/data/models, which tests/oracle/make_model_golden.py made and
 * describes. And models that must be refused, with what is wrong with them. */
#include "support.h"

#include <math.h>

#include "format/hf/safetensors.h"

enum { MAX_SEQUENCES = 3, GREEDY = 24 };

typedef struct golden {
    nbl_context *ctx;
    const char *name;
    char folder[512];
    nbl__arena arena;
    uint8_t *bytes;
    nbl__stored *tensors;
    int64_t count;
    nbl_ids ids[MAX_SEQUENCES], labels[MAX_SEQUENCES];
    int64_t sequences;
} golden;

static const nbl__stored *find(const golden *g, const char *name)
{
    for (int64_t i = 0; i < g->count; i++)
        if (strcmp(g->tensors[i].name, name) == 0) return &g->tensors[i];
    return NULL;
}

static const nbl__stored *find_at(const golden *g, const char *name, int64_t i)
{
    char full[64];
    snprintf(full, sizeof full, "%s.%d", name, (int)i);
    return find(g, full);
}

static nbl_ids ids_of(golden *g, const nbl__stored *it)
{
    assert_int_equal(it->dtype, NBL_DTYPE_I32);
    nbl_ids ids = {nbl__arena_alloc(&g->arena, it->bytes), it->elements};
    memcpy(ids.ids, it->data, it->bytes);
    return ids;
}

static golden open_golden(nbl_context *ctx, const char *name)
{
    golden g = {.ctx = ctx, .name = name, .arena = nbl__arena_make(ctx)};
    size_t size;
    snprintf(g.folder, sizeof g.folder, "%s/models/%s", TEST_DATA_DIR, name);
    g.bytes = read_file(in_folder(g.folder, "expected.safetensors"), &size);
    assert_ok(ctx, nbl__safetensors_parse(&g.arena, name, g.bytes, size, &g.tensors, &g.count));
    for (int64_t i = 0; find_at(&g, "ids", i); i++, g.sequences++) {
        assert_true(i < MAX_SEQUENCES);
        g.ids[i] = ids_of(&g, find_at(&g, "ids", i));
        g.labels[i] = ids_of(&g, find_at(&g, "labels", i));
    }
    assert_true(g.sequences > 0);
    return g;
}

static void close_golden(golden *g)
{
    nbl__arena_free(&g->arena);
    free(g->bytes);
}

/* |a - b| / |b| over all values; `expected` has no alignment. */
static double distance(const golden *g, const float *got, const nbl__stored *expected)
{
    double off = 0, all = 0;
    assert_int_equal(expected->dtype, NBL_DTYPE_F32);
    for (int64_t i = 0; i < expected->elements; i++) {
        float want;
        memcpy(&want, expected->data + 4 * i, 4);
        if (!isfinite(got[i])) fail_msg("%s: %s[%d] is %g", g->name, expected->name, (int)i, (double)got[i]);
        off += ((double)got[i] - (double)want) * ((double)got[i] - (double)want);
        all += (double)want * (double)want;
    }
    return sqrt(off / (all > 0 ? all : 1));
}

static void assert_within(const golden *g, const char *what, double distance, double bound)
{
    if (!(distance <= bound))
        fail_msg("%s: %s: relative norm %.2e, above %g", g->name, what, distance, bound);
}

static nbl_model *open_model(const golden *g, nbl_compute_dtype dtype, const char *adapter)
{
    nbl_model_options options = {NBL_OPTIONS(nbl_model_options), .dtype = dtype,
                                 .adapter = adapter ? in_folder(g->folder, adapter) : NULL};
    nbl_model *model;
    assert_ok(g->ctx, nbl_model_open(g->ctx, g->folder, &options, &model));
    return model;
}

/* Logits of all sequences in one call; free them. */
static void compute_logits(golden *g, nbl_compute_dtype dtype, float **logits)
{
    nbl_model *model = open_model(g, dtype, NULL);
    int64_t vocabulary = nbl_model_vocabulary(model);
    for (int64_t i = 0; i < g->sequences; i++) {
        assert_int_equal(find_at(g, "logits", i)->elements, g->ids[i].count * vocabulary);
        logits[i] = malloc((size_t)(g->ids[i].count * vocabulary) * sizeof(float));
    }
    assert_ok(g->ctx, nbl_model_logits(model, g->ids, g->sequences, logits));
    nbl_model_close(model);
}

static void check_logits(golden *g, bool int8)
{
    float *logits[MAX_SEQUENCES];
    compute_logits(g, NBL_COMPUTE_F32, logits);
    for (int64_t i = 0; i < g->sequences; i++) {
        const nbl__stored *want = find_at(g, "logits", i), *peer = int8 ? find_at(g, "peer", i) : NULL;
        const float *peers;
        double bound = 1e-5;
        if (peer) { /* activations are rounded, too: not further from the truth than bitsandbytes */
            assert_ok(g->ctx, nbl__stored_floats(&g->arena, peer, &peers));
            bound = 1.5 * distance(g, peers, want);
            assert_within(g, "bitsandbytes", bound, 0.15);
        }
        assert_within(g, "logits in f32", distance(g, logits[i], want), bound);
        free(logits[i]);
    }
}

static void check_half_logits(golden *g, nbl_compute_dtype dtype)
{
    float *logits[MAX_SEQUENCES];
    compute_logits(g, dtype, logits);
    for (int64_t i = 0; i < g->sequences; i++) {
        assert_within(g, nbl_compute_dtype_name(dtype), distance(g, logits[i], find_at(g, "logits", i)),
                      2e-2);
        assert_within(g, nbl_compute_dtype_name(dtype), distance(g, logits[i], find_at(g, "half", i)), 2e-2);
        free(logits[i]);
    }
}

/* All sequences as one batch. */
static void check_greedy(golden *g)
{
    nbl_model *model = open_model(g, NBL_COMPUTE_F32, NULL);
    int32_t tokens[MAX_SEQUENCES][GREEDY];
    nbl_generated results[MAX_SEQUENCES];
    nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options), .max_tokens = GREEDY};
    for (int i = 0; i < MAX_SEQUENCES; i++) results[i] = (nbl_generated){.ids = {tokens[i], 0}};
    assert_ok(g->ctx, nbl_model_generate(model, g->ids, g->sequences, &how, results));
    for (int64_t i = 0; i < g->sequences; i++) {
        nbl_ids want = ids_of(g, find_at(g, "greedy", i));
        assert_int_equal(results[i].ids.count, want.count);
        for (int64_t t = 0; t < want.count; t++)
            if (tokens[i][t] != want.ids[t])
                fail_msg("%s: sequence %d: new token %d is %d, not %d", g->name, (int)i, (int)t,
                         (int)tokens[i][t], (int)want.ids[t]);
    }
    nbl_model_close(model);
}

typedef struct gradient_check {
    const golden *g;
    const char *kind;
    int64_t seen;
} gradient_check;

static nbl_status check_gradient(void *user, const char *name, const nbl_tensor *gradient)
{
    gradient_check *c = user;
    char full[256];
    snprintf(full, sizeof full, "%s.%s", c->kind, name);
    const nbl__stored *want = find(c->g, full);
    if (want == NULL) fail_msg("%s: a gradient of \"%s\"", c->g->name, full);
    assert_int_equal(gradient->rank, want->rank);
    for (int i = 0; i < want->rank; i++) assert_int_equal(gradient->shape[i], want->shape[i]);
    assert_within(c->g, full, distance(c->g, gradient->data, want), 1e-4);
    c->seen++;
    return NBL_OK;
}

static void check_gradients(golden *g, const char *kind)
{
    char name[32];
    int64_t expected = -1, trained; /* the loss is no gradient */
    double want, loss;
    snprintf(name, sizeof name, "%s.loss", kind);
    assert_int_equal(find(g, name)->dtype, NBL_DTYPE_F64);
    memcpy(&want, find(g, name)->data, sizeof want);
    for (int64_t i = 0; i < g->count; i++) expected += strncmp(g->tensors[i].name, kind, strlen(kind)) == 0;
    for (int pack = 0; pack < 2; pack++) {
        gradient_check c = {g, kind, 0};
        nbl_model *model = open_model(g, NBL_COMPUTE_F32, kind);
        assert_ok(g->ctx, nbl_model_gradients(model, g->ids, g->labels, g->sequences, pack, 0, check_gradient,
                                              &c, &loss, &trained));
        assert_int_equal(c.seen, expected);
        assert_within(g, name, fabs(loss - want) / want, 1e-6);
        nbl_model_close(model);
    }
}

static void check(const char *name, const char *half, const char *first, const char *second)
{
    nbl_context *ctx = new_context();
    golden g = open_golden(ctx, name);
    bool int8 = strcmp(name, "store-int8") == 0;
    check_logits(&g, int8);
    nbl_compute_dtype dtype;
    if (nbl_compute_dtype_parse(half, &dtype)) check_half_logits(&g, dtype);
    if (!int8) check_greedy(&g); /* there rounded activations may turn a choice */
    if (first) check_gradients(&g, first);
    if (second) check_gradients(&g, second);
    close_golden(&g);
    nbl_context_destroy(ctx);
}

/* A test of one folder of tests/data/models: its 16-bit dtype, and its adapters. */
#define GOLDEN(test, name, half, first, second)                                                              \
    static void test(void **state)                                                                           \
    {                                                                                                        \
        (void)state;                                                                                         \
        check(name, half, first, second);                                                                    \
    }

GOLDEN(llama_with_biases_is_as_transformers_has_it, "llama", "bf16", "lora", "dora")
GOLDEN(mistral_with_a_window_is_as_transformers_has_it, "mistral", "bf16", "lora", NULL)
GOLDEN(qwen2_with_a_window_is_as_transformers_has_it, "qwen2", "bf16", "lora", NULL)
GOLDEN(qwen3_is_as_transformers_has_it, "qwen3", "bf16", "dora", NULL)
GOLDEN(gemma2_is_as_transformers_has_it, "gemma2", "bf16", "lora", NULL)
GOLDEN(gemma3_with_two_ropes_is_as_transformers_has_it, "gemma3", "bf16", "dora", NULL)
GOLDEN(the_text_model_of_gemma3_with_vision_is_as_transformers_has_it, "gemma3-vision", "bf16", "lora", NULL)
GOLDEN(phi3_with_a_window_is_as_transformers_has_it, "phi3", "bf16", "lora", "dora")
GOLDEN(phi3_whose_text_grows_beyond_the_original_length_is_as_if_recomputed, "phi3-longrope", "bf16", "lora",
       NULL)
GOLDEN(smollm3_with_windows_without_rope_is_as_transformers_has_it, "smollm3", "bf16", "lora", NULL)
GOLDEN(ministral_is_as_transformers_has_it, "ministral", "bf16", "dora", NULL)
GOLDEN(ministral3_with_scaled_queries_is_as_transformers_has_it, "ministral3", "bf16", "lora", NULL)
GOLDEN(llama4_without_experts_is_as_transformers_has_it, "llama4", "bf16", "lora", "dora")
GOLDEN(llama4_with_experts_is_as_transformers_has_it, "llama4-experts", "bf16", NULL, NULL)
GOLDEN(qwen3_5_with_states_is_as_transformers_has_it, "qwen3_5", "bf16", "lora", "dora")
GOLDEN(dynamic_rope_grows_with_the_text_as_if_recomputed, "rope-dynamic", "bf16", NULL, NULL)
GOLDEN(proportional_rope_is_as_transformers_has_it, "rope-proportional", "bf16", NULL, NULL)
GOLDEN(olmo2_with_norms_behind_its_blocks_is_as_transformers_has_it, "olmo2", "bf16", "lora", "dora")
GOLDEN(olmo3_with_two_ropes_is_as_transformers_has_it, "olmo3", "bf16", "lora", NULL)
GOLDEN(cohere2_with_blocks_side_by_side_is_as_transformers_has_it, "cohere2", "bf16", "lora", "dora")
GOLDEN(granite_with_its_multipliers_is_as_transformers_has_it, "granite", "bf16", "lora", "dora")
GOLDEN(mixtral_with_a_window_is_as_transformers_has_it, "mixtral", "bf16", "lora", "experts")
GOLDEN(qwen2_moe_with_a_shared_expert_is_as_transformers_has_it, "qwen2_moe", "bf16", "lora", "experts")
GOLDEN(qwen3_moe_is_as_transformers_has_it, "qwen3_moe", "bf16", "lora", "experts")
GOLDEN(an_nf4_state_per_expert_is_as_bitsandbytes_has_it, "qwen3_moe-mixed", NULL, "experts", NULL)
GOLDEN(gpt_oss_is_as_transformers_has_it, "gpt_oss", "bf16", "lora", "experts")
GOLDEN(gpt_oss_runs_on_its_own_four_bits, "gpt_oss-mxfp4", NULL, "experts", NULL)
GOLDEN(qwen3_5_with_experts_is_as_transformers_has_it, "qwen3_5_moe", "bf16", "lora", "experts")
GOLDEN(qwen3_next_with_fused_matrices_is_as_transformers_has_it, "qwen3_next", "bf16", "lora", "experts")
GOLDEN(linear_rope_is_as_transformers_has_it, "rope-linear", "bf16", NULL, NULL)
GOLDEN(llama3_rope_is_as_transformers_has_it, "rope-llama3", "bf16", NULL, NULL)
GOLDEN(yarn_is_as_transformers_has_it, "rope-yarn", "bf16", NULL, NULL)
GOLDEN(yarn_with_every_key_is_as_transformers_has_it, "rope-yarn-mscale", "bf16", NULL, NULL)
GOLDEN(a_config_of_older_transformers_is_read, "rope-old-config", "bf16", NULL, NULL)
GOLDEN(f32_weights_are_as_transformers_has_them, "store-f32", NULL, "lora", NULL)
GOLDEN(f16_weights_are_as_transformers_has_them, "store-f16", "f16", NULL, NULL)
GOLDEN(flat_nf4_is_as_bitsandbytes_has_it, "store-nf4", NULL, "dora", NULL)
GOLDEN(nested_nf4_is_as_bitsandbytes_has_it, "store-nf4-nested", NULL, "lora", NULL)
GOLDEN(int8_is_no_further_from_the_truth_than_bitsandbytes, "store-int8", NULL, NULL, NULL)

/* ---- what must be refused ---- */

typedef struct bent {
    const char *key, *value; /* what config.json says instead; appended when the key is not there */
    nbl_status status;
    const char *words; /* of the message */
} bent;

/* The text of a config with another value of a key, a word or a list, or one more key. */
static void bend(const char *text, const bent *how, char *out, size_t room)
{
    char quoted[64];
    snprintf(quoted, sizeof quoted, "\"%s\": ", how->key);
    const char *at = strstr(text, quoted);
    if (at) {
        const char *value = at + strlen(quoted), *end = value + strcspn(value, ",\n");
        if (*value == '[') end = strchr(value, ']') + 1; /* a list may take several lines */
        snprintf(out, room, "%.*s%s%s", (int)(value - text), text, how->value, end);
    } else {
        snprintf(out, room, "{%s%s, %s", quoted, how->value, strchr(text, '{') + 1);
    }
}

/* Opens a golden model with one key of its config.json changed, for each case. */
static void assert_refused(const char *name, const bent *cases, size_t count)
{
    nbl_context *ctx = new_context();
    char source[512], folder[64], text[16384];
    size_t size;
    int wrong = 0;
    snprintf(source, sizeof source, "%s/models/%s", TEST_DATA_DIR, name);
    make_temp(folder);
    uint8_t *weights = read_file(in_folder(source, "model.safetensors"), &size);
    write_file(folder, "model.safetensors", weights, size);
    free(weights);
    char *config = (char *)read_file(in_folder(source, "config.json"), &size);
    config[size] = '\0';
    for (size_t i = 0; i < count; i++) {
        nbl_model *model;
        nbl_model_plan *plan = NULL;
        bend(config, &cases[i], text, sizeof text);
        write_file(folder, "config.json", text, strlen(text));
        nbl_status status = nbl_model_open(ctx, folder, NULL, &model);
        if (status == NBL_OK) status = nbl_model_make_plan(model, 16, 1, 0, &plan);
        else assert_null(model);
        if (status != cases[i].status || strstr(nbl_error_message(ctx), cases[i].words) == NULL)
            wrong++,
                print_error("%s = %s: %s: \"%.300s\" instead of \"%s\"\n", cases[i].key, cases[i].value,
                            nbl_status_name(status), status ? nbl_error_message(ctx) : "", cases[i].words);
        nbl_model_plan_free(plan);
        nbl_model_close(model);
    }
    free(config);
    remove_tree(folder);
    assert_int_equal(wrong, 0);
    nbl_context_destroy(ctx);
}

static void hostile_configs_are_refused_by_the_name_of_the_key(void **state)
{
    (void)state;
    static const bent cases[] = {
        {"num_hidden_layers", "1000000000", NBL_ERROR_UNSUPPORTED, "num_hidden_layers is 1000000000"},
        {"num_hidden_layers", "-1", NBL_ERROR_FORMAT, "num_hidden_layers is not a whole number"},
        {"num_hidden_layers", "1e999", NBL_ERROR_FORMAT, "num_hidden_layers"},
        {"num_hidden_layers", "NaN", NBL_ERROR_FORMAT, "num_hidden_layers"},
        {"num_hidden_layers", "1024", NBL_ERROR_FORMAT, "no \"model.layers.2."},
        {"num_hidden_layers", "1", NBL_ERROR_FORMAT, "model.layers.1."},
        {"num_attention_heads", "3", NBL_ERROR_FORMAT, "num_attention_heads 3 is no multiple"},
        {"num_attention_heads", "2147483646", NBL_ERROR_FORMAT, "self_attn.q_proj.weight"},
        {"num_key_value_heads", "0", NBL_ERROR_FORMAT, "num_key_value_heads"},
        {"hidden_size", "2147483647", NBL_ERROR_FORMAT, "model.embed_tokens.weight"},
        {"hidden_size", "\"16\"", NBL_ERROR_FORMAT, "hidden_size is not a whole number"},
        {"hidden_size", "16.5", NBL_ERROR_FORMAT, "hidden_size is not a whole number"},
        {"intermediate_size", "2147483647", NBL_ERROR_FORMAT, "mlp.gate_proj.weight"},
        {"vocab_size", "49", NBL_ERROR_FORMAT, "model.embed_tokens.weight"},
        {"vocab_size", "2147483647", NBL_ERROR_FORMAT, "model.embed_tokens.weight"},
        {"rms_norm_eps", "NaN", NBL_ERROR_FORMAT, "rms_norm_eps is not a number"},
        {"rms_norm_eps", "-1", NBL_ERROR_FORMAT, "rms_norm_eps"},
        {"hidden_act", "\"xielu\"", NBL_ERROR_UNSUPPORTED, "hidden_act is \"xielu\""},
        {"model_type", "\"mamba\"", NBL_ERROR_UNSUPPORTED, "model_type \"mamba\" is not known"},
        {"rope_theta", "0", NBL_ERROR_FORMAT, "theta"},
        {"rope_theta", "-Infinity", NBL_ERROR_FORMAT, "rope_theta"},
        {"rope_type", "\"dynamic\"", NBL_ERROR_FORMAT, "factor"},
        {"rope_type", "\"longrope\"", NBL_ERROR_FORMAT, "short_factor has 0 numbers"},
        {"rope_type", "\"longrope\", \"short_factor\": [1, 2], \"long_factor\": [1, 2, 3]", NBL_ERROR_FORMAT,
         "long_factor has 3 numbers"},
        {"rope_type", "\"axial\"", NBL_ERROR_UNSUPPORTED, "rope_type \"axial\" is not"},
        {"rope_type", "\"default\", \"llama_4_scaling_beta\": 0.1", NBL_ERROR_UNSUPPORTED,
         "llama_4_scaling_beta"},
        {"partial_rotary_factor", "0.5", NBL_ERROR_UNSUPPORTED, "partial_rotary_factor 0.5"},
        {"rope_type", "\"llama3\"", NBL_ERROR_FORMAT, "factor"},
        {"rope_scaling_of_mine", "3", NBL_ERROR_UNSUPPORTED,
         "the key rope_scaling_of_mine is not understood"},
    };
    assert_refused("store-f32", cases, sizeof cases / sizeof *cases);
}

static void what_phi3_has_not_is_refused_by_the_name_of_the_key(void **state)
{
    (void)state;
    static const bent cases[] = {
        {"rope_type", "\"longrope\"", NBL_ERROR_FORMAT, "short_factor"},
        {"rope_type", "\"su\"", NBL_ERROR_FORMAT, "short_factor"},
        {"rope_type", "\"yarn\"", NBL_ERROR_FORMAT, "short_factor"}, /* transformers takes it for longrope */
        {"rope_type", "\"linear\", \"factor\": 2", NBL_ERROR_UNSUPPORTED, "rope_type"},
        {"rope_local_base_freq", "500", NBL_ERROR_UNSUPPORTED, "rope_local_base_freq"},
        {"partial_rotary_factor", "0.75", NBL_ERROR_UNSUPPORTED, "partial_rotary_factor 0.75"}, /* 3 of 4 */
        {"partial_rotary_factor", "0.1", NBL_ERROR_UNSUPPORTED, "partial_rotary_factor 0.1"},
        {"partial_rotary_factor", "1.5", NBL_ERROR_UNSUPPORTED, "partial_rotary_factor 1.5"},
        {"resid_pdrop", "0.1", NBL_ERROR_UNSUPPORTED, "resid_pdrop is 0.1"},
        {"embd_pdrop", "0.1", NBL_ERROR_UNSUPPORTED, "embd_pdrop is 0.1"},
        {"layer_types", "[\"full_attention\"]", NBL_ERROR_UNSUPPORTED, "layer_types"},
        {"attention_bias", "true", NBL_ERROR_UNSUPPORTED, "attention_bias"},
        {"head_dim", "2147483646", NBL_ERROR_FORMAT, "head_dim 2147483646 is above 2147483647"},
        {"num_key_value_heads", "1", NBL_ERROR_FORMAT, "self_attn.qkv_proj.weight\" is [32, 16]"},
        {"intermediate_size", "23", NBL_ERROR_FORMAT, "mlp.gate_up_proj.weight\" is [48, 16]"},
    };
    assert_refused("phi3", cases, sizeof cases / sizeof *cases);
}

static void what_cohere2_has_not_is_refused_by_the_name_of_the_key(void **state)
{
    (void)state;
    static const bent cases[] = {
        {"logit_scale", "0", NBL_ERROR_FORMAT, "logit_scale is not positive"},
        {"layer_norm_eps", "-1", NBL_ERROR_FORMAT, "layer_norm_eps is negative"},
        {"head_dim", "8", NBL_ERROR_UNSUPPORTED, "head_dim is 8"},
        {"sliding_window", "null", NBL_ERROR_UNSUPPORTED, "sliding_window is null"},
        {"rotary_pct", "0.5", NBL_ERROR_UNSUPPORTED, "rotary_pct has another value"},
        {"use_parallel_block", "false", NBL_ERROR_UNSUPPORTED, "use_parallel_block has another value"},
        {"order_of_interleaved_layers", "\"global_attn_first\"", NBL_ERROR_UNSUPPORTED,
         "order_of_interleaved_layers"},
        {"use_qk_norm", "true", NBL_ERROR_UNSUPPORTED, "the key use_qk_norm is not understood"},
    };
    assert_refused("cohere2", cases, sizeof cases / sizeof *cases);
}

static void what_llama4_has_not_is_refused_by_the_name_of_the_key(void **state)
{
    (void)state;
    static const bent cases[] = {
        {"moe_layers", "[-1]", NBL_ERROR_FORMAT, "moe_layers has a value that is no layer"},
        {"moe_layers", "1", NBL_ERROR_FORMAT, "moe_layers is no list"},
        {"router_jitter_noise", "0.1", NBL_ERROR_UNSUPPORTED, "router_jitter_noise is 0.1"},
        {"layer_types", "[\"chunked_attention\", \"sliding_attention\"]", NBL_ERROR_UNSUPPORTED,
         "sliding_attention"},
        {"layer_types", "[\"chunked_attention\"]", NBL_ERROR_FORMAT, "layer_types"},
        {"attention_chunk_size", "null", NBL_ERROR_FORMAT, "attention_chunk_size"},
        {"attention_chunk_size", "0", NBL_ERROR_FORMAT, "attention_chunk_size"},
        {"no_rope_layers", "[1]", NBL_ERROR_FORMAT, "no_rope_layers is not a list"},
        {"no_rope_layers", "[1, 2]", NBL_ERROR_FORMAT, "no_rope_layers has a value"},
        {"no_rope_layer_interval", "0", NBL_ERROR_FORMAT, "no_rope_layer_interval"},
        {"floor_scale", "0", NBL_ERROR_FORMAT, "floor_scale"},
        {"attn_scale", "-1", NBL_ERROR_FORMAT, "beta"},
        {"attn_temperature_tuning", "4", NBL_ERROR_FORMAT, "attn_temperature_tuning"},
        {"output_router_logits", "true", NBL_ERROR_UNSUPPORTED, "output_router_logits"},
        {"intermediate_size_mlp", "23", NBL_ERROR_FORMAT, "feed_forward.gate_proj.weight\" is [24, 16]"},
        {"partial_rotary_factor", "0.5", NBL_ERROR_UNSUPPORTED, "partial_rotary_factor 0.5"},
    };
    assert_refused("llama4", cases, sizeof cases / sizeof *cases);
}

static void multipliers_of_granite_must_be_positive(void **state)
{
    (void)state;
    static const bent cases[] = {
        {"embedding_multiplier", "0", NBL_ERROR_FORMAT, "embedding_multiplier is not positive"},
        {"residual_multiplier", "-1", NBL_ERROR_FORMAT, "residual_multiplier is not positive"},
        {"attention_multiplier", "0", NBL_ERROR_FORMAT, "attention_multiplier is not positive"},
        {"attention_multiplier", "NaN", NBL_ERROR_FORMAT, "attention_multiplier is not a number"},
        {"logits_scaling", "1e-40", NBL_ERROR_FORMAT, "logits_scaling"},
        {"logits_scaling", "\"8\"", NBL_ERROR_FORMAT, "logits_scaling is not a number"},
        {"logit_scale", "2", NBL_ERROR_UNSUPPORTED, "the key logit_scale is not understood"},
    };
    assert_refused("granite", cases, sizeof cases / sizeof *cases);
}

static void configs_of_experts_are_refused_by_the_name_of_the_key(void **state)
{
    (void)state;
    static const bent qwen[] = {
        {"output_router_logits", "true", NBL_ERROR_UNSUPPORTED, "output_router_logits"},
        {"num_local_experts", "2147483647", NBL_ERROR_UNSUPPORTED, "num_local_experts is 2147483647, more"},
        {"num_local_experts", "4096", NBL_ERROR_FORMAT, "experts.gate_up_proj\" has 12 tensors of 8192"},
        {"num_local_experts", "5", NBL_ERROR_FORMAT, "mlp.experts.5.up_proj.weight\" does not belong"},
        {"num_local_experts", "7", NBL_ERROR_FORMAT, "no \"model.layers.0.mlp.experts.6.gate_proj.weight"},
        {"num_local_experts", "0", NBL_ERROR_FORMAT, "num_local_experts"},
        {"num_experts_per_tok", "7", NBL_ERROR_FORMAT, "num_experts_per_tok 7"},
        {"moe_intermediate_size", "9", NBL_ERROR_FORMAT, "experts.0.gate_proj.weight\" is [8, 16] instead"},
        {"moe_intermediate_size", "2147483647", NBL_ERROR_FORMAT, "is [8, 16] instead of [2147483647, 16]"},
        {"mlp_only_layers", "3", NBL_ERROR_FORMAT, "mlp_only_layers"},
        {"mlp_only_layers", "[-1]", NBL_ERROR_FORMAT, "mlp_only_layers"},
        {"decoder_sparse_step", "2", NBL_ERROR_FORMAT, "no \"model.layers.0.mlp.gate_proj.weight"},
    };
    static const bent oss[] = {
        {"swiglu_limit", "0", NBL_ERROR_UNSUPPORTED, "swiglu_limit"},
        {"num_local_experts", "6", NBL_ERROR_FORMAT, "mlp.experts.gate_up_proj\" is [5, 16, 16]"},
        {"attention_bias", "false", NBL_ERROR_FORMAT, "self_attn.q_proj.bias\" does not belong"},
        {"router_jitter_noise", "0.1", NBL_ERROR_UNSUPPORTED, "router_jitter_noise"},
    };
    static const bent mixtral[] = {
        {"router_jitter_noise", "0.1", NBL_ERROR_UNSUPPORTED, "router_jitter_noise is 0.1"},
        {"intermediate_size", "9", NBL_ERROR_FORMAT, "block_sparse_moe.experts.0.w1.weight\" is [8, 16]"},
    };
    static const bent shared[] = {
        {"shared_expert_intermediate_size", "13", NBL_ERROR_FORMAT, "mlp.shared_expert.gate_proj.weight"},
    };
    assert_refused("qwen3_moe", qwen, sizeof qwen / sizeof *qwen);
    assert_refused("gpt_oss", oss, sizeof oss / sizeof *oss);
    assert_refused("mixtral", mixtral, sizeof mixtral / sizeof *mixtral);
    assert_refused("qwen2_moe", shared, sizeof shared / sizeof *shared);
}

static void ids_outside_the_vocabulary_are_refused_with_their_index(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    golden g = open_golden(ctx, "store-f32");
    nbl_model *model = open_model(&g, NBL_COMPUTE_F32, NULL);
    float *logits = malloc(4 * 48 * sizeof *logits);
    static int32_t bad[][2] = {{3, 48}, {-1, 3}, {INT32_MAX, 0}};
    for (int i = 0; i < 3; i++) {
        nbl_ids ids = {bad[i], 2};
        int32_t room[4];
        nbl_generated result = {.ids = {room, 0}};
        nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options), .max_tokens = 4};
        assert_int_not_equal(nbl_model_logits(model, &ids, 1, &logits), NBL_OK);
        assert_non_null(strstr(nbl_error_message(ctx), i == 0 ? "48" : i == 1 ? "-1" : "2147483647"));
        assert_int_not_equal(nbl_model_generate(model, &ids, 1, &how, &result), NBL_OK);
    }
    nbl_ids none = {bad[0], 0};
    assert_int_not_equal(nbl_model_logits(model, &none, 1, &logits), NBL_OK);
    free(logits);
    nbl_model_close(model);
    close_golden(&g);
    nbl_context_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(llama_with_biases_is_as_transformers_has_it),
        cmocka_unit_test(mistral_with_a_window_is_as_transformers_has_it),
        cmocka_unit_test(qwen2_with_a_window_is_as_transformers_has_it),
        cmocka_unit_test(qwen3_is_as_transformers_has_it),
        cmocka_unit_test(gemma2_is_as_transformers_has_it),
        cmocka_unit_test(gemma3_with_two_ropes_is_as_transformers_has_it),
        cmocka_unit_test(the_text_model_of_gemma3_with_vision_is_as_transformers_has_it),
        cmocka_unit_test(phi3_with_a_window_is_as_transformers_has_it),
        cmocka_unit_test(phi3_whose_text_grows_beyond_the_original_length_is_as_if_recomputed),
        cmocka_unit_test(smollm3_with_windows_without_rope_is_as_transformers_has_it),
        cmocka_unit_test(ministral_is_as_transformers_has_it),
        cmocka_unit_test(ministral3_with_scaled_queries_is_as_transformers_has_it),
        cmocka_unit_test(llama4_without_experts_is_as_transformers_has_it),
        cmocka_unit_test(llama4_with_experts_is_as_transformers_has_it),
        cmocka_unit_test(qwen3_5_with_states_is_as_transformers_has_it),
        cmocka_unit_test(dynamic_rope_grows_with_the_text_as_if_recomputed),
        cmocka_unit_test(proportional_rope_is_as_transformers_has_it),
        cmocka_unit_test(olmo2_with_norms_behind_its_blocks_is_as_transformers_has_it),
        cmocka_unit_test(olmo3_with_two_ropes_is_as_transformers_has_it),
        cmocka_unit_test(cohere2_with_blocks_side_by_side_is_as_transformers_has_it),
        cmocka_unit_test(what_cohere2_has_not_is_refused_by_the_name_of_the_key),
        cmocka_unit_test(granite_with_its_multipliers_is_as_transformers_has_it),
        cmocka_unit_test(multipliers_of_granite_must_be_positive),
        cmocka_unit_test(mixtral_with_a_window_is_as_transformers_has_it),
        cmocka_unit_test(qwen2_moe_with_a_shared_expert_is_as_transformers_has_it),
        cmocka_unit_test(qwen3_moe_is_as_transformers_has_it),
        cmocka_unit_test(an_nf4_state_per_expert_is_as_bitsandbytes_has_it),
        cmocka_unit_test(gpt_oss_is_as_transformers_has_it),
        cmocka_unit_test(gpt_oss_runs_on_its_own_four_bits),
        cmocka_unit_test(qwen3_5_with_experts_is_as_transformers_has_it),
        cmocka_unit_test(qwen3_next_with_fused_matrices_is_as_transformers_has_it),
        cmocka_unit_test(linear_rope_is_as_transformers_has_it),
        cmocka_unit_test(llama3_rope_is_as_transformers_has_it),
        cmocka_unit_test(yarn_is_as_transformers_has_it),
        cmocka_unit_test(yarn_with_every_key_is_as_transformers_has_it),
        cmocka_unit_test(a_config_of_older_transformers_is_read),
        cmocka_unit_test(f32_weights_are_as_transformers_has_them),
        cmocka_unit_test(f16_weights_are_as_transformers_has_them),
        cmocka_unit_test(flat_nf4_is_as_bitsandbytes_has_it),
        cmocka_unit_test(nested_nf4_is_as_bitsandbytes_has_it),
        cmocka_unit_test(int8_is_no_further_from_the_truth_than_bitsandbytes),
        cmocka_unit_test(hostile_configs_are_refused_by_the_name_of_the_key),
        cmocka_unit_test(what_phi3_has_not_is_refused_by_the_name_of_the_key),
        cmocka_unit_test(what_llama4_has_not_is_refused_by_the_name_of_the_key),
        cmocka_unit_test(configs_of_experts_are_refused_by_the_name_of_the_key),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused_with_their_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
