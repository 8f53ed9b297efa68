/* records.c - the history and metrics.jsonl; see records.h. */
#include "train/records.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "base/output.h"

static void print_real(nbl__text *out, const char *key, double value)
{
    nbl__text_printf(out, ", \"%s\": ", key);
    nbl__text_real(out, value);
}

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
    }
    nbl__text_printf(out, "}");
}

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
    if (r->ctx) nbl__free(r->ctx, r->items, (size_t)r->room * sizeof *r->items);
    *r = (nbl__records){0};
}

nbl_status nbl__records_restore(nbl__records *r, const char *where, const nbl__json *history)
{
    NBL_CHECK(r->ctx, nbl__json_is(history, NBL_JSON_ARRAY), NBL_ERROR_FORMAT, "%s: no log_history", where);
    for (int64_t i = 0; i < history->count; i++) {
        const nbl__json *it = &history->items[i];
        nbl__record record = {.evaluation = nbl__json_get(it, "eval_loss") != NULL};
        double memory = 0;
        bool good = nbl__json_natural(nbl__json_get(it, "step"), &record.step) &&
                    nbl__json_number(nbl__json_get(it, "epoch"), &record.epoch) &&
                    nbl__json_number(nbl__json_get(it, record.evaluation ? "eval_loss" : "loss"),
                                     &record.loss);
        if (good && !record.evaluation)
            good = nbl__json_number(nbl__json_get(it, "grad_norm"), &record.grad_norm) &&
                   nbl__json_number(nbl__json_get(it, "learning_rate"), &record.learning_rate) &&
                   nbl__json_number(nbl__json_get(it, "tokens_per_second"), &record.tokens_per_second) &&
                   nbl__json_natural(nbl__json_get(it, "trained_tokens"), &record.trained_tokens) &&
                   nbl__json_number(nbl__json_get(it, "memory_bytes"), &memory) && memory >= 0 &&
                   memory < 0x1p63;
        NBL_CHECK(r->ctx, good, NBL_ERROR_FORMAT,
                  "%s: record %" PRId64 " of log_history is not one of a run here", where, i);
        record.memory_bytes = (uint64_t)memory;
        NBL_TRY(grow(r));
        r->items[r->count++] = record;
    }
    return NBL_OK;
}

static nbl_status metrics_path(nbl__records *r, nbl__arena *arena, const char **path)
{
    *path = nbl__arena_printf(arena, "%s/metrics.jsonl", r->folder);
    return *path ? NBL_OK : NBL_ERROR_MEMORY;
}

nbl_status nbl__records_begin(nbl__records *r)
{
    nbl__arena arena = nbl__arena_make(r->ctx);
    nbl__text text = {.ctx = r->ctx};
    const char *path;
    nbl_status status = metrics_path(r, &arena, &path);
    for (int64_t i = 0; i < r->count; i++) {
        nbl__record_print(&text, &r->items[i]);
        nbl__text_printf(&text, "\n");
    }
    if (status == NBL_OK) status = text.status;
    if (status == NBL_OK) status = nbl__file_put(r->ctx, path, text.text ? text.text : "", text.size);
    nbl__text_free(&text);
    nbl__arena_free(&arena);
    return status;
}

/* A line is written by one call, so that a reader never sees half of one. */
static nbl_status append(nbl__records *r, const char *path, const nbl__text *line)
{
    int fd = nbl__write_allowed(r->ctx) ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666)
                                        : (errno = EIO, -1);
    if (fd < 0) return nbl__fail_errno(r->ctx, errno, "%s: cannot be opened", path);
    ssize_t done = nbl__write_allowed(r->ctx) ? write(fd, line->text, line->size) : (errno = EIO, -1);
    int error = done < 0 ? errno : ENOSPC;
    bool good = done == (ssize_t)line->size;
    if (close(fd) != 0 && good) good = false, error = errno;
    return good ? NBL_OK : nbl__fail_errno(r->ctx, error, "%s: cannot be written", path);
}

nbl_status nbl__records_add(nbl__records *r, const nbl__record *record)
{
    nbl__arena arena = nbl__arena_make(r->ctx);
    nbl__text line = {.ctx = r->ctx};
    const char *path;
    NBL_TRY(grow(r));
    r->items[r->count++] = *record;
    nbl_status status = metrics_path(r, &arena, &path);
    nbl__record_print(&line, record);
    nbl__text_printf(&line, "\n");
    if (status == NBL_OK) status = line.status;
    if (status == NBL_OK) status = append(r, path, &line);
    nbl__text_free(&line);
    nbl__arena_free(&arena);
    return status;
}
