/* utf8.h - checks, reads and writes one character of UTF-8. */
#ifndef NBL_UTF8_H
#define NBL_UTF8_H

#include <stdint.h>

/* Length in bytes (1 … 4) of the valid sequence at `text`, which must end at or before `end`; 0
 * if there is none. Overlong forms, surrogates and values above U+10FFFF are invalid. */
static inline int nbl__utf8_length(const char *text, const char *end)
{
    const unsigned char *s = (const unsigned char *)text;
    if (text >= end) return 0;
    int n = s[0] < 0x80                   ? 1
            : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
            : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
            : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                          : 0;
    if (end - text < n) return 0;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))) return 0;
    return n;
}

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

#endif
