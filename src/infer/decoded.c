/* decoded.c - packed weights that training on a device decodes once. See language_model.h.
 *
 * A step decodes every packed weight twice or, where its layer is recomputed, three times; a copy in the compute dtype takes its
 * place where a budget has room for it, with the same bits. Per byte all weights gain alike but for what a launch costs:
 * the smallest come first, and those of one size in the order of the model. */
#include <stdlib.h>

#include "infer/language_model.h"

/* A matrix of a layer: what is looked up row by row is decoded for few of its rows, and what is trained has a master. */
static bool may_be_decoded(const nbl_model *m, const struct nbl__held *held)
{
    return held->weight.format != NBL_FORMAT_DENSE && held->weight.rank == 2 &&
           strncmp(held->name, "model.layers.", 13) == 0 && !nbl__model_trains(m, held->name);
}

static int64_t elements_of(const nbl_weight *w)
{
    return w->shape[0] * w->shape[1];
}

/* The smallest that is larger than `after`, or as large and later in the model; NULL: none. */
static struct nbl__held *next_of(nbl_model *m, const struct nbl__held *after)
{
    struct nbl__held *best = NULL;
    int64_t least = after ? elements_of(&after->weight) : -1;
    for (int64_t i = 0; i < m->weight_count; i++) {
        struct nbl__held *it = &m->weights[i];
        if (!may_be_decoded(m, it)) continue;
        int64_t n = elements_of(&it->weight);
        if (n < least || (n == least && it <= after)) continue;
        if (best == NULL || n < elements_of(&best->weight)) best = it;
    }
    return best;
}

uint64_t nbl__decoded_choose(nbl_model *m, uint64_t room, bool *more)
{
    uint64_t taken = 0;
    bool full = room == 0;
    for (int64_t i = 0; i < m->weight_count; i++) m->weights[i].decoded = false;
    for (struct nbl__held *it = NULL; !full && (it = next_of(m, it));) {
        it->as_used = (nbl_weight){.format = NBL_FORMAT_DENSE,
                                   .dtype = m->dtype,
                                   .rank = 2,
                                   .shape = {it->weight.shape[0], it->weight.shape[1]}};
        uint64_t extra = nbl__weight_bytes(&it->as_used) - nbl__weight_bytes(&it->weight);
        full = extra > room - taken;
        if (full) break;
        it->decoded = true;
        taken += extra;
    }
    *more = full;
    return taken;
}
