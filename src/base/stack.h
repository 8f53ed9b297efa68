/* stack.h - how much of the calling thread's stack is left. Recursion over hostile input asks before it goes deeper:
 * a thread may have 8 MB (the first one of a process), 128 KB (musl's default) or what its maker chose. */
#ifndef NBL_STACK_H
#define NBL_STACK_H

#include <stddef.h>

/* Bytes between here and the lowest address that the thread may use. The first call of a thread asks the system. */
size_t nbl__stack_left(void);

#endif
