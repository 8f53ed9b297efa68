/* device_memory.h - memory where the operators of a context run, for code that does not know where that is: the host's, or a
 * device's (device/cuda/cuda.h). */
#ifndef NBL_MEMORY_H
#define NBL_MEMORY_H

#include "base/arena.h"
#include "base/base.h"

/* Zeroed; NULL and a recorded failure when there is none. Size 0 gives a valid pointer. */
void *nbl__memory_alloc(nbl_context *ctx, size_t bytes);
void nbl__memory_free(nbl_context *ctx, void *memory, size_t bytes); /* NULL is allowed */
nbl_status nbl__memory_clear(nbl_context *ctx, void *memory, size_t bytes);

/* What the last bits of results depend on beside arguments: the instruction set ("avx2"), or the device's name. */
nbl_status nbl__memory_machine(nbl_context *ctx, nbl__arena *arena, const char **name);

/* Bytes that could be had now, less what is the system's to keep; 0: unknown. */
uint64_t nbl__memory_left(nbl_context *ctx);

/* Bytes of the device that the process takes beside everything that is allocated there: its context, libraries, kernels and
 * recordings; 0 on the CPU. */
uint64_t nbl__memory_beside(nbl_context *ctx);

/* Lends a piece of it to the host: the memory itself, or a copy. With `read` it holds what is there; else anything. One at a
 * time; it is valid until the next of these calls, or what the context runs next. After nbl__memory_return what the
 * host has written counts; who has written nothing need not return it. */
nbl_status nbl__memory_lend(nbl_context *ctx, void *memory, size_t bytes, bool read, void **host);
nbl_status nbl__memory_return(nbl_context *ctx, void *memory, size_t bytes, const void *host);

/* Copies from the host. */
nbl_status nbl__memory_put(nbl_context *ctx, void *memory, const void *host, size_t bytes);

/* All of a weight whose data lies in such memory, decoded into other such memory. */
nbl_status nbl__memory_dequantize(nbl_context *ctx, const nbl_weight *weight, nbl_dtype dtype, void *memory);

/* ---- reading without waiting ---- */

/* Memory of the host that a device can write beside its other work; zeroed. */
void *nbl__memory_alloc_host(nbl_context *ctx, size_t bytes);
void nbl__memory_free_host(nbl_context *ctx, void *host, size_t bytes); /* NULL is allowed */
/* Copies to such memory what is there when all that was enqueued before is done; nbl__memory_wait tells when that is. */
nbl_status nbl__memory_fetch(nbl_context *ctx, void *host, const void *memory, size_t bytes);
/* A place in the order of what is enqueued, and waiting until everything before it is done. Reports what went wrong in
 * it; 0 is the beginning. */
nbl_status nbl__memory_event_record(nbl_context *ctx, int64_t *index);
nbl_status nbl__memory_wait(nbl_context *ctx, int64_t index, const char *what);

#endif
