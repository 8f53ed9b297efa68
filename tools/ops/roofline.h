/* roofline.h - what this machine can do at most, measured in the same run as what is compared with it. */
#ifndef NBL_ROOFLINE_H
#define NBL_ROOFLINE_H

#include "ops/ops.h"

typedef struct roofline {
    double f32_flops;  /* fused multiply-adds of f32 per second, times two */
    double bf16_flops; /* the same for products of bf16; as f32 where there is no such instruction */
    double copy_bytes; /* read and written per second by a copy that does not fit the caches */
} roofline;

/* With all threads of the context, on its instruction set. Takes about a second. */
roofline roofline_measure(nbl_context *ctx);
double roofline_seconds(void); /* a steady clock */

#endif
