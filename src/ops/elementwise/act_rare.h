/* act_rare.h - the activations that few models have, and their slopes, in f64: for references and for
 * scalar code. act_rare.inc has them as vectors, act.cuh on a device. */
#ifndef NBL_ACT_RARE_H
#define NBL_ACT_RARE_H

#include <math.h>

#include "ops/elementwise/act.h"

/* act(x); *slope is its derivative, as torch takes it where it jumps. Beyond ±100 the correction of
 * quick_gelu's slope is 0, and is not multiplied by an infinity. */
static inline double nbl__act_rare(nbl__act act, double x, double *slope)
{
    double positive = x < 0 ? 0 : x, s;
    switch (act) {
    case NBL_ACT_RELU: return *slope = x > 0, positive;
    case NBL_ACT_RELU2: return *slope = 2 * positive, positive * positive;
    case NBL_ACT_QUICK_GELU:
        s = 1 / (1 + exp(-1.702 * x));
        *slope = s * (1 + 1.702 * fmax(-100, fmin(100, x)) * (1 - s));
        return x * s;
    case NBL_ACT_SIGMOID:
        s = 1 / (1 + exp(-x));
        *slope = s * (1 - s);
        return s;
    default: /* NBL_ACT_TANH */ s = tanh(x); return *slope = 1 - s * s, s;
    }
}

#endif
