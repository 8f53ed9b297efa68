/* offsets.c - lifetimes and offsets: when each value is needed, and where it is in memory.
 *
 * Lifetime of a value: from the first to the last step that touches it. Values of the run class
 * whose lifetimes do not overlap may share addresses:
 *
 *     offset
 *       ▲  ┌──── A ────┐┌── D ──┐
 *       │  └───────────┘└───────┘
 *       │     ┌── B ──┐   ┌─ C ─┐        step →
 *
 * The algorithm is greedy: largest piece first, each at the lowest offset that is free during
 * its whole lifetime. The result is within a few per cent of the peak of live bytes. The layout
 * depends on the plan alone, so it is reproducible.
 *
 * Values of all other classes outlive a run: they are placed end to end. Every offset is a
 * multiple of 64. */
#include <stdlib.h>

#include "graph/plan.h"

/* Order of placement: larger first; ties by lifetime. */
static int larger_first(const void *a, const void *b)
{
    const nbl__allocation *x = *(nbl__allocation *const *)a, *y = *(nbl__allocation *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->last < y->last ? -1 : x->last > y->last;
}

static bool live_together(const nbl__allocation *a, const nbl__allocation *b)
{
    return a->first <= b->last && b->first <= a->last;
}

size_t nbl__assign_offsets(nbl__allocation **allocations, int count)
{
    qsort(allocations, (size_t)count, sizeof *allocations, larger_first);
    size_t end = 0;
    for (int i = 0; i < count; i++) {
        nbl__allocation *it = allocations[i];
        /* Pieces [0, i) have offsets and are sorted by them: take the first gap between those
         * alive at the same time. */
        size_t at = 0;
        for (int k = 0; k < i; k++) {
            const nbl__allocation *other = allocations[k];
            if (!live_together(it, other)) continue;
            if (other->offset >= at + it->bytes) break;
            if (other->offset + other->bytes > at) at = other->offset + other->bytes;
        }
        it->offset = at;
        if (at + it->bytes > end) end = at + it->bytes;
        int k = i;
        for (; k > 0 && allocations[k - 1]->offset > at; k--) allocations[k] = allocations[k - 1];
        allocations[k] = it;
    }
    return end;
}

/* ---- lifetimes and addresses ---- */

nbl__memory_class nbl__plan_class(const nbl__value_info *info)
{
    switch (info->kind) {
    case NBL_KIND_PREPARED:
    case NBL_KIND_PARAMETER: return NBL_MEMORY_PARAMETERS;
    case NBL_KIND_GRADIENT: return NBL_MEMORY_GRADIENTS;
    case NBL_KIND_STATE: return NBL_MEMORY_STATES;
    case NBL_KIND_INPUT:
    case NBL_KIND_RESULT: return NBL_MEMORY_INPUTS;
    default: return NBL_MEMORY_RUN;
    }
}

bool nbl__step_touches(const nbl__planned_step *step, const nbl__slot *slot)
{
    if (slot->role == NBL_ROLE_COTANGENT || slot->role == NBL_ROLE_GRADIENT) return step->backward;
    return !step->backward || nbl__slot_is_saved(step->node->family, slot, step->bound);
}

/* Lifetime of each value's memory: first and last step that touch it. A view extends its
 * source's lifetime. */
static void measure_lives(const nbl__plan *plan, nbl__allocation *lives)
{
    const nbl__graph *g = plan->graph;
    for (int v = 0; v <= g->value_count; v++)
        lives[v] = (nbl__allocation){.first = plan->step_count, .last = -1};
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        const nbl__slot *slots = step->node->family->slots;
        for (const nbl__slot *slot = slots; slot->name; slot++) {
            nbl__value value = step->bound[slot - slots];
            if (value == 0 || !nbl__step_touches(step, slot)) continue;
            nbl__allocation *life = &lives[nbl__graph_storage(g, value)];
            if (i < life->first) life->first = i;
            if (i > life->last) life->last = i;
        }
    }
}

nbl_status nbl__plan_value_bytes(const nbl__plan *plan, nbl__value value, size_t *bytes)
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

/* Index of the first backward step; step_count if there is none. */
static int first_backward_step(const nbl__plan *plan)
{
    int first_backward = 0;
    while (first_backward < plan->step_count && !plan->steps[first_backward].backward) first_backward++;
    return first_backward;
}

bool nbl__plan_is_saved(const nbl__plan *plan, nbl__value value)
{
    const nbl__allocation *life = &plan->lives[value];
    int first_backward = first_backward_step(plan);
    return life->bytes && life->first < first_backward && life->last >= first_backward &&
           first_backward < plan->step_count;
}

/* Bytes of all values that are written in forward and used in backward. */
static size_t saved_bytes(const nbl__plan *plan)
{
    size_t sum = 0;
    int first_backward = first_backward_step(plan);
    for (int v = 1; v <= plan->graph->value_count; v++)
        if (plan->lives[v].bytes && plan->lives[v].first < first_backward &&
            plan->lives[v].last >= first_backward)
            sum += plan->lives[v].bytes;
    return sum;
}

/* Appends the pieces of run values to `order`. Values of other classes get their offsets here. */
static nbl_status measure_values(nbl__plan *plan, nbl__allocation **order, int *count)
{
    const nbl__graph *g = plan->graph;
    for (int v = 1; v <= g->value_count; v++) {
        const nbl__value_info *info = &g->values[v];
        if (info->kind == NBL_KIND_WEIGHT || info->alias) continue;
        nbl__memory_class class = nbl__plan_class(info);
        size_t bytes;
        NBL_TRY(nbl__plan_value_bytes(plan, v, &bytes));
        if (class != NBL_MEMORY_RUN) {
            plan->offset[v] = plan->bytes[class];
            plan->bytes[class] += bytes;
            /* rank 0: an output that this plan does not compute */
        } else if (plan->lives[v].last >= 0 && info->tensor.rank > 0) {
            plan->lives[v].bytes = bytes;
            order[(*count)++] = &plan->lives[v];
        }
    }
    return NBL_OK;
}

/* The bytes that a forward step keeps for the backward step of its node (nbl__device.saved_bytes)
 * live from the last forward step of that node, a recomputing copy included, to the backward step.
 * */
static void measure_saved(const nbl__plan *plan, nbl__allocation *saved, nbl__allocation **order, int *count)
{
    for (int i = 0; i < plan->step_count; i++) {
        int forward = plan->steps[i].backward ? i - 1 : -1;
        while (forward >= 0 &&
               (plan->steps[forward].node != plan->steps[i].node || plan->steps[forward].backward))
            forward--;
        saved[i] = (nbl__allocation){.first = forward, .last = i};
        if (forward < 0 || plan->steps[forward].saved_bytes == 0) continue;
        saved[i].bytes = (plan->steps[forward].saved_bytes + 63) / 64 * 64;
        order[(*count)++] = &saved[i];
    }
}

/* Writes the offsets of saved bytes into both steps of each pair; clears `saved` of all others. */
static void assign_saved_offsets(nbl__plan *plan, const nbl__allocation *saved)
{
    for (int i = 0; i < plan->step_count; i++) plan->steps[i].saved_bytes = 0;
    for (int i = 0; i < plan->step_count; i++) {
        if (saved[i].bytes == 0) continue;
        nbl__planned_step *pair[] = {&plan->steps[saved[i].first], &plan->steps[i]};
        for (int k = 0; k < 2; k++)
            pair[k]->saved_bytes = saved[i].bytes, pair[k]->saved_offset = saved[i].offset;
    }
}

nbl_status nbl__plan_assign_offsets(nbl__plan *plan)
{
    const nbl__graph *g = plan->graph;
    size_t room = (size_t)(g->value_count + 1 + 2 * plan->step_count);
    nbl__allocation **order = nbl__arena_alloc(&plan->arena, room * sizeof(nbl__allocation *));
    plan->lives = nbl__arena_alloc(&plan->arena, room * sizeof *plan->lives);
    plan->offset = nbl__arena_alloc(&plan->arena, (size_t)(g->value_count + 1) * sizeof *plan->offset);
    if (plan->lives == NULL || order == NULL || plan->offset == NULL) return NBL_ERROR_MEMORY;
    memset(plan->bytes, 0, sizeof plan->bytes);
    measure_lives(plan, plan->lives);
    int count = 0;
    NBL_TRY(measure_values(plan, order, &count));
    nbl__allocation *scratch = plan->lives + g->value_count + 1;
    for (int i = 0; i < plan->step_count; i++) {
        scratch[i] = (nbl__allocation){
            .bytes = (plan->steps[i].scratch + 63) / 64 * 64, .first = i, .last = i};
        if (scratch[i].bytes) order[count++] = &scratch[i];
    }
    nbl__allocation *saved = scratch + plan->step_count;
    measure_saved(plan, saved, order, &count);
    plan->bytes[NBL_MEMORY_RUN] = nbl__assign_offsets(order, count);
    for (int v = 1; v <= g->value_count; v++)
        if (plan->lives[v].bytes) plan->offset[v] = plan->lives[v].offset;
    for (int i = 0; i < plan->step_count; i++) plan->steps[i].scratch_offset = scratch[i].offset;
    assign_saved_offsets(plan, saved);
    /* Prepare steps run between runs, one at a time: their scratch starts at offset 0 of the run
     * memory. */
    for (int i = 0; i < plan->prepare_count; i++)
        if (plan->prepare[i].scratch > plan->bytes[NBL_MEMORY_RUN])
            plan->bytes[NBL_MEMORY_RUN] = (plan->prepare[i].scratch + 63) / 64 * 64;
    plan->saved_bytes = saved_bytes(plan);
    return NBL_OK;
}
