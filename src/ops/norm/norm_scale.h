/* norm_scale.h - the attribute `scale` of rmsnorm and layernorm: a factor of y, and so of dy. It is
 * multiplied into the weights, so that it costs no rounding of its own in 16 bits. */
#ifndef NBL_NORM_SCALE_H
#define NBL_NORM_SCALE_H

/* 0 stands for 1. */
static inline float nbl__norm_scale(float scale)
{
    return scale == 0 ? 1 : scale;
}

#endif
