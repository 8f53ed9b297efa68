/* partial.c - creates, locks and removes temporaries. See partial.h. */
#define _GNU_SOURCE
#include "base/file/partial.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LETTERS = 6, DEPTH = 1 };
static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
static const char infix[] = ".partial-";

/* True if `name` in the folder `at` is still the open file `fd`: not removed or replaced since
 * it was opened. */
static bool is_same(int at, const char *name, int fd)
{
    struct stat open_file, named;
    return fstat(fd, &open_file) == 0 && fstatat(at, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           open_file.st_dev == named.st_dev && open_file.st_ino == named.st_ino;
}

/* Creates and locks a temporary. Returns 0, or -1 with errno. EEXIST: the name is taken, or
 * another process removed the temporary before it was locked; try another name. */
static int make_locked(nbl_context *ctx, const char *name, bool folder, int *fd)
{
    errno = EIO; /* errno of an injected fault */
    *fd = -1;
    if (!nbl__write_allowed(ctx)) return -1;
    if (folder && mkdir(name, 0777) != 0) return -1;
    /* Between creation and flock another process may take the file for an orphan and remove it;
     * is_same finds that out. */
    int flags = folder ? O_RDONLY | O_DIRECTORY : O_WRONLY | O_CREAT | O_EXCL;
    *fd = open(name, flags | O_NOFOLLOW | O_CLOEXEC, 0666);
    bool swept = *fd < 0 ? folder && errno == ENOENT
                         : (flock(*fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) ||
                               !is_same(AT_FDCWD, name, *fd);
    if (*fd >= 0 && !swept) return 0;
    int error = swept ? EEXIST : errno;
    if (*fd >= 0) close(*fd);
    else if (folder && !swept) rmdir(name);
    *fd = -1;
    errno = error;
    return -1;
}

nbl_status nbl__partial_make(nbl__arena *arena, const char *target, bool folder, char **result, int *fd)
{
    size_t length = strlen(target) + sizeof infix + LETTERS;
    char *name = nbl__arena_alloc(arena, length);
    if (name == NULL) return NBL_ERROR_MEMORY;
    int made = -1;
    /* 36^6 names: a second attempt is rare. */
    for (int attempt = 0; attempt < 100 && made != 0; attempt++) {
        uint8_t random[LETTERS];
        if (getrandom(random, sizeof random, 0) != sizeof random) memset(random, attempt, sizeof random);
        int n = snprintf(name, length, "%s%s", target, infix);
        for (int i = 0; i < LETTERS; i++) name[n + i] = letters[random[i] % (sizeof letters - 1)];
        name[n + LETTERS] = '\0';
        made = make_locked(arena->ctx, name, folder, fd);
        if (made != 0 && errno != EEXIST) break;
    }
    if (made != 0)
        return nbl__fail_errno(arena->ctx, errno, "%s: cannot make a %s beside it", target,
                               folder ? "folder" : "file");
    *result = name;
    return NBL_OK;
}

/* ---- removing ---- */

/* Removes the entries of a folder, down to `depth` levels of subfolders. Links are removed, not
 * followed. */
static void empty(int folder, int depth)
{
    int copy = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *list = copy < 0 ? NULL : fdopendir(copy);
    if (list == NULL) {
        if (copy >= 0) close(copy);
        return;
    }
    for (struct dirent *entry; (entry = readdir(list));) {
        const char *name = entry->d_name;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) continue;
        if (unlinkat(folder, name, 0) == 0 || depth == 0) continue;
        int inner = openat(folder, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
        if (inner < 0) continue;
        empty(inner, depth - 1);
        close(inner);
        unlinkat(folder, name, AT_REMOVEDIR);
    }
    closedir(list);
}

void nbl__partial_empty(int folder)
{
    empty(folder, DEPTH);
}

/* True for BASE.partial-XXXXXX, X in `letters`. */
static bool is_partial_of(const char *name, const char *base, size_t length)
{
    if (strncmp(name, base, length) != 0 || strncmp(name + length, infix, sizeof infix - 1) != 0)
        return false;
    name += length + sizeof infix - 1;
    return strlen(name) == LETTERS && strspn(name, letters) == LETTERS;
}

/* Removes one temporary if it belongs to this user and nobody holds its lock. */
static void clean(nbl_context *ctx, int at, const char *name)
{
    struct stat info;
    if (fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW) != 0) return;
    bool folder = S_ISDIR(info.st_mode);
    if ((!folder && !S_ISREG(info.st_mode)) || info.st_uid != geteuid()) return;
    int fd = openat(at, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) return;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0 && is_same(at, name, fd)) {
        if (folder) nbl__partial_empty(fd);
        if (unlinkat(at, name, folder ? AT_REMOVEDIR : 0) == 0)
            nbl__log(ctx, NBL_LOG_INFO, "%s was left by a process that did not end well; it was removed",
                     name);
    }
    close(fd);
}

nbl_status nbl__partial_clean(nbl_context *ctx, const char *target)
{
    /* Look at every entry of the target's folder. */
    const char *slash = strrchr(target, '/'), *base = slash ? slash + 1 : target;
    size_t length = strlen(base);
    nbl__arena arena = nbl__arena_make(ctx);
    const char *parent = slash == NULL     ? "."
                         : slash == target ? "/"
                                           : nbl__arena_printf(&arena, "%.*s", (int)(slash - target), target);
    if (parent == NULL) return NBL_ERROR_MEMORY;
    DIR *list = length ? opendir(parent) : NULL;
    for (struct dirent *entry; list && (entry = readdir(list));)
        if (is_partial_of(entry->d_name, base, length)) clean(ctx, dirfd(list), entry->d_name);
    if (list) closedir(list);
    nbl__arena_free(&arena);
    return NBL_OK;
}
