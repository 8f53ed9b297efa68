/* cuda_trace_kernel.c - kernels: registration, attributes, launches. See cuda_trace.h.
 *
 * nvcc's objects register a fat binary each, and their kernels. A fat binary holds one ELF file (a cubin) per compute
 * capability. Of a kernel NAME it has the sections
 *   .text.NAME        registers of a thread: sh_info >> 24
 *   .nv.shared.NAME   static shared memory: sh_size
 *   .nv.info.NAME     attributes; KPARAM_INFO tells offset and size of a parameter, MAX_THREADS the launch bounds
 * With these, a launch is checked as a device does it (shared memory, registers, threads, cluster) and its arguments
 * are written down, byte by byte. */
#include "cuda_trace.h"

#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PARAMETERS = 32, BUCKETS = 4096, DEFAULT_SHARED = 49152, MAX_CLUSTER = 8 };
enum { ATTRIBUTE_MAX_THREADS = 0x05, ATTRIBUTE_PARAMETER = 0x17, FORMAT_SIZED = 4 };

typedef struct parameter {
    uint16_t offset;
    uint32_t size;
} parameter;

typedef struct kernel {
    struct kernel *next;
    const void *function; /* of the host: what names the kernel in calls */
    const char *symbol;   /* in the cubins */
    char *name;           /* in the trace */
    const uint8_t *fatbin;
    bool read, has_code;
    parameter parameters[MAX_PARAMETERS];
    int parameter_count;
    unsigned registers, max_threads;
    size_t shared, max_dynamic;
} kernel;

/* What nvcc passes to __cudaRegisterFatBinary. */
typedef struct fatbin_wrapper {
    int magic, version;
    const void *data;
    void *other;
} fatbin_wrapper;

static kernel *kernels[BUCKETS];

void **__cudaRegisterFatBinary(void *wrapper);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *symbol,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp);
void __cudaRegisterVar(void **handle, char *variable, char *address, const char *symbol, int ext, size_t size,
                       int constant, int global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *result, const void *function);
cudaError_t __cudaLaunchKernel(cudaKernel_t function, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream);

/* ---- registration ---- */

void **__cudaRegisterFatBinary(void *wrapper)
{
    return wrapper;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
    (void)handle;
}

static size_t bucket_of(const void *function)
{
    return ((uintptr_t)function >> 4) % BUCKETS;
}

/* Frees the kernels, not the handle, which is the program's. */
void __cudaUnregisterFatBinary(void **handle)
{
    const uint8_t *fatbin = ((const fatbin_wrapper *)(void *)handle)->data;
    trace_forget(fatbin);
    for (size_t i = 0; i < BUCKETS; i++)
        for (kernel **at = &kernels[i]; *at;) {
            kernel *it = *at;
            if (it->fatbin != fatbin) {
                at = &it->next;
                continue;
            }
            *at = it->next;
            free(it->name);
            free(it);
        }
}

/* An anonymous namespace has hashes of the file's path and contents in its name, and the file's name:
 * 46_GLOBAL__N__4a9f799c_13_gemv_dense_cu_c483dbbc becomes 12_GLOBAL__N_1. */
static char *stable_name(const char *symbol)
{
    char *name = malloc(strlen(symbol) + 1), *to = name;
    if (name == NULL) abort();
    while (*symbol) {
        char *end;
        unsigned long length = *symbol >= '1' && *symbol <= '9' ? strtoul(symbol, &end, 10) : 0;
        if (length > 14 && strncmp(end, "_GLOBAL__N__", 12) == 0 && strlen(end) >= length) {
            to = stpcpy(to, "12_GLOBAL__N_1");
            symbol = end + length;
        } else if (length) { /* the whole number: its digits are no other number */
            while (symbol < end) *to++ = *symbol++;
        } else {
            *to++ = *symbol++;
        }
    }
    *to = '\0';
    return name;
}

void __cudaRegisterFunction(void **handle, const char *function, char *device_function, const char *symbol,
                            int thread_limit, uint3 *tid, uint3 *bid, dim3 *block, dim3 *grid, int *warp)
{
    (void)device_function, (void)thread_limit, (void)tid, (void)bid, (void)block, (void)grid, (void)warp;
    kernel *it = calloc(1, sizeof *it);
    if (it == NULL) abort();
    it->function = function;
    it->symbol = symbol;
    it->name = stable_name(symbol);
    it->fatbin = ((const fatbin_wrapper *)(void *)handle)->data;
    it->max_dynamic = DEFAULT_SHARED;
    it->next = kernels[bucket_of(function)];
    kernels[bucket_of(function)] = it;
}

void __cudaRegisterVar(void **handle, char *variable, char *address, const char *symbol, int ext, size_t size,
                       int constant, int global)
{
    (void)handle, (void)variable, (void)address, (void)symbol, (void)ext, (void)size, (void)constant,
        (void)global;
}

/* ---- what the cubin says of a kernel ---- */

static uint16_t u16(const uint8_t *p)
{
    uint16_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static uint32_t u32(const uint8_t *p)
{
    uint32_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

static uint64_t u64(const uint8_t *p)
{
    uint64_t value;
    memcpy(&value, p, sizeof value);
    return value;
}

/* The cubin for the device: of its major capability, the newest up to its minor. Offsets in an entry's header: kind 0,
 * bytes of the header 4, of the contents 8, capability 28. A compressed one is not taken: nvcc makes none of ours so. */
static const uint8_t *find_cubin(const uint8_t *fatbin, const trace_limits *limits)
{
    const uint8_t *best = NULL, *entry = fatbin + u16(fatbin + 6), *end = entry + u64(fatbin + 8);
    unsigned best_capability = 0;
    for (; entry < end; entry += u32(entry + 4) + u64(entry + 8)) {
        unsigned capability = u32(entry + 28);
        const uint8_t *contents = entry + u32(entry + 4);
        if (u16(entry) == 2 && memcmp(contents, ELFMAG, SELFMAG) == 0 &&
            (int)capability / 10 == limits->major && (int)capability % 10 <= limits->minor &&
            capability >= best_capability) {
            best = contents;
            best_capability = capability;
        }
    }
    return best;
}

static void read_attributes(kernel *it, const uint8_t *at, size_t bytes)
{
    for (const uint8_t *end = at + bytes; at + 4 <= end;) {
        size_t length = at[0] == FORMAT_SIZED ? u16(at + 2) : 0;
        const uint8_t *value = at + 4;
        if (at[0] == FORMAT_SIZED && at[1] == ATTRIBUTE_PARAMETER) {
            unsigned ordinal = u16(value + 4);
            if (ordinal >= MAX_PARAMETERS) abort();
            it->parameters[ordinal] = (parameter){u16(value + 6), u32(value + 8) >> 18};
            if ((int)ordinal >= it->parameter_count) it->parameter_count = (int)ordinal + 1;
        } else if (at[0] == FORMAT_SIZED && at[1] == ATTRIBUTE_MAX_THREADS) {
            it->max_threads = u32(value) * u32(value + 4) * u32(value + 8);
        }
        at += 4 + length;
    }
}

static void read_kernel(kernel *it)
{
    const trace_limits *limits = trace_device();
    const uint8_t *cubin = limits ? find_cubin(it->fatbin, limits) : NULL;
    it->read = true;
    if (cubin == NULL) return;
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)(const void *)cubin;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(const void *)(cubin + header->e_shoff);
    const char *names = (const char *)cubin + sections[header->e_shstrndx].sh_offset;
    for (int i = 0; i < header->e_shnum; i++) {
        const Elf64_Shdr *section = &sections[i];
        const char *name = names + section->sh_name;
        if (strncmp(name, ".text.", 6) == 0 && strcmp(name + 6, it->symbol) == 0) {
            it->has_code = true;
            it->registers = section->sh_info >> 24;
        } else if (strncmp(name, ".nv.shared.", 11) == 0 && strcmp(name + 11, it->symbol) == 0) {
            it->shared = section->sh_size;
        } else if (strncmp(name, ".nv.info.", 9) == 0 && strcmp(name + 9, it->symbol) == 0) {
            read_attributes(it, cubin + section->sh_offset, section->sh_size);
        }
    }
}

/* By the function of the host, or by what __cudaGetKernel gave. */
static kernel *find_kernel(const void *function)
{
    kernel *it = kernels[bucket_of(function)];
    while (it && it->function != function) it = it->next;
    for (size_t i = 0; i < BUCKETS && it == NULL; i++)
        for (kernel *other = kernels[i]; other && it == NULL; other = other->next)
            if (other == function) it = other;
    if (it && !it->read) read_kernel(it);
    return it;
}

/* ---- attributes ---- */

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    trace_lock();
    cudaError_t error = trace_call("cudaFuncSetAttribute", cudaErrorUnknown);
    kernel *it = find_kernel(function);
    if (error == cudaSuccess) {
        if (it == NULL || !it->has_code)
            error = trace_result("cudaFuncSetAttribute", cudaErrorInvalidDeviceFunction);
        else trace_line("attribute %d of %s: %d", (int)attribute, it->name, value);
    }
    if (error == cudaSuccess && attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) {
        if (value < 0 || (size_t)value + it->shared > trace_device()->shared_block)
            error = trace_result("cudaFuncSetAttribute", cudaErrorInvalidValue);
        else it->max_dynamic = (size_t)value;
    }
    trace_unlock();
    return error;
}

/* As the occupancy calculator has it: registers are given out in 256 to a warp, shared memory in 128 bytes with 1 KiB
 * for each block. */
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *function,
                                                                   int threads, size_t dynamic,
                                                                   unsigned flags)
{
    (void)flags;
    trace_lock();
    cudaError_t error = trace_call("cudaOccupancyMaxActiveBlocksPerMultiprocessor", cudaErrorUnknown);
    const kernel *it = find_kernel(function);
    if (error == cudaSuccess && (it == NULL || !it->has_code))
        error = trace_result("cudaOccupancyMaxActiveBlocksPerMultiprocessor", cudaErrorInvalidDeviceFunction);
    if (error == cudaSuccess) {
        unsigned warps = ((unsigned)threads + 31) / 32, registers = (it->registers * 32 + 255) / 256 * 256;
        size_t shared = (it->shared + dynamic + 1024 + 127) / 128 * 128, count = 2048 / (warps * 32);
        if (count > 32) count = 32;
        if (registers && 65536 / registers / warps < count) count = 65536 / registers / warps;
        if (trace_device()->shared_each / shared < count) count = trace_device()->shared_each / shared;
        *blocks = (int)count;
    }
    trace_unlock();
    return error;
}

/* ---- launches ---- */

typedef struct launch {
    dim3 grid, block;
    size_t shared;
    cudaStream_t stream;
    unsigned cluster;
    bool dependent;
} launch;

static cudaError_t check_launch(const kernel *it, const launch *l)
{
    uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z,
             blocks = (uint64_t)l->grid.x * l->grid.y * l->grid.z;
    unsigned warps = (unsigned)((threads + 31) / 32);
    if (!it->has_code) return cudaErrorNoKernelImageForDevice;
    if (threads == 0 || threads > 1024 || blocks == 0 || l->grid.x > 0x7fffffff || l->grid.y > 65535 ||
        l->grid.z > 65535 || l->block.z > 64)
        return cudaErrorInvalidConfiguration;
    if (l->cluster > MAX_CLUSTER || l->grid.x % l->cluster != 0) return cudaErrorInvalidConfiguration;
    if (l->shared > it->max_dynamic || it->shared + l->shared > trace_device()->shared_block)
        return cudaErrorInvalidValue;
    if ((it->max_threads && threads > it->max_threads) ||
        (it->registers * 32 + 255) / 256 * 256 * warps > 65536)
        return cudaErrorLaunchOutOfResources;
    return cudaSuccess;
}

static void write_launch(const kernel *it, const launch *l, void **arguments)
{
    char text[9 * 1024], *to = text, on[24];
    trace_line("kernel %s grid %u,%u,%u block %u,%u,%u shared %zu%s cluster %u, %s", it->name, l->grid.x,
               l->grid.y, l->grid.z, l->block.x, l->block.y, l->block.z, l->shared,
               l->dependent ? " dependent" : "", l->cluster, trace_stream(l->stream, on));
    for (int i = 0; i < it->parameter_count; i++) {
        const uint8_t *from = arguments[i];
        if (it->parameters[i].size > (sizeof text - 64) / 2) abort();
        to = text;
        for (uint32_t k = 0; k < it->parameters[i].size; k++) to += sprintf(to, "%02x", from[k]);
        *to = '\0';
        trace_line("  %d: %s", i, text);
    }
}

/* Kernels whose result is filled with ones: -1 says that every value is finite. All other results are what the memory
 * holds, zeros in new memory. */
static trace_operation operation_of(const kernel *it, const launch *l, void **arguments)
{
    static const struct {
        const char *name;
        int parameter;
        size_t bytes, bytes_per_block;
    } filled[] = {{"finish_kernelEPKNS_4partEldPfPl", 4, sizeof(int64_t), 0}, /* grad_norm.cu */
                  {"argmax_kernelI", 5, 0, sizeof(int32_t)}};                 /* argmax.cu */
    trace_operation result = {.what = TRACE_KERNEL, .byte = 0xff};
    for (size_t i = 0; i < sizeof filled / sizeof *filled; i++) {
        if (strstr(it->name, filled[i].name) == NULL) continue;
        memcpy(&result.to, arguments[filled[i].parameter], sizeof result.to);
        if (result.to) result.bytes = filled[i].bytes + filled[i].bytes_per_block * l->grid.x;
    }
    return result;
}

static cudaError_t launch_kernel(const void *function, const launch *l, void **arguments)
{
    trace_lock();
    cudaError_t error = trace_call("cudaLaunchKernel", cudaErrorLaunchFailure);
    const kernel *it = find_kernel(function);
    if (error == cudaSuccess && it == NULL)
        error = trace_result("cudaLaunchKernel", cudaErrorInvalidDeviceFunction);
    if (error == cudaSuccess) {
        write_launch(it, l, arguments);
        error = trace_result(it->name, check_launch(it, l));
    }
    trace_operation operation;
    if (error == cudaSuccess) {
        operation = operation_of(it, l, arguments);
        if (trace_runs() &&
            !trace_run_kernel(it->fatbin, it->symbol, l->grid, l->block, l->shared, arguments, &operation))
            error = trace_result("cudaLaunchKernel", cudaErrorInvalidDeviceFunction);
    }
    if (error == cudaSuccess) trace_enqueue(l->stream, operation);
    trace_unlock();
    return error;
}

static __thread launch pushed[4];
static __thread int pushed_count;

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream)
{
    if (pushed_count == 4) abort();
    pushed[pushed_count++] = (launch){grid, block, shared, stream, 1, false};
    return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (pushed_count == 0) abort();
    const launch *l = &pushed[--pushed_count];
    *grid = l->grid;
    *block = l->block;
    *shared = l->shared;
    *(cudaStream_t *)stream = l->stream;
    return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *result, const void *function)
{
    *result = (cudaKernel_t)(uintptr_t)function;
    return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t function, dim3 grid, dim3 block, void **arguments, size_t shared,
                               cudaStream_t stream)
{
    launch l = {grid, block, shared, stream, 1, false};
    return launch_kernel((const void *)function, &l, arguments);
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function, void **arguments)
{
    launch l = {config->gridDim, config->blockDim, config->dynamicSmemBytes, config->stream, 1, false};
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const cudaLaunchAttribute *it = &config->attrs[i];
        if (it->id == cudaLaunchAttributeClusterDimension) {
            l.cluster = it->val.clusterDim.x * it->val.clusterDim.y * it->val.clusterDim.z;
        } else if (it->id == cudaLaunchAttributeProgrammaticStreamSerialization) {
            l.dependent = it->val.programmaticStreamSerializationAllowed != 0;
        } else {
            return trace_result("cudaLaunchKernelExC: an attribute that the stub does not know",
                                cudaErrorInvalidValue);
        }
    }
    return launch_kernel(function, &l, arguments);
}
