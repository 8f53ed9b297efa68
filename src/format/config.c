/* config.c - see config.h.
 *
 * Edits work on the text, not on a parsed tree: numbers keep their spelling, keys their order, and
 * what JSON libraries dislike (NaN, integers beyond 64 bits) passes through. The text was parsed
 * before, so the scanner below may rely on its grammar. */
#include "format/config.h"

#include "base/file.h"
#include "tensor/dtype.h"

enum { CONFIG_LIMIT = 64 << 20 };

static const json_t *find(const json_t *root, const char *key)
{
    const json_t *value = json_object_get(root, key);
    if (value == NULL) value = json_object_get(json_object_get(root, "text_config"), key);
    return value;
}

nbl_status nbl__config_parse(nbl_context *ctx, const char *where, const char *text, size_t size,
                             nbl__config *config)
{
    *config = (nbl__config){0};
    NBL_TRY(nbl__json_object_python(ctx, where, text, size, &config->root));
    const json_t *root = config->root;
    config->architecture = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    config->model_type = nbl__json_text(root, "model_type");
    const json_t *quantization = json_object_get(root, "quantization_config");
    if (json_is_object(quantization)) config->quantization = quantization;
    config->tied = json_is_true(find(root, "tie_word_embeddings"));
    return NBL_OK;
}

nbl_status nbl__config_read(nbl_context *ctx, const char *path, nbl__config *config)
{
    char *text;
    size_t size;
    *config = (nbl__config){0};
    NBL_TRY(nbl__file_read(ctx, path, CONFIG_LIMIT, &text, &size));
    nbl_status status = nbl__config_parse(ctx, path, text, size, config);
    if (status != NBL_OK) {
        nbl__free(ctx, text, size + 1);
        return status;
    }
    config->text = text;
    config->size = size;
    return NBL_OK;
}

void nbl__config_free(nbl_context *ctx, nbl__config *config)
{
    json_decref(config->root);
    nbl__free(ctx, config->text, config->size + 1);
    *config = (nbl__config){0};
}

const char *nbl__config_method(const nbl__config *config)
{
    if (config->quantization == NULL) return NULL;
    const char *method = nbl__json_text(config->quantization, "quant_method");
    return method ? method : "bitsandbytes"; /* folders of before 2023 do not name it */
}

/* ---- edits ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static size_t skip_space(const char *s, size_t at)
{
    while (is_space(s[at])) at++;
    return at;
}

/* The end of the value that begins at `at`. */
static size_t skip_value(const char *s, size_t at)
{
    int depth = 0;
    do {
        if (s[at] == '"') {
            for (at++; s[at] != '"'; at++) at += s[at] == '\\';
            at++;
        } else if (s[at] == '{' || s[at] == '[') {
            depth++, at++;
        } else if (s[at] == '}' || s[at] == ']') {
            depth--, at++;
        } else if (depth > 0 && (s[at] == ',' || s[at] == ':' || is_space(s[at]))) {
            at++;
        } else {
            while (s[at] && !is_space(s[at]) && strchr(",:]}[{\"", s[at]) == NULL) at++;
        }
    } while (depth > 0);
    return at;
}

typedef struct member {
    size_t key, value, end; /* where the key begins, the value begins, the value ends */
    size_t previous_end;    /* where the member before ends; 0 for the first */
    size_t next;            /* where the next key begins; 0 for the last */
} member;

/* Finds a top-level member by its key (written without escapes); tells the last one besides. */
static bool find_member(const char *s, const char *key, member *found, member *last)
{
    bool have = false;
    *last = (member){0};
    size_t at = skip_space(s, skip_space(s, 0) + 1);
    for (size_t previous = 0; s[at] == '"';) {
        member m = {.key = at, .previous_end = previous};
        size_t key_end = skip_value(s, at);
        m.value = skip_space(s, skip_space(s, key_end) + 1);
        m.end = previous = skip_value(s, m.value);
        at = skip_space(s, m.end);
        if (s[at] == ',') at = m.next = skip_space(s, at + 1);
        *last = m;
        if (key_end - m.key - 2 == strlen(key) && memcmp(s + m.key + 1, key, strlen(key)) == 0) {
            *found = m;
            have = true;
        }
    }
    return have;
}

static nbl_status apply_one(nbl_context *ctx, const char *s, const nbl__config_edit *edit, nbl__text *out)
{
    member m, last;
    if (find_member(s, edit->key, &m, &last)) {
        if (edit->value) {
            nbl__text_add(out, s, m.value);
            nbl__text_add(out, edit->value, strlen(edit->value));
            nbl__text_add(out, s + m.end, strlen(s + m.end));
        } else if (m.next) { /* with the comma after it */
            nbl__text_add(out, s, m.key);
            nbl__text_add(out, s + m.next, strlen(s + m.next));
        } else { /* the last: with the comma before it */
            nbl__text_add(out, s, m.previous_end ? m.previous_end : m.key);
            nbl__text_add(out, s + m.end, strlen(s + m.end));
        }
    } else if (edit->value) {
        size_t at = last.end ? last.end : skip_space(s, 0) + 1;
        nbl__text_add(out, s, at);
        nbl__text_printf(out, "%s\n  ", last.end ? "," : "");
        nbl__text_json(out, edit->key);
        nbl__text_printf(out, ": %s%s", edit->value, last.end ? "" : "\n");
        nbl__text_add(out, s + at, strlen(s + at));
    } else {
        nbl__text_add(out, s, strlen(s));
    }
    (void)ctx;
    return out->status;
}

nbl_status nbl__config_apply(nbl_context *ctx, const nbl__config *config, const nbl__config_edit *edits,
                             int count, nbl__text *out)
{
    nbl__text now = {.ctx = ctx};
    nbl__text_add(&now, config->text, config->size);
    nbl_status status = now.status;
    for (int i = 0; i < count && status == NBL_OK; i++) {
        nbl__text next = {.ctx = ctx};
        status = apply_one(ctx, now.text, &edits[i], &next);
        nbl__text_free(&now);
        now = next;
    }
    if (status == NBL_OK) {
        nbl__text_add(out, now.text, now.size);
        status = out->status;
    }
    nbl__text_free(&now);
    return status;
}

/* ---- quantization_config ---- */

static void print_list(nbl__text *out, const char *const *names, int64_t count)
{
    nbl__text_add(out, "[", 1);
    for (int64_t i = 0; i < count; i++) {
        nbl__text_printf(out, "%s\n      ", i ? "," : "");
        nbl__text_json(out, names[i]);
    }
    nbl__text_printf(out, count ? "\n    ]" : "]");
}

void nbl__config_print_bitsandbytes(nbl__text *out, const nbl_quantize_options *options,
                                    const char *const *skipped, int64_t count)
{
    bool four = options->format != NBL_FORMAT_INT8;
    const char *is4 = four ? "true" : "false", *is8 = four ? "false" : "true";
    nbl__text_printf(out,
                     "{\n    \"_load_in_4bit\": %s,\n    \"_load_in_8bit\": %s,\n"
                     "    \"bnb_4bit_compute_dtype\": \"%s\",\n    \"bnb_4bit_quant_storage\": \"uint8\",\n"
                     "    \"bnb_4bit_quant_type\": \"%s\",\n    \"bnb_4bit_use_double_quant\": %s,\n"
                     "    \"llm_int8_enable_fp32_cpu_offload\": false,\n    \"llm_int8_has_fp16_weight\": false,\n"
                     "    \"llm_int8_skip_modules\": ",
                     is4, is8, four ? nbl__dtype_torch_name(options->compute_dtype) : "float32",
                     four ? nbl_format_name(options->format) : "fp4", four && options->nested ? "true" : "false");
    if (skipped) print_list(out, skipped, count);
    else nbl__text_printf(out, "null");
    nbl__text_printf(out,
                     ",\n    \"llm_int8_threshold\": 6.0,\n    \"load_in_4bit\": %s,\n    \"load_in_8bit\": %s,\n"
                     "    \"quant_method\": \"bitsandbytes\"\n  }",
                     is4, is8);
}

void nbl__config_print_mxfp4(nbl__text *out)
{
    static const char *const plain[] = {"model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens",
                                        "lm_head"};
    nbl__text_printf(out, "{\n    \"modules_to_not_convert\": ");
    print_list(out, plain, sizeof plain / sizeof *plain);
    nbl__text_printf(out, ",\n    \"quant_method\": \"mxfp4\"\n  }");
}
