/* jinja_unicode.h - the properties of characters that Python's str methods use.
 *
 * The answers equal those of Python 3.11 for each character. utf8proc supplies the general category
 * and the one-to-one case mappings. The tables in jinja_unicode_tables.inc have the characters for
 * which Python answers differently. `code` is any value up to 0x10ffff. */
#ifndef NBL_JINJA_UNICODE_H
#define NBL_JINJA_UNICODE_H

#include <stdbool.h>
#include <stdint.h>

typedef bool (*tpl_char_fn)(uint32_t code);

bool nbl__tpl_is_space(uint32_t code);
bool nbl__tpl_is_alpha(uint32_t code);
bool nbl__tpl_is_decimal(uint32_t code);
bool nbl__tpl_is_digit(uint32_t code);
bool nbl__tpl_is_numeric(uint32_t code);
bool nbl__tpl_is_alnum(uint32_t code);
bool nbl__tpl_is_lower(uint32_t code);
bool nbl__tpl_is_upper(uint32_t code);
bool nbl__tpl_is_title(uint32_t code); /* category Lt */
bool nbl__tpl_is_cased(uint32_t code);
bool nbl__tpl_is_case_ignorable(uint32_t code);
bool nbl__tpl_is_printable(uint32_t code);
bool nbl__tpl_is_name_start(uint32_t code);
bool nbl__tpl_is_name_continue(uint32_t code);

/* Case mappings: store 1 to 3 characters in to[] and return their number. */
typedef int (*tpl_case_fn)(uint32_t code, uint32_t to[3]);
int nbl__tpl_to_upper(uint32_t code, uint32_t to[3]);
int nbl__tpl_to_lower(uint32_t code, uint32_t to[3]);
int nbl__tpl_to_title(uint32_t code, uint32_t to[3]);
int nbl__tpl_to_fold(uint32_t code, uint32_t to[3]);

/* Returns the value of a decimal digit, or -1. */
int nbl__tpl_digit_value(uint32_t code);

#endif
