/* file.c - see file.h. */
#define _GNU_SOURCE
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* Opens a regular file; O_NONBLOCK so that a pipe in its place cannot hang us. */
static nbl_status open_regular(nbl_context *ctx, const char *path, int *fd, uint64_t *size)
{
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) return nbl__fail_errno(ctx, errno, "%s", path);
    struct stat info;
    nbl_status status = NBL_OK;
    if (fstat(*fd, &info) != 0) status = nbl__fail_errno(ctx, errno, "%s", path);
    else if (!S_ISREG(info.st_mode)) status = nbl__fail(ctx, NBL_ERROR_IO, "%s: not a regular file", path);
    if (status != NBL_OK) {
        close(*fd);
        return status;
    }
    *size = (uint64_t)info.st_size;
    return NBL_OK;
}

nbl_status nbl__file_map(nbl_context *ctx, const char *path, nbl__file *file)
{
    int fd;
    *file = (nbl__file){0};
    NBL_TRY(open_regular(ctx, path, &fd, &file->size));
    nbl_status status = NBL_OK;
    if (file->size > 0) {
        void *data = mmap(NULL, file->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) status = nbl__fail_errno(ctx, errno, "%s: cannot map", path);
        else file->data = data;
    }
    close(fd);
    if (status != NBL_OK) *file = (nbl__file){0};
    return status;
}

void nbl__file_unmap(nbl__file *file)
{
    if (file->data) munmap((void *)(uintptr_t)file->data, file->size);
    *file = (nbl__file){0};
}

/* All pages that a range touches: a page that somebody else still needs comes back by a fault. */
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

/* A fault maps the pages around it as well (64 KiB by default), also some that were dropped with the
 * range before: so the drop begins that much earlier. */
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
    uint64_t length;
    *text = NULL;
    NBL_TRY(open_regular(ctx, path, &fd, &length));
    nbl_status status = NBL_OK;
    char *memory = NULL;
    if (length > limit) {
        status = nbl__fail(ctx, NBL_ERROR_FORMAT,
                           "%s: %" PRIu64 " bytes, at most %" PRIu64 " are sensible here", path, length,
                           limit);
    } else if ((memory = nbl__alloc(ctx, length + 1)) == NULL) {
        status = NBL_ERROR_MEMORY;
    }
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
