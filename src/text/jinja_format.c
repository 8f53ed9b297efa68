/* jinja_format.c - text made by patterns: "%s" % values, and "{}".format(values). */
#include <math.h>
#include <stdio.h>

#include "text/jinja_runtime.h"

/* ---- fields: text with a width ---- */

typedef struct field {
    uint32_t fill;
    char align;      /* '<' '>' '^' '=' or 0 */
    char sign;       /* '+' ' ' or 0 */
    char grouping;   /* ',' '_' or 0 */
    char kind;       /* conversion, or 0 */
    bool alternate, zero;
    int64_t width, precision; /* -1: none */
} field;

/* Digits with a separator between groups. */
static nbl_status group(tpl_vm *vm, const char *digits, char separator, int size, tpl_text *out)
{
    size_t whole = strspn(digits, "0123456789abcdefABCDEF");
    if (strchr(digits, 'n') || strchr(digits, 'i')) whole = 0; /* nan, inf */
    for (size_t i = 0; i < whole; i++) {
        if (i && (whole - i) % (size_t)size == 0) NBL_TRY(nbl__tpl_add(vm, out, &separator, 1));
        NBL_TRY(nbl__tpl_add(vm, out, &digits[i], 1));
    }
    return tpl_add_c(vm, out, digits + whole);
}

/* A number: sign, prefix and body, padded. */
static nbl_status put_number(tpl_vm *vm, const field *f, bool negative, const char *prefix, const char *body,
                             int group_size, tpl_text *out)
{
    tpl_text digits = {0};
    const char *sign = negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    if (f->grouping) NBL_TRY(group(vm, body, f->grouping, group_size, &digits));
    else NBL_TRY(tpl_add_c(vm, &digits, body));
    int64_t length = (int64_t)(strlen(sign) + strlen(prefix) + digits.size), missing = f->width - length;
    if (missing > TPL_MOST_OUTPUT) return nbl__tpl_refuse(vm, "a field of this width is too long");
    char align = f->align ? f->align : '>';
    if (f->grouping && align == '=' && f->fill == '0' && missing > 0)
        return nbl__tpl_refuse(vm, "a grouped number padded with zeros is not supported");
    int64_t left = align == '<' || align == '=' ? 0 : align == '^' ? missing / 2 : missing;
    for (int64_t i = 0; i < left; i++) NBL_TRY(nbl__tpl_add_char(vm, out, f->fill));
    NBL_TRY(tpl_add_c(vm, out, sign));
    NBL_TRY(tpl_add_c(vm, out, prefix));
    for (int64_t i = 0; align == '=' && i < missing; i++) NBL_TRY(nbl__tpl_add_char(vm, out, f->fill));
    NBL_TRY(nbl__tpl_add(vm, out, digits.bytes, digits.size));
    for (int64_t i = left; (align == '<' || align == '^') && i < missing; i++)
        NBL_TRY(nbl__tpl_add_char(vm, out, f->fill));
    return NBL_OK;
}

static nbl_status put_string(tpl_vm *vm, const field *f, const tpl_string *s, char usual, tpl_text *out)
{
    tpl_value cut, padded;
    int64_t length = (int64_t)s->length;
    if (f->precision >= 0 && f->precision < length) length = f->precision;
    NBL_TRY(nbl__tpl_substring(vm, s, 0, length, &cut));
    char align = f->align ? f->align : usual;
    if (align == '^') { /* the odd blank goes to the right, unlike str.center */
        tpl_text text = {0};
        int64_t missing = f->width - length;
        if (missing > TPL_MOST_OUTPUT) return nbl__tpl_refuse(vm, "a field of this width is too long");
        for (int64_t i = 0; i < missing / 2; i++) NBL_TRY(nbl__tpl_add_char(vm, &text, f->fill));
        NBL_TRY(nbl__tpl_add_string(vm, &text, cut.string));
        for (int64_t i = missing / 2; i < missing; i++) NBL_TRY(nbl__tpl_add_char(vm, &text, f->fill));
        NBL_TRY(nbl__tpl_take(vm, &text, &padded));
    } else {
        NBL_TRY(nbl__tpl_center(vm, cut.string, f->width, f->fill, align == '>' ? 1 : -1, &padded));
    }
    return nbl__tpl_add_string(vm, out, padded.string);
}

/* The digits of an integer in the base of a conversion. */
static const char *base_digits(uint64_t n, char kind, char text[72])
{
    char *at = text + 71;
    uint64_t base = kind == 'x' || kind == 'X' ? 16 : kind == 'o' ? 8 : kind == 'b' ? 2 : 10;
    *at = '\0';
    do {
        int digit = (int)(n % base);
        *--at = (char)(digit < 10 ? '0' + digit : (kind == 'X' ? 'A' : 'a') + digit - 10);
    } while (n /= base);
    return at;
}

static nbl_status put_integer(tpl_vm *vm, const field *f, int64_t value, char kind, tpl_text *out)
{
    char digits[72], body[1200];
    uint64_t size = value < 0 ? -(uint64_t)value : (uint64_t)value;
    const char *text = base_digits(size, kind, digits);
    const char *prefix = !f->alternate ? "" : kind == 'x' ? "0x" : kind == 'X' ? "0X" : kind == 'o' ? "0o"
                         : kind == 'b' ? "0b" : "";
    if (f->precision > 1000) return nbl__tpl_refuse(vm, "a precision of more than 1000 digits");
    int zeros = (int)nbl__max_i64(0, f->precision - (int64_t)strlen(text)); /* only '%' has one here */
    memset(body, '0', (size_t)zeros);
    memcpy(body + zeros, text, strlen(text) + 1);
    return put_number(vm, f, value < 0, prefix, body, kind == 'd' ? 3 : 4, out);
}

static nbl_status put_float(tpl_vm *vm, const field *f, double value, char kind, int64_t precision, tpl_text *out)
{
    tpl_text text = {0};
    NBL_TRY(nbl__tpl_add_fixed(vm, &text, fabs(value), precision, kind, f->alternate));
    if (isnan(value)) value = 0;
    NBL_TRY(nbl__tpl_add(vm, &text, "", 1));
    return put_number(vm, f, signbit(value), "", text.bytes, 3, out);
}

/* ---- % ---- */

typedef struct percent {
    tpl_vm *vm;
    tpl_value values;
    int64_t at;
    bool markup, mapping_used;
} percent;

static nbl_status next_value(percent *p, tpl_value *value)
{
    bool tuple = p->values.type == TPL_TUPLE;
    if (tuple ? p->at >= p->values.list->count : p->at > 0)
        return nbl__tpl_raise(p->vm, "TypeError: not enough arguments for format string");
    *value = tuple ? p->values.list->items[p->at] : p->values;
    p->at++;
    return NBL_OK;
}

static nbl_status read_number(percent *p, const char **at, const char *end, int64_t *number)
{
    tpl_value value;
    if (*at < end && **at == '*') {
        (*at)++;
        NBL_TRY(next_value(p, &value));
        if (!tpl_is_integer(value)) return nbl__tpl_raise(p->vm, "TypeError: * wants int");
        *number = value.integer;
        return NBL_OK;
    }
    *number = 0;
    for (; *at < end && **at >= '0' && **at <= '9'; (*at)++) {
        *number = *number * 10 + (**at - '0');
        if (*number > INT32_MAX) return nbl__tpl_raise(p->vm, "ValueError: width too big");
    }
    return NBL_OK;
}

static nbl_status put_percent(percent *p, field *f, tpl_value value, tpl_text *out)
{
    tpl_vm *vm = p->vm;
    tpl_value text;
    tpl_text made = {0};
    char kind = f->kind == 'i' || f->kind == 'u' ? 'd' : f->kind;
    switch (kind) {
    case 's':
        if (p->markup) NBL_TRY(nbl__tpl_escape(vm, value, &text));
        else NBL_TRY(nbl__tpl_str(vm, value, &text));
        return put_string(vm, f, text.string, '>', out);
    case 'r':
    case 'a':
        NBL_TRY(nbl__tpl_add_repr(vm, &made, value));
        if (kind == 'a' && made.size != made.length) return nbl__tpl_refuse(vm, "%%a of text beyond ASCII");
        NBL_TRY(nbl__tpl_take(vm, &made, &text));
        if (p->markup) NBL_TRY(nbl__tpl_escape(vm, text, &text));
        return put_string(vm, f, text.string, '>', out);
    case 'c': {
        if (value.type == TPL_STRING && value.string->length == 1) return put_string(vm, f, value.string, '>', out);
        if (!tpl_is_integer(value)) return nbl__tpl_raise(vm, "TypeError: %%c requires int or char");
        if (value.integer < 0 || value.integer > 0x10ffff || (value.integer >= 0xd800 && value.integer < 0xe000))
            return nbl__tpl_raise(vm, "OverflowError: %%c arg not in range(0x110000)");
        NBL_TRY(nbl__tpl_add_char(vm, &made, (uint32_t)value.integer));
        NBL_TRY(nbl__tpl_take(vm, &made, &text));
        return put_string(vm, f, text.string, '>', out);
    }
    case 'd':
    case 'x':
    case 'X':
    case 'o':
        if (value.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, value);
        if (kind == 'd' && value.type == TPL_FLOAT) NBL_TRY(nbl__tpl_to_int(vm, value.real, &value));
        if (value.type == TPL_BIG) return nbl__tpl_refuse(vm, "formatting of an integer beyond 64 bits");
        if (!tpl_is_integer(value))
            return nbl__tpl_raise(vm, "TypeError: %%%c format: a real number is required, not %s", kind,
                                  nbl__tpl_type_name(value));
        return put_integer(vm, f, value.integer, kind, out);
    default: break;
    }
    if (value.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, value);
    if (value.type == TPL_BIG) return nbl__tpl_refuse(vm, "formatting of an integer beyond 64 bits");
    if (!tpl_is_number(value))
        return nbl__tpl_raise(vm, "TypeError: must be real number, not %s", nbl__tpl_type_name(value));
    return put_float(vm, f, tpl_as_double(value), kind, f->precision < 0 ? 6 : f->precision, out);
}

/* After the '%': one conversion. */
static nbl_status convert(percent *p, const char **at, const char *end, tpl_text *out)
{
    tpl_vm *vm = p->vm;
    field f = {.fill = ' ', .precision = -1};
    tpl_value value = tpl_missing();
    bool left = false;
    if (*at < end && **at == '(') {
        const char *name = ++*at;
        int depth = 1;
        tpl_value key;
        for (; *at < end; (*at)++) {
            depth += **at == '(' ? 1 : **at == ')' ? -1 : 0;
            if (depth == 0) break;
        }
        if (*at == end) return nbl__tpl_raise(vm, "ValueError: incomplete format key");
        if (p->values.type != TPL_DICT) return nbl__tpl_raise(vm, "TypeError: format requires a mapping");
        tpl_entry *entry = nbl__tpl_dict_get(p->values.dict, name, (size_t)(*at - name));
        NBL_TRY(nbl__tpl_string(vm, name, (size_t)(*at - name), &key));
        if (entry == NULL) return nbl__tpl_raise(vm, "KeyError: %s", nbl__tpl_shown(vm, key));
        value = entry->value;
        p->mapping_used = true;
        ++*at;
    }
    for (; *at < end && strchr("-+ #0", **at) && **at; (*at)++) {
        if (**at == '-') left = true;
        else if (**at == '#') f.alternate = true;
        else if (**at == '0') f.zero = true;
        else if (f.sign != '+') f.sign = **at;
    }
    NBL_TRY(read_number(p, at, end, &f.width));
    if (f.width < 0) left = true, f.width = -f.width;
    if (*at < end && **at == '.') {
        ++*at;
        NBL_TRY(read_number(p, at, end, &f.precision));
        if (f.precision < 0) f.precision = 0;
    }
    while (*at < end && strchr("hlL", **at) && **at) ++*at;
    if (*at == end) return nbl__tpl_raise(vm, "ValueError: incomplete format");
    f.kind = *(*at)++;
    if (f.kind == '%') return nbl__tpl_add(vm, out, "%", 1);
    if (f.kind == 0 || !strchr("sradiuoxXeEfFgGc", f.kind))
        return nbl__tpl_raise(vm, "ValueError: unsupported format character");
    if (value.type == TPL_MISSING) NBL_TRY(next_value(p, &value));
    bool number = strchr("diuoxXeEfFgG", f.kind) != NULL;
    f.align = left ? '<' : number && f.zero ? '=' : '>';
    if (f.align == '=') f.fill = '0';
    return put_percent(p, &f, value, out);
}

nbl_status nbl__tpl_percent(tpl_vm *vm, tpl_value format, tpl_value values, tpl_value *result)
{
    percent p = {.vm = vm, .values = values, .markup = format.markup};
    tpl_text out = {0};
    const char *at = format.string->bytes, *end = at + format.string->size;
    while (at < end) {
        const char *run = at;
        while (at < end && *at != '%') at++;
        NBL_TRY(nbl__tpl_add(vm, &out, run, (size_t)(at - run)));
        if (at < end) {
            at++;
            NBL_TRY(convert(&p, &at, end, &out));
        }
    }
    bool all = values.type == TPL_TUPLE ? p.at >= values.list->count
                                        : p.at > 0 || values.type == TPL_DICT || values.type == TPL_LIST ||
                                              values.type == TPL_UNDEFINED || values.type == TPL_RANGE;
    if (!all) return nbl__tpl_raise(vm, "TypeError: not all arguments converted during string formatting");
    NBL_TRY(nbl__tpl_take(vm, &out, result));
    result->markup = format.markup;
    return NBL_OK;
}

/* ---- str.format ---- */

typedef struct formatter {
    tpl_vm *vm;
    const tpl_args *args;   /* of format */
    const tpl_dict *dict;   /* of format_map */
    int64_t automatic;      /* next number; -1: numbers are given */
    bool markup;
} formatter;

static nbl_status read_spec(tpl_vm *vm, const tpl_string *spec, field *f)
{
    const char *at = spec->bytes, *end = at + spec->size;
    int size = 0;
    *f = (field){.fill = ' ', .precision = -1};
    if (at < end) tpl_char(at, &size);
    if (at < end && at + size < end && strchr("<>=^", at[size]) && at[size]) {
        f->fill = tpl_char(at, &size);
        f->align = at[size];
        at += size + 1;
    } else if (at < end && *at && strchr("<>=^", *at)) {
        f->align = *at++;
    }
    if (at < end && (*at == '+' || *at == ' ' || *at == '-')) f->sign = *at++;
    if (at < end && *at == 'z') return nbl__tpl_refuse(vm, "the option z of a format is not supported");
    if (at < end && *at == '#') f->alternate = true, at++;
    if (at < end && *at == '0') {
        f->zero = true;
        if (!f->align) f->align = '=', f->fill = '0';
        at++;
    }
    for (; at < end && *at >= '0' && *at <= '9'; at++) {
        f->width = f->width * 10 + (*at - '0');
        if (f->width > INT32_MAX) return nbl__tpl_raise(vm, "ValueError: Too many decimal digits in format string");
    }
    if (at < end && (*at == ',' || *at == '_')) f->grouping = *at++;
    if (at < end && *at == '.') {
        f->precision = 0;
        if (++at == end || *at < '0' || *at > '9') return nbl__tpl_raise(vm, "ValueError: Format specifier missing precision");
        for (; at < end && *at >= '0' && *at <= '9'; at++) {
            f->precision = f->precision * 10 + (*at - '0');
            if (f->precision > INT32_MAX) return nbl__tpl_raise(vm, "ValueError: precision too big");
        }
    }
    if (at < end) f->kind = *at++;
    return at < end ? nbl__tpl_raise(vm, "ValueError: Invalid format specifier") : NBL_OK;
}

static nbl_status bad_code(tpl_vm *vm, char kind, tpl_value v)
{
    return nbl__tpl_raise(vm, "ValueError: Unknown format code '%c' for object of type '%s'", kind, nbl__tpl_type_name(v));
}

static nbl_status format_float(tpl_vm *vm, field *f, double v, tpl_text *out)
{
    char text[40];
    if (f->kind == 'n') return nbl__tpl_refuse(vm, "the format code n is not supported");
    if (f->kind == 0 && f->precision < 0) {
        nbl__tpl_float_repr(fabs(v), text);
        return put_number(vm, f, signbit(v) && !isnan(v), "", text, 3, out);
    }
    if (f->kind == 0) return nbl__tpl_refuse(vm, "a float with a precision and no format code");
    if (f->kind == '%') {
        tpl_text digits = {0};
        NBL_TRY(nbl__tpl_add_fixed(vm, &digits, fabs(v) * 100, f->precision < 0 ? 6 : f->precision, 'f', f->alternate));
        NBL_TRY(nbl__tpl_add(vm, &digits, "%", 2));
        return put_number(vm, f, signbit(v) && !isnan(v), "", digits.bytes, 3, out);
    }
    return put_float(vm, f, v, f->kind, f->precision < 0 ? 6 : f->precision, out);
}

static nbl_status format_value(tpl_vm *vm, tpl_value v, const tpl_string *spec, tpl_text *out)
{
    field f;
    if (spec->size == 0) return nbl__tpl_add_str(vm, out, v);
    NBL_TRY(read_spec(vm, spec, &f));
    if (v.type == TPL_STRING) {
        if (f.kind && f.kind != 's') return bad_code(vm, f.kind, v);
        if (f.sign || f.alternate || f.grouping || f.align == '=')
            return nbl__tpl_raise(vm, "ValueError: not allowed in string format specifier");
        return put_string(vm, &f, v.string, '<', out);
    }
    if (tpl_is_integer(v)) {
        if (f.kind && strchr("eEfFgG%", f.kind)) return format_float(vm, &f, tpl_as_double(v), out);
        if (f.kind && !strchr("dxXob", f.kind)) return f.kind == 'c' || f.kind == 'n' ? nbl__tpl_refuse(vm, "the format codes c and n") : bad_code(vm, f.kind, v);
        if (f.precision >= 0) return nbl__tpl_raise(vm, "ValueError: Precision not allowed in integer format specifier");
        if (f.grouping == ',' && f.kind && f.kind != 'd') return nbl__tpl_raise(vm, "ValueError: Cannot specify ',' with '%c'.", f.kind);
        return put_integer(vm, &f, v.integer, f.kind ? f.kind : 'd', out);
    }
    if (v.type == TPL_FLOAT) {
        if (f.kind && !strchr("eEfFgG%n", f.kind)) return bad_code(vm, f.kind, v);
        return format_float(vm, &f, v.real, out);
    }
    if (v.type == TPL_BIG) return nbl__tpl_refuse(vm, "formatting of an integer beyond 64 bits");
    return nbl__tpl_raise(vm, "TypeError: unsupported format string passed to %s.__format__", nbl__tpl_type_name(v));
}

/* The value that a field names: a number or a name, then attributes and items. */
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
            return nbl__tpl_raise(vm, "ValueError: cannot switch from manual field specification to automatic field numbering");
        number = f->automatic++;
    } else if (digits) {
        if (f->automatic > 0)
            return nbl__tpl_raise(vm, "ValueError: cannot switch from automatic field numbering to manual field specification");
        f->automatic = -1;
    }
    if (digits) {
        if (number >= f->args->count) return nbl__tpl_raise(vm, "IndexError: Replacement index %" PRId64 " out of range", number);
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
    while (at < end) {
        tpl_value key;
        bool item = *at++ == '[';
        const char *begin = at;
        while (at < end && (item ? *at != ']' : *at != '.' && *at != '[')) at++;
        if (at == begin || (item && at == end)) return nbl__tpl_raise(vm, "ValueError: Empty attribute in format string");
        NBL_TRY(nbl__tpl_string(vm, begin, (size_t)(at - begin), &key));
        if (item && strspn(begin, "0123456789") >= (size_t)(at - begin)) {
            bool good;
            NBL_TRY(nbl__tpl_parse_int(vm, key.string, 10, &key, &good));
        }
        if (item) {
            at++;
            if (at < end && *at != '.' && *at != '[')
                return nbl__tpl_raise(vm, "ValueError: Only '.' or '[' may follow ']' in format field specifier");
        }
        NBL_TRY(item ? nbl__tpl_getitem(vm, *value, key, value) : nbl__tpl_getattr(vm, *value, key, value));
    }
    return NBL_OK;
}

static nbl_status format_text(formatter *f, const char *at, const char *end, int depth, tpl_text *out);

/* After the '{': one field up to its '}'. */
static nbl_status format_field(formatter *f, const char **position, const char *end, int depth, tpl_text *out)
{
    tpl_vm *vm = f->vm;
    const char *at = *position, *name = at;
    int nested = 1;
    bool bracket = false;
    for (; at < end; at++) {
        if (*at == '[') bracket = true;
        else if (*at == ']') bracket = false;
        else if (!bracket && (*at == ':' || *at == '!' || *at == '}')) break;
        else if (!bracket && *at == '{') return nbl__tpl_raise(vm, "ValueError: unexpected '{' in field name");
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
    made = (tpl_text){0};
    NBL_TRY(format_value(vm, value, text.string, f->markup ? &made : out));
    if (!f->markup) return NBL_OK;
    NBL_TRY(nbl__tpl_take(vm, &made, &text));
    text.markup = value.type == TPL_STRING && value.markup;
    NBL_TRY(nbl__tpl_escape(vm, text, &text));
    return nbl__tpl_add_string(vm, out, text.string);
}

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
    return run_format(&f, self, result);
}

nbl_status nbl__tpl_format_map(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value mapping;
    tpl_args none = {0};
    NBL_TRY(nbl__tpl_bind(vm, "format_map", args, "/mapping", 1, &mapping));
    formatter f = {.vm = vm, .args = &none, .dict = mapping.type == TPL_DICT ? mapping.dict : NULL};
    return run_format(&f, self, result);
}
