/* act.h - the activations that gate a product. */
#ifndef NBL_ACT_H
#define NBL_ACT_H

/* gelu is the one with erf */
typedef enum nbl__act { NBL_ACT_SILU, NBL_ACT_GELU, NBL_ACT_GELU_TANH } nbl__act;

#endif
