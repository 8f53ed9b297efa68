/* json.c - see json.h. */
#include "format/json.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

nbl_status nbl__json_object(nbl_context *ctx, const char *where, const char *text, size_t size,
                            json_t **root)
{
    json_error_t error;
    *root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &error);
    if (*root == NULL) {
        if (json_error_code(&error) == json_error_out_of_memory)
            return nbl__fail(ctx, NBL_ERROR_MEMORY, "%s: out of memory while parsing JSON", where);
        return nbl__fail(ctx, NBL_ERROR_FORMAT, "%s: not valid JSON: %s (line %d, column %d)", where,
                         error.text, error.line, error.column);
    }
    if (json_is_object(*root)) return NBL_OK;
    json_decref(*root);
    *root = NULL;
    return nbl__fail(ctx, NBL_ERROR_FORMAT, "%s: JSON, but not an object", where);
}

static bool token_byte(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.';
}

/* Is this token legal for Python and too much for jansson? */
static bool beyond_jansson(const char *token, size_t length)
{
    char copy[64];
    if (length == 3 && memcmp(token, "NaN", 3) == 0) return true;
    if (length == 8 && memcmp(token, "Infinity", 8) == 0) return true;
    if (length == 9 && memcmp(token, "-Infinity", 9) == 0) return true;
    size_t digits = 0;
    for (size_t i = 0; i < length; i++) {
        bool digit = token[i] >= '0' && token[i] <= '9';
        if (!digit && strchr("+-.eE", token[i]) == NULL) return false; /* true, false, null, rubbish */
        digits += digit;
    }
    if (memchr(token, '.', length) || memchr(token, 'e', length) || memchr(token, 'E', length)) {
        if (length >= sizeof copy) return false;
        memcpy(copy, token, length);
        copy[length] = '\0';
        char *end;
        double value = strtod(copy, &end);
        return *end == '\0' && isinf(value);
    }
    return digits > 18 && (token[0] == '-' ? length - 1 : length) == digits && token[length - digits] != '0';
}

nbl_status nbl__json_object_python(nbl_context *ctx, const char *where, const char *text, size_t size,
                                   json_t **root)
{
    *root = NULL;
    char *copy = nbl__alloc(ctx, size);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    memcpy(copy, text, size);
    bool in_string = false;
    for (size_t i = 0; i < size;) {
        if (in_string) {
            in_string = copy[i] != '"';
            i += copy[i] == '\\' ? 2 : 1;
        } else if (!token_byte(copy[i])) {
            in_string = copy[i] == '"';
            i++;
        } else {
            size_t begin = i;
            while (i < size && token_byte(copy[i])) i++;
            if (beyond_jansson(copy + begin, i - begin)) {
                memset(copy + begin, ' ', i - begin);
                copy[begin] = '0';
            }
        }
    }
    nbl_status status = nbl__json_object(ctx, where, copy, size, root);
    nbl__free(ctx, copy, size);
    return status;
}

bool nbl__json_natural(const json_t *value, int64_t *number)
{
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    *number = json_integer_value(value);
    return true;
}

bool nbl__json_shape(const json_t *value, int *rank, int64_t *shape, int64_t *elements)
{
    if (!json_is_array(value) || json_array_size(value) > NBL_MAX_RANK) return false;
    *rank = (int)json_array_size(value);
    *elements = 1;
    bool empty = false;
    for (int i = 0; i < *rank; i++) {
        if (!nbl__json_natural(json_array_get(value, (size_t)i), &shape[i])) return false;
        empty |= shape[i] == 0;
        if (shape[i] && __builtin_mul_overflow(*elements, shape[i], elements)) return false;
    }
    if (empty) *elements = 0;
    return true;
}

const char *nbl__json_text(const json_t *object, const char *key)
{
    return json_string_value(json_object_get(object, key));
}

/* ---- text ---- */

static bool reserve(nbl__text *t, size_t more)
{
    if (t->status != NBL_OK) return false;
    if (t->capacity - t->size > more) return true; /* one byte stays free for the terminator */
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

void nbl__text_json(nbl__text *t, const char *string)
{
    static const char short_names[] = "btnvfr"; /* 8 … 13; 11 has none */
    nbl__text_add(t, "\"", 1);
    for (const char *run = string, *s = string;; s++) {
        unsigned char c = (unsigned char)*s;
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        nbl__text_add(t, run, (size_t)(s - run));
        run = s + 1;
        if (c == '\0') break;
        if (c == '"' || c == '\\') nbl__text_printf(t, "\\%c", c);
        else if (c >= 8 && c <= 13 && c != 11) nbl__text_printf(t, "\\%c", short_names[c - 8]);
        else nbl__text_printf(t, "\\u%04x", c);
    }
    nbl__text_add(t, "\"", 1);
}

void nbl__text_free(nbl__text *t)
{
    nbl__free(t->ctx, t->text, t->capacity);
    t->text = NULL;
    t->size = t->capacity = 0;
}
