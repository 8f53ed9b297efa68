/* jinja_json.c - JSON to values of a template and back, as Python's json module does it.
 *
 * base/json parses and writes. Here its values become values of the machine, and json.dumps decides
 * what can be written. */
#include <math.h>
#include <stdio.h>

#include "base/number.h"
#include "base/json/json_write.h"
#include "text/template/runtime/jinja_runtime.h"

/* ---- reading ---- */

/* Makes an integer of digits: TPL_INT if it fits in 64 bits, else TPL_BIG. */
static nbl_status take_digits(tpl_vm *vm, const nbl__json *json, tpl_value *value)
{
    bool minus = *json->string == '-', over = false;
    int64_t integer = 0; /* negated, because there is one negative number more */
    for (int64_t i = minus; i < json->count; i++)
        over |= __builtin_mul_overflow(integer, (int64_t)10, &integer) ||
                __builtin_sub_overflow(integer, (int64_t)(json->string[i] - '0'), &integer);
    over |= !minus && integer == INT64_MIN;
    if (!over) return *value = tpl_int(minus ? integer : -integer), NBL_OK;
    NBL_TRY(nbl__tpl_string(vm, json->string, (size_t)json->count, value));
    value->type = TPL_BIG;
    return NBL_OK;
}

/* Makes a value of parsed JSON. Strings are borrowed from the arena. The parser has limited the
 * depth, so the recursion is bounded. */
static nbl_status take(tpl_vm *vm, const nbl__json *json, tpl_value *value)
{
    tpl_value *items, key, item;
    switch (json->type) {
    case NBL_JSON_NULL: return *value = tpl_none(), NBL_OK;
    case NBL_JSON_FALSE:
    case NBL_JSON_TRUE: return *value = tpl_bool(json->type == NBL_JSON_TRUE), NBL_OK;
    case NBL_JSON_INTEGER: return *value = tpl_int(json->integer), NBL_OK;
    case NBL_JSON_REAL: return *value = tpl_float(json->real), NBL_OK;
    case NBL_JSON_DIGITS_KEPT: return take_digits(vm, json, value);
    case NBL_JSON_STRING: return nbl__tpl_string(vm, json->string, (size_t)json->count, value);
    case NBL_JSON_ARRAY:
        NBL_TRY(nbl__tpl_list(vm, TPL_LIST, json->count, value, &items));
        for (int64_t i = 0; i < json->count; i++) NBL_TRY(take(vm, &json->items[i], &items[i]));
        return NBL_OK;
    case NBL_JSON_OBJECT:
        *value = (tpl_value){.type = TPL_DICT};
        NBL_TRY(nbl__tpl_dict(vm, &value->dict));
        for (int64_t i = 0; i < json->count; i++) {
            NBL_TRY(nbl__tpl_string(vm, json->items[i].key, json->items[i].key_size, &key));
            NBL_TRY(take(vm, &json->items[i], &item));
            NBL_TRY(nbl__tpl_dict_set(vm, value->dict, key, item));
        }
        return NBL_OK;
    }
    return NBL_ERROR_INTERNAL;
}

nbl_status nbl__tpl_from_json(tpl_vm *vm, const char *where, const char *text, size_t size, tpl_value *result)
{
    const nbl__json *root;
    nbl__json_error error;
    nbl_status status = nbl__json_read(&vm->arena, text, size, NBL_JSON_LOADS, &root, &error);
    if (status == NBL_ERROR_FORMAT)
        return nbl__tpl_raise(vm, "%s: not valid JSON: %s at line %" PRId64 ", column %" PRId64, where,
                              error.what, error.line, error.column);
    if (status != NBL_OK) return nbl__tpl_no_memory(vm);
    return take(vm, root, result);
}

/* ---- writing ---- */

/* Where json_write.h puts the bytes: the machine that counts them, and its text. */
typedef struct sink {
    tpl_vm *vm;
    tpl_text *text;
} sink;

/* The writer's output function. Fails when the text grows beyond TPL_MAX_OUTPUT. */
static nbl_status add(void *to, const char *bytes, size_t size)
{
    sink *s = to;
    return nbl__tpl_add(s->vm, s->text, bytes, size);
}

/* Reading the string is work, however short its JSON. */
static nbl_status write_string(tpl_vm *vm, nbl__json_writer *w, const tpl_string *s)
{
    NBL_TRY(tpl_read(vm, s->size));
    return nbl__json_string(w, s->bytes, s->size);
}

/* Spells null, a bool or a number of at most 64 bits. */
static void print_value(tpl_value v, char text[40])
{
    if (v.type == TPL_NONE) snprintf(text, 40, "null");
    else if (v.type == TPL_BOOL) snprintf(text, 40, v.integer ? "true" : "false");
    else if (v.type != TPL_FLOAT) snprintf(text, 40, "%" PRId64, v.integer);
    else if (isfinite(v.real)) nbl__print_repr(v.real, text);
    else snprintf(text, 40, "%s", isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
}

/* Writes a key. Numbers and constants become text; any other type is an error. */
static nbl_status write_key(tpl_vm *vm, nbl__json_writer *w, tpl_value key)
{
    char text[40];
    switch ((tpl_type)key.type) {
    case TPL_STRING:
    case TPL_BIG:
        NBL_TRY(tpl_read(vm, key.string->size));
        return nbl__json_key(w, key.string->bytes, key.string->size);
    case TPL_NONE:
    case TPL_BOOL:
    case TPL_INT:
    case TPL_FLOAT: print_value(key, text); return nbl__json_key(w, text, strlen(text));
    default:
        return nbl__tpl_raise(vm, "TypeError: keys must be str, int, float, bool or None, not %s",
                              nbl__tpl_type_name(key));
    }
}

static nbl_status write_value(tpl_vm *vm, nbl__json_writer *w, tpl_value v, bool sort);

/* Lists and tuples are arrays. */
static nbl_status write_list(tpl_vm *vm, nbl__json_writer *w, const tpl_list *list, bool sort)
{
    NBL_TRY(nbl__json_open(w, '['));
    for (int64_t i = 0; i < list->count; i++) {
        NBL_TRY(nbl__json_item(w));
        NBL_TRY(write_value(vm, w, list->items[i], sort));
    }
    return nbl__json_close(w, ']');
}

/* Dictionaries are objects. With `sort`, an order of the entries is sorted by their keys; the
 * dictionary is not changed. */
static nbl_status write_dict(tpl_vm *vm, nbl__json_writer *w, const tpl_dict *dict, bool sort)
{
    tpl_value *keys = NULL, *order = NULL;
    if (sort && dict->count) {
        NBL_TRY(TPL_NEW(vm, keys, dict->count));
        NBL_TRY(TPL_NEW(vm, order, dict->count));
        for (int64_t i = 0; i < dict->count; i++) keys[i] = dict->entries[i].key, order[i] = tpl_int(i);
        NBL_TRY(nbl__tpl_sort(vm, order, keys, dict->count, false));
    }
    NBL_TRY(nbl__json_open(w, '{'));
    for (int64_t i = 0; i < dict->count; i++) {
        const tpl_entry *entry = &dict->entries[order ? order[i].integer : i];
        NBL_TRY(write_key(vm, w, entry->key));
        NBL_TRY(write_value(vm, w, entry->value, sort));
    }
    return nbl__json_close(w, '}');
}

static nbl_status write_value(tpl_vm *vm, nbl__json_writer *w, tpl_value v, bool sort)
{
    char text[40];
    nbl_status status;
    switch ((tpl_type)v.type) {
    case TPL_NONE:
    case TPL_BOOL:
    case TPL_INT:
    case TPL_FLOAT: print_value(v, text); return nbl__json_word(w, text);
    case TPL_BIG: return w->add(w->to, v.string->bytes, v.string->size);
    case TPL_STRING: return write_string(vm, w, v.string);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_DICT:
        NBL_TRY(nbl__tpl_enter(vm));
        status = v.type == TPL_DICT ? write_dict(vm, w, v.dict, sort) : write_list(vm, w, v.list, sort);
        vm->depth--;
        return status;
    default:
        return nbl__tpl_raise(vm, "TypeError: Object of type %s is not JSON serializable",
                              nbl__tpl_type_name(v));
    }
}

nbl_status nbl__tpl_to_json(tpl_vm *vm, tpl_text *text, tpl_value v, const nbl__json_style *style, bool sort)
{
    sink to = {vm, text};
    nbl__json_writer w = {.add = add, .to = &to, .style = style};
    return write_value(vm, &w, v, sort);
}
