/* cuda_trace.h - a CUDA runtime without a device, which writes down the calls it gets. Internal to tests/cuda_trace.
 *
 * The stub takes the place of libcudart_static.a and of cuBLASLt. It presents one device. Kernels and products do
 * nothing unless they are asked to run; copies and fills do what they say, in memory of the host. Everything that would reach the device, and
 * everything that makes or frees an object, is a line of the trace. Addresses and numbers are the same in every run,
 * so that the traces of two builds can be compared line by line.
 *
 * Environment:
 *   NIBBLE_CUDA_TRACE=FILE          where the trace goes; without it none is written
 *   NIBBLE_CUDA_TRACE_DEVICE=NAME   sm_90 (an H200, the default), sm_80 (an A100) or none
 *   NIBBLE_CUDA_TRACE_FAIL=N        call N fails, counted from 1; `N+`: it and all later ones
 *   NIBBLE_CUDA_TRACE_GARBAGE=BYTE  what free stack memory holds after a call (default: 0)
 *   NIBBLE_CUDA_TRACE_RUN=1         kernels and products do run, on the CPU (tests/ptx); the default is sm_80 then
 *
 * A test that is linked with it (borrowed_stream.c) hears of lines and calls while it runs. */
#ifndef NIBBLE_CUDA_TRACE_H
#define NIBBLE_CUDA_TRACE_H

#include <cuda_runtime_api.h>
#include <library_types.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the device has. */
struct ptx_range;

typedef struct trace_limits {
    const char *name;
    int major, minor, multiprocessors;
    size_t memory, shared_each,
        shared_block; /* shared memory of a multiprocessor, and what a block may ask for */
} trace_limits;

const trace_limits *trace_device(void); /* NULL: there is none */

/* ---- cuda_trace.c: lines and calls ---- */

/* One line of the trace. */
void trace_line(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Every call that can fail begins with this: cudaSuccess, or the error that the environment asks for. `error` is what
 * this call fails with. */
cudaError_t trace_call(const char *name, cudaError_t error);
/* The call fails: `error` becomes the thread's last error, and a line of the trace unless it is cudaSuccess. */
cudaError_t trace_result(const char *name, cudaError_t error);

/* Hears each line of the trace, and the name of each call that can fail, from the thread that made it. NULL: nobody. */
typedef struct trace_listener {
    void (*line)(const char *line);
    void (*call)(const char *name);
} trace_listener;
void trace_listen(const trace_listener *listener);
/* As NIBBLE_CUDA_TRACE_FAIL, counted from here on; 0: none fails. */
void trace_fail(long at, bool later);
/* Calls since then. */
long trace_calls(void);

/* What has been made and not freed. */
typedef struct trace_live {
    size_t device, host; /* allocations */
    int streams, events, graphs, handles;
} trace_live;
trace_live trace_live_now(void);

/* Calls of all threads go one after another. */
void trace_lock(void);
void trace_unlock(void);

/* From now on every call fails: a kernel did what it may not. */
void trace_break(cudaError_t error);

/* ---- cuda_trace_memory.c ---- */

/* Whether [p, p + bytes) lies in one live allocation of the device, or in the device's range at all. */
bool trace_is_device(const void *p);
bool trace_is_allocated(const void *p, size_t bytes);
/* The live allocation that has the address, and where its contents lie. */
bool trace_find(uint64_t address, struct ptx_range *range);
void *trace_contents(const void *p);
/* Carries out a copy or a fill of checked memory. */
void trace_copy(void *to, const void *from, size_t bytes);
void trace_fill(void *to, int byte, size_t bytes);
uint64_t trace_hash(const void *from, size_t bytes);
/* "host", or the address where it is the same in every run. */
const char *trace_address(const void *p, char text[24]);
void trace_memory_summary(void);
void trace_memory_live(trace_live *live);

/* ---- cuda_trace_stream.c ---- */

/* A kernel may fill its result: see the table in cuda_trace_kernel.c. Where kernels run, `run` runs it or a product, as
 * often as the graph is launched; `release` frees what it needs. */
typedef struct trace_operation {
    enum { TRACE_KERNEL, TRACE_COPY, TRACE_FILL } what;
    void *to;
    const void *from;
    size_t bytes;
    int byte;
    void (*run)(void *work), (*release)(void *work);
    void *work;
} trace_operation;

/* Runs the operation, or adds it to the graph that the stream captures. */
void trace_enqueue(cudaStream_t stream, trace_operation operation);
/* "s1", or "s1 captured". */
const char *trace_stream(cudaStream_t stream, char text[24]);
/* Is this a call that a capture does not allow, of this thread or, in the global mode, of another one? It makes the
 * capture invalid. */
bool trace_breaks_capture(void);
void trace_stream_summary(void);
void trace_stream_live(trace_live *live);

/* ---- cuda_trace_run.c ---- */

/* Whether kernels run. */
bool trace_runs(void);
/* The launch of a kernel of the fat binary as an operation. false: that cannot be, which was said. */
bool trace_run_kernel(const uint8_t *fatbin, const char *symbol, dim3 grid, dim3 block, size_t dynamic,
                      void **arguments, trace_operation *operation);
void trace_forget(const uint8_t *fatbin);

/* ---- cuda_trace_product.c ---- */

/* A matrix as cuBLASLt has it: columns lie `ld` elements apart. */
typedef struct trace_matrix {
    cudaDataType_t type;
    void *data;
    uint64_t rows, columns, ld, batch, stride;
} trace_matrix;

typedef struct trace_product {
    trace_matrix a, b, c, d;
    bool a_transposed, b_transposed;
    double alpha, beta;
} trace_product;

/* d = alpha op(a) op(b) + beta c. */
void trace_multiply(void *product);

/* ---- cuda_trace_blas.c ---- */

/* A function of libtorch_cuda.so. Weak: programs without torch have none. */
__attribute__((weak)) void *trace_torch_cuda(const char *name);
void trace_blas_live(trace_live *live);

/* ---- cuda_trace_driver.c ---- */

/* cudaSetDevice of this thread. */
void trace_make_current(void);

#endif
