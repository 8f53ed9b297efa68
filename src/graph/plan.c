/* plan.c - makes a plan: chooses the recompute level that fits a budget. See plan.h.
 *
 * nbl__plan_make tries candidates in the order of nbl__recompute. try_plan builds one candidate
 * completely:
 *
 *     order of steps → recomputation → offload → infer (shapes) → kernels and scratch → offsets
 *
 * All memory of a candidate is in the plan's arena, which the next try frees. The values that
 * recomputation and offload add to the graph are dropped by resetting graph->value_count. */
#include "graph/plan.h"

#include "device/device.h"

/* ---- the schedule ---- */

static nbl__planned_step step_of(const nbl__node *node, bool backward)
{
    return (nbl__planned_step){.node = node,
                               .op = backward ? &node->family->backward : &node->family->forward,
                               .backward = backward,
                               .bound = node->bound,
                               .arguments = node->arguments};
}

/* Turns the graph's order into `steps`, and its preparing nodes into `prepare`. */
static nbl_status schedule(nbl__plan *plan)
{
    const nbl__graph *g = plan->graph;
    plan->step_count = g->step_count;
    plan->prepare_count = 0;
    for (int i = 0; i < g->node_count; i++) plan->prepare_count += g->nodes[i].prepares;
    plan->steps = nbl__arena_alloc(&plan->arena, (size_t)plan->step_count * sizeof *plan->steps);
    plan->prepare = nbl__arena_alloc(&plan->arena, (size_t)plan->prepare_count * sizeof *plan->prepare);
    if (plan->steps == NULL || plan->prepare == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < g->step_count; i++)
        plan->steps[i] = step_of(&g->nodes[g->steps[i].node], g->steps[i].backward);
    for (int i = 0, next = 0; i < g->node_count; i++)
        if (g->nodes[i].prepares) plan->prepare[next++] = step_of(&g->nodes[i], false);
    return NBL_OK;
}

/* Copies the shapes of the outputs that infer computed from the arguments to the values. */
static void pass_shapes_on(nbl__graph *g, const nbl__planned_step *step)
{
    const nbl__slot *slots = step->node->family->slots;
    for (const nbl__slot *slot = slots; slot->name; slot++) {
        nbl__value value = step->bound[slot - slots];
        bool written = step->backward ? slot->role == NBL_ROLE_GRADIENT
                                      : slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED;
        if (value == 0 || !written) continue;
        nbl_tensor *tensor = &g->values[value].tensor;
        *tensor = *nbl__slot_tensor(slot, step->arguments);
        tensor->data = NULL;
        /* A gradient that is written through views of its columns has no writer of its own. */
        if (tensor->row_stride) g->values[g->values[value].alias].tensor.shape[0] = tensor->shape[0];
    }
}

/* Infers steps in order, with the current shapes of inputs. Each step's outputs are inputs of
 * later steps. */
static nbl_status infer_all(nbl__plan *plan, nbl__planned_step *steps, int count, nbl__address_fn address)
{
    nbl__graph *g = plan->graph;
    for (int i = 0; i < count; i++) {
        nbl__planned_step *step = &steps[i];
        nbl__node_fill(g, step->node, step->bound, step->arguments, address, plan);
        nbl_status status = nbl__infer(g->ctx, step->node->family, step->backward, step->arguments);
        if (status == NBL_OK && address)
            status = nbl__op_choose_again(g->ctx, step->op, step->arguments, &step->impl);
        if (status != NBL_OK) return nbl__hint(g->ctx, status, "in %s", nbl__show_node(step->node).text);
        pass_shapes_on(g, step);
    }
    return NBL_OK;
}

nbl_status nbl__plan_infer(nbl__plan *plan, bool prepare, nbl__address_fn address)
{
    nbl__plan_touch(plan);
    if (prepare) NBL_TRY(infer_all(plan, plan->prepare, plan->prepare_count, address));
    return infer_all(plan, plan->steps, plan->step_count, address);
}

/* Chooses a kernel for each step and asks it for its scratch and for the bytes it keeps for
 * backward. */
static nbl_status choose_all(nbl__plan *plan, nbl__planned_step *steps, int count)
{
    const nbl__device *device = nbl__device_of(plan->ctx);
    for (int i = 0; i < count; i++) {
        NBL_TRY(nbl__op_choose(plan->ctx, steps[i].op, steps[i].arguments, NULL, &steps[i].impl));
        steps[i].scratch = nbl__op_scratch(plan->ctx, steps[i].impl, steps[i].arguments);
        steps[i].saved_bytes = steps[i].backward ? 0 : device->saved_bytes(steps[i].impl, steps[i].arguments);
    }
    return NBL_OK;
}

/* ---- making ---- */

size_t nbl__plan_total(const nbl__plan *plan)
{
    size_t sum = 0;
    for (int i = 0; i < NBL_MEMORY_COUNT; i++) sum += plan->bytes[i];
    return sum;
}

nbl__recompute nbl__plan_recompute_level(const nbl__plan *plan, int layer)
{
    if (layer < 0) return plan->recompute == NBL_RECOMPUTE_ALL ? NBL_RECOMPUTE_ALL : NBL_RECOMPUTE_NONE;
    return layer < plan->recomputed_layers || plan->recompute == NBL_RECOMPUTE_NONE ? plan->recompute
                                                                                    : plan->recompute - 1;
}

/* True if the slot is a bound output that the plan may switch off (nbl__slot.when). */
static bool is_flagged(const nbl__node *node, const nbl__slot *slot)
{
    return slot->when && node->bound[slot - node->family->slots];
}

/* Sets the flags named by nbl__slot.when. A forward operator saves an optional value if its
 * layer's recompute level is below FLAGGED; that saves its backward operator a matrix product.
 * The values themselves are the same, saved or recomputed. Only nodes with a backward step save
 * anything. */
static void choose_saved(const nbl__plan *plan)
{
    const nbl__graph *g = plan->graph;
    for (int i = 0; i < g->step_count;
         /* Forward steps come first, so the backward step of a node overwrites what its forward
          * step set. */
         i++) {
        const nbl__node *node = &g->nodes[g->steps[i].node];
        bool keep = g->steps[i].backward &&
                    nbl__plan_recompute_level(plan, node->layer) < NBL_RECOMPUTE_FLAGGED;
        for (const nbl__slot *slot = node->family->slots; slot->name; slot++)
            if (is_flagged(node, slot)) *(bool *)nbl__node_attr(node, slot->when) = keep;
    }
}

/* Builds one candidate: layers 0 … layers - 1 at `level`, the others one level below. */
static nbl_status try_plan(nbl__plan *plan, const nbl__plan_options *options, nbl__recompute level,
                           int layers)
{
    nbl__arena_free(&plan->arena);
    plan->arena = nbl__arena_make(plan->ctx);
    plan->graph->value_count = plan->value_count; /* drop the values that an earlier try added */
    plan->recompute = level;
    plan->recomputed_layers = level == NBL_RECOMPUTE_NONE ? 0 : layers;
    plan->host_bytes = 0;
    choose_saved(plan);
    NBL_TRY(schedule(plan));
    if (level != NBL_RECOMPUTE_NONE) NBL_TRY(nbl__plan_recompute(plan));
    if (level >= NBL_RECOMPUTE_LAYERS && options->offload) NBL_TRY(nbl__plan_offload(plan));
    NBL_TRY(nbl__plan_infer(plan, true, NULL));
    NBL_TRY(choose_all(plan, plan->prepare, plan->prepare_count));
    NBL_TRY(choose_all(plan, plan->steps, plan->step_count));
    NBL_TRY(nbl__plan_assign_offsets(plan));
    /* A plan that will share its inputs and run memory (nbl__plan_join) gets at least the other
     * plan's sizes. */
    static const nbl__memory_class in_turns[] = {NBL_MEMORY_INPUTS, NBL_MEMORY_RUN};
    for (int i = 0; options->with && i < 2; i++)
        if (plan->bytes[in_turns[i]] < options->with->bytes[in_turns[i]])
            plan->bytes[in_turns[i]] = options->with->bytes[in_turns[i]];
    return NBL_OK;
}

static int layer_count(const nbl__graph *g)
{
    int count = 0;
    for (int i = 0; i < g->node_count; i++)
        if (g->nodes[i].layer >= count) count = g->nodes[i].layer + 1;
    return count;
}

/* Bisection for the smallest number of layers at `level` with which the plan fits. `many` layers
 * fit. */
static nbl_status fewest_layers(nbl__plan *plan, const nbl__plan_options *o, nbl__recompute level, int many)
{
    int small = 0; /* invariant: `small` layers do not fit (0: not tried), `many` do */
    while (many - small > 1) {
        int middle = small + (many - small) / 2;
        NBL_TRY(try_plan(plan, o, level, middle));
        if (nbl__plan_total(plan) <= o->budget) many = middle;
        else small = middle;
    }
    return try_plan(plan, o, level, many);
}

/* False for a level that equals the one below it: no slot has a flag that this level could
 * clear. */
static bool is_recompute_level(const nbl__graph *g, nbl__recompute level)
{
    if (level != NBL_RECOMPUTE_FLAGGED && level != NBL_RECOMPUTE_ALL) return true;
    for (int i = 0; i < g->node_count; i++) {
        const nbl__node *node = &g->nodes[i];
        if (node->family == NULL || (node->layer < 0) != (level == NBL_RECOMPUTE_ALL)) continue;
        for (const nbl__slot *slot = node->family->slots; slot->name; slot++)
            if (is_flagged(node, slot)) return true;
    }
    return false;
}

/* Without a budget: the highest of NONE, NORMS, CHEAP where each level saves a share of memory
 * at least WORTH times as large as the share of time it adds. Whole products are never
 * recomputed here. */
static nbl_status choose_level_that_pays(nbl__plan *plan, const nbl__plan_options *o, int all)
{
    enum { WORTH = 8 };
    nbl__recompute best = NBL_RECOMPUTE_NONE;
    NBL_TRY(try_plan(plan, o, best, 0));
    double bytes = (double)nbl__plan_total(plan), time = nbl__plan_time(plan);
    for (nbl__recompute level = NBL_RECOMPUTE_NORMS; level <= NBL_RECOMPUTE_CHEAP; level++) {
        NBL_TRY(try_plan(plan, o, level, all));
        double now = (double)nbl__plan_total(plan), later = nbl__plan_time(plan);
        if (1 - now / bytes < WORTH * (later / time - 1)) break;
        best = level, bytes = now, time = later;
    }
    return plan->recompute == best ? NBL_OK : try_plan(plan, o, best, all);
}

/* Finds the lowest recompute level that fits the budget, then the fewest layers at that level. */
static nbl_status fit(nbl__plan *plan, const nbl__plan_options *o)
{
    int all = layer_count(plan->graph);
    bool backward = false; /* without backward steps nothing can be recomputed */
    for (int i = 0; i < plan->graph->step_count; i++) backward |= plan->graph->steps[i].backward;
    if (o->budget == 0 && o->thrifty && backward && o->min == NBL_RECOMPUTE_NONE)
        return choose_level_that_pays(plan, o, all);
    nbl__recompute best = o->min, last = backward || o->min ? NBL_RECOMPUTE_ALL : NBL_RECOMPUTE_NONE;
    size_t smallest = SIZE_MAX;
    for (nbl__recompute level = o->min; level <= last; level++) {
        if (level > o->min && !is_recompute_level(plan->graph, level)) continue;
        NBL_TRY(try_plan(plan, o, level, all));
        size_t total = nbl__plan_total(plan);
        if (o->budget == 0 || (total <= o->budget && level == NBL_RECOMPUTE_NONE)) return NBL_OK;
        if (total <= o->budget && level == NBL_RECOMPUTE_ALL) return NBL_OK;
        if (total <= o->budget) return fewest_layers(plan, o, level, all);
        if (total < smallest) smallest = total, best = level;
    }
    NBL_CHECK(plan->ctx, o->or_smallest, NBL_ERROR_MEMORY,
              "the plan needs %zu bytes at least; the budget is %zu", smallest, o->budget);
    return plan->recompute == best ? NBL_OK : try_plan(plan, o, best, all);
}

nbl_status nbl__plan_make(nbl__graph *graph, const nbl__plan_options *options, nbl__plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->ctx = graph->ctx;
    plan->graph = graph;
    plan->value_count = graph->value_count;
    plan->arena = nbl__arena_make(graph->ctx);
    nbl_status status = nbl__graph_fuse(graph);
    if (status == NBL_OK) status = fit(plan, options);
    if (status != NBL_OK) nbl__plan_free(plan);
    return status;
}

void nbl__plan_free(nbl__plan *plan)
{
    nbl__plan_unbind(plan);
    nbl__arena_free(&plan->arena);
    memset(plan, 0, sizeof *plan);
}

void *nbl__step_attr(const nbl__planned_step *step, const char *name)
{
    for (const nbl__attr *attr = step->node->family->attrs; attr->name; attr++)
        if (strcmp(attr->name, name) == 0) return (char *)step->arguments + attr->offset;
    return NULL;
}
