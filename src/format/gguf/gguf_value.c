/* gguf_value.c - looks up entries and tensors of an opened .gguf file by name, and reads values of
 * entries. See gguf.h.
 *
 * Values are read from the mapped file, which need not be aligned: hence memcpy. The file is
 * little-endian, as every supported machine. */
#include <stdlib.h>

#include "format/gguf/gguf.h"

int nbl__gguf_number_bytes(uint32_t type)
{
    static const uint8_t bytes[NBL_GGUF_TYPE_COUNT] = {
        [NBL_GGUF_U8] = 1,  [NBL_GGUF_I8] = 1,  [NBL_GGUF_U16] = 2, [NBL_GGUF_I16] = 2,
        [NBL_GGUF_U32] = 4, [NBL_GGUF_I32] = 4, [NBL_GGUF_F32] = 4, [NBL_GGUF_BOOL] = 1,
        [NBL_GGUF_U64] = 8, [NBL_GGUF_I64] = 8, [NBL_GGUF_F64] = 8,
    };
    return type < NBL_GGUF_TYPE_COUNT ? bytes[type] : 0;
}

int nbl__gguf_by_key(const void *a, const void *b)
{
    const nbl__gguf_entry *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

int nbl__gguf_by_name(const void *a, const void *b)
{
    const nbl__gguf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

/* The look-ups are binary searches in the sorted lists of the file. */
const nbl__gguf_entry *nbl__gguf_find(const nbl__gguf *gguf, const char *key)
{
    nbl__gguf_entry wanted = {.key = key}, *pointer = &wanted;
    const nbl__gguf_entry **found = bsearch(&pointer, gguf->by_key, (size_t)gguf->entry_count,
                                            sizeof *gguf->by_key, nbl__gguf_by_key);
    return found ? *found : NULL;
}

const nbl__gguf_tensor *nbl__gguf_tensor_find(const nbl__gguf *gguf, const char *name)
{
    nbl__gguf_tensor wanted = {.name = name}, *pointer = &wanted;
    const nbl__gguf_tensor **found = bsearch(&pointer, gguf->by_name, (size_t)gguf->tensor_count,
                                             sizeof *gguf->by_name, nbl__gguf_by_name);
    return found ? *found : NULL;
}

/* True if the entry exists and has an element i. */
static bool has(const nbl__gguf_entry *entry, int64_t i)
{
    return entry && i >= 0 && i < entry->count;
}

bool nbl__gguf_string(const nbl__gguf_entry *entry, int64_t i, const char **text, size_t *length)
{
    if (!has(entry, i) || entry->element != NBL_GGUF_STRING) return false;
    *text = entry->texts[i].bytes;
    *length = entry->texts[i].length;
    return true;
}

/* Reads an integer or bool as 64 bits, sign-extended if its type is signed. */
static bool read_integer(const nbl__gguf_entry *entry, int64_t i, uint64_t *bits)
{
    if (!has(entry, i)) return false;
    const uint8_t *offset = entry->data + i * nbl__gguf_number_bytes(entry->element);
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
    } value;
    memcpy(&value, offset, (size_t)nbl__gguf_number_bytes(entry->element));
    switch (entry->element) {
    case NBL_GGUF_BOOL:
    case NBL_GGUF_U8: return *bits = value.u8, true;
    case NBL_GGUF_I8: return *bits = (uint64_t)(int64_t)value.i8, true;
    case NBL_GGUF_U16: return *bits = value.u16, true;
    case NBL_GGUF_I16: return *bits = (uint64_t)(int64_t)value.i16, true;
    case NBL_GGUF_U32: return *bits = value.u32, true;
    case NBL_GGUF_I32: return *bits = (uint64_t)(int64_t)value.i32, true;
    case NBL_GGUF_U64:
    case NBL_GGUF_I64: return *bits = value.u64, true;
    default: return false;
    }
}

bool nbl__gguf_integer(const nbl__gguf_entry *entry, int64_t i, int64_t *value)
{
    uint64_t bits;
    /* -2^63 … 2^63-1; a u64 above that does not fit */
    if (!read_integer(entry, i, &bits)) return false;
    if (entry->element == NBL_GGUF_U64 && bits > INT64_MAX) return false;
    *value = (int64_t)bits;
    return true;
}

/* A u64 or i64 beyond 2^53 is rounded to the nearest double. */
bool nbl__gguf_number(const nbl__gguf_entry *entry, int64_t i, double *value)
{
    uint64_t bits;
    float single;
    if (!has(entry, i)) return false;
    if (entry->element == NBL_GGUF_F32) {
        memcpy(&single, entry->data + i * 4, 4);
        *value = single;
    } else if (entry->element == NBL_GGUF_F64) {
        memcpy(value, entry->data + i * 8, 8);
    } else if (read_integer(entry, i, &bits)) {
        *value = entry->element == NBL_GGUF_U64 ? (double)bits : (double)(int64_t)bits;
    } else {
        return false;
    }
    return true;
}
