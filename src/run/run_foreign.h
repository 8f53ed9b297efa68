/* run_foreign.h - keys of axolotl that nibble does not have: what happens to them, and why.
 *
 * A key that axolotl knows is never reported as unknown. Either it changes no result here: then
 * it is accepted with a notice. Or it asks for something that nibble does not do: then it is an
 * error with the reason. docs/CONFIG.md has the same tables. */
#ifndef NBL_RUN_FOREIGN_H
#define NBL_RUN_FOREIGN_H

#include "base/base.h"

typedef enum nbl__foreign_kind {
    NBL_FOREIGN_NOTICE, /* changes no result here: accepted with a notice, whatever the value */
    /* would change the result: an error, unless the value is off (false, 0, [], {}) */
    NBL_FOREIGN_REFUSED,
    NBL_FOREIGN_ALWAYS, /* nibble always does it: an error, unless the value is true */
    /* a list of plugins: a notice if all only speed axolotl up or report, else an error */
    NBL_FOREIGN_PLUGINS,
    NBL_FOREIGN_BASE, /* a source other than base_model: an error, unless it is the same */
    NBL_FOREIGN_ROLES /* a map of role names: an error, unless each role maps to itself */
} nbl__foreign_kind;

typedef struct nbl__foreign_group {
    nbl__foreign_kind kind;
    const char *names; /* separated by spaces; * at the beginning or the end matches any text */
    const char *why;   /* the reason, and what to do instead */
} nbl__foreign_group;

typedef enum nbl__foreign_scope {
    NBL_FOREIGN_TOP,
    NBL_FOREIGN_DATASET,   /* an entry of datasets */
    NBL_FOREIGN_TOKENS,    /* special_tokens */
    NBL_FOREIGN_TYPES,     /* values of datasets[].type */
    NBL_FOREIGN_TEMPLATES, /* values of chat_template */
    NBL_FOREIGN_SCOPES
} nbl__foreign_scope;

/* The groups of a scope. If several groups match a name, the first one counts. */
const nbl__foreign_group *nbl__foreign_groups(nbl__foreign_scope scope, int *count);
/* The group of a name; NULL: axolotl does not know the name either. */
const nbl__foreign_group *nbl__foreign_find(nbl__foreign_scope scope, const char *name);
/* Why a plugin is an error; NULL: it changes no result, because it only brings kernels or
 * reports metrics. */
const char *nbl__foreign_plugin(const char *name);
/* True if `name` matches one of `names`: see nbl__foreign_group. */
bool nbl__foreign_matches(const char *names, const char *name);

#endif
