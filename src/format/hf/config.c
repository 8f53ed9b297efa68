/* config.c - parses config.json and edits its text. See config.h.
 *
 * Edits work on the text, not on a parsed tree. So numbers keep their spelling, keys keep their
 * order, and values that JSON libraries reject (NaN, integers beyond 64 bits) survive. Each edit
 * parses the text first, so the scanner below may rely on valid JSON. */
#include "format/hf/config.h"

#include "base/file/file.h"
#include "format/hf/module_names.h"
#include "tensor/dtype.h"

enum { CONFIG_LIMIT = 16 << 20 };

const nbl__json *nbl__config_find(const nbl__json *root, const char *key)
{
    const nbl__json *value = nbl__json_get(root, key);
    return value ? value : nbl__json_get(nbl__json_get(root, "text_config"), key);
}

nbl_status nbl__config_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                             nbl__config *config)
{
    *config = (nbl__config){0};
    const nbl__json *root;
    NBL_TRY(nbl__json_parse(arena, where, text, size, NBL_JSON_PYTHON, &root));
    config->text = text;
    config->size = size;
    config->root = root;
    const nbl__json *architectures = nbl__json_get(root, "architectures"),
                    *quantization = nbl__json_get(root, "quantization_config");
    if (nbl__json_is(architectures, NBL_JSON_ARRAY) && architectures->count > 0 &&
        nbl__json_is(&architectures->items[0], NBL_JSON_STRING))
        config->architecture = architectures->items[0].string;
    config->model_type = nbl__json_text(root, "model_type");
    if (nbl__json_is(quantization, NBL_JSON_OBJECT)) config->quantization = quantization;
    const nbl__json *tied = nbl__config_find(root, "tie_word_embeddings");
    if (tied) config->tied = nbl__json_is(tied, NBL_JSON_TRUE) ? NBL_TIED_YES : NBL_TIED_NO;
    if (!nbl__json_natural(nbl__config_find(root, "num_hidden_layers"), &config->layers)) config->layers = 0;
    config->is_multimodal = nbl__json_is(nbl__json_get(root, "text_config"), NBL_JSON_OBJECT);
    return NBL_OK;
}

nbl_status nbl__config_read(nbl__arena *arena, const char *path, nbl__config *config)
{
    char *text;
    size_t size = 0;
    *config = (nbl__config){0};
    NBL_TRY(nbl__file_read(arena->ctx, path, CONFIG_LIMIT, &text, &size));
    char *kept = nbl__arena_alloc(arena, size + 1);
    if (kept) memcpy(kept, text, size + 1);
    nbl__free(arena->ctx, text, size + 1);
    return kept ? nbl__config_parse(arena, path, kept, size, config) : NBL_ERROR_MEMORY;
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

/* The offset behind the value that begins at `at`. Brackets are counted; strings are skipped
 * whole. */
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
    size_t key, value, end; /* offsets of the key, of the value, behind the value */
    size_t previous_end;    /* offset behind the previous member; 0 for the first */
    size_t next;            /* offset of the next key; 0 for the last */
} member;

/* The result of a scan for a key. found: the member itself. after: the first member with a greater
 * key, before which a new key is inserted. last: the last member. `end` is 0 for a member that does
 * not exist. */
typedef struct position {
    member found, after, last;
} position;

static position find_position(const char *s, const nbl__json *root, const char *key)
{
    position p = {0};
    size_t at = skip_space(s, skip_space(s, 0) + 1), previous = 0;
    for (int64_t i = 0; i < root->count;
         i++) { /* root's members have the text's order, with unescaped keys */
        member m = {.key = at, .previous_end = previous};
        m.value = skip_space(s, skip_space(s, skip_value(s, at)) + 1);
        m.end = previous = skip_value(s, m.value);
        at = skip_space(s, m.end);
        if (s[at] == ',') at = m.next = skip_space(s, at + 1);
        p.last = m;
        int order = strcmp(root->items[i].key, key);
        if (order == 0) p.found = m;
        else if (!p.after.end && order > 0) p.after = m;
    }
    return p;
}

/* Appends the text with a new member before p->after, else behind the last one. */
static void insert(const char *s, const position *p, const nbl__config_edit *edit, nbl__text *out)
{
    size_t at = p->after.end ? p->after.key : p->last.end ? p->last.end : skip_space(s, 0) + 1;
    nbl__text_add(out, s, at);
    if (!p->after.end) nbl__text_printf(out, "%s\n  ", p->last.end ? "," : "");
    nbl__text_json(out, edit->key);
    nbl__text_printf(out, ": %s%s", edit->value, p->after.end ? ",\n  " : p->last.end ? "" : "\n");
    nbl__text_add(out, s + at, strlen(s + at));
}

/* Appends the text with one edit applied: replaced, removed or inserted. */
static nbl_status apply_one(nbl__arena *arena, const char *s, const nbl__config_edit *edit, nbl__text *out)
{
    const nbl__json *root;
    NBL_TRY(nbl__json_parse(arena, "config.json", s, strlen(s), NBL_JSON_PYTHON, &root));
    position p = find_position(s, root, edit->key);
    const member *m = &p.found;
    if (m->end && edit->value) {
        nbl__text_add(out, s, m->value);
        nbl__text_add(out, edit->value, strlen(edit->value));
        nbl__text_add(out, s + m->end, strlen(s + m->end));
    } else if (m->end && m->next) { /* removed with the comma after it */
        nbl__text_add(out, s, m->key);
        nbl__text_add(out, s + m->next, strlen(s + m->next));
    } else if (m->end) { /* the last: removed with the comma before it */
        nbl__text_add(out, s, m->previous_end ? m->previous_end : m->key);
        nbl__text_add(out, s + m->end, strlen(s + m->end));
    } else if (edit->value) {
        insert(s, &p, edit, out);
    } else {
        nbl__text_add(out, s, strlen(s));
    }
    return out->status;
}

nbl_status nbl__config_apply(nbl_context *ctx, const nbl__config *config, const nbl__config_edit *edits,
                             int count, nbl__text *out)
{
    nbl__text now = {.ctx = ctx};
    nbl__text_add(&now, config->text, config->size);
    nbl_status status = now.status;
    for (int i = 0; i < count && status == NBL_OK; i++) {
        nbl__arena arena = nbl__arena_make(ctx);
        nbl__text next = {.ctx = ctx};
        status = apply_one(&arena, now.text, &edits[i], &next);
        nbl__arena_free(&arena);
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
    nbl__text_printf(
        out,
        "{\n    \"_load_in_4bit\": %s,\n    \"_load_in_8bit\": %s,\n"
        "    \"bnb_4bit_compute_dtype\": \"%s\",\n    \"bnb_4bit_quant_storage\": \"uint8\",\n"
        "    \"bnb_4bit_quant_type\": \"%s\",\n    \"bnb_4bit_use_double_quant\": %s,\n"
        "    \"llm_int8_enable_fp32_cpu_offload\": false,\n    \"llm_int8_has_fp16_weight\": false,\n"
        "    \"llm_int8_skip_modules\": ",
        is4, is8,
        four ? nbl__dtype_torch_name(nbl__dtype_chosen(options->compute_dtype, NBL_DTYPE_F32)) : "float32",
        four ? nbl_format_name(options->format) : "fp4", four && options->nested ? "true" : "false");
    if (skipped) print_list(out, skipped, count);
    else nbl__text_printf(out, "null");
    nbl__text_printf(
        out,
        ",\n    \"llm_int8_threshold\": 6.0,\n    \"load_in_4bit\": %s,\n    \"load_in_8bit\": %s,\n"
        "    \"quant_method\": \"bitsandbytes\"\n  }",
        is4, is8);
}

void nbl__config_print_mxfp4(nbl__text *out)
{
    static const char *const plain[] = {NBL_MODULE_LAYERS "*.self_attn", NBL_MODULE_LAYERS "*.mlp.router",
                                        NBL_MODULE_EMBEDDING, NBL_MODULE_HEAD};
    nbl__text_printf(out, "{\n    \"modules_to_not_convert\": ");
    print_list(out, plain, sizeof plain / sizeof *plain);
    nbl__text_printf(out, ",\n    \"quant_method\": \"mxfp4\"\n  }");
}
