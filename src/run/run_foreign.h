/* run_foreign.h - keys of axolotl that are no keys of nibble, by what happens to them and why.
 *
 * A known key is never "no such key": it has no effect here and is told in a notice, or it asks for something that
 * nibble does not do and is refused with the reason. docs/CONFIG.md has the same tables. */
#ifndef NBL_RUN_FOREIGN_H
#define NBL_RUN_FOREIGN_H

#include "base/base.h"

typedef enum nbl__foreign_kind {
    NBL_FOREIGN_NOTICE,  /* changes no result here: accepted with a notice, whatever the value */
    NBL_FOREIGN_REFUSED, /* changes the result: refused, unless the value is off (false, 0, [], {}) */
    NBL_FOREIGN_ALWAYS,  /* is always so: refused, unless the value is true */
    NBL_FOREIGN_PLUGINS, /* a list of plugins: a notice if all of them only speed axolotl up or report */
    NBL_FOREIGN_BASE,    /* another source than base_model: refused, unless it is the same */
    NBL_FOREIGN_ROLES    /* roles by other names: refused, unless each stands for itself alone */
} nbl__foreign_kind;

typedef struct nbl__foreign_group {
    nbl__foreign_kind kind;
    const char *names; /* between spaces; * stands for any beginning or any end */
    const char *why;   /* and what to do */
} nbl__foreign_group;

typedef enum nbl__foreign_scope {
    NBL_FOREIGN_TOP,
    NBL_FOREIGN_DATASET,   /* an entry of datasets */
    NBL_FOREIGN_TOKENS,    /* special_tokens */
    NBL_FOREIGN_TYPES,     /* values of datasets[].type */
    NBL_FOREIGN_TEMPLATES, /* values of chat_template */
    NBL_FOREIGN_SCOPES
} nbl__foreign_scope;

/* The groups of a scope; the first group that has a name counts. */
const nbl__foreign_group *nbl__foreign_groups(nbl__foreign_scope scope, int *count);
/* NULL: not known. */
const nbl__foreign_group *nbl__foreign_find(nbl__foreign_scope scope, const char *name);
/* Why a plugin is refused; NULL: it changes no result, as it brings kernels or reports metrics. */
const char *nbl__foreign_plugin(const char *name);
/* Whether `name` is one of `names`, words between spaces with * at the beginning or the end. */
bool nbl__foreign_matches(const char *names, const char *name);

#endif
