/* checkpoint.c - models before training: config.json, generation_config.json and model.safetensors.
 * Weights are sums of twelve uniform numbers, which are near to normal and need no libm.
 *
 *     llama     0.9 million weights in bf16: nibble-tiny
 *     gpt_oss   the layers of GPT-OSS, its experts in MXFP4
 *     qwen3_5   the layers of Qwen3.5's text part
 *
 *     model.safetensors   u64 size of the header | JSON header | tensors in the header's order */
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

enum { MAX_TENSORS = 128, MAX_RANK = 4 };

/* How the values of a tensor are drawn. */
typedef enum filling {
    NORMAL,   /* bf16: near to normal, with a middle and a spread */
    CODES,    /* u8: any byte, two MXFP4 values each */
    EXPONENTS /* u8: powers of two, the scales of MXFP4: middle - 1 … middle + 1 */
} filling;

/* A tensor to be written. */
typedef struct tensor {
    char name[80];
    filling filling;
    int rank, shape[MAX_RANK];
    double middle, spread;
} tensor;

/* The tensors of a model in the order of the file. */
typedef struct plan {
    tensor tensors[MAX_TENSORS];
    int count;
} plan;

/* What ends in the residual stream starts smaller. */
static const double normal = 0.06, out = 0.02;

/* Adds a tensor of layer `layer`; -1: one of the whole model. `columns` 0: a vector. */
static tensor *add(plan *p, int layer, const char *name, int rows, int columns, double middle, double spread)
{
    if (p->count == MAX_TENSORS) fail("more than %d tensors", MAX_TENSORS);
    tensor *t = &p->tensors[p->count++];
    *t = (tensor){.rank = columns ? 2 : 1, .shape = {rows, columns}, .middle = middle, .spread = spread};
    if (layer < 0) snprintf(t->name, sizeof t->name, "%s", name);
    else snprintf(t->name, sizeof t->name, "model.layers.%d.%s", layer, name);
    return t;
}

static void add_matrix(plan *p, int layer, const char *name, int rows, int columns, double spread)
{
    add(p, layer, name, rows, columns, 0, spread);
}

static void add_norm(plan *p, int layer, const char *name, int size, double middle)
{
    add(p, layer, name, size, 0, middle, 0);
}

/* ---- llama: nibble-tiny ---- */

enum { HIDDEN = 128, INNER = 384, LAYERS = 4, HEADS = 4 };

/* The head is tied, so it is not among the tensors. */
static void plan_llama(plan *p)
{
    add_matrix(p, -1, "model.embed_tokens.weight", VOCABULARY, HIDDEN, normal);
    for (int i = 0; i < LAYERS; i++) {
        add_norm(p, i, "input_layernorm.weight", HIDDEN, 1);
        add_matrix(p, i, "self_attn.q_proj.weight", HIDDEN, HIDDEN, normal);
        add_matrix(p, i, "self_attn.k_proj.weight", HIDDEN, HIDDEN, normal);
        add_matrix(p, i, "self_attn.v_proj.weight", HIDDEN, HIDDEN, normal);
        add_matrix(p, i, "self_attn.o_proj.weight", HIDDEN, HIDDEN, out);
        add_norm(p, i, "post_attention_layernorm.weight", HIDDEN, 1);
        add_matrix(p, i, "mlp.gate_proj.weight", INNER, HIDDEN, normal);
        add_matrix(p, i, "mlp.up_proj.weight", INNER, HIDDEN, normal);
        add_matrix(p, i, "mlp.down_proj.weight", HIDDEN, INNER, out);
    }
    add_norm(p, -1, "model.norm.weight", HIDDEN, 1);
}

static void config_llama(FILE *file)
{
    fprintf(file,
            "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"
            "  \"vocab_size\": %d,\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n"
            "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n"
            "  \"head_dim\": %d,\n  \"max_position_embeddings\": 512,\n  \"hidden_act\": \"silu\",\n"
            "  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": 10000.0,\n  \"attention_bias\": false,\n"
            "  \"mlp_bias\": false,\n  \"tie_word_embeddings\": true,\n  \"bos_token_id\": null,\n"
            "  \"eos_token_id\": %d,\n  \"pad_token_id\": %d,\n  \"torch_dtype\": \"bfloat16\"\n}\n",
            VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, HEADS, HIDDEN / HEADS, CHAT_END, END_OF_TEXT);
}

/* ---- gpt_oss: experts in MXFP4, windows, sinks ---- */

enum { EXPERTS = 8, CHOSEN = 2, EXPERT_INNER = 128, KV_HEADS = 2, OSS_HEAD = 32, GROUP = 32 };

/* The blocks and scales of one parameter: [experts, out, in] in groups of 32 inputs, two codes a byte. */
static void add_mxfp4(plan *p, int layer, const char *name, int outputs, int inputs, double exponent)
{
    char full[64];
    const int groups = inputs / GROUP;
    snprintf(full, sizeof full, "mlp.experts.%s_blocks", name);
    tensor *t = add(p, layer, full, EXPERTS, outputs, 0, 0);
    t->filling = CODES;
    t->rank = 4;
    t->shape[2] = groups;
    t->shape[3] = GROUP / 2;
    snprintf(full, sizeof full, "mlp.experts.%s_scales", name);
    t = add(p, layer, full, EXPERTS, outputs, exponent, 0);
    t->filling = EXPONENTS;
    t->rank = 3;
    t->shape[2] = groups;
    snprintf(full, sizeof full, "mlp.experts.%s_bias", name);
    add(p, layer, full, EXPERTS, outputs, 0, 0);
}

static void plan_gpt_oss(plan *p)
{
    /* The root mean square of all codes is 2.9: 2^-6 and 2^-7 give weights of 0.05 and 0.02. */
    static const double wide = 127 - 6, narrow = 127 - 7;
    const int q = HEADS * OSS_HEAD, kv = KV_HEADS * OSS_HEAD;
    add_matrix(p, -1, "model.embed_tokens.weight", VOCABULARY, HIDDEN, normal);
    for (int i = 0; i < LAYERS; i++) {
        add_norm(p, i, "input_layernorm.weight", HIDDEN, 1);
        add_matrix(p, i, "self_attn.q_proj.weight", q, HIDDEN, normal);
        add(p, i, "self_attn.q_proj.bias", q, 0, 0, 0);
        add_matrix(p, i, "self_attn.k_proj.weight", kv, HIDDEN, normal);
        add(p, i, "self_attn.k_proj.bias", kv, 0, 0, 0);
        add_matrix(p, i, "self_attn.v_proj.weight", kv, HIDDEN, normal);
        add(p, i, "self_attn.v_proj.bias", kv, 0, 0, 0);
        add_matrix(p, i, "self_attn.o_proj.weight", HIDDEN, q, out);
        add(p, i, "self_attn.o_proj.bias", HIDDEN, 0, 0, 0);
        add(p, i, "self_attn.sinks", HEADS, 0, 0, 1);
        add_norm(p, i, "post_attention_layernorm.weight", HIDDEN, 1);
        add_matrix(p, i, "mlp.router.weight", EXPERTS, HIDDEN, normal);
        add(p, i, "mlp.router.bias", EXPERTS, 0, 0, 0);
        add_mxfp4(p, i, "gate_up_proj", 2 * EXPERT_INNER, HIDDEN, wide);
        add_mxfp4(p, i, "down_proj", HIDDEN, EXPERT_INNER, narrow);
    }
    add_norm(p, -1, "model.norm.weight", HIDDEN, 1);
    add_matrix(p, -1, "lm_head.weight", VOCABULARY, HIDDEN, normal);
}

static void config_gpt_oss(FILE *file)
{
    fprintf(file,
            "{\n  \"architectures\": [\"GptOssForCausalLM\"],\n  \"model_type\": \"gpt_oss\",\n"
            "  \"vocab_size\": %d,\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n"
            "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n"
            "  \"head_dim\": %d,\n  \"num_local_experts\": %d,\n  \"num_experts_per_tok\": %d,\n"
            "  \"sliding_window\": 32,\n"
            "  \"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
            "\"full_attention\"],\n"
            "  \"swiglu_limit\": 7.0,\n  \"max_position_embeddings\": 512,\n  \"rms_norm_eps\": 1e-05,\n"
            "  \"rope_theta\": 150000.0,\n"
            "  \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 8.0, \"beta_fast\": 32.0, "
            "\"beta_slow\": 1.0,\n"
            "                   \"original_max_position_embeddings\": 64, \"truncate\": false},\n"
            "  \"attention_bias\": true,\n  \"tie_word_embeddings\": false,\n"
            "  \"eos_token_id\": %d,\n  \"pad_token_id\": %d,\n  \"torch_dtype\": \"bfloat16\",\n"
            "  \"quantization_config\": {\"quant_method\": \"mxfp4\",\n"
            "    \"modules_to_not_convert\": [\"model.layers.*.self_attn\", \"model.layers.*.mlp.router\", "
            "\"model.embed_tokens\", \"lm_head\"]}\n}\n",
            VOCABULARY, HIDDEN, EXPERT_INNER, LAYERS, HEADS, KV_HEADS, OSS_HEAD, EXPERTS, CHOSEN, CHAT_END,
            END_OF_TEXT);
}

/* ---- qwen3_5: three layers of gated delta rule, one of gated attention ---- */

enum { FULL_LAYER = 3, QWEN_HEAD = 64, KEY_HEADS = 2, VALUE_HEADS = 4, STATE = 32, TAPS = 4 };

static void plan_linear_attention(plan *p, int i)
{
    const int keys = KEY_HEADS * STATE, values = VALUE_HEADS * STATE;
    add_matrix(p, i, "linear_attn.in_proj_qkv.weight", 2 * keys + values, HIDDEN, normal);
    add_matrix(p, i, "linear_attn.in_proj_z.weight", values, HIDDEN, normal);
    add_matrix(p, i, "linear_attn.in_proj_b.weight", VALUE_HEADS, HIDDEN, normal);
    add_matrix(p, i, "linear_attn.in_proj_a.weight", VALUE_HEADS, HIDDEN, normal);
    tensor *taps = add(p, i, "linear_attn.conv1d.weight", 2 * keys + values, 1, 0, 0.5);
    taps->rank = 3;
    taps->shape[2] = TAPS;
    add(p, i, "linear_attn.A_log", VALUE_HEADS, 0, 0, 1);
    add(p, i, "linear_attn.dt_bias", VALUE_HEADS, 0, 0, 1);
    add_norm(p, i, "linear_attn.norm.weight", STATE, 1);
    add_matrix(p, i, "linear_attn.out_proj.weight", HIDDEN, values, out);
}

/* q_proj has the gate of each head below the head. */
static void plan_full_attention(plan *p, int i)
{
    const int q = HEADS * QWEN_HEAD, kv = KV_HEADS * QWEN_HEAD;
    add_matrix(p, i, "self_attn.q_proj.weight", 2 * q, HIDDEN, normal);
    add_matrix(p, i, "self_attn.k_proj.weight", kv, HIDDEN, normal);
    add_matrix(p, i, "self_attn.v_proj.weight", kv, HIDDEN, normal);
    add_matrix(p, i, "self_attn.o_proj.weight", HIDDEN, q, out);
    add_norm(p, i, "self_attn.q_norm.weight", QWEN_HEAD, 0);
    add_norm(p, i, "self_attn.k_norm.weight", QWEN_HEAD, 0);
}

/* Norms multiply by 1 + w, but for the gated one of a linear layer. */
static void plan_qwen3_5(plan *p)
{
    add_matrix(p, -1, "model.embed_tokens.weight", VOCABULARY, HIDDEN, normal);
    for (int i = 0; i < LAYERS; i++) {
        add_norm(p, i, "input_layernorm.weight", HIDDEN, 0);
        if (i == FULL_LAYER) plan_full_attention(p, i);
        else plan_linear_attention(p, i);
        add_norm(p, i, "post_attention_layernorm.weight", HIDDEN, 0);
        add_matrix(p, i, "mlp.gate_proj.weight", INNER, HIDDEN, normal);
        add_matrix(p, i, "mlp.up_proj.weight", INNER, HIDDEN, normal);
        add_matrix(p, i, "mlp.down_proj.weight", HIDDEN, INNER, out);
    }
    add_norm(p, -1, "model.norm.weight", HIDDEN, 0);
}

static void config_qwen3_5(FILE *file)
{
    fprintf(file,
            "{\n  \"architectures\": [\"Qwen3_5ForCausalLM\"],\n  \"model_type\": \"qwen3_5_text\",\n"
            "  \"vocab_size\": %d,\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n"
            "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n"
            "  \"head_dim\": %d,\n"
            "  \"layer_types\": [\"linear_attention\", \"linear_attention\", \"linear_attention\", "
            "\"full_attention\"],\n"
            "  \"linear_num_key_heads\": %d,\n  \"linear_num_value_heads\": %d,\n"
            "  \"linear_key_head_dim\": %d,\n  \"linear_value_head_dim\": %d,\n"
            "  \"linear_conv_kernel_dim\": %d,\n  \"max_position_embeddings\": 512,\n"
            "  \"hidden_act\": \"silu\",\n  \"rms_norm_eps\": 1e-06,\n"
            "  \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0, "
            "\"partial_rotary_factor\": 0.25},\n"
            "  \"attention_bias\": false,\n  \"tie_word_embeddings\": true,\n"
            "  \"eos_token_id\": %d,\n  \"pad_token_id\": %d,\n  \"dtype\": \"bfloat16\"\n}\n",
            VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, QWEN_HEAD, KEY_HEADS, VALUE_HEADS, STATE,
            STATE, TAPS, CHAT_END, END_OF_TEXT);
}

/* ---- writing ---- */

static const struct shape {
    const char *name;
    void (*plan)(plan *p);
    void (*config)(FILE *file);
} shapes[] = {
    {"llama", plan_llama, config_llama},
    {"gpt_oss", plan_gpt_oss, config_gpt_oss},
    {"qwen3_5", plan_qwen3_5, config_qwen3_5},
};

static int elements(const tensor *t)
{
    int count = 1;
    for (int i = 0; i < t->rank; i++) count *= t->shape[i];
    return count;
}

/* To nearest, ties to even. No value is NaN. */
static uint16_t to_bf16(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* The sum of twelve uniform numbers in [0, 1), less 6: mean 0, variance 1. */
static double near_normal(uint64_t *state)
{
    int64_t sum = 0;
    for (int i = 0; i < 12; i++) sum += (int64_t)(next_random(state) >> 32);
    return (double)sum * 0x1p-32 - 6;
}

static void write_values(FILE *file, const tensor *t, uint64_t *state)
{
    for (int k = 0; k < elements(t); k++) {
        if (t->filling == CODES) fputc(below(state, 256), file);
        else if (t->filling == EXPONENTS) fputc((int)t->middle - 1 + below(state, 3), file);
        else {
            double noise = t->spread > 0 ? t->spread * near_normal(state) : 0;
            uint16_t value = to_bf16((float)(t->middle + noise));
            fputc(value & 0xff, file);
            fputc(value >> 8, file);
        }
    }
}

/* Writes the header, padded to a multiple of 8 bytes, then the values; bf16 is little-endian. */
static void write_weights(const char *folder, const plan *p, uint64_t seed)
{
    char *header = allocate(1 << 16);
    size_t size = 0;
    uint64_t at = 0;
    size += (size_t)sprintf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < p->count; i++) {
        const tensor *t = &p->tensors[i];
        bool bytes = t->filling != NORMAL;
        uint64_t end = at + (bytes ? 1 : 2) * (uint64_t)elements(t);
        size += (size_t)sprintf(header + size, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name,
                                bytes ? "U8" : "BF16");
        for (int k = 0; k < t->rank; k++)
            size += (size_t)sprintf(header + size, "%s%d", k ? "," : "", t->shape[k]);
        size += (size_t)sprintf(header + size, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                                (unsigned long long)end);
        at = end;
    }
    header[size++] = '}';
    while (size % 8) header[size++] = ' ';
    FILE *file = create(folder, "model.safetensors");
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)size >> (8 * i) & 0xff), file);
    fwrite(header, 1, size, file);
    free(header);
    uint64_t state = seed;
    for (int i = 0; i < p->count; i++) write_values(file, &p->tensors[i], &state);
    finish(file, "model.safetensors");
}

void write_checkpoint(const char *folder, const char *shape, uint64_t seed)
{
    const struct shape *s = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        if (strcmp(shapes[i].name, shape) == 0) s = &shapes[i];
    if (s == NULL) fail("%s is no shape: llama, gpt_oss or qwen3_5", shape);
    FILE *file = create(folder, "config.json");
    s->config(file);
    finish(file, "config.json");
    file = create(folder, "generation_config.json");
    fprintf(file, "{\n  \"do_sample\": false,\n  \"eos_token_id\": [%d, %d],\n  \"pad_token_id\": %d\n}\n",
            CHAT_END, END_OF_TEXT, END_OF_TEXT);
    finish(file, "generation_config.json");
    plan p = {.count = 0};
    s->plan(&p);
    write_weights(folder, &p, seed);
}
