/* offload.c - what layers are recomputed from waits in the host's memory.
 *
 * With layers (or halves of them) made again from their input, those inputs are most of what lives from forward to backward.
 * Here each goes to the host once the forward pass is done with it, and comes back before the backward pass wants it:
 *
 *     forward, done with input k:     wait for input k-2 to be gone, put input k
 *     backward, about to use k:       wait for input k to be back, get input k-2
 *
 * So a few of them are on the device at a time, and copies have a layer's time to hide in. The last input is wanted at once
 * and stays. In backward a value of its own stands for what came back; the bits are the same. */
#include <stdlib.h>

#include "graph/plan.h"
#include "ops/aside.h"

typedef struct traveller {
    nbl__value value, back; /* back: 0 for the one that stays */
    int last, first;        /* the last step of forward, and the first of backward, that use it */
    const nbl__aside *put;
} traveller;

typedef struct rewrite {
    nbl__plan *plan;
    traveller *travellers; /* in the order of the forward pass */
    int count, turn;
    nbl__planned_step *steps;
    int step_count;
} rewrite;

static int find(const rewrite *r, nbl__value value)
{
    for (int k = 0; k < r->count; k++)
        if (r->travellers[k].value == value) return k;
    return -1;
}

/* Notes which steps use the values that may travel. False: one of them is seen through a view, or by a layer that
 * keeps it. */
static bool find_uses(const rewrite *r)
{
    const nbl__plan *plan = r->plan;
    for (int i = 0; i < plan->step_count; i++) {
        const nbl__planned_step *step = &plan->steps[i];
        const nbl__slot *slots = step->node->family->slots;
        for (const nbl__slot *slot = slots; slot->name; slot++) {
            nbl__value value = step->bound[slot - slots];
            if (value == 0 || !nbl__step_touches(step, slot)) continue;
            int k = find(r, nbl__graph_storage(plan->graph, value));
            if (k < 0) continue;
            if (r->travellers[k].value != value) return false;
            if (i < r->turn) r->travellers[k].last = i;
            else if (r->travellers[k].first < 0) r->travellers[k].first = i;
        }
    }
    return true;
}

static int by_forward(const void *a, const void *b)
{
    const traveller *x = a, *y = b;
    return x->last < y->last ? -1 : x->last > y->last;
}

/* The pinned values of layers that are made again, and when they are used; fewer than two: none travels. */
static nbl_status find_travellers(rewrite *r)
{
    const nbl__graph *g = r->plan->graph;
    r->travellers = nbl__arena_alloc(&r->plan->arena, (size_t)(g->value_count + 1) * sizeof *r->travellers);
    if (r->travellers == NULL) return NBL_ERROR_MEMORY;
    for (nbl__value v = 1; v <= g->value_count; v++)
        if (g->values[v].pinned && g->values[v].kind == NBL_KIND_ACTIVATION && g->values[v].alias == 0)
            r->travellers[r->count++] = (traveller){.value = v, .last = -1, .first = -1};
    if (!find_uses(r)) {
        r->count = 0;
        return NBL_OK;
    }
    int kept = 0;
    for (int k = 0; k < r->count; k++) {
        const traveller *t = &r->travellers[k];
        if (t->last < 0 || t->first < 0) continue;
        if (nbl__plan_rung(r->plan, r->plan->steps[t->first].node->layer) < NBL_RECOMPUTE_LAYERS) continue;
        r->travellers[kept++] = *t;
    }
    r->count = kept;
    qsort(r->travellers, (size_t)r->count, sizeof *r->travellers, by_forward);
    for (int k = 1; k < r->count; k++) /* backward comes in the other order, or there is no telling */
        if (r->travellers[k - 1].last == r->travellers[k].last ||
            r->travellers[k - 1].first <= r->travellers[k].first)
            r->count = 0;
    return NBL_OK;
}

/* Adds a step that moves a value, or waits for one. */
static nbl_status add_step(rewrite *r, nbl__aside arguments, nbl__value x, nbl__value y,
                           const nbl__aside **made)
{
    nbl__arena *arena = &r->plan->arena;
    nbl__node *node = nbl__arena_alloc(arena, sizeof *node);
    nbl__aside *a = nbl__arena_alloc(arena, sizeof *a);
    nbl__value *bound = nbl__arena_alloc(arena, 2 * sizeof *bound);
    if (node == NULL || a == NULL || bound == NULL) return NBL_ERROR_MEMORY;
    *a = arguments;
    bound[0] = x, bound[1] = y;
    *node = (nbl__node){.name = r->plan->graph->values[x ? x : y].name,
                        .family = &nbl__aside_family,
                        .arguments = a,
                        .bound = bound,
                        .layer = -1};
    r->steps[r->step_count++] = (nbl__planned_step){.node = node,
                                                    .op = &nbl__aside_family.forward,
                                                    .again = arguments.what == NBL_ASIDE_GET,
                                                    .bound = bound,
                                                    .arguments = a};
    if (made) *made = a;
    return NBL_OK;
}

static nbl_status put(rewrite *r, int k)
{
    traveller *t = &r->travellers[k];
    size_t bytes;
    NBL_TRY(nbl__plan_value_bytes(r->plan, t->value, &bytes));
    nbl__aside a = {.what = NBL_ASIDE_PUT, .slot = k % NBL_ASIDE_SLOTS, .offset = r->plan->host_bytes};
    r->plan->host_bytes += bytes;
    return add_step(r, a, t->value, 0, &t->put);
}

static nbl_status get(rewrite *r, int k)
{
    traveller *t = &r->travellers[k];
    nbl__graph *g = r->plan->graph;
    t->back = nbl__graph_new(g, NBL_KIND_ACTIVATION, g->values[t->value].name);
    if (t->back == 0) return NBL_ERROR_MEMORY;
    g->values[t->back].tensor = g->values[t->value].tensor;
    nbl__aside a = {
        .what = NBL_ASIDE_GET, .slot = k % NBL_ASIDE_SLOTS, .offset = t->put->offset, .put = t->put};
    return add_step(r, a, 0, t->back, NULL);
}

static nbl_status wait_for(rewrite *r, int k, bool back)
{
    const traveller *t = &r->travellers[k];
    nbl__aside a = {.what = NBL_ASIDE_WAIT, .slot = k % NBL_ASIDE_SLOTS};
    return add_step(r, a, back ? t->back : t->value, 0, NULL);
}

/* Forward is done with traveller k: it goes, or, the last, stays; then all others must be gone. */
static nbl_status leave(rewrite *r, int k)
{
    if (k >= NBL_ASIDE_SLOTS) NBL_TRY(wait_for(r, k - NBL_ASIDE_SLOTS, false));
    if (k < r->count - 1) return put(r, k);
    for (int i = k < NBL_ASIDE_SLOTS ? 0 : k - NBL_ASIDE_SLOTS + 1; i < k; i++)
        NBL_TRY(wait_for(r, i, false));
    return NBL_OK;
}

/* Backward is about to use traveller k; those from *fetched on are on their way. */
static nbl_status arrive(rewrite *r, int k, int *fetched)
{
    if (k < r->count - 1) NBL_TRY(wait_for(r, k, true));
    while (*fetched > 0 && *fetched > k - NBL_ASIDE_SLOTS) NBL_TRY(get(r, --*fetched));
    return NBL_OK;
}

/* A step of the backward pass reads what came back. Arguments of its own: those of a node may serve forward, too. */
static nbl_status push_backward(rewrite *r, nbl__planned_step step)
{
    const nbl__family *family = step.node->family;
    int count = 0, changed = 0;
    while (family->slots[count].name) count++;
    nbl__value *bound = nbl__arena_alloc(&r->plan->arena, (size_t)count * sizeof *bound);
    if (bound == NULL) return NBL_ERROR_MEMORY;
    for (int i = 0; i < count; i++) {
        bound[i] = step.bound[i];
        int k = bound[i] && nbl__step_touches(&step, &family->slots[i]) ? find(r, bound[i]) : -1;
        if (k < 0 || r->travellers[k].back == 0) continue;
        bound[i] = r->travellers[k].back;
        changed++;
    }
    if (changed) {
        void *arguments = nbl__arena_alloc(&r->plan->arena, family->size);
        if (arguments == NULL) return NBL_ERROR_MEMORY;
        memcpy(arguments, step.arguments, family->size);
        step.arguments = arguments;
        step.bound = bound;
    }
    r->steps[r->step_count++] = step;
    return NBL_OK;
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
    int next = 0, back = r.count - 1, fetched = back;
    for (int i = 0; i < plan->step_count; i++) {
        if (back >= 0 && i == r.travellers[back].first) NBL_TRY(arrive(&r, back--, &fetched));
        if (i < r.turn) r.steps[r.step_count++] = plan->steps[i];
        else NBL_TRY(push_backward(&r, plan->steps[i]));
        if (next < r.count && i == r.travellers[next].last) NBL_TRY(leave(&r, next++));
    }
    plan->steps = r.steps;
    plan->step_count = r.step_count;
    return NBL_OK;
}
