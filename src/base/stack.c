/* stack.c - finds the lowest address of a thread's stack, once per thread. See stack.h. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* pthread_getattr_np */
#endif
#include "base/stack.h"

#include <pthread.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { UNKNOWN = 128 << 10, MAX = 8 << 20 };

static _Thread_local uintptr_t lowest;

/* The first thread's stack grows up to RLIMIT_STACK; musl reports only the part that is mapped
 * now. */
static uintptr_t first_thread_lowest(uintptr_t top)
{
    struct rlimit limit;
    uintptr_t size = MAX;
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < MAX) size = (uintptr_t)limit.rlim_cur;
    return top > size ? top - size : 0;
}

static uintptr_t find_lowest(uintptr_t here)
{
    pthread_attr_t attributes;
    void *address = NULL;
    size_t size = 0, guard = 0;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) return here > UNKNOWN ? here - UNKNOWN : 0;
    pthread_attr_getstack(&attributes, &address, &size);
    pthread_attr_getguardsize(&attributes, &guard);
    pthread_attr_destroy(&attributes);
    uintptr_t low = (uintptr_t)address;
    if (syscall(SYS_gettid) == getpid()) return first_thread_lowest(low + size);
    /* excludes a guard inside the range; one below it costs us a page */
    return low + guard;
}

size_t nbl__stack_left(void)
{
    char mark;
    uintptr_t here = (uintptr_t)&mark;
    if (lowest == 0) lowest = find_lowest(here);
    return here > lowest ? (size_t)(here - lowest) : 0;
}
