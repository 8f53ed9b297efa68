/* report_text.c - escapes texts and prints numbers for HTML. See report_text.h. Values that are
 * not finite are printed as a dash. */
#include "report/report_text.h"

#include <math.h>
#include <stdio.h>

#include "base/number.h"
#include "base/visible.h"

static void add(nbl__text *out, const char *text)
{
    nbl__text_add(out, text, strlen(text));
}

/* Appends text[0..size) with the five special characters of HTML escaped. */
static void escape(nbl__text *out, const char *text, size_t size)
{
    for (const char *at = text, *end = text + size; at < end;) {
        char shown[NBL_MAX_VISIBLE];
        at += nbl__visible(at, end, true, shown);
        if (strcmp(shown, "&") == 0) add(out, "&amp;");
        else if (strcmp(shown, "<") == 0) add(out, "&lt;");
        else if (strcmp(shown, ">") == 0) add(out, "&gt;");
        else if (strcmp(shown, "\"") == 0) add(out, "&quot;");
        else if (strcmp(shown, "'") == 0) add(out, "&#39;");
        else add(out, shown);
    }
}

void nbl__html_text(nbl__text *out, const char *text)
{
    if (text) escape(out, text, strlen(text));
}

/* ---- numbers ---- */

/* Removes trailing zeros of the fraction, also before an exponent. */
static void cut_zeros(char *digits)
{
    char *point = strchr(digits, '.'), *e = strchr(digits, 'e');
    if (point == NULL) return;
    char *end = e ? e : digits + strlen(digits), *last = end;
    while (last[-1] == '0') last--;
    if (last[-1] == '.') last--;
    memmove(last, end, strlen(end) + 1);
}

void nbl__html_fixed(nbl__text *out, double value, int decimals)
{
    char digits[400];
    if (!isfinite(value)) return add(out, "–");
    nbl__print_fixed(digits, sizeof digits, decimals, value);
    add(out, digits);
}

void nbl__html_number(nbl__text *out, double value, int significant)
{
    char digits[64];
    double size = fabs(value);
    if (!isfinite(value)) return add(out, "–");
    if (size == 0) return add(out, "0");
    if (size >= 1e-3 && size < 1e6) {
        int decimals = significant - 1 - (int)floor(log10(size));
        nbl__print_fixed(digits, sizeof digits, decimals > 0 ? decimals : 0, value);
    } else nbl__print_exponent(digits, sizeof digits, significant - 1, value);
    cut_zeros(digits);
    add(out, digits);
}

void nbl__html_count(nbl__text *out, int64_t number)
{
    char digits[32];
    int n = snprintf(digits, sizeof digits, "%" PRId64, number);
    for (int i = 0; i < n; i++) {
        nbl__text_add(out, digits + i, 1);
        if ((n - 1 - i) % 3 == 0 && i + 1 < n && digits[i] != '-') nbl__text_add(out, ",", 1);
    }
}

void nbl__html_bytes(nbl__text *out, uint64_t bytes)
{
    static const char *const units[] = {"bytes", "kB", "MB", "GB", "TB", "PB", "EB"};
    double value = (double)bytes;
    int unit = 0;
    while (value >= 999.5 && unit < 6) {
        value /= 1000;
        unit++;
    }
    nbl__html_number(out, value, 3);
    nbl__text_printf(out, "&nbsp;%s", units[unit]);
}

void nbl__html_duration(nbl__text *out, double seconds)
{
    if (!(seconds >= 0 && seconds < 1e12)) return add(out, "–");
    int64_t whole = (int64_t)llround(seconds);
    if (seconds < 59.95) {
        nbl__html_fixed(out, seconds, 1);
        add(out, " s");
    } else if (whole < 3600) nbl__text_printf(out, "%d:%02d", (int)(whole / 60), (int)(whole % 60));
    else
        nbl__text_printf(out, "%" PRId64 ":%02d:%02d", whole / 3600, (int)(whole / 60 % 60),
                         (int)(whole % 60));
}

/* ---- commands ---- */

/* Single quotes; a ' inside becomes '\''. */
void nbl__html_word(nbl__text *out, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-";
    if (*word && strspn(word, plain) == strlen(word)) return add(out, word);
    add(out, "&#39;");
    for (const char *quote; (quote = strchr(word, '\'')); word = quote + 1) {
        escape(out, word, (size_t)(quote - word));
        add(out, "&#39;\\&#39;&#39;");
    }
    nbl__html_text(out, word);
    add(out, "&#39;");
}
