/* dora_norm_cpu.h - DoRA's norm, for the layers that compute it themselves. */
#ifndef NBL_DORA_NORM_CPU_H
#define NBL_DORA_NORM_CPU_H

#include "ops/linear/dora_norm.h"

/* Sizes count, data pointers do not. */
size_t nbl__dora_norm_scratch(const nbl_context *ctx, const nbl__dora_norm *a);
nbl_status nbl__dora_norm_into(nbl_context *ctx, const nbl__dora_norm *a, uint8_t *scratch);

#endif
