/* offload_copy.h - values that wait in the host's memory while a device has no use for them.
 *
 * Not an operator for users: plans put these steps into their schedules (graph/offload.c), so they are not in the table of
 * families. Copies run one after the other beside what the device computes. Each has a slot: before the next of the slot
 * begins, and before what it brought or took away is touched, comes a `wait`. On the CPU a copy is done when its step is. */
#ifndef NBL_ASIDE_H
#define NBL_ASIDE_H

#include "ops/ops.h"

enum { NBL_ASIDE_SLOTS = 2 };

typedef enum nbl__aside_what {
    NBL_ASIDE_PUT, /* x to the host */
    NBL_ASIDE_GET, /* y from there: like what was put */
    NBL_ASIDE_WAIT /* until the copy of x is done */
} nbl__aside_what;

typedef struct nbl__aside {
    int what;                     /* nbl__aside_what */
    int slot;                     /* below NBL_ASIDE_SLOTS */
    nbl_tensor x;                 /* put, wait */
    nbl_tensor y;                 /* get */
    size_t offset;                /* in the plan's memory on the host */
    void *host;                   /* where that is */
    const struct nbl__aside *put; /* get: of which it is the other half */
} nbl__aside;

extern const nbl__family nbl__aside_family;

static inline size_t nbl__aside_bytes(const nbl_tensor *t)
{
    return (size_t)nbl__tensor_elements(t) * nbl__size_of(t->dtype);
}

#endif
