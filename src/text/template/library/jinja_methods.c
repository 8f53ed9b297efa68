/* jinja_methods.c - methods of lists, tuples, dictionaries, ranges and numbers. Methods that change
 * their object do not exist in the immutable sandbox.
 *
 * A method gets its object as `self`; jinja_attribute.c has checked its type. */
#include <math.h>

#include "text/template/runtime/jinja_runtime.h"

/* ---- lists and tuples ---- */

/* list.count(value), also for tuples and ranges. */
static nbl_status list_count(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value value, item;
    tpl_iterator *iterator;
    *result = tpl_int(0);
    NBL_TRY(nbl__tpl_bind(vm, "count", args, "/value", 1, &value));
    NBL_TRY(nbl__tpl_iterate(vm, self, &iterator));
    for (bool more, equal;;) {
        NBL_TRY(nbl__tpl_next(vm, iterator, &item, &more));
        if (!more) return NBL_OK;
        NBL_TRY(nbl__tpl_equal(vm, item, value, &equal));
        result->integer += equal;
    }
}

/* list.index(value, start, stop), also for tuples and ranges. Failing to find it is an error. */
static nbl_status list_index(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value v[3];
    int64_t length, start = 0, stop = INT64_MAX;
    NBL_TRY(nbl__tpl_bind(vm, "index", args, "/value start stop", 1, v));
    NBL_TRY(nbl__tpl_want_int(vm, v[1], &start));
    NBL_TRY(nbl__tpl_want_int(vm, v[2], &stop));
    nbl__tpl_length(self, &length);
    if (start < 0) start = nbl__max_i64(0, start + length);
    if (stop < 0) stop = nbl__max_i64(0, stop + length);
    for (int64_t i = start; i < nbl__min_i64(stop, length); i++) {
        tpl_value item = self.type == TPL_RANGE ? tpl_int(self.range->start + i * self.range->step)
                                                : self.list->items[i];
        bool equal;
        NBL_TRY(nbl__tpl_work(vm, 1));
        NBL_TRY(nbl__tpl_equal(vm, item, v[0], &equal));
        if (equal) return *result = tpl_int(i), NBL_OK;
    }
    return nbl__tpl_raise(vm, "ValueError: %s is not in list", nbl__tpl_shown(vm, v[0]));
}

/* list.copy(), and dict.copy() below. */
static nbl_status list_copy(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "copy", args, "", 0, NULL));
    *result = self; /* lists are immutable, so no copy is needed */
    return NBL_OK;
}

const tpl_method nbl__tpl_list_methods[] = {
    {"index", list_index}, {"count", list_count}, {"copy", list_copy}, {NULL, NULL}};
const tpl_method nbl__tpl_range_methods[] = {{"index", list_index}, {"count", list_count}, {NULL, NULL}};

/* ---- dictionaries ---- */

/* keys(), values() and items(): views of the dictionary, without a copy. */
static nbl_status view(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_view which, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "this method of dict", args, "", 0, NULL));
    *result = (tpl_value){.type = TPL_VIEW, .view = (uint8_t)which, .dict = self.dict};
    return NBL_OK;
}

static nbl_status dict_keys(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return view(vm, self, args, TPL_KEYS, result);
}

static nbl_status dict_values(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return view(vm, self, args, TPL_VALUES, result);
}

static nbl_status dict_items(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return view(vm, self, args, TPL_ITEMS, result);
}

/* d.get(key, default). Unlike d[key] it never gives an undefined value. */
static nbl_status dict_get(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value v[2];
    tpl_entry *entry;
    NBL_TRY(nbl__tpl_bind(vm, "get", args, "/key default", 1, v));
    NBL_TRY(nbl__tpl_dict_find(vm, self.dict, v[0], &entry));
    *result = entry ? entry->value : v[1].type == TPL_MISSING ? tpl_none() : v[1];
    return NBL_OK;
}

static nbl_status dict_copy(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return list_copy(vm, self, args, result);
}

/* dict.fromkeys(keys, value) */
static nbl_status dict_fromkeys(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value v[2];
    tpl_items keys = {0};
    (void)self;
    *result = (tpl_value){.type = TPL_DICT};
    NBL_TRY(nbl__tpl_bind(vm, "fromkeys", args, "/iterable value", 1, v));
    NBL_TRY(nbl__tpl_dict(vm, &result->dict));
    NBL_TRY(nbl__tpl_collect(vm, v[0], &keys));
    for (int64_t i = 0; i < keys.count; i++)
        NBL_TRY(
            nbl__tpl_dict_set(vm, result->dict, keys.items[i], v[1].type == TPL_MISSING ? tpl_none() : v[1]));
    return NBL_OK;
}

const tpl_method nbl__tpl_dict_methods[] = {
    {"items", dict_items}, {"get", dict_get},           {"keys", dict_keys}, {"values", dict_values},
    {"copy", dict_copy},   {"fromkeys", dict_fromkeys}, {NULL, NULL},
};

/* ---- numbers ---- */

/* The number of bits of the absolute value: (0).bit_length() is 0, (-8).bit_length() is 4. */
static nbl_status int_bit_length(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "bit_length", args, "", 0, NULL));
    if (self.type == TPL_BIG) return nbl__tpl_refuse(vm, "bit_length of an integer beyond 64 bits");
    uint64_t size = self.integer < 0 ? -(uint64_t)self.integer : (uint64_t)self.integer;
    *result = tpl_int(size ? 64 - __builtin_clzll(size) : 0);
    return NBL_OK;
}

/* int.bit_count(): the ones in the absolute value. */
static nbl_status int_bit_count(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "bit_count", args, "", 0, NULL));
    if (self.type == TPL_BIG) return nbl__tpl_refuse(vm, "bit_count of an integer beyond 64 bits");
    uint64_t size = self.integer < 0 ? -(uint64_t)self.integer : (uint64_t)self.integer;
    *result = tpl_int(__builtin_popcountll(size));
    return NBL_OK;
}

/* Numbers are their own conjugates. A bool becomes an integer. */
static nbl_status number_conjugate(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "conjugate", args, "", 0, NULL));
    *result = self.type == TPL_BOOL ? tpl_int(self.integer) : self;
    return NBL_OK;
}

/* Methods that need bytes or integers of any size. */
static nbl_status number_unsupported(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    (void)self, (void)args, (void)result;
    return nbl__tpl_refuse(vm, "this method of numbers is not supported");
}

/* float.is_integer(); false for infinities and NaN. */
static nbl_status float_is_integer(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "is_integer", args, "", 0, NULL));
    *result = tpl_bool(isfinite(self.real) && self.real == floor(self.real));
    return NBL_OK;
}

const tpl_method nbl__tpl_int_methods[] = {
    {"bit_length", int_bit_length},
    {"bit_count", int_bit_count},
    {"conjugate", number_conjugate},
    {"as_integer_ratio", number_unsupported},
    {"to_bytes", number_unsupported},
    {"from_bytes", number_unsupported},
    {NULL, NULL},
};
const tpl_method nbl__tpl_float_methods[] = {
    {"is_integer", float_is_integer},         {"conjugate", number_conjugate},
    {"as_integer_ratio", number_unsupported}, {"hex", number_unsupported},
    {"fromhex", number_unsupported},          {NULL, NULL},
};
