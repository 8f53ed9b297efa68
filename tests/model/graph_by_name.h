/* graph_by_name.h - builds nodes of any family by the names of its slots, for tests that choose families at run time.
 * Builders of models use graph/build.h, which the compiler checks. */
#ifndef NBL_TEST_GRAPH_BY_NAME_H
#define NBL_TEST_GRAPH_BY_NAME_H

#include "support.h"

#include "graph/graph.h"

static inline void *graph_begin(nbl__graph *g, const char *family, const char *name)
{
    const nbl__family *found = nbl__family_find(family);
    if (found == NULL) fail_msg("no operator is called %s", family);
    return nbl__graph_begin(g, found, name);
}

/* The slot of this name in the last node's struct of arguments. */
static inline const void *graph_field(const nbl__graph *g, const char *slot)
{
    const nbl__node *node = &g->nodes[g->node_count - 1];
    const nbl__slot *found = nbl__slot_find(node->family, slot);
    if (found == NULL) fail_msg("%s has no slot %s", node->family->name, slot);
    return (const char *)node->arguments + found->offset;
}

static inline void graph_bind(nbl__graph *g, const char *slot, nbl__value value)
{
    if (g->status == NBL_OK) nbl__graph_bind(g, graph_field(g, slot), value);
}

static inline nbl__value graph_output(nbl__graph *g, const char *slot)
{
    return g->status == NBL_OK ? nbl__graph_output(g, graph_field(g, slot)) : 0;
}

#endif
