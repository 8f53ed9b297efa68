/* checkpoint.c - opens a checkpoint: reads config.json, finds the weight files, maps and parses
 * them, compares them with the index, and groups their tensors (tensor_entries.c). */
#include "format/hf/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>

#include "format/hf/shard_index.h"

enum { INDEX_LIMIT = 128 << 20 };

nbl_status nbl__checkpoint_problem(nbl_checkpoint *c, nbl_status status)
{
    if (!nbl__is_of_the_file(status)) return status;
    if (c->mode == NBL_OPEN_TOLERANT) return nbl__problem_collect(&c->problems, status);
    const char *message = nbl__arena_strdup(&c->arena, nbl_error_message(c->ctx));
    if (message && strstr(message, c->path) == NULL) /* say which checkpoint, unless a file's name did */
        nbl__fail(c->ctx, status, "%s: %s", c->path, message);
    return status;
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
    errno = 0;
    for (struct dirent *entry; (entry = readdir(folder)); errno = 0) {
        if (!nbl__ends_with(entry->d_name, ".safetensors")) continue;
        if (found++ == 0 && (*name = nbl__arena_strdup(&c->arena, entry->d_name)) == NULL)
            status = NBL_ERROR_MEMORY;
    }
    if (errno) status = nbl__fail_errno(c->ctx, errno, "%s", c->path);
    closedir(folder);
    NBL_TRY(status);
    NBL_CHECK(c->ctx, found > 0, NBL_ERROR_NOT_FOUND, "%s: no .safetensors file here", c->path);
    NBL_CHECK(c->ctx, found == 1, NBL_ERROR_FORMAT,
              "%s: %d .safetensors files and no model.safetensors.index.json", c->path, found);
    return NBL_OK;
}

/* Finds the weight files as transformers does: model.safetensors, else the files of the index. One
 * case more than transformers: without both, the folder's only .safetensors file. `index` stays
 * empty unless it was read. */
static nbl_status find_files(nbl_checkpoint *c, nbl__arena *json, nbl__index *index, const char ***names,
                             int *count)
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
    nbl_status status = nbl__index_parse(json, list, text, size, index);
    nbl__free(c->ctx, text, size + 1);
    NBL_TRY(status);
    *count = index->count;
    *names = nbl__arena_alloc(&c->arena, (size_t)index->count * sizeof **names);
    if (*names == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < index->count; i++)
        if (((*names)[i] = nbl__arena_strdup(&c->arena, index->files[i])) == NULL) return NBL_ERROR_MEMORY;
    return NBL_OK;
}

/* ---- what they hold ---- */

/* Maps and parses the files, and concatenates their tensors in c->stored. Pages of headers are
 * dropped once they are parsed. */
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
        NBL_TRY(nbl__safetensors_parse(&c->arena, path, c->files[i].data, c->files[i].size, &parts[i],
                                       &counts[i]));
        nbl__file_drop(&c->files[i], c->files[i].data, c->files[i].size);
        for (int64_t j = 0; j < counts[i]; j++) parts[i][j].file = names[i];
        total += counts[i];
        NBL_TRY(nbl__progress_poll(c->ctx, ""));
    }
    if (count == 1) return c->stored = parts[0], c->stored_count = total, NBL_OK;
    c->stored = nbl__arena_alloc(&c->arena, (size_t)(total + 1) * sizeof *c->stored);
    if (c->stored == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < count; i++)
        for (int64_t j = 0; j < counts[i]; j++) c->stored[c->stored_count++] = parts[i][j];
    return NBL_OK;
}

/* Checks that the index and the files name the same tensors in the same files. seen:
 * [index->map->count], zeroed. */
static nbl_status check_index(nbl_checkpoint *c, const nbl__index *index, bool *seen)
{
    for (int64_t i = 0; i < c->stored_count; i++) {
        const nbl__stored *s = &c->stored[i];
        const nbl__json *entry = nbl__json_get(index->map, s->name);
        NBL_CHECK(c->ctx, entry, NBL_ERROR_FORMAT, "%s: tensor \"%s\" is not in the index", s->file, s->name);
        NBL_CHECK(c->ctx, strcmp(entry->string, s->file) == 0, NBL_ERROR_FORMAT,
                  "the index places tensor \"%s\" in %s, it is in %s", s->name, entry->string, s->file);
        seen[entry - index->map->items] = true;
    }
    for (int64_t k = 0; k < index->map->count; k++)
        NBL_CHECK(c->ctx, seen[k], NBL_ERROR_FORMAT, "%s: no tensor \"%s\", which the index places there",
                  index->map->items[k].string, index->map->items[k].key);
    return NBL_OK;
}

/* Reads config.json. A missing one is a problem only in tolerant mode, and not in an adapter's
 * folder; callers that need it check config.root. */
static nbl_status read_config(nbl_checkpoint *c)
{
    const char *path = path_of(c, "config.json"), *adapter = path_of(c, "adapter_config.json");
    if (path == NULL || adapter == NULL) return NBL_ERROR_MEMORY;
    if (nbl__exists(path)) return nbl__config_read(&c->arena, path, &c->config);
    if (c->mode == NBL_OPEN_TOLERANT && !nbl__exists(adapter))
        return nbl__checkpoint_problem(c,
                                       nbl__fail(c->ctx, NBL_ERROR_NOT_FOUND,
                                                 "%s: no config.json; the architecture is unknown", c->path));
    return NBL_OK;
}

static nbl_status open_folder(nbl_checkpoint *c)
{
    nbl__index index = {0};
    nbl__arena json = nbl__arena_make(c->ctx); /* for the parsed index */
    const char **names;
    int count;
    nbl_status status;
    NBL_GO(nbl__checkpoint_problem(c, read_config(c)));
    NBL_GO(find_files(c, &json, &index, &names, &count));
    NBL_GO(map_files(c, names, count));
    if (index.map) {
        bool *seen = nbl__arena_alloc(&json, (size_t)index.map->count);
        status = seen ? nbl__checkpoint_problem(c, check_index(c, &index, seen)) : NBL_ERROR_MEMORY;
    }
done:
    nbl__arena_free(&json);
    return status;
}

static nbl_status open_file(nbl_checkpoint *c)
{
    const char *slash = strrchr(c->path, '/'), *name = slash ? slash + 1 : c->path;
    return map_files(c, &name, 1);
}

void nbl__checkpoint_drop(const nbl_checkpoint *c, const void *begin, uint64_t size)
{
    for (int i = 0; i < c->file_count; i++) nbl__file_drop(&c->files[i], begin, size);
}

void nbl__checkpoint_drop_file(const nbl_checkpoint *c, const void *address)
{
    const uint8_t *at = address;
    for (int i = 0; i < c->file_count; i++) {
        const nbl__file *f = &c->files[i];
        if (f->data && at >= f->data && at < f->data + f->size) nbl__file_drop(f, f->data, f->size);
    }
}

nbl_status nbl_checkpoint_open(nbl_context *ctx, const char *path, nbl_open_mode mode,
                               nbl_checkpoint **result)
{
    NBL_CHECK(ctx, path && result, NBL_ERROR_ARGUMENT, "checkpoint_open: path or result is NULL");
    *result = NULL;
    NBL_CHECK(ctx, !nbl__ends_with(path, ".gguf"), NBL_ERROR_UNSUPPORTED,
              "%s: a GGUF file, which is run, trained and inspected, but not converted", path);
    nbl_checkpoint *c;
    NBL_TRY(NBL_ALLOC(ctx, c, 1));
    nbl__progress_begin(ctx, 0);
    c->ctx = ctx;
    c->arena = nbl__arena_make(ctx);
    c->problems.arena = &c->arena;
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

static const char *name_at(const char *const *list, int64_t count, int64_t index)
{
    return index >= 0 && index < count ? list[index] : NULL;
}

const char *nbl_checkpoint_get_problem(const nbl_checkpoint *c, int64_t index)
{
    return name_at(c->problems.list, c->problems.count, index);
}

const char *nbl_checkpoint_get_skipped(const nbl_checkpoint *c, int64_t index)
{
    return name_at(c->skipped.list, c->skipped.count, index);
}
