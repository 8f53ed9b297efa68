/* processor.h - the processor as the system tells of it, for people to read. */
#ifndef NBL_PROCESSOR_H
#define NBL_PROCESSOR_H

#include <stdbool.h>
#include <stddef.h>

/* The processor's name in a file like /proc/cpuinfo, cut to fit. x86-64 has a "model name"; aarch64 has numbers of implementer
 * and part, of which the common ones have names here. Different cores are told in the file's order. False: unknown; `name`
 * is empty. */
bool nbl__processor_in(const char *path, char *name, size_t size);

#if defined(__aarch64__)
/* The optional instruction sets, as the kernel tells of them. */
typedef struct nbl__arm_feature {
    const char *name, *enables;
    bool found;
} nbl__arm_feature;
/* Index from 0; false past the end. */
bool nbl__arm_feature_get(size_t index, nbl__arm_feature *feature);
#endif

#endif
