/* utf8.h - checks one character of UTF-8. */
#ifndef NBL_UTF8_H
#define NBL_UTF8_H

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

#endif
