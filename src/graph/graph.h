/* graph.h - a computation before it runs: values, nodes, and the schedule of a training or inference step.
 *
 * A value is a tensor with a name, a kind, a dtype and a shape, but no data yet. A node is one call of an
 * operator family (ops/ops.h): a struct of arguments whose slots are bound to values. Builders add nodes
 * in an order in which they can run; each node is inferred at once, so a dtype or shape that does not fit
 * is reported with the node's full name where it was built. Errors are sticky: a builder reads top to
 * bottom without a check per line, and nbl__graph_status tells the first failure.
 *
 * autodiff.c adds the backward pass from the slots' roles alone; plan.c turns nodes into a schedule with
 * addresses. Nothing here knows an architecture or a device. */
#ifndef NBL_GRAPH_H
#define NBL_GRAPH_H

#include "base/arena.h"
#include "ops/ops.h"

typedef int32_t nbl__value; /* 0: none */

typedef enum nbl__kind {
    NBL_KIND_INPUT,      /* the caller writes it before a run: ids, positions, labels */
    NBL_KIND_WEIGHT,     /* frozen, as an nbl_weight: any storage format */
    NBL_KIND_PARAMETER,  /* dense: norm weights and biases, adapters, and whole weights that are trained */
    NBL_KIND_ACTIVATION, /* made and used within a run */
    NBL_KIND_GRADIENT,   /* of a parameter: f32, added to until the optimiser clears it */
    NBL_KIND_STATE,      /* kept from run to run: a KV cache */
    NBL_KIND_PREPARED,   /* made of weights and parameters when these have changed: norms of DoRA */
    NBL_KIND_RESULT      /* an activation that the caller reads after a run */
} nbl__kind;

typedef struct nbl__value_info {
    const char *name;
    nbl__kind kind;
    bool trained;        /* a parameter with a gradient */
    bool pinned;         /* recomputation starts from it */
    bool differentiable; /* a float tensor, and a trained value lies behind it */
    nbl_tensor tensor;   /* dtype and shape */
    nbl_weight weight;   /* NBL_KIND_WEIGHT */
    nbl__value alias;    /* a view: its memory is that of this value */
    nbl__value gradient;
    int producer; /* node, or -1 */
} nbl__value_info;

typedef struct nbl__node {
    const char *name;          /* "layers.3.self_attn.o_proj" */
    const nbl__family *family; /* NULL: a view, bound[0] seen as bound[1] */
    void *arguments;
    nbl__value *bound; /* per slot of the family */
    int layer;         /* the unit of recomputation; -1: none */
    bool prepares;     /* runs when parameters have changed (nbl__plan_prepare), not in every run */
} nbl__node;

/* What runs, in order: the forward or the backward operator of a node. */
typedef struct nbl__step {
    int node;
    bool backward;
} nbl__step;

typedef struct nbl__graph {
    nbl_context *ctx;
    nbl__arena arena;
    nbl_status status;       /* the first failure */
    nbl__value_info *values; /* [1 .. value_count] */
    int value_count, value_room;
    nbl__node *nodes;
    int node_count, node_room;
    nbl__step *steps;
    int step_count, step_room;
    int layer;        /* of nodes to come */
    char prefix[256]; /* of names to come */
} nbl__graph;

void nbl__graph_open(nbl_context *ctx, nbl__graph *g);
void nbl__graph_close(nbl__graph *g);

/* Names of the values and nodes to come start with this; printf style. */
__attribute__((format(printf, 2, 3))) void nbl__graph_enter(nbl__graph *g, const char *format, ...);
void nbl__graph_set_layer(nbl__graph *g, int layer);

/* ---- values ---- */

nbl__value nbl__graph_value(nbl__graph *g, nbl__kind kind, const char *name, nbl_dtype dtype, int rank,
                            const int64_t *shape);
nbl__value nbl__graph_weight(nbl__graph *g, const char *name, const nbl_weight *weight);
/* The same memory seen as [rows, a, b], or as [rows, a] with b = 0. */
nbl__value nbl__graph_view(nbl__graph *g, nbl__value value, int64_t a, int64_t b);
/* The value whose memory this one uses. */
nbl__value nbl__graph_storage(const nbl__graph *g, nbl__value value);
/* A value that recomputation starts from: it is kept until its layer's backward pass. */
void nbl__graph_pin(nbl__graph *g, nbl__value value);
static inline nbl__value_info *nbl__info(nbl__graph *g, nbl__value value)
{
    return &g->values[value];
}

/* ---- nodes: begin, set attributes in the struct, bind slots, end ---- */

/* The new node's arguments (attributes at their defaults); a harmless struct when the graph has failed. */
void *nbl__graph_begin(nbl__graph *g, const char *family, const char *name);
void nbl__graph_bind(nbl__graph *g, const char *slot, nbl__value value); /* value 0: leaves it absent */
/* Infers and makes the outputs. Returns the first output. */
nbl__value nbl__graph_end(nbl__graph *g);
/* Ends a node that runs only when parameters have changed. It writes those outputs that were bound, which
 * are values of NBL_KIND_PREPARED, and no others; what it reads are weights and parameters. */
void nbl__graph_end_prepare(nbl__graph *g);
/* An attribute of a node by its name, for families that are not known by their struct; NULL: none such. */
void *nbl__node_attr(const nbl__node *node, const char *name);
/* Another output of the last node, by slot name. */
nbl__value nbl__graph_output(nbl__graph *g, const char *slot);

/* Fills the tensors of a node's arguments from the values bound: dtype, shape, and data where `placed`
 * tells an address; without it a mark that says "present". A dense parameter bound to the slot of a weight is a
 * dense weight there. */
typedef void *(*nbl__address_fn)(void *user, nbl__value value);
void nbl__node_fill(nbl__graph *g, const nbl__node *node, const nbl__value *bound, void *arguments,
                    nbl__address_fn address, void *user);

/* Does the backward operator read this slot, with these values bound? */
bool nbl__slot_kept(const nbl__family *family, const nbl__slot *slot, const nbl__value *bound);

/* ---- autodiff ---- */

/* Adds gradients for every trained parameter behind `result`, whose own gradient is `seed` (a value of
 * its shape, given as an input). The backward of node i becomes a step of the schedule; sums of
 * gradients become nodes of their own.
 *
 * Fails with NBL_ERROR_UNSUPPORTED, naming node and parameter, if a gradient cannot pass a node between a
 * trained parameter and `result`, and with NBL_ERROR_ARGUMENT if `result` does not depend on a trained
 * parameter. After success every trained parameter has a gradient. */
nbl_status nbl__graph_differentiate(nbl__graph *g, nbl__value result, nbl__value seed);

nbl_status nbl__graph_status(const nbl__graph *g);

/* ---- for the files of this layer ---- */

/* Does the forward operator read this slot? */
bool nbl__slot_is_read(const nbl__slot *slot);
/* Keeps the first failure; tells whether there is one. */
bool nbl__graph_failed(nbl__graph *g, nbl_status status);
nbl__value nbl__graph_new(nbl__graph *g, nbl__kind kind, const char *name);
void nbl__graph_add_step(nbl__graph *g, int node, bool backward);

#endif
