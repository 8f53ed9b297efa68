/* jinja_number.c - numbers from text and to text: int(), float(), round(), and the digits of
 * formats.
 *
 * The rules are Python's, which are wider than C's in some ways and narrower in others:
 *
 *     int(' 1_000 ')    1000   blanks around it, single underscores between digits
 *     int('٣')          3      decimal digits of all scripts
 *     int('0x10', 0)    16     base 0 reads the prefix; base 16 accepts it
 *     int('012', 0)     error  with base 0 a decimal number has no leading zeros
 *     float('0x1p3')    error  strtod accepts it
 *
 * Digits are printed and read by base/number.h, which rounds correctly and does not look at the
 * locale. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number.h"
#include "text/template/runtime/jinja_runtime.h"
#include "text/template/library/jinja_unicode.h"

/* Copies a text without blanks around it, and with the digits of other scripts as ASCII. Returns
 * NULL if it is too long for a number. */
static nbl_status plain_number(tpl_vm *vm, const tpl_string *s, char **text)
{
    enum { MAX = 4300 };
    tpl_value stripped;
    *text = NULL;
    NBL_TRY(nbl__tpl_strip(vm, tpl_of_string(s), tpl_none(), true, true, &stripped));
    if (stripped.string->length > MAX) return NBL_OK;
    NBL_TRY(TPL_NEW(vm, *text, stripped.string->length + 1));
    char *o = *text;
    int size;
    for (size_t at = 0; at < stripped.string->size; at += (size_t)size) {
        uint32_t c = tpl_char(stripped.string->bytes + at, &size);
        int digit = nbl__tpl_digit_value(c);
        *o++ = digit >= 0 ? (char)('0' + digit) : c > 0 && c < 0x80 ? (char)c : '?';
    }
    return NBL_OK;
}

/* The value of a digit or letter in bases up to 36. 99: neither. */
static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
}

/* int(text, base). The value is summed as a negative number. The text is rewritten in place without
 * underscores, so that a big decimal number can keep its digits. */
nbl_status nbl__tpl_parse_int(tpl_vm *vm, const tpl_string *s, int64_t base, tpl_value *result, bool *good)
{
    char *text;
    int64_t value = 0;
    bool over = false;
    *good = false;
    if (base != 0 && (base < 2 || base > 36)) return NBL_OK;
    NBL_TRY(plain_number(vm, s, &text));
    if (text == NULL) return NBL_OK;
    bool minus = *text == '-';
    char *at = text + (*text == '-' || *text == '+');
    char mark = *at == '0' ? (char)(at[1] | 32) : 0;
    int64_t marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    bool decimal_zero = base == 0 && !marked && *at == '0';
    if (marked && (base == 0 || base == marked)) {
        at += 2 + (at[2] == '_');
        base = marked;
    }
    if (base == 0) base = 10;
    char *digits = at, *o = at;
    for (; *at; at++) {
        if (*at == '_' && at > digits && at[-1] != '_' && at[1]) continue;
        int digit = digit_of(*at);
        if (digit >= base || (decimal_zero && digit)) return NBL_OK;
        over |= __builtin_mul_overflow(value, base, &value) ||
                __builtin_sub_overflow(
                    value, (int64_t)digit,
                    &value); /* negative sums, because INT64_MIN has no positive counterpart */
        *o++ = *at;
    }
    if (o == digits) return NBL_OK;
    *good = true;
    over |= !minus && value == INT64_MIN;
    if (!over) return *result = tpl_int(minus ? value : -value), NBL_OK;
    if (base != 10) return nbl__tpl_refuse(vm, "an integer beyond 64 bits that is not decimal");
    *o = '\0';
    while (*digits == '0') digits++;
    if (minus) *--digits = '-';
    NBL_TRY(nbl__tpl_cstring(vm, digits, result));
    result->type = TPL_BIG;
    return NBL_OK;
}

/* float(text): "1e3", "inf", "-nan", "1_0.5", with blanks around it. */
nbl_status nbl__tpl_parse_float(tpl_vm *vm, const tpl_string *s, double *result, bool *good)
{
    char *text, *end;
    *good = false;
    NBL_TRY(plain_number(vm, s, &text));
    if (text == NULL || *text == '\0') return NBL_OK;
    char *o = text;
    for (char *at = text; *at; at++) { /* underscores stand between digits */
        if (*at == '_') {
            if (at == text || digit_of(at[-1]) > 9 || digit_of(at[1]) > 9) return NBL_OK;
        } else {
            if (*at == 'x' || *at == 'X' || *at == '(')
                return NBL_OK; /* strtod accepts these, Python does not */
            *o++ = *at;
        }
    }
    *o = '\0';
    *result = nbl__parse_double(text, &end);
    *good = end == o && end > text;
    return NBL_OK;
}

/* Truncates. A result beyond 64 bits keeps its decimal digits as a TPL_BIG. */
nbl_status nbl__tpl_to_int(tpl_vm *vm, double real, tpl_value *result)
{
    if (isnan(real)) return nbl__tpl_raise(vm, "ValueError: cannot convert float NaN to integer");
    if (isinf(real)) return nbl__tpl_raise(vm, "OverflowError: cannot convert float infinity to integer");
    if (real >= -0x1p63 && real < 0x1p63) return *result = tpl_int((int64_t)real), NBL_OK;
    char text[400];
    tpl_value digits;
    nbl__print_fixed(text, sizeof text, 0, trunc(real));
    NBL_TRY(nbl__tpl_string_copy(vm, text, strlen(text), &digits));
    *result = digits;
    result->type = TPL_BIG;
    return NBL_OK;
}

/* Rounds the decimal form of the exact value and reads it back. So round(2.675, 2) is 2.67: the
 * double is a little less than 2.675. Negative digits round to tens, hundreds and so on. */
double nbl__tpl_round(double v, int64_t digits)
{
    char text[800], *end;
    if (!isfinite(v) || v == 0 || digits > 323) return v;
    if (digits >= 0) {
        nbl__print_fixed(text, sizeof text, (int)digits, v);
        return nbl__parse_double(text, &end);
    }
    int exponent = (int)floor(log10(fabs(v)));
    int64_t kept = exponent + digits; /* digits behind the first one */
    if (kept < -1) return copysign(0, v);
    if (kept < 0) {
        double unit = pow(10, (double)-digits);
        return copysign(fabs(v) > unit / 2 ? unit : 0, v);
    }
    nbl__print_exponent(text, sizeof text, (int)kept, v);
    return nbl__parse_double(text, &end);
}

/* ---- digits for formats ---- */

/* "d.ddde±xx" without zeros at the end of the digits. */
static void drop_zeros(char *text)
{
    char *e = strchr(text, 'e'), *end = e ? e : text + strlen(text);
    if (memchr(text, '.', (size_t)(end - text)) == NULL) return;
    char *keep = end;
    while (keep[-1] == '0') keep--;
    if (keep[-1] == '.') keep--;
    memmove(keep, end, strlen(end) + 1);
}

/* The conversions f, e and g of C, which are Python's too. A capital conversion makes capital
 * letters. */
nbl_status nbl__tpl_add_fixed(tpl_vm *vm, tpl_text *text, double v, int64_t precision, char kind,
                              bool alternate)
{
    enum { MAX = 1100 };
    char low = (char)(kind | 32), line[MAX + 400];
    if (precision > MAX) return nbl__tpl_refuse(vm, "a precision of more than %d digits", MAX);
    if (isnan(v) || isinf(v)) {
        snprintf(line, sizeof line, "%s", isnan(v) ? "nan" : v < 0 ? "-inf" : "inf");
    } else if (low == 'f') {
        nbl__print_fixed(line, sizeof line, (int)precision, v);
        if (alternate && precision == 0) strcat(line, ".");
    } else if (low == 'e') {
        nbl__print_exponent(line, sizeof line, (int)precision, v);
    } else { /* g: the shorter of the two, by the exponent after rounding */
        if (precision == 0) precision = 1;
        nbl__print_exponent(line, sizeof line, (int)precision - 1, v);
        int exponent = atoi(strchr(line, 'e') + 1);
        if (exponent >= -4 && exponent < precision)
            nbl__print_fixed(line, sizeof line, (int)(precision - 1 - exponent), v);
        if (!alternate) drop_zeros(line);
    }
    if (kind != low)
        for (char *s = line; *s; s++)
            if (*s >= 'a' && *s <= 'z') *s = (char)(*s - 32);
    return tpl_add_c(vm, text, line);
}
