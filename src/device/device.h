/* device.h - what the graph, the operators' dispatch, models, generation and training may ask of the device that a
 * context runs on.
 *
 * A device is this struct. Every context starts with the CPU's (device/cpu_device.c). A backend is a folder beside it that
 * fills in another one and installs it with nbl__context_set_device. Nothing outside of that folder and of the backend's
 * implementations of operators says its name: other code calls functions of the struct, or weighs its facts.
 *
 *     memory       where tensors of operators lie; the host may not touch it if `separate_memory`
 *     order        operators, copies and fills happen in the order in which they are called. An `asynchronous` device
 *                  returns at once and does them later, in the same order
 *     waiting      `wait` and `event_wait` return when things are done, and report what went wrong in them
 *
 * Functions may be called by one thread at a time per context. They return a status; a failure is recorded in ctx. */
#ifndef NBL_DEVICE_H
#define NBL_DEVICE_H

#include "base/arena.h"
#include "ops/ops.h"

typedef struct nbl__device {
    const char *name; /* for messages: "CPU" */

    /* ---- facts ---- */

    /* Operators and copies are enqueued. The host can prepare the next step while this one runs. */
    bool asynchronous;
    /* The host cannot read or write what `alloc` gives. Weights are uploaded; inputs and results have a mirror. */
    bool separate_memory;
    /* Where memory is separate: operators can read that of `alloc_host`, slowly. Rarely read weights may stay there. */
    bool reads_host;
    bool captures; /* capture_begin … graph_free exist: a sequence of calls can be replayed as one */
    bool profiles; /* plans log where their time goes; timers_open … timer_elapsed exist */
    bool debugs;   /* every operator is waited for, so that a fault is told with its name */
    /* What builders of graphs choose between, where both give the same function: */
    bool splits_mlp; /* training, prefill: gate_up, act, down instead of one mlp operator */
    /* generation: RoPE, cache write and attention in one operator (attention_step) */
    bool fuses_rope_attention;
    bool fuses_norm_rope; /* training: q/k norm and RoPE in one operator (norm_rope) */
    /* Operations that it does while one byte goes to the host's memory or comes from there. */
    int64_t operations_per_host_byte;
    /* Bytes of its memory that it takes beside all that is allocated: contexts, libraries, kernels. */
    uint64_t overhead_bytes;
    /* NBL_DEVICE_MAILBOX bytes of host memory that operators can write; NULL unless separate_memory. */
    void *mailbox;
    bool operators_only; /* operators alone: models and plans are refused (nbl__check_models) */

    /* ---- operators ---- */

    /* The implementations of an operator, best first, NULL at the end. Empty: it has none. */
    const nbl__impl *const *(*impls)(const nbl__op *op);
    /* Bytes that a forward call can leave for its backward call, which saves work there (nbl__call.saved); 0:
     * none. */
    size_t (*saved_bytes)(const nbl__impl *impl, const void *arguments);
    /* Bytes behind an implementation's own scratch that it needs for libraries (nbl__call.workspace); 0: none. NULL:
     * the device has no implementation that needs some. */
    size_t (*workspace_bytes)(const nbl_context *ctx, const nbl__impl *impl);
    /* Around every operator and every dequantize that a caller asks for (nbl__device_begin, nbl__device_end). `end`
     * gets the status of the call, and returns it or the failure of its own. NULL: there is nothing to do. */
    nbl_status (*call_begin)(nbl_context *ctx);
    nbl_status (*call_end)(nbl_context *ctx, const char *what, nbl_status status);
    /* nbl_dequantize of checked arguments: rows [row_begin, row_end) of a weight in the device's memory, some. */
    nbl_status (*dequantize)(nbl_context *ctx, const nbl_weight *weight, int64_t row_begin, int64_t row_end,
                             nbl_dtype dtype, bool transpose, void *to);
    /* What the last bits of results depend on beside arguments: an instruction set ("avx2"), a product's name. */
    nbl_status (*machine)(nbl_context *ctx, nbl__arena *arena, const char **name);

    /* ---- memory ---- */

    /* NULL and a recorded failure if there is none. Size 0 gives a valid pointer. `cleared`: zeroed, in order. */
    void *(*alloc)(nbl_context *ctx, size_t bytes, bool cleared);
    void (*free)(nbl_context *ctx, void *memory, size_t bytes); /* waits for its users; NULL is allowed */
    /* Bytes that could be had now, less what is the system's to keep; 0: unknown. */
    uint64_t (*bytes_free)(nbl_context *ctx);
    /* Memory of the host that copies run fast from and to; not cleared. */
    void *(*alloc_host)(nbl_context *ctx, size_t bytes);
    void (*free_host)(nbl_context *ctx, void *host, size_t bytes); /* waits as well; NULL is allowed */
    /* Scratch of one operator call outside of plans; valid until the next one. Return it after the call. */
    nbl_status (*borrow_scratch)(nbl_context *ctx, const char *op, size_t bytes, void **scratch);
    void (*return_scratch)(nbl_context *ctx, void *scratch, size_t bytes);

    /* ---- copies ---- */

    nbl_status (*fill)(nbl_context *ctx, void *to, int byte, size_t bytes);
    /* These return when the host's memory may be used again. */
    nbl_status (*write)(nbl_context *ctx, void *to, const void *host, size_t bytes);
    nbl_status (*read)(nbl_context *ctx, void *host, const void *from, size_t bytes);
    /* These return at once. The host's memory (of alloc_host) must stay as it is until an event after them. */
    nbl_status (*write_async)(nbl_context *ctx, void *to, const void *host, size_t bytes);
    nbl_status (*read_async)(nbl_context *ctx, void *host, const void *from, size_t bytes);
    /* Makes a piece of memory readable and writable for the host: the memory itself, or a copy. With `read`
     * the copy holds what is there; else anything. Valid until the next call of `map_host`, or the next
     * operator. */
    nbl_status (*map_host)(nbl_context *ctx, void *memory, size_t bytes, bool read, void **host);
    /* Makes what the host has written to a mapped piece count. */
    nbl_status (*unmap_host)(nbl_context *ctx, void *memory, const void *host, size_t bytes);
    /* Call before the first step of ops/elementwise/offload_copy.h. */
    nbl_status (*offload_open)(nbl_context *ctx);

    /* ---- waiting ---- */

    /* Until everything is done. `what` is for messages. */
    nbl_status (*wait)(nbl_context *ctx, const char *what);
    /* An event: a point in the order of what was called, counted from 1; 0 is the beginning. The last
     * NBL_DEVICE_EVENTS events can be waited for exactly, older ones together with a later one. */
    nbl_status (*event_record)(nbl_context *ctx, int64_t *event);
    nbl_status (*event_wait)(nbl_context *ctx, int64_t event, const char *what);

    /* ---- captured graphs: if `captures` ---- */

    /* What is called between the two becomes a graph instead of running. `good` false: throws it away. */
    nbl_status (*capture_begin)(nbl_context *ctx);
    nbl_status (*capture_end)(nbl_context *ctx, bool good, void **graph);
    nbl_status (*replay)(nbl_context *ctx, void *graph);
    void (*graph_free)(nbl_context *ctx, void *graph); /* NULL is allowed */

    /* ---- timers: if `profiles` ---- */

    /* Timers 0 … count - 1, and the time between two of them once both are past. */
    nbl_status (*timers_open)(nbl_context *ctx, int count);
    void (*timers_close)(nbl_context *ctx);
    nbl_status (*timer_record)(nbl_context *ctx, int timer);
    nbl_status (*timer_elapsed)(nbl_context *ctx, int from, int to, double *milliseconds);
} nbl__device;

enum { NBL_DEVICE_MAILBOX = 4096, NBL_DEVICE_EVENTS = 8 };

extern const nbl__device nbl__cpu;

/* NBL_ERROR_UNSUPPORTED if the context's device has operators only. */
nbl_status nbl__check_models(nbl_context *ctx);

/* The device of a context: the one that was set, or the CPU. */
static inline const nbl__device *nbl__device_of(const nbl_context *ctx)
{
    const nbl__device *device = nbl__context_device(ctx);
    return device ? device : &nbl__cpu;
}

static inline nbl_status nbl__device_begin(nbl_context *ctx, const nbl__device *device)
{
    return device->call_begin ? device->call_begin(ctx) : NBL_OK;
}
static inline nbl_status nbl__device_end(nbl_context *ctx, const nbl__device *device, const char *what,
                                         nbl_status status)
{
    return device->call_end ? device->call_end(ctx, what, status) : status;
}

#endif
