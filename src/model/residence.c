/* residence.c - chooses where training on a device keeps each weight: packed, dequantized, or in
 * host memory. See language_model.h.
 *
 *     packed        on the device as stored; the default
 *     dequantized   on the device in the compute dtype, instead of the packed weight; same values
 *     on_host       in pinned host memory; only the embedding
 *
 * Dequantized. A step dequantizes every packed weight twice, in forward and in backward, and a
 * third time if its layer is recomputed. With room in the budget the dequantized copy is kept
 * instead. The time saved is proportional to the bytes, plus one kernel launch per weight. So the
 * smallest weights come first; equal sizes in the model's order.
 *
 * On the host. A step reads one row of the embedding per token, which the bus can carry. */
#include <stdlib.h>

#include "model/language_model.h"
#include "device/device.h"

/* Only packed, frozen linear layers qualify. The embedding dequantizes only the rows that it
 * looks up; a trained weight is a dense parameter already. */
static bool may_be_dequantized(const nbl_model *m, const struct nbl__weight_entry *entry)
{
    return entry->weight.format != NBL_FORMAT_DENSE && entry->weight.rank == 2 &&
           entry->role == NBL_WEIGHT_LINEAR && !nbl__model_trains(m, entry->name);
}

static int64_t elements_of(const nbl_weight *w)
{
    return w->shape[0] * w->shape[1];
}

/* The next weight after `after` in the order (elements, index in the model); NULL: none.
 * O(weights). */
static struct nbl__weight_entry *next_of(nbl_model *m, const struct nbl__weight_entry *after)
{
    struct nbl__weight_entry *best = NULL;
    int64_t min = after ? elements_of(&after->weight) : -1;
    for (int64_t i = 0; i < m->weight_count; i++) {
        struct nbl__weight_entry *it = &m->weights[i];
        if (!may_be_dequantized(m, it)) continue;
        int64_t n = elements_of(&it->weight);
        if (n < min || (n == min && it <= after)) continue;
        if (best == NULL || n < elements_of(&best->weight)) best = it;
    }
    return best;
}

uint64_t nbl__dequantized_choose(nbl_model *m, uint64_t room, bool *more)
{
    uint64_t taken = 0;
    bool full = room == 0;
    for (int64_t i = 0; i < m->weight_count; i++) m->weights[i].dequantized = false;
    for (struct nbl__weight_entry *it = NULL; !full && (it = next_of(m, it));) {
        it->as_used = (nbl_weight){.format = NBL_FORMAT_DENSE,
                                   .dtype = m->dtype,
                                   .rank = 2,
                                   .shape = {it->weight.shape[0], it->weight.shape[1]}};
        assert(nbl__weight_bytes(&it->as_used) >= nbl__weight_bytes(&it->weight) && taken <= room);
        uint64_t extra = nbl__weight_bytes(&it->as_used) - nbl__weight_bytes(&it->weight);
        full = extra > room - taken;
        if (full) break;
        it->dequantized = true;
        taken += extra;
    }
    *more = full;
    return taken;
}

uint64_t nbl__embedding_on_host(nbl_model *m, bool yes)
{
    struct nbl__weight_entry *entry = nbl__model_find_role(m, NBL_WEIGHT_EMBEDDING);
    if (entry == NULL || m->decoder.tied || nbl__model_trains(m, entry->name) ||
        !nbl__device_of(m->ctx)->reads_host)
        return 0;
    uint64_t spared = yes != entry->on_host ? nbl__weight_bytes(&entry->weight) : 0;
    entry->on_host = yes;
    return spared;
}
