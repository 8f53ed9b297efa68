/* hub.h - a path that is missing may be a name on the Hugging Face hub: the hint says how to get the files. */
#ifndef NBL_HUB_H
#define NBL_HUB_H

#include "base/base.h"

typedef enum nbl__hub_kind { NBL_HUB_MODEL, NBL_HUB_DATASET } nbl__hub_kind;

/* Adds the hint to the failure just recorded if `path` has the form ORG/NAME (or is a model's config in there) and no
 * folder ORG exists. A copy in the hub's cache is named. Returns `code`. */
nbl_status nbl__hub_hint(nbl_context *ctx, nbl_status code, const char *path, nbl__hub_kind kind);

#endif
