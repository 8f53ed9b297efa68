/* json_use.c - access to parsed JSON, and nbl__text. See json.h. */
#include <stdarg.h>
#include <stdio.h>

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

void nbl__text_free(nbl__text *t)
{
    nbl__free(t->ctx, t->text, t->capacity);
    t->text = NULL;
    t->size = t->capacity = 0;
}
