/* offload_copy.h - copies of values that the host's memory keeps while the device
 * does not need them.
 *
 * Not an operator for users: a plan inserts these steps into its schedule
 * (graph/offload.c), and the table of families does not list them.
 *
 * Copies run one after the other, on a stream of their own beside the computation.
 * Each copy has a slot. A `wait` step must come before the slot's next copy, and
 * before any step that touches the memory that the copy reads or writes. On the
 * CPU a copy is complete when its step returns. */
#ifndef NBL_OFFLOAD_COPY_H
#define NBL_OFFLOAD_COPY_H

#include "ops/ops.h"

enum { NBL_OFFLOAD_SLOTS = 2 };

typedef enum nbl__offload_step {
    NBL_OFFLOAD_STORE, /* device to host: x */
    NBL_OFFLOAD_LOAD,  /* host to device: y, the value that was stored */
    NBL_OFFLOAD_WAIT   /* until the copy of x is complete */
} nbl__offload_step;

typedef struct nbl__offload_copy {
    int what;                            /* nbl__offload_step */
    int slot;                            /* 0 … NBL_OFFLOAD_SLOTS - 1 */
    nbl_tensor x;                        /* store, wait */
    nbl_tensor y;                        /* load */
    size_t offset;                       /* bytes from the start of the plan's memory on the host */
    void *host;                          /* the address of the value on the host */
    const struct nbl__offload_copy *put; /* load: the store of the same value */
} nbl__offload_copy;

extern const nbl__family nbl__offload_copy_family;

static inline size_t nbl__offload_copy_bytes(const nbl_tensor *t)
{
    return (size_t)nbl__tensor_elements(t) * nbl__size_of(t->dtype);
}

#endif
