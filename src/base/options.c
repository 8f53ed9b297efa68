/* options.c - options and results of callers that were compiled against another version of
 * nibble.h.
 *
 * Every options struct begins with struct_size, its size when the caller was compiled. New fields
 * are only ever added at the end, beyond the padding of the older struct, and zero is their
 * default. So a smaller struct is one of an older version, and a larger one is fine as long as the
 * bytes beyond the known fields are zero.
 *
 * A result struct that the library fills in for a caller works the same way round: fields that the
 * caller does not know are left out, fields that the library does not know become zero. */
#include "base/base.h"

/* Nothing beyond this is read, whatever an uninitialised struct_size says. */
enum { MAX_STRUCT_SIZE = 4096 };

void nbl_options_init(void *options, size_t size)
{
    memset(options, 0, size);
    memcpy(options, &size, sizeof size);
}

/* Says what is wrong with a struct_size; NBL_OK if nothing is. `ctx` may be NULL. */
static nbl_status check_size(nbl_context *ctx, const char *type, const char *macro, size_t size)
{
    bool possible = size >= sizeof size && size <= MAX_STRUCT_SIZE && size % sizeof size == 0;
    if (possible) return NBL_OK;
    if (ctx == NULL) return NBL_ERROR_ARGUMENT;
    if (size == 0) nbl__fail(ctx, NBL_ERROR_ARGUMENT, "%s: struct_size is 0", type);
    else nbl__fail(ctx, NBL_ERROR_ARGUMENT, "%s: struct_size is %zu, which no version of it has", type, size);
    return nbl__hint(ctx, NBL_ERROR_ARGUMENT, "begin it with %s(%s), or call %s_INIT", macro, type, macro);
}

nbl_status nbl__options_read(nbl_context *ctx, const char *type, const void *given, void *options,
                             size_t known)
{
    nbl_options_init(options, known);
    if (given == NULL) return NBL_OK;
    size_t size;
    memcpy(&size, given, sizeof size);
    NBL_TRY(check_size(ctx, type, "NBL_OPTIONS", size));
    const char *bytes = given;
    for (size_t i = known; i < size; i++) {
        if (bytes[i] == 0) continue;
        if (ctx == NULL) return NBL_ERROR_ARGUMENT;
        nbl__fail(ctx, NBL_ERROR_ARGUMENT,
                  "%s: struct_size is %zu and byte %zu is set, but this library (%s) knows %zu bytes", type,
                  size, i, nbl_version(), known);
        return nbl__hint(ctx, NBL_ERROR_ARGUMENT, "leave the newer fields zero, or use a newer libnibble");
    }
    memcpy((char *)options + sizeof size, bytes + sizeof size, (size < known ? size : known) - sizeof size);
    return NBL_OK;
}

nbl_status nbl__result_begin(nbl_context *ctx, const char *type, void *result)
{
    size_t size;
    if (result == NULL) return NBL_OK;
    memcpy(&size, result, sizeof size);
    NBL_TRY(check_size(ctx, type, "NBL_RESULT", size));
    nbl_options_init(result, size);
    return NBL_OK;
}

void nbl__result_put(void *result, const void *value, size_t known)
{
    size_t size;
    if (result == NULL) return;
    memcpy(&size, result, sizeof size);
    if (size > known) size = known;
    memcpy((char *)result + sizeof size, (const char *)value + sizeof size, size - sizeof size);
}
