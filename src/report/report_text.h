/* report_text.h - appends texts and numbers as HTML. For report.c and report_chart.c. */
#ifndef NBL_REPORT_TEXT_H
#define NBL_REPORT_TEXT_H

#include "base/json/json.h"

/* Escapes a text for an element or for an attribute in double quotes. Control characters and
 * bytes that are not UTF-8 become U+FFFD. NULL is an empty text. */
void nbl__html_text(nbl__text *out, const char *text);
/* "0.0123", "1.2e-05": with `digits` significant digits, without trailing zeros. */
void nbl__html_number(nbl__text *out, double value, int digits);
void nbl__html_fixed(nbl__text *out, double value, int decimals);
/* "1,234,567" */
void nbl__html_count(nbl__text *out, int64_t number);
/* "2.47 GB" on one line, powers of 1000 */
void nbl__html_bytes(nbl__text *out, uint64_t bytes);
/* "8.2 s", "1:05", "2:03:04" */
void nbl__html_duration(nbl__text *out, double seconds);
/* A word of a shell command: quoted if the shell needs it, then escaped for HTML. */
void nbl__html_word(nbl__text *out, const char *word);

#endif
