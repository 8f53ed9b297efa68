/* jinja_iterate.c - iteration over values.
 *
 * An iterator has a function `next` and a position. Lists, tuples and ranges count `at` towards
 * `end` by `step` (1, or -1 when reversed); dictionaries do the same over their entries; strings
 * use a byte offset. Filters and loops that make iterators keep their own state (it->state).
 *
 * Iterators are lazy, as in Python. An item on which map or select fails is an error only when the
 * iteration reaches it. After one use an iterator is empty. */
#include "text/template/runtime/jinja_runtime.h"

/* ---- the next item of each kind ---- */

/* Lists and tuples. */
static nbl_status next_item(tpl_vm *vm, tpl_iterator *it, tpl_value *item, bool *more)
{
    (void)vm;
    *more = it->step > 0 ? it->at < it->end : it->at > it->end;
    if (*more) *item = it->source.list->items[it->at];
    it->at += *more ? it->step : 0;
    return NBL_OK;
}

/* The items of a string are its characters, as strings of one character. */
static nbl_status next_character(tpl_vm *vm, tpl_iterator *it, tpl_value *item, bool *more)
{
    const tpl_string *s = it->source.string;
    int size;
    *more = it->offset < s->size;
    if (!*more) return NBL_OK;
    tpl_char(s->bytes + it->offset, &size);
    it->offset += (size_t)size;
    return nbl__tpl_string(vm, s->bytes + it->offset - size, (size_t)size, item);
}

/* The items of a dictionary are its keys. A view decides for itself. */
static nbl_status next_entry(tpl_vm *vm, tpl_iterator *it, tpl_value *item, bool *more)
{
    const tpl_dict *dict = it->source.dict;
    *more = it->step > 0 ? it->at < dict->count : it->at >= 0;
    if (!*more) return NBL_OK;
    const tpl_entry *entry = &dict->entries[it->at];
    it->at += it->step;
    int view = it->source.type == TPL_DICT ? TPL_KEYS : it->source.view;
    if (view == TPL_ITEMS) return nbl__tpl_pair(vm, entry->key, entry->value, item);
    *item = view == TPL_KEYS ? entry->key : entry->value;
    return NBL_OK;
}

/* Ranges: the number of index `at`. */
static nbl_status next_number(tpl_vm *vm, tpl_iterator *it, tpl_value *item, bool *more)
{
    (void)vm;
    *more = it->at != it->end;
    if (*more) *item = tpl_int(it->source.range->start + it->at * it->source.range->step);
    it->at += *more ? it->step : 0;
    return NBL_OK;
}

/* Undefined values have no items. */
static nbl_status next_nothing(tpl_vm *vm, tpl_iterator *it, tpl_value *item, bool *more)
{
    (void)vm, (void)it, (void)item;
    *more = false;
    return NBL_OK;
}

/* ---- making iterators ---- */

/* What Python's iter() accepts. nbl__tpl_iterate refuses the last two kinds all the same. */
bool nbl__tpl_is_iterable(tpl_value v)
{
    switch ((tpl_type)v.type) {
    case TPL_UNDEFINED:
    case TPL_STRING:
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_DICT:
    case TPL_VIEW:
    case TPL_RANGE:
    case TPL_ITERATOR:
    case TPL_LOOP: return true;
    case TPL_OBJECT:
        return v.object->kind == TPL_SELF; /* Python's object has __getitem__, which is enough for iter() */
    default: return false;
    }
}

/* Makes an iterator over a value, or over an undefined one, which has no items. The names of the
 * types are Python's: {{ x|reverse }} prints them. */
static nbl_status make(tpl_vm *vm, tpl_value v, bool reverse, tpl_iterator **result)
{
    static const char *const over_entries[2][3] = {
        {"dict_keyiterator", "dict_valueiterator", "dict_itemiterator"},
        {"dict_reversekeyiterator", "dict_reversevalueiterator", "dict_reverseitemiterator"}};
    bool is_view = v.type == TPL_VIEW;
    tpl_iterator *it;
    int64_t count = 0;
    NBL_TRY(TPL_NEW(vm, it, 1));
    nbl__tpl_length(v, &count);
    *it = (tpl_iterator){.next = next_nothing, .type = "generator", .source = v, .step = reverse ? -1 : 1};
    it->at = reverse ? count - 1 : 0;
    it->end = reverse ? -1 : count;
    switch ((tpl_type)v.type) {
    case TPL_LIST: it->next = next_item, it->type = reverse ? "list_reverseiterator" : "list_iterator"; break;
    case TPL_TUPLE: it->next = next_item, it->type = reverse ? "reversed" : "tuple_iterator"; break;
    case TPL_STRING: it->next = next_character, it->type = "str_iterator"; break;
    case TPL_DICT:
    case TPL_VIEW:
        it->next = next_entry, it->type = over_entries[reverse][is_view ? v.view : TPL_KEYS];
        break;
    case TPL_RANGE: it->next = next_number, it->type = "range_iterator"; break;
    default: break;
    }
    *result = it;
    return NBL_OK;
}

/* An iterator is returned itself: two loops over it share its position. */
nbl_status nbl__tpl_iterate(tpl_vm *vm, tpl_value v, tpl_iterator **iterator)
{
    if (v.type == TPL_ITERATOR) return *iterator = v.iterator, NBL_OK;
    if (v.type == TPL_LOOP || v.type == TPL_OBJECT)
        return nbl__tpl_refuse(vm, "iteration over a %s", nbl__tpl_type_name(v));
    if (!nbl__tpl_is_iterable(v))
        return nbl__tpl_raise(vm, "TypeError: '%s' object is not iterable", nbl__tpl_type_name(v));
    return make(vm, v, false, iterator);
}

/* The depth counts, because iterators nest: x|map(…)|map(…) calls next() inside next(). */
nbl_status nbl__tpl_next(tpl_vm *vm, tpl_iterator *iterator, tpl_value *item, bool *more)
{
    NBL_TRY(nbl__tpl_enter(vm));
    NBL_TRY(iterator->next(vm, iterator, item, more));
    vm->depth--;
    return NBL_OK;
}

/* Appends the items up to the end. An endless iterator does not exist: every source is finite. */
nbl_status nbl__tpl_collect(tpl_vm *vm, tpl_value v, tpl_items *items)
{
    tpl_iterator *iterator;
    NBL_TRY(nbl__tpl_iterate(vm, v, &iterator));
    for (bool more;;) {
        tpl_value item;
        NBL_TRY(nbl__tpl_next(vm, iterator, &item, &more));
        if (!more) return NBL_OK;
        NBL_TRY(nbl__tpl_push(vm, items, item));
    }
}

/* reversed(v): an iterator from the end. Python has none for iterators, and for text it reverses
 * characters. */
nbl_status nbl__tpl_reversed(tpl_vm *vm, tpl_value v, tpl_value *result, bool *reversible)
{
    tpl_iterator *iterator;
    tpl_items characters = {0};
    tpl_type type = v.type;
    *reversible = tpl_is_sequence(v) || type == TPL_DICT || type == TPL_VIEW || type == TPL_RANGE ||
                  type == TPL_STRING || type == TPL_UNDEFINED;
    if (!*reversible) return NBL_OK;
    /* a string is not reversed in place, because its characters have different sizes */
    if (type == TPL_STRING) {
        NBL_TRY(nbl__tpl_collect(vm, v, &characters));
        NBL_TRY(nbl__tpl_finish(vm, &characters, TPL_LIST, &v));
    }
    NBL_TRY(make(vm, v, true, &iterator));
    *result = (tpl_value){.type = TPL_ITERATOR, .iterator = iterator};
    return NBL_OK;
}
