/* alloc.h - allocators: the system's, and one for tests that counts and can fail. */
#ifndef NBL_ALLOC_H
#define NBL_ALLOC_H

#include <stdatomic.h>

#include "nibble.h"

nbl_allocator nbl__system_allocator(void);

/* State of the counting allocator. Zero it, set fail_at, pass nbl__counting_allocator(&counter)
 * to nbl_context_create. Thread-safe. */
typedef struct nbl__counter {
    atomic_int_fast64_t calls;      /* allocation requests */
    atomic_int_fast64_t live;       /* allocations not yet freed */
    atomic_int_fast64_t bytes;      /* bytes allocated now */
    atomic_int_fast64_t peak_bytes; /* maximum of `bytes` */
    int64_t fail_at;                /* number of the request that fails, from 1; 0: none */
} nbl__counter;

nbl_allocator nbl__counting_allocator(nbl__counter *counter);

/* malloc and free of a library (PCRE2) from the memory of `ctx`, an nbl_context. Such a library
 * frees without the size that nbl__free needs, so the size stands before the block. Aligned to 64
 * bytes. NULL and a recorded failure if there is no memory. */
void *nbl__alloc_sized(size_t size, void *ctx);
void nbl__free_sized(void *memory, void *ctx); /* NULL is allowed */

#endif
