/* jinja_attribute.c - obj.name and obj[key], under the rules of jinja2's immutable sandbox.
 *
 * The two forms differ in the order of the look-ups. d is a dictionary with an entry "items":
 *
 *     d.items      attribute first: the method items
 *     d['items']   item first: the entry
 *
 * If neither exists, the result is an undefined value that knows the object and the name. Using it
 * is an error with both in the message; printing it prints nothing.
 *
 * Names that begin with an underscore, and methods that change their object (list.append,
 * dict.pop), are unsafe. Reading one gives an undefined value. Using that value is an error that
 * says why.
 *
 * Methods are not stored in objects. They are found by name in the tables of jinja_runtime.h, and
 * become a TPL_FUNCTION that has the object as `self`. */
#include <stdio.h>

#include "text/template/runtime/jinja_runtime.h"

/* ---- the attributes of each Python type ---- */

/* Searches a table of methods, which ends with a NULL name. */
static const tpl_method *find_method(const tpl_method *methods, const tpl_string *name)
{
    for (; methods->name; methods++)
        if (tpl_same(name, methods->name)) return methods;
    return NULL;
}

/* True if a name is in a list of words, which ends with NULL. */
static bool in_words(const char *const *words, const tpl_string *name)
{
    for (; *words; words++)
        if (tpl_same(name, *words)) return true;
    return false;
}

/* Names with underscores that every object has. They exist, but are always unsafe. */
static bool is_dunder(tpl_value obj, const tpl_string *name)
{
    static const char *const common[] = {"__class__",
                                         "__doc__",
                                         "__init__",
                                         "__new__",
                                         "__repr__",
                                         "__str__",
                                         "__eq__",
                                         "__ne__",
                                         "__lt__",
                                         "__le__",
                                         "__gt__",
                                         "__ge__",
                                         "__hash__",
                                         "__dir__",
                                         "__format__",
                                         "__reduce__",
                                         "__sizeof__",
                                         "__reduce_ex__",
                                         "__getattribute__",
                                         "__setattr__",
                                         "__delattr__",
                                         "__subclasshook__",
                                         "__init_subclass__",
                                         "__getstate__",
                                         NULL};
    static const char *const containers[] = {"__len__", "__iter__", "__contains__", "__getitem__", NULL};
    int64_t length;
    return in_words(common, name) || (nbl__tpl_length(obj, &length) && in_words(containers, name));
}

/* The attributes that Python's int and float have: (3).real, (3).numerator, (1.5).imag, …. A bool
 * is an integer here: true.real is 1. */
static nbl_status number_attribute(tpl_vm *vm, tpl_value obj, const tpl_string *name, tpl_value *result,
                                   bool *found)
{
    bool whole = obj.type != TPL_FLOAT;
    tpl_value plain = whole && obj.type == TPL_BOOL ? tpl_int(obj.integer) : obj;
    *found = true;
    if (tpl_same(name, "real") || (whole && tpl_same(name, "numerator"))) return *result = plain, NBL_OK;
    if (tpl_same(name, "imag")) return *result = whole ? tpl_int(0) : tpl_float(0), NBL_OK;
    if (whole && tpl_same(name, "denominator")) return *result = tpl_int(1), NBL_OK;
    const tpl_method *method = find_method(whole ? nbl__tpl_int_methods : nbl__tpl_float_methods, name);
    *found = method != NULL;
    if (!method) return NBL_OK;
    return nbl__tpl_function(vm, method->name, method->call, nbl__tpl_type_name(obj), obj, result);
}

/* The attributes of jinja2's class Macro. */
static nbl_status macro_attribute(tpl_vm *vm, const tpl_macro *macro, const tpl_string *name,
                                  tpl_value *result, bool *found)
{
    const tpl_body *body = macro->node->function;
    *found = true;
    if (tpl_same(name, "name")) {
        *result = macro->node->kind == NODE_MACRO ? macro->node->value : tpl_none();
        return NBL_OK;
    }
    if (tpl_same(name, "catch_kwargs")) return *result = tpl_bool(body->special[SPECIAL_KWARGS] >= 0), NBL_OK;
    if (tpl_same(name, "catch_varargs"))
        return *result = tpl_bool(body->special[SPECIAL_VARARGS] >= 0), NBL_OK;
    if (tpl_same(name, "caller")) return *result = tpl_bool(body->special[SPECIAL_CALLER] >= 0), NBL_OK;
    if (tpl_same(name, "explicit_caller")) return *result = tpl_bool(body->explicit_caller), NBL_OK;
    if (tpl_same(name, "arguments")) {
        tpl_value *items;
        NBL_TRY(nbl__tpl_list(vm, TPL_TUPLE, macro->node->list.count, result, &items));
        for (int64_t i = 0; i < macro->node->list.count; i++) items[i] = macro->node->list.items[i]->value;
        return NBL_OK;
    }
    *found = false;
    return NBL_OK;
}

/* range(1, 10, 2).start, .stop and .step. */
static nbl_status range_attribute(const tpl_range *range, const tpl_string *name, tpl_value *result,
                                  bool *found)
{
    *found = true;
    if (tpl_same(name, "start")) *result = tpl_int(range->start);
    else if (tpl_same(name, "stop")) *result = tpl_int(range->stop);
    else if (tpl_same(name, "step")) *result = tpl_int(range->step);
    else *found = false;
    return NBL_OK;
}

/* ---- methods of cyclers ---- */

/* next() returns the current item and moves on. After the last item the first one follows. */
static nbl_status call_next(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "next", args, "", 0, NULL));
    tpl_object *cycler = self.object;
    *result = cycler->value.list->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->value.list->count;
    return NBL_OK;
}

/* reset() begins with the first item again. */
static nbl_status call_reset(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "reset", args, "", 0, NULL));
    self.object->at = 0;
    *result = tpl_none();
    return NBL_OK;
}

/* The attributes of jinja2's classes Joiner and Cycler. self and blocks have none. */
static nbl_status object_attribute(tpl_vm *vm, tpl_value obj, const tpl_string *name, tpl_value *result,
                                   bool *found)
{
    static const tpl_method methods[] = {{"next", call_next}, {"reset", call_reset}, {NULL, NULL}};
    *found = true;
    if (obj.object->kind == TPL_JOINER && tpl_same(name, "sep")) return *result = obj.object->value, NBL_OK;
    if (obj.object->kind == TPL_JOINER && tpl_same(name, "used"))
        return *result = tpl_bool(obj.object->at), NBL_OK;
    if (obj.object->kind == TPL_CYCLER) {
        const tpl_method *method = find_method(methods, name);
        if (method) return nbl__tpl_function(vm, method->name, method->call, "Cycler", obj, result);
        if (tpl_same(name, "pos")) return *result = tpl_int(obj.object->at), NBL_OK;
        if (tpl_same(name, "items")) return *result = obj.object->value, NBL_OK;
        if (tpl_same(name, "current")) return *result = obj.object->value.list->items[obj.object->at], NBL_OK;
    }
    *found = false;
    return NBL_OK;
}

/* The attributes and methods that Python's type has. *safe is false for those that the sandbox
 * forbids; they still exist, so that obj.append is unsafe and not an item of obj. */
nbl_status nbl__tpl_python_attribute(tpl_vm *vm, tpl_value obj, const tpl_string *name, tpl_value *result,
                                     bool *found, bool *safe)
{
    static const char *const list_changes[] = {"append", "clear",  "pop",    "reverse", "insert",
                                               "sort",   "extend", "remove", NULL};
    static const char *const dict_changes[] = {"clear", "pop", "popitem", "setdefault", "update", NULL};
    const tpl_method *method = NULL;
    *found = true;
    *safe = true;
    /* count the reading of the name, which may be the long key of obj[key] */
    NBL_TRY(tpl_read(vm, name->size));
    if (name->size && name->bytes[0] == '_') {
        *found = is_dunder(obj, name);
        *safe = false;
        return NBL_OK;
    }
    switch ((tpl_type)obj.type) {
    case TPL_STRING:
        method = find_method(nbl__tpl_string_methods, name);
        if (method == NULL) method = find_method(nbl__tpl_split_methods, name);
        if (method == NULL) method = find_method(nbl__tpl_string_tests, name);
        break;
    case TPL_TUPLE:
        if (obj.list->group && tpl_same(name, "grouper")) return *result = obj.list->items[0], NBL_OK;
        if (obj.list->group && tpl_same(name, "list")) return *result = obj.list->items[1], NBL_OK;
        /* a tuple has the methods of a list (count, index), but for copy */
        if (!tpl_same(name, "copy")) method = find_method(nbl__tpl_list_methods, name);
        break;
    case TPL_LIST:
        if (in_words(list_changes, name)) return *safe = false, NBL_OK;
        method = find_method(nbl__tpl_list_methods, name);
        break;
    case TPL_DICT:
        if (in_words(dict_changes, name)) return *safe = false, NBL_OK;
        method = find_method(nbl__tpl_dict_methods, name);
        break;
    case TPL_BOOL:
    case TPL_INT:
    case TPL_BIG:
    case TPL_FLOAT: return number_attribute(vm, obj, name, result, found);
    case TPL_RANGE:
        NBL_TRY(range_attribute(obj.range, name, result, found));
        if (*found) return NBL_OK;
        method = find_method(nbl__tpl_range_methods, name);
        break;
    case TPL_NAMESPACE: {
        tpl_entry *entry = nbl__tpl_dict_get(obj.dict, name->bytes, name->size);
        *found = entry != NULL;
        if (entry) *result = entry->value;
        return NBL_OK;
    }
    case TPL_MACRO: return macro_attribute(vm, obj.macro, name, result, found);
    case TPL_LOOP: return nbl__tpl_loop_attribute(vm, obj.loop, name, result, found);
    case TPL_OBJECT: return object_attribute(vm, obj, name, result, found);
    case TPL_FUNCTION: /* `dict` is an object with one method */
        if (!obj.function->owner && strcmp(obj.function->name, "dict") == 0 && tpl_same(name, "fromkeys"))
            method = find_method(nbl__tpl_dict_methods, name);
        break;
    default: break;
    }
    *found = method != NULL;
    if (!method) return NBL_OK;
    return nbl__tpl_function(vm, method->name, method->call, nbl__tpl_type_name(obj), obj, result);
}

/* ---- subscripts ---- */

/* Converts an index to 0 … length - 1. Negative indices count from the end. *found is false for an
 * index out of range or of another type. */
static nbl_status by_index(tpl_value obj, tpl_value key, int64_t *at, bool *found)
{
    int64_t length;
    nbl__tpl_length(obj, &length);
    *found = tpl_is_integer(key);
    if (!*found) return NBL_OK;
    *at = key.integer < 0 ? key.integer + length : key.integer;
    *found = *at >= 0 && *at < length;
    return NBL_OK;
}

/* obj[key]; *found is false where Python raises TypeError or LookupError. */
static nbl_status python_item(tpl_vm *vm, tpl_value obj, tpl_value key, tpl_value *result, bool *found)
{
    int64_t at = 0;
    tpl_entry *entry;
    *found = false;
    switch ((tpl_type)obj.type) {
    case TPL_UNDEFINED: return nbl__tpl_raise_undefined(vm, obj);
    case TPL_DICT:
        /* Python raises TypeError for a key that cannot be hashed; jinja2 then looks for an
         * attribute */
        if (key.type == TPL_LIST || key.type == TPL_DICT) return NBL_OK;
        NBL_TRY(nbl__tpl_dict_find(vm, obj.dict, key, &entry));
        *found = entry != NULL;
        if (entry) *result = entry->value;
        return NBL_OK;
    case TPL_LIST:
    case TPL_TUPLE:
        NBL_TRY(by_index(obj, key, &at, found));
        if (*found) *result = obj.list->items[at];
        return NBL_OK;
    case TPL_RANGE:
        NBL_TRY(by_index(obj, key, &at, found));
        if (*found) *result = tpl_int(obj.range->start + at * obj.range->step);
        return NBL_OK;
    case TPL_STRING:
        NBL_TRY(by_index(obj, key, &at, found));
        if (!*found) return NBL_OK;
        NBL_TRY(nbl__tpl_substring(vm, obj.string, at, at + 1, result));
        result->markup = obj.markup;
        return NBL_OK;
    case TPL_OBJECT: { /* self.block */
        tpl_object *block;
        if (obj.object->kind != TPL_SELF || key.type != TPL_STRING) return NBL_OK;
        for (int64_t i = 0; i < vm->program->blocks.count && !*found; i++) {
            bool equal;
            NBL_TRY(nbl__tpl_equal(vm, vm->program->blocks.items[i]->value, key, &equal));
            if (!equal) continue;
            NBL_TRY(TPL_NEW(vm, block, 1));
            *block = (tpl_object){.kind = TPL_BLOCK, .value = key, .at = i};
            *result = (tpl_value){.type = TPL_OBJECT, .object = block};
            *found = true;
        }
        return NBL_OK;
    }
    default: return NBL_OK;
    }
}

/* Returns the name of an object for messages, as jinja2 writes it. */
static const char *described(tpl_vm *vm, tpl_value obj)
{
    if (obj.type == TPL_NONE) return "None";
    const char *type = nbl__tpl_type_name(obj);
    bool builtin = obj.type <= TPL_RANGE && !(obj.type == TPL_STRING && obj.markup);
    const char *module = builtin ? "" : obj.type == TPL_STRING ? "markupsafe." : "jinja2.runtime.";
    size_t size = strlen(module) + strlen(type) + 8;
    char *text = nbl__tpl_alloc(vm, size);
    if (text == NULL) return type;
    snprintf(text, size, "%s%s object", module, type);
    return text;
}

/* Makes the undefined value of an unsafe attribute. jinja2's message is its hint. */
static nbl_status unsafe(tpl_vm *vm, tpl_value obj, const tpl_string *name, tpl_value *result)
{
    char hint[256];
    int shown = name->size > 100 ? 100 : (int)name->size;
    snprintf(hint, sizeof hint, "access to attribute '%.*s' of '%s' object is unsafe.", shown, name->bytes,
             nbl__tpl_type_name(obj));
    tpl_value text;
    NBL_TRY(nbl__tpl_string_copy(vm, hint, strlen(hint) + 1, &text));
    return nbl__tpl_undefined(vm, text.string->bytes, NULL, tpl_none(), result);
}

/* An undefined object fails at once, as in jinja2: only the last name of a.b.c may be undefined. */
nbl_status nbl__tpl_getattr(tpl_vm *vm, tpl_value obj, tpl_value name, tpl_value *result)
{
    bool found, safe;
    if (obj.type == TPL_UNDEFINED && !is_dunder(obj, name.string)) return nbl__tpl_raise_undefined(vm, obj);
    NBL_TRY(nbl__tpl_python_attribute(vm, obj, name.string, result, &found, &safe));
    if (found) return safe ? NBL_OK : unsafe(vm, obj, name.string, result);
    NBL_TRY(python_item(vm, obj, name, result, &found));
    if (found) return NBL_OK;
    return nbl__tpl_undefined(vm, NULL, described(vm, obj), name, result);
}

/* obj[key]: the item first, then the attribute if the key is a text. The key of a dictionary thus
 * wins over its methods. */
nbl_status nbl__tpl_getitem(tpl_vm *vm, tpl_value obj, tpl_value key, tpl_value *result)
{
    bool found, safe;
    NBL_TRY(python_item(vm, obj, key, result, &found));
    if (found) return NBL_OK;
    if (key.type == TPL_STRING) {
        NBL_TRY(nbl__tpl_python_attribute(vm, obj, key.string, result, &found, &safe));
        if (found) return safe ? NBL_OK : unsafe(vm, obj, key.string, result);
    }
    return nbl__tpl_undefined(vm, NULL, described(vm, obj), key, result);
}
