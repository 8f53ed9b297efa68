/* expert_order.h - sorts the pairs of token and expert by expert, so that each expert's rows are consecutive.
 *
 *   experts i32 [tokens, k]    of each token (router.h)
 *   pair = token · k + slot
 *
 *   offsets i32 [E + 1]        sorted rows offsets[e] … offsets[e + 1] - 1 are expert e's
 *   pairs i32 [tokens · k]     the pair of each sorted row
 *   rows i32 [tokens · k]      the sorted row of each pair: rows[pairs[i]] = i
 *
 * A counting sort, stable in the pair: tokens of one expert keep their order, so the result is a function of `experts`
 * alone. Every pair is kept: an expert has no capacity. offsets[e + 1] - offsets[e] is the load of expert e. There is
 * no gradient. */
#ifndef NBL_EXPERT_ORDER_H
#define NBL_EXPERT_ORDER_H

#include "ops/ops.h"

typedef struct nbl__expert_order {
    int64_t count; /* E */
    nbl_tensor experts;
    nbl_tensor offsets, pairs, rows;
} nbl__expert_order;

/* Checks, for an operator that runs on the host, that offsets and pairs, which come from memory, are indices: offsets
 * do not fall, from 0 to the number of pairs, and every pair exists. */
nbl_status nbl__expert_order_check(nbl_context *ctx, const char *op, const nbl_tensor *offsets,
                                   const nbl_tensor *pairs);

#endif
