/* jinja_symbols.c - symbol tables of scopes; see jinja_symbols.h.
 *
 *   refs     name → slot, for every name that the scope uses or stores
 *   loads    slot → how it is filled when the scope is entered (tpl_load_action); one per slot
 *   stores   names that the scope assigns to
 *
 * Look-ups are linear, because scopes are small. The work is counted (nbl__tpl_work), so that a
 * hostile template with many names reaches the limit. */
#include "text/template/syntax/jinja_symbols.h"

/* Makes room for one more item in an array of the arena. */
#define ROOM(vm, items, count, room) grow_array(vm, (void **)&(items), sizeof *(items), count, &(room))

/* Doubles an array that is full. The old one stays in the arena. */
static nbl_status grow_array(tpl_vm *vm, void **items, size_t size, int count, int *room)
{
    if (count < *room) return NBL_OK;
    int larger = *room ? *room * 2 : 8;
    void *grown = nbl__tpl_alloc_array(vm, (size_t)larger, size);
    if (grown == NULL) return vm->status;
    if (count) memcpy(grown, *items, (size_t)count * size);
    *items = grown;
    *room = larger;
    return NBL_OK;
}

bool nbl__tpl_same_name(const tpl_string *a, const tpl_string *b)
{
    return a == b || (a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0);
}

/* ---- symbols ---- */

/* The slot of a name on one level: the same for each scope of that level, so {% set x %} in two
 * branches fills one slot. */
nbl_status nbl__tpl_slot_of(tpl_vm *vm, tpl_owner *owner, int level, const tpl_string *name, int *slot)
{
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)owner->count / 8 + 1));
    for (int i = 0; i < owner->count; i++)
        if (owner->idents[i].level == level && nbl__tpl_same_name(owner->idents[i].name, name))
            return *slot = i, NBL_OK;
    NBL_TRY(ROOM(vm, owner->idents, owner->count, owner->room));
    owner->idents[owner->count] = (struct ident){level, name};
    *slot = owner->count++;
    owner->body->slots = owner->count;
    return NBL_OK;
}

/* Searches the scope, then the scopes around it. */
const tpl_ref *nbl__tpl_find_ref(const tpl_symbols *s, const tpl_string *name)
{
    for (; s; s = s->parent)
        for (int i = 0; i < s->ref_count; i++)
            if (nbl__tpl_same_name(s->refs[i].name, name)) return &s->refs[i];
    return NULL;
}

/* True if this scope itself refers to the name. */
static bool has_ref(const tpl_symbols *s, const tpl_string *name)
{
    for (int i = 0; i < s->ref_count; i++)
        if (nbl__tpl_same_name(s->refs[i].name, name)) return true;
    return false;
}

/* Sets what a name refers to. A later definition of the same name replaces the earlier one. */
static nbl_status set_ref(tpl_vm *vm, tpl_symbols *s, tpl_ref r)
{
    for (int i = 0; i < s->ref_count; i++)
        if (nbl__tpl_same_name(s->refs[i].name, r.name)) return s->refs[i] = r, NBL_OK;
    NBL_TRY(ROOM(vm, s->refs, s->ref_count, s->ref_room));
    s->refs[s->ref_count++] = r;
    return NBL_OK;
}

/* Sets how a slot is filled on entry. There is one entry per slot: the last call counts. */
static nbl_status set_load(tpl_vm *vm, tpl_symbols *s, tpl_symbol_load load)
{
    for (int i = 0; i < s->load_count; i++)
        if (s->loads[i].slot == load.slot) return s->loads[i] = load, NBL_OK;
    NBL_TRY(ROOM(vm, s->loads, s->load_count, s->load_room));
    s->loads[s->load_count++] = load;
    return NBL_OK;
}

static bool has_store(const tpl_symbols *s, const tpl_string *name)
{
    for (int i = 0; i < s->store_count; i++)
        if (nbl__tpl_same_name(s->stores[i], name)) return true;
    return false;
}

static nbl_status add_store(tpl_vm *vm, tpl_symbols *s, const tpl_string *name)
{
    if (has_store(s, name)) return NBL_OK;
    NBL_TRY(ROOM(vm, s->stores, s->store_count, s->store_room));
    s->stores[s->store_count++] = name;
    return NBL_OK;
}

/* Gives a name a slot in this scope, filled on entry by `action`. */
static nbl_status define(tpl_vm *vm, tpl_symbols *s, const tpl_string *name, tpl_load_action action,
                         const tpl_ref *from)
{
    tpl_symbol_load load = {.action = action, .name = name};
    if (from) load.from = *from;
    NBL_TRY(nbl__tpl_slot_of(vm, s->owner, s->level, name, &load.slot));
    NBL_TRY(set_ref(vm, s, (tpl_ref){name, s->owner, load.slot}));
    return set_load(vm, s, load);
}

/* A name that is read: found further out, or else resolved by name when the scope is entered. */
nbl_status nbl__tpl_symbol_used(tpl_vm *vm, tpl_symbols *s, const tpl_string *name)
{
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)s->ref_count / 8 + 1));
    return nbl__tpl_find_ref(s, name) ? NBL_OK : define(vm, s, name, LOAD_RESOLVE, NULL);
}

/* A name that is assigned to gets a slot here. It begins with the outer variable's value, or
 * empty. */
nbl_status nbl__tpl_symbol_stored(tpl_vm *vm, tpl_symbols *s, const tpl_string *name)
{
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)s->ref_count / 8 + 1));
    NBL_TRY(add_store(vm, s, name));
    if (has_ref(s, name)) return NBL_OK;
    const tpl_ref *outer = nbl__tpl_find_ref(s->parent, name);
    return define(vm, s, name, outer ? LOAD_ALIAS : LOAD_UNDEFINED, outer);
}

/* A parameter's slot is filled by the call. */
nbl_status nbl__tpl_symbol_parameter(tpl_vm *vm, tpl_symbols *s, const tpl_string *name)
{
    NBL_TRY(add_store(vm, s, name));
    return define(vm, s, name, LOAD_PARAMETER, NULL);
}

/* A copy for one branch of an if: changes in the branch do not show in the others. */
nbl_status nbl__tpl_copy_symbols(tpl_vm *vm, const tpl_symbols *s, tpl_symbols *copy)
{
    *copy = *s;
    copy->ref_room = copy->ref_count, copy->load_room = copy->load_count,
    copy->store_room = copy->store_count;
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)(s->ref_count + s->load_count + s->store_count)));
    NBL_TRY(TPL_NEW(vm, copy->refs, s->ref_count));
    NBL_TRY(TPL_NEW(vm, copy->loads, s->load_count));
    NBL_TRY(TPL_NEW(vm, copy->stores, s->store_count));
    if (s->ref_count) memcpy(copy->refs, s->refs, (size_t)s->ref_count * sizeof *s->refs);
    if (s->load_count) memcpy(copy->loads, s->loads, (size_t)s->load_count * sizeof *s->loads);
    if (s->store_count) memcpy(copy->stores, s->stores, (size_t)s->store_count * sizeof *s->stores);
    return NBL_OK;
}

/* A name that only some branches store may be unset afterwards. So it is loaded on entry: from the
 * outer scope, or from the variables of the template. Example: after {% if a %}{% set x = 1 %}{%
 * endif %} the text {{ x }} prints the caller's x where a is false.
 *
 * jinja2 does this for every name that is new in a branch, also if all branches store it. */
nbl_status nbl__tpl_join_branches(tpl_vm *vm, tpl_symbols *s, const tpl_symbols *branches, int count)
{
    const tpl_string **stores = NULL;
    int fresh = 0, room = 0;
    for (int b = 0; b < count; b++) {
        NBL_TRY(nbl__tpl_work(vm, (uint64_t)branches[b].ref_count * (uint64_t)(s->ref_count / 8 + 1)));
        for (int i = 0; i < branches[b].store_count; i++) {
            if (has_store(s, branches[b].stores[i])) continue;
            NBL_TRY(ROOM(vm, stores, fresh, room));
            stores[fresh++] = branches[b].stores[i];
        }
    }
    for (int b = 0; b < count; b++) {
        for (int i = 0; i < branches[b].ref_count; i++) NBL_TRY(set_ref(vm, s, branches[b].refs[i]));
        for (int i = 0; i < branches[b].load_count; i++) NBL_TRY(set_load(vm, s, branches[b].loads[i]));
        for (int i = 0; i < branches[b].store_count; i++) NBL_TRY(add_store(vm, s, branches[b].stores[i]));
    }
    for (int i = 0; i < fresh; i++) {
        const tpl_ref *target = nbl__tpl_find_ref(s, stores[i]),
                      *outer = nbl__tpl_find_ref(s->parent, stores[i]);
        tpl_symbol_load load = {outer ? LOAD_ALIAS : LOAD_RESOLVE, target->slot, stores[i], {0}};
        if (outer) load.from = *outer;
        NBL_TRY(set_load(vm, s, load));
    }
    return NBL_OK;
}
