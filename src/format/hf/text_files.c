/* text_files.c - copies and edits tokenizer files, templates and special tokens. See
 * text_files.h. */
#include "format/hf/text_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>

#include "base/file/file.h"

enum { LARGEST_FILE = 256 << 20 };
static const char template_file[] = "chat_template.jinja", template_json[] = "chat_template.json",
                  template_folder[] = "additional_chat_templates", settings[] = "tokenizer_config.json",
                  token_map[] = "special_tokens_map.json", generation_file[] = "generation_config.json";

/* Files of which one or two hold the tokenizer; a folder's are copied together. */
static const char *const tokenizer_names[] = {"tokenizer.json", "tekken.json", "tokenizer.model",
                                              "tiktoken.model", "vocab.json",  "merges.txt"};
static const char *const text_names[] = {"tokenizer.json", "tekken.json",       "tokenizer.model",
                                         "tiktoken.model", "vocab.json",        "merges.txt",
                                         settings,         "added_tokens.json", token_map,
                                         template_file,    template_json,       generation_file};
enum {
    NAMES = sizeof text_names / sizeof *text_names,
    TOKENIZER_NAMES = sizeof tokenizer_names / sizeof *tokenizer_names
};

bool nbl__is_text_file(const char *name)
{
    for (int i = 0; i < NAMES; i++)
        if (strcmp(name, text_names[i]) == 0) return true;
    return false;
}

/* Checks one file, if it exists, to lie in the folder. */
static nbl_status check_one(nbl_context *ctx, const char *folder, const char *name)
{
    char path[8192];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return nbl__exists(path) ? nbl__file_inside(ctx, folder, path) : NBL_OK;
}

/* Checks all files of additional_chat_templates but hidden ones. */
static nbl_status check_templates(nbl_context *ctx, const char *folder)
{
    char name[1024];
    snprintf(name, sizeof name, "%s/%s", folder, template_folder);
    DIR *list = opendir(name);
    nbl_status status = NBL_OK;
    for (struct dirent *entry; list && status == NBL_OK && (entry = readdir(list));) {
        if (entry->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", template_folder, entry->d_name);
        status = check_one(ctx, folder, name);
    }
    if (list) closedir(list);
    return status;
}

nbl_status nbl__text_files_check(nbl_context *ctx, const char *folder)
{
    if (!nbl__is_folder(folder)) return NBL_OK;
    for (int i = 0; i < NAMES; i++) NBL_TRY(check_one(ctx, folder, text_names[i]));
    NBL_TRY(check_one(ctx, folder, "config.json"));
    return check_templates(ctx, folder);
}

unsigned nbl__text_files_rights(const char *folder)
{
    unsigned rights = 0666;
    char path[8192];
    for (int i = 0; i < NAMES; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, text_names[i]);
        rights &= nbl__path_rights(path);
    }
    return rights;
}

/* The path "FOLDER/NAME" if it exists; else NULL. *status becomes NBL_ERROR_MEMORY if memory ran
 * out. */
static const char *find_file(nbl__arena *arena, const char *folder, const char *name, nbl_status *status)
{
    if (folder == NULL || *status != NBL_OK || !nbl__is_folder(folder)) return NULL;
    const char *path = nbl__arena_printf(arena, "%s/%s", folder, name);
    if (path == NULL) *status = NBL_ERROR_MEMORY;
    return path && nbl__exists(path) ? path : NULL;
}

static nbl_status has_template(nbl__arena *arena, const char *folder, bool *has)
{
    nbl_status status = NBL_OK;
    nbl__config config;
    *has = find_file(arena, folder, template_file, &status) ||
           find_file(arena, folder, template_json, &status) ||
           find_file(arena, folder, template_folder, &status);
    const char *path = find_file(arena, folder, settings, &status);
    if (*has || path == NULL || status != NBL_OK) return status;
    NBL_TRY(nbl__config_read(arena, path, &config));
    const nbl__json *template = nbl__json_get(config.root, "chat_template");
    *has = template && template->type != NBL_JSON_NULL;
    return NBL_OK;
}

nbl_status nbl__has_template(nbl_context *ctx, const char *folder, bool *has)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl_status status = has_template(&arena, folder, has);
    nbl__arena_free(&arena);
    return status;
}

/* ---- edits ---- */

static const char *json_text(nbl__arena *arena, const char *text)
{
    nbl__text out = {.ctx = arena->ctx};
    nbl__text_json(&out, text);
    const char *copy = out.status == NBL_OK ? nbl__arena_strdup(arena, out.text) : NULL;
    nbl__text_free(&out);
    return copy;
}

/* True if the JSON value is this id, or a list that contains it. */
static bool names_id(const nbl__json *value, int64_t id)
{
    int64_t found;
    if (nbl__json_natural(value, &found) && found == id) return true;
    for (int64_t i = 0; nbl__json_is(value, NBL_JSON_ARRAY) && i < value->count; i++)
        if (nbl__json_natural(&value->items[i], &found) && found == id) return true;
    return false;
}

/* Appends an id to a comma-separated list that has *count ids, and counts it. */
static void add_id(nbl__text *out, int *count, int64_t id)
{
    nbl__text_printf(out, "%s%" PRId64, (*count)++ ? ", " : "", id);
}

/* The new eos_token_id as JSON: the new eos_token first, then the old ids, then, with `turns`, the
 * ends of turns. This is the order of transformers' trainer. Old ids stay, as a model that was
 * trained with a new end may still generate the old one. *list: NULL if nothing changes. */
static nbl_status list_ends(nbl__arena *arena, const nbl__text_changes *changes, const nbl__json *ends,
                            bool turns, const char **list)
{
    nbl__text out = {.ctx = arena->ctx};
    int count = 0;
    int64_t eos = -1, other;
    bool changed = false;
    *list = NULL;
    for (int i = 0; i < changes->token_count; i++)
        if (strcmp(changes->tokens[i].name, "eos_token") == 0) eos = changes->tokens[i].id;
    if (eos >= 0 && !names_id(ends, eos)) changed = true, add_id(&out, &count, eos);
    if (nbl__json_natural(ends, &other)) add_id(&out, &count, other);
    for (int64_t i = 0; nbl__json_is(ends, NBL_JSON_ARRAY) && i < ends->count; i++)
        if (nbl__json_natural(&ends->items[i], &other)) add_id(&out, &count, other);
    for (int i = 0; turns && i < changes->turn_end_count; i++) {
        int64_t id = changes->turn_ends[i];
        bool known = id == eos || names_id(ends, id);
        for (int k = 0; k < i; k++) known |= changes->turn_ends[k] == id;
        if (!known) changed = true, add_id(&out, &count, id);
    }
    if (changed && out.status == NBL_OK)
        *list = nbl__arena_printf(arena, count > 1 ? "[%s]" : "%s", out.text);
    nbl_status status = changed && *list == NULL ? NBL_ERROR_MEMORY : NBL_OK;
    nbl__text_free(&out);
    return status;
}

int nbl__text_config_edits(nbl__arena *arena, const nbl__text_changes *changes, const nbl__json *root,
                           const nbl__json *ends, bool generation, nbl__config_edit *edits)
{
    int count = 0;
    const char *list = NULL;
    bool listed = generation || nbl__json_is(ends, NBL_JSON_ARRAY);
    if (listed && list_ends(arena, changes, ends, generation, &list) != NBL_OK) return -1;
    if (list) edits[count++] = (nbl__config_edit){"eos_token_id", list};
    for (int i = 0; i < changes->token_count; i++) {
        const struct nbl__special_token *token = &changes->tokens[i];
        if (token->id < 0 || strcmp(token->name, "unk_token") == 0) continue;
        if (listed && strcmp(token->name, "eos_token") == 0) continue;
        const char *key = nbl__arena_printf(arena, "%s_id", token->name);
        if (key == NULL) return -1;
        if (names_id(nbl__json_get(root, key), token->id)) continue;
        edits[count] = (nbl__config_edit){key, nbl__arena_printf(arena, "%" PRId64, token->id)};
        if (edits[count++].value == NULL) return -1;
    }
    return count;
}

/* Edits of special_tokens_map.json (`map`) or tokenizer_config.json: the special tokens; in the
 * latter also the template and tokenizer_class. Returns the number of edits; -1: out of memory. */
static int settings_edits(nbl__arena *arena, const nbl__text_source *source, const nbl__json *root, bool map,
                          nbl__config_edit *edits)
{
    const nbl__text_changes *changes = &source->changes;
    int count = 0;
    for (int i = 0; i < changes->token_count; i++) {
        edits[count] = (nbl__config_edit){changes->tokens[i].name, json_text(arena, changes->tokens[i].text)};
        if (edits[count++].value == NULL) return -1;
    }
    if (map) return count;
    if (changes->chat_template.text && nbl__json_get(root, "chat_template"))
        edits[count++] = (nbl__config_edit){"chat_template", NULL};
    if (source->alone && nbl__json_get(root, "tokenizer_class") == NULL)
        edits[count++] = (nbl__config_edit){"tokenizer_class", "\"PreTrainedTokenizerFast\""};
    return count;
}

/* *ends: eos_token_id of generation_config.json, else of the model's config.json, else NULL. */
static nbl_status find_ends(nbl__arena *arena, const char *folder, const nbl__json *generation,
                            const nbl__json **ends)
{
    nbl__config config;
    nbl_status status = NBL_OK;
    *ends = nbl__json_get(generation, "eos_token_id");
    if (*ends && (*ends)->type != NBL_JSON_NULL) return NBL_OK;
    const char *path = find_file(arena, folder, "config.json", &status);
    if (path == NULL) return status;
    NBL_TRY(nbl__config_read(arena, path, &config));
    *ends = nbl__config_find(config.root, "eos_token_id");
    return NBL_OK;
}

/* Writes a JSON file with its edits. path NULL: the source has no such file, and the result has
 * only the edited keys. The result gets the source's permissions. */
static nbl_status put_edited(nbl__output *output, nbl__arena *arena, const nbl__text_source *source,
                             const char *name, const char *path)
{
    nbl__config config;
    nbl__config_edit edits[NBL_MAX_SPECIAL_TOKENS + 2];
    const nbl__json *ends = NULL;
    bool generation = strcmp(name, generation_file) == 0;
    NBL_TRY(path ? nbl__config_read(arena, path, &config) : nbl__config_parse(arena, name, "{}", 2, &config));
    NBL_CHECK(arena->ctx, nbl__json_is(config.root, NBL_JSON_OBJECT), NBL_ERROR_FORMAT,
              "%s: JSON, but not an object", path);
    if (generation) NBL_TRY(find_ends(arena, source->folder, config.root, &ends));
    int count = generation ? nbl__text_config_edits(arena, &source->changes, config.root, ends, true, edits)
                           : settings_edits(arena, source, config.root, strcmp(name, token_map) == 0, edits);
    if (count < 0) return NBL_ERROR_MEMORY;
    if (path == NULL && count == 0) return NBL_OK;
    nbl__text text = {.ctx = arena->ctx};
    nbl_status status = nbl__config_apply(arena->ctx, &config, edits, count, &text);
    if (status == NBL_OK) status = text.status;
    output->rights = path ? nbl__path_rights(path) : 0666;
    if (status == NBL_OK) status = nbl__output_put(output, name, text.text, text.size);
    output->rights = 0666;
    nbl__text_free(&text);
    return status;
}

static nbl_status put_copy(nbl__output *output, const char *name, const char *path)
{
    char *text;
    size_t size;
    NBL_TRY(nbl__file_read(output->ctx, path, LARGEST_FILE, &text, &size));
    output->rights = nbl__path_rights(path);
    nbl_status status = nbl__output_put(output, name, text, size);
    output->rights = 0666;
    nbl__free(output->ctx, text, size + 1);
    return status;
}

/* ---- templates ---- */

static nbl_status put_template_folder(nbl__output *output, nbl__arena *arena, const char *folder)
{
    DIR *list = opendir(folder);
    if (list == NULL) return nbl__fail_errno(output->ctx, errno, "%s", folder);
    nbl_status status = nbl__output_subfolder(output, template_folder);
    for (struct dirent *entry; status == NBL_OK && (entry = readdir(list));) {
        if (!nbl__ends_with(entry->d_name, ".jinja")) continue;
        const char *name = nbl__arena_printf(arena, "%s/%s", template_folder, entry->d_name),
                   *path = nbl__arena_printf(arena, "%s/%s", folder, entry->d_name);
        status = name && path ? put_copy(output, name, path) : NBL_ERROR_MEMORY;
    }
    closedir(list);
    return status;
}

/* Writes the changed template; else copies the adapter's templates; else the model's. */
static nbl_status put_templates(nbl__output *output, nbl__arena *arena, const nbl__text_source *source)
{
    nbl_string own = source->changes.chat_template;
    nbl_status status = NBL_OK;
    bool adapted = false;
    if (own.text) return nbl__output_put(output, template_file, own.text, own.size);
    if (source->adapter) NBL_TRY(has_template(arena, source->adapter, &adapted));
    const char *folder = adapted ? source->adapter : source->folder,
               *names[] = {template_file, template_json};
    for (int i = 0; i < 2; i++) {
        const char *path = find_file(arena, folder, names[i], &status);
        if (path) NBL_TRY(put_copy(output, names[i], path));
    }
    const char *more = find_file(arena, folder, template_folder, &status);
    NBL_TRY(status);
    return more && nbl__is_folder(more) ? put_template_folder(output, arena, more) : NBL_OK;
}

/* Copies the tokenizer's files: the adapter's if it has any, else the model's. A result without
 * config.json gets tokenizer.json alone: the other files mean another tokenizer where model_type is not
 * known. */
static nbl_status put_tokenizer(nbl__output *output, nbl__arena *arena, const nbl__text_source *source)
{
    const char *folders[] = {source->adapter, source->folder};
    nbl_status status = NBL_OK;
    bool found = false;
    for (int k = 0; k < 2 && !found; k++)
        for (int i = 0; i < (source->alone ? 1 : TOKENIZER_NAMES); i++) {
            const char *path = find_file(arena, folders[k], tokenizer_names[i], &status);
            NBL_TRY(status);
            found |= path != NULL;
            if (path) NBL_TRY(put_copy(output, tokenizer_names[i], path));
        }
    return NBL_OK;
}

/* Copies or edits each file, from the adapter if it has the file, else from the model. */
static nbl_status put_all(nbl__output *output, nbl__arena *arena, const nbl__text_source *source)
{
    static const char added[] = "added_tokens.json";
    static const char *const edited[] = {settings, token_map, generation_file};
    nbl_status status = NBL_OK;
    NBL_TRY(put_tokenizer(output, arena, source));
    const char *kept = find_file(arena, source->adapter, added, &status);
    if (kept == NULL) kept = find_file(arena, source->folder, added, &status);
    NBL_TRY(status);
    if (kept) NBL_TRY(put_copy(output, added, kept));
    for (int i = 0; i < 3; i++) {
        const char *path = find_file(arena, source->adapter, edited[i], &status);
        if (path == NULL) path = find_file(arena, source->folder, edited[i], &status);
        NBL_TRY(status);
        bool changed = source->changes.token_count ||
                       (edited[i] == generation_file && source->changes.turn_end_count);
        if (path == NULL && (edited[i] == token_map || !changed)) continue;
        NBL_TRY(put_edited(output, arena, source, edited[i], path));
    }
    return put_templates(output, arena, source);
}

nbl_status nbl__text_files_put(nbl__output *output, const nbl__text_source *source)
{
    nbl__arena arena = nbl__arena_make(output->ctx);
    nbl_status status = put_all(output, &arena, source);
    nbl__arena_free(&arena);
    return status;
}
