/* recompute.c - values made twice instead of kept.
 *
 * Before the first backward step of a layer, the schedule gets forward steps that make again what that
 * layer's backward steps read and what need not be kept. The backward steps then read the new values, so
 * the first ones die in the forward pass.
 *
 *     kept:      pinned values (the residual stream at a layer's start), inputs, parameters, what other
 *                layers made, and, below the rung of whole layers, products and the sums of norms
 *     again:     everything else that a backward step of the layer reads, and what that needs in turn
 *
 * Where a node is not asked to keep what a flag is for (nbl__slot.when), such slots are unbound, so that no step asks for
 * values that none makes.
 *
 * A norm that adds its residual starts from its sum where that is kept: then neither addend is. */
#include "graph/plan.h"

typedef struct rewrite {
    nbl__plan *plan;
    nbl__graph *g;
    nbl__recompute level; /* of the layer being worked on */
    bool *kept;           /* per value: a backward step reads its memory */
    nbl__value *now;      /* per value: what stands for it in the layer being worked on; 0: itself */
    nbl__planned_step *steps;
    int count, room;
} rewrite;

static bool is_cheap(const nbl__family *family, nbl__recompute level)
{
    static const char *const norms[] = {"rmsnorm", "layernorm", "rope", "norm_rope", "cast", "scale", "add"};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++)
        if (strcmp(norms[i], family->name) == 0) return true;
    return level >= NBL_RECOMPUTE_CHEAP && strcmp(family->name, "gated") == 0;
}

/* The sum that a norm makes, or 0. */
static nbl__value sum_of(const nbl__family *family, const nbl__value *bound)
{
    const nbl__slot *sum = strcmp(family->name, "rmsnorm") == 0 ? nbl__slot_find(family, "residual_out")
                                                                : NULL;
    return sum ? bound[sum - family->slots] : 0;
}

/* Is the memory of this value kept, though its layer makes others again? */
static bool is_anchor(const rewrite *r, nbl__value value)
{
    const nbl__value_info *info = &r->g->values[value];
    if (info->pinned) return true;
    if (r->level >= NBL_RECOMPUTE_LAYERS || info->producer < 0) return false;
    const nbl__node *node = &r->g->nodes[info->producer];
    return node->family && sum_of(node->family, node->bound) == value;
}

static bool pays(const rewrite *r, const nbl__node *node, int layer);

/* May the memory of this value be given up and made again for `layer`? */
static bool may_repeat(const rewrite *r, nbl__value value, int layer)
{
    const nbl__value_info *info = &r->g->values[nbl__graph_storage(r->g, value)];
    if (info->kind != NBL_KIND_ACTIVATION || is_anchor(r, nbl__graph_storage(r->g, value)) ||
        info->producer < 0)
        return false;
    const nbl__node *node = &r->g->nodes[info->producer];
    if (node->family == NULL || node->layer != layer) return false;
    return r->level >= NBL_RECOMPUTE_LAYERS || pays(r, node, layer);
}

/* Cheap, and made of what is kept in any case or can be made again itself: a rotation of what nobody else reads would
 * keep as much as it gives up. */
static bool pays(const rewrite *r, const nbl__node *node, int layer)
{
    if (!is_cheap(node->family, r->level)) return false;
    const nbl__slot *slots = node->family->slots;
    nbl__value sum = sum_of(node->family, node->bound);
    if (sum && is_anchor(r, sum)) return true;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        nbl__value value = node->bound[slot - slots];
        if (value == 0 || (slot->role != NBL_ROLE_INPUT && slot->role != NBL_ROLE_OPTIONAL)) continue;
        nbl__value storage = nbl__graph_storage(r->g, value);
        const nbl__value_info *info = &r->g->values[storage];
        if (info->kind == NBL_KIND_ACTIVATION && !is_anchor(r, storage) && !r->kept[storage] &&
            !may_repeat(r, value, layer))
            return false;
    }
    return true;
}

/* What the backward steps read. */
static void find_kept(rewrite *r)
{
    for (int i = 0; i < r->plan->step_count; i++) {
        const nbl__planned_step *step = &r->plan->steps[i];
        const nbl__slot *slots = step->node->family->slots;
        for (const nbl__slot *slot = slots; step->backward && slot->name; slot++)
            if (step->bound[slot - slots] && nbl__slot_kept(step->node->family, slot, step->bound))
                r->kept[nbl__graph_storage(r->g, step->bound[slot - slots])] = true;
    }
}

static void push(rewrite *r, nbl__planned_step step)
{
    r->steps[r->count++] = step;
}

static nbl__value again(rewrite *r, nbl__value value, int layer);

/* A copy of a value's description under a new number. */
static nbl__value copy_of(rewrite *r, nbl__value value, nbl__value alias)
{
    nbl__value copy = nbl__graph_new(r->g, NBL_KIND_ACTIVATION, r->g->values[value].name);
    if (copy == 0) return 0;
    r->g->values[copy].tensor = r->g->values[value].tensor;
    r->g->values[copy].alias = alias;
    r->now[value] = copy;
    return copy;
}

/* The norm's sum is kept: normalise it, add nothing. */
static void start_from_sum(const rewrite *r, const nbl__family *family, nbl__value *bound)
{
    nbl__value sum = sum_of(family, bound);
    if (sum == 0 || !is_anchor(r, sum)) return;
    bound[nbl__slot_find(family, "x") - family->slots] = sum;
    bound[nbl__slot_find(family, "residual") - family->slots] = 0;
    bound[nbl__slot_find(family, "residual_out") - family->slots] = 0;
}

/* A saved value that this plan's nodes do not make. */
static bool is_off(const nbl__node *node, const nbl__slot *slot)
{
    return slot->when && !*(bool *)nbl__node_attr(node, slot->when);
}

/* Adds the step that makes a node's outputs again, after those that make its inputs. */
static void repeat_node(rewrite *r, int index, int layer)
{
    const nbl__node *node = &r->g->nodes[index];
    const nbl__slot *slots = node->family->slots;
    int slot_count = 0;
    while (slots[slot_count].name) slot_count++;
    nbl__value *bound = nbl__arena_alloc(&r->plan->arena, (size_t)slot_count * sizeof *bound);
    void *arguments = nbl__arena_alloc(&r->plan->arena, node->family->size);
    if (bound == NULL || arguments == NULL) {
        nbl__graph_failed(r->g, NBL_ERROR_MEMORY);
        return;
    }
    memcpy(bound, node->bound, (size_t)slot_count * sizeof *bound);
    memcpy(arguments, node->arguments, node->family->size);
    start_from_sum(r, node->family, bound);
    for (int i = 0; i < slot_count; i++) {
        if (is_off(node, &slots[i])) bound[i] = 0;
        if (bound[i] == 0) continue;
        switch (slots[i].role) {
        case NBL_ROLE_OUTPUT:
        case NBL_ROLE_SAVED: bound[i] = copy_of(r, bound[i], 0); break;
        case NBL_ROLE_COTANGENT:
        case NBL_ROLE_GRADIENT: bound[i] = 0; break;
        default: bound[i] = again(r, bound[i], layer); break;
        }
    }
    push(r, (nbl__planned_step){.node = node,
                                .op = &node->family->forward,
                                .again = true,
                                .bound = bound,
                                .arguments = arguments});
}

/* What stands for `value` in the backward pass of `layer`. */
static nbl__value again(rewrite *r, nbl__value value, int layer)
{
    if (r->now[value]) return r->now[value];
    if (!may_repeat(r, value, layer)) return value;
    nbl__value viewed = r->g->values[value].alias;
    if (viewed) {
        nbl__value base = again(r, viewed, layer);
        return base == viewed ? value : copy_of(r, value, base);
    }
    repeat_node(r, r->g->values[value].producer, layer);
    return r->now[value] ? r->now[value] : value;
}

/* A backward step that reads what was made again. */
static void rewrite_backward(rewrite *r, nbl__planned_step step)
{
    const nbl__slot *slots = step.node->family->slots;
    int layer = step.node->layer, slot_count = 0;
    while (slots[slot_count].name) slot_count++;
    nbl__value *bound = nbl__arena_alloc(&r->plan->arena, (size_t)slot_count * sizeof *bound);
    void *arguments = nbl__arena_alloc(&r->plan->arena, step.node->family->size);
    if (bound == NULL || arguments == NULL) {
        nbl__graph_failed(r->g, NBL_ERROR_MEMORY);
        return;
    }
    memcpy(bound, step.bound, (size_t)slot_count * sizeof *bound);
    memcpy(arguments, step.arguments, step.node->family->size);
    for (int i = 0; i < slot_count; i++) {
        if (is_off(step.node, &slots[i])) bound[i] = 0;
        if (bound[i] && nbl__slot_kept(step.node->family, &slots[i], step.bound))
            bound[i] = again(r, bound[i], layer);
    }
    step.bound = bound;
    step.arguments = arguments;
    push(r, step);
}

nbl_status nbl__plan_recompute(nbl__plan *plan)
{
    rewrite r = {.plan = plan, .g = plan->graph};
    /* Every forward node is repeated at most once, and each repeat makes at most as many values. */
    r.room = plan->step_count * 2;
    r.steps = nbl__arena_alloc(&plan->arena, (size_t)r.room * sizeof *r.steps);
    r.now = nbl__arena_alloc(&plan->arena, (size_t)plan->graph->value_count * 4 * sizeof *r.now);
    r.kept = nbl__arena_alloc(&plan->arena, (size_t)(plan->graph->value_count + 1) * sizeof *r.kept);
    if (r.steps == NULL || r.now == NULL || r.kept == NULL) return NBL_ERROR_MEMORY;
    find_kept(&r);
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        r.level = nbl__plan_recompute_level(plan, step->node->layer);
        if (step->backward && step->node->layer >= 0 && r.level != NBL_RECOMPUTE_NONE)
            rewrite_backward(&r, *step);
        else push(&r, *step);
    }
    plan->steps = r.steps;
    plan->step_count = r.count;
    return plan->graph->status;
}
