/* norm_linear.h - an rmsnorm and the layers that take its y: the families norm_linear_group and
 * norm_mlp.
 *
 *   y of the norm and residual_out are results, too: others may read them.
 *
 * graph/fuse.c makes such a call of two nodes where a device has a kernel for both: one row of
 * x, 4-bit weights without adapters. There is no backward.
 *
 * The fields of the layers' own x and dtype are set by infer; the layers' scales, thresholds and
 * the like are theirs. */
#ifndef NBL_NORM_LINEAR_H
#define NBL_NORM_LINEAR_H

#include "ops/linear/linear_group.h"
#include "ops/linear/mlp.h"
#include "ops/norm/rmsnorm.h"

typedef struct nbl__norm_linear_group {
    nbl__rmsnorm norm;
    nbl__linear_group layers;
} nbl__norm_linear_group;

typedef struct nbl__norm_mlp {
    nbl__rmsnorm norm;
    nbl__mlp layers;
} nbl__norm_mlp;

/* The layers as they take the norm's y. */
nbl__linear_group nbl__norm_linear_group_layers(const nbl__norm_linear_group *a);
nbl__mlp nbl__norm_mlp_layers(const nbl__norm_mlp *a);

#endif
