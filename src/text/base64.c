/* base64.c - base64 with padding; see base64.h. */
#include "text/base64.h"

static int value_of(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int64_t nbl__base64_read(const char *text, size_t size, unsigned char *out)
{
    size_t n = 0;
    if (size % 4) return -1;
    for (size_t i = 0; i < size; i += 4) {
        int pad = i + 4 == size ? (text[i + 3] == '=') + (text[i + 3] == '=' && text[i + 2] == '=') : 0;
        uint32_t group = 0;
        for (int k = 0; k < 4; k++) {
            int value = k >= 4 - pad ? 0 : value_of(text[i + (size_t)k]);
            if (value < 0) return -1;
            group = group << 6 | (uint32_t)value;
        }
        for (int k = 0; k < 3 - pad; k++) out[n++] = (unsigned char)(group >> (16 - 8 * k));
    }
    return (int64_t)n;
}

void nbl__base64_add(nbl__text *out, const void *bytes, size_t size)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = bytes;
    for (size_t i = 0; i < size; i += 3) {
        size_t left = size - i;
        uint32_t group = (uint32_t)from[i] << 16 | (left > 1 ? (uint32_t)from[i + 1] << 8 : 0) |
                         (left > 2 ? from[i + 2] : 0);
        char text[4];
        for (int k = 0; k < 4; k++) text[k] = digits[group >> (18 - 6 * k) & 63];
        if (left < 3) text[3] = '=';
        if (left < 2) text[2] = '=';
        nbl__text_add(out, text, 4);
    }
}
