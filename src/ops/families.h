/* families.h - the one list of operators; the table, the tool and the tests expand from it. */
#ifndef NBL_FAMILIES_H
#define NBL_FAMILIES_H

#include "ops/ops.h"

#define NBL_OPS(X)                                                                                           \
    X(linear)                                                                                                \
    X(linear_backward)

#define OP_DECLARATION(name) extern const nbl__op nbl__op_##name;
NBL_OPS(OP_DECLARATION)
#undef OP_DECLARATION

#endif
