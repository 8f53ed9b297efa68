/* visible.c - escapes one character at a time. See visible.h. */
#include "base/visible.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

/* The code point of a valid sequence of n bytes. */
static uint32_t code_of(const unsigned char *s, int n)
{
    uint32_t code = n == 1 ? s[0] : n == 2 ? s[0] & 31u : n == 3 ? s[0] & 15u : s[0] & 7u;
    for (int i = 1; i < n; i++) code = code << 6 | (s[i] & 63u);
    return code;
}

/* DEL and C1 controls, Arabic letter mark, LRM and RLM, line and paragraph separators,
 * bidirectional embeddings, overrides and isolates. */
static bool is_hidden(uint32_t c)
{
    return (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

int nbl__visible(const char *at, const char *end, bool lines, char out[NBL_MAX_VISIBLE])
{
    int n = nbl__utf8_length(at, end);
    uint32_t code = n ? code_of((const unsigned char *)at, n) : (unsigned char)*at;
    const char *named = code < 0x20 ? strchr("\nn\rr\tt", (int)code) : NULL;
    if (lines && (code == '\n' || code == '\t')) named = NULL;
    else if (code == 0 || (code < 0x20 && named == NULL) || n == 0 || code == 0x7f) {
        snprintf(out, NBL_MAX_VISIBLE, "\\x%02x", (unsigned)code & 0xff);
        return 1;
    } else if (named) {
        snprintf(out, NBL_MAX_VISIBLE, "\\%c", named[1]);
        return 1;
    } else if (is_hidden(code)) {
        snprintf(out, NBL_MAX_VISIBLE, "\\u%04x", (unsigned)code & 0xffff);
        return n;
    }
    memcpy(out, at, (size_t)n);
    out[n] = '\0';
    return n;
}

void nbl__visible_text(char *to, size_t room, const char *text, size_t size, bool lines)
{
    for (const char *at = text, *end = text + size; at < end;) {
        char shown[NBL_MAX_VISIBLE];
        at += nbl__visible(at, end, lines, shown);
        size_t n = strlen(shown);
        if (n >= room) break;
        memcpy(to, shown, n);
        to += n;
        room -= n;
    }
    if (room) *to = '\0';
}
