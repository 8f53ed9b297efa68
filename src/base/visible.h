/* visible.h - makes untrusted text safe to show: nothing in it controls a terminal or hides
 * other text.
 *
 *     \n \r \t   line feed, carriage return, tab
 *     \x1b       any other C0 control character, DEL, and each byte that is not valid UTF-8
 *     \u202e     C1 control characters, bidirectional controls, line and paragraph separators
 *
 * All other characters are copied, the backslash too. The output is therefore for people, not
 * for parsing. */
#ifndef NBL_VISIBLE_H
#define NBL_VISIBLE_H

#include <stdbool.h>
#include <stddef.h>

enum { NBL_MAX_VISIBLE = 8 }; /* bytes of one escaped or copied character, with terminator */

/* Writes the character at `at`, escaped if necessary, to `out`. `lines`: line feeds and tabs are
 * copied. Returns the bytes consumed, at least 1. at < end. */
int nbl__visible(const char *at, const char *end, bool lines, char out[NBL_MAX_VISIBLE]);
/* Escapes `size` bytes of `text` into `to` (`room` bytes with terminator); truncates between two
 * characters. */
void nbl__visible_text(char *to, size_t room, const char *text, size_t size, bool lines);

#endif
