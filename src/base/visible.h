/* visible.h - text of files and models as people may see it: nothing in it steers a terminal or hides other text.
 *
 *   \n \r \t        line feed, carriage return, tab
 *   \x1b            any other C0 control character, DEL, and each byte that is not UTF-8
 *   \u202e          C1 control characters, bidirectional controls, line and paragraph separators
 *
 * Everything else, a backslash included, stays as it is. */
#ifndef NBL_VISIBLE_H
#define NBL_VISIBLE_H

#include <stdbool.h>
#include <stddef.h>

enum { NBL_MAX_VISIBLE = 8 }; /* bytes of one character, with a terminator */

/* Puts the character at `at`, or how it is written, into `out`. `lines`: line feeds and tabs stay. Returns how many bytes
 * of the text that was, at least 1. */
int nbl__visible(const char *at, const char *end, bool lines, char out[NBL_MAX_VISIBLE]);
/* The whole text into `to`, which has room for `room` bytes; what does not fit is cut off between two characters. */
void nbl__visible_text(char *to, size_t room, const char *text, size_t size, bool lines);

#endif
