/* json_use.c - access to parsed JSON, and nbl__text. See json.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number.h"
#include "base/utf8.h"
#include "base/json/json.h"

/* ---- access ---- */

const nbl__json *nbl__json_get(const nbl__json *object, const char *key)
{
    if (!nbl__json_is(object, NBL_JSON_OBJECT)) return NULL;
    /* Binary search in the sorted indices. */
    int64_t low = 0, high = object->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        const nbl__json *item = &object->items[object->sorted[middle]];
        int order = strcmp(key, item->key);
        if (order == 0) return item;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

const char *nbl__json_text(const nbl__json *object, const char *key)
{
    const nbl__json *value = nbl__json_get(object, key);
    return nbl__json_is(value, NBL_JSON_STRING) ? value->string : NULL;
}

bool nbl__json_natural(const nbl__json *value, int64_t *number)
{
    if (!nbl__json_is(value, NBL_JSON_INTEGER) || value->integer < 0) return false;
    *number = value->integer;
    return true;
}

bool nbl__json_shape(const nbl__json *value, int *rank, int64_t *shape, int64_t *elements)
{
    if (!nbl__json_is(value, NBL_JSON_ARRAY) || value->count > NBL_MAX_RANK) return false;
    *rank = (int)value->count;
    *elements = 1;
    /* A 0 makes the shape empty but must not hide an overflow of the other dimensions. */
    bool empty = false;
    for (int i = 0; i < *rank; i++) {
        if (!nbl__json_natural(&value->items[i], &shape[i])) return false;
        empty |= shape[i] == 0;
        if (shape[i] && __builtin_mul_overflow(*elements, shape[i], elements)) return false;
    }
    if (empty) *elements = 0;
    return true;
}

/* ---- text ---- */

/* Makes room for `more` bytes and a terminator, by doubling. False after a failure. */
static bool reserve(nbl__text *t, size_t more)
{
    if (t->status != NBL_OK) return false;
    /* strictly greater: one byte for the terminator */
    if (t->capacity - t->size > more) return true;
    size_t capacity = (t->size + more + 1) * 2;
    char *text = capacity < 256 ? nbl__alloc(t->ctx, capacity = 256) : nbl__alloc(t->ctx, capacity);
    if (text == NULL) {
        t->status = NBL_ERROR_MEMORY;
        return false;
    }
    if (t->size) memcpy(text, t->text, t->size);
    nbl__free(t->ctx, t->text, t->capacity);
    t->text = text;
    t->capacity = capacity;
    return true;
}

void nbl__text_add(nbl__text *t, const char *bytes, size_t size)
{
    if (!reserve(t, size)) return;
    if (size) memcpy(t->text + t->size, bytes, size);
    t->size += size;
    t->text[t->size] = '\0';
}

void nbl__text_printf(nbl__text *t, const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    if (length >= 0 && reserve(t, (size_t)length)) {
        vsnprintf(t->text + t->size, (size_t)length + 1, format, again);
        t->size += (size_t)length;
    }
    va_end(again);
    va_end(arguments);
}

/* Appends the character at `s` (valid UTF-8, n > 1 bytes) as \uXXXX, or as a surrogate pair. */
static void add_escape(nbl__text *t, const char *s, int n)
{
    uint32_t code = (unsigned char)*s & (0xffu >> (n + 1));
    for (int i = 1; i < n; i++) code = code << 6 | ((unsigned char)s[i] & 0x3f);
    if (code < 0x10000) nbl__text_printf(t, "\\u%04x", code);
    else nbl__text_printf(t, "\\u%04x\\u%04x", 0xd7c0 + (code >> 10), 0xdc00 + (code & 0x3ff));
}

/* Copies runs of ordinary characters, and escapes those between them. */
static void add_json(nbl__text *t, const char *string, bool ascii)
{
    /* names of 8 … 13; 11 has none and is not looked up */
    static const char short_names[] = "btnvfr";
    const char *end = string + strlen(string);
    nbl__text_add(t, "\"", 1);
    for (const char *run = string, *s = string;; s++) {
        unsigned char c = (unsigned char)*s;
        int n = ascii && c >= 0x80 ? nbl__utf8_length(s, end) : 0;
        if (c >= 0x20 && c != '"' && c != '\\' && n == 0) continue;
        nbl__text_add(t, run, (size_t)(s - run));
        if (n) add_escape(t, s, n), s += n - 1;
        run = s + 1;
        if (c == '\0') break;
        if (n) continue;
        if (c == '"' || c == '\\') nbl__text_printf(t, "\\%c", c);
        else if (c >= 8 && c <= 13 && c != 11) nbl__text_printf(t, "\\%c", short_names[c - 8]);
        else nbl__text_printf(t, "\\u%04x", c);
    }
    nbl__text_add(t, "\"", 1);
}

void nbl__text_json(nbl__text *t, const char *string)
{
    add_json(t, string, false);
}

void nbl__text_json_ascii(nbl__text *t, const char *string)
{
    add_json(t, string, true);
}

void nbl__text_real(nbl__text *text, double value)
{
    char digits[40], fixed[64];
    int precision = 1;
    if (!isfinite(value)) { /* JSON has no NaN and no infinities */
        nbl__text_printf(text, "null");
        return;
    }
    /* The fewest digits, 1 … 17, that read back as the same double. */
    do nbl__print_exponent(digits, sizeof digits, precision - 1, value);
    while (nbl__parse_double(digits, NULL) != value && ++precision <= 17);
    char *e = strchr(digits, 'e');
    int exponent = atoi(e + 1);
    if (exponent < -4 || exponent >= 16) {
        nbl__text_printf(text, "%.*se%c%02d", (int)(e - digits), digits, exponent < 0 ? '-' : '+',
                         abs(exponent));
        return;
    }
    /* Python writes at least one decimal: 3.0. */
    int decimals = precision - 1 - exponent;
    nbl__print_fixed(fixed, sizeof fixed, decimals > 1 ? decimals : 1, value);
    nbl__text_add(text, fixed, strlen(fixed));
}

void nbl__text_free(nbl__text *t)
{
    nbl__free(t->ctx, t->text, t->capacity);
    t->text = NULL;
    t->size = t->capacity = 0;
}
