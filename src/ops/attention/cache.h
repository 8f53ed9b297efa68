/* cache.h - copying rows: into a KV cache, and out of a batch.
 *
 *   kv_write    cache row rows[t] = x[t], for t < T            in place; the other rows stay
 *   take_rows   y[i] = x[rows[i]]
 *
 * kv_write: x is [T, heads, dim]. x and the cache may have different float dtypes;
 * the copy then rounds once. take_rows: x is [.., columns]. A row index out of
 * range is an error of the run that names it. No backward: these operators serve
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
