/* offload_copy.h - values that wait in the host's memory while a device has no use for them.
 *
 * Not an operator for users: plans put these steps into their schedules (graph/offload.c), so they are not in the table of
 * families. Copies run one after the other beside what the device computes. Each has a slot: before the next of the slot
 * begins, and before what it brought or took away is touched, comes a `wait`. On the CPU a copy is done when its step is. */
#ifndef NBL_OFFLOAD_COPY_H
#define NBL_OFFLOAD_COPY_H

#include "ops/ops.h"

enum { NBL_OFFLOAD_SLOTS = 2 };

typedef enum nbl__offload_step {
    NBL_OFFLOAD_STORE, /* x to the host */
    NBL_OFFLOAD_LOAD,  /* y from there: like what was put */
    NBL_OFFLOAD_WAIT   /* until the copy of x is done */
} nbl__offload_step;

typedef struct nbl__offload_copy {
    int what;                            /* nbl__offload_step */
    int slot;                            /* below NBL_OFFLOAD_SLOTS */
    nbl_tensor x;                        /* put, wait */
    nbl_tensor y;                        /* get */
    size_t offset;                       /* in the plan's memory on the host */
    void *host;                          /* where that is */
    const struct nbl__offload_copy *put; /* get: of which it is the other half */
} nbl__offload_copy;

extern const nbl__family nbl__offload_copy_family;

static inline size_t nbl__offload_copy_bytes(const nbl_tensor *t)
{
    return (size_t)nbl__tensor_elements(t) * nbl__size_of(t->dtype);
}

#endif
