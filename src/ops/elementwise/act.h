/* act.h - the activations of gated products, h = act(gate)·up. Headers of kernels include this
 * file alone, without the structs of operators. */
#ifndef NBL_ACT_H
#define NBL_ACT_H

typedef enum nbl__act {
    NBL_ACT_SILU,      /* x·sigmoid(x) */
    NBL_ACT_GELU,      /* the exact one, with erf */
    NBL_ACT_GELU_TANH, /* its approximation */
    /* from here on those of act_rare.h */
    NBL_ACT_RELU,       /* max(x, 0) */
    NBL_ACT_RELU2,      /* max(x, 0)² */
    NBL_ACT_QUICK_GELU, /* x·sigmoid(1.702·x) */
    NBL_ACT_SIGMOID,
    NBL_ACT_TANH
} nbl__act;

/* True if few models have this activation. Kernels that have a copy per activation share one for
 * these. */
static inline int nbl__act_is_rare(int act)
{
    return act > NBL_ACT_GELU_TANH;
}

#endif
