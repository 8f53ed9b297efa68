/* output.c - outputs that appear complete or not at all. See output.h.
 *
 * Every call that changes the disk asks nbl__write_allowed first, so that a test can make each
 * of them fail. */
#define _GNU_SOURCE
#include "base/file/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/file/file.h"
#include "base/file/partial.h"

/* An injected fault looks like EIO. */
static int allowed(nbl__output *output)
{
    if (nbl__write_allowed(output->ctx)) return 1;
    errno = EIO;
    return 0;
}

/* The folder of a path; "." without a slash. */
static char *parent_of(nbl__arena *arena, const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return nbl__arena_strdup(arena, ".");
    if (slash == path) return nbl__arena_strdup(arena, "/");
    return nbl__arena_printf(arena, "%.*s", (int)(slash - path), path);
}

/* Checks that the target may be written and fits the disk. Temporaries that killed processes
 * left are removed first, because they take space. */
static nbl_status check_target(nbl__output *output, bool replace, uint64_t bytes_needed)
{
    nbl_context *ctx = output->ctx;
    NBL_CHECK(ctx, output->target[0] != '\0', NBL_ERROR_ARGUMENT, "the target has no name");
    NBL_CHECK(ctx, replace || !nbl__exists(output->target), NBL_ERROR_EXISTS,
              "%s: exists already; it was left untouched", output->target);
    NBL_TRY(nbl__partial_clean(ctx, output->target));
    char *parent = parent_of(&output->arena, output->target);
    if (parent == NULL) return NBL_ERROR_MEMORY;
    struct statvfs disk;
    if (statvfs(parent, &disk) != 0)
        return nbl__fail_errno(ctx, errno, "%s: cannot be written here", output->target);
    uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
    NBL_CHECK(ctx, disk.f_blocks == 0 || room >= bytes_needed, NBL_ERROR_NO_SPACE,
              "%s: %" PRIu64 " bytes are needed, the disk has %" PRIu64 " left", output->target, bytes_needed,
              room);
    return NBL_OK;
}

nbl_status nbl__output_begin(nbl_context *ctx, const char *target, uint64_t bytes_needed,
                             nbl__output **result)
{
    *result = NULL;
    nbl__output *output = nbl__alloc(ctx, sizeof *output);
    if (output == NULL) return NBL_ERROR_MEMORY;
    output->ctx = ctx;
    output->folder = -1;
    output->rights = 0666;
    output->arena = nbl__arena_make(ctx);

    /* Without trailing slashes, so that the temporary is beside the target and not in it. */
    size_t length = strlen(target);
    while (length > 1 && target[length - 1] == '/') length--;
    output->target = nbl__arena_printf(&output->arena, "%.*s", (int)length, target);
    nbl_status status = NBL_ERROR_MEMORY;
    if (output->target == NULL) goto failed;
    if ((status = check_target(output, false, bytes_needed)) != NBL_OK) goto failed;
    status = nbl__partial_make(&output->arena, output->target, true, &output->partial, &output->folder);
    if (status != NBL_OK) goto failed;
    *result = output;
    return NBL_OK;

failed:
    nbl__output_abort(output);
    return status;
}

nbl_status nbl__output_open(nbl__output *output, const char *name, int *fd)
{
    *fd = allowed(output)
              ? openat(output->folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, output->rights)
              : -1;
    if (*fd < 0) return nbl__fail_errno(output->ctx, errno, "%s/%s: cannot create", output->target, name);
    return NBL_OK;
}

nbl_status nbl__output_write(nbl__output *output, int fd, const char *name, const void *data, size_t size,
                             uint64_t offset)
{
    /* A write may be partial or interrupted. */
    const char *at = data;
    while (size > 0) {
        ssize_t done = allowed(output) ? pwrite(fd, at, size, (off_t)offset) : -1;
        if (done < 0 && errno == EINTR) continue;
        /* `data` is in a mapped file whose pages no longer exist */
        if (done < 0 && errno == EFAULT) {
            NBL_TRY(nbl__files_check(output->ctx));
            errno = EFAULT;
        }
        if (done <= 0)
            return nbl__fail_errno(output->ctx, done == 0 ? ENOSPC : errno, "%s/%s: cannot write",
                                   output->target, name);
        at += done;
        size -= (size_t)done;
        offset += (uint64_t)done;
    }
    return NBL_OK;
}

nbl_status nbl__output_close(nbl__output *output, int fd, const char *name)
{
    /* Some file systems report a failed write only at fsync or close. */
    int bad = !allowed(output) || fsync(fd) != 0 ? errno : 0;
    if (close(fd) != 0 && !bad) bad = errno;
    if (bad) return nbl__fail_errno(output->ctx, bad, "%s/%s: cannot write", output->target, name);
    return NBL_OK;
}

nbl_status nbl__output_put(nbl__output *output, const char *name, const void *data, size_t size)
{
    int fd;
    NBL_TRY(nbl__output_open(output, name, &fd));
    nbl_status status = nbl__output_write(output, fd, name, data, size, 0);
    if (status != NBL_OK) {
        close(fd);
        return status;
    }
    return nbl__output_close(output, fd, name);
}

/* Copies 4 MiB at a time and drops the source's pages, so that memory stays small. */
static nbl_status copy_pieces(nbl__output *output, int fd, const char *name, const nbl__file *file)
{
    enum { PIECE = 4 << 20 };
    for (uint64_t at = 0; at < file->size; at += PIECE) {
        size_t size = file->size - at < PIECE ? (size_t)(file->size - at) : PIECE;
        NBL_TRY(nbl__output_write(output, fd, name, file->data + at, size, at));
        nbl__file_drop(file, file->data + at, size);
        NBL_TRY(nbl__progress_poll(output->ctx, name));
    }
    return NBL_OK;
}

nbl_status nbl__output_copy(nbl__output *output, const char *name, const char *source)
{
    nbl__file file;
    int fd;
    NBL_TRY(nbl__file_map(output->ctx, source, &file));
    output->rights = nbl__path_rights(source);
    nbl_status status = nbl__output_open(output, name, &fd);
    output->rights = 0666;
    if (status == NBL_OK) {
        status = copy_pieces(output, fd, name, &file);
        if (status == NBL_OK) status = nbl__output_close(output, fd, name);
        else close(fd);
    }
    nbl__file_unmap(&file);
    return status;
}

/* Removes permission bits. Errors are ignored: some file systems have no permissions. */
static void narrow(int fd, unsigned rights)
{
    struct stat info;
    if (fd >= 0 && fstat(fd, &info) == 0 && (info.st_mode & 0777 & ~rights))
        (void)fchmod(fd, info.st_mode & 07777 & (rights | ~0777u));
}

void nbl__output_narrow(nbl__output *output, const char *source)
{
    struct stat info;
    if (stat(source, &info) == 0) narrow(output->folder, info.st_mode | 0700);
}

nbl_status nbl__output_subfolder(nbl__output *output, const char *name)
{
    if (!allowed(output) || mkdirat(output->folder, name, 0777) != 0)
        return nbl__fail_errno(output->ctx, errno, "%s/%s: cannot create", output->target, name);
    output->subfolder = nbl__arena_strdup(&output->arena, name);
    return output->subfolder ? NBL_OK : NBL_ERROR_MEMORY;
}

/* Syncs the folders' entries to disk; the files were synced when they were closed. */
static nbl_status sync_folders(nbl__output *output)
{
    int inner = output->subfolder
                    ? openat(output->folder, output->subfolder, O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                    : -1;
    bool bad = output->subfolder && (!allowed(output) || inner < 0 || fsync(inner) != 0);
    bad = bad || !allowed(output) || fsync(output->folder) != 0;
    int error = errno;
    if (inner >= 0) close(inner);
    return bad ? nbl__fail_errno(output->ctx, error, "%s: cannot write", output->target) : NBL_OK;
}

/* Renames without replacing a target that has appeared meanwhile. File systems without
 * RENAME_NOREPLACE get a check and a rename, with a small window between them. */
static int rename_new(const char *from, const char *to)
{
    if (renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE) == 0) return 0;
    if (errno != EINVAL && errno != ENOSYS) return -1;
    if (nbl__exists(to)) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

nbl_status nbl__output_commit(nbl__output *output)
{
    nbl_context *ctx = output->ctx;
    /* Everything must be on disk before the rename makes it visible. */
    nbl_status status = sync_folders(output);
    if (status == NBL_OK && (!allowed(output) || rename_new(output->partial, output->target) != 0))
        status = nbl__fail_errno(ctx, errno, "%s: cannot move the finished folder here", output->target);
    if (status == NBL_OK) {
        output->partial = NULL; /* it is the target now: nothing to remove */
        char *parent = parent_of(&output->arena, output->target);
        int fd = parent ? open(parent, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        if (fd >= 0) {
            /* make the rename durable; some file systems cannot sync folders, so the result is
             * ignored */
            (void)fsync(fd);
            close(fd);
        }
    }
    nbl__output_abort(output);
    return status;
}

void nbl__output_abort(nbl__output *output)
{
    if (output == NULL) return;
    if (output->partial) {
        /* Remove while the lock is held. */
        if (output->folder >= 0) nbl__partial_empty(output->folder);
        rmdir(output->partial);
    }
    if (output->folder >= 0) close(output->folder);
    nbl__arena_free(&output->arena);
    nbl__free(output->ctx, output, sizeof *output);
}

nbl_status nbl__new_file_open(nbl_context *ctx, const char *path, bool replace, uint64_t bytes_needed,
                              nbl__new_file *file)
{
    nbl__output *o = &file->output;
    *file = (nbl__new_file){.fd = -1, .replace = replace};
    *o = (nbl__output){.ctx = ctx, .arena = nbl__arena_make(ctx), .folder = AT_FDCWD};
    file->path = o->target = nbl__arena_strdup(&o->arena, path);
    if (o->target == NULL) return NBL_ERROR_MEMORY;
    NBL_TRY(check_target(o, replace, bytes_needed));
    /* From here on `target` is the folder: messages of nbl__output_write are FOLDER/NAME. */
    o->target = parent_of(&o->arena, path);
    if (o->target == NULL) return NBL_ERROR_MEMORY;
    const char *slash = strrchr(path, '/');
    file->name = slash ? file->path + (slash - path) + 1 : file->path;
    return nbl__partial_make(&o->arena, path, false, &file->beside, &file->fd);
}

void nbl__new_file_narrow(nbl__new_file *file, unsigned rights)
{
    narrow(file->fd, rights);
}

nbl_status nbl__new_file_write(nbl__new_file *file, const void *data, size_t size, uint64_t offset)
{
    return nbl__output_write(&file->output, file->fd, file->name, data, size, offset);
}

/* The descriptor stays open, and the lock held, until the file has its name. */
nbl_status nbl__new_file_commit(nbl__new_file *file)
{
    nbl__output *o = &file->output;
    if (!allowed(o) || fsync(file->fd) != 0)
        return nbl__fail_errno(o->ctx, errno, "%s: cannot write", file->path);
    if (!allowed(o) ||
        (file->replace ? rename(file->beside, file->path) : rename_new(file->beside, file->path)) != 0)
        return nbl__fail_errno(o->ctx, errno, "%s: cannot move the finished file here", file->path);
    file->beside = NULL;
    return NBL_OK;
}

void nbl__new_file_close(nbl__new_file *file)
{
    if (file->output.ctx == NULL) return;
    if (file->beside) unlink(file->beside);
    if (file->fd >= 0) close(file->fd);
    nbl__arena_free(&file->output.arena);
    *file = (nbl__new_file){.fd = -1};
}

static nbl_status put(nbl_context *ctx, const char *path, bool replace, unsigned rights, const void *data,
                      size_t size)
{
    nbl__new_file file;
    nbl_status status = nbl__new_file_open(ctx, path, replace, size, &file);
    if (status == NBL_OK) nbl__new_file_narrow(&file, rights);
    if (status == NBL_OK) status = nbl__new_file_write(&file, data, size, 0);
    if (status == NBL_OK) status = nbl__new_file_commit(&file);
    nbl__new_file_close(&file);
    return status;
}

nbl_status nbl__file_put(nbl_context *ctx, const char *path, const void *data, size_t size)
{
    return put(ctx, path, true, 0666, data, size);
}

nbl_status nbl__file_put_new(nbl_context *ctx, const char *path, unsigned rights, const void *data,
                             size_t size)
{
    return put(ctx, path, false, rights, data, size);
}
