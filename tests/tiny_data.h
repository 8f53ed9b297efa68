/* tiny_data.h - data of runs on a tiny model, for tests: its tokenizer and templates, files of rows, examples as text.
 *
 * The model has one token per byte (ids 0 ... 255), and <s> 256, </s> 257, <|im_start|> 258, <|im_end|> 259. An example is
 * written as text with what is trained in [ ]; the special tokens as ^ $ < >. */
#ifndef NBL_TEST_TINY_DATA_H
#define NBL_TEST_TINY_DATA_H

#include "support.h"

#include "base/alloc.h"
#include "data/data_parts.h"
#include "data/data_split.h"

#define TURNS                                                                                                \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\\\n' + m['content'] + '<|im_end|>' + "        \
    "'\\\\n' "                                                                                               \
    "}}{% endfor %}"
#define MARKED                                                                                               \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\\\n' }}{% if m['role'] == 'assistant' "       \
    "%}{% generation %}{{ m['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m['content'] + "     \
    "'<|im_end|>' }}{% endif %}{% endfor %}"
#define TRIMMED                                                                                              \
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + ':' + m['content'] | trim | upper + "            \
    "'<|im_end|>' }}{% endfor %}"

static char folder[64]; /* of the model and the data */

static inline void put(const char *name, const char *text)
{
    write_file(folder, name, text, strlen(text));
}

/* `strip`: <|im_end|> takes the spaces behind it, as the special tokens of Phi-3 do. */
static inline void put_tokenizer_with(bool strip)
{
    char text[16384];
    size_t n = (size_t)sprintf(text, "{\"version\": \"1.0\", \"added_tokens\": [");
    const char *special[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
    for (int i = 0; i < 4; i++)
        n += (size_t)sprintf(text + n,
                             "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
                             "\"rstrip\": %s, \"normalized\": false, \"special\": true}",
                             i ? ", " : "", 256 + i, special[i], strip && i == 3 ? "true" : "false");
    n += (size_t)sprintf(
        text + n,
        "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
        "\"trim_offsets\": true, \"use_regex\": false}, \"post_processor\": {\"type\": "
        "\"TemplateProcessing\", "
        "\"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", "
        "\"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [256], "
        "\"tokens\": [\"<s>\"]}}}, \"decoder\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, "
        "\"trim_offsets\": true, \"use_regex\": true}, \"truncation\": {\"direction\": \"Right\", "
        "\"max_length\": 5, \"strategy\": \"LongestFirst\", \"stride\": 0}, \"model\": {\"type\": \"BPE\", "
        "\"dropout\": null, \"unk_token\": null, \"continuing_subword_prefix\": null, "
        "\"end_of_word_suffix\": null, \"fuse_unk\": false, \"byte_fallback\": false, \"merges\": [], "
        "\"vocab\": {");
    for (int b = 0, other = 0; b < 256; b++) {
        bool shown = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || b >= 0xae;
        n += (size_t)sprintf(text + n, "%s\"\\u%04x\": %d", b ? ", " : "", shown ? b : 256 + other++, b);
    }
    sprintf(text + n, "}}}");
    put("tokenizer.json", text);
}

static inline void put_tokenizer(void)
{
    put_tokenizer_with(false);
}

static inline void use_template(const char *template)
{
    char text[2048];
    snprintf(text, sizeof text,
             "{\"bos_token\": \"<s>\", \"eos_token\": \"<|im_end|>\", \"chat_template\": \"%s\"}", template);
    put("tokenizer_config.json", text);
}

static inline int set_up(void **state)
{
    (void)state;
    make_temp(folder);
    put_tokenizer();
    use_template(TURNS);
    put("config.json", "{\"vocab_size\": 260}");
    return 0;
}

static inline int tear_down(void **state)
{
    (void)state;
    remove_tree(folder);
    return 0;
}

/* ---- a run ---- */

typedef struct fixture {
    nbl_context *ctx;
    nbl__dataset_config dataset;
    nbl__run_config config;
    char path[256];
    nbl__data *data;
} fixture;

static inline void prepare(fixture *f, nbl_context *ctx, const char *name, nbl__data_type type)
{
    *f = (fixture){.ctx = ctx};
    snprintf(f->path, sizeof f->path, "%s/%s", folder, name);
    f->dataset = (nbl__dataset_config){.path = f->path,
                                       .type = type,
                                       .field_messages = "messages",
                                       .field_text = "text",
                                       .property_role = "role",
                                       .property_content = "content"};
    f->config = (nbl__run_config){.file = "run.yml",
                                  .base_model = folder,
                                  .datasets = &f->dataset,
                                  .dataset_count = 1,
                                  .sequence_len = 512,
                                  .micro_batch_size = 2,
                                  .shuffle = true,
                                  .seed = 42};
}

static inline void open_data(fixture *f)
{
    assert_ok(f->ctx, nbl__data_open(f->ctx, &f->config, 260, &f->data));
}

static inline void refuse(fixture *f, const char *says)
{
    assert_int_not_equal(nbl__data_open(f->ctx, &f->config, 260, &f->data), NBL_OK);
    assert_null(f->data);
    if (strstr(nbl_error_message(f->ctx), says) == NULL)
        fail_msg("expected '%s', was told: %s", says, nbl_error_message(f->ctx));
}

static inline void close_data(fixture *f)
{
    nbl__data_close(f->data);
    f->data = NULL;
}

static inline const char *shown(fixture *f, int64_t index)
{
    static char text[4096];
    char *at = text;
    bool inside = false;
    nbl__example e;
    assert_ok(f->ctx, nbl__data_example(f->data, index, &e));
    for (int64_t i = 0; i < e.count; i++) {
        bool trained = e.labels[i] != -100;
        assert_true(!trained || e.labels[i] == e.ids[i]);
        if (trained != inside) *at++ = trained ? '[' : ']';
        inside = trained;
        *at++ = e.ids[i] < 256 ? (char)e.ids[i] : "^$<>"[e.ids[i] - 256];
    }
    if (inside) *at++ = ']';
    *at = '\0';
    return text;
}

static inline void expect(fixture *f, int64_t index, const char *want)
{
    assert_string_equal(shown(f, index), want);
}

static const char talk[] = "{\"messages\": [{\"role\": \"system\", \"content\": \"user\"}, {\"role\": "
                           "\"user\", \"content\": \"hi\"}, "
                           "{\"role\": \"assistant\", \"content\": \"assistant\"}, {\"role\": \"user\", "
                           "\"content\": \"hi\"}, {\"role\": "
                           "\"assistant\", \"content\": \"h\\u00e9\"}]}\n";

#endif
