/* jinja_value.c - memory, failures, limits, and the functions that make values; see jinja_value.h.
 *
 * A dictionary is a list of entries in the order of insertion, and, above TPL_SMALL_DICT entries, a
 * hash table of indices into the list:
 *
 *     entries   [0] key, value, hash   [1] …   [2] …
 *     table     0 0 2 0 1 0 3 0        index + 1; 0: empty; open addressing, linear probing
 *
 * Entries are never removed, so a search ends at the first empty slot. The table has twice as many
 * slots as the list has room for entries. So it is at most half full. */
#include "text/template/runtime/jinja_value.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/stack.h"

/* ---- failures and limits ---- */

/* Records the first failure. Later ones follow from it, and are dropped. */
static nbl_status record(tpl_vm *vm, nbl_status status, const char *format, va_list arguments)
{
    if (vm->status != NBL_OK) return vm->status; /* the first one counts */
    vm->status = status;
    vsnprintf(vm->message, sizeof vm->message, format, arguments);
    return status;
}

/* NBL_ERROR_FORMAT stands for an error of the template or of its data. */
nbl_status nbl__tpl_raise(tpl_vm *vm, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    nbl_status status = record(vm, NBL_ERROR_FORMAT, format, arguments);
    va_end(arguments);
    return status;
}

/* NBL_ERROR_UNSUPPORTED stands for a limit of nibble: jinja2 might have rendered it. */
nbl_status nbl__tpl_refuse(tpl_vm *vm, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    nbl_status status = record(vm, NBL_ERROR_UNSUPPORTED, format, arguments);
    va_end(arguments);
    return status;
}

/* jinja2's messages: "x is undefined", "'dict object' has no attribute 'y'", "list object has no
 * element 3". */
nbl_status nbl__tpl_raise_undefined(tpl_vm *vm, tpl_value v)
{
    assert(v.type == TPL_UNDEFINED);
    const tpl_undefined *u = v.undefined;
    if (u->hint) return nbl__tpl_raise(vm, "%s", u->hint);
    const char *name = nbl__tpl_shown(vm, u->name);
    if (u->owner == NULL) return nbl__tpl_raise(vm, "%s is undefined", name);
    if (u->name.type != TPL_STRING) return nbl__tpl_raise(vm, "%s has no element %s", u->owner, name);
    return nbl__tpl_raise(vm, "'%s' has no attribute %s", u->owner, name);
}

/* The progress callback is called every TPL_POLL_STEPS steps, so a long rendering can be
 * cancelled. */
nbl_status nbl__tpl_work(tpl_vm *vm, uint64_t steps)
{
    vm->steps += steps;
    if (vm->steps - vm->polled >= TPL_POLL_STEPS) {
        vm->polled = vm->steps;
        nbl_status status = nbl__progress_poll(vm->ctx, "rendering a chat template");
        if (status != NBL_OK) return vm->status = status;
    }
    if (vm->steps <= TPL_MAX_STEPS) return NBL_OK;
    return nbl__tpl_refuse(vm, "the template runs for too long: more than %d steps", TPL_MAX_STEPS);
}

/* Every recursive function calls this, and counts the depth down when it leaves. */
nbl_status nbl__tpl_enter(tpl_vm *vm)
{
    if (++vm->depth > TPL_MAX_DEPTH)
        return nbl__tpl_refuse(vm, "nested too deep: more than %d levels of evaluation", TPL_MAX_DEPTH);
    if (nbl__stack_left() < TPL_STACK_RESERVE)
        return nbl__tpl_refuse(vm, "nested too deep: %d levels of evaluation fill the stack of this thread",
                               vm->depth);
    return nbl__tpl_work(vm, 1);
}

nbl_status nbl__tpl_no_memory(tpl_vm *vm)
{
    if (vm->status == NBL_OK) {
        vm->status = NBL_ERROR_MEMORY;
        snprintf(vm->message, sizeof vm->message, "out of memory");
    }
    return vm->status;
}

/* The limit is checked before memory is taken. 16 bytes per allocation stand for the arena's
 * overhead. */
void *nbl__tpl_alloc(tpl_vm *vm, size_t size)
{
    if (size > TPL_MAX_MEMORY || vm->memory + size > TPL_MAX_MEMORY) {
        nbl__tpl_refuse(vm, "the template takes too much memory: more than %d MiB", TPL_MAX_MEMORY >> 20);
        return NULL;
    }
    vm->memory += size + 16;
    void *memory = nbl__arena_alloc(&vm->arena, size);
    if (memory == NULL) (void)nbl__tpl_no_memory(vm);
    return memory;
}

/* An overflow of the product becomes a size that no limit allows. */
void *nbl__tpl_alloc_array(tpl_vm *vm, size_t count, size_t element)
{
    size_t size;
    if (__builtin_mul_overflow(count, element, &size)) size = SIZE_MAX / 2;
    return nbl__tpl_alloc(vm, size);
}

/* ---- strings ---- */

/* Counts the characters: all bytes but UTF-8 continuation bytes. Text without any has size ==
 * length, which makes indices fast (nbl__tpl_offset). */
nbl_status nbl__tpl_string(tpl_vm *vm, const char *bytes, size_t size, tpl_value *result)
{
    tpl_string *string;
    NBL_TRY(tpl_read(vm, size));
    NBL_TRY(TPL_NEW(vm, string, 1));
    *string = (tpl_string){bytes, size, size};
    for (size_t i = 0; i < size; i++) string->length -= ((unsigned char)bytes[i] & 0xc0) == 0x80;
    *result = tpl_of_string(string);
    return NBL_OK;
}

/* The copy lives in the arena, so the caller's bytes may change afterwards. */
nbl_status nbl__tpl_string_copy(tpl_vm *vm, const char *bytes, size_t size, tpl_value *result)
{
    char *copy;
    NBL_TRY(TPL_NEW(vm, copy, size));
    if (size) memcpy(copy, bytes, size);
    return nbl__tpl_string(vm, copy, size, result);
}

nbl_status nbl__tpl_cstring(tpl_vm *vm, const char *text, tpl_value *result)
{
    return nbl__tpl_string(vm, text, strlen(text), result);
}

/* O(1) for ASCII, otherwise linear: a string has no index of its characters. */
size_t nbl__tpl_offset(const tpl_string *string, int64_t at)
{
    assert(at >= 0 && (size_t)at <= string->length && string->length <= string->size);
    if (string->size == string->length) return (size_t)at;
    size_t offset = 0;
    for (int size; at > 0; at--) {
        tpl_char(string->bytes + offset, &size);
        offset += (size_t)size;
    }
    return offset;
}

/* ---- lists ---- */

/* The items are zeroed: all MISSING until the caller fills them in. */
nbl_status nbl__tpl_list(tpl_vm *vm, tpl_type type, int64_t count, tpl_value *result, tpl_value **items)
{
    tpl_list *list;
    NBL_TRY(TPL_NEW(vm, list, 1));
    NBL_TRY(TPL_NEW(vm, list->items, count));
    list->count = count;
    *items = list->items;
    *result = (tpl_value){.type = (uint8_t)type, .list = list};
    return NBL_OK;
}

nbl_status nbl__tpl_pair(tpl_vm *vm, tpl_value a, tpl_value b, tpl_value *result)
{
    tpl_value *items;
    NBL_TRY(nbl__tpl_list(vm, TPL_TUPLE, 2, result, &items));
    items[0] = a;
    items[1] = b;
    return NBL_OK;
}

/* Appends an item. The array doubles in the arena. */
nbl_status nbl__tpl_push(tpl_vm *vm, tpl_items *list, tpl_value item)
{
    if (list->count == list->room) {
        int64_t room = list->room ? list->room * 2 : 8;
        tpl_value *items;
        NBL_TRY(TPL_NEW(vm, items, room));
        if (list->count) memcpy(items, list->items, (size_t)list->count * sizeof *items);
        list->items = items;
        list->room = room;
    }
    list->items[list->count++] = item;
    return NBL_OK;
}

/* The list shares the array of `list`; nothing is copied. */
nbl_status nbl__tpl_finish(tpl_vm *vm, const tpl_items *list, tpl_type type, tpl_value *result)
{
    assert(type == TPL_LIST || type == TPL_TUPLE);
    tpl_list *made;
    NBL_TRY(TPL_NEW(vm, made, 1));
    *made = (tpl_list){.items = list->items, .count = list->count};
    *result = (tpl_value){.type = (uint8_t)type, .list = made};
    return NBL_OK;
}

/* ---- undefined, functions ---- */

/* hint, owner and name are only read when the value is used: nbl__tpl_raise_undefined. */
nbl_status nbl__tpl_undefined(tpl_vm *vm, const char *hint, const char *owner, tpl_value name,
                              tpl_value *result)
{
    tpl_undefined *undefined;
    NBL_TRY(TPL_NEW(vm, undefined, 1));
    *undefined = (tpl_undefined){hint, owner, name};
    *result = (tpl_value){.type = TPL_UNDEFINED, .undefined = undefined};
    return NBL_OK;
}

nbl_status nbl__tpl_function(tpl_vm *vm, const char *name, tpl_call_fn call, const char *owner,
                             tpl_value self, tpl_value *result)
{
    tpl_function *function;
    NBL_TRY(TPL_NEW(vm, function, 1));
    *function = (tpl_function){name, call, self, owner};
    *result = (tpl_value){.type = TPL_FUNCTION, .function = function};
    return NBL_OK;
}

/* Python's names, because templates and messages show them. */
const char *nbl__tpl_type_name(tpl_value v)
{
    switch ((tpl_type)v.type) {
    case TPL_MISSING: return "missing";
    case TPL_UNDEFINED: return "Undefined";
    case TPL_NONE: return "NoneType";
    case TPL_BOOL: return "bool";
    case TPL_INT:
    case TPL_BIG: return "int";
    case TPL_FLOAT: return "float";
    case TPL_STRING: return v.markup ? "Markup" : "str";
    case TPL_LIST: return "list";
    case TPL_TUPLE: return v.list->group ? "_GroupTuple" : "tuple";
    case TPL_DICT: return "dict";
    case TPL_VIEW:
        return v.view == TPL_KEYS ? "dict_keys" : v.view == TPL_VALUES ? "dict_values" : "dict_items";
    case TPL_RANGE: return "range";
    case TPL_ITERATOR: return v.iterator->type;
    case TPL_FUNCTION: return v.function->owner ? "builtin_function_or_method" : "function";
    case TPL_MACRO: return "Macro";
    case TPL_NAMESPACE: return "TemplateNamespace";
    case TPL_LOOP: return "LoopContext";
    case TPL_OBJECT: break;
    }
    static const char *const names[] = {"Cycler", "Joiner", "TemplateReference", "BlockReference"};
    return names[v.object->kind];
}

/* ---- dictionaries ---- */

/* Spreads the bits of a hash, for the table uses the low ones only (the finalizer of MurmurHash3,
 * cut short). */
static uint64_t mix(uint64_t h)
{
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 33;
    return h;
}

/* FNV-1a over the bytes. */
static uint64_t hash_bytes(const char *bytes, size_t size)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i++) h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3u;
    return mix(h);
}

/* Equal values must have equal hashes: 1, 1.0 and true are one key. Lists and dictionaries have no
 * hash, as in Python. */
nbl_status nbl__tpl_hash(tpl_vm *vm, tpl_value v, uint64_t *hash)
{
    switch ((tpl_type)v.type) {
    case TPL_BIG:
    case TPL_STRING: *hash = hash_bytes(v.string->bytes, v.string->size); return tpl_read(vm, v.string->size);
    case TPL_BOOL:
    case TPL_INT: *hash = mix((uint64_t)v.integer); return NBL_OK;
    case TPL_FLOAT: /* 1 == 1.0, so both must have the same hash */
        if (v.real >= -0x1p63 && v.real < 0x1p63 && v.real == (double)(int64_t)v.real) {
            *hash = mix((uint64_t)(int64_t)v.real);
        } else {
            memcpy(hash, &v.real, sizeof *hash);
            *hash = mix(*hash);
        }
        return NBL_OK;
    case TPL_NONE:
    case TPL_UNDEFINED: *hash = mix(v.type + 77); return NBL_OK;
    case TPL_TUPLE: {
        uint64_t h = 1, one;
        NBL_TRY(nbl__tpl_enter(vm));
        for (int64_t i = 0; i < v.list->count; i++) {
            NBL_TRY(nbl__tpl_hash(vm, v.list->items[i], &one));
            h = mix(h * 31 + one);
        }
        vm->depth--;
        *hash = h;
        return NBL_OK;
    }
    case TPL_LIST:
    case TPL_DICT: return nbl__tpl_raise(vm, "TypeError: unhashable type: '%s'", nbl__tpl_type_name(v));
    default: *hash = mix((uint64_t)(uintptr_t)v.pointer); return NBL_OK;
    }
}

/* An empty dictionary is all zeros: no entries and no table. */
nbl_status nbl__tpl_dict(tpl_vm *vm, tpl_dict **dict)
{
    return TPL_NEW(vm, *dict, 1);
}

/* Finds the entry of a key whose hash is known. *entry is NULL if there is none. */
static nbl_status find_hashed(tpl_vm *vm, const tpl_dict *dict, tpl_value key, uint64_t hash,
                              tpl_entry **entry)
{
    bool equal;
    *entry = NULL;
    if (dict->table == NULL) {
        for (int64_t i = 0; i < dict->count; i++) {
            if (dict->entries[i].hash != hash) continue;
            NBL_TRY(nbl__tpl_equal(vm, dict->entries[i].key, key, &equal));
            if (equal) return *entry = &dict->entries[i], NBL_OK;
        }
        return NBL_OK;
    }
    for (uint64_t at = hash;; at++) {
        if ((at - hash) % 16 == 15) NBL_TRY(nbl__tpl_work(vm, 1)); /* keys may be made to collide */
        int32_t slot = dict->table[at & (uint64_t)(dict->slots - 1)];
        if (slot == 0) return NBL_OK;
        tpl_entry *found = &dict->entries[slot - 1];
        if (found->hash != hash) continue;
        NBL_TRY(nbl__tpl_equal(vm, found->key, key, &equal));
        if (equal) return *entry = found, NBL_OK;
    }
}

/* Puts an entry into the first free slot from its hash on. */
static nbl_status put_slot(tpl_vm *vm, tpl_dict *dict, int64_t index)
{
    uint64_t hash = dict->entries[index].hash, at = hash;
    assert(index < dict->room && 2 * dict->room <= dict->slots); /* a slot is free */
    while (dict->table[at & (uint64_t)(dict->slots - 1)]) at++;
    dict->table[at & (uint64_t)(dict->slots - 1)] = (int32_t)(index + 1);
    return nbl__tpl_work(vm, (at - hash) / 16);
}

/* Doubles the room. The table is rebuilt, since positions depend on its size. */
static nbl_status grow(tpl_vm *vm, tpl_dict *dict)
{
    int64_t room = dict->room ? dict->room * 2 : 4;
    tpl_entry *entries;
    if (room > INT32_MAX / 2) return nbl__tpl_refuse(vm, "a dictionary of too many entries");
    NBL_TRY(TPL_NEW(vm, entries, room));
    if (dict->count) memcpy(entries, dict->entries, (size_t)dict->count * sizeof *entries);
    dict->entries = entries;
    dict->room = room;
    if (room <= TPL_SMALL_DICT) return NBL_OK;
    dict->slots = room * 2;
    NBL_TRY(TPL_NEW(vm, dict->table, dict->slots));
    for (int64_t i = 0; i < dict->count; i++) NBL_TRY(put_slot(vm, dict, i));
    return NBL_OK;
}

/* A key that is there keeps its position in the order; only the value changes. */
nbl_status nbl__tpl_dict_set(tpl_vm *vm, tpl_dict *dict, tpl_value key, tpl_value value)
{
    uint64_t hash;
    tpl_entry *entry;
    NBL_TRY(nbl__tpl_hash(vm, key, &hash));
    NBL_TRY(find_hashed(vm, dict, key, hash, &entry));
    if (entry) return entry->value = value, NBL_OK;
    if (dict->count == dict->room) NBL_TRY(grow(vm, dict));
    dict->entries[dict->count] = (tpl_entry){key, value, hash};
    if (dict->table) NBL_TRY(put_slot(vm, dict, dict->count));
    dict->count++;
    return NBL_OK;
}

nbl_status nbl__tpl_dict_find(tpl_vm *vm, const tpl_dict *dict, tpl_value key, tpl_entry **entry)
{
    uint64_t hash;
    NBL_TRY(nbl__tpl_hash(vm, key, &hash));
    return find_hashed(vm, dict, key, hash, entry);
}

/* True if an entry has this text as its key. The hash is compared first. */
static bool entry_is(const tpl_entry *entry, const char *key, size_t size, uint64_t hash)
{
    return entry->hash == hash && entry->key.type == TPL_STRING && entry->key.string->size == size &&
           memcmp(entry->key.string->bytes, key, size) == 0;
}

/* The look-up of a name by its bytes: it makes no value and cannot fail. */
tpl_entry *nbl__tpl_dict_get(const tpl_dict *dict, const char *key, size_t size)
{
    uint64_t hash = hash_bytes(key, size);
    for (int64_t i = 0; dict->table == NULL && i < dict->count; i++)
        if (entry_is(&dict->entries[i], key, size, hash)) return &dict->entries[i];
    for (uint64_t at = hash; dict->table; at++) {
        int32_t slot = dict->table[at & (uint64_t)(dict->slots - 1)];
        if (slot == 0) return NULL;
        if (entry_is(&dict->entries[slot - 1], key, size, hash)) return &dict->entries[slot - 1];
    }
    return NULL;
}

/* Costs one look-up per entry. Keys of `more` that `dict` has get the new value. */
nbl_status nbl__tpl_dict_merge(tpl_vm *vm, tpl_dict *dict, const tpl_dict *more)
{
    NBL_TRY(nbl__tpl_work(vm, (uint64_t)more->count));
    for (int64_t i = 0; i < more->count; i++)
        NBL_TRY(nbl__tpl_dict_set(vm, dict, more->entries[i].key, more->entries[i].value));
    return NBL_OK;
}
