/* test_gguf.c - GGUF: files that the package gguf wrote, files made here, and files that must be refused. */
#include "support.h"

#include "base/alloc.h"
#include "format/gguf_model.h"
#include "format/json.h"

/* ---- a small writer ---- */

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
         normed = strcmp(arch, "qwen3") == 0 || strcmp(arch, "gemma3") == 0;
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
        TENSOR("attn_q.weight", HEADS * HEAD_DIM, HIDDEN);
        TENSOR("attn_k.weight", KV_HEADS * HEAD_DIM, HIDDEN);
        TENSOR("attn_v.weight", KV_HEADS * HEAD_DIM, HIDDEN);
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
        TENSOR("ffn_gate.weight", INNER, HIDDEN);
        TENSOR("ffn_up.weight", INNER, HIDDEN);
        TENSOR("ffn_down.weight", HIDDEN, INNER);
#undef TENSOR
    }
}

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

/* ---- the golden file ---- */

static nbl__gguf *open_golden(nbl_context *ctx)
{
    nbl__gguf *gguf;
    assert_ok(ctx, nbl__gguf_open(ctx, TEST_DATA_DIR "/gguf/golden.gguf", &gguf));
    return gguf;
}

static void metadata_of_every_type_is_read(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__gguf *gguf = open_golden(ctx);
    static const struct {
        const char *key;
        int64_t value;
    } integers[] = {
        {"uint8", 200},         {"int8", -100},         {"uint16", 60000},       {"int16", -30000},
        {"uint32", 4000000000}, {"int32", -2000000000}, {"int64", -(1LL << 62)}, {"bool", 1}};
    int64_t integer;
    double number;
    char key[64];
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++) {
        snprintf(key, sizeof key, "golden.%s", integers[i].key);
        assert_true(nbl__gguf_integer(nbl__gguf_find(gguf, key), 0, &integer));
        assert_true(integer == integers[i].value);
        assert_true(nbl__gguf_number(nbl__gguf_find(gguf, key), 0, &number));
        assert_true(number == (double)integers[i].value);
    }
    const nbl__gguf_entry *large = nbl__gguf_find(gguf, "golden.uint64");
    assert_false(nbl__gguf_integer(large, 0, &integer));
    assert_true(nbl__gguf_number(large, 0, &number) && number == 0x1p64);
    assert_true(nbl__gguf_number(nbl__gguf_find(gguf, "golden.float32"), 0, &number));
    assert_true(number == (double)(1.0f / 3));
    assert_true(nbl__gguf_number(nbl__gguf_find(gguf, "golden.float64"), 0, &number));
    assert_true(number == 1.0 / 3);
    assert_false(nbl__gguf_integer(nbl__gguf_find(gguf, "golden.float64"), 0, &integer));

    const char *text;
    size_t length;
    assert_true(nbl__gguf_string(nbl__gguf_find(gguf, "golden.string"), 0, &text, &length));
    assert_int_equal(length, strlen("naïve ✓"));
    assert_memory_equal(text, "naïve ✓", length);
    const nbl__gguf_entry *strings = nbl__gguf_find(gguf, "golden.strings");
    assert_int_equal(strings->type, NBL_GGUF_ARRAY);
    assert_int_equal(strings->element, NBL_GGUF_STRING);
    assert_int_equal(strings->count, 3);
    assert_true(nbl__gguf_string(strings, 2, &text, &length));
    assert_int_equal(length, 4);
    assert_memory_equal(text, "ä\0b", 4);
    assert_false(nbl__gguf_string(strings, 3, &text, &length));
    assert_false(nbl__gguf_string(strings, -1, &text, &length));
    assert_false(nbl__gguf_number(strings, 0, &number));
    assert_true(nbl__gguf_integer(nbl__gguf_find(gguf, "golden.integers"), 1, &integer) && integer == -2);
    assert_true(nbl__gguf_number(nbl__gguf_find(gguf, "golden.floats"), 1, &number) && number == -1.5);
    assert_null(nbl__gguf_find(gguf, "golden.nothing"));
    assert_false(nbl__gguf_integer(NULL, 0, &integer));
    nbl__gguf_close(gguf);
    nbl_context_destroy(ctx);
}

static void every_block_type_decodes_to_the_bits_of_the_package_gguf(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl__gguf *gguf = open_golden(ctx);
    int decoded = 0;
    for (int64_t i = 0; i < gguf->tensor_count; i++) {
        const nbl__gguf_tensor *packed = &gguf->tensors[i];
        char name[64];
        snprintf(name, sizeof name, "%s.f32", packed->name);
        const nbl__gguf_tensor *wanted = nbl__gguf_tensor_find(gguf, name);
        if (wanted == NULL) continue;
        decoded++;
        assert_int_equal(packed->rank, 2);
        assert_int_equal(packed->shape[0], 3);
        assert_int_equal(packed->elements, wanted->elements);
        size_t n = (size_t)packed->elements;
        float *values = malloc(n * 4 + 1);
        uint16_t *halves = malloc(n * 2), *own = malloc(n * 2);
        for (nbl_isa isa = NBL_ISA_SCALAR; isa <= nbl__isa_detect(); isa++) {
            void *unaligned = (char *)values + 1;
            nbl__ggml_decode(isa, packed->type, packed->data, packed->elements, NBL_DTYPE_F32, unaligned);
            assert_memory_equal(unaligned, wanted->data, n * 4);
            for (nbl_dtype dtype = NBL_DTYPE_F16; dtype <= NBL_DTYPE_BF16; dtype++) {
                nbl__ggml_decode(isa, packed->type, packed->data, packed->elements, dtype, halves);
                nbl__from_f32(NBL_ISA_SCALAR, (const float *)(const void *)wanted->data, dtype, own,
                              (int64_t)n);
                assert_memory_equal(halves, own, n * 2);
            }
        }
        free(values);
        free(halves);
        free(own);
    }
    assert_int_equal(decoded, 12);
    nbl__gguf_close(gguf);
    nbl_context_destroy(ctx);
}

/* ---- hostile files ---- */

static nbl_status parse(nbl_context *ctx, const uint8_t *data, size_t size)
{
    nbl__gguf *gguf;
    uint8_t *exact = malloc(size ? size : 1); /* so that a read behind its end is seen */
    memcpy(exact, data, size);
    nbl_status status = nbl__gguf_parse(ctx, "f.gguf", exact, size, &gguf);
    if (status == NBL_OK) nbl__gguf_close(gguf);
    else assert_null(gguf);
    free(exact);
    return status;
}

static void assert_refused(const builder *b, const char *word)
{
    nbl_context *ctx = new_context();
    size_t size;
    uint8_t *file = finish(b, &size);
    assert_int_equal(parse(ctx, file, size), NBL_ERROR_FORMAT);
    if (strstr(nbl_error_message(ctx), word) == NULL)
        fail_msg("\"%s\" is not in: %s", word, nbl_error_message(ctx));
    free(file);
    nbl_context_destroy(ctx);
}

static builder b; /* large; every test fills it anew */

static void a_file_cut_anywhere_is_refused_with_a_message(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    size_t size;
    build_model(&b, "llama");
    uint8_t *file = finish(&b, &size);
    assert_ok(ctx, parse(ctx, file, size));
    size_t data = size - b.data.size;
    for (size_t cut = 0; cut < data; cut++) assert_int_equal(parse(ctx, file, cut), NBL_ERROR_FORMAT);
    for (size_t cut = data; cut < size; cut += 37) assert_int_equal(parse(ctx, file, cut), NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "blk.1.ffn_down.weight"));
    free(file);
    nbl_context_destroy(ctx);
}

static void version_2_opens_and_others_are_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    size_t size;
    build_model(&b, "llama");
    b.version = 2;
    uint8_t *file = finish(&b, &size);
    assert_ok(ctx, parse(ctx, file, size));
    free(file);
    b.version = 1;
    assert_refused(&b, "version 1");
    b.version = 4;
    assert_refused(&b, "version 4");
    b.version = 3u << 24;
    assert_refused(&b, "big-endian");
    nbl_context_destroy(ctx);
}

static void counts_and_lengths_beyond_the_file_are_refused_without_memory(void **state)
{
    (void)state;
    memset(&b, 0, sizeof b);
    b.entry_count = UINT64_MAX / 64;
    assert_refused(&b, "keys");
    memset(&b, 0, sizeof b);
    b.tensor_count = UINT64_MAX;
    assert_refused(&b, "tensors");

    memset(&b, 0, sizeof b);
    put_u64(&b.head, UINT64_MAX); /* the length of a key */
    put(&b.head, "12345678", 8);
    b.entry_count = 1;
    assert_refused(&b, "byte 32");

    for (int element = 0; element < NBL_GGUF_TYPE_COUNT; element++) {
        memset(&b, 0, sizeof b);
        add_key(&b, "a.list", NBL_GGUF_ARRAY);
        put_u32(&b.head, (uint32_t)element);
        put_u64(&b.head, INT64_MAX);
        assert_refused(&b, "\"a.list\"");
    }
    memset(&b, 0, sizeof b);
    add_key(&b, "a.deep", NBL_GGUF_ARRAY);
    for (int i = 0; i < 100; i++) put_u32(&b.head, NBL_GGUF_ARRAY), put_u64(&b.head, 1);
    put_u32(&b.head, NBL_GGUF_U8), put_u64(&b.head, 0);
    assert_refused(&b, "nested");
}

static void arrays_of_arrays_are_stepped_over(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    size_t size;
    nbl__gguf *gguf;
    memset(&b, 0, sizeof b);
    add_key(&b, "a.nested", NBL_GGUF_ARRAY);
    put_u32(&b.head, NBL_GGUF_ARRAY), put_u64(&b.head, 2);
    put_u32(&b.head, NBL_GGUF_STRING), put_u64(&b.head, 1), put_name(&b.head, "text");
    put_u32(&b.head, NBL_GGUF_U16), put_u64(&b.head, 2), put_u32(&b.head, 7);
    add_u32(&b, "after", 5);
    uint8_t *file = finish(&b, &size);
    assert_ok(ctx, nbl__gguf_parse(ctx, "f.gguf", file, size, &gguf));
    int64_t value;
    double number;
    assert_true(nbl__gguf_integer(nbl__gguf_find(gguf, "after"), 0, &value) && value == 5);
    assert_false(nbl__gguf_integer(nbl__gguf_find(gguf, "a.nested"), 0, &value));
    assert_false(nbl__gguf_number(nbl__gguf_find(gguf, "a.nested"), 0, &number));
    nbl__gguf_close(gguf);
    free(file);
    nbl_context_destroy(ctx);
}

static void odd_names_values_and_places_are_refused_by_name(void **state)
{
    (void)state;
    memset(&b, 0, sizeof b);
    add_key(&b, "a.bool", NBL_GGUF_BOOL);
    put(&b.head, "\2", 1);
    assert_refused(&b, "\"a.bool\": a bool that is 2");
    memset(&b, 0, sizeof b);
    add_key(&b, "a.type", (nbl__gguf_type)13);
    assert_refused(&b, "\"a.type\": the unknown type 13");
    memset(&b, 0, sizeof b);
    add_u32(&b, "twice", 1);
    add_u32(&b, "twice", 2);
    assert_refused(&b, "\"twice\" is there twice");
    memset(&b, 0, sizeof b);
    add_u32(&b, "", 1);
    assert_refused(&b, "0 bytes");
    memset(&b, 0, sizeof b);
    add_u32(&b, "broken\xff", 1);
    assert_refused(&b, "not UTF-8");
    for (uint32_t alignment = 0; alignment < 100; alignment += 33) {
        memset(&b, 0, sizeof b);
        add_u32(&b, "general.alignment", alignment);
        assert_refused(&b, "general.alignment");
    }
    memset(&b, 0, sizeof b);
    add_tensor(&b, "twice", 0, 8, 0);
    add_tensor(&b, "twice", 0, 8, 0);
    assert_refused(&b, "\"twice\" is there twice");
    memset(&b, 0, sizeof b);
    add_tensor(&b, "one", 0, 8, 0);
    b.data.size = 0;
    add_tensor(&b, "two", 0, 8, 0);
    assert_refused(&b, "overlaps");
}

/* A tensor's entry by hand: sizes (fastest first), type, place. */
static void entry_by_hand(int rank, const uint64_t *sizes, uint32_t type, uint64_t place)
{
    memset(&b, 0, sizeof b);
    put_name(&b.tensors, "t");
    put_u32(&b.tensors, (uint32_t)rank);
    for (int i = 0; i < rank; i++) put_u64(&b.tensors, sizes[i]);
    put_u32(&b.tensors, type);
    put_u64(&b.tensors, place);
    b.tensor_count = 1;
    for (int i = 0; i < 64; i++) put(&b.data, "", 1);
}

static void tensor_entries_that_cannot_be_are_refused(void **state)
{
    (void)state;
    entry_by_hand(1, (uint64_t[]){UINT64_MAX}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": a dimension");
    entry_by_hand(2, (uint64_t[]){1ull << 40, 1ull << 40}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": its sizes overflow");
    entry_by_hand(3, (uint64_t[]){1ull << 40, 0, 1ull << 40}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": its sizes overflow");
    entry_by_hand(1, (uint64_t[]){1ull << 62}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": its bytes overflow");
    entry_by_hand(1, (uint64_t[]){17}, NBL_GGML_F32, 0);
    assert_refused(&b, "\"t\": its 68 bytes");
    entry_by_hand(1, (uint64_t[]){8}, NBL_GGML_F32, UINT64_MAX - 31);
    assert_refused(&b, "\"t\": its 32 bytes");
    entry_by_hand(1, (uint64_t[]){8}, NBL_GGML_F32, 8);
    assert_refused(&b, "not a multiple of 32");
    entry_by_hand(1, (uint64_t[]){48}, NBL_GGML_Q8_0, 0);
    assert_refused(&b, "whole number of blocks of q8_0");
    entry_by_hand(1, (uint64_t[]){32}, 4, 0);
    assert_refused(&b, "unknown tensor type 4");
    entry_by_hand(1, (uint64_t[]){32}, 1000000, 0);
    assert_refused(&b, "unknown tensor type 1000000");
    entry_by_hand(0, NULL, NBL_GGML_F32, 0);
    b.tensors.data[9] = 5;
    assert_refused(&b, "5 dimensions");
}

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

static void llama_biases_are_turned_with_their_rows(void **state)
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
    assert_int_equal(nbl_model_ends(model, ends, 4), 1);
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
    assert_int_equal(nbl_model_ends(model, ends, 4), 2);
    assert_int_equal(ends[0], 2);
    assert_int_equal(ends[1], 5);
    assert_int_equal(nbl_model_ends(model, NULL, 0), 2);
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
        nbl_context_options options = {.threads = 1, .allocator = nbl__counting_allocator(&counter)};
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
        cmocka_unit_test(metadata_of_every_type_is_read),
        cmocka_unit_test(every_block_type_decodes_to_the_bits_of_the_package_gguf),
        cmocka_unit_test(a_file_cut_anywhere_is_refused_with_a_message),
        cmocka_unit_test(version_2_opens_and_others_are_refused),
        cmocka_unit_test(counts_and_lengths_beyond_the_file_are_refused_without_memory),
        cmocka_unit_test(arrays_of_arrays_are_stepped_over),
        cmocka_unit_test(odd_names_values_and_places_are_refused_by_name),
        cmocka_unit_test(tensor_entries_that_cannot_be_are_refused),
        cmocka_unit_test(a_llama_gets_its_config_and_its_rows_in_halves),
        cmocka_unit_test(llama_biases_are_turned_with_their_rows),
        cmocka_unit_test(qwen_and_gemma_get_their_names_and_gemma_its_norms_less_one),
        cmocka_unit_test(rotary_scaling_is_told_or_refused),
        cmocka_unit_test(what_is_not_understood_is_refused_by_name),
        cmocka_unit_test(templates_tokens_and_ends_of_a_file_are_read),
        cmocka_unit_test(memory_that_runs_out_is_told_and_none_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
