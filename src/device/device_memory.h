/* device_memory.h - memory of a context's device in one line each, for code that needs no more of a device. */
#ifndef NBL_DEVICE_MEMORY_H
#define NBL_DEVICE_MEMORY_H

#include "device/device.h"

/* Zeroed; NULL and a recorded failure if there is none. Size 0 gives a valid pointer. */
static inline void *nbl__memory_alloc(nbl_context *ctx, size_t bytes)
{
    return nbl__device_of(ctx)->alloc(ctx, bytes, true);
}
static inline void nbl__memory_free(nbl_context *ctx, void *memory, size_t bytes) /* NULL is allowed */
{
    nbl__device_of(ctx)->free(ctx, memory, bytes);
}
static inline nbl_status nbl__memory_clear(nbl_context *ctx, void *memory, size_t bytes)
{
    return nbl__device_of(ctx)->fill(ctx, memory, 0, bytes);
}
/* Bytes that could be had now; 0: unknown. */
static inline uint64_t nbl__memory_bytes_free(nbl_context *ctx)
{
    return nbl__device_of(ctx)->bytes_free(ctx);
}
/* Bytes that the device takes beside all that is allocated. */
static inline uint64_t nbl__memory_overhead_bytes(const nbl_context *ctx)
{
    return nbl__device_of(ctx)->overhead_bytes;
}
/* Maps memory for the host, one piece at a time. Call nbl__memory_unmap_host after writing to it. */
static inline nbl_status nbl__memory_map_host(nbl_context *ctx, void *memory, size_t bytes, bool read,
                                              void **host)
{
    return nbl__device_of(ctx)->map_host(ctx, memory, bytes, read, host);
}
static inline nbl_status nbl__memory_unmap_host(nbl_context *ctx, void *memory, size_t bytes,
                                                const void *host)
{
    return nbl__device_of(ctx)->unmap_host(ctx, memory, host, bytes);
}
/* Copies from the host. */
static inline nbl_status nbl__memory_write(nbl_context *ctx, void *memory, const void *host, size_t bytes)
{
    return nbl__device_of(ctx)->write(ctx, memory, host, bytes);
}

/* ---- reading without waiting ---- */

/* Memory of the host that a device can write beside its other work; zeroed. */
static inline void *nbl__memory_alloc_host(nbl_context *ctx, size_t bytes)
{
    void *host = nbl__device_of(ctx)->alloc_host(ctx, bytes);
    return host ? memset(host, 0, bytes) : NULL;
}
static inline void nbl__memory_free_host(nbl_context *ctx, void *host, size_t bytes) /* NULL is allowed */
{
    nbl__device_of(ctx)->free_host(ctx, host, bytes);
}
/* Copies to such memory what is there when all that was enqueued before is done; nbl__memory_wait tells when that is. */
static inline nbl_status nbl__memory_read_async(nbl_context *ctx, void *host, const void *memory,
                                                size_t bytes)
{
    return nbl__device_of(ctx)->read_async(ctx, host, memory, bytes);
}
static inline nbl_status nbl__memory_event_record(nbl_context *ctx, int64_t *event)
{
    return nbl__device_of(ctx)->event_record(ctx, event);
}
/* Waits until everything before the event is done, and reports what went wrong in it. */
static inline nbl_status nbl__memory_wait(nbl_context *ctx, int64_t event, const char *what)
{
    return nbl__device_of(ctx)->event_wait(ctx, event, what);
}

#endif
