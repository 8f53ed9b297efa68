/* tokenizer_settings.c - reads the JSON files beside a tokenizer's file; see tokenizer_settings.h.
 *
 * The rules are those of transformers 5: AutoTokenizer.from_pretrained for the class,
 * PreTrainedTokenizerBase._from_pretrained for the tokens. */
#include "text/files/tokenizer_settings.h"

#include <stdlib.h>

#include "base/file/file.h"
#include "format/hf/config.h"

static const char *const role_names[NBL_ROLES] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                  "pad_token", "cls_token", "mask_token"};

/* What a list of entries can hold. */
enum { MAX_ENTRIES = 1 << 16 };

/* The files. */
typedef struct files {
    nbl__arena *arena;
    nbl__tokenizer_settings *s;
    const char *path;               /* of tokenizer_config.json, for messages */
    const nbl__json *config, *map;  /* NULL: the file does not exist, or does not count */
    const nbl__json *added, *model; /* added_tokens.json and config.json, likewise */
} files;

/* ---- the class ---- */

static const struct {
    const char *name;
    nbl__tokenizer_class class;
} classes[] = {{"GPT2Tokenizer", NBL_TOKENIZER_GPT2},        {"CodeGenTokenizer", NBL_TOKENIZER_CODEGEN},
               {"Qwen2Tokenizer", NBL_TOKENIZER_QWEN2},      {"Qwen3_5Tokenizer", NBL_TOKENIZER_QWEN3_5},
               {"GPTNeoXTokenizer", NBL_TOKENIZER_GPT_NEOX}, {"CohereTokenizer", NBL_TOKENIZER_COHERE},
               {"LlamaTokenizer", NBL_TOKENIZER_LLAMA},      {"CodeLlamaTokenizer", NBL_TOKENIZER_LLAMA},
               {"GemmaTokenizer", NBL_TOKENIZER_GEMMA},      {"T5Tokenizer", NBL_TOKENIZER_T5}};

/* Classes that transformers has for a model_type. `rules`: they count even if the files name another
 * class, because published files name the wrong one. */
static const struct {
    const char *type;
    nbl__tokenizer_class class;
    bool rules;
} types[] = {{"mistral", NBL_TOKENIZER_OTHER, false},      {"mixtral", NBL_TOKENIZER_OTHER, false},
             {"ministral", NBL_TOKENIZER_OTHER, false},    {"ministral3", NBL_TOKENIZER_OTHER, false},
             {"mistral3", NBL_TOKENIZER_OTHER, false},     {"phi3", NBL_TOKENIZER_OTHER, true},
             {"olmo2", NBL_TOKENIZER_OTHER, false},        {"olmo3", NBL_TOKENIZER_OTHER, false},
             {"granite", NBL_TOKENIZER_OTHER, false},      {"qwen2", NBL_TOKENIZER_QWEN2, true},
             {"qwen3", NBL_TOKENIZER_QWEN2, false},        {"qwen2_moe", NBL_TOKENIZER_QWEN2, false},
             {"qwen3_moe", NBL_TOKENIZER_QWEN2, false},    {"qwen3_next", NBL_TOKENIZER_QWEN2, false},
             {"qwen3_5", NBL_TOKENIZER_QWEN3_5, true},     {"qwen3_5_text", NBL_TOKENIZER_QWEN3_5, false},
             {"qwen3_5_moe", NBL_TOKENIZER_QWEN3_5, true}, {"qwen3_5_moe_text", NBL_TOKENIZER_QWEN3_5, true},
             {"gemma", NBL_TOKENIZER_GEMMA, false},        {"gemma2", NBL_TOKENIZER_GEMMA, false},
             {"gemma3", NBL_TOKENIZER_GEMMA, false},       {"gemma3_text", NBL_TOKENIZER_GEMMA, false},
             {"phi", NBL_TOKENIZER_GPT2, false},           {"gpt2", NBL_TOKENIZER_GPT2, false},
             {"olmo", NBL_TOKENIZER_GPT_NEOX, false},      {"olmoe", NBL_TOKENIZER_GPT_NEOX, false},
             {"gpt_neox", NBL_TOKENIZER_GPT_NEOX, false},  {"cohere", NBL_TOKENIZER_COHERE, false},
             {"cohere2", NBL_TOKENIZER_COHERE, false},     {"t5", NBL_TOKENIZER_T5, false}};

/* The class of a name such as "LlamaTokenizerFast". */
static nbl__tokenizer_class class_of(const char *name)
{
    size_t size = name ? strlen(name) : 0;
    if (size > 4 && strcmp(name + size - 4, "Fast") == 0) size -= 4;
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strlen(classes[i].name) == size && memcmp(classes[i].name, name, size) == 0)
            return classes[i].class;
    return NBL_TOKENIZER_OTHER;
}

/* The class that is named counts, unless transformers has a generic class for the model's type, or a
 * class that rules. vocab.json and merges.txt have no generic form: there the named class counts
 * also against a generic one. */
static void choose_class(files *f)
{
    nbl__tokenizer_settings *s = f->s;
    const char *type = nbl__json_text(f->model, "model_type");
    s->class_name = nbl__json_text(f->config, "tokenizer_class");
    if (s->class_name == NULL) s->class_name = nbl__json_text(f->model, "tokenizer_class");
    s->class = class_of(s->class_name);
    for (size_t i = 0; type && i < sizeof types / sizeof *types; i++)
        if (strcmp(types[i].type, type) == 0 &&
            (s->class_name == NULL || types[i].rules || types[i].class == NBL_TOKENIZER_OTHER))
            s->class = types[i].class;
    s->pair_class = s->class == NBL_TOKENIZER_OTHER ? class_of(s->class_name) : s->class;
}

void nbl__role_default(nbl__tokenizer_settings *s, nbl__token_role role, const char *text)
{
    if (s->role_is_set[role] || text == NULL) return;
    s->role_is_set[role] = true;
    s->roles[role] = nbl__special_entry((nbl__slice){text, strlen(text)});
}

void nbl__class_defaults(nbl__tokenizer_settings *s, nbl__tokenizer_class class)
{
    static const char end[] = "<|endoftext|>";
    static const char *const texts[][NBL_ROLES] = {
        [NBL_TOKENIZER_GPT2] = {end, end, end},
        [NBL_TOKENIZER_CODEGEN] = {end, end, end},
        [NBL_TOKENIZER_QWEN2] = {NULL, end, end, NULL, end},
        [NBL_TOKENIZER_QWEN3_5] = {NULL, end, end, NULL, end},
        [NBL_TOKENIZER_GPT_NEOX] = {end, end, end, NULL, "<|padding|>"},
        [NBL_TOKENIZER_COHERE] = {"<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>", "<UNK>", "<SEP>", "<PAD>", "<CLS>",
                                  "<MASK_TOKEN>"},
        [NBL_TOKENIZER_LLAMA] = {"<s>", "</s>", "<unk>"},
        [NBL_TOKENIZER_GEMMA] = {"<bos>", "<eos>", "<unk>", NULL, "<pad>", NULL, "<mask>"},
        [NBL_TOKENIZER_T5] = {NULL, "</s>", "<unk>", NULL, "<pad>"}};
    for (int i = 0; i < NBL_ROLES; i++) nbl__role_default(s, (nbl__token_role)i, texts[class][i]);
}

/* ---- tokens ---- */

nbl__added_entry nbl__special_entry(nbl__slice text)
{
    return (nbl__added_entry){.text = text, .special = true};
}

bool nbl__settings_flag(const nbl__tokenizer_settings *s, const char *key, bool missing)
{
    const nbl__json *value = nbl__json_get(s->config, key);
    return value ? value->type == NBL_JSON_TRUE : missing;
}

static bool flag(const nbl__json *object, const char *key, bool missing)
{
    const nbl__json *value = nbl__json_get(object, key);
    return value ? value->type == NBL_JSON_TRUE : missing;
}

/* Reads a token: a text, or an object with flags. `special`: it is special whatever the object says.
 * Returns false for any other value. */
static bool read_entry(const nbl__json *value, bool special, nbl__added_entry *entry)
{
    const nbl__json *content = nbl__json_is(value, NBL_JSON_OBJECT) ? nbl__json_get(value, "content") : value;
    if (!nbl__json_is(content, NBL_JSON_STRING)) return false;
    *entry = nbl__special_entry((nbl__slice){content->string, (size_t)content->count});
    if (content == value) return true;
    entry->special = special || flag(value, "special", false);
    entry->normalized = flag(value, "normalized", !entry->special);
    entry->single_word = flag(value, "single_word", false);
    entry->lstrip = flag(value, "lstrip", false);
    entry->rstrip = flag(value, "rstrip", false);
    return true;
}

bool nbl__same_text(nbl__slice a, nbl__slice b)
{
    return a.size == b.size && (a.size == 0 || memcmp(a.text, b.text, a.size) == 0);
}

/* Makes room for `count` more entries. */
static nbl_status grow(files *f, nbl__entry_list *list, int64_t count)
{
    NBL_CHECK(f->arena->ctx, list->count + count <= MAX_ENTRIES, NBL_ERROR_UNSUPPORTED,
              "%s: more than %d special tokens", f->path, MAX_ENTRIES);
    if (list->count + count <= list->room) return NBL_OK;
    int64_t room = (list->count + count) * 2;
    nbl__added_entry *items = nbl__arena_alloc(f->arena, (size_t)room * sizeof *items);
    if (items == NULL) return NBL_ERROR_MEMORY;
    if (list->count) memcpy(items, list->items, (size_t)list->count * sizeof *items);
    list->items = items;
    list->room = room;
    return NBL_OK;
}

/* Appends the tokens of a list or of an object; other values and members are ignored. */
static nbl_status add_all(files *f, nbl__entry_list *list, const nbl__json *value, bool special)
{
    if (!nbl__json_is(value, NBL_JSON_ARRAY) && !nbl__json_is(value, NBL_JSON_OBJECT)) return NBL_OK;
    NBL_TRY(grow(f, list, value->count));
    for (int64_t i = 0; i < value->count; i++)
        list->count += read_entry(&value->items[i], special, &list->items[list->count]);
    return NBL_OK;
}

/* Reads the roles. A role of special_tokens_map.json replaces that of tokenizer_config.json. */
static void read_roles(files *f)
{
    for (int i = 0; i < NBL_ROLES; i++) {
        const nbl__json *value = nbl__json_get(f->map, role_names[i]);
        bool mapped = value != NULL;
        if (!mapped) value = nbl__json_get(f->config, role_names[i]);
        f->s->role_is_set[i] = value != NULL;
        if (value) (void)read_entry(value, mapped, &f->s->roles[i]);
    }
}

/* Appends the members "…_token" of a file that are no roles of every model, such as image_token. */
static nbl_status read_own_roles(files *f, const nbl__json *file)
{
    for (int64_t i = 0; file && i < file->count; i++) {
        const nbl__json *item = &file->items[i];
        bool named = item->key_size > 6 && strcmp(item->key + item->key_size - 6, "_token") == 0;
        for (int k = 0; named && k < NBL_ROLES; k++) named = strcmp(item->key, role_names[k]) != 0;
        nbl__added_entry entry;
        if (!named || !read_entry(item, false, &entry)) continue;
        NBL_TRY(grow(f, &f->s->named, 1));
        f->s->named.items[f->s->named.count++] = entry;
    }
    return NBL_OK;
}

/* Reads the further special tokens: a list, or an object of named ones. The old name of the list
 * counts if the new one is missing or empty. */
static nbl_status read_extra(files *f)
{
    nbl__tokenizer_settings *s = f->s;
    const nbl__json *extra = nbl__json_get(f->config, "extra_special_tokens"),
                    *older = nbl__json_get(f->config, "additional_special_tokens"),
                    *mapped = nbl__json_get(f->map, "extra_special_tokens");
    NBL_TRY(read_own_roles(f, f->config));
    NBL_TRY(read_own_roles(f, f->map));
    if (nbl__json_is(extra, NBL_JSON_OBJECT)) NBL_TRY(add_all(f, &s->named, extra, false));
    if (nbl__json_is(mapped, NBL_JSON_OBJECT)) NBL_TRY(add_all(f, &s->named, mapped, true));
    NBL_TRY(add_all(f, &s->named, nbl__json_get(f->config, "model_specific_special_tokens"), false));
    if (older && !(nbl__json_is(extra, NBL_JSON_ARRAY) && extra->count)) extra = older;
    s->has_extra = nbl__json_is(extra, NBL_JSON_ARRAY) || nbl__json_is(mapped, NBL_JSON_ARRAY);
    if (nbl__json_is(extra, NBL_JSON_ARRAY)) NBL_TRY(add_all(f, &s->extra, extra, false));
    if (nbl__json_is(mapped, NBL_JSON_ARRAY)) NBL_TRY(add_all(f, &s->extra, mapped, true));
    if (!s->has_extra)
        NBL_TRY(add_all(f, &s->extra, nbl__json_get(f->map, "additional_special_tokens"), true));
    return NBL_OK;
}

static int by_id(const void *a, const void *b)
{
    int64_t x = ((const nbl__added_entry *)a)->id, y = ((const nbl__added_entry *)b)->id;
    return (x > y) - (x < y);
}

/* added_tokens_decoder: an object {"32000": {"content": …}, …}. */
static nbl_status read_decoder(files *f, const nbl__json *value)
{
    nbl__entry_list *list = &f->s->decoder;
    NBL_CHECK(f->arena->ctx, value->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT,
              "%s: \"added_tokens_decoder\" is not an object", f->path);
    NBL_TRY(grow(f, list, value->count));
    for (int64_t i = 0; i < value->count; i++) {
        const nbl__json *item = &value->items[i];
        char *end;
        int64_t id = strtoll(item->key, &end, 10);
        NBL_CHECK(f->arena->ctx,
                  item->key_size > 0 && *end == '\0' && id >= 0 && id < INT32_MAX &&
                      item->type == NBL_JSON_OBJECT && read_entry(item, false, &list->items[i]),
                  NBL_ERROR_FORMAT,
                  "%s: added_tokens_decoder: \"%.40s\" is not the id of a token with content", f->path,
                  item->key);
        list->items[i].id = id;
        list->count++;
    }
    return NBL_OK;
}

/* added_tokens.json: an object {"<pad>": 32000, …}. A token that is special elsewhere is special
 * here. */
static nbl_status read_added(files *f)
{
    nbl__tokenizer_settings *s = f->s;
    if (f->added == NULL) return NBL_OK;
    NBL_TRY(grow(f, &s->decoder, f->added->count));
    for (int64_t i = 0; i < f->added->count; i++) {
        const nbl__json *item = &f->added->items[i];
        nbl__added_entry *entry = &s->decoder.items[s->decoder.count++];
        *entry = (nbl__added_entry){.text = {item->key, item->key_size}};
        NBL_CHECK(f->arena->ctx, nbl__json_natural(item, &entry->id) && entry->id < INT32_MAX,
                  NBL_ERROR_FORMAT, "%s: added_tokens.json: the id of \"%.80s\" is none", f->path, item->key);
        for (int k = 0; k < NBL_ROLES; k++)
            entry->special |= s->roles[k].text.size && nbl__same_text(s->roles[k].text, entry->text);
        for (int64_t k = 0; s->has_extra && k < s->extra.count; k++)
            entry->special |= nbl__same_text(s->extra.items[k].text, entry->text);
        entry->normalized = !entry->special;
    }
    return NBL_OK;
}

/* A role has the flags of the added token of its text. */
static void share_flags(nbl__tokenizer_settings *s)
{
    for (int k = 0; k < NBL_ROLES; k++)
        for (int64_t i = 0; s->roles[k].text.size && i < s->decoder.count; i++)
            if (nbl__same_text(s->roles[k].text, s->decoder.items[i].text)) s->roles[k] = s->decoder.items[i];
}

/* ---- the files ---- */

/* Reads a JSON file of the folder. *root: NULL if there is none. */
static nbl_status read_file(files *f, const char *folder, const char *name, const char **path,
                            const nbl__json **root)
{
    nbl__config config;
    *root = NULL;
    if ((*path = nbl__arena_printf(f->arena, "%s/%s", folder, name)) == NULL) return NBL_ERROR_MEMORY;
    if (!nbl__exists(*path)) return NBL_OK;
    NBL_TRY(nbl__config_read(f->arena, *path, &config));
    NBL_CHECK(f->arena->ctx, nbl__json_is(config.root, NBL_JSON_OBJECT), NBL_ERROR_FORMAT,
              "%s: JSON, but not an object", *path);
    *root = config.root;
    return NBL_OK;
}

nbl_status nbl__tokenizer_settings_read(nbl__arena *arena, const char *folder, nbl__tokenizer_settings *s)
{
    files f = {.arena = arena, .s = s};
    const char *path;
    *s = (nbl__tokenizer_settings){0};
    NBL_TRY(read_file(&f, folder, "config.json", &path, &f.model));
    NBL_TRY(read_file(&f, folder, "tokenizer_config.json", &f.path, &f.config));
    s->config = f.config;
    choose_class(&f);
    const nbl__json *decoder = nbl__json_get(f.config, "added_tokens_decoder");
    if (decoder == NULL) {
        NBL_TRY(read_file(&f, folder, "special_tokens_map.json", &path, &f.map));
        NBL_TRY(read_file(&f, folder, "added_tokens.json", &path, &f.added));
    }
    read_roles(&f);
    NBL_TRY(read_extra(&f));
    NBL_TRY(decoder ? read_decoder(&f, decoder) : read_added(&f));
    if (s->decoder.count) qsort(s->decoder.items, (size_t)s->decoder.count, sizeof *s->decoder.items, by_id);
    share_flags(s);
    return NBL_OK;
}
