/* input.c - files that a call of the tool names and reads whole. */
#include <errno.h>
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
