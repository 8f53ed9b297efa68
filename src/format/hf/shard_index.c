/* shard_index.c - see shard_index.h. The index is untrusted input: a file name with a path would
 * open files outside the folder, so it is an error. */
#include "format/hf/shard_index.h"

#include <stdlib.h>

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool plain_name(const char *name)
{
    return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

nbl_status nbl__index_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                            nbl__index *index)
{
    nbl_context *ctx = arena->ctx;
    const nbl__json *root;
    *index = (nbl__index){0};
    NBL_TRY(nbl__json_parse(arena, where, text, size, NBL_JSON_STRICT, &root));
    const nbl__json *map = index->map = nbl__json_get(root, "weight_map");
    NBL_CHECK(ctx, nbl__json_is(map, NBL_JSON_OBJECT), NBL_ERROR_FORMAT, "%s: no weight_map", where);
    NBL_CHECK(ctx, map->count > 0, NBL_ERROR_FORMAT, "%s: an empty weight_map", where);
    const char **files = index->files = nbl__arena_alloc(arena, (size_t)map->count * sizeof *files);
    if (files == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < map->count; i++) {
        const nbl__json *entry = &map->items[i];
        NBL_CHECK(ctx, nbl__json_is(entry, NBL_JSON_STRING) && plain_name(entry->string), NBL_ERROR_FORMAT,
                  "%s: the file of tensor \"%s\" is not a file name", where, entry->key);
        files[i] = entry->string;
    }
    qsort(files, (size_t)map->count, sizeof *files, by_text);
    for (int64_t i = 0; i < map->count; i++) /* each once */
        if (i == 0 || strcmp(files[i], files[index->count - 1]) != 0) files[index->count++] = files[i];
    return NBL_OK;
}
