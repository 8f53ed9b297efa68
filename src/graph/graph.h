/* graph.h - a computation before it runs: values, nodes, and the order of a training or
 * inference step.
 *
 *     value   a tensor with name, kind, dtype and shape, but no data
 *     node    one call of an operator family (ops/ops.h): an arguments struct whose slots
 *             (tensors) are bound to values
 *     step    the forward or backward operator of a node
 *
 * A builder adds nodes in an order in which they can run. nbl__graph_end infers the node at
 * once, so a dtype or shape that does not fit is reported with the node's name where it was
 * built. Errors are sticky: after the first failure every call does nothing, and
 * nbl__graph_status returns that failure. A builder needs no check per line.
 *
 * autodiff.c adds the backward pass from the roles of slots. fuse.c joins nodes. plan.c assigns order, addresses and
 * kernels. The graph itself knows no architecture and no device.
 *
 * A graph owns its values, nodes and names; one thread at a time may use it. */
#ifndef NBL_GRAPH_H
#define NBL_GRAPH_H

#include "base/arena.h"
#include "ops/ops.h"

typedef int32_t nbl__value; /* index into nbl__graph.values, from 1; 0: none */

typedef enum nbl__kind {
    NBL_KIND_INPUT,  /* written by the caller before a run: ids, positions, labels */
    NBL_KIND_WEIGHT, /* frozen nbl_weight in any storage format */
    /* dense tensor: norm weights, biases, adapters, and weights that are trained as a whole */
    NBL_KIND_PARAMETER,
    NBL_KIND_ACTIVATION, /* written and read within one run */
    /* of a parameter, f32: backward adds to it until the optimizer clears it */
    NBL_KIND_GRADIENT,
    NBL_KIND_STATE, /* kept from run to run: KV caches */
    /* computed from weights and parameters when these change: DoRA weight norms */
    NBL_KIND_PREPARED,
    NBL_KIND_RESULT /* an activation that the caller reads after a run */
} nbl__kind;

/* What a weight or a parameter is for. An architecture's builder says it (arch/parts.h); whoever
 * treats some weights differently asks for it, and never for a name. */
typedef enum nbl__weight_role {
    NBL_WEIGHT_NONE,      /* no weight, or one that no builder has asked for */
    NBL_WEIGHT_EMBEDDING, /* rows by token id; also the head's weight if the two are tied */
    NBL_WEIGHT_HEAD,      /* hidden states to logits */
    NBL_WEIGHT_LINEAR,    /* of a linear layer inside a layer of the transformer */
    NBL_WEIGHT_ROUTER,    /* hidden states to logits of experts; never quantized */
    NBL_WEIGHT_EXPERTS,   /* a stack of matrices, one per expert */
    NBL_WEIGHT_NORM,
    NBL_WEIGHT_RECURRENT, /* of a recurrence: its convolution, its decays */
    NBL_WEIGHT_BIAS,
    NBL_WEIGHT_SINKS, /* logits of heads that join attention's softmax */
    NBL_WEIGHT_LORA_A,
    NBL_WEIGHT_LORA_B,
    NBL_WEIGHT_MAGNITUDE /* of DoRA */
} nbl__weight_role;

typedef struct nbl__value_info {
    const char *name;
    nbl__kind kind;
    nbl__weight_role role;
    bool trained;        /* a parameter that gets a gradient */
    bool pinned;         /* never recomputed: kept from forward to its layer's backward */
    bool differentiable; /* a float tensor that depends on a trained parameter */
    nbl_tensor tensor;   /* dtype and shape */
    nbl_weight weight;   /* for NBL_KIND_WEIGHT */
    nbl__value alias;    /* a view shares the memory of this value; 0: no view */
    int64_t offset;      /* of a view: elements from the start of the alias to its first one */
    /* of a gradient that is written through column views: how many of its columns have a writer
     * (autodiff.c); 0: no such gradient */
    int64_t columns_written;
    /* gradient of this value; 0: none (yet) */
    nbl__value gradient;
    int producer; /* index of the node that writes it; -1: none */
} nbl__value_info;

typedef struct nbl__node {
    /* "model.layers.3.self_attn.o_proj", "self_attn.qkv"; nbl__show_node for messages */
    const char *name;
    const nbl__family *family; /* NULL: a view of bound[0], which is bound[1] */
    void *arguments;
    nbl__value *bound; /* [slots of the family] 0: slot is absent */
    int layer;         /* transformer layer, the unit of recomputation; -1: none */
    const char
        *scope;    /* "model.layers.3.": the name of that layer, which `name` may have or lack; NULL: none */
    bool prepares; /* runs in nbl__plan_prepare, not in every run */
} nbl__node;

/* One entry of the order: the forward or the backward operator of a node. */
typedef struct nbl__step {
    int node;
    bool backward;
} nbl__step;

typedef struct nbl__graph {
    nbl_context *ctx;
    nbl__arena arena;
    nbl_status status;       /* first failure; NBL_OK: none */
    nbl__value_info *values; /* [1 … value_count]; moves when it grows */
    int value_count, value_room;
    nbl__node *nodes;
    int node_count, node_room;
    nbl__step *steps;
    int step_count, step_room;
    int layer; /* layer and scope of nodes added from now on */
    const char *scope;
} nbl__graph;

/* Opens an empty graph. Close with nbl__graph_close, also after a failure. */
void nbl__graph_open(nbl_context *ctx, nbl__graph *g);
void nbl__graph_close(nbl__graph *g);

/* Nodes added from now on belong to this layer; -1: to none. */
void nbl__graph_set_layer(nbl__graph *g, int layer);
/* Names that layer for messages: "model.layers.3."; NULL: no name. */
void nbl__graph_set_scope(nbl__graph *g, const char *scope);

/* ---- values ---- */

/* A new value with `rank` dimensions. The name is copied. */
nbl__value nbl__graph_value(nbl__graph *g, nbl__kind kind, const char *name, nbl_dtype dtype, int rank,
                            const int64_t *shape);
/* A new NBL_KIND_WEIGHT value. *weight is copied; its data may still be NULL. */
nbl__value nbl__graph_weight(nbl__graph *g, const char *name, const nbl_weight *weight);
/* A view of the same memory as [rows, a, b], or as [rows, a] if b is 0. rows = elements / (a·b).
 * A trained parameter cannot be viewed: NBL_ERROR_UNSUPPORTED. */
nbl__value nbl__graph_view(nbl__graph *g, nbl__value value, int64_t a, int64_t b);
/* A view of columns first … first + count - 1 of a value [rows, n]: [rows, count] with the row
 * stride n (nbl_tensor.row_stride), in the same memory. nbl__graph_view can see it as [rows, a, b],
 * a·b = count. Only slots with nbl__slot.strided can be bound to it. */
nbl__value nbl__graph_columns(nbl__graph *g, nbl__value value, int64_t first, int64_t count);
/* The value at the end of the chain of aliases: the owner of the memory. */
nbl__value nbl__graph_storage(const nbl__graph *g, nbl__value value);
/* Pins a value: it is kept until its layer's backward steps, which recompute from it. */
void nbl__graph_pin(nbl__graph *g, nbl__value value);
static inline nbl__value_info *nbl__info(nbl__graph *g, nbl__value value)
{
    return &g->values[value];
}

/* ---- nodes: begin, set attributes in the returned struct, bind slots, end ----
 *
 * build.h has a typed function for each family that models are made of. */

/* Begins a node of an operator family and returns its arguments struct, with attributes at their
 * defaults. After a failure it returns a scratch struct that may be written, or NULL if memory
 * has run out. */
void *nbl__graph_begin(nbl__graph *g, const nbl__family *family, const char *name);
/* Binds a value to the slot that lies at `field` of the arguments struct of the node that was begun.
 * 0: the slot stays absent. */
void nbl__graph_bind(nbl__graph *g, const void *field, nbl__value value);
/* Ends the node: checks and infers it, and creates a value for every output. Returns the first
 * output. */
nbl__value nbl__graph_end(nbl__graph *g);
/* Ends a node that runs in nbl__plan_prepare only. It writes the outputs that were bound, which
 * must be NBL_KIND_PREPARED values of matching dtype and size. It may read weights and
 * parameters only. */
void nbl__graph_end_prepare(nbl__graph *g);
/* A node's full name, for messages: "model.layers.3.self_attn.qkv". */
typedef struct nbl__shown_node {
    char text[256];
} nbl__shown_node;
nbl__shown_node nbl__show_node(const nbl__node *node);
/* The address of an attribute of a node by name; NULL if its family has no such attribute. */
void *nbl__node_attr(const nbl__node *node, const char *name);
/* The value of another output of the last node, by its field; 0: none. */
nbl__value nbl__graph_output(nbl__graph *g, const void *field);

/* Copies dtypes, shapes and data pointers from the bound values into a node's arguments.
 * `address` returns the data of a value; NULL: each pointer becomes an address that nothing may read.
 * It is aligned, and its own for each value that has memory. A dense parameter bound to a weight slot becomes a dense nbl_weight. */
typedef void *(*nbl__address_fn)(void *user, nbl__value value);
void nbl__node_fill(nbl__graph *g, const nbl__node *node, const nbl__value *bound, void *arguments,
                    nbl__address_fn address, void *user);

/* True if the backward operator reads this slot, given the values bound. */
bool nbl__slot_is_saved(const nbl__family *family, const nbl__slot *slot, const nbl__value *bound);

/* ---- dropout ---- */

/* Gives every dropout of the graph a seed that each run reads from an input: i64 [layers], an
 * element per layer, added to the attribute `seed`. Returns the input; 0 if nothing is dropped. */
nbl__value nbl__graph_seed_dropout(nbl__graph *g, int64_t layers);

/* ---- autodiff ---- */

/* Adds the backward pass: a gradient for every trained parameter that `result` depends on.
 * `seed` is the gradient of `result`, an input of its shape. Backward steps follow the forward
 * steps in nbl__graph.steps; sums of gradients become `add` nodes.
 *
 * Fails with NBL_ERROR_UNSUPPORTED, naming node and parameter, if an operator between a trained
 * parameter and `result` passes no gradient on. Fails with NBL_ERROR_ARGUMENT if `result` does
 * not depend on some trained parameter. After success every trained parameter has a gradient. */
nbl_status nbl__graph_differentiate(nbl__graph *g, nbl__value result, nbl__value seed);

/* ---- fusion ---- */

/* Joins pairs of forward nodes where the device has a kernel for both (fuse.c). Call after
 * nbl__graph_differentiate and before planning; nbl__plan_make does. */
nbl_status nbl__graph_fuse(nbl__graph *g);

nbl_status nbl__graph_status(const nbl__graph *g);

/* ---- shared by the files of graph/ ---- */

/* True if the forward operator reads this slot. */
bool nbl__slot_is_read(const nbl__slot *slot);
/* Records a failure unless one is recorded already. True if the graph has failed. */
bool nbl__graph_failed(nbl__graph *g, nbl_status status);
/* A new value without shape; `name` is not copied. 0 after a failure. */
nbl__value nbl__graph_new(nbl__graph *g, nbl__kind kind, const char *name);
/* Appends the forward or backward operator of a node to the order. */
void nbl__graph_add_step(nbl__graph *g, int node, bool backward);

#endif
