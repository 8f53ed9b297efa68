/* options.c - options structs of callers that were compiled against another version of nibble.h.
 *
 * Every options struct begins with struct_size, its size when the caller was compiled. New fields
 * are only ever added at the end, and zero is their default. So a smaller struct is one of an older
 * version, and a larger one is fine as long as the bytes beyond the known fields are zero. */
#include "base/base.h"

/* Nothing beyond this is read, whatever an uninitialised struct_size says. */
enum { MAX_OPTIONS_SIZE = 4096 };

void nbl_options_init(void *options, size_t size)
{
    memset(options, 0, size);
    memcpy(options, &size, sizeof size);
}

/* Says what is wrong with a struct_size; NBL_OK if nothing is. `ctx` may be NULL. */
static nbl_status check_size(nbl_context *ctx, const char *type, size_t size)
{
    bool possible = size >= sizeof size && size <= MAX_OPTIONS_SIZE && size % sizeof size == 0;
    if (possible) return NBL_OK;
    if (ctx == NULL) return NBL_ERROR_ARGUMENT;
    if (size == 0) nbl__fail(ctx, NBL_ERROR_ARGUMENT, "%s: struct_size is 0", type);
    else
        nbl__fail(ctx, NBL_ERROR_ARGUMENT, "%s: struct_size is %zu, which no version of it has", type, size);
    return nbl__hint(ctx, NBL_ERROR_ARGUMENT, "begin it with NBL_OPTIONS(%s), or call NBL_OPTIONS_INIT", type);
}

nbl_status nbl__options_read(nbl_context *ctx, const char *type, const void *given, void *options,
                             size_t known)
{
    nbl_options_init(options, known);
    if (given == NULL) return NBL_OK;
    size_t size;
    memcpy(&size, given, sizeof size);
    NBL_TRY(check_size(ctx, type, size));
    const char *bytes = given;
    for (size_t i = known; i < size; i++) {
        if (bytes[i] == 0) continue;
        if (ctx == NULL) return NBL_ERROR_ARGUMENT;
        nbl__fail(ctx, NBL_ERROR_ARGUMENT,
                  "%s: struct_size is %zu and byte %zu is set, but this library (%s) knows %zu bytes", type, size,
                  i, nbl_version(), known);
        return nbl__hint(ctx, NBL_ERROR_ARGUMENT, "leave the newer fields zero, or use a newer libnibble");
    }
    memcpy((char *)options + sizeof size, bytes + sizeof size, (size < known ? size : known) - sizeof size);
    return NBL_OK;
}
