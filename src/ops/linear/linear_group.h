/* linear_group.h - linear layers that share their input (q, k and v; gate and up), forward and backward: the
 * outputs of each, and one dx, their sum, rounded once.
 *
 * The shared arguments are those of members[0]: x, dx, dtype, dropout, seed, first_row, threshold, train_w, accumulate,
 * and scale for members whose own is 0. All else is each member's own. The mask of member i is that of the seed
 * nbl__dropout_seed(seed, i). Members follow each other without a hole; infer counts them. */
#ifndef NBL_LINEAR_GROUP_H
#define NBL_LINEAR_GROUP_H

#include "ops/linear/linear.h"

enum { NBL_MAX_GROUP = 4 };

typedef struct nbl__linear_group {
    int count; /* set by infer */
    nbl__linear members[NBL_MAX_GROUP];
} nbl__linear_group;

extern const nbl__impl nbl__linear_group_cpu, nbl__linear_group_backward_cpu;
extern const nbl__impl nbl__linear_group_ref, nbl__linear_group_backward_ref;

/* The members as layers of their own: with the shared arguments in each. */
void nbl__linear_group_spread(const nbl__linear_group *group, nbl__linear members[NBL_MAX_GROUP]);

#endif
