/* cuda.h - a CUDA device as the operators and the plans use it: one stream, its memory, and the libraries beside it.
 *
 * A context runs on the CPU or, after nbl_context_use_cuda, on one device. Its operators then are those of cuda_impls.c:
 * every tensor and weight that they get lies in the device's memory (the structs themselves are the host's). They
 * enqueue on the context's stream and return: no waiting, no allocation, and nothing that a stream capture forbids.
 * What only the data can tell (an id outside the vocabulary) is written down by the kernel, and nbl__cuda_wait reports it.
 *
 * In a build without CUDA the same functions exist, and nbl__cuda_of is always NULL. */
#ifndef NBL_CUDA_H
#define NBL_CUDA_H

#include "ops/ops.h"

/* What a kernel found wrong in its data, the first one to do so. In host memory that kernels can write. */
typedef enum nbl__cuda_fault_kind {
    NBL_CUDA_FAULT_NONE,
    NBL_CUDA_FAULT_ID,       /* `value` is not in the vocabulary; at `place` */
    NBL_CUDA_FAULT_LABEL,    /* as a label */
    NBL_CUDA_FAULT_ROW,      /* a row number that is out of range */
    NBL_CUDA_FAULT_LENGTH,   /* a length of a cache that is out of range */
    NBL_CUDA_FAULT_SEQUENCES /* cu_seqlens falls, or does not run from 0 to the number of tokens */
} nbl__cuda_fault_kind;

typedef struct nbl__cuda_fault {
    int kind; /* nbl__cuda_fault_kind */
    int pad;
    int64_t index, value;
} nbl__cuda_fault;

enum { NBL_CUDA_EVENTS = 8 };

typedef struct nbl__cuda {
    nbl_context *ctx;
    int index;
    int major, minor, multiprocessors;
    size_t memory;          /* of the device, all of it */
    void *stream;           /* cudaStream_t */
    nbl__cuda_fault *fault; /* the same address on host and device */
    void *workspace;        /* of the device, for libraries; calls on one stream may share it */
    size_t workspace_bytes;
    struct nbl__blas *blas;  /* cublaslt.h; NULL: its library was not found */
    void *tensor_map_encode; /* gemm_sm90.h; found at its first use */
    size_t allocated;        /* bytes of nbl__cuda_alloc that live */
    void *staging;           /* nbl__cuda_stage */
    size_t staging_bytes;
    bool
        debugs; /* NIBBLE_CUDA_DEBUG=1: every operator is waited for, so that a fault is told with its name */
    bool profiles; /* NIBBLE_VERBOSE=profile: plans tell where their time goes */
    void **timers; /* cudaEvent_t */
    int timer_count;
    void *events
        [NBL_CUDA_EVENTS]; /* cudaEvent_t; that of a place is the remainder's, and of no earlier place */
    int64_t noted;
    void
        *mailbox; /* NBL_CUDA_MAILBOX bytes of host memory that kernels can write: results of a few numbers */
    struct nbl__cuda_offload *offload; /* offload_copy_cuda.c; NULL: not opened */
    size_t
        beside; /* bytes of the device that the process takes beside weights and plans, the workspace included */
} nbl__cuda;

enum { NBL_CUDA_MAILBOX = 4096 };

/* Bytes that a forward call can leave for its backward call, which is spared some work by them; 0: none. A plan that has them
 * tells both calls where they lie (nbl__around); without them nothing is left. */
size_t nbl__cuda_kept(const nbl__impl *impl, const void *arguments);

/* The device of a context; NULL: the CPU. */
nbl__cuda *nbl__cuda_of(const nbl_context *ctx);
/* The implementations of an operator, best first, NULL at the end; or NULL: there are none. */
const nbl__impl *const *nbl__cuda_impls(const char *op);

/* Memory of the device, aligned to 256 bytes, not cleared; NULL and a recorded failure, which tells what was asked for
 * and what is free, when there is none. Size 0 gives a valid pointer. */
void *nbl__cuda_alloc(nbl__cuda *cuda, size_t bytes);
void nbl__cuda_free(nbl__cuda *cuda, void *memory, size_t bytes); /* NULL is allowed; waits for the device */
/* Is it of a kind that the kernels are made for? */
nbl_status nbl__cuda_supports(nbl_context *ctx, int index, const nbl_cuda_device *device);

/* Bytes that are free; 0: unknown. */
size_t nbl__cuda_left(nbl__cuda *cuda);
/* Host memory that copies run at full speed from and to. */
void *nbl__cuda_alloc_host(nbl__cuda *cuda, size_t bytes);
void nbl__cuda_free_host(nbl__cuda *cuda, void *memory);
/* A piece of such memory that the device keeps for whoever needs one: valid until the next call. */
nbl_status nbl__cuda_stage(nbl__cuda *cuda, size_t bytes, void **host);

/* In the order of the stream. The first two return when the host's memory may be used again; the `later` ones at once:
 * the host's memory (of nbl__cuda_alloc_host) must stay as it is until nbl__cuda_wait. */
nbl_status nbl__cuda_write(nbl__cuda *cuda, void *to, const void *from, size_t bytes);
nbl_status nbl__cuda_read(nbl__cuda *cuda, void *to, const void *from, size_t bytes);
nbl_status nbl__cuda_write_later(nbl__cuda *cuda, void *to, const void *from, size_t bytes);
nbl_status nbl__cuda_read_later(nbl__cuda *cuda, void *to, const void *from, size_t bytes);
nbl_status nbl__cuda_fill(nbl__cuda *cuda, void *to, int byte, size_t bytes);
/* Until everything on the stream is done; reports what went wrong in it. */
nbl_status nbl__cuda_wait(nbl__cuda *cuda, const char *what);
/* The same for what is on the stream at a nbl__cuda_event_record, whose places count from 1; 0: nothing. */
nbl_status nbl__cuda_event_record(nbl__cuda *cuda, int64_t *index);
nbl_status nbl__cuda_wait_for(nbl__cuda *cuda, int64_t index, const char *what);

/* Marks in the stream, numbered from 0, and the time between two of them once both are past. */
nbl_status nbl__cuda_timers_open(nbl__cuda *cuda, int count);
void nbl__cuda_timers_close(nbl__cuda *cuda);
nbl_status nbl__cuda_timer_record(nbl__cuda *cuda, int timer);
nbl_status nbl__cuda_timer_elapsed(nbl__cuda *cuda, int from, int to, double *milliseconds);

/* offload_copy_cuda.c: before the first copy that runs beside the computation (ops/elementwise/offload_copy.h). */
nbl_status nbl__cuda_offload_open(nbl__cuda *cuda);
void nbl__cuda_offload_close(nbl__cuda *cuda);

/* Stream capture: what is enqueued between the two becomes a graph instead of running. `graph` is a cudaGraphExec_t. */
nbl_status nbl__cuda_capture_begin(nbl__cuda *cuda);
nbl_status nbl__cuda_capture_end(nbl__cuda *cuda, bool good, void **graph);
nbl_status nbl__cuda_replay(nbl__cuda *cuda, void *graph);
void nbl__cuda_graph_free(nbl__cuda *cuda, void *graph); /* NULL is allowed */

#endif
