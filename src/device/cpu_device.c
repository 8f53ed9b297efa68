/* cpu_device.c - the CPU as a device: operators run when they are called, in the host's memory. See device.h. */
#include "device/device.h"

static const nbl__impl *const *impls(const nbl__op *op)
{
    return op->impls;
}

static size_t saved_bytes(const nbl__impl *impl, const void *arguments)
{
    (void)impl, (void)arguments;
    return 0;
}

static nbl_status machine(nbl_context *ctx, nbl__arena *arena, const char **name)
{
    *name = nbl__arena_strdup(arena, nbl_isa_name(ctx));
    return *name ? NBL_OK : NBL_ERROR_MEMORY;
}

/* ---- memory: the context's, which is always zeroed ---- */

static void *alloc(nbl_context *ctx, size_t bytes, bool cleared)
{
    (void)cleared;
    return nbl__alloc(ctx, bytes);
}

static uint64_t bytes_free(nbl_context *ctx)
{
    (void)ctx;
    return nbl__memory_available();
}

static nbl_status borrow_scratch(nbl_context *ctx, const char *op, size_t bytes, void **scratch)
{
    (void)op;
    *scratch = nbl__alloc(ctx, bytes);
    return *scratch ? NBL_OK : NBL_ERROR_MEMORY;
}

/* ---- copies ---- */

static nbl_status fill(nbl_context *ctx, void *to, int byte, size_t bytes)
{
    (void)ctx;
    memset(to, byte, bytes);
    return NBL_OK;
}

static nbl_status copy(nbl_context *ctx, void *to, const void *from, size_t bytes)
{
    (void)ctx;
    memcpy(to, from, bytes);
    return NBL_OK;
}

static nbl_status map_host(nbl_context *ctx, void *memory, size_t bytes, bool read, void **host)
{
    (void)ctx, (void)bytes, (void)read;
    *host = memory;
    return NBL_OK;
}

static nbl_status unmap_host(nbl_context *ctx, void *memory, const void *host, size_t bytes)
{
    (void)ctx, (void)memory, (void)host, (void)bytes;
    return NBL_OK;
}

static nbl_status offload_open(nbl_context *ctx)
{
    (void)ctx;
    return NBL_OK;
}

/* ---- waiting: everything is done when it was called ---- */

static nbl_status wait(nbl_context *ctx, const char *what)
{
    (void)ctx, (void)what;
    return NBL_OK;
}

static nbl_status event_record(nbl_context *ctx, int64_t *event)
{
    (void)ctx;
    *event = 0;
    return NBL_OK;
}

static nbl_status event_wait(nbl_context *ctx, int64_t event, const char *what)
{
    (void)ctx, (void)event, (void)what;
    return NBL_OK;
}

const nbl__device nbl__cpu = {
    .name = "CPU",
    .operations_per_host_byte = 12000, /* nothing crosses a bus: tests plan as for a usual device */
    .impls = impls,
    .saved_bytes = saved_bytes,
    .dequantize = nbl__dequantize_rows,
    .machine = machine,
    .alloc = alloc,
    .free = nbl__free,
    .bytes_free = bytes_free,
    .alloc_host = nbl__alloc,
    .free_host = nbl__free,
    .borrow_scratch = borrow_scratch,
    .return_scratch = nbl__free,
    .fill = fill,
    .write = copy,
    .read = copy,
    .write_async = copy,
    .read_async = copy,
    .map_host = map_host,
    .unmap_host = unmap_host,
    .offload_open = offload_open,
    .wait = wait,
    .event_record = event_record,
    .event_wait = event_wait,
};

nbl_status nbl__check_models(nbl_context *ctx)
{
    if (!nbl__device_of(ctx)->operators_only) return NBL_OK;
    nbl_status status = nbl__fail(ctx, NBL_ERROR_UNSUPPORTED,
                                  "this context borrows a stream: it runs operators, not models");
    return nbl__hint(ctx, status, "open the model with a context of its own, after nbl_context_use_cuda");
}
