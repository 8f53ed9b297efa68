/* families.h - the one list of operator families; the table, the tool and the tests expand from it. */
#ifndef NBL_FAMILIES_H
#define NBL_FAMILIES_H

#include "ops/ops.h"

#define NBL_FAMILIES(X) X(linear) X(attention) X(attention_decode)

#define FAMILY_DECLARATION(name) extern const nbl__family nbl__##name##_family;
NBL_FAMILIES(FAMILY_DECLARATION)
#undef FAMILY_DECLARATION

#endif
