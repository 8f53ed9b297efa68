/* jinja_filters.c - filters of single values: default, length, numbers, JSON, HTML.
 *
 * A filter binds its arguments (nbl__tpl_bind), converts the input as Python does, and stores
 * *result. The table at the end has the names; nbl__tpl_find_filter searches it.
 *
 * The input is not an argument: x|default('a', true) calls filter_default with v = x and two
 * arguments. Many filters of jinja2 are Python functions (len, abs). Their parameters have no
 * names: '/' in front. */
#include <math.h>
#include <stdio.h>

#include "text/template/runtime/jinja_runtime.h"

/* x|default(value, boolean): `value` if x is undefined; with `boolean` also if x is false. */
static nbl_status filter_default(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[2];
    bool boolean = false, truth = true;
    NBL_TRY(nbl__tpl_bind(vm, "default", args, "default_value boolean", 0, a));
    NBL_TRY(nbl__tpl_want_truth(vm, a[1], &boolean));
    if (boolean) NBL_TRY(nbl__tpl_truth(vm, v, &truth));
    if (v.type != TPL_UNDEFINED && truth) return *result = v, NBL_OK;
    return a[0].type == TPL_MISSING ? nbl__tpl_cstring(vm, "", result) : (*result = a[0], NBL_OK);
}

/* x|length: len(x), and for `loop` its length. */
static nbl_status filter_length(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "len", args, "/", 0, NULL));
    *result = tpl_int(0);
    if (v.type == TPL_LOOP) {
        bool found;
        static const tpl_string length = {"length", 6, 6};
        return nbl__tpl_loop_attribute(vm, v.loop, &length, result, &found);
    }
    if (nbl__tpl_length(v, &result->integer)) return NBL_OK;
    return nbl__tpl_raise(vm, "TypeError: object of type '%s' has no len()", nbl__tpl_type_name(v));
}

/* x|string: str(x); safe HTML stays safe. */
static nbl_status filter_string(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "string", args, "", 0, NULL));
    return nbl__tpl_soft_str(vm, v, result);
}

/* x|attr('name'): an attribute, never an item; jinja2's x.name tries both. */
static nbl_status filter_attr(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value name;
    bool found, safe;
    NBL_TRY(nbl__tpl_bind(vm, "attr", args, "name", 1, &name));
    if (name.type != TPL_STRING)
        return nbl__tpl_raise(vm, "TypeError: attribute name must be string, not '%s'",
                              nbl__tpl_type_name(name));
    /* a missing attribute is undefined; an existing one passes the checks of the sandbox */
    if (v.type != TPL_UNDEFINED) {
        NBL_TRY(nbl__tpl_python_attribute(vm, v, name.string, result, &found, &safe));
        if (!found) return nbl__tpl_undefined(vm, NULL, nbl__tpl_type_name(v), name, result);
    }
    return nbl__tpl_getattr(vm, v, name, result);
}

/* ---- numbers ---- */

/* x|abs. abs(-2^63) does not fit 64 bits and becomes a TPL_BIG. */
static nbl_status filter_abs(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "abs", args, "/", 0, NULL));
    if (v.type == TPL_FLOAT) return *result = tpl_float(fabs(v.real)), NBL_OK;
    if (v.type == TPL_UNDEFINED)
        return nbl__tpl_raise(vm, "TypeError: bad operand type for abs(): 'Undefined'");
    if (tpl_is_integer(v)) return nbl__tpl_unary(vm, v.integer < 0, v, result);
    if (v.type == TPL_BIG) {
        if (v.string->bytes[0] == '-') return nbl__tpl_unary(vm, true, v, result);
        return *result = v, NBL_OK;
    }
    return nbl__tpl_raise(vm, "TypeError: bad operand type for abs(): '%s'", nbl__tpl_type_name(v));
}

/* int(float(v)), or the fallback if v cannot be converted. */
static nbl_status int_by_float(tpl_vm *vm, tpl_value v, tpl_value fallback, tpl_value *result)
{
    double real = 0;
    bool good = false;
    *result = fallback;
    if (v.type == TPL_STRING) NBL_TRY(nbl__tpl_parse_float(vm, v.string, &real, &good));
    return good && isfinite(real) ? nbl__tpl_to_int(vm, real, result) : NBL_OK;
}

/* x|int(default, base): a text is read as int(text, base), then as int(float(text)); what cannot be
 * converted becomes the default. '1.5'|int is 1, 'a'|int is 0. */
static nbl_status filter_int(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[2];
    int64_t base = 10;
    bool good = false;
    NBL_TRY(nbl__tpl_bind(vm, "int", args, "default base", 0, a));
    if (a[0].type == TPL_MISSING) a[0] = tpl_int(0);
    if (v.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, v);
    if (v.type == TPL_STRING) {
        if (a[1].type == TPL_MISSING || tpl_is_integer(a[1])) {
            NBL_TRY(nbl__tpl_want_int(vm, a[1], &base));
            NBL_TRY(nbl__tpl_parse_int(vm, v.string, base, result, &good));
        }
        return good ? NBL_OK : int_by_float(vm, v, a[0], result);
    }
    if (tpl_is_integer(v)) return *result = tpl_int(v.integer), NBL_OK;
    if (v.type == TPL_BIG) return *result = v, NBL_OK;
    if (v.type == TPL_FLOAT && isfinite(v.real)) return nbl__tpl_to_int(vm, v.real, result);
    if (v.type == TPL_FLOAT && isinf(v.real))
        return nbl__tpl_to_int(vm, v.real, result); /* jinja2 does not catch OverflowError */
    *result = a[0];
    return NBL_OK;
}

/* x|float(default). An integer beyond 64 bits is converted from its digits. */
static nbl_status filter_float(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value fallback;
    bool good = false;
    *result = tpl_float(0);
    NBL_TRY(nbl__tpl_bind(vm, "float", args, "default", 0, &fallback));
    if (v.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, v);
    if (v.type == TPL_BIG) NBL_TRY(nbl__tpl_parse_float(vm, v.string, &result->real, &good));
    if (tpl_is_number(v)) return result->real = tpl_as_double(v), NBL_OK;
    if (v.type == TPL_STRING) NBL_TRY(nbl__tpl_parse_float(vm, v.string, &result->real, &good));
    if (!good) *result = fallback.type == TPL_MISSING ? tpl_float(0) : fallback;
    return NBL_OK;
}

/* round(int, digits) for negative digits. Ties are rounded to even. */
static nbl_status round_int(tpl_vm *vm, int64_t v, int64_t digits, tpl_value *result)
{
    int64_t unit = 1;
    for (int64_t i = digits; i < 0; i++)
        if (__builtin_mul_overflow(unit, (int64_t)10, &unit)) return *result = tpl_int(0), NBL_OK;
    int64_t rest = ((v % unit) + unit) % unit, low = v - rest;
    bool up = rest > unit / 2 || (unit > 1 && rest * 2 == unit && (low / unit) % 2 != 0);
    if (up && __builtin_add_overflow(low, unit, &low))
        return nbl__tpl_refuse(vm, "an integer beyond 64 bits");
    return *result = tpl_int(low), NBL_OK;
}

/* x|round(precision, method). "common" is Python's round(), half to even. "ceil" and "floor" scale
 * by 10**precision first, as jinja2 does: floor(x * 10**p) / 10**p. */
static nbl_status filter_round(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[2], ten, scaled;
    int64_t digits = 0;
    bool ceiling = false, common = true;
    NBL_TRY(nbl__tpl_bind(vm, "round", args, "precision method", 0, a));
    if (a[1].type != TPL_MISSING) {
        bool text = a[1].type == TPL_STRING;
        common = text && tpl_same(a[1].string, "common");
        ceiling = text && tpl_same(a[1].string, "ceil");
        if (!common && !ceiling && !(text && tpl_same(a[1].string, "floor")))
            return nbl__tpl_raise(vm, "method must be common, ceil or floor");
    }
    if (v.type == TPL_UNDEFINED && common)
        return nbl__tpl_raise(vm, "TypeError: type Undefined doesn't define __round__ method");
    if (common && a[0].type == TPL_NONE) { /* to an integer */
        if (v.type == TPL_FLOAT) return nbl__tpl_to_int(vm, rint(v.real), result);
        a[0] = tpl_missing();
    }
    NBL_TRY(nbl__tpl_want_int(vm, a[0], &digits));
    if (!common) {
        NBL_TRY(nbl__tpl_binary(vm, OP_POW, tpl_int(10), tpl_int(digits), &ten));
        NBL_TRY(nbl__tpl_binary(vm, OP_MUL, v, ten, &scaled));
        if (!tpl_is_number(scaled))
            return nbl__tpl_raise(vm, "TypeError: must be real number, not %s", nbl__tpl_type_name(scaled));
        if (scaled.type == TPL_FLOAT)
            NBL_TRY(nbl__tpl_to_int(vm, ceiling ? ceil(scaled.real) : floor(scaled.real), &scaled));
        return nbl__tpl_binary(vm, OP_DIV, scaled, ten, result);
    }
    if (v.type == TPL_FLOAT) return *result = tpl_float(nbl__tpl_round(v.real, digits)), NBL_OK;
    if (tpl_is_integer(v))
        return digits >= 0 ? (*result = tpl_int(v.integer), NBL_OK)
                           : round_int(vm, v.integer, digits, result);
    if (v.type == TPL_BIG) return nbl__tpl_refuse(vm, "rounding of an integer beyond 64 bits");
    return nbl__tpl_raise(vm, "TypeError: type %s doesn't define __round__ method", nbl__tpl_type_name(v));
}

/* 1000000|filesizeformat is "1.0 MB"; with `binary` it counts in 1024: "976.6 KiB". */
static nbl_status filter_filesizeformat(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    static const char *const names[] = {"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"};
    static const char *const binary_names[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"};
    tpl_value a;
    tpl_text text = {0};
    bool binary = false, good = true;
    double bytes = 0;
    NBL_TRY(nbl__tpl_bind(vm, "filesizeformat", args, "binary", 0, &a));
    NBL_TRY(nbl__tpl_want_truth(vm, a, &binary));
    if (tpl_is_number(v)) bytes = tpl_as_double(v);
    else if (v.type == TPL_STRING) NBL_TRY(nbl__tpl_parse_float(vm, v.string, &bytes, &good));
    else
        return v.type == TPL_UNDEFINED
                   ? nbl__tpl_raise_undefined(vm, v)
                   : nbl__tpl_raise(vm,
                                    "TypeError: float() argument must be a string or a real number, not '%s'",
                                    nbl__tpl_type_name(v));
    if (!good) return nbl__tpl_raise(vm, "ValueError: could not convert string to float");
    double base = binary ? 1024 : 1000, unit = base;
    if (bytes == 1) return nbl__tpl_cstring(vm, "1 Byte", result);
    if (bytes < base || isnan(bytes)) {
        tpl_value whole;
        NBL_TRY(nbl__tpl_to_int(vm, bytes, &whole));
        NBL_TRY(nbl__tpl_add_str(vm, &text, whole));
        NBL_TRY(tpl_add_c(vm, &text, " Bytes"));
        return nbl__tpl_take(vm, &text, result);
    }
    int i = 0;
    for (unit = base * base; i < 7 && bytes >= unit; i++) unit *= base;
    NBL_TRY(nbl__tpl_add_fixed(vm, &text, base * bytes / unit, 1, 'f', false));
    NBL_TRY(tpl_add_c(vm, &text, " "));
    NBL_TRY(tpl_add_c(vm, &text, binary ? binary_names[i] : names[i]));
    return nbl__tpl_take(vm, &text, result);
}

/* ---- JSON ---- */

/* Reads the indent of tojson: a number of blanks, or a text. None: all in one line. */
static nbl_status json_indent(tpl_vm *vm, tpl_value v, nbl__json_style *style)
{
    if (v.type == TPL_MISSING || v.type == TPL_NONE) return NBL_OK;
    if (v.type == TPL_STRING) {
        style->indent = v.string->bytes;
        style->indent_size = v.string->size;
        return NBL_OK;
    }
    int64_t width = 0;
    char *blanks;
    NBL_TRY(nbl__tpl_want_int(vm, v, &width));
    if (width > 4096) return nbl__tpl_refuse(vm, "an indent of more than 4096 blanks");
    if (width < 0) width = 0;
    NBL_TRY(TPL_NEW(vm, blanks, width + 1));
    memset(blanks, ' ', (size_t)width);
    style->indent = blanks;
    style->indent_size = (size_t)width;
    return NBL_OK;
}

/* x|tojson as transformers defines it: json.dumps with ensure_ascii=False and the keys in their
 * order. jinja2's own filter sorts keys and escapes HTML; chat templates run with that of
 * transformers. */
static nbl_status filter_tojson(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[4];
    tpl_text text = {0};
    nbl__json_style style = nbl__json_style_line;
    bool sort = false;
    NBL_TRY(nbl__tpl_bind(vm, "tojson", args, "ensure_ascii indent separators sort_keys", 0, a));
    NBL_TRY(nbl__tpl_want_truth(vm, a[0], &style.ascii));
    /* the four options of json.dumps that the filter has; a[2]: between items, behind keys */
    NBL_TRY(json_indent(vm, a[1], &style));
    NBL_TRY(nbl__tpl_want_truth(vm, a[3], &sort));
    if (style.indent) style.item = (nbl_string){",", 1};
    if (a[2].type != TPL_MISSING && a[2].type != TPL_NONE) {
        tpl_items pair = {0};
        NBL_TRY(nbl__tpl_collect(vm, a[2], &pair));
        if (pair.count != 2) return nbl__tpl_raise(vm, "ValueError: separators must be two texts");
        const tpl_string *item = NULL, *key = NULL;
        NBL_TRY(nbl__tpl_want_string(vm, pair.items[0], &item));
        NBL_TRY(nbl__tpl_want_string(vm, pair.items[1], &key));
        style.item = (nbl_string){item->bytes, item->size};
        style.key = (nbl_string){key->bytes, key->size};
    }
    NBL_TRY(nbl__tpl_to_json(vm, &text, v, &style, sort));
    return nbl__tpl_take(vm, &text, result);
}

/* ---- HTML ---- */

/* x|safe marks a text as safe HTML. Nothing is checked. */
static nbl_status filter_safe(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "safe", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_str(vm, v, result));
    result->markup = true;
    return NBL_OK;
}

/* x|escape: HTML, unless x is safe already. forceescape also escapes safe HTML. */
static nbl_status filter_escape(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "escape", args, "/", 0, NULL));
    return nbl__tpl_escape(vm, v, result);
}

/* x|forceescape: escaped, even if x is safe HTML already. */
static nbl_status filter_forceescape(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "forceescape", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_str(vm, v, &v));
    return nbl__tpl_escape(vm, v, result);
}

/* {'a': 1, 'b': none}|xmlattr is ' a="1"'. Values that are none or undefined are left out. */
static nbl_status filter_xmlattr(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a, part;
    tpl_text text = {0};
    bool space = true;
    NBL_TRY(nbl__tpl_bind(vm, "xmlattr", args, "autospace", 0, &a));
    NBL_TRY(nbl__tpl_want_truth(vm, a, &space));
    if (v.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, v);
    if (v.type != TPL_DICT)
        return nbl__tpl_raise(vm, "AttributeError: '%s' object has no attribute 'items'",
                              nbl__tpl_type_name(v));
    for (int64_t i = 0; i < v.dict->count; i++) {
        const tpl_entry *entry = &v.dict->entries[i];
        if (entry->value.type == TPL_NONE || entry->value.type == TPL_UNDEFINED) continue;
        if (entry->key.type != TPL_STRING)
            return nbl__tpl_raise(vm, "TypeError: expected string or bytes-like object");
        for (size_t k = 0; k < entry->key.string->size; k++) {
            char c = entry->key.string->bytes[k];
            /* an attribute name with one of these characters could add another attribute */
            if (c == '/' || c == '>' || c == '=' || c == ' ' || (c >= 9 && c <= 13))
                return nbl__tpl_raise(vm, "ValueError: Invalid character in attribute name: %s",
                                      nbl__tpl_shown(vm, entry->key));
        }
        if (text.size || space) NBL_TRY(tpl_add_c(vm, &text, " "));
        NBL_TRY(nbl__tpl_escape(vm, entry->key, &part));
        NBL_TRY(nbl__tpl_add_string(vm, &text, part.string));
        NBL_TRY(tpl_add_c(vm, &text, "=\""));
        NBL_TRY(nbl__tpl_escape(vm, entry->value, &part));
        NBL_TRY(nbl__tpl_add_string(vm, &text, part.string));
        NBL_TRY(tpl_add_c(vm, &text, "\""));
    }
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = vm->autoescape;
    return NBL_OK;
}

/* Filters of jinja2 that a chat does not need. They are known names; running one is an error. */
static nbl_status filter_refused(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    (void)v, (void)args, (void)result;
    return nbl__tpl_refuse(vm, "the filters pprint, random, urlize and wordwrap are not supported");
}

const tpl_filter nbl__tpl_value_filters[] = {
    {"tojson", filter_tojson},    {"default", filter_default},
    {"d", filter_default},        {"length", filter_length},
    {"count", filter_length},     {"string", filter_string},
    {"int", filter_int},          {"float", filter_float},
    {"abs", filter_abs},          {"round", filter_round},
    {"attr", filter_attr},        {"filesizeformat", filter_filesizeformat},
    {"safe", filter_safe},        {"escape", filter_escape},
    {"e", filter_escape},         {"forceescape", filter_forceescape},
    {"xmlattr", filter_xmlattr},  {"pprint", filter_refused},
    {"random", filter_refused},   {"urlize", filter_refused},
    {"wordwrap", filter_refused}, {NULL, NULL},
};
