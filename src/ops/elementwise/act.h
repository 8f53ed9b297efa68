/* act.h - the activations of gated products, h = act(gate)·up. Headers of kernels include this
 * file alone, without the structs of operators. */
#ifndef NBL_ACT_H
#define NBL_ACT_H

/* silu: x·sigmoid(x). gelu: the exact one, with erf. gelu_tanh: its approximation. */
typedef enum nbl__act { NBL_ACT_SILU, NBL_ACT_GELU, NBL_ACT_GELU_TANH } nbl__act;

#endif
