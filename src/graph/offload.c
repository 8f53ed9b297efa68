/* offload.c - offload: pinned values wait in the host's memory between forward and backward.
 *
 * When layers are recomputed from pinned values, the pinned values are most of the memory that
 * lives from forward to backward. Each one is stored to the host after its last use in forward,
 * and loaded before its first use in backward:
 *
 *     forward, after the last use of value k:    wait for store k - 2, start store k
 *     end of forward:                            wait for the last stores
 *     backward, before the first use of value k: wait for load k, start the loads up to k + 2
 *
 * At most NBL_OFFLOAD_SLOTS = 2 copies run in each direction, so only a few values are on the
 * device at a time, and a copy overlaps with the operators between two uses. The value that
 * backward uses first is not offloaded: it would be loaded at once.
 *
 * A loaded value is a new value of the graph with the same bits. Backward steps are bound to it,
 * so the original value's lifetime ends with its store. The three kinds of step are
 * nbl__offload_step.
 *
 * Runs after nbl__plan_recompute, in nbl__plan_make; memory is in the plan's arena. */
#include <stdlib.h>

#include "graph/plan.h"
#include "ops/elementwise/offload_copy.h"

/* A value that may be offloaded. */
typedef struct traveller {
    nbl__value value, back; /* back: the loaded value that backward reads; 0: not offloaded */
    /* last: last step in forward that uses it; first: first step in backward; -1: none */
    int last, first;
    size_t bytes;
    /* its store step's arguments; NULL: not stored yet */
    const nbl__offload_copy *put;
} traveller;

typedef struct rewrite {
    nbl__plan *plan;
    traveller *all;     /* the candidates: pinned values that recomputed layers start from */
    traveller **leaves; /* [count - 1] values to store, sorted by `last` */
    traveller **comes;  /* [count] all values, sorted by `first`; comes[0] stays on the device */
    /* count: of `all`; turn: index of the first backward step */
    int count, turn;
    int gone, fetched; /* stores and loads added so far */
    nbl__planned_step *steps;
    int step_count;
} rewrite;

static traveller *find(const rewrite *r, nbl__value value)
{
    nbl__value storage = nbl__graph_storage(r->plan->graph, value);
    for (int k = 0; k < r->count; k++)
        if (r->all[k].value == storage) return &r->all[k];
    return NULL;
}

/* Fills in first and last use of every candidate. */
static void find_uses(const rewrite *r)
{
    const nbl__plan *plan = r->plan;
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        const nbl__slot *slots = step->node->family->slots;
        for (const nbl__slot *slot = slots; slot->name; slot++) {
            nbl__value value = step->bound[slot - slots];
            traveller *t = value && nbl__step_touches(step, slot) ? find(r, value) : NULL;
            if (t == NULL) continue;
            if (i < r->turn) t->last = i;
            else if (t->first < 0) t->first = i;
        }
    }
}

static int by_last(const void *a, const void *b)
{
    const traveller *x = *(traveller *const *)a, *y = *(traveller *const *)b;
    if (x->last != y->last) return x->last < y->last ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

static int by_first(const void *a, const void *b)
{
    const traveller *x = *(traveller *const *)a, *y = *(traveller *const *)b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->value < y->value ? -1 : x->value > y->value;
}

/* Collects the values to offload and sorts them. Values smaller than 1 / SMALL of the largest
 * are left out: such a copy saves too little. So are those of layers below NBL_RECOMPUTE_LAYERS. */
static nbl_status find_travellers(rewrite *r)
{
    enum { SMALL = 8 };
    nbl__plan *plan = r->plan;
    const nbl__graph *g = plan->graph;
    size_t room = (size_t)g->value_count + 1, largest = 0;
    r->all = nbl__arena_alloc(&plan->arena, room * sizeof *r->all);
    r->leaves = nbl__arena_alloc(&plan->arena, room * sizeof(traveller *));
    r->comes = nbl__arena_alloc(&plan->arena, room * sizeof(traveller *));
    if (r->all == NULL || r->leaves == NULL || r->comes == NULL) return NBL_ERROR_MEMORY;
    for (nbl__value v = 1; v <= g->value_count; v++) {
        if (!g->values[v].pinned || g->values[v].kind != NBL_KIND_ACTIVATION || g->values[v].alias) continue;
        traveller *t = &r->all[r->count++];
        *t = (traveller){.value = v, .last = -1, .first = -1};
        NBL_TRY(nbl__plan_value_bytes(plan, v, &t->bytes));
        if (t->bytes > largest) largest = t->bytes;
    }
    find_uses(r);
    int kept = 0;
    for (int k = 0; k < r->count; k++) {
        const traveller *t = &r->all[k];
        if (t->last < 0 || t->first < 0 || t->bytes < largest / SMALL) continue;
        if (nbl__plan_recompute_level(plan, plan->steps[t->first].node->layer) < NBL_RECOMPUTE_LAYERS)
            continue;
        r->all[kept++] = *t;
    }
    r->count = kept;
    for (int k = 0; k < kept; k++) r->comes[k] = &r->all[k];
    qsort(r->comes, (size_t)kept, sizeof *r->comes, by_first);
    for (int k = 1; k < kept; k++) r->leaves[k - 1] = r->comes[k];
    if (kept > 1) qsort(r->leaves, (size_t)kept - 1, sizeof *r->leaves, by_last);
    return NBL_OK;
}

/* Adds a store, load or wait step. The node is not part of the graph. `made` (NULL allowed) gets
 * its arguments. */
static nbl_status add_step(rewrite *r, nbl__offload_copy arguments, nbl__value x, nbl__value y,
                           const nbl__offload_copy **made)
{
    nbl__arena *arena = &r->plan->arena;
    nbl__node *node = nbl__arena_alloc(arena, sizeof *node);
    nbl__offload_copy *a = nbl__arena_alloc(arena, sizeof *a);
    nbl__value *bound = nbl__arena_alloc(arena, 2 * sizeof *bound);
    if (node == NULL || a == NULL || bound == NULL) return NBL_ERROR_MEMORY;
    *a = arguments;
    bound[0] = x, bound[1] = y;
    *node = (nbl__node){.name = r->plan->graph->values[x ? x : y].name,
                        .family = &nbl__offload_copy_family,
                        .arguments = a,
                        .bound = bound,
                        .layer = -1};
    r->steps[r->step_count++] = (nbl__planned_step){.node = node,
                                                    .op = &nbl__offload_copy_family.forward,
                                                    .rerun = arguments.what == NBL_OFFLOAD_LOAD,
                                                    .bound = bound,
                                                    .arguments = a};
    if (made) *made = a;
    return NBL_OK;
}

/* Waits until the copy in this slot is done. Binding `value` keeps its memory alive until then. */
static nbl_status wait_for(rewrite *r, int slot, nbl__value value)
{
    nbl__offload_copy a = {.what = NBL_OFFLOAD_WAIT, .slot = slot % NBL_OFFLOAD_SLOTS};
    return add_step(r, a, value, 0, NULL);
}

/* Stores the next value of `leaves`. Its slot must be free: the store two before it is waited
 * for. */
static nbl_status leave(rewrite *r)
{
    int k = r->gone++;
    traveller *t = r->leaves[k];
    if (k >= NBL_OFFLOAD_SLOTS) NBL_TRY(wait_for(r, k, r->leaves[k - NBL_OFFLOAD_SLOTS]->value));
    nbl__offload_copy a = {
        .what = NBL_OFFLOAD_STORE, .slot = k % NBL_OFFLOAD_SLOTS, .offset = r->plan->host_bytes};
    r->plan->host_bytes += t->bytes;
    return add_step(r, a, t->value, 0, &t->put);
}

/* At the end of forward: waits for the last NBL_OFFLOAD_SLOTS stores. */
static nbl_status end_forward(rewrite *r)
{
    for (int k = r->gone < NBL_OFFLOAD_SLOTS ? 0 : r->gone - NBL_OFFLOAD_SLOTS; k < r->gone; k++)
        NBL_TRY(wait_for(r, k, r->leaves[k]->value));
    return NBL_OK;
}

/* Loads comes[k] into a new value. */
static nbl_status get(rewrite *r, int k)
{
    nbl__graph *g = r->plan->graph;
    traveller *t = r->comes[k];
    t->back = nbl__graph_new(g, NBL_KIND_ACTIVATION, g->values[t->value].name);
    if (t->back == 0) return NBL_ERROR_MEMORY;
    g->values[t->back].tensor = g->values[t->value].tensor;
    nbl__offload_copy a = {
        .what = NBL_OFFLOAD_LOAD, .slot = k % NBL_OFFLOAD_SLOTS, .offset = t->put->offset, .put = t->put};
    return add_step(r, a, 0, t->back, NULL);
}

/* Before the first use of comes[k] in backward: waits for its load and starts the next ones. */
static nbl_status arrive(rewrite *r, int k)
{
    if (k > 0) NBL_TRY(wait_for(r, k, r->comes[k]->back));
    while (r->fetched + 1 < r->count && r->fetched < k + NBL_OFFLOAD_SLOTS) NBL_TRY(get(r, ++r->fetched));
    return NBL_OK;
}

/* The value that backward reads in place of `value`: the loaded one, or a view of it. */
static nbl__value stand_in(rewrite *r, nbl__value value)
{
    nbl__graph *g = r->plan->graph;
    const traveller *t = find(r, value);
    if (t == NULL || t->back == 0) return value;
    if (t->value == value) return t->back;
    nbl__value view = nbl__graph_new(g, NBL_KIND_ACTIVATION, g->values[value].name);
    if (view == 0) return value;
    g->values[view].tensor = g->values[value].tensor;
    g->values[view].alias = t->back;
    g->values[view].offset = g->values[value].offset;
    return view;
}

/* Adds a backward step, bound to loaded values. It gets arguments of its own: those of a node
 * may serve its forward step too. */
static nbl_status push_backward(rewrite *r, nbl__planned_step step)
{
    const nbl__family *family = step.node->family;
    int count = 0, changed = 0;
    while (family->slots[count].name) count++;
    nbl__value *bound = nbl__arena_alloc(&r->plan->arena, (size_t)count * sizeof *bound);
    if (bound == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < count; i++) {
        bool touched = step.bound[i] && nbl__step_touches(&step, &family->slots[i]);
        bound[i] = touched ? stand_in(r, step.bound[i]) : step.bound[i];
        changed += bound[i] != step.bound[i];
    }
    if (changed) {
        void *arguments = nbl__arena_alloc(&r->plan->arena, family->size);
        if (arguments == NULL) return NBL_ERROR_MEMORY;
        memcpy(arguments, step.arguments, family->size);
        step.arguments = arguments;
        step.bound = bound;
    }
    r->steps[r->step_count++] = step;
    return r->plan->graph->status;
}

nbl_status nbl__plan_offload(nbl__plan *plan)
{
    rewrite r = {.plan = plan};
    while (r.turn < plan->step_count && !plan->steps[r.turn].backward) r.turn++;
    NBL_TRY(find_travellers(&r));
    if (r.count < 2) return NBL_OK;
    size_t room = (size_t)plan->step_count + 4 * (size_t)r.count;
    r.steps = nbl__arena_alloc(&plan->arena, room * sizeof *r.steps);
    if (r.steps == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0, next = 0; i < plan->step_count; i++) {
        if (i == r.turn) NBL_TRY(end_forward(&r));
        for (; next < r.count && i == r.comes[next]->first; next++) NBL_TRY(arrive(&r, next));
        if (i < r.turn) r.steps[r.step_count++] = plan->steps[i];
        else NBL_TRY(push_backward(&r, plan->steps[i]));
        while (r.gone + 1 < r.count && i == r.leaves[r.gone]->last) NBL_TRY(leave(&r));
    }
    plan->steps = r.steps;
    plan->step_count = r.step_count;
    return NBL_OK;
}
