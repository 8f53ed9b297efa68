/* plan.c - schedule, lifetimes, addresses, and running. See plan.h. */
#include "graph/plan.h"

#include <math.h>

/* ---- the schedule ---- */

static nbl_status schedule(nbl__plan *plan)
{
    nbl__graph *g = plan->graph;
    plan->step_count = g->step_count;
    plan->steps = nbl__arena_alloc(&plan->arena, (size_t)g->step_count * sizeof *plan->steps);
    if (plan->steps == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < g->step_count; i++) {
        const nbl__node *node = &g->nodes[g->steps[i].node];
        bool backward = g->steps[i].backward;
        plan->steps[i] = (nbl__planned_step){.node = node,
                                             .op = backward ? &node->family->backward
                                                            : &node->family->forward,
                                             .backward = backward,
                                             .bound = node->bound,
                                             .arguments = node->arguments};
    }
    return NBL_OK;
}

/* Infers every step with the shapes that the inputs have now, and passes on those of the outputs. */
static nbl_status infer_all(nbl__plan *plan, nbl__address_fn address)
{
    nbl__graph *g = plan->graph;
    for (int i = 0; i < plan->step_count; i++) {
        nbl__planned_step *step = &plan->steps[i];
        const nbl__slot *slots = step->node->family->slots;
        nbl__node_fill(g, step->node, step->bound, step->arguments, address, plan);
        nbl_status status = step->op->infer(g->ctx, step->arguments);
        if (status != NBL_OK) return nbl__hint(g->ctx, status, "in %s", step->node->name);
        for (const nbl__slot *slot = slots; slot->name; slot++) {
            nbl__value value = step->bound[slot - slots];
            bool written = step->backward ? slot->role == NBL_ROLE_GRADIENT
                                          : slot->role == NBL_ROLE_OUTPUT || slot->role == NBL_ROLE_SAVED;
            if (value == 0 || !written) continue;
            nbl_tensor *tensor = &g->values[value].tensor;
            *tensor = *nbl__slot_tensor(slot, step->arguments);
            tensor->data = NULL;
        }
    }
    return NBL_OK;
}

static nbl_status choose_all(nbl__plan *plan)
{
    for (int i = 0; i < plan->step_count; i++) {
        nbl__planned_step *step = &plan->steps[i];
        NBL_TRY(nbl__op_choose(plan->ctx, step->op, step->arguments, NULL, &step->impl));
        step->scratch = nbl__op_scratch(plan->ctx, step->impl, step->arguments);
    }
    return NBL_OK;
}

/* ---- lifetimes and addresses ---- */

nbl__memory_class nbl__plan_class(const nbl__value_info *info)
{
    switch (info->kind) {
    case NBL_KIND_PARAMETER: return NBL_MEMORY_PARAMETERS;
    case NBL_KIND_GRADIENT: return NBL_MEMORY_GRADIENTS;
    case NBL_KIND_STATE: return NBL_MEMORY_STATES;
    case NBL_KIND_INPUT:
    case NBL_KIND_RESULT: return NBL_MEMORY_INPUTS;
    default: return NBL_MEMORY_RUN;
    }
}

static bool touches(const nbl__planned_step *step, const nbl__slot *slot)
{
    if (slot->role == NBL_ROLE_COTANGENT || slot->role == NBL_ROLE_GRADIENT) return step->backward;
    return !step->backward || nbl__slot_kept(step->node->family, slot, step->bound);
}

/* From the first to the last step that touches each value's memory. */
static void measure_lives(const nbl__plan *plan, nbl__piece *lives)
{
    const nbl__graph *g = plan->graph;
    for (int v = 0; v <= g->value_count; v++) lives[v] = (nbl__piece){.first = plan->step_count, .last = -1};
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        const nbl__slot *slots = step->node->family->slots;
        for (const nbl__slot *slot = slots; slot->name; slot++) {
            nbl__value value = step->bound[slot - slots];
            if (value == 0 || !touches(step, slot)) continue;
            nbl__piece *life = &lives[nbl__graph_storage(g, value)];
            if (i < life->first) life->first = i;
            if (i > life->last) life->last = i;
        }
    }
}

static nbl_status bytes_of(nbl__plan *plan, nbl__value value, size_t *bytes)
{
    const nbl__value_info *info = &plan->graph->values[value];
    uint64_t exact;
    NBL_CHECK(plan->ctx,
              nbl__dtype_bytes(info->tensor.dtype, (uint64_t)nbl__tensor_elements(&info->tensor), &exact) &&
                  exact <= PTRDIFF_MAX / 2,
              NBL_ERROR_SHAPE, "%s %s is too large", info->name,
              nbl__show_shape(info->tensor.rank, info->tensor.shape).text);
    *bytes = (exact + 63) / 64 * 64;
    return NBL_OK;
}

/* The most that lives across the first backward step. */
static size_t saved_bytes(const nbl__plan *plan, const nbl__piece *lives)
{
    int turn = 0;
    while (turn < plan->step_count && !plan->steps[turn].backward) turn++;
    size_t sum = 0;
    for (int v = 1; v <= plan->graph->value_count; v++)
        if (lives[v].bytes && lives[v].first < turn && lives[v].last >= turn) sum += lives[v].bytes;
    return sum;
}

static nbl_status place_all(nbl__plan *plan)
{
    nbl__graph *g = plan->graph;
    size_t room = (size_t)(g->value_count + 1 + plan->step_count);
    nbl__piece *lives = nbl__arena_alloc(&plan->arena, room * sizeof *lives);
    nbl__piece **order = nbl__arena_alloc(&plan->arena, room * sizeof *order);
    plan->offset = nbl__arena_alloc(&plan->arena, (size_t)(g->value_count + 1) * sizeof *plan->offset);
    if (lives == NULL || order == NULL || plan->offset == NULL) return NBL_ERROR_MEMORY;
    memset(plan->bytes, 0, sizeof plan->bytes);
    measure_lives(plan, lives);
    int count = 0;
    for (int v = 1; v <= g->value_count; v++) {
        const nbl__value_info *info = &g->values[v];
        if (info->kind == NBL_KIND_WEIGHT || info->alias) continue;
        nbl__memory_class class = nbl__plan_class(info);
        size_t bytes;
        NBL_TRY(bytes_of(plan, v, &bytes));
        if (class != NBL_MEMORY_RUN) {
            plan->offset[v] = plan->bytes[class];
            plan->bytes[class] += bytes;
        } else if (lives[v].last >= 0) {
            lives[v].bytes = bytes;
            order[count++] = &lives[v];
        }
    }
    nbl__piece *scratch = lives + g->value_count + 1;
    for (int i = 0; i < plan->step_count; i++) {
        scratch[i] = (nbl__piece){.bytes = (plan->steps[i].scratch + 63) / 64 * 64, .first = i, .last = i};
        if (scratch[i].bytes) order[count++] = &scratch[i];
    }
    plan->bytes[NBL_MEMORY_RUN] = nbl__place(order, count);
    for (int v = 1; v <= g->value_count; v++)
        if (lives[v].bytes) plan->offset[v] = lives[v].offset;
    for (int i = 0; i < plan->step_count; i++) plan->steps[i].scratch_offset = scratch[i].offset;
    plan->saved_bytes = saved_bytes(plan, lives);
    return NBL_OK;
}

size_t nbl__plan_total(const nbl__plan *plan)
{
    size_t sum = 0;
    for (int i = 0; i < NBL_MEMORY_COUNT; i++) sum += plan->bytes[i];
    return sum;
}

/* ---- making ---- */

static nbl_status try_plan(nbl__plan *plan, nbl__recompute mode, int layers)
{
    nbl__arena_free(&plan->arena);
    plan->arena = nbl__arena_make(plan->ctx);
    plan->graph->value_count = plan->value_count; /* without those of an earlier try */
    plan->recompute = mode;
    plan->recomputed_layers = layers;
    NBL_TRY(schedule(plan));
    if (mode != NBL_RECOMPUTE_NONE) NBL_TRY(nbl__plan_recompute(plan, mode, layers));
    NBL_TRY(infer_all(plan, NULL));
    NBL_TRY(choose_all(plan));
    return place_all(plan);
}

static int layer_count(const nbl__graph *g)
{
    int count = 0;
    for (int i = 0; i < g->node_count; i++)
        if (g->nodes[i].layer >= count) count = g->nodes[i].layer + 1;
    return count;
}

/* The least recomputation that keeps the budget: none, then what is cheap, then as few layers as needed. */
static nbl_status fit(nbl__plan *plan, const nbl__plan_options *options)
{
    int layers = layer_count(plan->graph);
    size_t smallest = SIZE_MAX;
    for (int mode = (int)options->least; mode <= NBL_RECOMPUTE_CHEAP; mode++) {
        NBL_TRY(try_plan(plan, (nbl__recompute)mode, 0));
        if (options->budget == 0 || nbl__plan_total(plan) <= options->budget) return NBL_OK;
        if (nbl__plan_total(plan) < smallest) smallest = nbl__plan_total(plan);
    }
    int few = 0, many = layers; /* `many` may fit, `few` does not */
    NBL_TRY(try_plan(plan, NBL_RECOMPUTE_LAYERS, many));
    size_t total = nbl__plan_total(plan);
    if (total < smallest) smallest = total;
    if (options->budget == 0) return NBL_OK;
    NBL_CHECK(plan->ctx, total <= options->budget, NBL_ERROR_MEMORY,
              "the plan needs %zu bytes, %zu with everything recomputed; the budget is %zu", total, smallest,
              options->budget);
    while (many - few > 1) {
        int middle = few + (many - few) / 2;
        NBL_TRY(try_plan(plan, NBL_RECOMPUTE_LAYERS, middle));
        if (nbl__plan_total(plan) <= options->budget) many = middle;
        else few = middle;
    }
    return try_plan(plan, NBL_RECOMPUTE_LAYERS, many);
}

nbl_status nbl__plan_make(nbl__graph *graph, const nbl__plan_options *options, nbl__plan *plan)
{
    memset(plan, 0, sizeof *plan);
    plan->ctx = graph->ctx;
    plan->graph = graph;
    plan->value_count = graph->value_count;
    plan->arena = nbl__arena_make(graph->ctx);
    nbl_status status = graph->status != NBL_OK ? graph->status : fit(plan, options);
    if (status != NBL_OK) nbl__plan_free(plan);
    return status;
}

void nbl__plan_free(nbl__plan *plan)
{
    for (int i = 0; i < NBL_MEMORY_COUNT; i++)
        if (plan->memory[i] && !plan->borrowed[i]) nbl__free(plan->ctx, plan->memory[i], plan->bytes[i]);
    nbl__arena_free(&plan->arena);
    memset(plan, 0, sizeof *plan);
}

/* ---- running ---- */

void *nbl__plan_data(const nbl__plan *plan, nbl__value value)
{
    nbl__value storage = nbl__graph_storage(plan->graph, value);
    return plan->memory[nbl__plan_class(&plan->graph->values[storage])] + plan->offset[storage];
}

static void *address(void *user, nbl__value value)
{
    return nbl__plan_data(user, value);
}

nbl_status nbl__plan_bind(nbl__plan *plan, const nbl__plan *shared)
{
    for (int i = 0; i < NBL_MEMORY_COUNT; i++) {
        plan->borrowed[i] = shared && (i == NBL_MEMORY_PARAMETERS || i == NBL_MEMORY_STATES);
        NBL_CHECK(plan->ctx, !plan->borrowed[i] || plan->bytes[i] == shared->bytes[i], NBL_ERROR_INTERNAL,
                  "two plans of one model differ in their parameters or states");
        plan->memory[i] = plan->borrowed[i] ? shared->memory[i] : nbl__alloc(plan->ctx, plan->bytes[i]);
        if (plan->memory[i] == NULL) return NBL_ERROR_MEMORY;
    }
    return infer_all(plan, address);
}

nbl_status nbl__plan_resize(nbl__plan *plan)
{
    return infer_all(plan, address);
}

static nbl_status run_step(nbl__plan *plan, const nbl__planned_step *step)
{
    nbl_status status = nbl__op_run(plan->ctx, step->op, step->impl, step->arguments,
                                    plan->memory[NBL_MEMORY_RUN] + step->scratch_offset, step->scratch);
    return status == NBL_OK ? NBL_OK : nbl__hint(plan->ctx, status, "in %s", step->node->name);
}

nbl_status nbl__plan_run(nbl__plan *plan)
{
    for (int i = 0; i < plan->step_count; i++) NBL_TRY(run_step(plan, &plan->steps[i]));
    return NBL_OK;
}

nbl_status nbl__plan_run_forward(nbl__plan *plan)
{
    for (int i = 0; i < plan->step_count && !plan->steps[i].backward; i++)
        NBL_TRY(run_step(plan, &plan->steps[i]));
    return NBL_OK;
}

/* ---- looking for what went wrong ---- */

static bool all_finite(nbl_isa isa, const nbl_tensor *t)
{
    float values[256];
    int64_t n = nbl__tensor_elements(t);
    if (!nbl__is_compute(t->dtype)) return true;
    for (int64_t at = 0; at < n; at += 256) {
        int64_t count = nbl__min_i64(256, n - at);
        nbl__to_f32(isa, t->dtype, (const uint8_t *)t->data + (size_t)at * nbl__size_of(t->dtype), values,
                    count);
        for (int64_t i = 0; i < count; i++)
            if (!isfinite(values[i])) return false;
    }
    return true;
}

nbl_status nbl__plan_find_non_finite(nbl__plan *plan, const nbl__node **node)
{
    *node = NULL;
    for (int i = 0; i < plan->step_count && !plan->steps[i].backward; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        const nbl__slot *slots = step->node->family->slots;
        NBL_TRY(run_step(plan, step));
        for (const nbl__slot *slot = slots; slot->name; slot++) {
            if (step->bound[slot - slots] == 0 || slot->role != NBL_ROLE_OUTPUT) continue;
            if (all_finite(nbl__isa(plan->ctx), nbl__slot_tensor(slot, step->arguments))) continue;
            *node = step->node;
            return NBL_OK;
        }
    }
    return NBL_OK;
}

void *nbl__step_attr(const nbl__planned_step *step, const char *name)
{
    for (const nbl__attr *attr = step->node->family->attrs; attr->name; attr++)
        if (strcmp(attr->name, name) == 0) return (char *)step->arguments + attr->offset;
    return NULL;
}
