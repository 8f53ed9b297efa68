/* chat_model.c - reads the chat templates and special tokens of a model's folder.
 *
 * The files are those that transformers reads, with the same precedence:
 *
 *     templates        1. chat_template.jinja and additional_chat_templates/NAME.jinja
 *                      2. "chat_template" in tokenizer_config.json
 *                      3. "chat_template" in chat_template.json
 *     special tokens   tokenizer_config.json, then special_tokens_map.json, which is read only if the
 *                      first has no "added_tokens_decoder"
 *
 * chat_gguf.c reads a .gguf file. */
#include <dirent.h>
#include <stdio.h>

#include "base/file/file.h"
#include "base/file/hub.h"
#include "text/template/chat_template.h"
#include "text/template/runtime/jinja_runtime.h"

enum { LARGEST_FILE = 256 << 20 };

/* Cost: linear in the number of templates; a model has one or two. An old array stays in the
 * arena. */
nbl_status nbl__chat_add_source(nbl_chat_template *t, const char *name, const char *file, nbl_string text)
{
    for (int i = 0; i < t->count; i++)
        if (strcmp(t->sources[i].name, name) == 0) { /* of two with one name the last counts */
            t->sources[i].file = file;
            t->sources[i].text = text;
            return NBL_OK;
        }
    if (t->count == t->room) {
        nbl__chat_source *grown = nbl__arena_alloc(&t->arena, (size_t)(t->room * 2 + 4) * sizeof *grown);
        if (grown == NULL) return NBL_ERROR_MEMORY;
        if (t->count) memcpy(grown, t->sources, (size_t)t->count * sizeof *grown);
        t->sources = grown;
        t->room = t->room * 2 + 4;
    }
    t->sources[t->count++] = (nbl__chat_source){.name = name, .file = file, .text = text};
    return NBL_OK;
}

/* Reads a file into the template's arena. */
static nbl_status read_text(nbl_chat_template *t, const char *path, nbl_string *text)
{
    char *data, *kept;
    size_t size;
    NBL_TRY(nbl__file_read(t->ctx, path, LARGEST_FILE, &data, &size));
    kept = nbl__arena_alloc(&t->arena, size + 1);
    if (kept && size) memcpy(kept, data, size);
    nbl__free(t->ctx, data, size + 1);
    *text = (nbl_string){kept, size};
    return kept ? NBL_OK : NBL_ERROR_MEMORY;
}

nbl_status nbl__chat_read_file(nbl_chat_template *t, const char *path, const char *name)
{
    nbl_string text;
    const char *file = nbl__arena_strdup(&t->arena, path);
    if (file == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(read_text(t, path, &text));
    return nbl__chat_add_source(t, name, file, text);
}

/* ---- JSON files ---- */

/* Reads a JSON file of the folder; *found is false if it does not exist. *value is valid as long as
 * `vm`. */
static nbl_status read_json(nbl_chat_template *t, tpl_vm *vm, const char *name, const char **path,
                            tpl_value *value, bool *found)
{
    nbl_string text;
    *path = nbl__arena_printf(&t->arena, "%s/%s", t->model, name);
    if (*path == NULL) return NBL_ERROR_MEMORY;
    *found = nbl__exists(*path);
    if (!*found) return NBL_OK;
    NBL_TRY(read_text(t, *path, &text));
    if (nbl__tpl_from_json(vm, *path, text.text, text.size, value) != NBL_OK)
        return nbl__fail(t->ctx, vm->status, "%s", vm->message);
    NBL_CHECK(t->ctx, value->type == TPL_DICT, NBL_ERROR_FORMAT, "%s: JSON, but not an object", *path);
    return NBL_OK;
}

/* Copies a string into the template's arena. */
static nbl_status keep(nbl_chat_template *t, const tpl_string *s, nbl_string *kept)
{
    char *copy = nbl__arena_alloc(&t->arena, s->size + 1);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    if (s->size) memcpy(copy, s->bytes, s->size);
    *kept = (nbl_string){copy, s->size};
    return NBL_OK;
}

/* The member of an object; NULL: there is none, or the value is no object. */
static const tpl_value *member(tpl_value object, const char *key)
{
    tpl_entry *entry = object.type == TPL_DICT ? nbl__tpl_dict_get(object.dict, key, strlen(key)) : NULL;
    return entry ? &entry->value : NULL;
}

/* ---- special tokens ---- */

nbl_status nbl__chat_add_token(nbl_chat_template *t, const char *name, nbl_string text)
{
    for (int i = 0; i < t->token_count; i++)
        if (strcmp(t->tokens[i].name, name) == 0) return t->tokens[i].text = text, NBL_OK;
    if (t->token_count == t->token_room) {
        int room = t->token_room * 2 + 8;
        struct nbl__chat_token *grown = nbl__arena_alloc(&t->arena, (size_t)room * sizeof *grown);
        if (grown == NULL) return NBL_ERROR_MEMORY;
        if (t->token_count) memcpy(grown, t->tokens, (size_t)t->token_count * sizeof *grown);
        t->tokens = grown;
        t->token_room = room;
    }
    t->tokens[t->token_count++] = (struct nbl__chat_token){name, text};
    return NBL_OK;
}

/* Adds a token. Its value is a text, or an object with the text under "content". Any other value is
 * ignored. */
static nbl_status add_token(nbl_chat_template *t, const tpl_string *name, tpl_value value)
{
    const tpl_value *content = value.type == TPL_DICT ? member(value, "content") : &value;
    nbl_string kept_name, text;
    if (content == NULL || content->type != TPL_STRING) return NBL_OK;
    NBL_TRY(keep(t, name, &kept_name));
    NBL_TRY(keep(t, content->string, &text));
    return nbl__chat_add_token(t, kept_name.text, text);
}

/* Adds the members named …_token, and the members of the groups in which a model names its own
 * tokens. */
static nbl_status add_tokens(nbl_chat_template *t, tpl_value config)
{
    static const char *const groups[] = {"extra_special_tokens", "model_specific_special_tokens"};
    for (int64_t i = 0; i < config.dict->count; i++) {
        const tpl_entry *entry = &config.dict->entries[i];
        const tpl_string *name = entry->key.string;
        if (name->size > 6 && memcmp(name->bytes + name->size - 6, "_token", 6) == 0)
            NBL_TRY(add_token(t, name, entry->value));
    }
    for (int g = 0; g < 2; g++) {
        const tpl_value *group = member(config, groups[g]);
        if (group == NULL || group->type != TPL_DICT) continue;
        for (int64_t i = 0; i < group->dict->count; i++)
            NBL_TRY(add_token(t, group->dict->entries[i].key.string, group->dict->entries[i].value));
    }
    return NBL_OK;
}

/* ---- templates ---- */

/* Adds the templates of a member "chat_template": one text, or a list of {"name", "template"}. */
static nbl_status add_templates(nbl_chat_template *t, const char *path, tpl_value value)
{
    nbl_string text, name;
    if (value.type == TPL_STRING) {
        NBL_TRY(keep(t, value.string, &text));
        return nbl__chat_add_source(t, "default", path, text);
    }
    NBL_CHECK(t->ctx, value.type == TPL_LIST, NBL_ERROR_FORMAT,
              "%s: chat_template is neither a text nor a list", path);
    for (int64_t i = 0; i < value.list->count; i++) {
        const tpl_value *named = member(value.list->items[i], "name"),
                        *body = member(value.list->items[i], "template");
        NBL_CHECK(t->ctx, named && body && named->type == TPL_STRING && body->type == TPL_STRING,
                  NBL_ERROR_FORMAT, "%s: chat_template: entry %" PRId64 " has no name or no template", path,
                  i);
        NBL_TRY(keep(t, named->string, &name));
        NBL_TRY(keep(t, body->string, &text));
        NBL_TRY(nbl__chat_add_source(t, name.text, path, text));
    }
    return NBL_OK;
}

/* Adds the files additional_chat_templates/NAME.jinja. */
static nbl_status add_folder(nbl_chat_template *t)
{
    nbl_status status = NBL_OK;
    const char *folder = nbl__arena_printf(&t->arena, "%s/additional_chat_templates", t->model);
    if (folder == NULL) return NBL_ERROR_MEMORY;
    DIR *list = opendir(folder);
    for (struct dirent *entry; list && status == NBL_OK && (entry = readdir(list));) {
        if (!nbl__ends_with(entry->d_name, ".jinja")) continue;
        char *name = nbl__arena_strdup(&t->arena, entry->d_name);
        const char *path = nbl__arena_printf(&t->arena, "%s/%s", folder, entry->d_name);
        if (name) name[strlen(name) - 6] = '\0';
        status = name && path ? nbl__chat_read_file(t, path, name) : NBL_ERROR_MEMORY;
    }
    if (list) closedir(list);
    return status;
}

/* Reads the files in transformers' order. A template that was found ends the search.
 *
 *   tokenizer_config.json      always, for the tokens; its template counts without .jinja files
 *   special_tokens_map.json    if the first has no added_tokens_decoder
 *   chat_template.json         if no template was found yet */
static nbl_status read_model(nbl_chat_template *t, tpl_vm *vm)
{
    const char *path, *file = nbl__arena_printf(&t->arena, "%s/chat_template.jinja", t->model);
    tpl_value config = tpl_none(), map;
    bool has_config, has_map, has_json;
    if (file == NULL) return NBL_ERROR_MEMORY;
    if (!nbl__is_folder(t->model))
        return nbl__hub_hint(
            t->ctx,
            nbl__fail(t->ctx, NBL_ERROR_NOT_FOUND, "%s: %s", t->model,
                      nbl__exists(t->model) ? "not a folder of a model" : "there is no such folder"),
            t->model, NBL_HUB_MODEL);
    NBL_TRY(read_json(t, vm, "tokenizer_config.json", &path, &config, &has_config));
    if (nbl__exists(file)) NBL_TRY(nbl__chat_read_file(t, file, "default"));
    NBL_TRY(add_folder(t));
    const tpl_value *template = has_config ? member(config, "chat_template") : NULL;
    if (t->count == 0 && template && template->type != TPL_NONE) NBL_TRY(add_templates(t, path, *template));
    if (has_config) NBL_TRY(add_tokens(t, config));
    if (!has_config || !member(config, "added_tokens_decoder")) {
        NBL_TRY(read_json(t, vm, "special_tokens_map.json", &path, &map, &has_map));
        if (has_map) NBL_TRY(add_tokens(t, map));
    }
    if (t->count) return NBL_OK;
    NBL_TRY(read_json(t, vm, "chat_template.json", &path, &map, &has_json));
    template = has_json ? member(map, "chat_template") : NULL;
    return template && template->type != TPL_NONE ? add_templates(t, path, *template) : NBL_OK;
}

nbl_status nbl__chat_read_model(nbl_chat_template *t)
{
    tpl_vm *vm;
    if (nbl__ends_with(t->model, ".gguf")) return nbl__chat_read_gguf(t);
    NBL_TRY(NBL_ALLOC(t->ctx, vm, 1));
    *vm = (tpl_vm){.ctx = t->ctx, .arena = nbl__arena_make(t->ctx)};
    nbl_status status = read_model(t, vm);
    nbl__arena_free(&vm->arena);
    nbl__free(t->ctx, vm, sizeof *vm);
    return status;
}
