/* alloc.c - see alloc.h. */
#include "base/alloc.h"
#include "base/base.h"

#include <stdlib.h>
#include <sys/mman.h>

/* Allocations of 4 MiB and more are aligned to 2 MiB and ask for huge pages (madvise). Without
 * them, reading weights at memory bandwidth misses the TLB every 4 KiB. If the system refuses,
 * nothing else changes. */
enum { LARGE_PAGE = 2 << 20 };

static void *system_alloc(void *user, size_t size, size_t align)
{
    (void)user;
    void *memory = NULL;
    bool large = size >= 2 * LARGE_PAGE;
    if (large && align < LARGE_PAGE) align = LARGE_PAGE;
    if (posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, size) != 0) return NULL;
#ifdef MADV_HUGEPAGE
    if (large) (void)madvise(memory, size / LARGE_PAGE * LARGE_PAGE, MADV_HUGEPAGE);
#endif
    return memory;
}

static void system_free(void *user, void *memory, size_t size)
{
    (void)user;
    (void)size;
    free(memory);
}

nbl_allocator nbl__system_allocator(void)
{
    return (nbl_allocator){system_alloc, system_free, NULL};
}

static void *counting_alloc(void *user, size_t size, size_t align)
{
    nbl__counter *counter = user;
    if (atomic_fetch_add(&counter->calls, 1) + 1 == counter->fail_at) return NULL;
    void *memory = system_alloc(NULL, size, align);
    if (memory == NULL) return NULL;
    atomic_fetch_add(&counter->live, 1);
    int_fast64_t now = atomic_fetch_add(&counter->bytes, (int_fast64_t)size) + (int_fast64_t)size;
    int_fast64_t peak = atomic_load(&counter->peak_bytes);
    while (now > peak && !atomic_compare_exchange_weak(&counter->peak_bytes, &peak, now)) {}
    return memory;
}

static void counting_free(void *user, void *memory, size_t size)
{
    nbl__counter *counter = user;
    atomic_fetch_sub(&counter->live, 1);
    atomic_fetch_sub(&counter->bytes, (int_fast64_t)size);
    system_free(NULL, memory, size);
}

nbl_allocator nbl__counting_allocator(nbl__counter *counter)
{
    return (nbl_allocator){counting_alloc, counting_free, counter};
}

enum { SIZE_PREFIX = 64 };

void *nbl__alloc_sized(size_t size, void *ctx)
{
    if (size > SIZE_MAX - SIZE_PREFIX) {
        nbl__fail(ctx, NBL_ERROR_MEMORY, "%zu bytes are too many", size);
        return NULL;
    }
    uint8_t *block = nbl__alloc(ctx, size + SIZE_PREFIX);
    if (block == NULL) return NULL;
    memcpy(block, &size, sizeof size);
    return block + SIZE_PREFIX;
}

void nbl__free_sized(void *memory, void *ctx)
{
    size_t size;
    if (memory == NULL) return;
    memcpy(&size, (uint8_t *)memory - SIZE_PREFIX, sizeof size);
    assert(size <= SIZE_MAX - SIZE_PREFIX); /* else this memory is not from nbl__alloc_sized */
    nbl__free(ctx, (uint8_t *)memory - SIZE_PREFIX, size + SIZE_PREFIX);
}
