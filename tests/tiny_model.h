/* tiny_model.h - models of every architecture as folders, a few kilobytes each, with adapters: for tests. */
#ifndef NBL_TEST_TINY_MODEL_H
#define NBL_TEST_TINY_MODEL_H

#include "support.h"

#include <sys/stat.h>

#include "arch/arch.h"
#include "base/philox.h"
#include "format/peft/peft.h"

enum {
    TINY_VOCAB = 96,
    TINY_HIDDEN = 32,
    TINY_INNER = 48,
    TINY_HEADS = 4,
    TINY_KV = 2,
    TINY_DIM = 8,
    TINY_RANK = 4,
    /* of the gated delta rule: heads and sizes of keys and of values, weights of a channel */
    TINY_KEY_HEADS = 2,
    TINY_VALUE_HEADS = 4,
    TINY_KEY_DIM = 8,
    TINY_VALUE_DIM = 6,
    TINY_TAPS = 3
};

static const struct tiny_architecture {
    const char *type, *keys; /* keys: what it has beside the common ones */
    bool qk_norm, end_norms; /* norms of q's and k's heads; norms behind both blocks */
    bool fused;              /* q, k, v are the rows of one matrix, gate and up those of another */
    bool hybrid;             /* the first layer has the gated delta rule, the second a gated attention */
    bool parallel;           /* one norm for both blocks */
    bool feed_forward;       /* the module of the feed-forward block is "feed_forward", not "mlp" */
    const char *router;      /* a mixture of experts: "mlp.gate" or "mlp.router"; NULL: a dense block */
    bool post_norms;         /* no norms before the blocks; those of q and k see all heads together */
} tiny_architectures[] = {
    {.type = "llama", .keys = "\"hidden_act\": \"silu\""},
    {.type = "mistral", .keys = "\"hidden_act\": \"silu\", \"sliding_window\": 8"},
    {.type = "qwen2", .keys = "\"hidden_act\": \"silu\""},
    {.type = "qwen3", .keys = "\"hidden_act\": \"silu\"", .qk_norm = true},
    {.type = "gemma2", .keys = "\"sliding_window\": 8, \"query_pre_attn_scalar\": 8", .end_norms = true},
    {.type = "gemma3_text",
     .keys = "\"sliding_window\": 8, \"query_pre_attn_scalar\": 8, \"rope_local_base_freq\": 10000.0",
     .qk_norm = true,
     .end_norms = true},
    {.type = "phi3",
     .keys =
         "\"sliding_window\": 8, \"partial_rotary_factor\": 0.5, \"original_max_position_embeddings\": 16, "
         "\"rope_scaling\": {\"type\": \"longrope\", \"short_factor\": [1, 2], \"long_factor\": [2, 8]}",
     .fused = true},
    {.type = "smollm3", .keys = "\"no_rope_layer_interval\": 2"},
    {.type = "ministral",
     .keys = "\"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\"]"},
    {.type = "ministral3",
     .keys =
         "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"original_max_position_embeddings\": 8, "
         "\"llama_4_scaling_beta\": 0.5}"},
    {.type = "llama4_text",
     .keys = "\"no_rope_layer_interval\": 2, \"intermediate_size_mlp\": 48, \"moe_layers\": [], "
             "\"attention_chunk_size\": 8, \"floor_scale\": 8",
     .feed_forward = true},
    {.type = "qwen3_5_text",
     .keys = "\"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, \"linear_key_head_dim\": 8, "
             "\"linear_value_head_dim\": 6, \"linear_conv_kernel_dim\": 3, "
             "\"layer_types\": [\"linear_attention\", \"full_attention\"]",
     .qk_norm = true,
     .hybrid = true},
    {.type = "olmo2", .keys = "\"hidden_act\": \"silu\"", .post_norms = true},
    {.type = "olmo3",
     .keys = "\"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\"]",
     .post_norms = true},
    {.type = "qwen3_moe",
     .keys = "\"num_experts\": 3, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16",
     .qk_norm = true,
     .router = "mlp.gate"},
    {.type = "gpt_oss",
     .keys = "\"num_local_experts\": 3, \"num_experts_per_tok\": 2, \"sliding_window\": 8",
     .router = "mlp.router"},
    {.type = "cohere2",
     .keys = "\"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\"], "
             "\"logit_scale\": 0.3",
     .parallel = true},
    {.type = "granite",
     .keys = "\"embedding_multiplier\": 3.0, \"residual_multiplier\": 0.5, \"attention_multiplier\": 0.4, "
             "\"logits_scaling\": 0.7"},
};
enum { TINY_ARCHITECTURES = sizeof tiny_architectures / sizeof *tiny_architectures };

/* Linear layers of both layers. */
static inline int tiny_linear_layers(int architecture)
{
    const struct tiny_architecture *it = &tiny_architectures[architecture];
    return it->fused || it->router ? 8
           : it->hybrid            ? 15
                                   : 14; /* in_proj_qkv, z, b, a and out_proj instead of q, k, v and o */
}

typedef struct tiny_model {
    char folder[64], model[80], adapter[80];
} tiny_model;

typedef struct tiny_list {
    nbl__arena arena;
    nbl__stored items[64];
    nbl__peft_new_module modules[32];
    int64_t count, module_count;
    bool dora;
} tiny_list;

static inline float *tiny_values(tiny_list *l, uint32_t stream, int64_t n, float middle, float width)
{
    float *values = nbl__arena_alloc(&l->arena, (size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++) {
        uint32_t counter[4] = {(uint32_t)i, stream, 0, 0}, key[2] = {3, 9}, words[4];
        nbl__philox(counter, key, words);
        values[i] = middle + width * (nbl__uniform(words[0]) + nbl__uniform(words[1]) - 1);
    }
    return values;
}

/* A tensor of the checkpoint; a linear layer of a block also gets an adapter. */
static inline void tiny_add(tiny_list *l, const char *at, const char *name, int64_t rows, int64_t columns)
{
    int64_t n = rows * (columns ? columns : 1);
    nbl__stored *it = &l->items[l->count];
    uint32_t stream = 8 * (uint32_t)l->count++;
    *it = (nbl__stored){.name = nbl__arena_printf(&l->arena, "%s%s", at, name),
                        .dtype = NBL_DTYPE_F32,
                        .rank = columns ? 2 : 1,
                        .shape = {rows, columns},
                        .elements = n,
                        .bytes = (uint64_t)n * 4};
    it->data = (const uint8_t *)tiny_values(l, stream, n, columns ? 0 : 1, 0.2f);
    if (columns == 0 || strstr(name, "_proj") == NULL) return;
    char *path = nbl__arena_strdup(&l->arena, it->name);
    path[strlen(path) - strlen(".weight")] = '\0';
    nbl__peft_new_module *m = &l->modules[l->module_count++];
    *m = (nbl__peft_new_module){.path = path,
                                .a = {.dtype = NBL_DTYPE_F32, .rank = 2, .shape = {TINY_RANK, columns}},
                                .b = {.dtype = NBL_DTYPE_F32, .rank = 2, .shape = {rows, TINY_RANK}}};
    m->a.data = tiny_values(l, stream + 1, TINY_RANK * columns, 0, 0.1f);
    m->b.data = tiny_values(l, stream + 2, rows * TINY_RANK, 0, 0.1f);
    if (!l->dora) return;
    m->magnitude = (nbl_tensor){.dtype = NBL_DTYPE_F32, .rank = 1, .shape = {rows}};
    m->magnitude.data = tiny_values(l, stream + 3, rows, 1, 0.1f);
}

/* The mixer of a layer with the gated delta rule. */
static inline void tiny_delta(tiny_list *l, const char *at)
{
    int64_t values = TINY_VALUE_HEADS * TINY_VALUE_DIM, channels = 2 * TINY_KEY_HEADS * TINY_KEY_DIM + values;
    tiny_add(l, at, "linear_attn.in_proj_qkv.weight", channels, TINY_HIDDEN);
    tiny_add(l, at, "linear_attn.in_proj_z.weight", values, TINY_HIDDEN);
    tiny_add(l, at, "linear_attn.in_proj_b.weight", TINY_VALUE_HEADS, TINY_HIDDEN);
    tiny_add(l, at, "linear_attn.in_proj_a.weight", TINY_VALUE_HEADS, TINY_HIDDEN);
    tiny_add(l, at, "linear_attn.out_proj.weight", TINY_HIDDEN, values);
    tiny_add(l, at, "linear_attn.norm.weight", TINY_VALUE_DIM, 0);
    tiny_add(l, at, "linear_attn.A_log", TINY_VALUE_HEADS, 0);
    tiny_add(l, at, "linear_attn.dt_bias", TINY_VALUE_HEADS, 0);
    tiny_add(l, at, "linear_attn.conv1d.weight", channels * TINY_TAPS, 0);
    nbl__stored *conv = &l->items[l->count - 1];
    conv->rank = 3;
    conv->shape[0] = channels, conv->shape[1] = 1, conv->shape[2] = TINY_TAPS;
}

/* A stack of matrices in one tensor. */
static inline void tiny_stack(tiny_list *l, const char *at, const char *name, int64_t experts, int64_t rows,
                              int64_t columns)
{
    tiny_add(l, at, name, experts * rows * columns, 0);
    nbl__stored *it = &l->items[l->count - 1];
    it->rank = 3;
    it->shape[0] = experts, it->shape[1] = rows, it->shape[2] = columns;
    it->data = (const uint8_t *)tiny_values(l, 8 * (uint32_t)l->count, it->elements, 0, 0.2f);
}

/* Router and experts, as the files of the two architectures have them. They get no adapter: "all-linear" does not
 * mean them. */
static inline void tiny_experts(tiny_list *l, const char *at, const char *router, const nbl__decoder *d)
{
    static const char *const parts[] = {"gate", "up", "down"};
    char name[64];
    int64_t experts = d->experts, inner = d->expert_inner;
    snprintf(name, sizeof name, "%s.weight", router);
    tiny_add(l, at, name, experts, TINY_HIDDEN);
    if (d->experts_transposed) {
        snprintf(name, sizeof name, "%s.bias", router);
        tiny_add(l, at, name, experts, 0);
        tiny_stack(l, at, "mlp.experts.gate_up_proj", experts, TINY_HIDDEN, 2 * inner);
        tiny_stack(l, at, "mlp.experts.down_proj", experts, inner, TINY_HIDDEN);
        int64_t modules = l->module_count;
        tiny_add(l, at, "mlp.experts.gate_up_proj_bias", experts, 2 * inner);
        tiny_add(l, at, "mlp.experts.down_proj_bias", experts, TINY_HIDDEN);
        l->module_count = modules;
        return;
    }
    int64_t modules = l->module_count;
    for (int64_t e = 0; e < experts; e++)
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "mlp.experts.%d.%s_proj.weight", (int)e, parts[k]);
            tiny_add(l, at, name, k < 2 ? inner : TINY_HIDDEN, k < 2 ? TINY_HIDDEN : inner);
        }
    l->module_count = modules;
}

static inline void tiny_layer(tiny_list *l, const struct tiny_architecture *a, const nbl__decoder *d,
                              int layer)
{
    static const char *const projections[] = {"q_proj", "k_proj", "v_proj"};
    char at[64], name[64];
    snprintf(at, sizeof at, "model.layers.%d.", layer);
    if (a->fused) {
        tiny_add(l, at, "self_attn.qkv_proj.weight", (TINY_HEADS + 2 * TINY_KV) * TINY_DIM, TINY_HIDDEN);
        tiny_add(l, at, "mlp.gate_up_proj.weight", 2 * TINY_INNER, TINY_HIDDEN);
    }
    bool delta = a->hybrid && d->recurrent[layer];
    if (delta) tiny_delta(l, at);
    for (int i = 0; i < 3 && !a->fused && !delta; i++) {
        snprintf(name, sizeof name, "self_attn.%s.weight", projections[i]);
        int heads = i ? TINY_KV : a->hybrid ? 2 * TINY_HEADS : TINY_HEADS; /* with the rows of the gates */
        tiny_add(l, at, name, heads * TINY_DIM, TINY_HIDDEN);
        snprintf(name, sizeof name, "self_attn.%s.bias", projections[i]);
        if (d->qkv_bias) tiny_add(l, at, name, (i ? TINY_KV : TINY_HEADS) * TINY_DIM, 0);
    }
    if (!delta) tiny_add(l, at, "self_attn.o_proj.weight", TINY_HIDDEN, TINY_HEADS * TINY_DIM);
    if (d->o_bias) tiny_add(l, at, "self_attn.o_proj.bias", TINY_HIDDEN, 0);
    if (d->sinks) tiny_add(l, at, "self_attn.sinks", TINY_HEADS, 0);
    if (a->qk_norm && !delta) tiny_add(l, at, "self_attn.q_norm.weight", TINY_DIM, 0);
    if (a->qk_norm && !delta) tiny_add(l, at, "self_attn.k_norm.weight", TINY_DIM, 0);
    if (a->post_norms) tiny_add(l, at, "self_attn.q_norm.weight", TINY_HEADS * TINY_DIM, 0);
    if (a->post_norms) tiny_add(l, at, "self_attn.k_norm.weight", TINY_KV * TINY_DIM, 0);
    static const char *const blocks[2][3] = {
        {"mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"},
        {"feed_forward.gate_proj.weight", "feed_forward.up_proj.weight", "feed_forward.down_proj.weight"}};
    const char *const *block = blocks[a->feed_forward];
    for (int i = 0; i < 2 && !a->fused && !a->router; i++) tiny_add(l, at, block[i], TINY_INNER, TINY_HIDDEN);
    if (a->router) tiny_experts(l, at, a->router, d);
    else tiny_add(l, at, block[2], TINY_HIDDEN, TINY_INNER);
    if (!a->post_norms) tiny_add(l, at, "input_layernorm.weight", TINY_HIDDEN, 0);
    if (!a->parallel) tiny_add(l, at, "post_attention_layernorm.weight", TINY_HIDDEN, 0);
    if (a->end_norms) tiny_add(l, at, "pre_feedforward_layernorm.weight", TINY_HIDDEN, 0);
    if (a->end_norms || a->post_norms) tiny_add(l, at, "post_feedforward_layernorm.weight", TINY_HIDDEN, 0);
}

/* A folder with a model of two layers in f32, and an adapter of all its linear layers. */
static inline void tiny_write(nbl_context *ctx, int architecture, bool dora, tiny_model *tiny)
{
    const struct tiny_architecture *it = &tiny_architectures[architecture];
    char config[1024];
    make_temp(tiny->folder);
    snprintf(tiny->model, sizeof tiny->model, "%s/model", tiny->folder);
    snprintf(tiny->adapter, sizeof tiny->adapter, "%s/adapter", tiny->folder);
    assert_int_equal(mkdir(tiny->model, 0777), 0);
    int size = snprintf(config, sizeof config,
                        "{\"model_type\": \"%s\", \"vocab_size\": %d, \"hidden_size\": %d, "
                        "\"intermediate_size\": %d, \"num_hidden_layers\": 2, \"num_attention_heads\": %d, "
                        "\"num_key_value_heads\": %d, \"head_dim\": %d, \"max_position_embeddings\": 128, "
                        "\"rms_norm_eps\": 1e-6, \"rope_theta\": 10000.0, \"tie_word_embeddings\": true, "
                        "\"torch_dtype\": \"float32\", %s}",
                        it->type, TINY_VOCAB, TINY_HIDDEN, TINY_INNER, TINY_HEADS, TINY_KV, TINY_DIM,
                        it->keys);
    write_file(tiny->model, "config.json", config, (size_t)size);
    tiny_list list = {.arena = nbl__arena_make(ctx), .dora = dora};
    const nbl__json *root;
    nbl__decoder d;
    assert_ok(ctx, nbl__json_parse(&list.arena, "config.json", config, (size_t)size, NBL_JSON_PYTHON, &root));
    assert_ok(ctx, nbl__decoder_read(ctx, "config.json", root, &d));
    tiny_add(&list, "", "model.embed_tokens.weight", TINY_VOCAB, TINY_HIDDEN);
    for (int i = 0; i < 2; i++) tiny_layer(&list, it, &d, i);
    tiny_add(&list, "", "model.norm.weight", TINY_HIDDEN, 0);
    nbl__text image = {.ctx = ctx};
    assert_ok(ctx, nbl__safetensors_build(&list.arena, list.items, list.count, &image));
    write_file(tiny->model, "model.safetensors", image.text, image.size);
    nbl__text_free(&image);
    nbl__peft_description description = {
        .settings = {.task_type = "CAUSAL_LM", .r = TINY_RANK, .alpha = 8, .dora = dora, .all_linear = true},
        .modules = list.modules,
        .module_count = list.module_count};
    assert_ok(ctx, nbl__peft_write(ctx, tiny->adapter, &description));
    nbl__arena_free(&list.arena);
}

#endif
