/* jinja_unicode.c - properties of characters; see jinja_unicode.h.
 *
 * A property is computed from the general category. For the characters of an exception table the
 * answer is inverted:
 *
 *     is_lower(c) = (category(c) == Ll) != (c is in other_lower)
 *
 * Each look-up is a binary search of a table. Characters that are newer than Python's Unicode are
 * unassigned here. */
#include "text/template/library/jinja_unicode.h"

#include <stddef.h>
#include <utf8proc.h>

/* A range of a sorted table, both ends included. */
typedef struct range {
    uint32_t first, last;
} range;

/* A case mapping to up to three characters; 0 ends a shorter one. */
typedef struct special {
    uint32_t code, to[3];
} special;

#include "jinja_unicode_tables.inc"

#define IN(table, code) in_table(table, sizeof table / sizeof *table, code)

/* True if a range of a sorted table contains the character. */
static bool in_table(const range *table, size_t count, uint32_t code)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code < table[middle].first) high = middle;
        else if (code > table[middle].last) low = middle + 1;
        else return true;
    }
    return false;
}

/* Finds a case mapping that utf8proc does not have, such as ß to SS. Returns the number of
 * characters; 0: none. */
static int map_special(const special *table, size_t count, uint32_t code, uint32_t to[3])
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (code < table[middle].code) high = middle;
        else if (code > table[middle].code) low = middle + 1;
        else {
            int n = 0;
            while (n < 3 && table[middle].to[n]) to[n] = table[middle].to[n], n++;
            return n;
        }
    }
    return 0;
}

/* The general category, as Python 3.11 knows it. */
static int category(uint32_t code)
{
    return IN(unassigned, code) ? UTF8PROC_CATEGORY_CN : utf8proc_category((utf8proc_int32_t)code);
}

/* Categories Lu, Ll, Lt, Lm, Lo. */
static bool is_letter(int c)
{
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT ||
           c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_LO;
}

/* White space is no category: Python takes the bidirectional types WS, B and S, and category Zs. */
bool nbl__tpl_is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || (c >= 28 && c <= 32) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f ||
           c == 0x3000;
}

/* str.isalpha; then isdecimal, isdigit and isnumeric, each of which includes the one before. */
bool nbl__tpl_is_alpha(uint32_t code)
{
    return is_letter(category(code));
}

bool nbl__tpl_is_decimal(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_ND;
}

bool nbl__tpl_is_digit(uint32_t code)
{
    return nbl__tpl_is_decimal(code) || IN(digits, code);
}

bool nbl__tpl_is_numeric(uint32_t code)
{
    int c = category(code);
    bool number = c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
    return number != IN(other_numeric, code);
}

bool nbl__tpl_is_alnum(uint32_t code)
{
    return nbl__tpl_is_alpha(code) || nbl__tpl_is_digit(code) || nbl__tpl_is_numeric(code);
}

bool nbl__tpl_is_lower(uint32_t code)
{
    return (category(code) == UTF8PROC_CATEGORY_LL) != IN(other_lower, code);
}

bool nbl__tpl_is_upper(uint32_t code)
{
    return (category(code) == UTF8PROC_CATEGORY_LU) != IN(other_upper, code);
}

bool nbl__tpl_is_title(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_LT;
}

bool nbl__tpl_is_cased(uint32_t code)
{
    return nbl__tpl_is_lower(code) || nbl__tpl_is_upper(code) || nbl__tpl_is_title(code);
}

bool nbl__tpl_is_case_ignorable(uint32_t code)
{
    int c = category(code);
    bool usual = c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_ME || c == UTF8PROC_CATEGORY_CF ||
                 c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_SK;
    return usual != IN(other_ignorable, code);
}

bool nbl__tpl_is_printable(uint32_t code)
{
    if (code < 0x7f) return code >= 0x20;
    int c = category(code);
    return c != UTF8PROC_CATEGORY_CC && c != UTF8PROC_CATEGORY_CF && c != UTF8PROC_CATEGORY_CS &&
           c != UTF8PROC_CATEGORY_CO && c != UTF8PROC_CATEGORY_CN && c != UTF8PROC_CATEGORY_ZL &&
           c != UTF8PROC_CATEGORY_ZP && c != UTF8PROC_CATEGORY_ZS;
}

bool nbl__tpl_is_name_start(uint32_t code)
{
    int c = category(code);
    return (is_letter(c) || c == UTF8PROC_CATEGORY_NL || code == '_') != IN(other_start, code);
}

bool nbl__tpl_is_name_continue(uint32_t code)
{
    int c = category(code);
    bool usual = is_letter(c) || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_MN ||
                 c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_PC;
    return usual != IN(other_continue, code);
}

/* A case mapping: the exception, or utf8proc's mapping of one character. */
static int map(const special *table, size_t count, utf8proc_int32_t (*simple)(utf8proc_int32_t),
               uint32_t code, uint32_t to[3])
{
    int n = map_special(table, count, code, to);
    if (n) return n;
    to[0] = IN(unassigned, code) ? code : (uint32_t)simple((utf8proc_int32_t)code);
    return 1;
}

int nbl__tpl_to_upper(uint32_t code, uint32_t to[3])
{
    return map(special_upper, sizeof special_upper / sizeof *special_upper, utf8proc_toupper, code, to);
}

int nbl__tpl_to_lower(uint32_t code, uint32_t to[3])
{
    return map(special_lower, sizeof special_lower / sizeof *special_lower, utf8proc_tolower, code, to);
}

int nbl__tpl_to_title(uint32_t code, uint32_t to[3])
{
    return map(special_title, sizeof special_title / sizeof *special_title, utf8proc_totitle, code, to);
}

int nbl__tpl_to_fold(uint32_t code, uint32_t to[3])
{
    return map(special_fold, sizeof special_fold / sizeof *special_fold, utf8proc_tolower, code, to);
}

int nbl__tpl_digit_value(uint32_t code)
{
    if (code < 0x80) return code >= '0' && code <= '9' ? (int)(code - '0') : -1;
    if (!nbl__tpl_is_decimal(code)) return -1;
    /* decimal digits are in runs of ten that begin with the digit zero */
    uint32_t first = code;
    while (code - first < 9 && nbl__tpl_is_decimal(first - 1)) first--;
    return code >= 0x1d7ce && code <= 0x1d7ff ? (int)((code - 0x1d7ce) % 10) : (int)(code - first) % 10;
}
