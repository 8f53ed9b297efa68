/* device_memory.c - see device_memory.h. */
#include "device/device_memory.h"

#include "device/cuda/cuda.h"
#include "ops/dequantize/dequantize.h"

void *nbl__memory_alloc(nbl_context *ctx, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda == NULL) return nbl__alloc(ctx, bytes);
    void *memory = nbl__cuda_alloc(cuda, bytes);
    if (memory && nbl__cuda_fill(cuda, memory, 0, bytes) != NBL_OK) {
        nbl__cuda_free(cuda, memory, bytes);
        return NULL;
    }
    return memory;
}

void nbl__memory_free(nbl_context *ctx, void *memory, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda) nbl__cuda_free(cuda, memory, bytes);
    else nbl__free(ctx, memory, bytes);
}

nbl_status nbl__memory_clear(nbl_context *ctx, void *memory, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda) return nbl__cuda_fill(cuda, memory, 0, bytes);
    memset(memory, 0, bytes);
    return NBL_OK;
}

nbl_status nbl__memory_machine(nbl_context *ctx, nbl__arena *arena, const char **name)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    nbl_cuda_device device = {NBL_RESULT(nbl_cuda_device)};
    if (cuda) NBL_TRY(nbl_cuda_device_get(ctx, cuda->index, &device));
    *name = nbl__arena_strdup(arena, cuda ? device.name : nbl_isa_name(ctx));
    return *name ? NBL_OK : NBL_ERROR_MEMORY;
}

uint64_t nbl__memory_left(nbl_context *ctx)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    return cuda ? nbl__cuda_left(cuda) : nbl__memory_available();
}

uint64_t nbl__memory_beside(nbl_context *ctx)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    return cuda ? cuda->beside : 0;
}

nbl_status nbl__memory_lend(nbl_context *ctx, void *memory, size_t bytes, bool read, void **host)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    *host = memory;
    if (cuda == NULL) return NBL_OK;
    NBL_TRY(nbl__cuda_stage(cuda, bytes, host));
    return read ? nbl__cuda_read(cuda, *host, memory, bytes) : NBL_OK;
}

nbl_status nbl__memory_return(nbl_context *ctx, void *memory, size_t bytes, const void *host)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    return cuda ? nbl__cuda_write(cuda, memory, host, bytes) : NBL_OK;
}

nbl_status nbl__memory_put(nbl_context *ctx, void *memory, const void *host, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda) return nbl__cuda_write(cuda, memory, host, bytes);
    memcpy(memory, host, bytes);
    return NBL_OK;
}

nbl_status nbl__memory_dequantize(nbl_context *ctx, const nbl_weight *weight, nbl_dtype dtype, void *memory)
{
#ifdef NIBBLE_CUDA_BUILT
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda) return nbl__cuda_dequantize(ctx, weight, 0, weight->shape[0], dtype, 0, memory, cuda->stream);
#endif
    return nbl_dequantize(ctx, weight, 0, weight->shape[0], dtype, 0, memory);
}

/* ---- reading without waiting ---- */

void *nbl__memory_alloc_host(nbl_context *ctx, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda == NULL) return nbl__alloc(ctx, bytes);
    void *host = nbl__cuda_alloc_host(cuda, bytes);
    if (host) memset(host, 0, bytes);
    return host;
}

void nbl__memory_free_host(nbl_context *ctx, void *host, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda) nbl__cuda_free_host(cuda, host);
    else nbl__free(ctx, host, bytes);
}

nbl_status nbl__memory_fetch(nbl_context *ctx, void *host, const void *memory, size_t bytes)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    if (cuda) return nbl__cuda_read_later(cuda, host, memory, bytes);
    memcpy(host, memory, bytes);
    return NBL_OK;
}

nbl_status nbl__memory_event_record(nbl_context *ctx, int64_t *index)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    *index = 0;
    return cuda ? nbl__cuda_event_record(cuda, index) : NBL_OK;
}

nbl_status nbl__memory_wait(nbl_context *ctx, int64_t index, const char *what)
{
    nbl__cuda *cuda = nbl__cuda_of(ctx);
    return cuda ? nbl__cuda_wait_for(cuda, index, what) : NBL_OK;
}
