/* output_dir.c - which names a run writes, locking, removing and moving. See output_dir.h. */
#include "train/output_dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file/file.h"
#include "format/hf/text_files.h"

/* ---- names that a run writes ---- */

/* N of "checkpoint-N", INT64_MAX for more than 18 digits; -1: another name. */
static int64_t checkpoint_number(const char *name)
{
    const char *digits = name + strlen("checkpoint-");
    if (strncmp(name, "checkpoint-", strlen("checkpoint-")) != 0) return -1;
    size_t n = strspn(digits, "0123456789");
    return n == 0 || digits[n] != '\0' ? -1 : n > 18 ? INT64_MAX : strtoll(digits, NULL, 10);
}

/* True if a run writes files of this name. Sets *precious for weights and checkpoints, which
 * cost training to make again; else leaves it. */
static bool is_output(const char *name, bool *precious)
{
    static const char *const weights[] = {".safetensors", ".safetensors.index.json"};
    static const char *const others[] = {
        "adapter_config.json", "additional_chat_templates", "metrics.jsonl", "report.html", "run.yml", "runs",
        "samples.json"};
    if (checkpoint_number(name) >= 0) return *precious = true;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        if (nbl__ends_with(name, weights[i])) return *precious = true;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strcmp(name, others[i]) == 0) return true;
    return nbl__is_text_file(name);
}

/* True for NAME.partial-*, where NAME is "result" or something a run writes: see nbl__output. */
static bool is_leftover(const char *name)
{
    char whole[256];
    bool precious;
    const char *end = strstr(name, ".partial-");
    size_t size = end ? (size_t)(end - name) : sizeof whole;
    if (size >= sizeof whole) return false;
    memcpy(whole, name, size);
    whole[size] = '\0';
    return strcmp(whole, "result") == 0 || is_output(whole, &precious);
}

/* ---- claiming ---- */

/* True if `source` is `folder`, or lies in it under a name that a run writes. Both are absolute
 * paths without links. */
static bool is_in_the_way(const char *source, const char *folder)
{
    size_t size = strlen(folder);
    if (strncmp(source, folder, size) != 0) return false;
    if (source[size] == '\0') return true;
    if (source[size] != '/' && size > 1) return false; /* a sibling: "/a/bc" of "/a/b" */
    const char *name = source + size + (source[size] == '/');
    size_t length = strcspn(name, "/");
    char first[256];
    bool precious;
    if (length >= sizeof first) return false;
    memcpy(first, name, length);
    first[length] = '\0';
    return is_output(first, &precious);
}

/* Fails if `source`, the value of `key`, would be overwritten. NULL or missing paths pass. */
static nbl_status check_source(nbl_context *ctx, const nbl__run_config *c, const char *key,
                               const char *source)
{
    char *from = source ? realpath(source, NULL) : NULL, *to = realpath(c->output_dir, NULL);
    bool bad = from && to && is_in_the_way(from, to);
    free(from);
    free(to);
    if (!bad) return NBL_OK;
    return nbl__hint(ctx,
                     nbl__fail(ctx, NBL_ERROR_ARGUMENT, "%s: output_dir: %s would take the place of %s: %s",
                               c->file, c->output_dir, key, source),
                     "choose another output_dir");
}

nbl_status nbl__output_dir_check(nbl_context *ctx, const nbl__run_config *c)
{
    struct stat info;
    if (stat(c->output_dir, &info) != 0) return NBL_OK; /* nbl__output_dir_make reports errors */
    NBL_CHECK(ctx, S_ISDIR(info.st_mode), NBL_ERROR_EXISTS, "%s: output_dir: %s is not a folder", c->file,
              c->output_dir);
    NBL_TRY(check_source(ctx, c, "base_model", c->base_model));
    for (int64_t i = 0; i < c->dataset_count; i++)
        NBL_TRY(check_source(ctx, c, "datasets", c->datasets[i].path));
    return check_source(ctx, c, "lora_model_dir", c->lora_model_dir);
}

nbl_status nbl__output_dir_lock(nbl_context *ctx, const char *output_dir, int *lock)
{
    *lock = open(output_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (*lock < 0 || flock(*lock, LOCK_EX | LOCK_NB) == 0) return NBL_OK;
    bool taken = errno == EWOULDBLOCK; /* else the file system has no locks */
    close(*lock);
    *lock = -1;
    NBL_CHECK(ctx, !taken, NBL_ERROR_EXISTS, "output_dir: %s: another run is writing there", output_dir);
    return NBL_OK;
}

nbl_status nbl__output_dir_make(nbl_context *ctx, const char *output_dir)
{
    nbl__arena arena = nbl__arena_make(ctx);
    char *partial = nbl__arena_strdup(&arena, output_dir);
    nbl_status status = partial ? NBL_OK : NBL_ERROR_MEMORY;
    for (char *at = partial; status == NBL_OK; at++) {
        if (*at != '\0' && (*at != '/' || at == partial)) continue;
        char kept = *at;
        *at = '\0';
        bool made = nbl__is_folder(partial) || mkdir(partial, 0777) == 0 ||
                    (errno == EEXIST && nbl__is_folder(partial));
        if (!made) status = nbl__fail_errno(ctx, errno, "output_dir: %s: cannot be made", partial);
        if ((*at = kept) == '\0') break;
    }
    nbl__arena_free(&arena);
    return status;
}

/* ---- removing ---- */

static nbl_status cannot_remove(nbl_context *ctx, const char *path, const char *name)
{
    return nbl__fail_errno(ctx, errno, "%s%s%s: cannot be removed", path, *path ? "/" : "", name);
}

/* Removes `name` in the open folder `at`. `path`: the folder's name in messages. `depth`: levels
 * of subfolders to enter. Works on descriptors with O_NOFOLLOW, so a link that is put there
 * meanwhile is not followed. */
static nbl_status remove_at(nbl_context *ctx, int at, const char *path, const char *name, int depth)
{
    struct stat info;
    if (fstatat(at, name, &info, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT ? NBL_OK : cannot_remove(ctx, path, name);
    if (!S_ISDIR(info.st_mode) || depth == 0) {
        int flags = S_ISDIR(info.st_mode) ? AT_REMOVEDIR : 0;
        return unlinkat(at, name, flags) == 0 || errno == ENOENT ? NBL_OK : cannot_remove(ctx, path, name);
    }
    int folder = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *list = folder >= 0 ? fdopendir(folder) : NULL;
    if (list == NULL) {
        nbl_status status = cannot_remove(ctx, path, name);
        if (folder >= 0) close(folder);
        return status;
    }
    nbl_status status = NBL_OK;
    for (struct dirent *entry; status == NBL_OK && (entry = readdir(list));)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            status = remove_at(ctx, folder, name, entry->d_name, depth - 1);
    closedir(list);
    if (status == NBL_OK && unlinkat(at, name, AT_REMOVEDIR) != 0) status = cannot_remove(ctx, path, name);
    return status;
}

enum { DEPTH = 2 };

nbl_status nbl__remove_folder(nbl_context *ctx, const char *path)
{
    if (!nbl__exists(path)) return NBL_OK;
    nbl__arena arena = nbl__arena_make(ctx);
    nbl_status status = NBL_OK;
    /* Renamed first: if the process is killed in the middle, the rest is found as a leftover and
 * does not look like a whole folder. */
    const char *going = nbl__arena_printf(&arena, "%s.partial-old", path);
    if (going == NULL) status = NBL_ERROR_MEMORY;
    else if (nbl__ends_with(path, ".partial-old") || rename(path, going) != 0) going = path;
    if (status == NBL_OK) status = remove_at(ctx, AT_FDCWD, "", going, DEPTH);
    nbl__arena_free(&arena);
    return status;
}

nbl_status nbl__remove_leftovers(nbl_context *ctx, const char *output_dir)
{
    DIR *list = opendir(output_dir);
    if (list == NULL) return nbl__fail_errno(ctx, errno, "output_dir: %s", output_dir);
    for (struct dirent *entry; (entry = readdir(list));)
        if (is_leftover(entry->d_name) &&
            remove_at(ctx, dirfd(list), output_dir, entry->d_name, DEPTH) != NBL_OK)
            nbl__log(ctx, NBL_LOG_WARNING, "%s/%s was left by a run that ended, and cannot be removed: %s",
                     output_dir, entry->d_name, nbl_error_message(ctx));
    closedir(list);
    return NBL_OK;
}

/* ---- moving earlier output ---- */

nbl_status nbl__move_into(nbl__arena *arena, const char *from, const char *to, const char *name)
{
    nbl_context *ctx = arena->ctx;
    const char *source = nbl__arena_printf(arena, "%s/%s", from, name),
               *target = nbl__arena_printf(arena, "%s/%s", to, name);
    if (source == NULL || target == NULL) return NBL_ERROR_MEMORY;
    /* a rename replaces files only */
    if (nbl__is_folder(source)) NBL_TRY(nbl__remove_folder(ctx, target));
    /* if a test injects the fault */
    errno = EIO;
    if (!nbl__write_allowed(ctx) || rename(source, target) != 0)
        return nbl__fail_errno(ctx, errno, "%s: cannot be moved here", target);
    return NBL_OK;
}

/* Moves all output, or with after >= 0 only the checkpoints after that step. run.yml marks the
 * folder as a run's. It moves last, so an interrupted move can be repeated. */
static nbl_status move_outputs(nbl__arena *arena, const char *from, const char *to, int64_t after)
{
    for (int last = 0; last < 2; last++) {
        DIR *list = opendir(from);
        if (list == NULL) return nbl__fail_errno(arena->ctx, errno, "%s", from);
        nbl_status status = NBL_OK;
        for (struct dirent *entry; status == NBL_OK && (entry = readdir(list));) {
            bool precious;
            if (after >= 0 && checkpoint_number(entry->d_name) <= after) continue;
            if (is_output(entry->d_name, &precious) && (strcmp(entry->d_name, "run.yml") == 0) == last)
                status = nbl__move_into(arena, from, to, entry->d_name);
        }
        closedir(list);
        NBL_TRY(status);
    }
    return NBL_OK;
}

/* True if the configuration file of this run is output_dir/run.yml itself. */
static bool is_own_file(const nbl__run_config *c)
{
    char *file = realpath(c->file, NULL), *folder = realpath(c->output_dir, NULL);
    size_t size = folder ? strlen(folder) : 0;
    bool own = file && folder && strncmp(file, folder, size) == 0 && strcmp(file + size, "/run.yml") == 0;
    free(file);
    free(folder);
    return own;
}

/* *any: output_dir has output that must be moved. `after`: see move_outputs.
 *
 *     weights or checkpoints, with run.yml       moved
 *     weights or checkpoints, without run.yml    an error: no run of nibble left them
 *     only records, with run.yml                 not moved; the run overwrites them
 *     only records, without run.yml              moved: the user may have made them
 *     only records, this run is run.yml itself   moved, to keep the user's file */
static nbl_status find_outputs(nbl_context *ctx, const nbl__run_config *c, int64_t after, bool *any)
{
    bool ours = after >= 0, model = false, others = false;
    *any = false;
    DIR *list = opendir(c->output_dir);
    if (list == NULL) return nbl__fail_errno(ctx, errno, "output_dir: %s", c->output_dir);
    for (struct dirent *entry; (entry = readdir(list));) {
        if (after >= 0 && checkpoint_number(entry->d_name) <= after) continue;
        others |= is_output(entry->d_name, any);
        ours |= strcmp(entry->d_name, "run.yml") == 0;
        model |= c->full && strcmp(entry->d_name, "config.json") == 0;
    }
    closedir(list);
    bool weights = *any || model;
    if (after < 0 && !weights) *any = others && (!ours || is_own_file(c));
    if (ours || !weights) return NBL_OK;
    return nbl__hint(ctx,
                     nbl__fail(ctx, NBL_ERROR_EXISTS,
                               "%s: output_dir: %s holds a model or checkpoints, but no run.yml: no run of "
                               "nibble left them there",
                               c->file, c->output_dir),
                     "choose another output_dir");
}

/* The step of a checkpoint that lies directly in output_dir; -1: it lies elsewhere. */
static int64_t own_step(const nbl__run_config *c, const char *checkpoint)
{
    char *from = realpath(checkpoint, NULL), *to = realpath(c->output_dir, NULL);
    size_t size = to ? strlen(to) : 0;
    bool inside = from && to && strncmp(from, to, size) == 0 && from[size] == '/';
    int64_t step = inside ? checkpoint_number(from + size + 1) : -1;
    free(from);
    free(to);
    return step;
}

nbl_status nbl__move_earlier_output(nbl_context *ctx, const nbl__run_config *config, const char *resumed,
                                    bool changed)
{
    bool any;
    int64_t after = resumed ? own_step(config, resumed) : -1;
    if (after >= 0 && !changed) return NBL_OK;
    if (resumed && after < 0) NBL_TRY(check_source(ctx, config, "resume_from_checkpoint", resumed));
    NBL_TRY(find_outputs(ctx, config, after, &any));
    if (!any) return NBL_OK;
    nbl__arena arena = nbl__arena_make(ctx);
    const char *folder = NULL;
    nbl_status status = NBL_OK;
    int made = -1;
    for (int i = 1; made != 0 && status == NBL_OK; i++) {
        folder = nbl__arena_printf(&arena, "%s/earlier-%d", config->output_dir, i);
        if (folder == NULL) status = NBL_ERROR_MEMORY;
        else if ((made = mkdir(folder, 0777)) != 0 && (errno != EEXIST || i == 100000))
            status = nbl__fail_errno(ctx, errno, "%s: cannot be made", folder);
    }
    if (status == NBL_OK) status = move_outputs(&arena, config->output_dir, folder, after);
    if (status == NBL_OK)
        nbl__log(ctx, NBL_LOG_WARNING,
                 after < 0
                     ? "%s had files of an earlier run, or of the names that a run writes; they are in %s now"
                     : "%s has later checkpoints; they are in %s now",
                 config->output_dir, folder);
    nbl__arena_free(&arena);
    return status;
}
