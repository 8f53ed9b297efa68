/* inspect_gguf_file.c - inspects a GGUF file: its metadata, its tensors, and a list of problems.
 *
 * Problems come from the reader (gguf.c), from the mapping to a model (gguf_model.c) and from
 * opening the tokenizer. The head of the file is read, not the weights; memory is proportional to
 * the head.
 *
 * Entries, tensors and tokens are handed out in one struct each, which the next call overwrites. So
 * the get functions allocate nothing and cannot fail. */
#include <math.h>
#include <stdio.h>

#include "base/number.h"
#include "base/utf8.h"
#include "format/gguf/gguf_model.h"
#include "base/json/json.h"

enum {
    SHOWN_BYTES = 200,
    SHOWN_VALUES = 8,
    KEY_SIZE = 160,
    VALUE_ROOM = 16384 /* fits any shown value: 8 texts of 200 bytes, 6 bytes of JSON per byte */
};

/* A text for display. Texts in files may be any bytes: invalid UTF-8 and NUL become '?', and the
 * text is cut after SHOWN_BYTES. */
typedef struct shown_text {
    char text[SHOWN_BYTES + 1];
    bool cut;
} shown_text;

/* The handle. format, type, token and value hold the texts of the last get calls. */
struct nbl_gguf {
    nbl_context *ctx;
    nbl__gguf *file;
    nbl__arena arena;
    nbl_gguf_summary summary;
    nbl_gguf_tensor tensor; /* the results of the last get calls */
    nbl_gguf_entry entry;
    nbl_gguf_special special;
    shown_text token;
    char format[32], type[32];
    nbl__text value;
};

/* ---- texts ---- */

/* Copies a text for display: see shown_text. A character is never cut in two. */
static void show(const char *at, size_t size, shown_text *shown)
{
    const char *end = at + size;
    char *to = shown->text;
    while (at < end) {
        int n = nbl__utf8_length(at, end);
        size_t step = n ? (size_t)n : 1;
        if ((size_t)(to - shown->text) + step > SHOWN_BYTES) break;
        if (n == 0 || *at == '\0') *to++ = '?';
        else to = (char *)memcpy(to, at, step) + step;
        at += step;
    }
    *to = '\0';
    shown->cut = at < end;
}

/* *to: the text of a key, for display; unchanged if the file has no such text. */
static nbl_status take_text(nbl_gguf *g, const char *key, const char **to)
{
    const nbl__gguf_entry *entry = nbl__gguf_find(g->file, key);
    const char *text;
    size_t size;
    shown_text shown;
    if (entry == NULL || entry->type != NBL_GGUF_STRING || !nbl__gguf_string(entry, 0, &text, &size))
        return NBL_OK;
    show(text, size, &shown);
    *to = nbl__arena_strdup(&g->arena, shown.text);
    return *to ? NBL_OK : NBL_ERROR_MEMORY;
}

/* ---- values ---- */

/* Appends a text as JSON. True: it was cut. */
static bool add_string(nbl_gguf *g, const nbl__gguf_entry *entry, int64_t i)
{
    const char *text = "";
    size_t size = 0;
    shown_text shown;
    (void)nbl__gguf_string(entry, i, &text, &size);
    show(text, size, &shown);
    nbl__text_json(&g->value, shown.text);
    return shown.cut;
}

/* The decimal number with the fewest digits that has the same f32 value: 1e-05, not
 * 9.999999747378752e-06. */
static double shortest(double value)
{
    char digits[40];
    double found = value;
    for (int precision = 1; precision <= 9; precision++) {
        nbl__print_exponent(digits, sizeof digits, precision - 1, value);
        found = nbl__parse_double(digits, NULL);
        if ((float)found == (float)value) break;
    }
    return found;
}

/* Appends one value as JSON. True: a text was cut. */
static bool add_value(nbl_gguf *g, const nbl__gguf_entry *entry, int64_t i)
{
    double number = 0;
    int64_t integer = 0;
    if (entry->element == NBL_GGUF_STRING) return add_string(g, entry, i);
    if (entry->element == NBL_GGUF_BOOL) {
        (void)nbl__gguf_integer(entry, i, &integer);
        nbl__text_printf(&g->value, "%s", integer ? "true" : "false");
    } else if (nbl__gguf_integer(entry, i, &integer)) {
        nbl__text_printf(&g->value, "%" PRId64, integer);
    } else if (nbl__gguf_number(entry, i, &number)) {
        if (isfinite(number))
            nbl__text_real(&g->value, entry->element == NBL_GGUF_F32 ? shortest(number) : number);
        else nbl__text_printf(&g->value, "\"%s\"", isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
    }
    return false;
}

/* The names of types, as llama.cpp's gguf tools print them. */
static const char *const type_names[NBL_GGUF_TYPE_COUNT] = {
    [NBL_GGUF_U8] = "u8",         [NBL_GGUF_I8] = "i8",       [NBL_GGUF_U16] = "u16",
    [NBL_GGUF_I16] = "i16",       [NBL_GGUF_U32] = "u32",     [NBL_GGUF_I32] = "i32",
    [NBL_GGUF_F32] = "f32",       [NBL_GGUF_BOOL] = "bool",   [NBL_GGUF_U64] = "u64",
    [NBL_GGUF_STRING] = "string", [NBL_GGUF_ARRAY] = "array", [NBL_GGUF_I64] = "i64",
    [NBL_GGUF_F64] = "f64"};

const nbl_gguf_entry *nbl_gguf_get_entry(nbl_gguf *g, int64_t index)
{
    if (index < 0 || index >= g->file->entry_count) return NULL;
    const nbl__gguf_entry *entry = &g->file->entries[index];
    bool array = entry->type == NBL_GGUF_ARRAY, nested = entry->element == NBL_GGUF_ARRAY, cut = false;
    int64_t shown = nested ? 0 : nbl__min_i64(entry->count, array ? SHOWN_VALUES : 1);
    (void)snprintf(g->type, sizeof g->type, "%s%s", array ? "array of " : "", type_names[entry->element]);
    g->value.size = 0;
    if (array) nbl__text_add(&g->value, "[", 1);
    for (int64_t i = 0; i < shown; i++) {
        /* an array shows its first values only; an array of arrays shows none */
        if (i) nbl__text_add(&g->value, ", ", 2);
        cut |= add_value(g, entry, i);
    }
    if (array) nbl__text_add(&g->value, "]", 1);
    g->entry = (nbl_gguf_entry){.key = entry->key,
                                .type = g->type,
                                .count = entry->count,
                                .value = g->value.text,
                                .cut = cut || shown < entry->count};
    return &g->entry;
}

/* ---- tensors and tokens ---- */

const nbl_gguf_tensor *nbl_gguf_get_tensor(nbl_gguf *g, int64_t index)
{
    if (index < 0 || index >= g->file->tensor_count) return NULL;
    const nbl__gguf_tensor *tensor = &g->file->tensors[index];
    nbl__ggml_layout layout;
    if (nbl__ggml_layout_of((uint32_t)tensor->type, &layout))
        (void)snprintf(g->format, sizeof g->format, "%s", layout.name);
    else (void)snprintf(g->format, sizeof g->format, "type %" PRIu32, (uint32_t)tensor->type);
    g->tensor = (nbl_gguf_tensor){.name = tensor->name,
                                  .format = g->format,
                                  .rank = tensor->rank,
                                  .elements = tensor->elements,
                                  .bytes = tensor->bytes};
    memcpy(g->tensor.shape, tensor->shape, sizeof tensor->shape);
    return &g->tensor;
}

/* The special tokens of a GGUF vocabulary: the middle part of tokenizer.ggml.NAME_token_id. */
static const char *const specials[] = {"bos",       "eos",  "eot",     "eom",     "unknown",
                                       "seperator", /* its own spelling */
                                       "padding",   "mask", "fim_pre", "fim_suf", "fim_mid"};

/* Fills g->special; false: the metadata has no such token. */
static bool find_special(nbl_gguf *g, size_t which)
{
    char key[KEY_SIZE];
    int64_t id;
    const char *text;
    size_t size;
    (void)snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", specials[which]);
    if (!nbl__gguf_integer(nbl__gguf_find(g->file, key), 0, &id)) return false;
    g->special = (nbl_gguf_special){.name = specials[which], .id = id};
    if (nbl__gguf_string(nbl__gguf_find(g->file, "tokenizer.ggml.tokens"), id, &text, &size))
        show(text, size, &g->token), g->special.text = g->token.text;
    return true;
}

const nbl_gguf_special *nbl_gguf_get_special(nbl_gguf *g, int64_t index)
{
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++)
        if (find_special(g, i) && index-- == 0) return &g->special;
    return NULL;
}

const nbl_gguf_summary *nbl_gguf_get_summary(const nbl_gguf *g)
{
    return &g->summary;
}

const char *nbl_gguf_get_problem(const nbl_gguf *g, int64_t index)
{
    return index >= 0 && index < g->file->found.count ? g->file->found.list[index] : NULL;
}

/* ---- the summary ---- */

/* *size: the number of the key ARCHITECTURE.suffix; 0 if there is none. */
static void take_size(const nbl_gguf *g, const char *suffix, int64_t *size)
{
    char key[KEY_SIZE];
    (void)snprintf(key, sizeof key, "%.100s.%s", g->summary.architecture ? g->summary.architecture : "",
                   suffix);
    if (!nbl__gguf_integer(nbl__gguf_find(g->file, key), 0, size) || *size < 0) *size = 0;
}

/* Fills the summary from the metadata. Nothing here is a problem: what is missing is 0 or NULL. */
static nbl_status summarize(nbl_gguf *g)
{
    nbl_gguf_summary *s = &g->summary;
    const nbl__gguf_entry *tokens = nbl__gguf_find(g->file, "tokenizer.ggml.tokens");
    *s = (nbl_gguf_summary){.kind = "model",
                            .version = (int)g->file->version,
                            .tensors = g->file->tensor_count,
                            .entries = g->file->entry_count,
                            .file_bytes = g->file->file.size};
    NBL_TRY(take_text(g, "general.type", &s->kind));
    NBL_TRY(take_text(g, "general.architecture", &s->architecture));
    NBL_TRY(take_text(g, "general.name", &s->name));
    NBL_TRY(take_text(g, "tokenizer.ggml.model", &s->tokenizer));
    NBL_TRY(take_text(g, "tokenizer.ggml.pre", &s->pre));
    take_size(g, "block_count", &s->layers);
    take_size(g, "embedding_length", &s->hidden);
    take_size(g, "attention.head_count", &s->heads);
    take_size(g, "attention.head_count_kv", &s->kv_heads);
    take_size(g, "context_length", &s->context);
    if (tokens && tokens->element == NBL_GGUF_STRING) s->vocabulary = tokens->count;
    for (int64_t i = 0; i < g->file->entry_count; i++)
        s->chat_templates += strncmp(g->file->entries[i].key, "tokenizer.chat_template", 23) == 0 &&
                             (g->file->entries[i].key[23] == '\0' || g->file->entries[i].key[23] == '.') &&
                             g->file->entries[i].type == NBL_GGUF_STRING;
    for (int64_t i = 0; i < g->file->tensor_count;
         i++) { /* the sums saturate, as a hostile file may overflow them */
        if (__builtin_add_overflow(s->parameters, g->file->tensors[i].elements, &s->parameters))
            s->parameters = INT64_MAX;
        if (!nbl__add_u64(s->bytes, g->file->tensors[i].bytes, &s->bytes)) s->bytes = UINT64_MAX;
    }
    return NBL_OK;
}

/* ---- problems ---- */

/* Lists special tokens whose id is not in the vocabulary. */
static nbl_status check_specials(nbl_gguf *g)
{
    nbl__gguf *f = g->file;
    for (size_t i = 0; i < sizeof specials / sizeof *specials; i++) {
        if (!find_special(g, i) || (g->special.id >= 0 && g->special.id < g->summary.vocabulary)) continue;
        nbl_status status = nbl__fail(g->ctx, NBL_ERROR_FORMAT,
                                      "%s: key \"tokenizer.ggml.%s_token_id\": %" PRId64
                                      " is no token of the vocabulary of %" PRId64,
                                      f->path, specials[i], g->special.id, g->summary.vocabulary);
        NBL_TRY(nbl__problem_collect(f->problems, status));
    }
    return NBL_OK;
}

/* Lists everything that keeps the file from running as a model. Files of another kind (adapters)
 * are not checked. */
static nbl_status check_model(nbl_gguf *g)
{
    nbl__gguf *f = g->file;
    nbl_tokenizer *tokenizer = NULL;
    bool whole = f->problems->count == 0; /* else opening the tokenizer would repeat a listed problem */
    if (strcmp(g->summary.kind, "model") != 0) return NBL_OK;
    int64_t parts = 1;
    const nbl__gguf_entry *split = nbl__gguf_find(f, "split.count");
    if (split && nbl__gguf_integer(split, 0, &parts) && parts > 1) {
        nbl_status status = nbl__fail(
            g->ctx, NBL_ERROR_UNSUPPORTED,
            "%s: one of %" PRId64 " parts of a model; join them with llama.cpp's llama-gguf-split --merge",
            f->path, parts);
        return nbl__problem_collect(f->problems, status);
    }
    if (f->tensor_count || whole) NBL_TRY(nbl__gguf_model_check(f));
    NBL_TRY(check_specials(g));
    if (!whole) return NBL_OK;
    nbl_status status = nbl_tokenizer_open(g->ctx, f->path, &tokenizer);
    nbl_tokenizer_close(tokenizer);
    return nbl__problem_collect(f->problems, status);
}

nbl_status nbl_gguf_open(nbl_context *ctx, const char *path, nbl_gguf **gguf)
{
    nbl_gguf *g;
    nbl_status status;
    NBL_CHECK(ctx, path && gguf, NBL_ERROR_ARGUMENT, "nbl_gguf_open: a NULL argument");
    *gguf = NULL;
    NBL_TRY(NBL_ALLOC(ctx, g, 1));
    g->ctx = g->value.ctx = ctx;
    g->arena = nbl__arena_make(ctx);
    for (int i = 0; i < VALUE_ROOM; i++)
        nbl__text_add(&g->value, " ", 1); /* reserve once, so that get calls need no memory */
    NBL_GO(g->value.status);
    NBL_GO(nbl__gguf_inspect(ctx, path, &g->file));
    NBL_GO(summarize(g));
    NBL_GO(check_model(g));
    g->summary.problems = g->file->found.count;
    *gguf = g;
    return NBL_OK;
done:
    nbl_gguf_close(g);
    return status;
}

void nbl_gguf_close(nbl_gguf *g)
{
    if (g == NULL) return;
    nbl_context *ctx = g->ctx;
    nbl__gguf_close(g->file);
    nbl__text_free(&g->value);
    nbl__arena_free(&g->arena);
    nbl__free(ctx, g, sizeof *g);
}
