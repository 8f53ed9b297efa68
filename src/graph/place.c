/* place.c - memory by lifetime: largest piece first, each at the lowest offset that is free throughout its
 * life. Within a few percent of the peak of what lives at once; the order, and so the layout, depends on
 * the plan alone. */
#include <stdlib.h>

#include "graph/plan.h"

static int larger_first(const void *a, const void *b)
{
    const nbl__piece *x = *(nbl__piece *const *)a, *y = *(nbl__piece *const *)b;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? 1 : -1;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    return x->last < y->last ? -1 : x->last > y->last;
}

static bool live_together(const nbl__piece *a, const nbl__piece *b)
{
    return a->first <= b->last && b->first <= a->last;
}

size_t nbl__place(nbl__piece **pieces, int count)
{
    qsort(pieces, (size_t)count, sizeof *pieces, larger_first);
    size_t end = 0;
    for (int i = 0; i < count; i++) {
        nbl__piece *it = pieces[i];
        /* Pieces [0, i) are placed and sorted by offset: take the first gap between those that live with it. */
        size_t at = 0;
        for (int k = 0; k < i; k++) {
            const nbl__piece *other = pieces[k];
            if (!live_together(it, other)) continue;
            if (other->offset >= at + it->bytes) break;
            if (other->offset + other->bytes > at) at = other->offset + other->bytes;
        }
        it->offset = at;
        if (at + it->bytes > end) end = at + it->bytes;
        int k = i;
        for (; k > 0 && pieces[k - 1]->offset > at; k--) pieces[k] = pieces[k - 1];
        pieces[k] = it;
    }
    return end;
}
