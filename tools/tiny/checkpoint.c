/* checkpoint.c - a Llama of 0.9 million weights before training: config.json,
 * generation_config.json and model.safetensors in bf16. Weights are sums of twelve uniform numbers,
 * which are near to normal and need no libm.
 *
 *     model.safetensors   u64 size of the header | JSON header | tensors in the header's order */
#include <stdlib.h>
#include <string.h>

#include "tiny.h"

enum { HIDDEN = 128, INNER = 384, LAYERS = 4, HEADS = 4, MAX_TENSORS = 64 };

/* A tensor to be written. */
typedef struct tensor {
    char name[80];
    int rows, columns; /* columns 0: a vector of ones */
    double spread;
} tensor;

typedef struct plan {
    tensor tensors[MAX_TENSORS];
    int count;
} plan;

/* Adds a tensor; layer -1: one of the whole model. */
static void add(plan *p, int layer, const char *name, int rows, int columns, double spread)
{
    tensor *t = &p->tensors[p->count++];
    *t = (tensor){.rows = rows, .columns = columns, .spread = spread};
    if (layer < 0) snprintf(t->name, sizeof t->name, "model.%s.weight", name);
    else snprintf(t->name, sizeof t->name, "model.layers.%d.%s.weight", layer, name);
}

/* The tensors of the model in the order of the file. The head is tied, so it is not among them. */
static void make_plan(plan *p)
{
    static const double normal = 0.06, out = 0.02; /* what ends in the residual stream starts smaller */
    add(p, -1, "embed_tokens", VOCABULARY, HIDDEN, normal);
    for (int i = 0; i < LAYERS; i++) {
        add(p, i, "input_layernorm", HIDDEN, 0, 0);
        add(p, i, "self_attn.q_proj", HIDDEN, HIDDEN, normal);
        add(p, i, "self_attn.k_proj", HIDDEN, HIDDEN, normal);
        add(p, i, "self_attn.v_proj", HIDDEN, HIDDEN, normal);
        add(p, i, "self_attn.o_proj", HIDDEN, HIDDEN, out);
        add(p, i, "post_attention_layernorm", HIDDEN, 0, 0);
        add(p, i, "mlp.gate_proj", INNER, HIDDEN, normal);
        add(p, i, "mlp.up_proj", INNER, HIDDEN, normal);
        add(p, i, "mlp.down_proj", HIDDEN, INNER, out);
    }
    add(p, -1, "norm", HIDDEN, 0, 0);
}

static int elements(const tensor *t)
{
    return t->rows * (t->columns ? t->columns : 1);
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

/* Writes the header, padded to a multiple of 8 bytes, then the values; bf16 is little-endian. */
static void write_weights(const char *folder, uint64_t seed)
{
    plan p = {.count = 0};
    make_plan(&p);
    char *header = allocate(1 << 16);
    size_t size = 0;
    uint64_t at = 0;
    size += (size_t)sprintf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0; i < p.count; i++) {
        const tensor *t = &p.tensors[i];
        char shape[32];
        snprintf(shape, sizeof shape, t->columns ? "[%d,%d]" : "[%d]", t->rows, t->columns);
        uint64_t end = at + 2 * (uint64_t)elements(t);
        size += (size_t)sprintf(header + size,
                                ",\"%s\":{\"dtype\":\"BF16\",\"shape\":%s,\"data_offsets\":[%llu,%llu]}",
                                t->name, shape, (unsigned long long)at, (unsigned long long)end);
        at = end;
    }
    header[size++] = '}';
    while (size % 8) header[size++] = ' ';
    FILE *file = create(folder, "model.safetensors");
    for (int i = 0; i < 8; i++) fputc((int)((uint64_t)size >> (8 * i) & 0xff), file);
    fwrite(header, 1, size, file);
    free(header);
    uint64_t state = seed;
    for (int i = 0; i < p.count; i++) {
        const tensor *t = &p.tensors[i];
        for (int k = 0; k < elements(t); k++) {
            uint16_t value = to_bf16(t->columns ? (float)(t->spread * near_normal(&state)) : 1.0f);
            fputc(value & 0xff, file);
            fputc(value >> 8, file);
        }
    }
    finish(file, "model.safetensors");
}

void write_checkpoint(const char *folder, uint64_t seed)
{
    FILE *file = create(folder, "config.json");
    fprintf(file,
            "{\n  \"architectures\": [\"LlamaForCausalLM\"],\n  \"model_type\": \"llama\",\n"
            "  \"vocab_size\": %d,\n  \"hidden_size\": %d,\n  \"intermediate_size\": %d,\n"
            "  \"num_hidden_layers\": %d,\n  \"num_attention_heads\": %d,\n  \"num_key_value_heads\": %d,\n"
            "  \"head_dim\": %d,\n  \"max_position_embeddings\": 512,\n  \"hidden_act\": \"silu\",\n"
            "  \"rms_norm_eps\": 1e-05,\n  \"rope_theta\": 10000.0,\n  \"attention_bias\": false,\n"
            "  \"mlp_bias\": false,\n  \"tie_word_embeddings\": true,\n  \"bos_token_id\": null,\n"
            "  \"eos_token_id\": %d,\n  \"pad_token_id\": %d,\n  \"torch_dtype\": \"bfloat16\"\n}\n",
            VOCABULARY, HIDDEN, INNER, LAYERS, HEADS, HEADS, HIDDEN / HEADS, CHAT_END, END_OF_TEXT);
    finish(file, "config.json");
    file = create(folder, "generation_config.json");
    fprintf(file, "{\n  \"do_sample\": false,\n  \"eos_token_id\": [%d, %d],\n  \"pad_token_id\": %d\n}\n",
            CHAT_END, END_OF_TEXT, END_OF_TEXT);
    finish(file, "generation_config.json");
    write_weights(folder, seed);
}
