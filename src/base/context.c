/* context.c - the context: errors, log, memory, progress. See base.h for the rules.
 *
 * All state that a library call may change is in nbl_context; the exceptions are file_guard.c and
 * stack.c. Inside a team (team.c) several threads may fail at once; a lock keeps
 * the first message. */
#include "base/base.h"

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/file/file_guard.h"
#include "base/file/file.h"
#include "base/team.h"
#include "base/visible.h"

struct nbl_context {
    nbl_context_options options;
    nbl_isa isa;
    char impl[64]; /* NIBBLE_IMPL */

    pthread_mutex_t lock; /* guards team_status, message and hint inside a team */
    bool in_team;
    pthread_t caller; /* the thread that called the library; valid while in_team */
    nbl_status team_status;
    /* of the last failure; kept until the next one */
    char message[4096];
    char hint[2048];

    uint64_t progress_total;
    atomic_uint_fast64_t progress_done;
    /* fault injection: questions so far; number of the one that fails, 0: none */
    atomic_int_fast64_t writes;
    int64_t fail_write_at;

    nbl__pool pool;
    struct nbl__mapping *mappings;

    struct nbl__device *device;
    void (*close_device)(struct nbl__device *device);
};

/* ---- names ---- */

const char *nbl_version(void)
{
    return NBL_VERSION_STRING;
}

const char *nbl_status_name(nbl_status status)
{
    switch (status) {
#define NAME(number, name, text)                                                                             \
    case NBL_##name: return "NBL_" #name;
        NBL_STATUS_TABLE(NAME)
#undef NAME
    }
    return "NBL_ERROR_INTERNAL";
}

const char *nbl_status_text(nbl_status status)
{
    switch (status) {
#define TEXT(number, name, text)                                                                             \
    case NBL_##name: return text;
        NBL_STATUS_TABLE(TEXT)
#undef TEXT
    }
    return "unknown status";
}

/* ---- life ---- */

nbl_status nbl_context_create(const nbl_context_options *given, nbl_context **result)
{
    if (result == NULL) return NBL_ERROR_ARGUMENT;
    *result = NULL;
    nbl_context_options options;
    NBL_TRY(NBL_OPTIONS_READ(NULL, nbl_context_options, given, &options));
    /* Zero fields get their defaults. */
    nbl_allocator allocator = options.allocator.alloc ? options.allocator : nbl__system_allocator();
    if (options.threads < 0 || options.threads > NBL_MAX_THREADS || !allocator.free)
        return NBL_ERROR_ARGUMENT;
    nbl_isa isa;
    if (!nbl__isa_choose(getenv("NIBBLE_ISA"), nbl__isa_detect(), &isa)) return NBL_ERROR_ARGUMENT;

    nbl_context *ctx = allocator.alloc(allocator.user, sizeof *ctx, 64);
    if (ctx == NULL) return NBL_ERROR_MEMORY;
    memset(ctx, 0, sizeof *ctx);
    ctx->options = options;
    ctx->options.allocator = allocator;
    if (ctx->options.threads == 0)
        ctx->options.threads = (int)nbl__min_i64(nbl__core_count(), NBL_MAX_THREADS);
    ctx->isa = isa;
    const char *impl = getenv("NIBBLE_IMPL");
    if (impl) snprintf(ctx->impl, sizeof ctx->impl, "%s", impl);
    pthread_mutex_init(&ctx->lock, NULL);
    nbl__pool_open(&ctx->pool);
    *result = ctx;
    return NBL_OK;
}

void nbl_context_destroy(nbl_context *ctx)
{
    if (ctx == NULL) return;
    /* The device goes first: closing it may still use the context. */
    if (ctx->device) ctx->close_device(ctx->device);
    nbl__pool_close(&ctx->pool);
    pthread_mutex_destroy(&ctx->lock);
    nbl_allocator allocator = ctx->options.allocator;
    allocator.free(allocator.user, ctx, sizeof *ctx);
}

const char *nbl_error_message(const nbl_context *ctx)
{
    return ctx->message;
}

const char *nbl_error_hint(const nbl_context *ctx)
{
    return ctx->hint;
}

const char *nbl_isa_name(const nbl_context *ctx)
{
    return nbl__isa_name(ctx->isa);
}

const char *nbl__forced_impl(const nbl_context *ctx)
{
    return ctx->impl[0] ? ctx->impl : NULL;
}

struct nbl__device *nbl__context_device(const nbl_context *ctx)
{
    return ctx->device;
}

void nbl__context_set_device(nbl_context *ctx, struct nbl__device *device,
                             void (*close)(struct nbl__device *device))
{
    ctx->device = device;
    ctx->close_device = close;
}

struct nbl__mapping **nbl__context_mappings(nbl_context *ctx)
{
    return &ctx->mappings;
}

nbl_isa nbl__isa(const nbl_context *ctx)
{
    return ctx->isa;
}

nbl_status nbl_context_set_threads(nbl_context *ctx, int threads)
{
    NBL_CHECK(ctx, threads >= 0 && threads <= NBL_MAX_THREADS, NBL_ERROR_ARGUMENT,
              "%d threads; it must be 0 to %d", threads, (int)NBL_MAX_THREADS);
    ctx->options.threads = threads ? threads : (int)nbl__min_i64(nbl__core_count(), NBL_MAX_THREADS);
    return NBL_OK;
}

int nbl_threads(const nbl_context *ctx)
{
    return ctx->options.threads;
}

nbl__pool *nbl__context_pool(nbl_context *ctx)
{
    return &ctx->pool;
}

/* ---- errors ---- */

/* Moves `at` by `step` (+1, -1) until it is at the first byte of a UTF-8 character or at the
 * end. */
static size_t char_start(const char *text, size_t at, int step)
{
    while (at > 0 && text[at] && ((unsigned char)text[at] & 0xc0) == 0x80) at += (size_t)step;
    return at;
}

/* Stores a message. If it is too long its middle is cut out: the position is at its beginning
 * and the reason at its end, while a long name is in between. */
static void store(nbl_context *ctx, const char *text)
{
    static const char gap[] = " ... ";
    size_t room = sizeof ctx->message - 1, length = strlen(text);
    ctx->hint[0] = '\0';
    if (length <= room) {
        memcpy(ctx->message, text, length + 1);
        return;
    }
    size_t head = char_start(text, room / 2, -1), gap_size = sizeof gap - 1,
           tail = char_start(text, length - (room - room / 2 - gap_size), 1);
    memcpy(ctx->message, text, head);
    memcpy(ctx->message + head, gap, gap_size);
    memcpy(ctx->message + head + gap_size, text + tail, length - tail + 1);
}

/* Formats, escapes and stores a message. `suffix` (NULL: none) is appended after ": ". `lines`:
 * keep line feeds. */
static void record(nbl_context *ctx, nbl_status code, const char *suffix, bool lines, const char *format,
                   va_list arguments)
{
    /* Larger than the stored message, so that cutting happens in store, which keeps the end. */
    char text[16384], shown[16384];
    int n = vsnprintf(text, sizeof text, format, arguments);
    size_t used = n < 0 ? 0 : (size_t)n < sizeof text ? (size_t)n : sizeof text - 1;
    if (suffix) {
        if (used > sizeof text - 256) used = sizeof text - 256;
        snprintf(text + used, sizeof text - used, ": %s", suffix);
    }
    nbl__visible_text(shown, sizeof shown, text, strlen(text), lines);
    /* In a team only the first failure is stored. */
    pthread_mutex_lock(&ctx->lock);
    if (!ctx->in_team || ctx->team_status == NBL_OK) {
        if (ctx->in_team) ctx->team_status = code;
        store(ctx, shown);
    }
    pthread_mutex_unlock(&ctx->lock);
}

nbl_status nbl__fail(nbl_context *ctx, nbl_status code, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record(ctx, code, NULL, false, format, arguments);
    va_end(arguments);
    return code;
}

nbl_status nbl__fail_errno(nbl_context *ctx, int error, const char *format, ...)
{
    bool full = error == ENOSPC || error == EDQUOT || error == EFBIG;
    nbl_status code = full                                  ? NBL_ERROR_NO_SPACE
                      : error == ENOENT || error == ENOTDIR ? NBL_ERROR_NOT_FOUND
                      : error == EEXIST                     ? NBL_ERROR_EXISTS
                      : error == ENOMEM                     ? NBL_ERROR_MEMORY
                                                            : NBL_ERROR_IO;
    char text[128];
    if (strerror_r(error, text, sizeof text) != 0) snprintf(text, sizeof text, "error %d", error);
    va_list arguments;
    va_start(arguments, format);
    record(ctx, code, text, false, format, arguments);
    va_end(arguments);
    return code;
}

nbl_status nbl__hint(nbl_context *ctx, nbl_status code, const char *format, ...)
{
    char text[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    pthread_mutex_lock(&ctx->lock);
    nbl__visible_text(ctx->hint, sizeof ctx->hint, text, strlen(text), false);
    pthread_mutex_unlock(&ctx->lock);
    return code;
}

__attribute__((format(printf, 3, 4))) static nbl_status fail_lines(nbl_context *ctx, nbl_status code,
                                                                   const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    record(ctx, code, NULL, true, format, arguments);
    va_end(arguments);
    return code;
}

nbl_status nbl__fail_lines(nbl_context *ctx, nbl_status code, const char *text)
{
    return fail_lines(ctx, code, "%s", text);
}

nbl_status nbl__fail_within(nbl_context *ctx, nbl_status code, const char *format, ...)
{
    /* A position adds nothing to these two. */
    if (code == NBL_ERROR_MEMORY || code == NBL_ERROR_CANCELLED) return code;
    char position[1024], message[sizeof ctx->message], hint[sizeof ctx->hint];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(position, sizeof position, format, arguments);
    va_end(arguments);
    memcpy(message, ctx->message, sizeof message);
    memcpy(hint, ctx->hint, sizeof hint);
    nbl__fail(ctx, code, "%s: %s", position, message);
    return *hint ? nbl__hint(ctx, code, "%s", hint) : code;
}

void nbl__log(nbl_context *ctx, nbl_log_level level, const char *format, ...)
{
    if (ctx->options.log == NULL) return;
    char line[4096], shown[4096];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    nbl__visible_text(shown, sizeof shown, line, strlen(line), false);
    ctx->options.log(ctx->options.log_user, level, shown);
}

/* ---- team ---- */

void nbl__team_enter(nbl_context *ctx)
{
    ctx->team_status = NBL_OK;
    ctx->caller = pthread_self();
    ctx->in_team = true;
}

nbl_status nbl__team_leave(nbl_context *ctx)
{
    ctx->in_team = false;
    return ctx->team_status;
}

/* ---- memory ---- */

void *nbl__alloc(nbl_context *ctx, size_t size)
{
    /* Allocators may return NULL for size 0, which would look like a failure. */
    if (size == 0) size = 1;
    const nbl_allocator *a = &ctx->options.allocator;
    void *memory = a->alloc(a->user, size, 64);
    if (memory == NULL) {
        nbl__fail(ctx, NBL_ERROR_MEMORY, "out of memory: %zu bytes were needed", size);
        return NULL;
    }
    return memset(memory, 0, size);
}

void nbl__free(nbl_context *ctx, void *memory, size_t size)
{
    if (memory == NULL) return;
    const nbl_allocator *a = &ctx->options.allocator;
    a->free(a->user, memory, size ? size : 1);
}

void *nbl__alloc_array(nbl_context *ctx, size_t count, size_t element)
{
    size_t size;
    if (__builtin_mul_overflow(count, element, &size)) {
        nbl__fail(ctx, NBL_ERROR_MEMORY, "out of memory: %zu x %zu bytes were needed", count, element);
        return NULL;
    }
    return nbl__alloc(ctx, size);
}

/* ---- progress ---- */

void nbl__progress_begin(nbl_context *ctx, uint64_t total)
{
    ctx->progress_total = total;
    atomic_store(&ctx->progress_done, 0);
}

void nbl__progress_add(nbl_context *ctx, uint64_t bytes)
{
    atomic_fetch_add(&ctx->progress_done, bytes);
}

nbl_status nbl__progress_poll(nbl_context *ctx, const char *what)
{
    if (nbl__guard_hits() > 0) NBL_TRY(nbl__files_check(ctx)); /* a page was replaced by zeros */
    if (ctx->options.progress == NULL) return NBL_OK;
    nbl_progress now = {atomic_load(&ctx->progress_done), ctx->progress_total, what};
    if (ctx->options.progress(ctx->options.progress_user, &now))
        return nbl__fail(ctx, NBL_ERROR_CANCELLED, "interrupted; nothing was written");
    return NBL_OK;
}

nbl_status nbl__progress_poll_here(nbl_context *ctx, const char *what)
{
    if (ctx->in_team && !pthread_equal(ctx->caller, pthread_self())) return NBL_OK;
    return nbl__progress_poll(ctx, what);
}

/* ---- fault injection ---- */

bool nbl__write_allowed(nbl_context *ctx)
{
    return atomic_fetch_add(&ctx->writes, 1) + 1 != ctx->fail_write_at;
}

void nbl__inject_write(nbl_context *ctx, int64_t fail_at)
{
    atomic_store(&ctx->writes, 0);
    ctx->fail_write_at = fail_at;
}

int64_t nbl__write_count(const nbl_context *ctx)
{
    return atomic_load(&ctx->writes);
}
