/* stack.h - bytes left on the calling thread's stack.
 *
 * Recursion over untrusted input checks this before it goes deeper. Stack sizes differ: 8 MiB
 * (first thread of a process), 128 KiB (musl's default), or what pthread_create was given. */
#ifndef NBL_STACK_H
#define NBL_STACK_H

#include <stddef.h>

/* Bytes between this call's frame and the lowest usable address. The first call of a thread asks
 * the system. */
size_t nbl__stack_left(void);

#endif
