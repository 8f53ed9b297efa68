/* test_export.c - `nibble export`: blocks are upstream's bit for bit, what is written reads back as the same model and the
 * same tokenizer, what GGUF cannot say is refused by name, and nothing is left of what fails. */
#include <math.h>
#include <sys/stat.h>

#include "adapter_support.h"

#include "faults.h"
#include "format/gguf/gguf_model.h"

static char temp[64];

static int set_up(void **state)
{
    (void)state;
    make_temp(temp);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove_tree(temp);
    return 0;
}

/* Byte-level BPE in which "the" is one token; the texts of bytes are those of GPT-2. */
static const char byte_level[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    "{\"id\": 0, \"content\": \"<|end|>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
    "\"normalized\": false, \"special\": true}], \"normalizer\": null, \"pre_tokenizer\": {\"type\": "
    "\"Sequence\", "
    "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
    "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
    "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, "
    "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
    "\"trim_offsets\": true, \"use_regex\": false}]}, \"post_processor\": null, \"decoder\": {\"type\": "
    "\"ByteLevel\", "
    "\"add_prefix_space\": true, \"trim_offsets\": true, \"use_regex\": true}, \"model\": {\"type\": "
    "\"BPE\", "
    "\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, \"end_of_word_suffix\": "
    "null, "
    "\"fuse_unk\": false, \"byte_fallback\": false, \"ignore_merges\": false, \"vocab\": {\"<|end|>\": 0, "
    "\"t\": 1, "
    "\"h\": 2, \"e\": 3, \"\xc4\xa0\": 4, \"a\": 5, \"th\": 6, \"the\": 7, \"\xc4\xa0the\": 8, \"7\": 9}, "
    "\"merges\": [[\"t\", \"h\"], [\"th\", \"e\"], [\"\xc4\xa0\", \"the\"]]}}";

/* SentencePiece's kind: spaces are U+2581, what is unknown falls back to bytes. */
static const char pieces[] =
    "{\"version\": \"1.0\", \"added_tokens\": ["
    "{\"id\": 0, \"content\": \"<unk>\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, "
    "\"normalized\": false, \"special\": true}, {\"id\": 1, \"content\": \"<s>\", \"single_word\": false, "
    "\"lstrip\": "
    "false, \"rstrip\": false, \"normalized\": false, \"special\": true}], \"normalizer\": {\"type\": "
    "\"Sequence\", "
    "\"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"\xe2\x96\x81\"}, {\"type\": \"Replace\", "
    "\"pattern\": "
    "{\"String\": \" \"}, \"content\": \"\xe2\x96\x81\"}]}, \"pre_tokenizer\": null, \"post_processor\": "
    "{\"type\": "
    "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "
    "{\"Sequence\": {\"id\": "
    "\"A\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}, {\"Sequence\": "
    "{\"id\": \"B\", "
    "\"type_id\": 1}}], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [1], \"tokens\": "
    "[\"<s>\"]}}}, "
    "\"decoder\": null, \"model\": {\"type\": \"BPE\", \"dropout\": null, \"unk_token\": \"<unk>\", "
    "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": true, "
    "\"byte_fallback\": true, "
    "\"vocab\": {\"<unk>\": 0, \"<s>\": 1, \"<0x21>\": 2, \"t\": 3, \"h\": 4, \"e\": 5, \"\xe2\x96\x81\": 6, "
    "\"th\": 7, "
    "\"he\": 8, \"the\": 9, \"\xe2\x96\x81the\": 10, \"a\": 11}, \"merges\": [[\"h\", \"e\"], [\"t\", "
    "\"h\"], "
    "[\"t\", \"he\"], [\"th\", \"e\"], [\"\xe2\x96\x81\", \"the\"]]}}";

static const char settings[] =
    "{\"bos_token\": \"<s>\", \"eos_token\": \"<|end|>\", \"chat_template\": \"{{ '<|im_start|>' }}\"}";

/* The small Llama with a tokenizer, at temp/model. */
static void make_model(const char *base, const char *tokenizer)
{
    char folder[128];
    remove_tree(temp);
    assert_int_equal(mkdir(temp, 0755), 0);
    (void)snprintf(folder, sizeof folder, "%s/model", temp);
    assert_int_equal(mkdir(folder, 0755), 0);
    char from[256];
    (void)snprintf(from, sizeof from, "%s/config.json", base);
    copy_file(from, folder, "config.json");
    (void)snprintf(from, sizeof from, "%s/model.safetensors", base);
    copy_file(from, folder, "model.safetensors");
    write_file(folder, "tokenizer.json", tokenizer, strlen(tokenizer));
    write_file(folder, "tokenizer_config.json", settings, strlen(settings));
}

static nbl_status export_as(nbl_context *ctx, nbl_export_type type, const char *adapter, bool ollama,
                            nbl_export_report *report)
{
    nbl_export_options how = {NBL_OPTIONS(nbl_export_options), .type = type, .adapter = adapter,
                              .ollama = ollama};
    return nbl_export(ctx, in_folder(temp, "model"), in_folder(temp, "out.gguf"), &how, report);
}

/* ---- blocks ---- */

static void blocks_are_upstreams_bit_for_bit(void **state)
{
    (void)state;
    /* Made by gguf.quants.quantize of Python's gguf package. */
    static const char
        q8_x[] = "\x71\x25\xc7\x32\xe3\x51\x00\x81\x1f\xce\x3b\xed\x58\x09\xbb\x26\xd7\x45\xf4\xa5\x13\xc2"
                 "\x2f\xe1\x4c\xfd\xaf\x1a\xcb\x39\xe8\x55\x07\xb7",
        q4_x[] = "\x66\x35\x74\x2b\x96\x4d\xb8\x60\xda\x85\x3c\xa7\x5e\xc9\x74\xda\x85\x3c",
        q8_y[] = "\x89\x28\x02\xfa\x0a\xf2\x12\xea\x1a\xe2\x22\xda\x2a\xd2\x32\xca\x3a\xc2\x43\xb9\x4b\xb1"
                 "\x53\xa9\x5b\xa1\x63\x99\x6b\x91\x73\x89\x7b\x81",
        q4_y[] = "\x80\x38\xc8\x48\xd9\x37\xd9\x37\xea\x26\xea\x26\xfb\x15\xfb\x15\xfc\x04";
    float x[32], y[32];
    uint8_t out[34];
    for (int i = 0; i < 32; i++) {
        x[i] = (float)((i * 37 + 11) % 64 - 31) / 16 + (i % 3 == 0 ? 0.03125f : 0);
        y[i] = (float)((i % 2 ? -1 : 1) * (i + 0.5) / 7);
    }
    x[5] = -2.7f;
    nbl_isa isa = NBL_ISA_SCALAR;
    nbl__ggml_encode(isa, NBL_GGML_Q8_0, x, 32, out);
    assert_memory_equal(out, q8_x, 34);
    nbl__ggml_encode(isa, NBL_GGML_Q4_0, x, 32, out);
    assert_memory_equal(out, q4_x, 18);
    nbl__ggml_encode(isa, NBL_GGML_Q8_0, y, 32, out);
    assert_memory_equal(out, q8_y, 34);
    nbl__ggml_encode(isa, NBL_GGML_Q4_0, y, 32, out);
    assert_memory_equal(out, q4_y, 18);
    for (int i = 0; i < 32; i++) x[i] = i == 7 ? 1e-42f : 0; /* a scale without an inverse */
    nbl__ggml_encode(isa, NBL_GGML_Q8_0, x, 32, out);
    for (int i = 0; i < 34; i++) assert_int_equal(out[i], 0);
}

/* ---- models ---- */

static void assert_same_logits(nbl_context *ctx, const char *a, const char *adapter, const char *b,
                               double tolerance)
{
    static int32_t ids[] = {3, 1, 36, 12, 7, 7, 0, 25};
    nbl_ids sequence = {ids, 8};
    float logits[2][8 * TOKENS], *at[2] = {logits[0], logits[1]};
    for (int i = 0; i < 2; i++) {
        nbl_model *model;
        nbl_model_options how = {NBL_OPTIONS(nbl_model_options), .dtype = NBL_COMPUTE_F32,
                                 .adapter = i ? NULL : adapter};
        assert_ok(ctx, nbl_model_open(ctx, i ? b : a, &how, &model));
        assert_ok(ctx, nbl_model_logits(model, &sequence, 1, &at[i]));
        nbl_model_close(model);
    }
    for (int i = 0; i < 8 * TOKENS; i++)
        if (!(fabs((double)logits[0][i] - (double)logits[1][i]) <= tolerance))
            fail_msg("logit %d is %g, not %g", i, (double)logits[1][i], (double)logits[0][i]);
}

static void an_exported_model_reads_back_as_the_same_model(void **state)
{
    (void)state;
    static const char *const bases[] = {LLAMA, LLAMA "-nf4-nested"};
    static const nbl_export_type types[] = {NBL_EXPORT_F32, NBL_EXPORT_BF16, NBL_EXPORT_F16};
    nbl_context *ctx = new_context();
    for (int n = 0; n < 2; n++)
        for (int k = 0; k < 3; k++) {
            nbl_export_report report = {NBL_RESULT(nbl_export_report)};
            make_model(bases[n], byte_level);
            assert_ok(ctx, export_as(ctx, types[k], NULL, false, &report));
            assert_int_equal(report.tensors, 16);
            assert_int_equal(report.fallen_back, 0);
            assert_same_logits(ctx, in_folder(temp, "model"), NULL, in_folder(temp, "out.gguf"),
                               k == 0 ? 1e-5 : 1e-3);
        }
    nbl_context_destroy(ctx);
}

static void an_adapter_is_merged_on_the_way(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    make_model(LLAMA "-nf4", byte_level);
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), WITH_DORA | WITH_HEAD, &a));
    assert_ok(ctx, export_as(ctx, NBL_EXPORT_F32, in_folder(temp, "adapter"), false, NULL));
    assert_same_logits(ctx, in_folder(temp, "model"), in_folder(temp, "adapter"), in_folder(temp, "out.gguf"),
                       2e-5);
    nbl_context_destroy(ctx);
}

static void rows_that_are_no_whole_blocks_are_f16(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    nbl_export_report report = {NBL_RESULT(nbl_export_report)};
    nbl__gguf *gguf;
    make_model(LLAMA, byte_level);
    assert_ok(ctx, export_as(ctx, NBL_EXPORT_Q8_0, NULL, false, &report));
    assert_int_equal(report.fallen_back, 9); /* all matrices: rows of 42, 45 and 67 */
    assert_ok(ctx, nbl__gguf_open(ctx, in_folder(temp, "out.gguf"), &gguf));
    assert_int_equal(nbl__gguf_tensor_find(gguf, "blk.0.ffn_up.weight")->type, NBL_GGML_F16);
    assert_int_equal(nbl__gguf_tensor_find(gguf, "blk.0.ffn_norm.weight")->type, NBL_GGML_F32);
    nbl__gguf_close(gguf);
    nbl_context_destroy(ctx);
}

static void an_adapter_alone_keeps_its_update_in_rotary_order(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    small_adapter a;
    nbl__gguf *gguf;
    double alpha = 0;
    make_model(LLAMA, byte_level);
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), 0, &a));
    assert_ok(ctx, export_as(ctx, NBL_EXPORT_DEFAULT, in_folder(temp, "adapter"), false, NULL));
    assert_ok(ctx, nbl__gguf_open(ctx, in_folder(temp, "out.gguf"), &gguf));
    assert_int_equal(gguf->tensor_count, 4);
    assert_true(nbl__gguf_number(nbl__gguf_find(gguf, "adapter.lora.alpha"), 0, &alpha));
    assert_true(alpha == 6);
    assert_memory_equal(nbl__gguf_tensor_find(gguf, "blk.0.attn_q.weight.lora_a")->data, a.q_a, sizeof a.q_a);
    assert_memory_equal(nbl__gguf_tensor_find(gguf, "blk.0.ffn_down.weight.lora_b")->data, a.down_b,
                        sizeof a.down_b);
    const uint8_t *b = nbl__gguf_tensor_find(gguf, "blk.0.attn_q.weight.lora_b")->data;
    size_t row = ADAPTER_RANK * sizeof(float); /* heads of 14: 0 and 7 are neighbours now */
    assert_memory_equal(b, a.q_b, row);
    assert_memory_equal(b + row, a.q_b + (size_t)7 * ADAPTER_RANK, row);
    assert_memory_equal(b + 2 * row, a.q_b + (size_t)ADAPTER_RANK, row);
    nbl__gguf_close(gguf);
    nbl_context_destroy(ctx);
}

/* ---- tokenizers ---- */

static void assert_same_ids(nbl_context *ctx, const char *text)
{
    nbl_ids ids[2];
    for (int i = 0; i < 2; i++) {
        nbl_tokenizer *t;
        assert_ok(ctx, nbl_tokenizer_open(ctx, in_folder(temp, i ? "out.gguf" : "model"), &t));
        assert_ok(ctx, nbl_tokenizer_encode(t, text, strlen(text), 1, &ids[i]));
        nbl_tokenizer_close(t);
    }
    assert_int_equal(ids[0].count, ids[1].count);
    assert_memory_equal(ids[0].ids, ids[1].ids, (size_t)ids[0].count * sizeof *ids[0].ids);
    nbl_ids_free(ctx, &ids[0]);
    nbl_ids_free(ctx, &ids[1]);
}

static void a_tokenizer_gives_the_same_ids_on_the_other_side(void **state)
{
    (void)state;
    static const char *const kinds[] = {byte_level, pieces};
    static const char *const texts[] = {"the the ta the", "thethe hate", "a the!e", ""};
    nbl_context *ctx = new_context();
    for (int k = 0; k < 2; k++) {
        make_model(LLAMA, kinds[k]);
        assert_ok(ctx, export_as(ctx, NBL_EXPORT_F16, NULL, false, NULL));
        for (int i = 0; i < 4; i++)
            if (k == 1 || strchr(texts[i], '!') == NULL) assert_same_ids(ctx, texts[i]);
    }
    nbl_context_destroy(ctx);
}

static void tokenizers_without_a_form_in_gguf_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", "Unigram"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", "byte-level"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}, \"pre_tokenizer\": {\"type\": "
         "\"Sequence\", "
         "\"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"xyz\"}, \"behavior\": "
         "\"Isolated\"}, "
         "{\"type\": \"ByteLevel\", \"use_regex\": false}]}}",
         "xyz"},
        {"{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {\"a\": 37}, \"merges\": []}}",
         "37"},
        {"{\"model\": {\"type\": \"BPE\", \"byte_fallback\": true, \"vocab\": {\"a\": 3}, \"merges\": [\"a "
         "a\"]}}",
         "merge 0"},
    };
    nbl_context *ctx = new_context();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        make_model(LLAMA, cases[i].text);
        assert_int_not_equal(export_as(ctx, NBL_EXPORT_F32, NULL, false, NULL), NBL_OK);
        if (strstr(nbl_error_message(ctx), cases[i].word) == NULL)
            fail_msg("\"%s\" does not name %s", nbl_error_message(ctx), cases[i].word);
        assert_int_equal(entries_in(temp), 1);
    }
    nbl_context_destroy(ctx);
}

/* ---- Modelfile and refusals ---- */

static void a_modelfile_stands_beside_the_model_and_neither_replaces_anything(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    make_model(LLAMA, byte_level);
    assert_ok(ctx, export_as(ctx, NBL_EXPORT_F16, NULL, true, NULL));
    size_t size;
    uint8_t *text = read_file(in_folder(temp, "Modelfile"), &size);
    text[size] = '\0';
    assert_true(strncmp((char *)text, "FROM ./out.gguf\nTEMPLATE ", 25) == 0);
    assert_non_null(strstr((char *)text, "\nPARAMETER stop \"<|end|>\"\n"));
    free(text);
    assert_int_equal(export_as(ctx, NBL_EXPORT_F32, NULL, false, NULL), NBL_ERROR_EXISTS);
    assert_int_equal(unlink(in_folder(temp, "out.gguf")), 0);
    assert_int_equal(export_as(ctx, NBL_EXPORT_F32, NULL, true, NULL), NBL_ERROR_EXISTS);
    assert_int_equal(entries_in(temp), 2);
    nbl_context_destroy(ctx);
}

static void what_a_gguf_lora_cannot_hold_is_refused_by_name(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const int kinds[] = {WITH_DORA, WITH_HEAD};
    static const char *const words[] = {"DoRA", "lm_head"};
    for (int i = 0; i < 2; i++) {
        small_adapter a;
        make_model(LLAMA, byte_level);
        assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), kinds[i], &a));
        assert_int_equal(export_as(ctx, NBL_EXPORT_DEFAULT, in_folder(temp, "adapter"), false, NULL),
                         NBL_ERROR_UNSUPPORTED);
        assert_non_null(strstr(nbl_error_message(ctx), words[i]));
        assert_int_equal(entries_in(temp), 2);
    }
    nbl_context_destroy(ctx);
}

/* More heads than rows: there is no width of a head to divide by. */
static void heads_that_do_not_divide_the_rows_of_an_adapter_are_refused(void **state)
{
    (void)state;
    nbl_context *ctx = new_context();
    static const char key[] = "\"num_attention_heads\": ";
    small_adapter a;
    size_t size;
    make_model(LLAMA, byte_level);
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), 0, &a));
    char *text = (char *)read_file(in_folder(temp, "model/config.json"), &size), made[8192];
    text[size] = '\0';
    char *at = strstr(text, key);
    assert_non_null(at);
    int length = snprintf(made, sizeof made, "%.*s%s4096%s", (int)(at - text), text, key, strchr(at, ','));
    write_file(temp, "model/config.json", made, (size_t)length);
    free(text);
    assert_int_equal(export_as(ctx, NBL_EXPORT_DEFAULT, in_folder(temp, "adapter"), false, NULL),
                     NBL_ERROR_FORMAT);
    assert_non_null(strstr(nbl_error_message(ctx), "self_attn.q_proj.weight"));
    nbl_context_destroy(ctx);
}

/* ---- faults ---- */

static nbl_status job(nbl_context *ctx, int number)
{
    return export_as(ctx, number ? NBL_EXPORT_DEFAULT : NBL_EXPORT_BF16, in_folder(temp, "adapter"), true,
                     NULL);
}

static void make_faulty_room(int number)
{
    nbl_context *ctx = new_context();
    small_adapter a;
    make_model(LLAMA, number ? byte_level : pieces);
    assert_ok(ctx, write_adapter(ctx, in_folder(temp, "adapter"), 0, &a));
    nbl_context_destroy(ctx);
}

static void the_nth_allocation_fails_and_nothing_is_lost(void **state)
{
    (void)state;
    for (int number = 0; number < 2; number++) {
        make_faulty_room(number);
        each_allocation_fails(job, number, temp, 2);
    }
}

static void the_nth_write_fails_and_nothing_is_left(void **state)
{
    (void)state;
    for (int number = 0; number < 2; number++) {
        make_faulty_room(number);
        each_write_fails(job, number, temp, 2, 8);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_upstreams_bit_for_bit),
        cmocka_unit_test(an_exported_model_reads_back_as_the_same_model),
        cmocka_unit_test(an_adapter_is_merged_on_the_way),
        cmocka_unit_test(rows_that_are_no_whole_blocks_are_f16),
        cmocka_unit_test(an_adapter_alone_keeps_its_update_in_rotary_order),
        cmocka_unit_test(a_tokenizer_gives_the_same_ids_on_the_other_side),
        cmocka_unit_test(tokenizers_without_a_form_in_gguf_are_refused_by_name),
        cmocka_unit_test(a_modelfile_stands_beside_the_model_and_neither_replaces_anything),
        cmocka_unit_test(what_a_gguf_lora_cannot_hold_is_refused_by_name),
        cmocka_unit_test(heads_that_do_not_divide_the_rows_of_an_adapter_are_refused),
        cmocka_unit_test(the_nth_allocation_fails_and_nothing_is_lost),
        cmocka_unit_test(the_nth_write_fails_and_nothing_is_left),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
