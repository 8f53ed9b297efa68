/* cuda_trace_memory.c - memory of the device and of the host. See cuda_trace.h.
 *
 * Device memory is a range of addresses that the host can neither read nor write: who does crashes, as with a device.
 * Its contents lie at the same offset of a second range. Addresses are given out upwards and never twice; each
 * allocation is followed by a page that belongs to nobody. Memory of the host that the runtime gives out lies in a
 * third range. All three begin at constant addresses. Pages cost memory once they are written. */
#include "cuda_trace.h"
#include "ptx/ptx.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define DEVICE_BASE 0x200000000000u
#define CONTENTS_BASE 0x210000000000u
#define HOST_BASE 0x220000000000u
#define RANGE ((size_t)1 << 40)

enum { PAGE = 4096, CONTEXT_BYTES = 512 << 20 };

typedef struct allocation {
    uintptr_t address;
    size_t bytes;
    bool live;
} allocation;

typedef struct space {
    uintptr_t base;
    size_t used, live_bytes;
    allocation *all; /* ascending addresses */
    size_t count, capacity;
} space;

static space device = {.base = DEVICE_BASE}, host = {.base = HOST_BASE};
static bool mapped;

static void map_range(uintptr_t at, int rights)
{
    void *p = mmap((void *)at, RANGE, rights,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (p == (void *)at) return;
    perror("cuda_trace: mmap");
    abort();
}

static uintptr_t take(space *s, size_t bytes)
{
    if (!mapped) {
        map_range(DEVICE_BASE, PROT_NONE);
        map_range(CONTENTS_BASE, PROT_READ | PROT_WRITE);
        map_range(HOST_BASE, PROT_READ | PROT_WRITE);
        mapped = true;
    }
    size_t whole = (bytes + 2 * PAGE - 1) / PAGE * PAGE;
    if (s->used + whole > RANGE) return 0;
    if (s->count == s->capacity) {
        s->capacity = s->capacity ? 2 * s->capacity : 64;
        s->all = realloc(s->all, s->capacity * sizeof *s->all);
        if (s->all == NULL) abort();
    }
    allocation *a = &s->all[s->count++];
    *a = (allocation){s->base + s->used, bytes, true};
    s->used += whole;
    s->live_bytes += bytes;
    return a->address;
}

/* The last allocation that begins at or before p. */
static allocation *find(const space *s, uintptr_t p)
{
    size_t low = 0, high = s->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (s->all[middle].address <= p) low = middle + 1;
        else high = middle;
    }
    return low ? &s->all[low - 1] : NULL;
}

static bool give_back(space *s, void *p)
{
    allocation *a = find(s, (uintptr_t)p);
    if (a == NULL || a->address != (uintptr_t)p || !a->live) return false;
    a->live = false;
    s->live_bytes -= a->bytes;
    uintptr_t contents = s == &device ? a->address - DEVICE_BASE + CONTENTS_BASE : a->address;
    madvise((void *)contents, (a->bytes + PAGE - 1) / PAGE * PAGE, MADV_DONTNEED);
    return true;
}

bool trace_is_device(const void *p)
{
    return (uintptr_t)p - DEVICE_BASE < RANGE;
}

bool trace_is_allocated(const void *p, size_t bytes)
{
    const allocation *a = find(trace_is_device(p) ? &device : &host, (uintptr_t)p);
    return a && a->live && (uintptr_t)p - a->address + bytes <= a->bytes;
}

void *trace_contents(const void *p)
{
    return trace_is_device(p) ? (void *)((uintptr_t)p - DEVICE_BASE + CONTENTS_BASE) : (void *)(uintptr_t)p;
}

bool trace_find(uint64_t address, ptx_range *range)
{
    const allocation *a = find(trace_is_device((const void *)address) ? &device : &host, address);
    if (a == NULL || !a->live) return false;
    *range = (ptx_range){a->address, a->bytes, trace_contents((const void *)a->address)};
    return true;
}

void trace_copy(void *to, const void *from, size_t bytes)
{
    memmove(trace_contents(to), trace_contents(from), bytes);
}

/* Zeroed pages are given back: large fills take no memory. */
void trace_fill(void *to, int byte, size_t bytes)
{
    char *p = trace_contents(to);
    size_t head = (size_t)(-(uintptr_t)p % PAGE);
    if (byte == 0 && bytes > head + PAGE) {
        size_t whole = (bytes - head) / PAGE * PAGE;
        memset(p, 0, head);
        madvise(p + head, whole, MADV_DONTNEED);
        memset(p + head + whole, 0, bytes - head - whole);
    } else {
        memset(p, byte, bytes);
    }
}

uint64_t trace_hash(const void *from, size_t bytes)
{
    const unsigned char *p = trace_contents(from);
    uint64_t hash = 0xcbf29ce484222325u, word;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        memcpy(&word, p + i, 8);
        hash = (hash ^ word) * 0x100000001b3u;
        hash ^= hash >> 29;
    }
    for (; i < bytes; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

const char *trace_address(const void *p, char text[24])
{
    if (trace_is_device(p) || (uintptr_t)p - HOST_BASE < RANGE) snprintf(text, 24, "%p", p);
    else snprintf(text, 24, "host");
    return text;
}

void trace_memory_live(trace_live *live)
{
    for (size_t i = 0; i < device.count; i++) live->device += device.all[i].live;
    for (size_t i = 0; i < host.count; i++) live->host += host.all[i].live;
}

void trace_memory_summary(void)
{
    trace_live live = {0};
    trace_memory_live(&live);
    trace_line("left over: %zu allocations of the device (%zu bytes), %zu of the host (%zu bytes)",
               live.device, device.live_bytes, live.host, host.live_bytes);
    free(device.all);
    free(host.all);
    device.count = host.count = 0;
    device.all = host.all = NULL;
}

/* ---- the runtime's functions ---- */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    const trace_limits *limits = trace_device();
    trace_lock();
    cudaError_t error = trace_call("cudaMalloc", cudaErrorMemoryAllocation);
    if (error == cudaSuccess && trace_breaks_capture())
        error = trace_result("cudaMalloc", cudaErrorStreamCaptureUnsupported);
    if (error == cudaSuccess && bytes > limits->memory - CONTEXT_BYTES - device.live_bytes)
        error = trace_result("cudaMalloc", cudaErrorMemoryAllocation);
    if (error == cudaSuccess) {
        *memory = (void *)take(&device, bytes);
        trace_line("cudaMalloc %zu -> %p", bytes, *memory);
    }
    trace_unlock();
    return error;
}

cudaError_t cudaFree(void *memory)
{
    trace_lock();
    cudaError_t error = trace_call("cudaFree", cudaErrorUnknown);
    trace_line("cudaFree %p", memory);
    if (memory && !give_back(&device, memory)) error = trace_result("cudaFree", cudaErrorInvalidValue);
    else if (trace_breaks_capture()) error = trace_result("cudaFree", cudaErrorStreamCaptureUnsupported);
    trace_unlock();
    return error;
}

/* In the order of the stream, which is that of the calls. Captures would make nodes of them: nobody here does that. */
cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream)
{
    char on[24];
    trace_lock();
    cudaError_t error = trace_call("cudaMallocAsync", cudaErrorMemoryAllocation);
    if (error == cudaSuccess) {
        *memory = (void *)take(&device, bytes);
        trace_line("cudaMallocAsync %zu -> %p, %s", bytes, *memory, trace_stream(stream, on));
    }
    trace_unlock();
    return error;
}

cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream)
{
    char on[24];
    trace_lock();
    cudaError_t error = trace_call("cudaFreeAsync", cudaErrorUnknown);
    trace_line("cudaFreeAsync %p, %s", memory, trace_stream(stream, on));
    if (!give_back(&device, memory)) error = trace_result("cudaFreeAsync", cudaErrorInvalidValue);
    trace_unlock();
    return error;
}

cudaError_t cudaHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    trace_lock();
    cudaError_t error = trace_call("cudaHostAlloc", cudaErrorMemoryAllocation);
    if (error == cudaSuccess && trace_breaks_capture())
        error = trace_result("cudaHostAlloc", cudaErrorStreamCaptureUnsupported);
    if (error == cudaSuccess) {
        *memory = (void *)take(&host, bytes);
        trace_line("cudaHostAlloc %zu flags %u -> %p", bytes, flags, *memory);
    }
    trace_unlock();
    return error;
}

cudaError_t cudaFreeHost(void *memory)
{
    trace_lock();
    cudaError_t error = trace_call("cudaFreeHost", cudaErrorUnknown);
    trace_line("cudaFreeHost %p", memory);
    if (memory && !give_back(&host, memory)) error = trace_result("cudaFreeHost", cudaErrorInvalidValue);
    trace_unlock();
    return error;
}

cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    const trace_limits *limits = trace_device();
    trace_lock();
    *all = limits ? limits->memory : 0;
    *left = limits ? limits->memory - CONTEXT_BYTES - device.live_bytes : 0;
    cudaError_t error = trace_call("cudaMemGetInfo", cudaErrorUnknown);
    trace_unlock();
    return error;
}

static trace_operation copy_operation(void *to, const void *from, size_t bytes)
{
    return (trace_operation){.what = TRACE_COPY, .to = to, .from = from, .bytes = bytes};
}

static trace_operation fill_operation(void *to, int byte, size_t bytes)
{
    return (trace_operation){.what = TRACE_FILL, .to = to, .bytes = bytes, .byte = byte};
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    static const char *const names[] = {"host to host", "to device", "to host", "on device", "default"};
    char at_to[24], at_from[24], on[24];
    trace_lock();
    cudaError_t error = trace_call("cudaMemcpyAsync", cudaErrorUnknown);
    bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice,
         from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (error == cudaSuccess) {
        trace_line("copy %s %s <- %s %zu bytes, %s", names[kind], trace_address(to, at_to),
                   trace_address(from, at_from), bytes, trace_stream(stream, on));
        if (trace_is_device(to) != to_device || trace_is_device(from) != from_device ||
            (to_device && !trace_is_allocated(to, bytes)) ||
            (from_device && !trace_is_allocated(from, bytes)))
            error = trace_result("cudaMemcpyAsync", cudaErrorInvalidValue);
    }
    if (error == cudaSuccess) {
        if (!from_device) trace_line("  contents %016llx", (unsigned long long)trace_hash(from, bytes));
        trace_enqueue(stream, copy_operation(to, from, bytes));
    }
    trace_unlock();
    return error;
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    char on[24];
    trace_lock();
    cudaError_t error = trace_call("cudaMemsetAsync", cudaErrorUnknown);
    if (error == cudaSuccess) {
        trace_line("fill %p %zu bytes with %d, %s", to, bytes, byte, trace_stream(stream, on));
        if (bytes && !trace_is_allocated(to, bytes))
            error = trace_result("cudaMemsetAsync", cudaErrorInvalidValue);
        else trace_enqueue(stream, fill_operation(to, byte, bytes));
    }
    trace_unlock();
    return error;
}

cudaError_t cudaMemset2DAsync(void *to, size_t pitch, int byte, size_t width, size_t height,
                              cudaStream_t stream)
{
    char on[24];
    trace_lock();
    cudaError_t error = trace_call("cudaMemset2DAsync", cudaErrorUnknown);
    if (error == cudaSuccess) {
        trace_line("fill %p %zu rows of %zu bytes, %zu apart, with %d, %s", to, height, width, pitch, byte,
                   trace_stream(stream, on));
        if (height && !trace_is_allocated(to, pitch * (height - 1) + width))
            error = trace_result("cudaMemset2DAsync", cudaErrorInvalidValue);
        for (size_t i = 0; i < height && error == cudaSuccess; i++)
            trace_enqueue(stream, fill_operation((char *)to + i * pitch, byte, width));
    }
    trace_unlock();
    return error;
}

/* On the device only, which is all that the library asks for. */
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                              size_t height, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    char on[24];
    trace_lock();
    cudaError_t error = trace_call("cudaMemcpy2DAsync", cudaErrorUnknown);
    if (error == cudaSuccess) {
        trace_line("copy on device %p <- %p %zu rows of %zu bytes, %zu and %zu apart, %s", to, from, height,
                   width, to_pitch, from_pitch, trace_stream(stream, on));
        if (kind != cudaMemcpyDeviceToDevice || width > to_pitch || width > from_pitch ||
            (height && (!trace_is_allocated(to, to_pitch * (height - 1) + width) ||
                        !trace_is_allocated(from, from_pitch * (height - 1) + width))))
            error = trace_result("cudaMemcpy2DAsync", cudaErrorInvalidValue);
        for (size_t i = 0; i < height && error == cudaSuccess; i++)
            trace_enqueue(stream, copy_operation((char *)to + i * to_pitch,
                                                 (const char *)from + i * from_pitch, width));
    }
    trace_unlock();
    return error;
}
