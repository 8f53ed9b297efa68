/* base.h - included by every file of the library: errors, flow macros, memory, progress, checked
 * arithmetic.
 *
 * A function that can fail returns nbl_status. Before it returns a failure it has recorded a
 * message with nbl__fail. Three flow macros keep bodies readable:
 *
 *     NBL_TRY(call)                  if the call fails, return its status
 *     NBL_CHECK(ctx, condition, …)   unless the condition holds, record a message and return
 *     NBL_GO(call)                   as NBL_TRY, but sets `status` and jumps to the label `done`
 *
 * A check of what a user, a caller or a file gave is one of these, always on. What this code itself
 * guarantees is an assert, or nbl__assert_slow if the check takes a loop. Release builds have
 * neither.
 *
 * A context belongs to one calling thread at a time; inside a team (team.h) its workers may
 * record failures, allocate memory and report progress. */
#ifndef NBL_BASE_H
#define NBL_BASE_H

#include "nibble.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "base/cpu.h"

/* An assert whose condition takes a loop. It is on in Debug builds, unless the CMake option
 * NIBBLE_ASSERT_SLOW is off. Otherwise the condition is compiled and never evaluated. */
#ifdef NBL_ASSERT_SLOW
#define nbl__assert_slow(condition) assert(condition)
#else
#define nbl__assert_slow(condition) ((void)(0 && (condition)))
#endif

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

/* Records a message (printf style) in the context, clears its hint, and returns `code`. The
 * message becomes one line of valid UTF-8: control characters and invalid bytes, which file and
 * tensor names may contain, are escaped (visible.h). A message over 4095 bytes loses its middle.
 * Inside a team the first failure is kept. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__fail(nbl_context *ctx, nbl_status code,
                                                           const char *format, ...);
/* As nbl__fail, with the text of `error` (an errno value) appended. The status follows from it:
 * a full disk or quota is NBL_ERROR_NO_SPACE, a missing file NBL_ERROR_NOT_FOUND, an existing
 * one NBL_ERROR_EXISTS, ENOMEM is NBL_ERROR_MEMORY, everything else NBL_ERROR_IO. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__fail_errno(nbl_context *ctx, int error,
                                                                 const char *format, ...);
/* As nbl__fail, but line feeds and tabs of `text` stay. No name inside `text` may contain a line
 * feed. */
nbl_status nbl__fail_lines(nbl_context *ctx, nbl_status code, const char *text);
/* Prefixes the message recorded with `code` by a position and ": "; its hint stays.
 * NBL_ERROR_MEMORY and NBL_ERROR_CANCELLED are returned unchanged. Returns `code`. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__fail_within(nbl_context *ctx, nbl_status code,
                                                                  const char *format, ...);
/* Sets the hint of the failure just recorded: what the user can do. Returns `code`, so it can
 * end a function. */
__attribute__((format(printf, 3, 4))) nbl_status nbl__hint(nbl_context *ctx, nbl_status code,
                                                           const char *format, ...);
/* Sends one line (printf style) to the log callback; does nothing without one. */
__attribute__((format(printf, 3, 4))) void nbl__log(nbl_context *ctx, nbl_log_level level, const char *format,
                                                    ...);

/* ---- options of callers ---- */

/* Copies the options struct `given` of a caller into *options, both of the named type. Fields that
 * the caller's version did not have, and all of them if `given` is NULL, are zero. A struct_size that
 * is wrong and fields that this version does not know are an NBL_ERROR_ARGUMENT. */
#define NBL_OPTIONS_READ(ctx, type, given, options)                                                          \
    nbl__options_read((ctx), #type, (const type *)(given), (type *)(options), sizeof(type))
/* `ctx` NULL: the status without a message. `known`: the size in this version. */
nbl_status nbl__options_read(nbl_context *ctx, const char *type, const void *given, void *options,
                             size_t known);

/* Checks the struct_size of a caller's result struct of the named type, and sets its other bytes to
 * zero. NULL is allowed: the caller does not want it. */
#define NBL_RESULT_BEGIN(ctx, type, result) nbl__result_begin((ctx), #type, (type *)(result))
nbl_status nbl__result_begin(nbl_context *ctx, const char *type, void *result);
/* Copies *value, a struct of this version, into a result that NBL_RESULT_BEGIN has checked, as far as
 * the caller's version has its fields. */
#define NBL_RESULT_PUT(type, result, value)                                                                  \
    nbl__result_put((type *)(result), (const type *)(value), sizeof(type))
void nbl__result_put(void *result, const void *value, size_t known);

/* ---- memory ---- */

/* Zeroed memory, aligned to 64 bytes. Returns NULL and records a failure if there is none. Size
 * 0 gives a valid pointer. Any thread. Free with nbl__free and the same size. */
void *nbl__alloc(nbl_context *ctx, size_t size);
void nbl__free(nbl_context *ctx, void *memory, size_t size); /* NULL is allowed */

/* Sets `pointer` to `count` zeroed elements; NBL_OK or NBL_ERROR_MEMORY. Overflow of the size is
 * checked. */
#define NBL_ALLOC(ctx, pointer, count)                                                                       \
    (((pointer) = nbl__alloc_array((ctx), (size_t)(count), sizeof *(pointer))) ? NBL_OK : NBL_ERROR_MEMORY)
void *nbl__alloc_array(nbl_context *ctx, size_t count, size_t element);

/* ---- progress and cancellation ---- */

/* Starts an operation of `total` bytes. */
void nbl__progress_begin(nbl_context *ctx, uint64_t total);
void nbl__progress_add(nbl_context *ctx, uint64_t bytes); /* any thread */
/* Calls the progress callback; NBL_ERROR_CANCELLED if it returns non-zero. Only the thread that
 * called the library may call this. Also checks mapped files if a page could not be read
 * (file_guard.h). */
nbl_status nbl__progress_poll(nbl_context *ctx, const char *what);
/* The same from any thread: a team's other workers return NBL_OK without calling back. */
nbl_status nbl__progress_poll_here(nbl_context *ctx, const char *what);

/* ---- what the context knows ---- */

nbl_isa nbl__isa(const nbl_context *ctx);
/* The value of NIBBLE_IMPL when the context was created; NULL if unset. */
const char *nbl__forced_impl(const nbl_context *ctx);
/* The device (device/device.h) that was set; NULL: none, the context runs on the CPU. Set at most
 * once. `close` is called when the context is destroyed. Users call nbl__device_of. */
struct nbl__device *nbl__context_device(const nbl_context *ctx);
void nbl__context_set_device(nbl_context *ctx, struct nbl__device *device,
                             void (*close)(struct nbl__device *device));
/* Head of the context's list of mapped files; used by file.c only. */
struct nbl__mapping **nbl__context_mappings(nbl_context *ctx);
/* Fault injection for tests: output.c asks nbl__write_allowed before each change of the disk.
 * After nbl__inject_write(ctx, n) the n-th question is answered with false. */
bool nbl__write_allowed(nbl_context *ctx);
void nbl__inject_write(nbl_context *ctx, int64_t fail_at); /* 1: the next; 0: none */
int64_t nbl__write_count(const nbl_context *ctx);

/* For team.c: between enter and leave several threads may fail; the first failure is kept. leave
 * returns it. */
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
    assert(a >= 0 && b > 0);
    return a / b + (a % b != 0);
}

/* ---- text ---- */

static inline bool nbl__ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && memcmp(text + n - m, end, m) == 0;
}

#endif
