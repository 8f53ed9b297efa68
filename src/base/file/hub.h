/* hub.h - hints for a missing path that looks like a name on the Hugging Face hub: how to get
 * the files. */
#ifndef NBL_HUB_H
#define NBL_HUB_H

#include "base/base.h"

typedef enum nbl__hub_kind { NBL_HUB_MODEL, NBL_HUB_DATASET } nbl__hub_kind;

/* Adds a hint to the failure just recorded if `code` is NBL_ERROR_NOT_FOUND, `path` has the form
 * ORG/NAME (or ORG/NAME/config.json, ORG/NAME/adapter_config.json), and no folder ORG exists.
 * The hint names the copy in the hub's cache, or else the download command. Returns `code`. */
nbl_status nbl__hub_hint(nbl_context *ctx, nbl_status code, const char *path, nbl__hub_kind kind);

#endif
