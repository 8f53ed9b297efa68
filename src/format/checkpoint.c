/* checkpoint.c - opens a checkpoint: which files there are, what the config says, what they hold. */
#include "format/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#include "format/index.h"

enum { INDEX_LIMIT = 256 << 20 };

nbl_status nbl__checkpoint_problem(nbl_checkpoint *c, nbl_status status)
{
    bool of_the_file = status == NBL_ERROR_FORMAT || status == NBL_ERROR_NOT_FOUND || status == NBL_ERROR_UNSUPPORTED ||
                       status == NBL_ERROR_SHAPE || status == NBL_ERROR_DTYPE;
    if (c->mode != NBL_OPEN_TOLERANT || !of_the_file) return status;
    const char *message = nbl__arena_strdup(&c->arena, nbl_error_message(c->ctx));
    return message ? nbl__names_add(c, &c->problems, message) : NBL_ERROR_MEMORY;
}

nbl_status nbl__names_add(nbl_checkpoint *c, struct nbl__names *names, const char *name)
{
    if (names->count == names->capacity) {
        int64_t capacity = names->capacity ? names->capacity * 2 : 16;
        const char **list = nbl__arena_alloc(&c->arena, (size_t)capacity * sizeof *list);
        if (list == NULL) return NBL_ERROR_MEMORY;
        if (names->count) memcpy(list, names->list, (size_t)names->count * sizeof *list);
        names->list = list;
        names->capacity = capacity;
    }
    names->list[names->count++] = name;
    return NBL_OK;
}

static char *path_of(nbl_checkpoint *c, const char *file)
{
    return nbl__arena_printf(&c->arena, "%s/%s", c->path, file);
}

/* ---- which files ---- */

/* The only .safetensors file of a folder that has neither model.safetensors nor an index. */
static nbl_status only_weight_file(nbl_checkpoint *c, const char **name)
{
    DIR *folder = opendir(c->path);
    if (folder == NULL) return nbl__fail_errno(c->ctx, errno, "%s", c->path);
    nbl_status status = NBL_OK;
    int found = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!nbl__ends_with(entry->d_name, ".safetensors")) continue;
        if (found++ == 0 && (*name = nbl__arena_strdup(&c->arena, entry->d_name)) == NULL) status = NBL_ERROR_MEMORY;
    }
    closedir(folder);
    NBL_TRY(status);
    NBL_CHECK(c->ctx, found > 0, NBL_ERROR_NOT_FOUND, "%s: no .safetensors file here", c->path);
    NBL_CHECK(c->ctx, found == 1, NBL_ERROR_FORMAT, "%s: %d .safetensors files and no model.safetensors.index.json",
              c->path, found);
    return NBL_OK;
}

/* As transformers chooses: model.safetensors, else the index, else (ours) the only one. */
static nbl_status find_files(nbl_checkpoint *c, nbl__index *index, const char ***names, int *count)
{
    static const char *single = "model.safetensors";
    const char *whole = path_of(c, single), *list = path_of(c, "model.safetensors.index.json");
    *names = nbl__arena_alloc(&c->arena, sizeof **names);
    if (whole == NULL || list == NULL || *names == NULL) return NBL_ERROR_MEMORY;
    *count = 1;
    (*names)[0] = single;
    if (nbl__exists(whole)) return NBL_OK;
    if (!nbl__exists(list)) return only_weight_file(c, &(*names)[0]);

    char *text;
    size_t size = 0;
    NBL_TRY(nbl__file_read(c->ctx, list, INDEX_LIMIT, &text, &size));
    nbl_status status = nbl__index_parse(&c->arena, list, text, size, index);
    nbl__free(c->ctx, text, size + 1);
    NBL_TRY(status);
    *names = index->files;
    *count = index->count;
    return NBL_OK;
}

/* ---- what they hold ---- */

static nbl_status map_files(nbl_checkpoint *c, const char *const *names, int count)
{
    nbl__stored **parts = nbl__arena_alloc(&c->arena, (size_t)count * sizeof *parts);
    int64_t *counts = nbl__arena_alloc(&c->arena, (size_t)count * sizeof *counts);
    c->files = nbl__arena_alloc(&c->arena, (size_t)count * sizeof *c->files);
    if (parts == NULL || counts == NULL || c->files == NULL) return NBL_ERROR_MEMORY;
    int64_t total = 0;
    for (int i = 0; i < count; i++) {
        const char *path = c->is_folder ? path_of(c, names[i]) : c->path;
        if (path == NULL) return NBL_ERROR_MEMORY;
        NBL_TRY(nbl__file_map(c->ctx, path, &c->files[i]));
        c->file_count++;
        NBL_TRY(nbl__safetensors_parse(&c->arena, names[i], c->files[i].data, c->files[i].size, &parts[i], &counts[i]));
        total += counts[i];
    }
    c->stored = nbl__arena_alloc(&c->arena, (size_t)(total + 1) * sizeof *c->stored);
    if (c->stored == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < count; i++)
        for (int64_t j = 0; j < counts[i]; j++) c->stored[c->stored_count++] = parts[i][j];
    return NBL_OK;
}

/* The index must say exactly what the files hold. */
static nbl_status check_index(nbl_checkpoint *c, const nbl__index *index)
{
    for (int64_t i = 0; i < c->stored_count; i++) {
        const nbl__stored *s = &c->stored[i];
        const char *file = nbl__json_text(index->map, s->name);
        NBL_CHECK(c->ctx, file, NBL_ERROR_FORMAT, "%s: tensor \"%s\" is not in the index", s->file, s->name);
        NBL_CHECK(c->ctx, strcmp(file, s->file) == 0, NBL_ERROR_FORMAT,
                  "the index places tensor \"%s\" in %s, it is in %s", s->name, file, s->file);
    }
    if (c->stored_count == index->map->count) return NBL_OK;
    for (int64_t k = 0; k < index->map->count; k++) { /* some name is in no file: say which */
        const nbl__json *entry = &index->map->items[k];
        bool found = false;
        for (int64_t i = 0; i < c->stored_count && !found; i++) found = strcmp(c->stored[i].name, entry->key) == 0;
        NBL_CHECK(c->ctx, found, NBL_ERROR_FORMAT, "%s: no tensor \"%s\", which the index places there", entry->string,
                  entry->key);
    }
    return nbl__fail(c->ctx, NBL_ERROR_FORMAT, "%s: a tensor is in two files", c->path);
}

static nbl_status read_config(nbl_checkpoint *c)
{
    const char *path = path_of(c, "config.json"), *adapter = path_of(c, "adapter_config.json");
    if (path == NULL || adapter == NULL) return NBL_ERROR_MEMORY;
    if (nbl__exists(path)) return nbl__config_read(&c->arena, path, &c->config);
    if (c->mode == NBL_OPEN_TOLERANT && !nbl__exists(adapter))
        return nbl__checkpoint_problem(
            c, nbl__fail(c->ctx, NBL_ERROR_NOT_FOUND, "%s: no config.json; the architecture is unknown", c->path));
    return NBL_OK;
}

static nbl_status open_folder(nbl_checkpoint *c)
{
    nbl__index index = {0};
    const char **names;
    int count;
    NBL_TRY(nbl__checkpoint_problem(c, read_config(c)));
    nbl_status status = find_files(c, &index, &names, &count);
    if (status == NBL_OK) status = map_files(c, names, count);
    if (status == NBL_OK && index.map) status = nbl__checkpoint_problem(c, check_index(c, &index));
    return status;
}

static nbl_status open_file(nbl_checkpoint *c)
{
    NBL_CHECK(c->ctx, nbl__exists(c->path), NBL_ERROR_NOT_FOUND, "%s: no such file or folder", c->path);
    const char *slash = strrchr(c->path, '/'), *name = slash ? slash + 1 : c->path;
    return map_files(c, &name, 1);
}

nbl_status nbl_checkpoint_open(nbl_context *ctx, const char *path, nbl_open_mode mode, nbl_checkpoint **result)
{
    *result = NULL;
    nbl_checkpoint *c;
    NBL_TRY(NBL_ALLOC(ctx, c, 1));
    c->ctx = ctx;
    c->arena = nbl__arena_make(ctx);
    c->mode = mode;
    c->is_folder = nbl__is_folder(path);
    nbl_status status = NBL_ERROR_MEMORY;
    if ((c->path = nbl__arena_strdup(&c->arena, path)) == NULL) goto done;
    NBL_GO(c->is_folder ? open_folder(c) : open_file(c));
    NBL_GO(nbl__checkpoint_group(c));
    *result = c;
    return NBL_OK;
done:
    nbl_checkpoint_close(c);
    return status;
}

void nbl_checkpoint_close(nbl_checkpoint *c)
{
    if (c == NULL) return;
    for (int i = 0; i < c->file_count; i++) nbl__file_unmap(&c->files[i]);
    nbl__arena_free(&c->arena);
    nbl__free(c->ctx, c, sizeof *c);
}

/* ---- access ---- */

const nbl_checkpoint_summary *nbl_checkpoint_get_summary(const nbl_checkpoint *c)
{
    return &c->summary;
}

const nbl_tensor_info *nbl_checkpoint_get_tensor(const nbl_checkpoint *c, int64_t index)
{
    return index >= 0 && index < c->tensor_count ? &c->tensors[index] : NULL;
}

static const char *name_at(const struct nbl__names *names, int64_t index)
{
    return index >= 0 && index < names->count ? names->list[index] : NULL;
}

const char *nbl_checkpoint_get_problem(const nbl_checkpoint *c, int64_t index)
{
    return name_at(&c->problems, index);
}

const char *nbl_checkpoint_get_skipped(const nbl_checkpoint *c, int64_t index)
{
    return name_at(&c->skipped, index);
}
