/* base.h - what every file of the library includes: the context, errors, flow
 * macros and checked arithmetic.
 *
 * A function that can fail returns nbl_status and has said why through
 * nbl__fail before it returns. Three flow macros keep bodies readable:
 *
 *     NBL_TRY(call)                  return the status of a failed call
 *     NBL_CHECK(ctx, condition, …)   fail with a message unless condition
 *     NBL_GO(call)                   as NBL_TRY, but to the label `done`
 */
#ifndef NBL_BASE_H
#define NBL_BASE_H

#include "nibble.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"

#define NBL_TRY(call)                                                                                        \
    do {                                                                                                     \
        nbl_status status_ = (call);                                                                         \
        if (status_ != NBL_OK) return status_;                                                               \
    } while (0)

#define NBL_CHECK(ctx, condition, code, ...)                                                                 \
    do {                                                                                                     \
        if (!(condition)) return nbl__fail((ctx), (code), __VA_ARGS__);                                      \
    } while (0)

#define NBL_GO(call)                                                                                         \
    do {                                                                                                     \
        status = (call);                                                                                     \
        if (status != NBL_OK) goto done;                                                                     \
    } while (0)

/* Records a message (printf style) and returns `code`. The message becomes one line of valid UTF-8:
 * control characters and broken bytes, which file and tensor names may carry, are written out (visible.h).
 * Inside a team the first failure wins. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__fail(nbl_context *ctx, nbl_status code,
                                                           const char *format, ...);
/* As nbl__fail with errno's meaning appended; a full disk becomes NBL_ERROR_NO_SPACE, a missing
 * file NBL_ERROR_NOT_FOUND, everything else NBL_ERROR_IO. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__fail_errno(nbl_context *ctx, int error,
                                                                 const char *format, ...);
/* As nbl__fail for a text of several lines, which stay lines. The caller makes sure that no name in it carries a
 * line break. */
nbl_status nbl__fail_lines(nbl_context *ctx, nbl_status code, const char *text);
/* Puts the place, and ": ", in front of the message that was recorded with `code`; its hint stays. Lack of memory and a
 * cancellation stay as they are. Returns `code`. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__fail_within(nbl_context *ctx, nbl_status code,
                                                                  const char *format, ...);
/* Adds a hint to the failure just recorded. Returns `code` so that it can end a function. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__hint(nbl_context *ctx, nbl_status code,
                                                           const char *format, ...);
__attribute__((format(printf, 3, 4))) void nbl__log(nbl_context *ctx, nbl_log_level level, const char *format,
                                                    ...);

/* ---- memory ---- */

/* Zeroed memory, aligned to 64 bytes; NULL and a recorded failure when there is none. Size 0 gives
 * a valid pointer. */
void *nbl__alloc(nbl_context *ctx, size_t size);
void nbl__free(nbl_context *ctx, void *memory, size_t size); /* NULL is allowed */

/* Fails with NBL_ERROR_MEMORY when out of memory. */
#define NBL_ALLOC(ctx, pointer, count)                                                                       \
    (((pointer) = nbl__alloc_array((ctx), (size_t)(count), sizeof *(pointer))) ? NBL_OK : NBL_ERROR_MEMORY)
void *nbl__alloc_array(nbl_context *ctx, size_t count, size_t element);

/* ---- progress and cancellation ---- */

void nbl__progress_begin(nbl_context *ctx, uint64_t total);
void nbl__progress_add(nbl_context *ctx, uint64_t bytes); /* any thread */
/* Calls the user's function; only from the thread that called the library. */
nbl_status nbl__progress_poll(nbl_context *ctx, const char *what);
/* The same from any thread of a team: all but that one go on. */
nbl_status nbl__progress_poll_here(nbl_context *ctx, const char *what);

/* ---- what the context knows ---- */

nbl_isa nbl__isa(const nbl_context *ctx);
/* The implementation that NIBBLE_IMPL named when the context was made, or NULL. */
const char *nbl__forced_impl(const nbl_context *ctx);
/* What the context runs on instead of the CPU, or NULL: an nbl__cuda (device/cuda/cuda.h), which sets it once and is
 * closed with the context. */
void *nbl__accelerator(const nbl_context *ctx);
void nbl__set_accelerator(nbl_context *ctx, void *accelerator, void (*close)(void *accelerator));
/* The head of the list of mapped files; file.c's. */
struct nbl__mapping **nbl__context_mappings(nbl_context *ctx);
/* An operation that writes asks first; a test can make the n-th one fail (nbl__inject_write). */
bool nbl__write_allowed(nbl_context *ctx);
void nbl__inject_write(nbl_context *ctx, int64_t fail_at); /* 1: the next; 0: never */
int64_t nbl__write_count(const nbl_context *ctx);

/* Used by team.c: between these two, concurrent failures are allowed and the first is kept. */
void nbl__team_enter(nbl_context *ctx);
nbl_status nbl__team_leave(nbl_context *ctx);

/* ---- checked arithmetic: false on overflow ---- */

static inline bool nbl__add_u64(uint64_t a, uint64_t b, uint64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool nbl__mul_u64(uint64_t a, uint64_t b, uint64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
static inline int64_t nbl__min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t nbl__max_i64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
static inline int64_t nbl__ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

/* ---- text ---- */

static inline bool nbl__ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && memcmp(text + n - m, end, m) == 0;
}

#endif
