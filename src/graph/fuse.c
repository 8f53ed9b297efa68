/* fuse.c - fusion: replaces two nodes that follow each other by one of a fused family, where the
 * device has a kernel that computes both. See graph.h.
 *
 *     rmsnorm, linear_group   norm_linear_group
 *     rmsnorm, mlp            norm_mlp
 *
 * The fused family's struct holds the structs of both parts, and its slots are slots of the
 * parts, found by their offsets. All outputs stay, since others may read them. Only pairs
 * without a backward step are fused.
 *
 * The last row of a fused family computes one part after the other. A pair is therefore fused
 * only if another row takes it. On the CPU there is none. */
#include "graph/graph.h"
#include "ops/families.h"
#include "ops/linear/norm_linear.h"

typedef struct fusion {
    const nbl__family *first, *second, *fused;
    size_t first_at, second_at; /* offsets of the parts in the fused struct */
    size_t from, to;            /* the output of `first` that is this input of `second`: offsets */
} fusion;

static const fusion fusions[] = {
    {&nbl__rmsnorm_family, &nbl__linear_group_family, &nbl__norm_linear_group_family,
     offsetof(nbl__norm_linear_group, norm), offsetof(nbl__norm_linear_group, layers),
     offsetof(nbl__rmsnorm, y), offsetof(nbl__linear_group, members[0].x)},
    {&nbl__rmsnorm_family, &nbl__mlp_family, &nbl__norm_mlp_family, offsetof(nbl__norm_mlp, norm),
     offsetof(nbl__norm_mlp, layers), offsetof(nbl__rmsnorm, y), offsetof(nbl__mlp, gate.x)},
};

/* What is bound to the slot at this offset. */
static nbl__value *binding(const nbl__node *node, size_t offset)
{
    return &node->bound[nbl__slot_at(node->family, offset)];
}

static const fusion *fusion_of(const nbl__node *first, const nbl__node *second)
{
    for (size_t i = 0; i < sizeof fusions / sizeof *fusions; i++) {
        const fusion *f = &fusions[i];
        if (first->family == f->first && second->family == f->second &&
            *binding(first, f->from) == *binding(second, f->to))
            return f;
    }
    return NULL;
}

/* Copies the bindings of a part that lies at `at`. False: it has one that the fused family lacks. */
static bool bind_part(const nbl__node *fused, const nbl__node *part, size_t at, const nbl__value *inner)
{
    const nbl__slot *own = part->family->slots;
    for (const nbl__slot *slot = own; slot->name; slot++) {
        nbl__value *from = &part->bound[slot - own];
        if (*from == 0 || from == inner) continue;
        int to = nbl__slot_at(fused->family, at + slot->offset);
        if (to < 0) return false;
        fused->bound[to] = *from;
    }
    return true;
}

/* Makes *fused of the two nodes. False: the graph has failed, or there is no kernel for them. */
static bool fuse_nodes(nbl__graph *g, const fusion *f, const nbl__node *first, const nbl__node *second,
                       nbl__node *fused)
{
    int slots = 0;
    while (f->fused->slots[slots].name) slots++;
    *fused = *second;
    fused->family = f->fused;
    fused->arguments = nbl__arena_alloc(&g->arena, f->fused->size);
    fused->bound = nbl__arena_alloc(&g->arena, (size_t)slots * sizeof *fused->bound);
    if (fused->arguments == NULL || fused->bound == NULL)
        return nbl__graph_failed(g, NBL_ERROR_MEMORY), false;
    memcpy((char *)fused->arguments + f->first_at, first->arguments, f->first->size);
    memcpy((char *)fused->arguments + f->second_at, second->arguments, f->second->size);
    if (!bind_part(fused, first, f->first_at, NULL) ||
        !bind_part(fused, second, f->second_at, binding(second, f->to)))
        return false;
    nbl__node_fill(g, fused, fused->bound, fused->arguments, NULL, NULL);
    const nbl__op *parts[] = {&f->first->forward, &f->second->forward};
    return f->fused->forward.infer(g->ctx, fused->arguments) == NBL_OK &&
           nbl__op_fuses(g->ctx, &f->fused->forward, parts, fused->arguments);
}

/* The outputs of a node say which node writes them. */
static void adopt_outputs(nbl__graph *g, int index)
{
    const nbl__node *node = &g->nodes[index];
    for (const nbl__slot *slot = node->family->slots; slot->name; slot++) {
        nbl__value value = node->bound[slot - node->family->slots];
        if (value && slot->role == NBL_ROLE_OUTPUT) g->values[value].producer = index;
    }
}

nbl_status nbl__graph_fuse(nbl__graph *g)
{
    int count = 0;
    for (int i = 0; i < g->step_count && g->status == NBL_OK; i++) {
        nbl__step step = g->steps[i];
        const nbl__node *previous = count > 0 ? &g->nodes[g->steps[count - 1].node] : NULL;
        nbl__node *node = &g->nodes[step.node], fused;
        const fusion *f = previous && !step.backward && !g->steps[count - 1].backward
                              ? fusion_of(previous, node)
                              : NULL;
        if (f && fuse_nodes(g, f, previous, node, &fused)) {
            *node = fused;
            adopt_outputs(g, step.node);
            count--; /* the first node's step goes; the node stays, without a step */
        }
        g->steps[count++] = step;
    }
    if (g->status == NBL_OK) g->step_count = count;
    return g->status;
}
