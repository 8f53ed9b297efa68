/* split_heads.h - takes heads apart whose rows lie together in one product:
 *
 *   x       [tokens, heads·(widths + rest)]       of each head: part 0, part 1, part 2, the rest
 *   front   [tokens, heads·widths]                part 0 of all heads, then part 1 of all, then part 2
 *   rest    [tokens, heads·rest]                  the rest of all heads
 *
 * with widths = width0 + width1 + width2 (0: no such part). Examples: queries and their gates, row by
 * row of a head, or q, k, v and z of a key head. Backward writes dfront and drest back into dx. Pure
 * copies. */
#ifndef NBL_SPLIT_HEADS_H
#define NBL_SPLIT_HEADS_H

#include "ops/ops.h"

enum { NBL_SPLIT_PARTS = 3 };

typedef struct nbl__split_heads {
    nbl_dtype dtype;
    int64_t heads, widths[NBL_SPLIT_PARTS];
    nbl_tensor x, front, rest;
    nbl_tensor dfront, drest, dx;
} nbl__split_heads;

#endif
