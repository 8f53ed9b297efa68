/* dora_norm_cpu.h - the DoRA weight norm on the CPU, for linear layers that
 * compute it in the call. */
#ifndef NBL_DORA_NORM_CPU_H
#define NBL_DORA_NORM_CPU_H

#include "ops/linear/dora_norm.h"

/* Bytes of scratch. Depends on sizes and dtypes; data pointers are not looked at. */
size_t nbl__dora_norm_scratch(const nbl_context *ctx, const nbl__dora_norm *a);
/* Writes a->norm, and a->w_norm2_out where it is wanted. `scratch` is aligned to
 * 64 bytes. */
nbl_status nbl__dora_norm_into(nbl_context *ctx, const nbl__dora_norm *a, uint8_t *scratch);

#endif
