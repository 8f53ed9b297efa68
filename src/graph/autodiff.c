/* autodiff.c - reverse-mode differentiation: adds the backward pass, from the roles of slots
 * alone.
 *
 * Nodes are visited from last to first. A node is differentiated if one of its outputs has a
 * gradient and one of its inputs needs one:
 *
 *     COTANGENT slots   bound to the gradients of its outputs
 *     GRADIENT slots    bound to new values: the gradients of its inputs
 *
 * Gradients of parameters are f32 values of NBL_KIND_GRADIENT. Every user of a parameter adds to
 * the same value (a tied embedding is also the head). Gradients of activations are written once.
 * If an activation has several users, `add` nodes sum their contributions in the order in which
 * the backward pass meets them.
 *
 * Views of columns (nbl__graph_columns): the gradient of a view is a view of the same columns of
 * its storage's gradient. Backward operators write straight into it; nothing is copied or summed.
 *
 *     qkv [T, q + 2·kv]    ── columns ──▶ q, k, v          read by rope and attention
 *     d.qkv [T, q + 2·kv]  ◀── columns ── d.q, d.k, d.v    written by their backward operators
 *
 * So every column of the storage must get its gradient from exactly one slot that accepts a row
 * stride. nbl__graph_differentiate refuses with NBL_ERROR_UNSUPPORTED, by name:
 *
 *   - views that overlap, and a view with more than one user
 *   - a value that is used by columns and as a whole
 *   - columns that get no gradient, while others of the same value do
 *   - a view of columns that is the result itself
 *
 * A gradient never stops silently. If an output of a node has a gradient, each differentiable
 * input must have a GRADIENT slot, and each trained input one that accumulates in f32. Otherwise
 * nbl__graph_differentiate fails and names the node. In the end every trained parameter must
 * have a gradient.
 *
 * DoRA treats its weight norm as a constant: the outputs of nodes that prepare
 * (nbl__graph_end_prepare) are not differentiable. */
#include "graph/build.h"

/* Fails the graph: `value` is used in a way in which views of columns get no gradient. */
static void refuse_columns(nbl__graph *g, nbl__value value, const char *use)
{
    const nbl__value_info *info = &g->values[value];
    nbl__graph_failed(g, nbl__fail(g->ctx, NBL_ERROR_UNSUPPORTED, "%s %s: no gradient: %s", info->name,
                                   nbl__show_shape(info->tensor.rank, info->tensor.shape).text, use));
}

/* The value that receives the gradient of a view of columns: the same columns of the gradient of its
 * storage. 0 after a failure. */
static nbl__value columns_gradient(nbl__graph *g, nbl__value view, const nbl__slot *slot,
                                   const nbl_tensor *made)
{
    nbl__value storage = g->values[view].alias, whole = g->values[storage].gradient;
    if (whole && g->values[whole].columns_written == 0) {
        refuse_columns(g, storage, "it is used both by columns and as a whole");
        return 0;
    }
    if (slot->strided != made->rank) {
        refuse_columns(g, view, "an operator that reads these columns writes only dense gradients");
        return 0;
    }
    const char *name = nbl__arena_printf(&g->arena, "d.%s", g->values[storage].name);
    if (whole == 0) {
        whole = nbl__graph_new(g, NBL_KIND_ACTIVATION, name);
        if (whole == 0) return 0;
        g->values[whole].tensor = g->values[storage].tensor;
        g->values[storage].gradient = whole;
    }
    int64_t first = g->values[view].offset, count = nbl__row_elements(made);
    for (nbl__value v = whole + 1; v <= g->value_count; v++) {
        const nbl__value_info *other = &g->values[v];
        if (other->alias != whole || other->offset >= first + count ||
            first >= other->offset + nbl__row_elements(&other->tensor))
            continue;
        refuse_columns(g, view, "its columns are used more than once");
        return 0;
    }
    nbl__value value = nbl__graph_new(g, NBL_KIND_ACTIVATION, name);
    if (value == 0) return 0;
    nbl__value_info *info = &g->values[value];
    info->tensor = *made;
    info->tensor.data = NULL;
    info->tensor.row_stride = g->values[view].tensor.row_stride;
    info->alias = whole;
    info->offset = first;
    g->values[whole].columns_written += count;
    return value;
}

/* False, and the graph fails, if some columns of the value's gradient have no writer. */
static bool has_all_columns(nbl__graph *g, nbl__value value)
{
    nbl__value gradient = g->values[value].gradient;
    int64_t written = gradient ? g->values[gradient].columns_written : 0;
    if (written == 0 || written == nbl__last(&g->values[gradient].tensor)) return true;
    refuse_columns(g, value, "some of its columns are not used");
    return false;
}

/* Adds `part` to the gradient of an activation: it is the first contribution, or is summed with
 * the others. */
static void contribute(nbl__graph *g, nbl__value value, nbl__value part)
{
    nbl__value sum = g->values[value].gradient;
    if (sum == 0 || part == 0) {
        if (part) g->values[value].gradient = part;
        return;
    }
    if (g->values[sum].columns_written) {
        refuse_columns(g, value, "it is used both by columns and as a whole");
        return;
    }
    nbl__value total = nbl__build_add(g, g->values[part].name, sum, part, g->values[value].tensor.dtype);
    g->values[value].gradient = total;
}

/* The gradient of a view's source is the view's gradient, seen in the shape of the source. That of
 * columns was written in place. */
static void differentiate_view(nbl__graph *g, const nbl__node *node)
{
    nbl__value from = node->bound[0], gradient = g->values[node->bound[1]].gradient;
    if (gradient == 0 || !g->values[from].differentiable) return;
    if (g->values[node->bound[1]].tensor.row_stride) {
        if (g->values[gradient].alias == 0 || g->values[gradient].alias != g->values[from].gradient)
            refuse_columns(g, node->bound[1], "these columns are the result itself");
        return;
    }
    if (!has_all_columns(g, node->bound[1])) return;
    nbl__value back = nbl__graph_new(g, NBL_KIND_ACTIVATION, g->values[gradient].name);
    if (back == 0) return;
    g->values[back].tensor = g->values[from].tensor;
    g->values[back].alias = gradient;
    contribute(g, from, back);
}

/* Binds the COTANGENT slots to the gradients of the outputs. False if no output has one. */
static bool bind_cotangents(nbl__graph *g, const nbl__node *node)
{
    bool any = false;
    const nbl__slot *slots = node->family->slots;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        if (slot->role != NBL_ROLE_COTANGENT) continue;
        nbl__value output = node->bound[nbl__slot_find(node->family, slot->of) - slots];
        nbl__value gradient = output && has_all_columns(g, output) ? g->values[output].gradient : 0;
        node->bound[slot - slots] = gradient;
        any |= gradient != 0;
    }
    return any;
}

static bool wants_gradient(const nbl__graph *g, nbl__value value)
{
    return value && (g->values[value].differentiable || g->values[value].trained);
}

/* The input `of`, whose gradient a slot writes; 0 if that input needs none. */
static nbl__value wanting(const nbl__graph *g, const nbl__node *node, const char *of)
{
    if (of == NULL) return 0;
    nbl__value input = node->bound[nbl__slot_find(node->family, of) - node->family->slots];
    return wants_gradient(g, input) ? input : 0;
}

/* The value that a GRADIENT slot writes, with the shape from infer. A parameter has one for all
 * its users. */
static nbl__value gradient_value(nbl__graph *g, const nbl__node *node, const nbl__slot *slot,
                                 nbl__value input)
{
    const nbl__value_info *of = &g->values[input];
    if (of->trained && of->gradient) return of->gradient;
    if (of->tensor.row_stride)
        return columns_gradient(g, input, slot, nbl__slot_tensor(slot, node->arguments));
    const char *name = nbl__arena_printf(&g->arena, "d.%s", of->name);
    nbl__value value = nbl__graph_new(g, of->trained ? NBL_KIND_GRADIENT : NBL_KIND_ACTIVATION, name);
    if (value == 0) return 0;
    g->values[value].tensor = *nbl__slot_tensor(slot, node->arguments);
    g->values[value].tensor.data = NULL;
    return value;
}

/* Records that `gradient` belongs to `input`. */
static void propagate_gradient(nbl__graph *g, nbl__value input, nbl__value gradient)
{
    if (input == 0) return;
    if (g->values[input].trained) g->values[input].gradient = gradient;
    else contribute(g, input, gradient);
}

/* Some trained parameter that `value` depends on, for messages; 0: none. */
static nbl__value parameter_behind(const nbl__graph *g, nbl__value value)
{
    while (value && !g->values[value].trained) {
        int producer = g->values[value].producer;
        nbl__value next = 0;
        if (producer < 0) return 0;
        const nbl__node *node = &g->nodes[producer];
        if (node->family == NULL) next = node->bound[0];
        for (const nbl__slot *slot = node->family ? node->family->slots : NULL; slot && slot->name; slot++) {
            nbl__value bound = node->bound[slot - node->family->slots];
            if (nbl__slot_is_read(slot) && wants_gradient(g, bound)) next = bound;
        }
        value = next;
    }
    return value;
}

/* The slot that writes the gradient of input `of`; NULL: none. Call after the backward
 * operator's infer, which sets rank 0 for gradients that it does not compute. */
static const nbl__slot *gradient_slot(const nbl__node *node, const char *of)
{
    for (const nbl__slot *slot = node->family->slots; slot->name; slot++) {
        if (slot->role != NBL_ROLE_GRADIENT || nbl__slot_tensor(slot, node->arguments)->rank == 0) continue;
        if (slot->of && strcmp(slot->of, of) == 0) return slot;
        if (slot->also && strcmp(slot->also, of) == 0) return slot;
    }
    return NULL;
}

/* Checks that every input that needs a gradient gets one; fails the graph otherwise. An output
 * of `node` has a gradient. */
static bool passes_on(nbl__graph *g, const nbl__node *node)
{
    const nbl__slot *slots = node->family->slots;
    bool has_backward = node->family->backward.name != NULL;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        nbl__value input = node->bound[slot - slots];
        if (!nbl__slot_is_read(slot) || !wants_gradient(g, input)) continue;
        const nbl__slot *gradient = has_backward ? gradient_slot(node, slot->name) : NULL;
        bool trained = g->values[input].trained;
        if (gradient && (!trained || (nbl__node_attr(node, "accumulate") &&
                                      nbl__slot_tensor(gradient, node->arguments)->dtype == NBL_DTYPE_F32)))
            continue;
        const char *missing = !has_backward ? "backward"
                              : gradient    ? "f32 gradient that adds up for its input "
                                            : "gradient for its input ";
        nbl__graph_failed(
            g, nbl__fail(g->ctx, NBL_ERROR_UNSUPPORTED,
                         "%s: no gradient can reach the trained parameter %s: the operator %s has no "
                         "%s%s; freeze the parameter, or build the graph without this operator",
                         node->name, g->values[parameter_behind(g, input)].name, node->family->name, missing,
                         has_backward ? slot->name : ""));
        return false;
    }
    return true;
}

/* True if an output of the node has a gradient. */
static bool is_reached(const nbl__graph *g, const nbl__node *node)
{
    const nbl__slot *slots = node->family->slots;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        nbl__value output = node->bound[slot - slots];
        if (slot->role == NBL_ROLE_OUTPUT && output && g->values[output].gradient) return true;
    }
    return false;
}

/* Sets the attribute train_w if a weight of the node is trained: dW is computed on request only,
 * because most weights are frozen. */
static void request_weight_gradients(const nbl__graph *g, const nbl__node *node)
{
    const nbl__slot *slots = node->family->slots;
    bool *train_w = nbl__node_attr(node, "train_w");
    if (train_w == NULL) return;
    *train_w = false;
    for (const nbl__slot *slot = slots; slot->name; slot++)
        if (nbl__slot_is_weight(slot) && node->bound[slot - slots])
            *train_w |= g->values[node->bound[slot - slots]].trained;
}

/* Adds the backward step of a node. Order matters: cotangents and train_w are inputs of infer,
 * and infer decides which GRADIENT slots are written. */
static void differentiate_node(nbl__graph *g, int index)
{
    nbl__node node = g->nodes[index];
    const nbl__slot *slots = node.family->slots;
    if (node.prepares || !is_reached(g, &node)) return;
    if (node.family->backward.name == NULL) {
        passes_on(g, &node);
        return;
    }
    if (!bind_cotangents(g, &node) || g->status != NBL_OK) return;
    request_weight_gradients(g, &node);
    nbl__node_fill(g, &node, node.bound, node.arguments, NULL, NULL);
    if (nbl__graph_failed(g, nbl__infer(g->ctx, node.family, true, node.arguments))) {
        nbl__hint(g->ctx, g->status, "in the backward pass of %s", node.name);
        return;
    }
    if (!passes_on(g, &node)) return;
    bool any = false;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        if (slot->role != NBL_ROLE_GRADIENT || nbl__slot_tensor(slot, node.arguments)->rank == 0) continue;
        nbl__value input = wanting(g, &node, slot->of);
        if (input == 0) input = wanting(g, &node, slot->also);
        if (input == 0) continue;
        node.bound[slot - slots] = gradient_value(g, &node, slot, input);
        any = true;
    }
    if (!any) return;
    bool *accumulate = nbl__node_attr(&node, "accumulate");
    if (accumulate) *accumulate = true;
    nbl__graph_add_step(g, index, true);
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        if (slot->role != NBL_ROLE_GRADIENT || node.bound[slot - slots] == 0) continue;
        propagate_gradient(g, wanting(g, &node, slot->of), node.bound[slot - slots]);
        propagate_gradient(g, wanting(g, &node, slot->also), node.bound[slot - slots]);
    }
}

nbl_status nbl__graph_differentiate(nbl__graph *g, nbl__value result, nbl__value seed)
{
    if (g->status != NBL_OK) return g->status;
    NBL_CHECK(g->ctx, g->values[result].differentiable, NBL_ERROR_ARGUMENT,
              "%s does not depend on anything that is trained", g->values[result].name);
    g->values[result].gradient = seed;
    g->layer = -1;
    for (int i = g->node_count - 1; i >= 0 && g->status == NBL_OK; i--) {
        if (g->nodes[i].family == NULL) differentiate_view(g, &g->nodes[i]);
        else differentiate_node(g, i);
    }
    for (nbl__value v = 1; v <= g->value_count && g->status == NBL_OK; v++)
        NBL_CHECK(g->ctx, !g->values[v].trained || g->values[v].gradient, NBL_ERROR_ARGUMENT,
                  "%s does not depend on the trained parameter %s; freeze it", g->values[result].name,
                  g->values[v].name);
    return g->status;
}
