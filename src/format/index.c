/* index.c - see index.h. File names come from a stranger: a name with a path in it is refused. */
#include "format/index.h"

#include <stdlib.h>

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static bool plain_name(const char *name)
{
    return name[0] != '\0' && strchr(name, '/') == NULL && strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

static nbl_status read_map(nbl__arena *arena, const char *where, nbl__index *index)
{
    nbl_context *ctx = arena->ctx;
    index->map = json_object_get(index->root, "weight_map");
    NBL_CHECK(ctx, json_is_object(index->map), NBL_ERROR_FORMAT, "%s: no weight_map", where);
    size_t n = json_object_size(index->map);
    NBL_CHECK(ctx, n > 0, NBL_ERROR_FORMAT, "%s: an empty weight_map", where);
    index->files = nbl__arena_alloc(arena, n * sizeof *index->files);
    const char **all = nbl__arena_alloc(arena, n * sizeof *all);
    if (index->files == NULL || all == NULL) return NBL_ERROR_MEMORY;
    const char *name;
    json_t *value;
    size_t i = 0;
    json_object_foreach(index->map, name, value)
    {
        const char *file = json_string_value(value);
        NBL_CHECK(ctx, file && plain_name(file), NBL_ERROR_FORMAT, "%s: the file of tensor \"%s\" is not a file name",
                  where, name);
        all[i++] = file;
    }
    qsort(all, n, sizeof *all, by_text);
    for (i = 0; i < n; i++) {
        if (i && strcmp(all[i], all[i - 1]) == 0) continue;
        if ((index->files[index->count++] = nbl__arena_strdup(arena, all[i])) == NULL) return NBL_ERROR_MEMORY;
    }
    return NBL_OK;
}

nbl_status nbl__index_parse(nbl__arena *arena, const char *where, const char *text, size_t size, nbl__index *index)
{
    *index = (nbl__index){0};
    NBL_TRY(nbl__json_object(arena->ctx, where, text, size, &index->root));
    nbl_status status = read_map(arena, where, index);
    if (status != NBL_OK) {
        json_decref(index->root);
        index->root = NULL;
    }
    return status;
}
