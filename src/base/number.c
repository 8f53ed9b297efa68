/* number.c - see number.h. The C locale is set for the calling thread only, and only during a
 * call. It needs no memory. */
#include "base/number.h"

#include <locale.h>
#include <stdio.h>
#include <stdlib.h>

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
