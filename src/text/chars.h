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

/* Stores the character at `text` in *c and returns its length in bytes, 1 to 4. `text` must not be
 * at the end of the string. */
static inline int nbl__char_get(const char *text, uint32_t *c)
{
    const unsigned char *s = (const unsigned char *)text;
    if (s[0] < 0x80) return *c = s[0], 1;
    if (s[0] < 0xe0) return *c = (s[0] & 31u) << 6 | (s[1] & 63u), 2;
    if (s[0] < 0xf0) return *c = (s[0] & 15u) << 12 | (s[1] & 63u) << 6 | (s[2] & 63u), 3;
    *c = (s[0] & 7u) << 18 | (s[1] & 63u) << 12 | (s[2] & 63u) << 6 | (s[3] & 63u);
    return 4;
}

/* Returns the length in bytes, 1 to 4, of the character at `text`. Only the first byte is read. */
static inline int nbl__char_length(const char *text)
{
    unsigned char c = (unsigned char)*text;
    return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

/* Writes character c to s and returns the number of bytes written, 1 to 4. */
static inline int nbl__char_put(char *s, uint32_t c)
{
    if (c < 0x80) return s[0] = (char)c, 1;
    if (c < 0x800) return s[0] = (char)(0xc0 | c >> 6), s[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000) {
        s[0] = (char)(0xe0 | c >> 12);
        s[1] = (char)(0x80 | (c >> 6 & 63));
        s[2] = (char)(0x80 | (c & 63));
        return 3;
    }
    s[0] = (char)(0xf0 | c >> 18);
    s[1] = (char)(0x80 | (c >> 12 & 63));
    s[2] = (char)(0x80 | (c >> 6 & 63));
    s[3] = (char)(0x80 | (c & 63));
    return 4;
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
