/* input.c - reads whole files that the command line names. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"

enum { LARGEST_INPUT = 1 << 30 };

bool cli_read_file(const cli_call *call, const char *path, nbl_string *text)
{
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "rb");
    size_t size = 0, room = 1 << 16;
    char *data = file ? malloc(room) : NULL;
    while (data) {
        size += fread(data + size, 1, room - size, file);
        if (size < room) break;
        char *larger = room < LARGEST_INPUT ? realloc(data, room *= 2) : NULL;
        if (larger == NULL) free(data);
        data = larger;
    }
    bool good = data && !ferror(file);
    if (!good)
        cli_error(call, file ? NBL_ERROR_IO : NBL_ERROR_NOT_FOUND, NULL, "%s: %s", path,
                  file && data == NULL ? "too large" : strerror(errno));
    if (good) {
        char *kept = cli_alloc(size + 1);
        memcpy(kept, data, size);
        *text = (nbl_string){kept, size};
    }
    free(data);
    if (file && file != stdin) fclose(file);
    return good;
}

bool cli_read_ids(const cli_call *call, const char *path, int64_t min, int64_t max, cli_ids *ids)
{
    nbl_string all;
    json_error_t why;
    if (!cli_read_file(call, path, &all)) return false;
    json_t *root = json_loadb(all.text, all.size, 0, &why);
    const char *wrong = root == NULL          ? cli_clean(why.text)
                        : json_is_array(root) ? NULL
                                              : "not a list of lists of token ids";
    ids->count = wrong ? 0 : (int64_t)json_array_size(root);
    ids->lists = cli_alloc((size_t)(ids->count + 1) * sizeof *ids->lists);
    for (int64_t i = 0; i < ids->count && wrong == NULL; i++) {
        json_t *list = json_array_get(root, (size_t)i);
        size_t size = json_array_size(list);
        if (!json_is_array(list)) wrong = cli_format("sequence %" PRId64 " is not a list", i);
        ids->lists[i] = (nbl_ids){cli_alloc((size + 1) * sizeof(int32_t)), (int64_t)size};
        for (size_t k = 0; k < size && wrong == NULL; k++) {
            json_t *item = json_array_get(list, k);
            json_int_t id = json_integer_value(item);
            if (!json_is_integer(item) || id < min || id > max)
                wrong = json_is_integer(item)
                            ? cli_format("sequence %" PRId64 ": entry %zu is %" JSON_INTEGER_FORMAT
                                         ", not a token id",
                                         i, k, id)
                            : cli_format("sequence %" PRId64 ": entry %zu is not a token id", i, k);
            else
                ids->lists[i].ids[k] = id > INT32_MAX ? INT32_MAX
                                                      : (int32_t)id; /* out of range: no token has this id */
        }
    }
    if (wrong) cli_error(call, NBL_ERROR_FORMAT, NULL, "%s: %s", path, wrong);
    json_decref(root);
    return wrong == NULL;
}
