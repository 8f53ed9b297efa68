/* examine.cuh - how the examiners of CUDA kernels give up: at the first call that fails, with its text and line. `ctx` is the
 * nbl_context in scope. */
#ifndef NBL_EXAMINE_CUH
#define NBL_EXAMINE_CUH

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

[[noreturn]] static inline void stop(const char *call, const char *why, int line)
{
    fprintf(stderr, "%s: line %d: %s: %s\n", program_invocation_short_name, line, call, why);
    exit(1);
}

#define CUDA(call_)                                                                                          \
    do {                                                                                                     \
        cudaError_t error_ = (call_);                                                                        \
        if (error_ != cudaSuccess) stop(#call_, cudaGetErrorString(error_), __LINE__);                       \
    } while (0)
#define NIBBLE(call_)                                                                                        \
    do {                                                                                                     \
        if ((call_) != NBL_OK) stop(#call_, nbl_error_message(ctx), __LINE__);                               \
    } while (0)

#endif
