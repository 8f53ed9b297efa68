/* test_inspect_gguf.c - GGUF files that are looked at: every problem is listed, and hostile bytes are read within the file. */
#include "format/gguf_support.h"

#include "base/base.h"
#include "faults.h"

/* ---- support ---- */

static void write_model(const builder *b, const char *folder, const char *name)
{
    size_t size;
    uint8_t *data = finish(b, &size);
    write_file(folder, name, data, size);
    free(data);
}

static bool has_problem(const nbl_gguf *gguf, const char *words)
{
    const char *text;
    for (int64_t i = 0; (text = nbl_gguf_get_problem(gguf, i)) != NULL; i++)
        if (strstr(text, words)) return true;
    return false;
}

static void assert_problems(const nbl_gguf *gguf, const char *const *words)
{
    int64_t count = 0;
    for (; words[count]; count++)
        if (!has_problem(gguf, words[count])) fail_msg("no problem says \"%s\"", words[count]);
    for (int64_t i = 0; i < nbl_gguf_get_summary(gguf)->problems; i++) {
        bool expected = false;
        for (int64_t k = 0; k < count; k++)
            expected |= strstr(nbl_gguf_get_problem(gguf, i), words[k]) != NULL;
        if (!expected) fail_msg("not expected: %s", nbl_gguf_get_problem(gguf, i));
    }
    assert_null(nbl_gguf_get_problem(gguf, nbl_gguf_get_summary(gguf)->problems));
}

/* The tokens of a small vocabulary: bytes, so that the tokenizer opens. */
static void add_vocabulary(builder *b)
{
    add_text(b, "tokenizer.ggml.model", "gpt2");
    add_text(b, "tokenizer.ggml.pre", "default");
    add_key(b, "tokenizer.ggml.tokens", NBL_GGUF_ARRAY);
    put_u32(&b->head, NBL_GGUF_STRING);
    put_u64(&b->head, VOCABULARY);
    for (int i = 0; i < VOCABULARY; i++) put_name(&b->head, (char[]){(char)('a' + i), '\0'});
    add_key(b, "tokenizer.ggml.merges", NBL_GGUF_ARRAY);
    put_u32(&b->head, NBL_GGUF_STRING);
    put_u64(&b->head, 0);
}

/* ---- GGUF ---- */

static void a_whole_model_is_summarized(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char temp[64];
    builder *b = calloc(1, sizeof *b);
    nbl_gguf *gguf;
    make_temp(temp);
    build_model(b, "llama");
    add_vocabulary(b);
    add_text(b, "general.name", "a \xff\x1b name");
    write_model(b, temp, "m.gguf");
    assert_ok(ctx, nbl_gguf_open(ctx, in_folder(temp, "m.gguf"), &gguf));
    assert_problems(gguf, (const char *const[]){NULL});
    const nbl_gguf_summary *s = nbl_gguf_get_summary(gguf);
    assert_string_equal(s->kind, "model");
    assert_string_equal(s->architecture, "llama");
    assert_string_equal(s->name, "a ?\x1b name");
    assert_int_equal(s->version, 3);
    assert_int_equal(s->tensors, 2 + 9 * LAYERS);
    assert_int_equal(s->layers, LAYERS);
    assert_int_equal(s->context, 64);
    assert_string_equal(s->tokenizer, "gpt2");
    assert_int_equal(s->vocabulary, VOCABULARY);
    assert_int_equal(s->bytes, s->parameters * 4);
    const nbl_gguf_special *special = nbl_gguf_get_special(gguf, 1);
    assert_string_equal(special->name, "eos");
    assert_int_equal(special->id, 2);
    assert_string_equal(special->text, "c");
    assert_null(nbl_gguf_get_special(gguf, 2));
    const nbl_gguf_tensor *tensor = nbl_gguf_get_tensor(gguf, 0);
    assert_string_equal(tensor->name, "token_embd.weight");
    assert_string_equal(tensor->format, "f32");
    assert_true(tensor->rank == 2 && tensor->shape[0] == VOCABULARY && tensor->shape[1] == HIDDEN);
    const nbl_gguf_entry *entry;
    int64_t count = 0;
    for (; (entry = nbl_gguf_get_entry(gguf, count)) != NULL; count++) {
        if (strcmp(entry->key, "llama.attention.layer_norm_rms_epsilon") == 0)
            assert_string_equal(entry->value, "1e-05");
        if (strcmp(entry->key, "general.name") == 0) assert_string_equal(entry->value, "\"a ?\\u001b name\"");
        if (strcmp(entry->key, "tokenizer.ggml.tokens") != 0) continue;
        assert_string_equal(entry->type, "array of string");
        assert_string_equal(entry->value, "[\"a\", \"b\", \"c\", \"d\", \"e\", \"f\", \"g\", \"h\"]");
        assert_true(entry->count == VOCABULARY && entry->cut);
    }
    assert_int_equal(count, s->entries);
    nbl_gguf_close(gguf);
    free(b);
    remove_tree(temp);
    nbl_context_destroy(ctx);
}

static void every_problem_of_a_gguf_file_is_listed(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char temp[64];
    builder *b = calloc(1, sizeof *b);
    nbl_gguf *gguf;
    make_temp(temp);
    build_model(b, "llama");
    add_vocabulary(b);
    add_u32(b, "llama.context_length", 32); /* twice */
    add_f32(b, "llama.logit_scale", 2);     /* unknown here */
    add_u32(b, "llama.expert_count", 8);    /* not supported */
    add_u32(b, "tokenizer.ggml.unknown_token_id", 99);
    add_tensor(b, "blk.0.attn_norm.weight", 0, HIDDEN, 0);      /* twice */
    add_tensor(b, "blk.0.attn_q.bias", 0, HEADS * HEAD_DIM, 0); /* the others are missing */
    add_tensor(b, "surprise", 3, 4, 0);
    put_name(&b->tensors, "\xe2\x80\xae odd\n"); /* of an unknown type */
    put_u32(&b->tensors, 1);
    put_u64(&b->tensors, 32);
    put_u32(&b->tensors, 99);
    put_u64(&b->tensors, 0);
    put_name(&b->tensors, "far"); /* beyond the end */
    put_u32(&b->tensors, 1);
    put_u64(&b->tensors, 32);
    put_u32(&b->tensors, NBL_GGML_Q8_0);
    put_u64(&b->tensors, 1 << 20);
    put_name(&b->tensors, "beside"); /* not aligned */
    put_u32(&b->tensors, 1);
    put_u64(&b->tensors, 1);
    put_u32(&b->tensors, NBL_GGML_F32);
    put_u64(&b->tensors, 4);
    put_name(&b->tensors, "over"); /* on another one's bytes */
    put_u32(&b->tensors, 1);
    put_u64(&b->tensors, 1);
    put_u32(&b->tensors, NBL_GGML_F32);
    put_u64(&b->tensors, 0);
    b->tensor_count += 4;
    write_model(b, temp, "m.gguf");
    assert_ok(ctx, nbl_gguf_open(ctx, in_folder(temp, "m.gguf"), &gguf));
    assert_problems(gguf, (const char *const[]){
                              "the key \"llama.context_length\" is there twice",
                              "key \"llama.logit_scale\": it is not known here",
                              "key \"llama.expert_count\": only 0 is supported",
                              "unknown_token_id\": 99 is no token of the vocabulary of 10",
                              "the tensor \"blk.0.attn_norm.weight\" is there twice",
                              "\"blk.0.attn_k.bias\": it is missing while other biases of its kind are there",
                              "tensor \"surprise\": it is not one that this architecture has",
                              "the unknown tensor type 99",
                              "odd\\n\": it is not one",
                              "tensor \"far\": its 34 bytes begin at byte 1048576 of the data",
                              "tensor \"far\": it is not one",
                              "tensor \"beside\": its data begins at byte 4, not a multiple of 32",
                              "tensor \"beside\": it is not one",
                              "the data of tensor \"token_embd.weight\" overlaps that of \"over\"",
                              "tensor \"over\": it is not one",
                              NULL,
                          });
    nbl_gguf_close(gguf);
    /* The same file is refused for the first of them by whoever runs it. */
    nbl_model *model;
    assert_int_not_equal(nbl_model_open(ctx, in_folder(temp, "m.gguf"), NULL, &model), NBL_OK);
    free(b);
    remove_tree(temp);
    nbl_context_destroy(ctx);
}

static void sizes_that_are_missing_are_all_named(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    char temp[64];
    builder *b = calloc(1, sizeof *b);
    nbl_gguf *gguf;
    make_temp(temp);
    add_text(b, "general.architecture", "qwen3");
    add_u32(b, "qwen3.embedding_length", 0);
    add_tensor(b, "token_embd.weight", VOCABULARY, HIDDEN, 0);
    add_vocabulary(b);
    write_model(b, temp, "m.gguf");
    assert_ok(ctx, nbl_gguf_open(ctx, in_folder(temp, "m.gguf"), &gguf));
    assert_problems(
        gguf, (const char *const[]){"block_count\": it is missing", "embedding_length\": not a size",
                                    "feed_forward_length\": it is missing", "head_count\": it is missing",
                                    "head_count_kv\": it is missing", NULL});
    nbl_gguf_close(gguf);
    memset(b, 0, sizeof *b); /* what is no model has no need of tensors */
    add_text(b, "general.architecture", "llama");
    add_text(b, "general.type", "adapter");
    write_model(b, temp, "a.gguf");
    assert_ok(ctx, nbl_gguf_open(ctx, in_folder(temp, "a.gguf"), &gguf));
    assert_problems(gguf, (const char *const[]){NULL});
    assert_string_equal(nbl_gguf_get_summary(gguf)->kind, "adapter");
    nbl_gguf_close(gguf);
    free(b);
    remove_tree(temp);
    nbl_context_destroy(ctx);
}

/* Cut at every byte of the head, and with bytes changed: it opens with problems, or is refused; nothing is read beyond. */
static void damaged_files_are_looked_at_within_their_bytes(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    builder *b = calloc(1, sizeof *b);
    size_t size;
    build_model(b, "gemma3");
    add_vocabulary(b);
    uint8_t *data = finish(b, &size);
    size_t head = 24 + b->head.size + b->tensors.size;
    uint32_t seed = 5;
    for (size_t n = 0; n < head + 3000; n++) {
        nbl__gguf *gguf;
        uint8_t *copy = malloc(size);
        size_t length = n < head ? n : size;
        memcpy(copy, data, size);
        for (int k = 0; n >= head && k < 4; k++) {
            seed = seed * 1664525u + 1013904223u;
            copy[(seed >> 8) % head] = (uint8_t)(seed >> 3);
        }
        copy = realloc(copy, length ? length : 1); /* so that a sanitizer sees its end */
        if (nbl__gguf_inspect_file(ctx, "cut.gguf", copy, length, &gguf) == NBL_OK) {
            if (n < head) assert_true(gguf->found.count > 0);
            assert_ok(ctx, nbl__gguf_model_check(gguf));
            nbl__gguf_close(gguf);
        }
        free(copy);
    }
    free(data);
    free(b);
    nbl_context_destroy(ctx);
}

static char folder[64];

static nbl_status look(nbl_context *ctx, int number)
{
    nbl_gguf *gguf;
    NBL_TRY(nbl_gguf_open(ctx, in_folder(folder, number ? "bad.gguf" : "good.gguf"), &gguf));
    while (nbl_gguf_get_entry(gguf, number++) != NULL) {}
    nbl_gguf_close(gguf);
    return NBL_OK;
}

static void memory_that_runs_out_is_told(void **state)
{
    (void)state;
    builder *b = calloc(1, sizeof *b);
    make_temp(folder);
    build_model(b, "llama");
    add_vocabulary(b);
    add_u32(b, "llama.block_count",
            LAYERS); /* twice: then the tokenizer, which can do with less, is not opened */
    write_model(b, folder, "good.gguf");
    add_u32(b, "llama.logit_scale", 2);
    add_tensor(b, "surprise", 3, 4, 0);
    write_model(b, folder, "bad.gguf");
    for (int i = 0; i < 2; i++) each_allocation_fails(look, i, folder, 2);
    free(b);
    remove_tree(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_model_is_summarized),
        cmocka_unit_test(every_problem_of_a_gguf_file_is_listed),
        cmocka_unit_test(sizes_that_are_missing_are_all_named),
        cmocka_unit_test(damaged_files_are_looked_at_within_their_bytes),
        cmocka_unit_test(memory_that_runs_out_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
