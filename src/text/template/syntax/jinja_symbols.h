/* jinja_symbols.h - the names of a scope while a template is compiled: which slot each of them has, what is
 * loaded on entry, what is stored. The rules are jinja2's (its idtracking); jinja_scope.c applies them. */
#ifndef NBL_JINJA_SYMBOLS_H
#define NBL_JINJA_SYMBOLS_H

#include "text/template/syntax/jinja_ast.h"

/* A function that is being compiled: the owner of slots. */
typedef struct tpl_owner {
    struct tpl_owner *parent;
    int depth;
    tpl_body *body;
    struct ident {
        int level;
        const tpl_string *name;
    } * idents;
    int count, room;
} tpl_owner;

typedef struct ref {
    const tpl_string *name;
    tpl_owner *owner;
    int slot;
} tpl_ref;

typedef struct tpl_symbol_load {
    tpl_load_action action;
    int slot;
    const tpl_string *name;
    tpl_ref from;
} tpl_symbol_load;

typedef struct tpl_symbols {
    struct tpl_symbols *parent;
    int level;
    tpl_owner *owner;
    tpl_ref *refs;
    tpl_symbol_load *loads;
    const tpl_string **stores;
    int ref_count, ref_room, load_count, load_room, store_count, store_room;
} tpl_symbols;

bool nbl__tpl_same_name(const tpl_string *a, const tpl_string *b);
/* The slot of a name at a level of an owner; made when it is new. */
nbl_status nbl__tpl_slot_of(tpl_vm *vm, tpl_owner *owner, int level, const tpl_string *name, int *slot);
/* Through all outer scopes; NULL: nobody knows it. */
const tpl_ref *nbl__tpl_find_ref(const tpl_symbols *s, const tpl_string *name);
/* A name is read, assigned to, or declared as a parameter. */
nbl_status nbl__tpl_symbol_used(tpl_vm *vm, tpl_symbols *s, const tpl_string *name);
nbl_status nbl__tpl_symbol_stored(tpl_vm *vm, tpl_symbols *s, const tpl_string *name);
nbl_status nbl__tpl_symbol_parameter(tpl_vm *vm, tpl_symbols *s, const tpl_string *name);
/* For the branches of an if: a copy for each, then what they did together. */
nbl_status nbl__tpl_copy_symbols(tpl_vm *vm, const tpl_symbols *s, tpl_symbols *copy);
nbl_status nbl__tpl_join_branches(tpl_vm *vm, tpl_symbols *s, const tpl_symbols *branches, int count);

#endif
