/* chars.h - reads and writes characters of text that is known to be valid UTF-8.
 *
 * Every text is checked once, where it enters the library (nbl__utf8_check). All functions after
 * that one rely on the check: on invalid UTF-8 they would read past the end of the text.
 *
 *     code point            bytes
 *     U+0000  - U+007F      0xxxxxxx
 *     U+0080  - U+07FF      110xxxxx 10xxxxxx
 *     U+0800  - U+FFFF      1110xxxx 10xxxxxx 10xxxxxx
 *     U+10000 - U+10FFFF    11110xxx 10xxxxxx 10xxxxxx 10xxxxxx */
#ifndef NBL_CHARS_H
#define NBL_CHARS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/utf8.h"

/* Returns the length in bytes, 1 to 4, of the character at `text`. Only the first byte is read. */
static inline int nbl__char_length(const char *text)
{
    unsigned char c = (unsigned char)*text;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Returns the start of the character that ends right before s. Requires begin < s. */
static inline const char *nbl__char_back(const char *begin, const char *s)
{
    do s--;
    while (s > begin && ((unsigned char)*s & 0xc0) == 0x80);
    return s;
}

/* False for the continuation bytes 10xxxxxx, true for all other bytes. */
static inline bool nbl__is_char_start(char c)
{
    return ((unsigned char)c & 0xc0) != 0x80;
}

/* Returns the offset of the first byte that is not valid UTF-8, or `size` if all of the text is
 * valid. Surrogates, overlong forms and code points above U+10FFFF are invalid. */
static inline size_t nbl__utf8_check(const char *text, size_t size)
{
    size_t at = 0;
    while (at < size) {
        if ((unsigned char)text[at] < 0x80) {
            at++;
            continue;
        }
        int n = nbl__utf8_length(text + at, text + size);
        if (n == 0) return at;
        at += (size_t)n;
    }
    return size;
}

#endif
