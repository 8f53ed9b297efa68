/* linear_group.h - up to four linear layers with the same input (q, k and v; gate
 * and up), forward and backward.
 *
 * Forward computes one output per member. Backward computes one dx, the sum over
 * the members, rounded once. A group costs less than its members alone: x is
 * packed once, and dx is written once.
 *
 * members[0] holds the shared arguments: x, dx, dtype, dropout, seed, seeds,
 * seed_index, first_row, threshold, train_w, accumulate. Its scale applies to members whose own is 0. All
 * other arguments are each member's own. Member i has the dropout mask of the seed
 * nbl__dropout_seed(seed, i).
 *
 * infer counts the members. They must follow each other without a gap; an absent
 * member has a weight of rank 0. */
#ifndef NBL_LINEAR_GROUP_H
#define NBL_LINEAR_GROUP_H

#include "ops/linear/linear.h"

/* The struct of arguments is public: nibble.h documents its fields. infer sets `count`. */
typedef nbl_linear_group nbl__linear_group;

extern const nbl__impl nbl__linear_group_ref, nbl__linear_group_backward_ref;

/* Copies the members, with the shared arguments filled in, so that each is a
 * linear layer by itself. */
void nbl__linear_group_spread(const nbl__linear_group *group, nbl__linear members[NBL_MAX_GROUP]);

#endif
