/* cuda_absent.c - cuda.h in a build without the backend: no context has a device, so nothing of this is ever called
 * but nbl__cuda_of and nbl_context_use_cuda. */
#include "device/cuda/cuda.h"

#ifndef NIBBLE_CUDA_BUILT

nbl__cuda *nbl__cuda_of(const nbl_context *ctx)
{
    (void)ctx;
    return NULL;
}

nbl_status nbl_context_use_cuda(nbl_context *ctx, int index)
{
    int count;
    (void)index;
    return nbl_cuda_device_count(ctx, &count);
}

void *nbl__cuda_alloc(nbl__cuda *cuda, size_t bytes)
{
    (void)cuda, (void)bytes;
    return NULL;
}

void nbl__cuda_free(nbl__cuda *cuda, void *memory, size_t bytes)
{
    (void)cuda, (void)memory, (void)bytes;
}

size_t nbl__cuda_left(nbl__cuda *cuda)
{
    (void)cuda;
    return 0;
}

void *nbl__cuda_alloc_host(nbl__cuda *cuda, size_t bytes)
{
    (void)cuda, (void)bytes;
    return NULL;
}

void nbl__cuda_free_host(nbl__cuda *cuda, void *memory)
{
    (void)cuda, (void)memory;
}

nbl_status nbl__cuda_stage(nbl__cuda *cuda, size_t bytes, void **host)
{
    return nbl__cuda_write(cuda, host, NULL, bytes);
}

nbl_status nbl__cuda_write(nbl__cuda *cuda, void *to, const void *from, size_t bytes)
{
    (void)cuda, (void)to, (void)from, (void)bytes;
    return NBL_ERROR_INTERNAL;
}

nbl_status nbl__cuda_read(nbl__cuda *cuda, void *to, const void *from, size_t bytes)
{
    return nbl__cuda_write(cuda, to, from, bytes);
}

nbl_status nbl__cuda_write_later(nbl__cuda *cuda, void *to, const void *from, size_t bytes)
{
    return nbl__cuda_write(cuda, to, from, bytes);
}

nbl_status nbl__cuda_read_later(nbl__cuda *cuda, void *to, const void *from, size_t bytes)
{
    return nbl__cuda_write(cuda, to, from, bytes);
}

nbl_status nbl__cuda_fill(nbl__cuda *cuda, void *to, int byte, size_t bytes)
{
    (void)byte;
    return nbl__cuda_write(cuda, to, NULL, bytes);
}

nbl_status nbl__cuda_wait(nbl__cuda *cuda, const char *what)
{
    (void)what;
    return nbl__cuda_write(cuda, NULL, NULL, 0);
}

nbl_status nbl__cuda_event_record(nbl__cuda *cuda, int64_t *index)
{
    return nbl__cuda_write(cuda, index, NULL, 0);
}

nbl_status nbl__cuda_wait_for(nbl__cuda *cuda, int64_t index, const char *what)
{
    (void)index;
    return nbl__cuda_wait(cuda, what);
}

nbl_status nbl__cuda_timers_open(nbl__cuda *cuda, int count)
{
    return nbl__cuda_write(cuda, NULL, NULL, (size_t)count);
}

void nbl__cuda_timers_close(nbl__cuda *cuda)
{
    (void)cuda;
}

nbl_status nbl__cuda_timer_record(nbl__cuda *cuda, int timer)
{
    return nbl__cuda_write(cuda, NULL, NULL, (size_t)timer);
}

nbl_status nbl__cuda_timer_elapsed(nbl__cuda *cuda, int from, int to, double *milliseconds)
{
    (void)from, (void)to;
    return nbl__cuda_write(cuda, milliseconds, NULL, 0);
}

nbl_status nbl__cuda_capture_begin(nbl__cuda *cuda)
{
    return nbl__cuda_write(cuda, NULL, NULL, 0);
}

nbl_status nbl__cuda_capture_end(nbl__cuda *cuda, bool good, void **graph)
{
    (void)good;
    return nbl__cuda_write(cuda, graph, NULL, 0);
}

nbl_status nbl__cuda_replay(nbl__cuda *cuda, void *graph)
{
    return nbl__cuda_write(cuda, graph, NULL, 0);
}

void nbl__cuda_graph_free(nbl__cuda *cuda, void *graph)
{
    (void)cuda, (void)graph;
}

#endif
