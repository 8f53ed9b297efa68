/* alloc.h - allocators: the system's, and one for tests that counts and fails on demand. */
#ifndef NBL_ALLOC_H
#define NBL_ALLOC_H

#include <stdatomic.h>

#include "nibble.h"

nbl_allocator nbl__system_allocator(void);

/* Counts every allocation and makes the n-th fail. Zero it, set fail_at, hand out
 * nbl__counting_allocator. */
typedef struct nbl__counter {
    atomic_int_fast64_t calls;      /* allocations asked for */
    atomic_int_fast64_t live;       /* allocations not yet freed */
    atomic_int_fast64_t bytes;      /* held now */
    atomic_int_fast64_t peak_bytes; /* the most that was held */
    int64_t fail_at;                /* 1: the first fails; 0: none does */
} nbl__counter;

nbl_allocator nbl__counting_allocator(nbl__counter *counter);

#endif
