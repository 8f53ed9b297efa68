/* jinja_percent.c - the operator % of strings, and the fields (jinja_field.h) that str.format uses
 * too.
 *
 *     '%-5s|%(x)+08.2f' % values
 *       │ │   │  │  └ conversion
 *       │ │   │  └ flags, width, precision; * takes the number from the values
 *       │ │   └ the value of a key: `values` must be a mapping
 *       │ └ width
 *       └ flags: - left, + and blank sign, # prefix, 0 zeros
 *
 * `values` is a tuple of values, a mapping, or one value. */
#include <math.h>
#include <stdio.h>

#include "text/template/runtime/jinja_field.h"

/* ---- fields: text with a width ---- */

/* Appends digits with a separator between groups. */
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

/* Appends a number: sign, prefix and body, padded to the width. */
nbl_status nbl__tpl_put_number(tpl_vm *vm, const tpl_field *f, bool negative, const char *prefix,
                               const char *body, int group_size, tpl_text *out)
{
    tpl_text digits = {0};
    const char *sign = negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    if (f->grouping) NBL_TRY(group(vm, body, f->grouping, group_size, &digits));
    else NBL_TRY(tpl_add_c(vm, &digits, body));
    int64_t length = (int64_t)(strlen(sign) + strlen(prefix) + digits.size), missing = f->width - length;
    if (missing > TPL_MAX_OUTPUT) return nbl__tpl_refuse(vm, "a field of this width is too long");
    char align = f->align ? f->align : '>';
    if (f->grouping && align == '=' && f->fill == '0' && missing > 0)
        return nbl__tpl_refuse(vm, "a grouped number padded with zeros is not supported");
    /* '<' fills at the right, '>' at the left, '^' on both sides, and '=' between the prefix and
     * the digits */
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

/* Puts a text into its field. The precision cuts it: '%.2s' % 'abc' is 'ab'. */
nbl_status nbl__tpl_put_string(tpl_vm *vm, const tpl_field *f, const tpl_string *s, char usual, tpl_text *out)
{
    tpl_value cut, padded;
    int64_t length = (int64_t)s->length;
    if (f->precision >= 0 && f->precision < length) length = f->precision;
    NBL_TRY(nbl__tpl_substring(vm, s, 0, length, &cut));
    char align = f->align ? f->align : usual;
    if (align == '^') { /* an odd blank goes to the right; str.center differs */
        tpl_text text = {0};
        int64_t missing = f->width - length;
        if (missing > TPL_MAX_OUTPUT) return nbl__tpl_refuse(vm, "a field of this width is too long");
        for (int64_t i = 0; i < missing / 2; i++) NBL_TRY(nbl__tpl_add_char(vm, &text, f->fill));
        NBL_TRY(nbl__tpl_add_string(vm, &text, cut.string));
        for (int64_t i = missing / 2; i < missing; i++) NBL_TRY(nbl__tpl_add_char(vm, &text, f->fill));
        NBL_TRY(nbl__tpl_take(vm, &text, &padded));
    } else {
        NBL_TRY(nbl__tpl_center(vm, cut.string, f->width, f->fill, align == '>' ? 1 : -1, &padded));
    }
    return nbl__tpl_add_string(vm, out, padded.string);
}

/* Writes the digits of an integer in the base of a conversion. */
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

/* Puts an integer into its field. The precision is a minimum of digits: '%.3d' % 5 is '005'. */
nbl_status nbl__tpl_put_integer(tpl_vm *vm, const tpl_field *f, int64_t value, char kind, tpl_text *out)
{
    char digits[72], body[1200];
    uint64_t size = value < 0 ? -(uint64_t)value : (uint64_t)value;
    const char *text = base_digits(size, kind, digits);
    const char *prefix = !f->alternate ? ""
                         : kind == 'x' ? "0x"
                         : kind == 'X' ? "0X"
                         : kind == 'o' ? "0o"
                         : kind == 'b' ? "0b"
                                       : "";
    if (f->precision > 1000) return nbl__tpl_refuse(vm, "a precision of more than 1000 digits");
    int zeros = (int)nbl__max_i64(0,
                                  f->precision - (int64_t)strlen(text)); /* only `%` has a precision here */
    memset(body, '0', (size_t)zeros);
    memcpy(body + zeros, text, strlen(text) + 1);
    return nbl__tpl_put_number(vm, f, value < 0, prefix, body, kind == 'd' ? 3 : 4, out);
}

/* Appends a float. The sign comes from the bit, so -0.0 has one; nan has none. */
nbl_status nbl__tpl_put_float(tpl_vm *vm, const tpl_field *f, double value, char kind, int64_t precision,
                              tpl_text *out)
{
    tpl_text text = {0};
    NBL_TRY(nbl__tpl_add_fixed(vm, &text, fabs(value), precision, kind, f->alternate));
    if (isnan(value)) value = 0;
    NBL_TRY(nbl__tpl_add(vm, &text, "", 1));
    return nbl__tpl_put_number(vm, f, signbit(value), "", text.bytes, 3, out);
}

/* ---- % ---- */

/* One formatting. at: values used so far. markup: the format is safe HTML, so texts are escaped.
 * mapping_used: a conversion had a (name). */
typedef struct percent {
    tpl_vm *vm;
    tpl_value values;
    int64_t at;
    bool markup, mapping_used;
} percent;

/* Takes the next value; a value that is no tuple counts as one. */
static nbl_status next_value(percent *p, tpl_value *value)
{
    bool tuple = p->values.type == TPL_TUPLE;
    if (tuple ? p->at >= p->values.list->count : p->at > 0)
        return nbl__tpl_raise(p->vm, "TypeError: not enough arguments for format string");
    *value = tuple ? p->values.list->items[p->at] : p->values;
    p->at++;
    return NBL_OK;
}

/* Reads a width or precision: digits, or '*' for the next value. Without digits it is 0. */
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

/* Converts a value by the code of the conversion, and puts it into its field. */
static nbl_status put_percent(percent *p, tpl_field *f, tpl_value value, tpl_text *out)
{
    tpl_vm *vm = p->vm;
    tpl_value text;
    tpl_text made = {0};
    char kind = f->kind == 'i' || f->kind == 'u' ? 'd' : f->kind;
    switch (kind) {
    case 's':
        if (p->markup) NBL_TRY(nbl__tpl_escape(vm, value, &text));
        else NBL_TRY(nbl__tpl_str(vm, value, &text));
        return nbl__tpl_put_string(vm, f, text.string, '>', out);
    case 'r':
    case 'a':
        NBL_TRY(nbl__tpl_add_repr(vm, &made, value));
        if (kind == 'a' && made.size != made.length) return nbl__tpl_refuse(vm, "%%a of text beyond ASCII");
        NBL_TRY(nbl__tpl_take(vm, &made, &text));
        if (p->markup) NBL_TRY(nbl__tpl_escape(vm, text, &text));
        return nbl__tpl_put_string(vm, f, text.string, '>', out);
    case 'c': {
        if (value.type == TPL_STRING && value.string->length == 1)
            return nbl__tpl_put_string(vm, f, value.string, '>', out);
        if (!tpl_is_integer(value)) return nbl__tpl_raise(vm, "TypeError: %%c requires int or char");
        if (value.integer < 0 || value.integer > 0x10ffff ||
            (value.integer >= 0xd800 && value.integer < 0xe000))
            return nbl__tpl_raise(vm, "OverflowError: %%c arg not in range(0x110000)");
        NBL_TRY(nbl__tpl_add_char(vm, &made, (uint32_t)value.integer));
        NBL_TRY(nbl__tpl_take(vm, &made, &text));
        return nbl__tpl_put_string(vm, f, text.string, '>', out);
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
        return nbl__tpl_put_integer(vm, f, value.integer, kind, out);
    default: break;
    }
    if (value.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, value);
    if (value.type == TPL_BIG) return nbl__tpl_refuse(vm, "formatting of an integer beyond 64 bits");
    if (!tpl_is_number(value))
        return nbl__tpl_raise(vm, "TypeError: must be real number, not %s", nbl__tpl_type_name(value));
    return nbl__tpl_put_float(vm, f, tpl_as_double(value), kind, f->precision < 0 ? 6 : f->precision, out);
}

/* Formats one conversion; the position is behind '%'. */
static nbl_status convert(percent *p, const char **at, const char *end, tpl_text *out)
{
    tpl_vm *vm = p->vm;
    tpl_field f = {.fill = ' ', .precision = -1};
    tpl_value value = tpl_missing();
    bool left = false;
    /* (name): brackets inside the name nest */
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
        NBL_TRY(tpl_read(vm, (size_t)(*at - name)));
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
    /* C's length modifiers; Python reads and ignores them */
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

/* Copies the text up to each '%' and formats the conversion behind it. At the end the values must
 * be used up. */
nbl_status nbl__tpl_percent(tpl_vm *vm, tpl_value format, tpl_value values, tpl_value *result)
{
    percent p = {.vm = vm, .values = values, .markup = format.markup};
    tpl_text out = {0};
    const char *at = format.string->bytes, *end = at + format.string->size;
    NBL_TRY(tpl_read(vm, format.string->size));
    while (at < end) {
        const char *run = at;
        while (at < end && *at != '%') at++;
        NBL_TRY(nbl__tpl_add(vm, &out, run, (size_t)(at - run)));
        if (at < end) {
            at++;
            NBL_TRY(convert(&p, &at, end, &out));
        }
    }
    /* a tuple must be used up; a mapping or another container need not be */
    bool all = values.type == TPL_TUPLE ? p.at >= values.list->count
                                        : p.at > 0 || values.type == TPL_DICT || values.type == TPL_LIST ||
                                              values.type == TPL_UNDEFINED || values.type == TPL_RANGE;
    if (!all) return nbl__tpl_raise(vm, "TypeError: not all arguments converted during string formatting");
    NBL_TRY(nbl__tpl_take(vm, &out, result));
    result->markup = format.markup;
    return NBL_OK;
}
