/* jinja_path.h - attributes by path ("a.b.0"), which many filters of sequences take. */
#ifndef NBL_JINJA_PATH_H
#define NBL_JINJA_PATH_H

#include "text/template/runtime/jinja_runtime.h"

typedef struct tpl_path {
    tpl_value *parts;
    int64_t count;
    tpl_value fallback; /* MISSING: none */
    bool fold;          /* texts in lower case */
} tpl_path;

/* `attribute`: a text with dots, any other key, or none (then the item itself is meant). */
nbl_status nbl__tpl_make_path(tpl_vm *vm, tpl_value attribute, bool fold, tpl_path *p);
nbl_status nbl__tpl_follow(tpl_vm *vm, const tpl_path *p, tpl_value item, tpl_value *result);

#endif
