/* jinja_format.c - str.format and str.format_map.
 *
 *     '{} {name.x[0]!r:>{width}}'.format(a, name=b, width=8)
 *       │   │         │   └ specification, which may contain fields itself
 *       │   │         └ conversion: r (repr) or s (str)
 *       │   └ an argument by name; then attributes and items
 *       └ the next positional argument
 *
 * Attributes and items follow the rules of the sandbox, so that "{a.__class__}" gives nothing away.
 *
 * Numbered ({0}) and automatic ({}) fields cannot be mixed, as in Python. A specification is parsed
 * by read_spec, and its fields are formatted first; this nests once. */
#include <math.h>

#include "base/number.h"
#include "text/template/runtime/jinja_field.h"

/* One call of format (args) or of format_map (dict). */
typedef struct formatter {
    tpl_vm *vm;
    const tpl_args *args; /* arguments of format */
    const tpl_dict *dict; /* argument of format_map */
    int64_t automatic;    /* the next automatic field number; -1: the fields have numbers */
    bool markup;
} formatter;

/* Reads a specification: [[fill]align][sign][#][0][width][, or _][.precision][code]. A fill may be
 * any character, also one of the alignments: "<<5". */
static nbl_status read_spec(tpl_vm *vm, const tpl_string *spec, bool number, tpl_field *f)
{
    const char *at = spec->bytes, *end = at + spec->size;
    int size = 0;
    bool filled = false; /* the specification names the padding character */
    *f = (tpl_field){.fill = ' ', .precision = -1};
    if (at < end) tpl_char(at, &size);
    if (at < end && at + size < end && strchr("<>=^", at[size]) && at[size]) {
        f->fill = tpl_char(at, &size);
        f->align = at[size];
        at += size + 1;
        filled = true;
    } else if (at < end && *at && strchr("<>=^", *at)) {
        f->align = *at++;
    }
    if (at < end && (*at == '+' || *at == ' ' || *at == '-')) f->sign = *at++;
    if (at < end && *at == 'z') return nbl__tpl_refuse(vm, "the option z of a format is not supported");
    if (at < end && *at == '#') f->alternate = true, at++;
    if (at < end && *at == '0' && !filled) {
        f->fill = '0';
        if (!f->align && number) f->align = '=';
        at++;
    }
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        f->width = f->width * 10 + (*at - '0');
        if (f->width > INT32_MAX)
            return nbl__tpl_raise(vm, "ValueError: Too many decimal digits in format string");
    }
    if (at < end && (*at == ',' || *at == '_')) f->grouping = *at++;
    if (at < end && *at == '.') {
        f->precision = 0;
        if (++at == end || *at < '0' || *at > '9')
            return nbl__tpl_raise(vm, "ValueError: Format specifier missing precision");
        for (; at < end && *at >= '0' && *at <= '9'; at++) {
            f->precision = f->precision * 10 + (*at - '0');
            if (f->precision > INT32_MAX) return nbl__tpl_raise(vm, "ValueError: precision too big");
        }
    }
    if (at < end) f->kind = *at++;
    return at < end ? nbl__tpl_raise(vm, "ValueError: Invalid format specifier") : NBL_OK;
}

/* Python's error for a code that does not fit the type. */
static nbl_status bad_code(tpl_vm *vm, char kind, tpl_value v)
{
    return nbl__tpl_raise(vm, "ValueError: Unknown format code '%c' for object of type '%s'", kind,
                          nbl__tpl_type_name(v));
}

/* Formats a float. Without a code Python writes its repr, not 6 digits. */
static nbl_status format_float(tpl_vm *vm, tpl_field *f, double v, tpl_text *out)
{
    char text[40];
    if (f->kind == 'n') return nbl__tpl_refuse(vm, "the format code n is not supported");
    if (f->kind == 0 && f->precision < 0) {
        nbl__print_repr(fabs(v), text);
        return nbl__tpl_put_number(vm, f, signbit(v) && !isnan(v), "", text, 3, out);
    }
    if (f->kind == 0) return nbl__tpl_refuse(vm, "a float with a precision and no format code");
    if (f->kind == '%') {
        tpl_text digits = {0};
        NBL_TRY(nbl__tpl_add_fixed(vm, &digits, fabs(v) * 100, f->precision < 0 ? 6 : f->precision, 'f',
                                   f->alternate));
        NBL_TRY(nbl__tpl_add(vm, &digits, "%", 2));
        return nbl__tpl_put_number(vm, f, signbit(v) && !isnan(v), "", digits.bytes, 3, out);
    }
    return nbl__tpl_put_float(vm, f, v, f->kind, f->precision < 0 ? 6 : f->precision, out);
}

/* Formats a value by its type. Texts allow s, integers the codes of integers and floats, floats
 * those of floats; other types allow an empty specification only. */
static nbl_status format_value(tpl_vm *vm, tpl_value v, const tpl_string *spec, tpl_text *out)
{
    tpl_field f;
    if (spec->size == 0) return nbl__tpl_add_str(vm, out, v);
    NBL_TRY(read_spec(vm, spec, v.type != TPL_STRING, &f));
    if (v.type == TPL_STRING) {
        if (f.kind && f.kind != 's') return bad_code(vm, f.kind, v);
        if (f.sign || f.alternate || f.grouping || f.align == '=')
            return nbl__tpl_raise(vm, "ValueError: not allowed in string format specifier");
        return nbl__tpl_put_string(vm, &f, v.string, '<', out);
    }
    if (tpl_is_integer(v)) {
        if (f.kind && strchr("eEfFgG%", f.kind)) return format_float(vm, &f, tpl_as_double(v), out);
        if (f.kind && !strchr("dxXob", f.kind))
            return f.kind == 'c' || f.kind == 'n' ? nbl__tpl_refuse(vm, "the format codes c and n")
                                                  : bad_code(vm, f.kind, v);
        if (f.precision >= 0)
            return nbl__tpl_raise(vm, "ValueError: Precision not allowed in integer format specifier");
        if (f.grouping == ',' && f.kind && f.kind != 'd')
            return nbl__tpl_raise(vm, "ValueError: Cannot specify ',' with '%c'.", f.kind);
        return nbl__tpl_put_integer(vm, &f, v.integer, f.kind ? f.kind : 'd', out);
    }
    if (v.type == TPL_FLOAT) {
        if (f.kind && !strchr("eEfFgG%n", f.kind)) return bad_code(vm, f.kind, v);
        return format_float(vm, &f, v.real, out);
    }
    if (v.type == TPL_BIG) return nbl__tpl_refuse(vm, "formatting of an integer beyond 64 bits");
    return nbl__tpl_raise(vm, "TypeError: unsupported format string passed to %s.__format__",
                          nbl__tpl_type_name(v));
}

/* Returns the value of a field: an argument by number or name, then attributes and items. */
static nbl_status field_value(formatter *f, const char *at, const char *end, tpl_value *value)
{
    tpl_vm *vm = f->vm;
    const char *first = at;
    int64_t number = 0;
    bool digits = true;
    while (at < end && *at != '.' && *at != '[') {
        digits &= *at >= '0' && *at <= '9';
        if (digits && number < INT32_MAX) number = number * 10 + (*at - '0');
        at++;
    }
    if (at == first) {
        if (f->automatic < 0)
            return nbl__tpl_raise(
                vm, "ValueError: cannot switch from manual field specification to automatic field numbering");
        number = f->automatic++;
    } else if (digits) {
        if (f->automatic > 0)
            return nbl__tpl_raise(
                vm, "ValueError: cannot switch from automatic field numbering to manual field specification");
        f->automatic = -1;
    }
    /* a name: a member of the mapping, else a keyword argument */
    if (digits) {
        if (number >= f->args->count)
            return nbl__tpl_raise(vm, "IndexError: Replacement index %" PRId64 " out of range", number);
        *value = f->args->items[number];
    } else {
        tpl_value name;
        tpl_entry *entry = f->dict ? nbl__tpl_dict_get(f->dict, first, (size_t)(at - first)) : NULL;
        const tpl_value *found = entry ? &entry->value : NULL;
        for (int64_t i = 0; i < f->args->keyword_count && !found; i++) {
            const tpl_string *own = f->args->keywords[i].name.string;
            if (own->size == (size_t)(at - first) && memcmp(own->bytes, first, own->size) == 0)
                found = &f->args->keywords[i].value;
        }
        NBL_TRY(nbl__tpl_string(vm, first, (size_t)(at - first), &name));
        if (!found) return nbl__tpl_raise(vm, "KeyError: %s", nbl__tpl_shown(vm, name));
        *value = *found;
    }
    /* then attributes and items, each of the value before */
    while (at < end) {
        tpl_value key;
        bool item = *at++ == '[';
        const char *begin = at;
        while (at < end && (item ? *at != ']' : *at != '.' && *at != '[')) at++;
        if (at == begin || (item && at == end))
            return nbl__tpl_raise(vm, "ValueError: Empty attribute in format string");
        NBL_TRY(nbl__tpl_string(vm, begin, (size_t)(at - begin), &key));
        if (item && strspn(begin, "0123456789") >= (size_t)(at - begin)) {
            bool good;
            NBL_TRY(nbl__tpl_parse_int(vm, key.string, 10, &key, &good));
        }
        if (item) {
            at++;
            if (at < end && *at != '.' && *at != '[')
                return nbl__tpl_raise(vm,
                                      "ValueError: Only '.' or '[' may follow ']' in format field specifier");
        }
        NBL_TRY(item ? nbl__tpl_getitem(vm, *value, key, value) : nbl__tpl_getattr(vm, *value, key, value));
    }
    return NBL_OK;
}

static nbl_status format_text(formatter *f, const char *at, const char *end, int depth, tpl_text *out);

/* Formats one field, from behind '{' up to its '}'. */
static nbl_status format_field(formatter *f, const char **position, const char *end, int depth, tpl_text *out)
{
    tpl_vm *vm = f->vm;
    const char *at = *position, *name = at;
    int nested = 1;
    bool bracket = false;
    /* find the end of the name; inside [ ] all characters belong to the key */
    for (; at < end; at++) {
        if (*at == '[') bracket = true;
        else if (*at == ']') bracket = false;
        else if (!bracket && (*at == ':' || *at == '!' || *at == '}')) break;
        else if (!bracket && *at == '{')
            return nbl__tpl_raise(vm, "ValueError: unexpected '{' in field name");
    }
    const char *name_end = at;
    char conversion = 0;
    if (at < end && *at == '!') {
        if (at + 2 >= end || (at[2] != ':' && at[2] != '}'))
            return nbl__tpl_raise(vm, "ValueError: expected ':' after conversion specifier");
        conversion = at[1];
        at += 2;
    }
    const char *spec = at < end && *at == ':' ? at + 1 : at;
    /* find the end of the specification; its own fields nest */
    for (at = spec; at < end; at++) {
        nested += *at == '{' ? 1 : *at == '}' ? -1 : 0;
        if (nested == 0) break;
    }
    if (at == end) return nbl__tpl_raise(vm, "ValueError: expected '}' before end of string");
    *position = at + 1;
    tpl_value value, text;
    tpl_text made = {0};
    NBL_TRY(field_value(f, name, name_end, &value));
    if (conversion == 's') NBL_TRY(nbl__tpl_str(vm, value, &value));
    else if (conversion == 'r') {
        NBL_TRY(nbl__tpl_add_repr(vm, &made, value));
        NBL_TRY(nbl__tpl_take(vm, &made, &value));
    } else if (conversion == 'a') {
        return nbl__tpl_refuse(vm, "the conversion !a is not supported");
    } else if (conversion) {
        return nbl__tpl_raise(vm, "ValueError: Unknown conversion specifier");
    }
    made = (tpl_text){0};
    if (depth == 0) return nbl__tpl_raise(vm, "ValueError: Max string recursion exceeded");
    NBL_TRY(format_text(f, spec, at, depth - 1, &made));
    NBL_TRY(nbl__tpl_take(vm, &made, &text));
    /* safe HTML ("markup") escapes every field that is not safe */
    made = (tpl_text){0};
    NBL_TRY(format_value(vm, value, text.string, f->markup ? &made : out));
    if (!f->markup) return NBL_OK;
    NBL_TRY(nbl__tpl_take(vm, &made, &text));
    text.markup = value.type == TPL_STRING && value.markup;
    NBL_TRY(nbl__tpl_escape(vm, text, &text));
    return nbl__tpl_add_string(vm, out, text.string);
}

/* Formats text with fields. "{{" and "}}" are the characters { and }. `depth`: levels of nested
 * fields that are still allowed. */
static nbl_status format_text(formatter *f, const char *at, const char *end, int depth, tpl_text *out)
{
    while (at < end) {
        const char *run = at;
        while (at < end && *at != '{' && *at != '}') at++;
        NBL_TRY(nbl__tpl_add(f->vm, out, run, (size_t)(at - run)));
        if (at == end) break;
        char c = *at++;
        if (at < end && *at == c) {
            NBL_TRY(nbl__tpl_add(f->vm, out, &c, 1));
            at++;
        } else if (c == '}') {
            return nbl__tpl_raise(f->vm, "ValueError: Single '}' encountered in format string");
        } else if (at == end) {
            return nbl__tpl_raise(f->vm, "ValueError: Single '{' encountered in format string");
        } else {
            NBL_TRY(format_field(f, &at, end, depth, out));
        }
    }
    return NBL_OK;
}

/* Nesting is allowed two deep, as in Python: a field, and a field in its specification. */
static nbl_status run_format(formatter *f, tpl_value self, tpl_value *result)
{
    tpl_text out = {0};
    f->markup = self.markup;
    NBL_TRY(format_text(f, self.string->bytes, self.string->bytes + self.string->size, 2, &out));
    NBL_TRY(nbl__tpl_take(f->vm, &out, result));
    result->markup = self.markup;
    return NBL_OK;
}

nbl_status nbl__tpl_format(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    formatter f = {.vm = vm, .args = args};
    NBL_TRY(tpl_read(vm, self.string->size));
    return run_format(&f, self, result);
}

nbl_status nbl__tpl_format_map(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value mapping;
    tpl_args none = {0};
    NBL_TRY(nbl__tpl_bind(vm, "format_map", args, "/mapping", 1, &mapping));
    NBL_TRY(tpl_read(vm, self.string->size));
    formatter f = {.vm = vm, .args = &none, .dict = mapping.type == TPL_DICT ? mapping.dict : NULL};
    return run_format(&f, self, result);
}
