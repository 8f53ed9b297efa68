/* number.c - see number.h. The C locale is set for the calling thread only, and only during a
 * call. It needs no memory. */
#include "base/number.h"

#include <locale.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static locale_t enter(locale_t *c)
{
    *c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return *c ? uselocale(*c) : (locale_t)0;
}

static void leave(locale_t c, locale_t before)
{
    if (before) uselocale(before);
    if (c) freelocale(c);
}

double nbl__parse_double(const char *text, char **end)
{
    locale_t c, before = enter(&c);
    double value = strtod(text, end);
    leave(c, before);
    return value;
}

int nbl__print_exponent(char *text, size_t size, int digits, double value)
{
    locale_t c, before = enter(&c);
    int length = snprintf(text, size, "%.*e", digits, value);
    leave(c, before);
    return length;
}

int nbl__print_fixed(char *text, size_t size, int decimals, double value)
{
    locale_t c, before = enter(&c);
    int length = snprintf(text, size, "%.*f", decimals, value);
    leave(c, before);
    return length;
}

int nbl__print_general(char *text, size_t size, int digits, double value)
{
    locale_t c, before = enter(&c);
    int length = snprintf(text, size, "%.*g", digits, value);
    leave(c, before);
    return length;
}

/* ---- the shortest digits ---- */

/* True if the digits "d.ddde±x" are read back as the value. */
static bool gives_back(const char *digits, double value)
{
    char *end;
    return nbl__parse_double(digits, &end) == value;
}

/* Adds one to the last digit of "d.ddde±x". Returns false if all digits were 9. */
static bool one_up(char *digits)
{
    char *e = strchr(digits, 'e'), *d = e - 1;
    while (d >= digits && (*d == '9' || *d == '.')) {
        if (*d == '9') *d = '0';
        d--;
    }
    if (d < digits) return false;
    ++*d;
    return true;
}

/* Writes the shortest digits that are read back as a finite, non-zero value: "d[.ddd]e±xx". */
static void shortest(double value, char *text, size_t size)
{
    int exponent;
    bool power = fabs(frexp(value, &exponent)) ==
                 0.5;                      /* a power of two: its neighbours are not equally far */
    int first = exponent < -1000 ? 0 : 14; /* start with 15 digits: a normal double keeps them */
    for (int digits = first; digits < 17; digits++) {
        nbl__print_exponent(text, size, digits, value);
        if (gives_back(text, value)) break;
        if (power && one_up(text) && gives_back(text, value)) break;
    }
}

int nbl__print_repr(double value, char out[40])
{
    if (isnan(value)) return snprintf(out, 40, "nan");
    if (isinf(value)) return snprintf(out, 40, value < 0 ? "-inf" : "inf");
    if (value == 0) return snprintf(out, 40, signbit(value) ? "-0.0" : "0.0");
    char text[48], digits[24];
    shortest(value, text, sizeof text);
    int n = 0, exponent = atoi(strchr(text, 'e') + 1);
    for (const char *s = text; *s != 'e'; s++)
        if (*s >= '0' && *s <= '9') digits[n++] = *s;
    while (n > 1 && digits[n - 1] == '0') n--;
    char *o = out;
    if (value < 0) *o++ = '-';
    if (exponent < -4 || exponent >= 16) {
        *o++ = digits[0];
        if (n > 1) *o++ = '.';
        for (int i = 1; i < n; i++) *o++ = digits[i];
        return (int)(o - out) + snprintf(o, 8, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) {
        *o++ = '0', *o++ = '.';
        for (int i = -1; i > exponent; i--) *o++ = '0';
        for (int i = 0; i < n; i++) *o++ = digits[i];
    } else {
        for (int i = 0; i < n || i <= exponent; i++) {
            if (i == exponent + 1) *o++ = '.';
            *o++ = i < n ? digits[i] : '0';
        }
        if (n <= exponent + 1) *o++ = '.', *o++ = '0';
    }
    *o = '\0';
    return (int)(o - out);
}
