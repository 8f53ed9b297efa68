/* jinja_path.h - the argument `attribute` of filters such as map and sort: a path like "a.b.0". */
#ifndef NBL_JINJA_PATH_H
#define NBL_JINJA_PATH_H

#include "text/template/runtime/jinja_runtime.h"

/* "a.b.0" has the parts 'a', 'b' and 0. Parts are looked up as item['a']['b'][0], so attributes are
 * found too. */
typedef struct tpl_path {
    tpl_value *parts; /* strings and integers */
    int64_t count;
    tpl_value fallback; /* used if the attribute is undefined; MISSING: none */
    bool fold;          /* strings are converted to lower case, for comparisons without case */
} tpl_path;

/* Makes a path. `attribute` is a string with dots, any other key, or none. None means the item
 * itself. */
nbl_status nbl__tpl_make_path(tpl_vm *vm, tpl_value attribute, bool fold, tpl_path *p);
/* Follows the path from an item. */
nbl_status nbl__tpl_follow(tpl_vm *vm, const tpl_path *p, tpl_value item, tpl_value *result);

#endif
