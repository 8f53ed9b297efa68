/* gguf_support.h - writes GGUF files for tests: any metadata and tensors, and whole models of a few numbers. */
#ifndef GGUF_SUPPORT_H
#define GGUF_SUPPORT_H

#include "support.h"

#include "format/gguf/gguf_model.h"

typedef struct bytes {
    uint8_t data[1 << 16];
    size_t size;
} bytes;

typedef struct builder {
    bytes head, tensors, data;
    uint64_t entry_count, tensor_count;
    uint32_t version;
} builder;

static void put(bytes *b, const void *data, size_t size)
{
    assert_true(b->size + size <= sizeof b->data);
    memcpy(b->data + b->size, data, size);
    b->size += size;
}

static void put_u32(bytes *b, uint32_t value)
{
    put(b, &value, 4);
}

static void put_u64(bytes *b, uint64_t value)
{
    put(b, &value, 8);
}

static void put_name(bytes *b, const char *text)
{
    put_u64(b, strlen(text));
    put(b, text, strlen(text));
}

static void add_key(builder *b, const char *key, nbl__gguf_type type)
{
    put_name(&b->head, key);
    put_u32(&b->head, type);
    b->entry_count++;
}

static void add_u32(builder *b, const char *key, uint32_t value)
{
    add_key(b, key, NBL_GGUF_U32);
    put_u32(&b->head, value);
}

static void add_f32(builder *b, const char *key, float value)
{
    add_key(b, key, NBL_GGUF_F32);
    put(&b->head, &value, 4);
}

static void add_text(builder *b, const char *key, const char *value)
{
    add_key(b, key, NBL_GGUF_STRING);
    put_name(&b->head, value);
}

/* A tensor of f32 whose value i is first + i. Rank 1 when rows is 0. */
static void add_tensor(builder *b, const char *name, int64_t rows, int64_t columns, float first)
{
    put_name(&b->tensors, name);
    put_u32(&b->tensors, rows ? 2 : 1);
    put_u64(&b->tensors, (uint64_t)columns);
    if (rows) put_u64(&b->tensors, (uint64_t)rows);
    put_u32(&b->tensors, NBL_GGML_F32);
    put_u64(&b->tensors, b->data.size);
    for (int64_t i = 0; i < (rows ? rows : 1) * columns; i++) {
        float value = first + (float)i;
        put(&b->data, &value, 4);
    }
    while (b->data.size % 32) put(&b->data, "", 1);
    b->tensor_count++;
}

/* The whole file; free it. */
static uint8_t *finish(const builder *b, size_t *size)
{
    size_t head = 24 + b->head.size + b->tensors.size, begin = (head + 31) / 32 * 32;
    uint8_t *file = calloc(1, begin + b->data.size);
    uint32_t version = b->version ? b->version : 3;
    memcpy(file, "GGUF", 4);
    memcpy(file + 4, &version, 4);
    memcpy(file + 8, &b->tensor_count, 8);
    memcpy(file + 16, &b->entry_count, 8);
    memcpy(file + 24, b->head.data, b->head.size);
    memcpy(file + 24 + b->head.size, b->tensors.data, b->tensors.size);
    memcpy(file + begin, b->data.data, b->data.size);
    *size = begin + b->data.size;
    return file;
}

enum { HIDDEN = 8, INNER = 12, HEADS = 2, KV_HEADS = 1, HEAD_DIM = 4, LAYERS = 2, VOCABULARY = 10 };

/* A model of the architecture with all its keys and tensors; each tensor begins at another value. */
static void build_model(builder *b, const char *arch)
{
    char key[128];
    bool gemma = strncmp(arch, "gemma", 5) == 0,
         normed = strcmp(arch, "qwen3") == 0 || strcmp(arch, "gemma3") == 0,
         fused = strcmp(arch, "phi3") == 0;
    float first = 100;
    memset(b, 0, sizeof *b);
    add_text(b, "general.architecture", arch);
#define KEY(suffix) (snprintf(key, sizeof key, "%s." suffix, arch), key)
    add_u32(b, KEY("context_length"), 64);
    add_u32(b, KEY("embedding_length"), HIDDEN);
    add_u32(b, KEY("block_count"), LAYERS);
    add_u32(b, KEY("feed_forward_length"), INNER);
    add_u32(b, KEY("attention.head_count"), HEADS);
    add_u32(b, KEY("attention.head_count_kv"), KV_HEADS);
    add_f32(b, KEY("attention.layer_norm_rms_epsilon"), 1e-5f);
    add_f32(b, KEY("rope.freq_base"), 500000);
    if (gemma) add_u32(b, KEY("attention.key_length"), HEAD_DIM);
    if (gemma) add_u32(b, KEY("attention.sliding_window"), 16);
#undef KEY
    add_u32(b, "tokenizer.ggml.bos_token_id", 1);
    add_u32(b, "tokenizer.ggml.eos_token_id", 2);
    add_tensor(b, "token_embd.weight", VOCABULARY, HIDDEN, first);
    add_tensor(b, "output_norm.weight", 0, HIDDEN, 1);
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[64];
#define TENSOR(suffix, rows, columns)                                                                        \
    (snprintf(name, sizeof name, "blk.%d." suffix, layer), add_tensor(b, name, rows, columns, first += 1000))
        TENSOR("attn_norm.weight", 0, HIDDEN);
        if (fused) {
            TENSOR("attn_qkv.weight", (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN);
            TENSOR("ffn_up.weight", 2 * INNER, HIDDEN);
        } else {
            TENSOR("attn_q.weight", HEADS * HEAD_DIM, HIDDEN);
            TENSOR("attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN);
            TENSOR("attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN);
            TENSOR("ffn_gate.weight", INNER, HIDDEN);
            TENSOR("ffn_up.weight", INNER, HIDDEN);
        }
        TENSOR("attn_output.weight", HIDDEN, HEADS * HEAD_DIM);
        if (strcmp(arch, "qwen2") == 0) {
            TENSOR("attn_q.bias", 0, HEADS * HEAD_DIM);
            TENSOR("attn_k.bias", 0, KV_HEADS * HEAD_DIM);
            TENSOR("attn_v.bias", 0, KV_HEADS * HEAD_DIM);
        }
        if (normed) TENSOR("attn_q_norm.weight", 0, HEAD_DIM);
        if (normed) TENSOR("attn_k_norm.weight", 0, HEAD_DIM);
        if (gemma) TENSOR("post_attention_norm.weight", 0, HIDDEN);
        if (gemma) TENSOR("post_ffw_norm.weight", 0, HIDDEN);
        TENSOR("ffn_norm.weight", 0, HIDDEN);
        TENSOR("ffn_down.weight", HIDDEN, INNER);
#undef TENSOR
    }
}

#endif
