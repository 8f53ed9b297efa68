/* file.c - maps and reads files, and detects that a mapped file has changed. See file.h. */
#define _GNU_SOURCE
#include "base/file/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file/file_guard.h"
#include "base/file/hub.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* files with a descriptor above this are closed after mapping: the process has other uses for
 * descriptors */
enum { HIGHEST_KEPT = 400 };

/* A mapped file: its state at opening, linked into the context's list. */
struct nbl__mapping {
    nbl_context *ctx;
    nbl__mapping *next;
    char *path;
    size_t path_size;
    /* fd: kept open for fstat; slot: of file_guard.h */
    int fd, slot; /* -1: none */
    unsigned mode;
    uint64_t size, device, inode;
    struct timespec modified;
};

/* Opens a regular file. Other kinds are not opened, because opening a device or pipe may have
 * effects. O_NONBLOCK: a pipe that has replaced the file since stat cannot block the open. */
static nbl_status open_regular(nbl_context *ctx, const char *path, int *fd, struct stat *info)
{
    NBL_CHECK(ctx, stat(path, info) != 0 || S_ISREG(info->st_mode), NBL_ERROR_IO, "%s: not a regular file",
              path);
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return nbl__hub_hint(ctx, nbl__fail_errno(ctx, errno, "%s", path), path, NBL_HUB_MODEL);
    nbl_status status = NBL_OK;
    if (fstat(*fd, info) != 0) status = nbl__fail_errno(ctx, errno, "%s", path);
    else if (!S_ISREG(info->st_mode)) status = nbl__fail(ctx, NBL_ERROR_IO, "%s: not a regular file", path);
    if (status != NBL_OK) close(*fd);
    return status;
}

/* ---- mapping ---- */

/* Removes a mapping from the list and frees its record. */
static void unregister(nbl__mapping *m)
{
    nbl__mapping **at = nbl__context_mappings(m->ctx);
    while (*at && *at != m) at = &(*at)->next;
    if (*at) *at = m->next;
    nbl__guard_close(m->slot);
    if (m->fd >= 0) close(m->fd);
    nbl__free(m->ctx, m->path, m->path_size);
    nbl__free(m->ctx, m, sizeof *m);
}

/* Records a file in the context's list. On success the record owns `fd`. */
static nbl_status register_mapping(nbl_context *ctx, const char *path, int fd, const struct stat *info,
                                   nbl__mapping **mapping)
{
    nbl__mapping *m = nbl__alloc(ctx, sizeof *m);
    if (m == NULL) return NBL_ERROR_MEMORY;
    *m = (nbl__mapping){.ctx = ctx,
                        .path_size = strlen(path) + 1,
                        .fd = -1,
                        .slot = -1,
                        .mode = (unsigned)info->st_mode,
                        .size = (uint64_t)info->st_size,
                        .device = (uint64_t)info->st_dev,
                        .inode = (uint64_t)info->st_ino,
                        .modified = info->st_mtim};
    if ((m->path = nbl__alloc(ctx, m->path_size)) == NULL) {
        unregister(m);
        return NBL_ERROR_MEMORY;
    }
    memcpy(m->path, path, m->path_size);
    m->fd = fd;
    m->next = *nbl__context_mappings(ctx);
    *nbl__context_mappings(ctx) = m;
    *mapping = m;
    return NBL_OK;
}

nbl_status nbl__file_map(nbl_context *ctx, const char *path, nbl__file *file)
{
    int fd;
    struct stat info;
    *file = (nbl__file){0};
    NBL_TRY(open_regular(ctx, path, &fd, &info));
    if (info.st_size == 0) return close(fd), NBL_OK;
    nbl__mapping *m;
    nbl_status status = register_mapping(ctx, path, fd, &info, &m);
    if (status != NBL_OK) return close(fd), status;
    void *data = mmap(NULL, m->size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (data == MAP_FAILED) {
        status = nbl__fail_errno(ctx, errno, "%s: cannot map", path);
        unregister(m);
        return status;
    }
    /* The mapping stays valid without its descriptor. */
    if (fd > HIGHEST_KEPT) {
        close(fd);
        m->fd = -1;
    }
    m->slot = nbl__guard_open(data, m->size);
    *file = (nbl__file){data, m->size, m};
    return NBL_OK;
}

void nbl__file_unmap(nbl__file *file)
{
    if (file->mapping) unregister(file->mapping);
    if (file->data) munmap((void *)(uintptr_t)file->data, file->size);
    *file = (nbl__file){0};
}

/* ---- files that change ---- */

/* Adds the hint to the failure that says how the file changed. */
static nbl_status explain_change(nbl__mapping *m, nbl_status status)
{
    return nbl__hint(m->ctx, status, "run it again when nothing writes to this file, or on a copy of it");
}

static nbl_status check_mapping(nbl__mapping *m)
{
    struct stat now;
    uint64_t offset;
    if (m->fd >= 0 && fstat(m->fd, &now) == 0) {
        if ((uint64_t)now.st_size != m->size)
            return explain_change(m, nbl__fail(m->ctx, NBL_ERROR_IO,
                                               "%s: changed while it was being used: it has %" PRId64
                                               " bytes, and had %" PRIu64 " when it was opened",
                                               m->path, (int64_t)now.st_size, m->size));
        if (now.st_mtim.tv_sec != m->modified.tv_sec || now.st_mtim.tv_nsec != m->modified.tv_nsec)
            return explain_change(m, nbl__fail(m->ctx, NBL_ERROR_IO,
                                               "%s: changed while it was being used: it was written to after "
                                               "it was opened",
                                               m->path));
    }
    if (nbl__guard_was_hit(m->slot, &offset))
        return explain_change(m, nbl__fail(m->ctx, NBL_ERROR_IO,
                                           "%s: byte %" PRIu64 " of %" PRIu64
                                           " could not be read: the file became shorter, or the disk fails",
                                           m->path, offset, m->size));
    return NBL_OK;
}

nbl_status nbl__files_check(nbl_context *ctx)
{
    for (nbl__mapping *m = *nbl__context_mappings(ctx); m; m = m->next) NBL_TRY(check_mapping(m));
    return NBL_OK;
}

unsigned nbl__file_rights(const nbl__file *file)
{
    return file->mapping ? (file->mapping->mode & 0666) | 0600 : 0666;
}

bool nbl__files_have(nbl_context *ctx, uint64_t device, uint64_t inode)
{
    for (const nbl__mapping *m = *nbl__context_mappings(ctx); m; m = m->next)
        if (m->device == device && m->inode == inode) return true;
    return false;
}

/* ---- pages ---- */

/* madvise for all pages that a range touches. A page that another range still uses is loaded
 * again on access. */
static void advise(const void *begin, uint64_t size, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), a = (uintptr_t)begin, b = a + size;
    a = a / page * page;
    b = (b + page - 1) / page * page;
    int kept = errno;
    if (size > 0) (void)madvise((void *)a, b - a, advice);
    errno = kept;
}

void nbl__file_need(const void *begin, uint64_t size)
{
    advise(begin, size, MADV_POPULATE_READ);
}

/* A page fault also maps the pages around it (64 KiB by default), among them pages dropped just
 * before. So the drop begins up to 128 KiB earlier. */
void nbl__file_drop(const nbl__file *file, const void *begin, uint64_t size)
{
    enum { AROUND = 64 << 10 };
    const uint8_t *at = begin;
    if (file->data == NULL || at < file->data || at >= file->data + file->size) return;
    uint64_t before = (uint64_t)(at - file->data) % AROUND + AROUND;
    if (before > (uint64_t)(at - file->data)) before = (uint64_t)(at - file->data);
    advise(at - before, size + before, MADV_DONTNEED);
}

nbl_status nbl__file_read(nbl_context *ctx, const char *path, uint64_t limit, char **text, size_t *size)
{
    int fd;
    struct stat info;
    *text = NULL;
    NBL_TRY(open_regular(ctx, path, &fd, &info));
    uint64_t length = (uint64_t)info.st_size;
    nbl_status status = NBL_OK;
    char *memory = NULL;
    if (length > limit) {
        status = nbl__fail(ctx, NBL_ERROR_FORMAT,
                           "%s: %" PRIu64 " bytes, at most %" PRIu64 " are sensible here", path, length,
                           limit);
    } else if ((memory = nbl__alloc(ctx, length + 1)) == NULL) {
        status = NBL_ERROR_MEMORY;
    }
    /* A read may be partial or interrupted. */
    for (uint64_t at = 0; status == NBL_OK && at < length;) {
        ssize_t got = read(fd, memory + at, length - at);
        if (got > 0) at += (uint64_t)got;
        else if (got == 0)
            status = nbl__fail(ctx, NBL_ERROR_IO, "%s: became shorter while it was read", path);
        else if (errno != EINTR) status = nbl__fail_errno(ctx, errno, "%s", path);
    }
    close(fd);
    if (status != NBL_OK) {
        nbl__free(ctx, memory, length + 1);
        return status;
    }
    *text = memory;
    *size = length;
    return NBL_OK;
}

bool nbl__is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool nbl__exists(const char *path)
{
    struct stat info;
    return lstat(path, &info) == 0;
}
