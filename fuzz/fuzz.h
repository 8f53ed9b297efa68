/* fuzz.h - what the fuzz targets share: one context for all runs, and a check that is never compiled
 * out. A target is LLVMFuzzerTestOneInput; libFuzzer drives it (make fuzz), or the replay of the
 * committed corpus (make test). */
#ifndef NBL_FUZZ_H
#define NBL_FUZZ_H

#include <stdlib.h>

#include "base/base.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline nbl_context *fuzz_context(void)
{
    static nbl_context *ctx;
    nbl_context_options options = {NBL_OPTIONS(nbl_context_options), .threads = 1};
    if (ctx == NULL && nbl_context_create(&options, &ctx) != NBL_OK) abort();
    return ctx;
}

#define MUST(condition)                                                                                      \
    do {                                                                                                     \
        if (!(condition)) __builtin_trap();                                                                  \
    } while (0)

#endif
