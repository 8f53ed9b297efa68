/* plan.h - turns a graph into a schedule that runs: order, recomputation, addresses,
 * implementations.
 *
 * A plan states the bytes of every memory class before anything is allocated
 * (nbl__memory_class):
 *
 *     parameters   dense parameters, adapters, and values prepared from them (DoRA weight norms)
 *     gradients    f32 gradients of trained parameters
 *     states       KV caches
 *     inputs       inputs that the caller writes and results that it reads
 *     run          activations, saved values, scratch; two values may share an address if their
 *                  lifetimes do not overlap (offsets.c)
 *
 * Two kinds of memory are not part of that sum. Frozen weights belong to the loader. With
 * offload, some values wait in the host's memory between forward and backward (host_bytes,
 * offload.c).
 *
 * A plan has two schedules. `steps` run every time: forward, then backward.
 * `prepare` computes values that depend on weights and parameters alone (DoRA weight norms).
 * Call nbl__plan_prepare after loading and after each optimizer step; otherwise DoRA uses stale
 * norms.
 *
 * Running allocates nothing. A plan is made for the largest shapes; nbl__plan_resize changes to
 * fewer tokens at the same addresses. A plan belongs to one thread at a time.
 *
 *     nbl__plan_make → nbl__plan_bind → nbl__plan_prepare → nbl__plan_run, again and again
 *         → nbl__plan_free
 */
#ifndef NBL_PLAN_H
#define NBL_PLAN_H

#include "graph/graph.h"

typedef enum nbl__memory_class {
    NBL_MEMORY_PARAMETERS,
    NBL_MEMORY_GRADIENTS,
    NBL_MEMORY_STATES,
    NBL_MEMORY_INPUTS,
    NBL_MEMORY_RUN,
    NBL_MEMORY_COUNT
} nbl__memory_class;

/* Recompute levels: what backward computes again instead of keeping it from forward. Each level
 * includes the ones above it in this list. */
typedef enum nbl__recompute {
    NBL_RECOMPUTE_NONE,
    NBL_RECOMPUTE_NORMS, /* operators of NBL_REPEAT_CHEAP: norms, RoPE, cast, scale, add */
    NBL_RECOMPUTE_CHEAP, /* also NBL_REPEAT_WIDE: gated activations, from gate and up, which are kept */
    /* also the optional saved values of a layer's operators (nbl__slot.when) */
    NBL_RECOMPUTE_FLAGGED,
    NBL_RECOMPUTE_LAYERS, /* whole layers, from their pinned values */
    /* also optional saved values outside of layers: the loss recomputes its logits */
    NBL_RECOMPUTE_ALL
} nbl__recompute;

/* Attributes that differ in a run without backward: it drops nothing, and its loss computes no dx. */
typedef struct nbl__forward_attrs {
    float dropout;
    bool grad_in_forward; /* the attribute "early" */
} nbl__forward_attrs;

typedef struct nbl__planned_step {
    const nbl__node *node;
    const nbl__op *op;
    /* rerun: a forward step that runs during backward, to recompute or to load an offloaded
     * value */
    bool backward, rerun;
    nbl__value *bound;
    void *arguments;
    const nbl__impl *impl;
    size_t scratch, scratch_offset;
    /* bytes that a forward kernel leaves for its backward kernel (nbl__device.saved_bytes); set in
     * both steps */
    size_t saved_bytes, saved_offset;
    /* all zero; while a run without backward lasts, what the arguments have in other runs */
    nbl__forward_attrs other;
} nbl__planned_step;

/* A graph that a device captured from one run of the schedule. The plan keeps the
 * NBL_PLAN_CAPTURED_GRAPHS most recently used ones. */
enum { NBL_PLAN_CAPTURED_GRAPHS = 4 };
typedef struct nbl__captured_graph {
    uint64_t key; /* nbl__hash of all arguments of the steps; 0: entry is free */
    void *graph;  /* NULL: ran once uncaptured; the next run with this key captures it */
    int64_t used; /* value of nbl__plan.runs at its last use: the smallest is replaced */
} nbl__captured_graph;

typedef struct nbl__plan {
    nbl_context *ctx;
    nbl__graph *graph;
    nbl__arena arena;
    int value_count; /* values of the graph before recomputation and offload added theirs */
    nbl__planned_step *steps;
    int step_count;
    nbl__planned_step *prepare;
    int prepare_count;
    nbl__recompute recompute;
    /* layers 0 … recomputed_layers - 1 use `recompute`; later layers use the level below it */
    int recomputed_layers;
    size_t *offset; /* [graph->value_count + 1] offset of each value in the memory of its class */
    /* Lifetimes: [graph->value_count + 1] of values, [step_count] of the steps' scratch,
     * [step_count] of the bytes they keep for backward. */
    struct nbl__allocation *lives;
    size_t bytes[NBL_MEMORY_COUNT];
    /* bytes of `run` that hold saved values: written in forward, read in backward */
    size_t saved_bytes;
    /* NULL before nbl__plan_bind; memory of the device */
    uint8_t *memory[NBL_MEMORY_COUNT];
    bool borrowed[NBL_MEMORY_COUNT];
    /* Host memory for offloaded values (offload.c). Not counted by nbl__plan_total. */
    size_t host_bytes;
    uint8_t *host;
    /* If the device's memory is separate: host copy of `inputs`, which the caller writes and reads.
     * Borrowed along with `inputs`. */
    uint8_t *mirror;
    nbl__captured_graph captured_graphs[NBL_PLAN_CAPTURED_GRAPHS];
    int64_t runs;
    /* Cached key of a run of the first key_count steps. 0: arguments changed, compute it again. */
    uint64_t key;
    int key_count;
    bool key_ends; /* that run copies inputs and results, too */
} nbl__plan;

typedef struct nbl__plan_options {
    /* limit for nbl__plan_total in bytes; 0: none. The lowest recompute level that fits is
     * chosen */
    size_t budget;
    nbl__recompute min; /* lowest recompute level to use */
    /* Without a budget: recompute where it saves at least 8 times more memory than time (in per
     * cent of each). */
    bool thrifty;
    /* keep the inputs of recomputed layers in host memory until backward needs them */
    bool offload;
    bool or_smallest; /* if nothing fits the budget: the smallest plan instead of an error */
    /* Another plan that will later join this one's memory (nbl__plan_join). `inputs` and `run`
     * become large enough for both. NULL: none. */
    const struct nbl__plan *with;
} nbl__plan_options;

/* Makes a plan; allocates no planned memory. If no plan fits the budget, fails with
 * NBL_ERROR_MEMORY and names the smallest total it could reach (unless or_smallest). The graph
 * must outlive the plan. Free with nbl__plan_free; after a failure the plan is empty. */
nbl_status nbl__plan_make(nbl__graph *graph, const nbl__plan_options *options, nbl__plan *plan);
void nbl__plan_free(nbl__plan *plan);

/* Sum of `bytes` over all memory classes. */
size_t nbl__plan_total(const nbl__plan *plan);
nbl__memory_class nbl__plan_class(const nbl__value_info *info);

/* Allocates memory for every class and writes addresses into all arguments. Weights must have
 * their data before this call. `shared` (NULL: none) is another plan of the same model:
 * parameters and states are its memory, and it must outlive this plan. */
nbl_status nbl__plan_bind(nbl__plan *plan, const nbl__plan *shared);
/* Binds to the parameters, states, inputs and run memory of `host`, a plan of the same model
 * that was made with options.with = this plan. Gradients are still allocated here. `host` must
 * outlive this plan. A run of one plan may overwrite the inputs and results of the other. */
nbl_status nbl__plan_join(nbl__plan *plan, const nbl__plan *host);
/* The address of a value as operators see it; valid after nbl__plan_bind. It is memory of the
 * device, which the host may not dereference (device/device_memory.h). */
void *nbl__plan_address(const nbl__plan *plan, nbl__value value);
/* The host address of an input (to write before a run) or a result (to read after it). */
void *nbl__plan_data(const nbl__plan *plan, nbl__value value);
/* Sets all gradients to zero. */
nbl_status nbl__plan_clear_gradients(nbl__plan *plan);
/* Infers all steps again after the caller has changed the shapes of inputs, at the same
 * addresses, and chooses implementations again: some take few tokens only. A shape must never
 * exceed the planned one. */
nbl_status nbl__plan_resize(nbl__plan *plan);
/* Call after changing an attribute of a step through nbl__step_attr: the next run computes its
 * captured graph's key again. Otherwise a device replays the old arguments. What changes at every
 * run is an input instead. */
void nbl__plan_touch(nbl__plan *plan);
/* Hash of everything that decides which kernels a run of the first `count` steps launches, and with
 * which arguments; `ends`: with the copies of inputs and results. Never 0. Two runs with equal keys
 * can be one captured CUDA graph. Reads all arguments, which takes a while in large plans. */
uint64_t nbl__plan_key(const nbl__plan *plan, int count, bool ends);
/* Runs the `prepare` steps. Call after every change of parameters, and never during a run:
 * prepare steps use the run memory as scratch. */
nbl_status nbl__plan_prepare(nbl__plan *plan);
/* Runs all steps and returns when the results can be read. Fails with NBL_ERROR_CANCELLED if the
 * progress callback says so, and with NBL_ERROR_IO if a mapped weight file has changed. */
nbl_status nbl__plan_run(nbl__plan *plan);
/* Enqueues a run and returns once the inputs are copied, so the caller may write the next inputs.
 * Results stay on the device: nbl__memory_read_async reads them from nbl__plan_address. On the CPU
 * the run is complete. */
nbl_status nbl__plan_enqueue(nbl__plan *plan);
/* Runs the forward steps only, without dropout: results are written, gradients are not. */
nbl_status nbl__plan_run_forward(nbl__plan *plan);
/* Debugging aid: runs the forward steps one by one with the current inputs. *node becomes the
 * first node with an output that holds NaN or an infinity; NULL if there is none. */
nbl_status nbl__plan_find_non_finite(nbl__plan *plan, const nbl__node **node);
/* The address of an attribute in a step's arguments; NULL if its operator family has no
 * attribute `name`. */
void *nbl__step_attr(const nbl__planned_step *step, const char *name);

/* ---- shared by plan.c and plan_run.c ---- */

/* Infers `steps`, and `prepare` if asked, with the current shapes of inputs. `address` NULL:
 * shapes only. Else the steps' implementations are chosen again, by shapes and addresses. */
nbl_status nbl__plan_infer(nbl__plan *plan, bool prepare, nbl__address_fn address);
/* Frees bound memory that is not borrowed, and captured graphs. */
void nbl__plan_unbind(nbl__plan *plan);
/* Runs one step by itself. Its outputs are complete afterwards; on a device, in stream order. */
nbl_status nbl__plan_run_step(nbl__plan *plan, const nbl__planned_step *step);
/* profile.c: runs the first `count` steps and logs the time of each operator. */
nbl_status nbl__plan_profile(nbl__plan *plan, int count);

/* ---- offsets.c ---- */

/* A piece of memory with a lifetime: steps first … last, both included. */
typedef struct nbl__allocation {
    size_t bytes, offset;
    int first, last;
} nbl__allocation;
/* Assigns offsets (multiples of 64 bytes) so that no two pieces with overlapping lifetimes
 * overlap in memory. Reorders `pieces`. Returns the end of the highest piece in bytes. Cost:
 * O(count²). */
size_t nbl__assign_offsets(nbl__allocation **pieces, int count);

/* Computes lifetimes, the bytes of every memory class, and the offset of every value and
 * scratch. */
nbl_status nbl__plan_assign_offsets(nbl__plan *plan);
/* True if the step reads or writes the value in this slot. */
bool nbl__step_touches(const nbl__planned_step *step, const nbl__slot *slot);
/* Bytes of a value, rounded up to 64. Fails with NBL_ERROR_SHAPE if they do not fit. */
nbl_status nbl__plan_value_bytes(const nbl__plan *plan, nbl__value value, size_t *bytes);
/* True if a value is written in forward and used in backward. */
bool nbl__plan_is_saved(const nbl__plan *plan, nbl__value value);

/* ---- cost.c: the cost of a step at its current shapes ---- */

/* Floating-point operations of a step. A multiply-add counts 2; a division, root or exponential
 * counts 1. Packed sequences are taken as equally long, caches as full. */
double nbl__step_flops(const nbl__planned_step *step);
/* Bytes of all tensors and weights that the step reads or writes; each tensor counts once. */
double nbl__step_bytes(const nbl__planned_step *step);
/* Bytes of a weight as stored: codes and scales. */
uint64_t nbl__weight_bytes(const nbl_weight *weight);
/* Estimated duration of a run on a device, in units of the time to move one byte. Each step
 * counts max(bytes, flops / 150). Good only for comparing plans of one graph. */
double nbl__plan_time(const nbl__plan *plan);

/* ---- recompute.c ---- */

/* The recompute level of a layer; layer -1 stands for nodes outside of layers. */
nbl__recompute nbl__plan_recompute_level(const nbl__plan *plan, int layer);
/* Inserts forward steps before a layer's backward steps that recompute the values which the
 * layer's recompute level does not keep. */
nbl_status nbl__plan_recompute(nbl__plan *plan);

/* ---- offload.c ---- */

/* Inserts steps that store pinned values in host memory during forward and load them during
 * backward. */
nbl_status nbl__plan_offload(nbl__plan *plan);

#endif
