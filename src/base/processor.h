/* processor.h - names of the processor and its features, for users to read. */
#ifndef NBL_PROCESSOR_H
#define NBL_PROCESSOR_H

#include <stdbool.h>
#include <stddef.h>

/* Reads the processor's name from a file like /proc/cpuinfo; cut to `size`. x86-64 has a "model
 * name". aarch64 has numbers of implementer and part; common ones have names here, and different
 * cores are listed in the file's order. False if unknown; `name` is then empty. */
bool nbl__processor_in(const char *path, char *name, size_t size);

#if defined(__aarch64__)
/* An optional instruction set of aarch64, as the kernel reports it. */
typedef struct nbl__arm_feature {
    const char *name, *enables;
    bool found;
} nbl__arm_feature;
/* Index from 0; false past the end. */
bool nbl__arm_feature_get(size_t index, nbl__arm_feature *feature);
#endif

#endif
