/* jinja_compare.c - truth, equality, order, length and membership, with Python's rules.
 *
 *     1 == 1.0 == true     numbers are equal across types, and compared without rounding
 *     [1] == (1,)          false: a list is never equal to a tuple
 *     'a' < 1              TypeError: only numbers, two texts, two lists or two tuples have an order
 *     nan == nan           false; but nan in [nan] is true: `in` compares by identity first
 *
 * Depth: each level of a list or dictionary is entered (nbl__tpl_enter), so a value that nests too
 * deep is an error and not a full stack. Work: a comparison counts the bytes and items that it
 * reads. */
#include <math.h>

#include "text/template/runtime/jinja_runtime.h"

/* len(): an undefined value has length 0, as jinja2's Undefined. */
bool nbl__tpl_length(tpl_value v, int64_t *length)
{
    switch ((tpl_type)v.type) {
    case TPL_UNDEFINED: *length = 0; return true;
    case TPL_STRING: *length = (int64_t)v.string->length; return true;
    case TPL_LIST:
    case TPL_TUPLE: *length = v.list->count; return true;
    case TPL_DICT:
    case TPL_VIEW: *length = v.dict->count; return true;
    case TPL_RANGE: *length = v.range->count; return true;
    default: return false;
    }
}

/* False are none, undefined, zero and everything of length 0. Objects without a length are true. */
nbl_status nbl__tpl_truth(tpl_vm *vm, tpl_value v, bool *truth)
{
    int64_t length;
    (void)vm;
    switch ((tpl_type)v.type) {
    case TPL_NONE:
    case TPL_MISSING:
    case TPL_UNDEFINED: *truth = false; break;
    case TPL_BOOL:
    case TPL_INT: *truth = v.integer != 0; break;
    case TPL_FLOAT: *truth = v.real != 0; break;
    default: *truth = !nbl__tpl_length(v, &length) || length > 0; break;
    }
    return NBL_OK;
}

/* Compares a 64-bit integer with a double, without rounding either. */
static int order_mixed(int64_t a, double b)
{
    if (b >= 0x1p63) return -1;
    if (b < -0x1p63) return 1;
    double whole = trunc(b);
    int64_t integer = (int64_t)whole;
    if (a != integer) return a < integer ? -1 : 1;
    return b > whole ? -1 : b < whole ? 1 : 0;
}

/* Compares two numbers. Returns 2 if one is NaN: they have no order. */
static int order_numbers(tpl_value a, tpl_value b)
{
    if ((a.type == TPL_FLOAT && isnan(a.real)) || (b.type == TPL_FLOAT && isnan(b.real))) return 2;
    if (a.type == TPL_FLOAT && b.type == TPL_FLOAT) return a.real < b.real ? -1 : a.real > b.real;
    if (a.type == TPL_FLOAT) return -order_mixed(b.integer, a.real);
    if (b.type == TPL_FLOAT) return order_mixed(a.integer, b.real);
    return a.integer < b.integer ? -1 : a.integer > b.integer;
}

/* Compares strings by bytes: in UTF-8 that is the order of the characters. */
static int order_strings(const tpl_string *a, const tpl_string *b)
{
    size_t common = a->size < b->size ? a->size : b->size;
    int order = common ? memcmp(a->bytes, b->bytes, common) : 0;
    return order ? order : a->size < b->size ? -1 : a->size > b->size;
}

/* Python's `is`. Values of the same type are identical if they are the same object. Integers, texts
 * and empty tuples have no identity here and are compared by value, floats by their bits. */
bool nbl__tpl_identical(tpl_value a, tpl_value b)
{
    if (a.type != b.type || a.view != b.view) return false;
    switch ((tpl_type)a.type) {
    case TPL_MISSING:
    case TPL_NONE: return true;
    case TPL_BOOL:
    case TPL_INT: return a.integer == b.integer;
    case TPL_FLOAT: return memcmp(&a.real, &b.real, sizeof a.real) == 0;
    case TPL_STRING: return a.string == b.string || order_strings(a.string, b.string) == 0;
    case TPL_TUPLE: return a.list == b.list || (a.list->count == 0 && b.list->count == 0);
    default: return a.pointer == b.pointer;
    }
}

/* Equal if all items are equal in order. Stops at the first difference. */
static nbl_status equal_lists(tpl_vm *vm, const tpl_list *a, const tpl_list *b, bool *equal)
{
    if (a == b || a->count != b->count) return *equal = a == b, NBL_OK;
    NBL_TRY(nbl__tpl_enter(vm));
    *equal = true;
    for (int64_t i = 0; i < a->count && *equal; i++)
        NBL_TRY(nbl__tpl_equal(vm, a->items[i], b->items[i], equal));
    vm->depth--;
    return nbl__tpl_work(vm, (uint64_t)a->count);
}

/* Equal if both have the same keys and equal values. The order of the entries does not matter. */
static nbl_status equal_dicts(tpl_vm *vm, const tpl_dict *a, const tpl_dict *b, bool *equal)
{
    if (a == b || a->count != b->count) return *equal = a == b, NBL_OK;
    NBL_TRY(nbl__tpl_enter(vm));
    *equal = true;
    for (int64_t i = 0; i < a->count && *equal; i++) {
        tpl_entry *entry;
        NBL_TRY(nbl__tpl_dict_find(vm, b, a->entries[i].key, &entry));
        if (entry) NBL_TRY(nbl__tpl_equal(vm, a->entries[i].value, entry->value, equal));
        else *equal = false;
    }
    vm->depth--;
    return nbl__tpl_work(vm, (uint64_t)a->count);
}

/* a == b. Only numbers are equal across types. Two undefined values are equal. */
nbl_status nbl__tpl_equal(tpl_vm *vm, tpl_value a, tpl_value b, bool *equal)
{
    if (tpl_is_number(a) && tpl_is_number(b)) return *equal = order_numbers(a, b) == 0, NBL_OK;
    *equal = false;
    if (a.type != b.type) return NBL_OK;
    switch ((tpl_type)a.type) {
    case TPL_NONE:
    case TPL_UNDEFINED: *equal = true; return NBL_OK;
    case TPL_BIG:
    case TPL_STRING:
        if (a.string->size != b.string->size) return NBL_OK;
        *equal = memcmp(a.string->bytes, b.string->bytes, a.string->size) == 0;
        return tpl_read(vm, a.string->size);
    case TPL_LIST:
    case TPL_TUPLE: return equal_lists(vm, a.list, b.list, equal);
    case TPL_DICT: return equal_dicts(vm, a.dict, b.dict, equal);
    case TPL_RANGE: { /* Python compares the sequences of numbers: range(0) == range(5, 5) */
        const tpl_range *p = a.range, *q = b.range;
        *equal = p->count == q->count &&
                 (p->count == 0 || (p->start == q->start && (p->count == 1 || p->step == q->step)));
        return NBL_OK;
    }
    case TPL_VIEW: /* sets in Python; the order does not matter */
        if (a.view != b.view || a.view == TPL_VALUES) return *equal = nbl__tpl_identical(a, b), NBL_OK;
        if (a.dict->count != b.dict->count) return NBL_OK;
        NBL_TRY(nbl__tpl_work(vm, (uint64_t)a.dict->count));
        *equal = true;
        for (int64_t i = 0; i < a.dict->count && *equal; i++) {
            tpl_entry *entry;
            NBL_TRY(nbl__tpl_dict_find(vm, b.dict, a.dict->entries[i].key, &entry));
            *equal = entry != NULL;
            if (entry && a.view == TPL_ITEMS)
                NBL_TRY(nbl__tpl_equal(vm, a.dict->entries[i].value, entry->value, equal));
        }
        return NBL_OK;
    case TPL_FUNCTION:
        *equal = a.function->call == b.function->call &&
                 nbl__tpl_identical(a.function->self, b.function->self);
        return NBL_OK;
    default: *equal = a.pointer == b.pointer; return NBL_OK;
    }
}

/* True if an order holds for the sign of a comparison (-1, 0, 1). */
static bool holds(tpl_order order, int sign)
{
    return order == TPL_LT ? sign < 0 : order == TPL_LE ? sign <= 0 : order == TPL_GT ? sign > 0 : sign >= 0;
}

/* a < b and its kin. An undefined operand fails before the types are compared, as Undefined.__lt__
 * does. */
nbl_status nbl__tpl_compare(tpl_vm *vm, tpl_order order, tpl_value a, tpl_value b, bool *result)
{
    static const char *const signs[] = {"<", "<=", ">", ">="};
    if (a.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, a);
    if (b.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, b);
    if (tpl_is_number(a) && tpl_is_number(b)) {
        int sign = order_numbers(a, b);
        return *result = sign != 2 && holds(order, sign), NBL_OK;
    }
    if (a.type == TPL_STRING && b.type == TPL_STRING) {
        *result = holds(order, order_strings(a.string, b.string));
        return tpl_read(vm, a.string->size < b.string->size ? a.string->size : b.string->size);
    }
    /* lists and tuples: the first items that are not equal decide, then the lengths */
    if (tpl_is_sequence(a) && a.type == b.type) {
        const tpl_list *p = a.list, *q = b.list;
        int64_t i = 0, common = nbl__min_i64(p->count, q->count);
        NBL_TRY(nbl__tpl_enter(vm));
        for (bool equal; i < common; i++) {
            NBL_TRY(nbl__tpl_equal(vm, p->items[i], q->items[i], &equal));
            if (!equal) break;
        }
        if (i < common) NBL_TRY(nbl__tpl_compare(vm, order, p->items[i], q->items[i], result));
        else *result = holds(order, p->count < q->count ? -1 : p->count > q->count);
        vm->depth--;
        return nbl__tpl_work(vm, (uint64_t)i);
    }
    if (a.type == TPL_BIG || b.type == TPL_BIG || (a.type == TPL_VIEW && b.type == TPL_VIEW))
        return nbl__tpl_refuse(vm, "the order of these values: integers beyond 64 bits, views");
    return nbl__tpl_raise(vm, "TypeError: '%s' not supported between instances of '%s' and '%s'",
                          signs[order], nbl__tpl_type_name(a), nbl__tpl_type_name(b));
}

/* `item in container`. A text looks for a part of itself, a dictionary for a key, and every other
 * value is searched item by item. An iterator is consumed up to the item that is found. */
nbl_status nbl__tpl_contains(tpl_vm *vm, tpl_value container, tpl_value item, bool *result)
{
    tpl_entry *entry;
    *result = false;
    switch ((tpl_type)container.type) {
    case TPL_STRING:
        if (item.type != TPL_STRING)
            return nbl__tpl_raise(vm, "TypeError: 'in <string>' requires string as left operand, not %s",
                                  nbl__tpl_type_name(item));
        *result = nbl__tpl_find(container.string->bytes, container.string->size, item.string->bytes,
                                item.string->size, 0) >= 0;
        return tpl_read(vm, container.string->size);
    case TPL_VIEW:
        if (container.view != TPL_KEYS) break;
        /* fall through */
    case TPL_DICT:
        NBL_TRY(nbl__tpl_dict_find(vm, container.dict, item, &entry));
        *result = entry != NULL;
        return NBL_OK;
    case TPL_RANGE: {
        const tpl_range *r = container.range;
        if (!tpl_is_number(item)) return NBL_OK;
        double real = tpl_as_double(item);
        if (real != trunc(real) || fabs(real) >= 0x1p62) return NBL_OK;
        int64_t n = tpl_is_integer(item) ? item.integer : (int64_t)real;
        if (r->count && n >= nbl__min_i64(r->start, r->start + (r->count - 1) * r->step) &&
            n <= nbl__max_i64(r->start, r->start + (r->count - 1) * r->step))
            *result = (n - r->start) % r->step == 0;
        return NBL_OK;
    }
    default: break;
    }
    tpl_iterator *iterator;
    if (!nbl__tpl_is_iterable(container))
        return nbl__tpl_raise(vm, "TypeError: argument of type '%s' is not iterable",
                              nbl__tpl_type_name(container));
    NBL_TRY(nbl__tpl_iterate(vm, container, &iterator));
    for (bool more, same;;) {
        tpl_value one;
        NBL_TRY(nbl__tpl_next(vm, iterator, &one, &more));
        if (!more) return NBL_OK;
        NBL_TRY(nbl__tpl_equal(vm, one, item, &same));
        if (same || (one.type != TPL_STRING && nbl__tpl_identical(one, item))) return *result = true, NBL_OK;
    }
}
