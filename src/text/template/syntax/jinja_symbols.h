/* jinja_symbols.h - the symbol table of one scope while a template is compiled.
 *
 * It has the slot of each name, the slots to fill on entry, and the names that the scope stores.
 * The rules are those of jinja2's module idtracking. jinja_scope.c walks the nodes and applies
 * them.
 *
 *     owner (function)          idents: [0] x level 0, [1] z level 0, [2] y level 1, [3] x level 1
 *       symbols, level 0        refs: x -> 0, z -> 1    loads: 0 UNDEFINED, 1 RESOLVE    stores: x
 *         symbols, level 1      refs: y -> 2, x -> 3    loads: 2 PARAMETER, 3 ALIAS of 0  stores: y, x
 *
 * Invariant: each name has at most one entry in refs and stores, each slot at most one in loads. */
#ifndef NBL_JINJA_SYMBOLS_H
#define NBL_JINJA_SYMBOLS_H

#include "text/template/syntax/jinja_ast.h"

/* A function that is being compiled. It owns the slots of all its scopes; slot i is idents[i].
 * Scopes side by side have the same level: they share the slot of a name, and never live at the
 * same time. */
typedef struct tpl_owner {
    struct tpl_owner *parent; /* the enclosing function */
    int depth;                /* number of enclosing functions */
    tpl_body *body;
    struct ident {
        int level; /* of the scope: the same name has another slot in another scope */
        const tpl_string *name;
    } * idents;
    int count, room;
} tpl_owner;

/* The variable that a name refers to. */
typedef struct ref {
    const tpl_string *name;
    tpl_owner *owner;
    int slot;
} tpl_ref;

/* A slot to fill on entry; becomes a tpl_load. */
typedef struct tpl_symbol_load {
    tpl_load_action action;
    int slot;
    const tpl_string *name;
    tpl_ref from;
} tpl_symbol_load;

/* One scope. Look-ups go from the scope to its parents. All arrays are in the arena. */
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
/* Finds or makes the slot of a name at a level. */
nbl_status nbl__tpl_slot_of(tpl_vm *vm, tpl_owner *owner, int level, const tpl_string *name, int *slot);
/* Finds a name in a scope or an outer one. Returns NULL if no scope knows it. */
const tpl_ref *nbl__tpl_find_ref(const tpl_symbols *s, const tpl_string *name);
/* Record that a name is read, assigned to, or declared as a parameter. Reading finds an outer
 * variable or makes a RESOLVE slot; assigning makes a slot of this scope, an ALIAS of an outer
 * variable if there is one. */
nbl_status nbl__tpl_symbol_used(tpl_vm *vm, tpl_symbols *s, const tpl_string *name);
nbl_status nbl__tpl_symbol_stored(tpl_vm *vm, tpl_symbols *s, const tpl_string *name);
nbl_status nbl__tpl_symbol_parameter(tpl_vm *vm, tpl_symbols *s, const tpl_string *name);
/* The branches of an `if` share the scope around them. Each branch works on a copy of the symbols;
 * nbl__tpl_join_branches merges the copies into `s`. */
nbl_status nbl__tpl_copy_symbols(tpl_vm *vm, const tpl_symbols *s, tpl_symbols *copy);
nbl_status nbl__tpl_join_branches(tpl_vm *vm, tpl_symbols *s, const tpl_symbols *branches, int count);

#endif
