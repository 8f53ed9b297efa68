/* records.c - the history in memory, metrics.jsonl and the file of events. See records.h.
 *
 * nbl__records_begin writes both files anew: to a temporary, then by rename. nbl__records_add
 * appends to them. A failure of the second file leaves the record in memory and in the first file;
 * the run ends with that error, and a resume writes both files again. */
#include "report/records.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file/output.h"
#include "report/events.h"

/* Appends `, "key": value`. A non-finite value becomes null. */
static void print_real(nbl__text *out, const char *key, double value)
{
    nbl__text_printf(out, ", \"%s\": ", key);
    nbl__text_real(out, value);
}

/* The keys of a training record differ from those of an evaluation ("loss", "eval_loss"), as in
 * transformers' log_history. read_record reads exactly these keys. */
void nbl__record_print(nbl__text *out, const nbl__record *r)
{
    nbl__text_printf(out, "{\"step\": %" PRId64, r->step);
    print_real(out, "epoch", r->epoch);
    print_real(out, r->evaluation ? "eval_loss" : "loss", r->loss);
    if (!r->evaluation) {
        print_real(out, "grad_norm", r->grad_norm);
        print_real(out, "learning_rate", r->learning_rate);
        print_real(out, "tokens_per_second", r->tokens_per_second);
        nbl__text_printf(out, ", \"trained_tokens\": %" PRId64 ", \"memory_bytes\": %" PRIu64,
                         r->trained_tokens, r->memory_bytes);
        if (r->expert_load > 0) print_real(out, "expert_load", r->expert_load);
    }
    if (r->best) nbl__text_printf(out, ", \"best\": true");
    print_real(out, "time", r->time);
    nbl__text_printf(out, "}");
}

/* Makes room for one more record. The array doubles, so adding is amortized O(1). On failure the
 * history is unchanged. */
static nbl_status grow(nbl__records *r)
{
    if (r->count < r->room) return NBL_OK;
    int64_t room = r->room ? 2 * r->room : 256;
    nbl__record *items = nbl__alloc_array(r->ctx, (size_t)room, sizeof *items);
    if (items == NULL) return NBL_ERROR_MEMORY;
    if (r->count) memcpy(items, r->items, (size_t)r->count * sizeof *items);
    nbl__free(r->ctx, r->items, (size_t)r->room * sizeof *items);
    r->items = items;
    r->room = room;
    return NBL_OK;
}

void nbl__records_close(nbl__records *r)
{
    if (r->ctx == NULL) return;
    nbl__free(r->ctx, r->items, (size_t)r->room * sizeof *r->items);
    nbl__arena_free(&r->arena);
    *r = (nbl__records){0};
}

/* ---- restoring ---- */

/* Reads a loss. null stands for a non-finite number. */
static bool read_loss(const nbl__json *value, double *loss)
{
    *loss = NAN;
    return nbl__json_is(value, NBL_JSON_NULL) || nbl__json_number(value, loss);
}

/* Reads a record as nbl__record_print writes it. Returns false if a key is missing or has a value
 * that nibble does not write. */
static bool read_record(const nbl__json *it, nbl__record *r)
{
    double memory = 0;
    r->evaluation = nbl__json_get(it, "eval_loss") != NULL;
    if (!nbl__json_natural(nbl__json_get(it, "step"), &r->step) ||
        !nbl__json_number(nbl__json_get(it, "epoch"), &r->epoch) ||
        !nbl__json_number(nbl__json_get(it, "time"), &r->time) ||
        !read_loss(nbl__json_get(it, r->evaluation ? "eval_loss" : "loss"), &r->loss))
        return false;
    if (r->evaluation) {
        const nbl__json *best = nbl__json_get(it, "best");
        r->best = nbl__json_is(best, NBL_JSON_TRUE);
        return true;
    }
    if (!nbl__json_number(nbl__json_get(it, "grad_norm"), &r->grad_norm) ||
        !nbl__json_number(nbl__json_get(it, "learning_rate"), &r->learning_rate) ||
        !nbl__json_number(nbl__json_get(it, "tokens_per_second"), &r->tokens_per_second) ||
        !nbl__json_natural(nbl__json_get(it, "trained_tokens"), &r->trained_tokens) ||
        !nbl__json_number(nbl__json_get(it, "memory_bytes"), &memory) || !(memory >= 0 && memory < 0x1p63))
        return false;
    r->memory_bytes = (uint64_t)memory;
    const nbl__json *load = nbl__json_get(it, "expert_load");
    return load == NULL || nbl__json_number(load, &r->expert_load);
}

/* Records that were added before an error stay. The caller closes the history then. */
nbl_status nbl__records_restore(nbl__records *r, const char *where, const nbl__json *history)
{
    NBL_CHECK(r->ctx, nbl__json_is(history, NBL_JSON_ARRAY), NBL_ERROR_FORMAT, "%s: no log_history", where);
    for (int64_t i = 0; i < history->count; i++) {
        nbl__record record = {0};
        NBL_CHECK(r->ctx, read_record(&history->items[i], &record), NBL_ERROR_FORMAT,
                  "%s: record %" PRId64 " of log_history is not one that was written here", where, i);
        NBL_TRY(grow(r));
        r->items[r->count++] = record;
    }
    return NBL_OK;
}

/* ---- files ---- */

/* Seconds since 1970, with the clock's resolution. */
static double wall_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Makes the folder runs/, removes event files there, and chooses the name of the new one. */
static nbl_status open_events(nbl__records *r)
{
    const char *folder = nbl__arena_printf(&r->arena, "%s/runs", r->folder);
    if (folder == NULL) return NBL_ERROR_MEMORY;
    if (mkdir(folder, 0777) != 0 && errno != EEXIST) return nbl__fail_errno(r->ctx, errno, "%s", folder);
    DIR *list = opendir(folder);
    if (list == NULL) return nbl__fail_errno(r->ctx, errno, "%s", folder);
    for (struct dirent *entry; (entry = readdir(list));)
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) unlinkat(dirfd(list), entry->d_name, 0);
    closedir(list);
    r->events = nbl__arena_printf(&r->arena, "%s/events.out.tfevents.%.0f.nibble", folder, wall_time());
    return r->events ? NBL_OK : NBL_ERROR_MEMORY;
}

/* The events file begins with the time of the first record, so a resumed run keeps its start time.
 * Both texts are complete before the first file is replaced. */
nbl_status nbl__records_begin(nbl__records *r)
{
    nbl__text metrics = {.ctx = r->ctx}, events = {.ctx = r->ctx};
    nbl_status status = NBL_ERROR_MEMORY;
    r->arena = nbl__arena_make(r->ctx);
    r->metrics = nbl__arena_printf(&r->arena, "%s/metrics.jsonl", r->folder);
    if (r->metrics) status = open_events(r);
    nbl__events_begin(&events, r->count ? r->items[0].time : wall_time());
    for (int64_t i = 0; i < r->count; i++) {
        nbl__record_print(&metrics, &r->items[i]);
        nbl__text_printf(&metrics, "\n");
        nbl__events_add(&events, &r->items[i]);
    }
    if (status == NBL_OK) status = metrics.status != NBL_OK ? metrics.status : events.status;
    if (status == NBL_OK)
        status = nbl__file_put(r->ctx, r->metrics, metrics.text ? metrics.text : "", metrics.size);
    if (status == NBL_OK) status = nbl__file_put(r->ctx, r->events, events.text, events.size);
    nbl__text_free(&metrics);
    nbl__text_free(&events);
    return status;
}

/* Appends with a single write, so that a reader never sees half of a line. */
static nbl_status append(nbl_context *ctx, const char *path, const nbl__text *text)
{
    NBL_TRY(text->status);
    int fd = -1;
    errno = EIO; /* if a test injects the fault */
    if (nbl__write_allowed(ctx)) fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (fd < 0) return nbl__fail_errno(ctx, errno, "%s: cannot be opened", path);
    errno = EIO;
    ssize_t done = nbl__write_allowed(ctx) ? write(fd, text->text, text->size) : -1;
    /* a short write is reported as a full disk */
    int error = done < 0 ? errno : done == (ssize_t)text->size ? 0 : ENOSPC;
    if (close(fd) != 0 && error == 0) error = errno;
    return error ? nbl__fail_errno(ctx, error, "%s: cannot be written", path) : NBL_OK;
}

/* The record is added to the memory first. The history in the next checkpoint has it even if a file
 * could not be written. */
nbl_status nbl__records_add(nbl__records *r, nbl__record *record)
{
    nbl__text line = {.ctx = r->ctx}, events = {.ctx = r->ctx};
    record->time = wall_time();
    NBL_TRY(grow(r));
    r->items[r->count++] = *record;
    nbl__record_print(&line, record);
    nbl__text_printf(&line, "\n");
    nbl__events_add(&events, record);
    nbl_status status = append(r->ctx, r->metrics, &line);
    if (status == NBL_OK) status = append(r->ctx, r->events, &events);
    nbl__text_free(&line);
    nbl__text_free(&events);
    return status;
}
