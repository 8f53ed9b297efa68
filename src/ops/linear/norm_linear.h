/* norm_linear.h - an rmsnorm and the layers that read its y, as one node: the families
 * norm_linear_group and norm_mlp.
 *
 *   norm.y and norm.residual_out are outputs of the node, because others may read them
 *
 * graph/fuse.c makes such a node of two where a device has a kernel for both: one row of x, 4-bit
 * weights, no adapters. There is no backward.
 *
 * infer sets the layers' x and dtype from the norm. Attributes of the layers (scale, threshold,
 * ...) are their own. */
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

/* The layers with the norm's y as their input. */
nbl__linear_group nbl__norm_linear_group_layers(const nbl__norm_linear_group *a);
nbl__mlp nbl__norm_mlp_layers(const nbl__norm_mlp *a);

#endif
