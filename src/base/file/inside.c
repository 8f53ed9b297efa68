/* inside.c - decides which files of a model's folder may be copied into a result. See
 * nbl__file_inside in file.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/file/file.h"

/* True if `path` is below `folder`; both are real paths (links resolved). */
static bool is_inside(const char *path, const char *folder)
{
    size_t size = strlen(folder);
    if (size == 1) return true; /* "/" */
    return strncmp(path, folder, size) == 0 && path[size] == '/';
}

/* True if `folder` is REPO/snapshots/… and `path` is REPO/blobs/HASH: the hub's cache. Other
 * files of REPO are not accepted. */
static bool is_blob(const char *path, const char *folder)
{
    static const char snapshots[] = "/snapshots/", blobs[] = "/blobs/";
    const char *last = NULL;
    for (const char *at = folder; (at = strstr(at, snapshots)) != NULL; at++) last = at;
    if (last == NULL) return false;
    size_t repo = (size_t)(last - folder);
    if (strncmp(path, folder, repo) != 0 || strncmp(path + repo, blobs, sizeof blobs - 1) != 0) return false;
    const char *name = path + repo + sizeof blobs - 1;
    return *name && strchr(name, '/') == NULL;
}

static nbl_status check(nbl_context *ctx, const char *path, const char *real_path, const char *real_folder)
{
    struct stat info;
    if (stat(real_path, &info) != 0) return nbl__fail_errno(ctx, errno, "%s", path);
    NBL_CHECK(ctx, S_ISREG(info.st_mode), NBL_ERROR_IO, "%s: not a regular file", path);
    if (is_inside(real_path, real_folder) || is_blob(real_path, real_folder)) return NBL_OK;
    return nbl__hint(
        ctx,
        nbl__fail(ctx, NBL_ERROR_IO,
                  "%s: a link that leads out of the model's folder, to %s; it is not copied into a "
                  "result",
                  path, real_path),
        "put a copy of the file in the link's place, or remove the link");
}

nbl_status nbl__file_inside(nbl_context *ctx, const char *folder, const char *path)
{
    char *real_folder = realpath(folder, NULL), *real_path = realpath(path, NULL);
    nbl_status status = real_folder && real_path
                            ? check(ctx, path, real_path, real_folder)
                            : nbl__fail_errno(ctx, errno, "%s", real_folder ? path : folder);
    free(real_folder);
    free(real_path);
    return status;
}

unsigned nbl__path_rights(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 ? (info.st_mode & 0666) | 0600 : 0666;
}
