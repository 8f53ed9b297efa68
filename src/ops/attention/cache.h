/* cache.h - moving rows: into a cache of keys or values, and out of a batch.
 *
 *     kv_write    cache row rows[t] = x[t], for t < T            in place; the other rows stay
 *     take_rows   y[i] = x[rows[i]]
 *
 * x is [T, heads, dim] (kv_write: any float dtype of its own and of the cache, one rounding) or [T, columns].
 * A row number that is out of range is an error of the run, which names it. No backward: they serve
 * generation. */
#ifndef NBL_CACHE_H
#define NBL_CACHE_H

#include "ops/ops.h"

typedef struct nbl__kv_write {
    nbl_tensor x;     /* [T, heads, dim] */
    nbl_tensor rows;  /* i32 [T]: sequence · cache size + position */
    nbl_tensor cache; /* [sequences, size, heads, dim]; written in place */
} nbl__kv_write;

typedef struct nbl__take_rows {
    nbl_tensor x;    /* [.., columns] */
    nbl_tensor rows; /* i32 [n] */
    nbl_tensor y;    /* [n, columns] */
} nbl__take_rows;

#endif
