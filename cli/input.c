/* input.c - reads whole files that the command line names. Both functions print their own
 * errors. */
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
        /* read until a short read; the block doubles, up to LARGEST_INPUT bytes */
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
    if (!cli_read_file(call, path, &all)) return false;
    /* The ids become int32_t lists. The first wrong entry ends the reading and is named in the
     * error. */
    cli_json_document document = cli_json_read(all);
    const char *wrong = document.wrong                     ? document.wrong
                        : cli_json_is_array(document.root) ? NULL
                                                           : "not a list of lists of token ids";
    ids->count = wrong ? 0 : cli_json_count(document.root);
    ids->lists = cli_alloc((size_t)(ids->count + 1) * sizeof *ids->lists);
    for (int64_t i = 0; i < ids->count && wrong == NULL; i++) {
        const cli_json *list = cli_json_item(document.root, i);
        int64_t count = cli_json_count(list);
        if (!cli_json_is_array(list)) wrong = cli_format("sequence %" PRId64 " is not a list", i);
        ids->lists[i] = (nbl_ids){cli_alloc((size_t)(count + 1) * sizeof(int32_t)), count};
        for (int64_t k = 0; k < count && wrong == NULL; k++) {
            int64_t id;
            if (!cli_json_is_integer(cli_json_item(list, k), &id))
                wrong = cli_format("sequence %" PRId64 ": entry %" PRId64 " is not a token id", i, k);
            else if (id < min || id > max)
                wrong = cli_format("sequence %" PRId64 ": entry %" PRId64 " is %" PRId64 ", not a token id",
                                   i, k, id);
            else
                ids->lists[i].ids[k] = id > INT32_MAX ? INT32_MAX
                                                      : (int32_t)id; /* out of range: no token has this id */
        }
    }
    if (wrong) cli_error(call, NBL_ERROR_FORMAT, NULL, "%s: %s", path, wrong);
    cli_json_forget(&document);
    return wrong == NULL;
}
