/* plan.h - from a graph to something that runs: order, recomputation, addresses, implementations.
 *
 * A plan states the bytes of every arena before anything is allocated:
 *
 *     weights      frozen weights as stored; brought by the loader, not part of the plan's memory
 *     parameters   dense parameters and adapters, and what is prepared from them
 *     gradients    of trained parameters, f32
 *     states       KV caches
 *     inputs       what the caller writes and reads
 *     run          activations, saved values and scratch, each at an address that is free while it lives
 *     host         beside them, on a device: values that wait in the host's memory
 *
 * Two schedules: `steps` are every run; `prepare` is what depends on weights and parameters alone (the norms of
 * DoRA) and runs when these have changed: after loading, and after each step of an optimiser.
 *
 * Running allocates nothing. The plan is made for the largest sizes; nbl__plan_resize runs it with fewer
 * tokens at the same addresses. */
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

/* What is made again instead of kept: each rung what the one below it makes again, and more. */
typedef enum nbl__recompute {
    NBL_RECOMPUTE_NONE,
    NBL_RECOMPUTE_NORMS,   /* norms, rotations and the like: as many bytes are read as are saved */
    NBL_RECOMPUTE_CHEAP,   /* all that is no product: gated activations, made of two values that are kept */
    NBL_RECOMPUTE_FLAGGED, /* what operators of layers save when a flag asks them to (nbl__slot.when) */
    NBL_RECOMPUTE_LAYERS,  /* layers, from their input */
    NBL_RECOMPUTE_ALL      /* what flags ask for outside of layers: the logits are made twice */
} nbl__recompute;

typedef struct nbl__planned_step {
    const nbl__node *node;
    const nbl__op *op;
    bool backward, again; /* again: a recomputation */
    nbl__value *bound;
    void *arguments;
    const nbl__impl *impl;
    size_t scratch, scratch_offset;
    size_t kept, kept_offset; /* what forward leaves for backward on a device (nbl__cuda_kept): of both */
} nbl__planned_step;

/* A schedule as a device remembers it. */
enum { NBL_PLAN_CAPTURED_GRAPHS = 4 };
typedef struct nbl__captured_graph {
    uint64_t key; /* of all its arguments; 0: none */
    void *graph;  /* NULL: it has run once, and is recorded when it comes again */
    int64_t used; /* the run that used it last */
} nbl__captured_graph;

typedef struct nbl__plan {
    nbl_context *ctx;
    nbl__graph *graph;
    nbl__arena arena;
    int value_count; /* of the graph as it was built */
    nbl__planned_step *steps;
    int step_count;
    nbl__planned_step *prepare;
    int prepare_count;
    nbl__recompute recompute;
    int recomputed_layers; /* so many, from the first, stand on that rung; the others on the one below it */
    size_t *offset;        /* per value, in the memory of its class */
    struct nbl__piece *lives; /* of each value; then each step's scratch; then what each step is left */
    size_t bytes[NBL_MEMORY_COUNT];
    size_t saved_bytes;                /* of `run`: the most that lives from forward to backward */
    uint8_t *memory[NBL_MEMORY_COUNT]; /* NULL before nbl__plan_bind; on a device: the device's */
    bool borrowed[NBL_MEMORY_COUNT];
    size_t
        host_bytes; /* what waits in the host's memory meanwhile (offload.c), and where: no part of the total */
    uint8_t *host;
    uint8_t *mirror; /* on a device: inputs and results as the caller sees them; borrowed with the inputs */
    nbl__captured_graph captured_graphs[NBL_PLAN_CAPTURED_GRAPHS];
    int64_t runs;
    uint64_t
        key; /* of a run of the first key_count steps with their arguments as they are; 0: they have changed since */
    int key_count;
    bool key_ends; /* it copies inputs and results, too */
} nbl__plan;

typedef struct nbl__plan_options {
    size_t budget;      /* bytes of all arenas together; 0: no limit. Recomputation is chosen to fit it */
    nbl__recompute min; /* at least this much recomputation */
    bool thrifty;       /* more than that without a budget: what saves far more memory than it takes time */
    bool offload;       /* what layers are made again from waits in the host's memory */
    bool or_smallest;   /* when the budget cannot be kept: the smallest plan instead of an error */
    const struct nbl__plan *with; /* one that will run in turns with this one (nbl__plan_join): inputs and run
                                     are made large enough for both */
} nbl__plan_options;

/* Plans without allocating what is planned. Fails with NBL_ERROR_MEMORY, naming the smallest figure it
 * could reach, when the budget cannot be kept. The graph must outlive the plan. */
nbl_status nbl__plan_make(nbl__graph *graph, const nbl__plan_options *options, nbl__plan *plan);
void nbl__plan_free(nbl__plan *plan);

size_t nbl__plan_total(const nbl__plan *plan);
nbl__memory_class nbl__plan_class(const nbl__value_info *info);

/* Allocates the arenas and binds addresses. Weights must have their data by now. Parameters and states are those
 * of `shared` when it is given: a plan of the same model, which must outlive this one. */
nbl_status nbl__plan_bind(nbl__plan *plan, const nbl__plan *shared);
/* Binds to the memory of another plan, all of it: `host` was made `with` this one, holds the same parameters and
 * states, and must outlive it. What one run leaves in inputs and results, a run of the other may overwrite. */
nbl_status nbl__plan_join(nbl__plan *plan, const nbl__plan *host);
/* Where operators find a value; after nbl__plan_bind. That may be a device's memory: see device/device_memory.h. */
void *nbl__plan_address(const nbl__plan *plan, nbl__value value);
/* An input for the caller to write before a run, or a result to read after it: always the host's memory. */
void *nbl__plan_data(const nbl__plan *plan, nbl__value value);
/* Sets all gradients to zero. */
nbl_status nbl__plan_clear_gradients(nbl__plan *plan);
/* Shapes of inputs have changed (never beyond those planned): infers again at the same addresses. */
nbl_status nbl__plan_resize(nbl__plan *plan);
/* An attribute of a step (nbl__step_attr) was changed: says so before the next run. */
void nbl__plan_touch(nbl__plan *plan);
/* Parameters have changed: makes again what depends on them. Between runs; it uses their memory. */
nbl_status nbl__plan_prepare(nbl__plan *plan);
nbl_status nbl__plan_run(nbl__plan *plan);
/* Enqueues a run where there is a device, and returns when the device begins with it: what is written to the inputs from
 * then on is the next run's. Results are what nbl__memory_fetch finds at nbl__plan_address. */
nbl_status nbl__plan_run_later(nbl__plan *plan);
/* The forward steps only: results, no gradients. */
nbl_status nbl__plan_run_forward(nbl__plan *plan);
/* Runs the forward steps one by one, with the inputs as they are now, and tells the first whose output is not finite;
 * NULL: none. */
nbl_status nbl__plan_find_non_finite(nbl__plan *plan, const nbl__node **node);
/* An attribute in the arguments of a step, by its name; NULL: its family has none such. */
void *nbl__step_attr(const nbl__planned_step *step, const char *name);

/* ---- plan.c, plan_run.c: for each other ---- */

/* Infers the steps, and with `prepare` those that prepare as well, with the shapes that inputs have now. */
nbl_status nbl__plan_infer(nbl__plan *plan, bool prepare, nbl__address_fn address);
void nbl__plan_unbind(nbl__plan *plan);
/* A step alone; all that it writes is there afterwards (on a device: in the order of its stream). */
nbl_status nbl__plan_run_step(nbl__plan *plan, const nbl__planned_step *step);
/* Step i of the first `count`, which run all, in their order: neighbours may share their work. */
nbl_status nbl__plan_run_in_order(nbl__plan *plan, int i, int count);
/* profile.c: on a device, runs the first `count` steps and tells the log where their time went. */
nbl_status nbl__plan_profile(nbl__plan *plan, int count);

/* ---- place.c ---- */

/* A piece of memory that is needed from step `first` to step `last`. */
typedef struct nbl__piece {
    size_t bytes, offset;
    int first, last;
} nbl__piece;
/* Gives pieces offsets (multiples of 64) so that no two that live at once overlap; returns the end. */
size_t nbl__assign_offsets(nbl__piece **pieces, int count);

/* Lifetimes, the bytes of every arena, and offsets. */
nbl_status nbl__plan_assign_offsets(nbl__plan *plan);
/* Does this step read or write what the slot is bound to? */
bool nbl__step_touches(const nbl__planned_step *step, const nbl__slot *slot);
/* Bytes of a value, rounded up to 64. */
nbl_status nbl__plan_value_bytes(const nbl__plan *plan, nbl__value value, size_t *bytes);
/* Is this value kept from the forward to the backward pass? */
bool nbl__plan_is_saved(const nbl__plan *plan, nbl__value value);

/* ---- cost.c: what a step takes, at the sizes it has now ---- */

/* Floating-point operations: a multiplication and an addition are two; divisions, roots and exponentials are one each.
 * Sequences of one length are taken for those of a pack, and full caches. */
double nbl__step_flops(const nbl__planned_step *step);
/* Bytes of all tensors and weights that it reads or writes, each once. */
double nbl__step_bytes(const nbl__planned_step *step);
/* Bytes of a weight as it is kept. */
uint64_t nbl__weight_bytes(const nbl_weight *weight);
/* How long a run takes on a device, in bytes that it could have moved meanwhile: a step is bound by its bytes, or
 * by its operations. To compare plans with, not to tell the time. */
double nbl__plan_time(const nbl__plan *plan);

/* ---- recompute.c ---- */

/* The rung that a layer stands on. */
nbl__recompute nbl__plan_recompute_level(const nbl__plan *plan, int layer);
/* Rewrites the schedule so that values which the layer's rung gives up are made anew just before the layer's backward
 * pass. */
nbl_status nbl__plan_recompute(nbl__plan *plan);

/* ---- offload.c ---- */

/* Adds the steps that take what layers are made again from to the host and back. */
nbl_status nbl__plan_offload(nbl__plan *plan);

#endif
