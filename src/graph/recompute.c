/* recompute.c - recomputation: computes values twice instead of keeping them from forward to
 * backward.
 *
 * The rewrite walks the schedule. Before a backward step of a layer it inserts copies of the
 * forward steps that compute what this backward step reads and what need not be kept. The
 * backward step is bound to the new values, so the lifetime of the original values ends in
 * forward.
 *
 *     before   F1 F2 F3 …                    … B3(reads x1, x2) B2 B1
 *     after    F1 F2 F3 …         F1' F2' B3(reads x1', x2') B2 B1
 *
 *     kept         pinned values (the residual stream at a layer's start), inputs, parameters,
 *                  values of other layers; below NBL_RECOMPUTE_LAYERS also products and the sums
 *                  of norms
 *     recomputed   every other value that a backward step of the layer reads, and, recursively,
 *                  the values needed to compute it
 *
 * An optional saved value (nbl__slot.when) whose flag is off is unbound in all steps, because no
 * step writes it.
 *
 * rmsnorm with a residual computes sum = x + residual and normalizes it. If the sum is kept, the
 * copy normalizes the sum: then neither x nor residual has to be kept.
 *
 * New values and steps live in the plan's arena. */
#include "graph/plan.h"
#include "ops/families.h"
#include "ops/norm/rmsnorm.h"

typedef struct rewrite {
    nbl__plan *plan;
    nbl__graph *g;
    nbl__recompute level; /* of the current layer */
    /* [value] true if a backward step of the original schedule reads its memory */
    bool *saved;
    /* [value] the recomputed copy that the current layer's backward reads; 0: none */
    nbl__value *now;
    nbl__planned_step *steps;
    int count, room;
} rewrite;

/* True if recomputing an operator of this family at this level costs little: no matrix product. */
static bool is_cheap(const nbl__family *family, nbl__recompute level)
{
    if (family->cost.repeat == NBL_REPEAT_CHEAP) return true;
    return level >= NBL_RECOMPUTE_CHEAP && family->cost.repeat == NBL_REPEAT_WIDE;
}

/* What is bound to a tensor of an rmsnorm. */
#define NORM_VALUE(bound, field) ((bound)[nbl__slot_at(&nbl__rmsnorm_family, offsetof(nbl__rmsnorm, field))])

/* The residual sum that an rmsnorm writes; 0: it is no rmsnorm or has no residual. */
static nbl__value sum_of(const nbl__family *family, const nbl__value *bound)
{
    return family == &nbl__rmsnorm_family ? NORM_VALUE(bound, residual_out) : 0;
}

/* True if the value stays in memory although its layer is recomputed: recomputation can start
 * from it. */
static bool is_anchor(const rewrite *r, nbl__value value)
{
    const nbl__value_info *info = &r->g->values[value];
    if (info->pinned) return true;
    if (r->level >= NBL_RECOMPUTE_LAYERS || info->producer < 0) return false;
    const nbl__node *node = &r->g->nodes[info->producer];
    return node->family && sum_of(node->family, node->bound) == value;
}

static bool pays(const rewrite *r, const nbl__node *node, int layer);

/* True if the value can be dropped after forward and recomputed in the backward pass of `layer`. */
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

/* True if recomputing a node saves memory: it is cheap, and each of its inputs is kept anyway or
 * can be recomputed too. Otherwise, for example, a rotated q would be dropped but the unrotated
 * q kept instead. */
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
        if (info->kind == NBL_KIND_ACTIVATION && !is_anchor(r, storage) && !r->saved[storage] &&
            !may_repeat(r, value, layer))
            return false;
    }
    return true;
}

/* Marks every value that some backward step reads. */
static void find_saved(rewrite *r)
{
    for (int i = 0; i < r->plan->step_count; i++) {
        const nbl__planned_step *step = &r->plan->steps[i];
        const nbl__slot *slots = step->node->family->slots;
        for (const nbl__slot *slot = slots; step->backward && slot->name; slot++)
            if (step->bound[slot - slots] && nbl__slot_is_saved(step->node->family, slot, step->bound))
                r->saved[nbl__graph_storage(r->g, step->bound[slot - slots])] = true;
    }
}

static void push(rewrite *r, nbl__planned_step step)
{
    r->steps[r->count++] = step;
}

static nbl__value again(rewrite *r, nbl__value value, int layer);

/* A new value with the dtype and shape of `value`, which replaces it in the current layer's
 * backward. */
static nbl__value copy_of(rewrite *r, nbl__value value, nbl__value alias)
{
    nbl__value copy = nbl__graph_new(r->g, NBL_KIND_ACTIVATION, r->g->values[value].name);
    if (copy == 0) return 0;
    r->g->values[copy].tensor = r->g->values[value].tensor;
    r->g->values[copy].alias = alias;
    r->g->values[copy].offset = r->g->values[value].offset;
    r->now[value] = copy;
    return copy;
}

/* If the norm's sum is kept, binds the copy as x = sum, without residual and without a sum of
 * its own. */
static void start_from_sum(const rewrite *r, const nbl__family *family, nbl__value *bound)
{
    nbl__value sum = sum_of(family, bound);
    if (sum == 0 || !is_anchor(r, sum)) return;
    NORM_VALUE(bound, x) = sum;
    NORM_VALUE(bound, residual) = 0;
    NORM_VALUE(bound, residual_out) = 0;
}

/* True for an optional saved value whose flag is off: no step writes it. */
static bool is_off(const nbl__node *node, const nbl__slot *slot)
{
    return slot->when && !*(bool *)nbl__node_attr(node, slot->when);
}

/* Inserts a copy of a forward step, after the copies of the steps that compute its inputs. */
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
                                .rerun = true,
                                .bound = bound,
                                .arguments = arguments});
}

/* The value to read in place of `value` in the backward pass of `layer`; inserts the steps that
 * compute it. A view of a recomputed value is a new view of the copy. */
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

/* Adds a backward step, bound to recomputed values. It gets arguments of its own: those of the
 * node also serve the forward step. */
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
        if (bound[i] && nbl__slot_is_saved(step.node->family, &slots[i], step.bound))
            bound[i] = again(r, bound[i], layer);
    }
    step.bound = bound;
    step.arguments = arguments;
    push(r, step);
}

nbl_status nbl__plan_recompute(nbl__plan *plan)
{
    rewrite r = {.plan = plan, .g = plan->graph};
    /* Bounds: each forward step is copied at most once, which gives 2 x step_count steps. */
    r.room = plan->step_count * 2;
    r.steps = nbl__arena_alloc(&plan->arena, (size_t)r.room * sizeof *r.steps);
    r.now = nbl__arena_alloc(&plan->arena, (size_t)plan->graph->value_count * 4 * sizeof *r.now);
    r.saved = nbl__arena_alloc(&plan->arena, (size_t)(plan->graph->value_count + 1) * sizeof *r.saved);
    if (r.steps == NULL || r.now == NULL || r.saved == NULL) return NBL_ERROR_MEMORY;
    find_saved(&r);
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
