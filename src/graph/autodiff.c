/* autodiff.c - the backward pass, from the roles of slots alone.
 *
 * Nodes are visited from last to first. A node whose output has a gradient and which has a differentiable
 * input gets a backward step: its COTANGENT slots are bound to the gradients of its outputs, its GRADIENT
 * slots to new values. Gradients of parameters are f32, live outside the run and are added to, by each user of a
 * parameter in turn (a head that is the embedding, too); those of
 * activations are written once, and a value with several users gets their sum through `add` nodes, in the
 * order in which the backward pass meets them. */
#include "graph/graph.h"
#include "ops/elementwise.h"

/* `part` is one contribution to the gradient of `value`: the only one so far, or summed with the others. */
static void contribute(nbl__graph *g, nbl__value value, nbl__value part)
{
    nbl__value sum = g->values[value].gradient;
    if (sum == 0 || part == 0) {
        if (part) g->values[value].gradient = part;
        return;
    }
    nbl__add *add = nbl__graph_begin(g, "add", g->values[part].name);
    if (add) add->dtype = g->values[value].tensor.dtype;
    nbl__graph_bind(g, "a", sum);
    nbl__graph_bind(g, "b", part);
    g->values[value].gradient = nbl__graph_end(g);
}

/* The gradient of a view is the gradient seen with the shape of what was viewed. */
static void differentiate_view(nbl__graph *g, const nbl__node *node)
{
    nbl__value from = node->bound[0], gradient = g->values[node->bound[1]].gradient;
    if (gradient == 0 || !g->values[from].differentiable) return;
    nbl__value back = nbl__graph_new(g, NBL_KIND_ACTIVATION, g->values[gradient].name);
    if (back == 0) return;
    g->values[back].tensor = g->values[from].tensor;
    g->values[back].alias = gradient;
    contribute(g, from, back);
}

/* Binds the gradients of the node's outputs; false when there is none. */
static bool bind_cotangents(nbl__graph *g, const nbl__node *node)
{
    bool any = false;
    const nbl__slot *slots = node->family->slots;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        if (slot->role != NBL_ROLE_COTANGENT) continue;
        nbl__value output = node->bound[nbl__slot_find(node->family, slot->of) - slots];
        nbl__value gradient = output ? g->values[output].gradient : 0;
        node->bound[slot - slots] = gradient;
        any |= gradient != 0;
    }
    return any;
}

/* The input that a gradient slot is of, when it wants a gradient; 0: it does not. */
static nbl__value wanting(const nbl__graph *g, const nbl__node *node, const char *of)
{
    if (of == NULL) return 0;
    nbl__value input = node->bound[nbl__slot_find(node->family, of) - node->family->slots];
    return input && (g->values[input].differentiable || g->values[input].trained) ? input : 0;
}

/* The value that a gradient slot writes, with the shape that infer gave it. */
static nbl__value gradient_value(nbl__graph *g, const nbl__node *node, const nbl__slot *slot,
                                 nbl__value input)
{
    const nbl__value_info *of = &g->values[input];
    if (of->trained && of->gradient) return of->gradient;
    const char *name = nbl__arena_printf(&g->arena, "d.%s", of->name);
    nbl__value value = nbl__graph_new(g, of->trained ? NBL_KIND_GRADIENT : NBL_KIND_ACTIVATION, name);
    if (value == 0) return 0;
    g->values[value].tensor = *nbl__slot_tensor(slot, node->arguments);
    g->values[value].tensor.data = NULL;
    return value;
}

static void hand_on(nbl__graph *g, nbl__value input, nbl__value gradient)
{
    if (input == 0) return;
    if (g->values[input].trained) g->values[input].gradient = gradient;
    else contribute(g, input, gradient);
}

/* Operators make the gradient of a weight only when they are told to: most weights are frozen. */
static void tell_trained_weights(const nbl__graph *g, const nbl__node *node)
{
    const nbl__slot *slots = node->family->slots;
    bool *train_w = nbl__node_attr(node, "train_w");
    if (train_w == NULL) return;
    *train_w = false;
    for (const nbl__slot *slot = slots; slot->name; slot++)
        if (nbl__slot_is_weight(slot) && node->bound[slot - slots])
            *train_w |= g->values[node->bound[slot - slots]].trained;
}

static void differentiate_node(nbl__graph *g, int index)
{
    nbl__node node = g->nodes[index];
    const nbl__slot *slots = node.family->slots;
    if (node.family->backward.name == NULL || !bind_cotangents(g, &node)) return;
    tell_trained_weights(g, &node);
    nbl__node_fill(g, &node, node.bound, node.arguments, NULL, NULL);
    if (nbl__graph_failed(g, node.family->backward.infer(g->ctx, node.arguments))) {
        nbl__hint(g->ctx, g->status, "in the backward pass of %s", node.name);
        return;
    }
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
        hand_on(g, wanting(g, &node, slot->of), node.bound[slot - slots]);
        hand_on(g, wanting(g, &node, slot->also), node.bound[slot - slots]);
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
    return g->status;
}
