/* fuzz_model.c - a model's folder with a hostile config.json and tokenizer.json, through the public interface.
 *
 * Input: a byte that chooses among small sets of tensors, one per kind of architecture; the text of
 * config.json; after a zero byte, that of tokenizer.json. What opens is planned, and what would take little
 * memory computes a few tokens. Sizes in a config cost nothing before tensors have them: memory is bounded. */
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json/json.h"
#include "format/hf/safetensors.h"
#include "fuzz.h"

enum {
    HIDDEN = 8,
    INNER = 12,
    HEADS = 2,
    KV_HEADS = 1,
    DIM = 4,
    LAYERS = 2,
    VOCABULARY = 16,
    KINDS = 11,
    EXPERTS = 2,
    EXPERT_INNER = 4,
    /* of the gated delta rule */
    KEY_HEADS = 1,
    VALUE_HEADS = 2,
    KEY_DIM = 4,
    VALUE_DIM = 3,
    TAPS = 3,
    MAX = 64
};

typedef struct set {
    nbl__arena arena;
    nbl__stored tensors[MAX];
    int64_t count;
} set;

static char root[] = "/tmp/nibble-fuzz-XXXXXX";

static void add(set *s, const char *name, int64_t rows, int64_t columns)
{
    nbl__stored *t = &s->tensors[s->count++];
    *t = (nbl__stored){.name = nbl__arena_strdup(&s->arena, name), .dtype = NBL_DTYPE_F32};
    if (rows) t->shape[t->rank++] = rows;
    t->shape[t->rank++] = columns;
    t->elements = (rows ? rows : 1) * columns;
    t->bytes = (uint64_t)t->elements * 4;
    float *data = nbl__arena_alloc(&s->arena, t->bytes);
    MUST(t->name && data);
    for (int64_t i = 0; i < t->elements; i++) data[i] = (float)(i % 7 - 3) / 8;
    t->data = (const uint8_t *)data;
}

/* The mixer of Qwen3.5's first layer. */
static void add_delta(set *s, const char *at)
{
    char name[128];
    int64_t values = VALUE_HEADS * VALUE_DIM, channels = 2 * KEY_HEADS * KEY_DIM + values;
#define NAME(suffix) (snprintf(name, sizeof name, "%s.linear_attn.%s", at, suffix), name)
    add(s, NAME("in_proj_qkv.weight"), channels, HIDDEN);
    add(s, NAME("in_proj_z.weight"), values, HIDDEN);
    add(s, NAME("in_proj_b.weight"), VALUE_HEADS, HIDDEN);
    add(s, NAME("in_proj_a.weight"), VALUE_HEADS, HIDDEN);
    add(s, NAME("out_proj.weight"), HIDDEN, values);
    add(s, NAME("norm.weight"), 0, VALUE_DIM);
    add(s, NAME("A_log"), 0, VALUE_HEADS);
    add(s, NAME("dt_bias"), 0, VALUE_HEADS);
    add(s, NAME("conv1d.weight"), 0, channels * TAPS);
#undef NAME
    nbl__stored *conv = &s->tensors[s->count - 1];
    conv->rank = 3;
    conv->shape[0] = channels, conv->shape[1] = 1, conv->shape[2] = TAPS;
}

static void add_stack(set *s, const char *name, int64_t rows, int64_t columns)
{
    add(s, name, EXPERTS * rows, columns);
    nbl__stored *t = &s->tensors[s->count - 1];
    t->rank = 3;
    t->shape[0] = EXPERTS, t->shape[1] = rows, t->shape[2] = columns;
}

/* Qwen3-MoE's tensors of single experts, or GPT-OSS's stacks with their biases. */
static void add_experts(set *s, const char *at, bool stacks)
{
    static const char *const parts[] = {"gate", "up", "down"};
    char name[128];
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", at, suffix), name)
    if (stacks) {
        add(s, NAME("mlp.router.weight"), EXPERTS, HIDDEN);
        add(s, NAME("mlp.router.bias"), 0, EXPERTS);
        add_stack(s, NAME("mlp.experts.gate_up_proj"), HIDDEN, 2 * EXPERT_INNER);
        add(s, NAME("mlp.experts.gate_up_proj_bias"), EXPERTS, 2 * EXPERT_INNER);
        add_stack(s, NAME("mlp.experts.down_proj"), EXPERT_INNER, HIDDEN);
        add(s, NAME("mlp.experts.down_proj_bias"), EXPERTS, HIDDEN);
        add(s, NAME("self_attn.sinks"), 0, HEADS);
        add(s, NAME("self_attn.o_proj.bias"), 0, HIDDEN);
        return;
    }
    add(s, NAME("mlp.gate.weight"), EXPERTS, HIDDEN);
#undef NAME
    for (int e = 0; e < EXPERTS; e++)
        for (int k = 0; k < 3; k++) {
            snprintf(name, sizeof name, "%s.mlp.experts.%d.%s_proj.weight", at, e, parts[k]);
            add(s, name, k < 2 ? EXPERT_INNER : HIDDEN, k < 2 ? HIDDEN : EXPERT_INNER);
        }
}

/* Llama, and with it Mistral; Qwen2's biases; Qwen3's norms of heads; Gemma 2's norms after the blocks;
 * Phi-3's fused matrices; Qwen3.5's two mixers; OLMo's norms behind the blocks; Cohere's one norm; Llama 4's
 * feed_forward; experts. */
static void add_layer(set *s, int kind, int layer)
{
    char at[64], name[128];
    snprintf(at, sizeof at, "model.layers.%d", layer);
#define NAME(suffix) (snprintf(name, sizeof name, "%s.%s", at, suffix), name)
    if (kind != 6) add(s, NAME("input_layernorm.weight"), 0, HIDDEN);
    if (kind != 7) add(s, NAME("post_attention_layernorm.weight"), 0, HIDDEN);
    bool delta = kind == 5 && layer == 0;
    if (delta) add_delta(s, at);
    if (!delta) add(s, NAME("self_attn.o_proj.weight"), HIDDEN, HEADS * DIM);
    if (kind == 8) {
        add(s, NAME("feed_forward.down_proj.weight"), HIDDEN, INNER);
        add(s, NAME("feed_forward.gate_proj.weight"), INNER, HIDDEN);
        add(s, NAME("feed_forward.up_proj.weight"), INNER, HIDDEN);
    } else if (kind >= 9) add_experts(s, at, kind == 10);
    else add(s, NAME("mlp.down_proj.weight"), HIDDEN, INNER);
    if (kind == 4) {
        add(s, NAME("self_attn.qkv_proj.weight"), (HEADS + 2 * KV_HEADS) * DIM, HIDDEN);
        add(s, NAME("mlp.gate_up_proj.weight"), 2 * INNER, HIDDEN);
        return;
    }
    if (kind < 8) add(s, NAME("mlp.gate_proj.weight"), INNER, HIDDEN);
    if (kind < 8) add(s, NAME("mlp.up_proj.weight"), INNER, HIDDEN);
    if (delta) return;
    add(s, NAME("self_attn.q_proj.weight"), (kind == 5 ? 2 : 1) * HEADS * DIM, HIDDEN);
    add(s, NAME("self_attn.k_proj.weight"), KV_HEADS * DIM, HIDDEN);
    add(s, NAME("self_attn.v_proj.weight"), KV_HEADS * DIM, HIDDEN);
    if (kind == 1 || kind == 10) {
        add(s, NAME("self_attn.q_proj.bias"), 0, HEADS * DIM);
        add(s, NAME("self_attn.k_proj.bias"), 0, KV_HEADS * DIM);
        add(s, NAME("self_attn.v_proj.bias"), 0, KV_HEADS * DIM);
    }
    if (kind == 2 || kind == 5 || kind == 9) {
        add(s, NAME("self_attn.q_norm.weight"), 0, DIM);
        add(s, NAME("self_attn.k_norm.weight"), 0, DIM);
    }
    if (kind == 6) {
        add(s, NAME("self_attn.q_norm.weight"), 0, HEADS * DIM);
        add(s, NAME("self_attn.k_norm.weight"), 0, KV_HEADS * DIM);
        add(s, NAME("post_feedforward_layernorm.weight"), 0, HIDDEN);
    }
    if (kind == 3) {
        add(s, NAME("pre_feedforward_layernorm.weight"), 0, HIDDEN);
        add(s, NAME("post_feedforward_layernorm.weight"), 0, HIDDEN);
    }
#undef NAME
}

static void put(int kind, const char *name, const void *data, size_t size)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%d/%s", root, kind, name);
    FILE *file = fopen(path, "wb");
    MUST(file && fwrite(data, 1, size, file) == size);
    MUST(fclose(file) == 0);
}

static void remove_folders(void)
{
    static const char *const names[] = {"model.safetensors", "config.json", "tokenizer.json", ""};
    char path[128];
    for (int kind = 0; kind < KINDS; kind++)
        for (int i = 0; i < 4; i++) {
            snprintf(path, sizeof path, "%s/%d/%s", root, kind, names[i]);
            (void)remove(path);
        }
    (void)remove(root);
}

static void make_folders(nbl_context *ctx)
{
    char path[128];
    MUST(mkdtemp(root));
    (void)atexit(remove_folders);
    for (int kind = 0; kind < KINDS; kind++) {
        set *s = calloc(1, sizeof *s);
        nbl__text image = {.ctx = ctx};
        MUST(s);
        s->arena = nbl__arena_make(ctx);
        snprintf(path, sizeof path, "%s/%d", root, kind);
        MUST(mkdir(path, 0700) == 0);
        add(s, "model.embed_tokens.weight", VOCABULARY, HIDDEN);
        add(s, "model.norm.weight", 0, HIDDEN);
        for (int layer = 0; layer < LAYERS; layer++) add_layer(s, kind, layer);
        MUST(nbl__safetensors_build(&s->arena, s->tensors, s->count, &image) == NBL_OK);
        put(kind, "model.safetensors", image.text, image.size);
        nbl__text_free(&image);
        nbl__arena_free(&s->arena);
        free(s);
    }
}

static void compute(nbl_model *model)
{
    nbl_model_plan *plan;
    static float values[3 * VOCABULARY];
    int32_t tokens[3] = {0, VOCABULARY - 1, 3}, room[2];
    nbl_ids ids = {tokens, 3};
    float *logits = values;
    nbl_generated result = {.ids = {room, 0}};
    nbl_generate_options how = {NBL_OPTIONS(nbl_generate_options), .max_tokens = 2};
    if (nbl_model_make_plan(model, 8, 1, 1 << 20, &plan) != NBL_OK) return;
    MUST(nbl_model_vocabulary(model) == VOCABULARY); /* its tensors were checked */
    MUST(nbl_model_plan_get_summary(plan)->total_bytes < 1 << 20);
    nbl_model_plan_free(plan);
    /* A cap of 1e-45 gives numbers that are none: that may be refused. */
    (void)nbl_model_logits(model, &ids, 1, &logits);
    (void)nbl_model_generate(model, &ids, 1, &how, &result);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static bool made;
    nbl_context *ctx = fuzz_context();
    nbl_model *model;
    nbl_tokenizer *tokenizer;
    char folder[64];
    if (size == 0) return 0;
    if (!made) make_folders(ctx), made = true;
    int kind = data[0] % KINDS;
    const uint8_t *text = data + 1, *zero = memchr(text, 0, size - 1);
    size_t length = zero ? (size_t)(zero - text) : size - 1;
    put(kind, "config.json", text, length);
    snprintf(folder, sizeof folder, "%s/%d", root, kind);
    if (nbl_model_open(ctx, folder, NULL, &model) == NBL_OK) compute(model);
    nbl_model_close(model);
    if (zero == NULL) return 0;
    put(kind, "tokenizer.json", zero + 1, size - 2 - length);
    if (nbl_tokenizer_open(ctx, folder, &tokenizer) == NBL_OK) {
        nbl_ids ids;
        if (nbl_tokenizer_encode(tokenizer, "a b\xc3\xa4 12", 8, 1, &ids) == NBL_OK) nbl_ids_free(ctx, &ids);
    }
    nbl_tokenizer_close(tokenizer);
    return 0;
}
