/* duplicates.h - detects equal examples: a set of 128-bit hashes over tokens and labels, 16
 * bytes per slot. Among n examples, the probability that two different ones have the same hash
 * is about n² / 2^129. */
#ifndef NBL_DUPLICATES_H
#define NBL_DUPLICATES_H

#include "base/base.h"

typedef struct nbl__duplicates {
    uint64_t (*slots)[2]; /* open addressing; {0, 0} is free */
    int64_t count, room;  /* room: number of slots, a power of two; count <= 2/3 room */
} nbl__duplicates;        /* initialise to zero */

/* Adds an example. *fresh: no equal example was added before. */
nbl_status nbl__duplicates_add(nbl__duplicates *seen, nbl_context *ctx, const int32_t *ids,
                               const int32_t *labels, int64_t count, bool *fresh);
void nbl__duplicates_free(nbl__duplicates *seen, nbl_context *ctx);

#endif
