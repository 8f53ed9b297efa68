/* result_file.c - checks targets of results and writes them. See result_file.h. */
#define _GNU_SOURCE
#include "format/hf/result_file.h"

#include <errno.h>
#include <sys/stat.h>

#include "base/json/json.h"

static const char *kind_of(mode_t mode)
{
    return S_ISLNK(mode)    ? "a link"
           : S_ISDIR(mode)  ? "a folder"
           : S_ISFIFO(mode) ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
                            : "a device";
}

/* True if the file has nibble's mark. A file that cannot be read or parsed has none. */
static bool is_marked(nbl_context *ctx, const char *path)
{
    nbl__arena arena = nbl__arena_make(ctx);
    nbl__file file;
    bool marked = false;
    uint64_t length = 0;
    const nbl__json *header;
    if (nbl__file_map(ctx, path, &file) == NBL_OK && file.size >= 8) {
        for (int i = 7; i >= 0; i--) length = length << 8 | file.data[i];
        if (length <= NBL_HEADER_LIMIT && length <= file.size - 8 &&
            nbl__json_parse(&arena, path, (const char *)file.data + 8, length, NBL_JSON_STRICT, &header) ==
                NBL_OK) {
            const char *mark = nbl__json_text(nbl__json_get(header, "__metadata__"), NBL_RESULT_KEY);
            marked = mark && strcmp(mark, NBL_RESULT_VALUE) == 0;
        }
    }
    nbl__file_unmap(&file);
    nbl__arena_free(&arena);
    return marked;
}

/* True if a reader of a model or adapter would open a file of this name. */
static bool is_part(const char *name)
{
    static const char *const texts[] = {".json", ".jinja", ".model", ".txt", ".gguf"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (nbl__ends_with(name, texts[i])) return true;
    return strncmp(name, "model", strlen("model")) == 0 ||
           strncmp(name, "adapter_model", strlen("adapter_model")) == 0;
}

/* Refuses a file that would change the model in its folder: a new model.safetensors, for instance,
 * would be read instead of the shards. */
static nbl_status check_folder(nbl_context *ctx, const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    if (!is_part(name)) return NBL_OK;
    nbl__arena arena = nbl__arena_make(ctx);
    bool model = false;
    nbl_status status = NBL_OK;
    static const char *const configs[] = {"config.json", "adapter_config.json"};
    for (int i = 0; i < 2 && status == NBL_OK; i++) {
        const char *config = nbl__arena_printf(&arena, "%.*s%s", (int)(name - path), path, configs[i]);
        if (config == NULL) status = NBL_ERROR_MEMORY;
        else model |= nbl__exists(config);
    }
    nbl__arena_free(&arena);
    if (status != NBL_OK || !model) return status;
    return nbl__hint(ctx,
                     nbl__fail(ctx, NBL_ERROR_EXISTS,
                               "%s: would be read as a part of the model in that folder; nothing was written",
                               path),
                     "choose another folder or a name such as result.safetensors");
}

/* *exists: an earlier result exists and may be replaced. */
static nbl_status check(nbl_context *ctx, const char *path, bool replace, bool *exists)
{
    struct stat info;
    *exists = false;
    NBL_CHECK(ctx, path[0] != '\0', NBL_ERROR_ARGUMENT, "the target has no name");
    if (lstat(path, &info) != 0)
        return errno == ENOENT ? check_folder(ctx, path)
                               : nbl__fail_errno(ctx, errno, "%s: cannot be written here", path);
    NBL_CHECK(ctx, S_ISREG(info.st_mode), NBL_ERROR_EXISTS,
              "%s: is %s, not a regular file; it was left untouched", path, kind_of(info.st_mode));
    NBL_CHECK(ctx, !nbl__files_have(ctx, (uint64_t)info.st_dev, (uint64_t)info.st_ino), NBL_ERROR_EXISTS,
              "%s: is an input of this command; it was left untouched", path);
    if (!replace)
        return nbl__hint(ctx,
                         nbl__fail(ctx, NBL_ERROR_EXISTS, "%s: exists already; it was left untouched", path),
                         "choose another name, or replace an earlier result with --force");
    NBL_CHECK(ctx, is_marked(ctx, path), NBL_ERROR_EXISTS,
              "%s: exists already and is not a result of nibble; it was left untouched", path);
    *exists = true;
    return check_folder(ctx, path);
}

nbl_status nbl__result_file_check(nbl_context *ctx, const char *path, bool replace)
{
    bool exists;
    return check(ctx, path, replace, &exists);
}

nbl_status nbl__result_file_write(nbl__arena *arena, const char *path, bool replace,
                                  const nbl__stored *tensors, int64_t count)
{
    nbl_context *ctx = arena->ctx;
    nbl__text image = {.ctx = ctx};
    nbl__new_file file = {.fd = -1};
    bool exists;
    nbl_status status = check(ctx, path, replace, &exists);
    if (status == NBL_OK) status = nbl__safetensors_build_result(arena, tensors, count, &image);
    if (status == NBL_OK) status = nbl__new_file_open(ctx, path, exists, image.size, &file);
    if (status == NBL_OK) status = nbl__new_file_write(&file, image.text, image.size, 0);
    if (status == NBL_OK) status = check(ctx, path, replace, &file.replace);
    if (status == NBL_OK) status = nbl__new_file_commit(&file);
    nbl__new_file_close(&file);
    nbl__text_free(&image);
    return status;
}
