/* gguf.c - see gguf.h. One pass over the head with a cursor that cannot leave the file; what the pass
 * allocates is bounded by the bytes still ahead of it. */
#include "format/gguf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"

enum {
    NAME_LIMIT = 65535, /* bytes of a key or tensor name; the specification's limit of keys */
    RANK_LIMIT = 4,
    DEPTH_LIMIT = 8, /* of arrays in arrays */
    ALIGNMENT_DEFAULT = 32,
    /* The fewest bytes of the file that they take: */
    ENTRY_BYTES = 8 + 4 + 1,
    TENSOR_BYTES = 8 + 4 + 4 + 8,
};

typedef struct cursor {
    nbl_context *ctx;
    nbl__arena *arena;
    const char *file;
    const uint8_t *data;
    uint64_t size, at;
    const char *kind, *name; /* what is being read: "key", "general.name"; name is NULL in the header */
} cursor;

/* Every refusal names the file, what was being read and the byte. */
#define REFUSE(c, text, ...) refuse((c), (c)->at, text, __VA_ARGS__)
#define CHECK_AT(c, condition, text, ...)                                                                    \
    do {                                                                                                     \
        if (!(condition)) return REFUSE(c, text, __VA_ARGS__);                                               \
    } while (0)

__attribute__((format(printf, 3, 4))) static nbl_status refuse(cursor *c, uint64_t at, const char *format,
                                                               ...)
{
    char what[256];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (c->name == NULL)
        return nbl__fail(c->ctx, NBL_ERROR_FORMAT, "%s: %s (byte %" PRIu64 ")", c->file, what, at);
    return nbl__fail(c->ctx, NBL_ERROR_FORMAT, "%s: %s \"%.200s\": %s (byte %" PRIu64 ")", c->file, c->kind,
                     c->name, what, at);
}

static uint64_t left(const cursor *c)
{
    return c->size - c->at;
}

static nbl_status need(cursor *c, uint64_t bytes)
{
    CHECK_AT(c, bytes <= left(c),
             "%" PRIu64 " bytes are needed, the file has %" PRIu64 " more (truncated copy?)", bytes, left(c));
    return NBL_OK;
}

static nbl_status read_u32(cursor *c, uint32_t *value)
{
    NBL_TRY(need(c, 4));
    memcpy(value, c->data + c->at, 4);
    c->at += 4;
    return NBL_OK;
}

static nbl_status read_u64(cursor *c, uint64_t *value)
{
    NBL_TRY(need(c, 8));
    memcpy(value, c->data + c->at, 8);
    c->at += 8;
    return NBL_OK;
}

static nbl_status read_text(cursor *c, nbl__gguf_text *text)
{
    uint64_t length = 0;
    NBL_TRY(read_u64(c, &length));
    NBL_TRY(need(c, length));
    *text = (nbl__gguf_text){(const char *)c->data + c->at, (size_t)length};
    c->at += length;
    return NBL_OK;
}

/* A key or a tensor's name: they stand in messages and are compared as C strings. */
static nbl_status read_name(cursor *c, const char **name)
{
    nbl__gguf_text text;
    uint64_t begin = c->at;
    c->name = NULL;
    NBL_TRY(read_text(c, &text));
    if (text.length == 0 || text.length > NAME_LIMIT)
        return refuse(c, begin, "a %s of %zu bytes (1 to %d are allowed)", c->kind, text.length, NAME_LIMIT);
    const char *end = text.bytes + text.length;
    for (const char *s = text.bytes; s < end;) {
        int n = nbl__utf8_length(s, end);
        if (n == 0 || *s == '\0') return refuse(c, begin, "a %s that is not UTF-8 text", c->kind);
        s += n;
    }
    char *copy = nbl__arena_alloc(c->arena, text.length + 1);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    *name = c->name = memcpy(copy, text.bytes, text.length);
    return NBL_OK;
}

/* ---- metadata ---- */

/* Bytes of a number in files; 0: not a number. */
static int number_bytes(uint32_t type)
{
    static const uint8_t bytes[NBL_GGUF_TYPE_COUNT] = {
        [NBL_GGUF_U8] = 1,  [NBL_GGUF_I8] = 1,  [NBL_GGUF_U16] = 2, [NBL_GGUF_I16] = 2,
        [NBL_GGUF_U32] = 4, [NBL_GGUF_I32] = 4, [NBL_GGUF_F32] = 4, [NBL_GGUF_BOOL] = 1,
        [NBL_GGUF_U64] = 8, [NBL_GGUF_I64] = 8, [NBL_GGUF_F64] = 8,
    };
    return type < NBL_GGUF_TYPE_COUNT ? bytes[type] : 0;
}

static nbl_status read_numbers(cursor *c, nbl__gguf_type type, uint64_t count)
{
    uint64_t width = (uint64_t)number_bytes(type);
    CHECK_AT(c, count <= left(c) / width,
             "%" PRIu64 " numbers of %" PRIu64 " bytes, the file has %" PRIu64
             " bytes more (truncated copy?)",
             count, width, left(c));
    for (uint64_t i = 0; type == NBL_GGUF_BOOL && i < count; i++, c->at++)
        CHECK_AT(c, c->data[c->at] <= 1, "a bool that is %d", c->data[c->at]);
    if (type != NBL_GGUF_BOOL) c->at += count * width;
    return NBL_OK;
}

static nbl_status read_texts(cursor *c, uint64_t count, const nbl__gguf_text **texts)
{
    CHECK_AT(c, count <= left(c) / 8,
             "%" PRIu64 " texts, the file has %" PRIu64 " bytes more (truncated copy?)", count, left(c));
    nbl__gguf_text *list = nbl__arena_alloc(c->arena, (size_t)count * sizeof *list);
    if (list == NULL) return NBL_ERROR_MEMORY;
    for (uint64_t i = 0; i < count; i++) NBL_TRY(read_text(c, &list[i]));
    *texts = list;
    return NBL_OK;
}

/* The head of an array: what it holds, how many. */
static nbl_status read_array_head(cursor *c, nbl__gguf_type *element, uint64_t *count)
{
    uint32_t type = 0;
    NBL_TRY(read_u32(c, &type));
    CHECK_AT(c, type < NBL_GGUF_TYPE_COUNT, "an array of the unknown type %" PRIu32, type);
    *element = (nbl__gguf_type)type;
    return read_u64(c, count);
}

/* Steps over the elements of an array of arrays; nobody reads them, but they are in the specification. */
static nbl_status skip_arrays(cursor *c, uint64_t count, int depth)
{
    CHECK_AT(c, depth < DEPTH_LIMIT, "arrays nested more than %d deep", DEPTH_LIMIT);
    for (uint64_t i = 0; i < count; i++) {
        nbl__gguf_type element;
        nbl__gguf_text text;
        uint64_t inner = 0;
        NBL_TRY(read_array_head(c, &element, &inner));
        if (element == NBL_GGUF_ARRAY) NBL_TRY(skip_arrays(c, inner, depth + 1));
        else if (element != NBL_GGUF_STRING) NBL_TRY(read_numbers(c, element, inner));
        else
            for (uint64_t k = 0; k < inner; k++) NBL_TRY(read_text(c, &text));
    }
    return NBL_OK;
}

static nbl_status read_entry(cursor *c, nbl__gguf_entry *entry)
{
    uint32_t type = 0;
    uint64_t count = 1;
    c->kind = "key";
    NBL_TRY(read_name(c, &entry->key));
    NBL_TRY(read_u32(c, &type));
    CHECK_AT(c, type < NBL_GGUF_TYPE_COUNT, "the unknown type %" PRIu32, type);
    entry->type = entry->element = (nbl__gguf_type)type;
    if (entry->type == NBL_GGUF_ARRAY) NBL_TRY(read_array_head(c, &entry->element, &count));
    CHECK_AT(c, count <= INT64_MAX, "%" PRIu64 " elements", count);
    entry->count = (int64_t)count;
    entry->data = c->data + c->at;
    if (entry->element == NBL_GGUF_STRING) return read_texts(c, count, &entry->texts);
    if (entry->element == NBL_GGUF_ARRAY) return skip_arrays(c, count, 0);
    return read_numbers(c, entry->element, count);
}

/* ---- tensors ---- */

static nbl_status read_shape(cursor *c, nbl__gguf_tensor *tensor)
{
    uint32_t rank = 0;
    NBL_TRY(read_u32(c, &rank));
    CHECK_AT(c, rank <= RANK_LIMIT, "%" PRIu32 " dimensions, at most %d are supported", rank, RANK_LIMIT);
    tensor->rank = (int)rank;
    int64_t elements = 1;
    bool fits = true;
    for (int i = tensor->rank; i-- > 0;) { /* the file has the fastest first */
        uint64_t size = 0;
        NBL_TRY(read_u64(c, &size));
        CHECK_AT(c, size <= INT64_MAX, "a dimension of %" PRIu64, size);
        tensor->shape[i] = (int64_t)size;
        /* An empty tensor's other sizes must not overflow, either. */
        if (size > 0) fits = fits && !__builtin_mul_overflow(elements, (int64_t)size, &elements);
    }
    CHECK_AT(c, fits, "%s", "its sizes overflow");
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0) elements = 0;
    tensor->elements = elements;
    return NBL_OK;
}

/* `place` is relative to the data, which begins after the last tensor's entry. */
static nbl_status read_tensor(cursor *c, uint64_t alignment, nbl__gguf_tensor *tensor, uint64_t *place)
{
    uint32_t type = 0;
    nbl__ggml_layout layout;
    c->kind = "tensor";
    NBL_TRY(read_name(c, &tensor->name));
    NBL_TRY(read_shape(c, tensor));
    NBL_TRY(read_u32(c, &type));
    CHECK_AT(c, nbl__ggml_layout_of(type, &layout), "the unknown tensor type %" PRIu32, type);
    tensor->type = (nbl__ggml_type)type;
    int64_t row = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
    CHECK_AT(c, row % layout.values == 0,
             "a row of %" PRId64 " values is no whole number of blocks of %s (%d)", row, layout.name,
             layout.values);
    uint64_t blocks = (uint64_t)(tensor->elements / layout.values);
    CHECK_AT(c, nbl__mul_u64(blocks, (uint64_t)layout.bytes, &tensor->bytes), "%s", "its bytes overflow");
    NBL_TRY(read_u64(c, place));
    CHECK_AT(c, *place % alignment == 0, "its data begins at byte %" PRIu64 ", not a multiple of %" PRIu64,
             *place, alignment);
    return NBL_OK;
}

/* ---- names: sorted for finding, and unique ---- */

static int by_key(const void *a, const void *b)
{
    const nbl__gguf_entry *const *x = a, *const *y = b;
    return strcmp((*x)->key, (*y)->key);
}

static int by_name(const void *a, const void *b)
{
    const nbl__gguf_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static int by_place(const void *a, const void *b)
{
    const nbl__gguf_tensor *const *x = a, *const *y = b;
    if ((*x)->data != (*y)->data) return (*x)->data < (*y)->data ? -1 : 1;
    return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes; /* empty ones first */
}

static nbl_status index_entries(nbl__gguf *g)
{
    size_t n = (size_t)g->entry_count;
    g->by_key = nbl__arena_alloc(&g->arena, n * sizeof *g->by_key);
    if (g->by_key == NULL) return NBL_ERROR_MEMORY;
    for (size_t i = 0; i < n; i++) g->by_key[i] = &g->entries[i];
    qsort(g->by_key, n, sizeof *g->by_key, by_key);
    for (size_t i = 1; i < n; i++)
        NBL_CHECK(g->ctx, strcmp(g->by_key[i - 1]->key, g->by_key[i]->key) != 0, NBL_ERROR_FORMAT,
                  "%s: the key \"%.200s\" is there twice", g->path, g->by_key[i]->key);
    return NBL_OK;
}

static nbl_status index_tensors(nbl__gguf *g)
{
    size_t n = (size_t)g->tensor_count;
    const nbl__gguf_tensor **list = g->by_name = nbl__arena_alloc(&g->arena, n * sizeof *list);
    if (list == NULL) return NBL_ERROR_MEMORY;
    for (size_t i = 0; i < n; i++) list[i] = &g->tensors[i];
    qsort(list, n, sizeof *list, by_place);
    for (size_t i = 1; i < n; i++)
        NBL_CHECK(g->ctx, list[i - 1]->data + list[i - 1]->bytes <= list[i]->data, NBL_ERROR_FORMAT,
                  "%s: the data of tensor \"%.200s\" overlaps that of \"%.200s\"", g->path, list[i]->name,
                  list[i - 1]->name);
    qsort(list, n, sizeof *list, by_name);
    for (size_t i = 1; i < n; i++)
        NBL_CHECK(g->ctx, strcmp(list[i - 1]->name, list[i]->name) != 0, NBL_ERROR_FORMAT,
                  "%s: the tensor \"%.200s\" is there twice", g->path, list[i]->name);
    return NBL_OK;
}

/* ---- the whole ---- */

static nbl_status read_header(cursor *c, nbl__gguf *g)
{
    uint64_t tensors = 0, entries = 0;
    CHECK_AT(c, c->size >= 24 && memcmp(c->data, "GGUF", 4) == 0, "%s", "not a GGUF file");
    c->at = 4;
    NBL_TRY(read_u32(c, &g->version));
    c->at = 4; /* the place to name */
    CHECK_AT(c, (g->version & 0xffff) != 0, "%s", "a big-endian GGUF file, which is not supported");
    CHECK_AT(c, g->version == 2 || g->version == 3, "GGUF version %" PRIu32 "; 2 and 3 are supported",
             g->version);
    c->at = 8;
    NBL_TRY(read_u64(c, &tensors));
    NBL_TRY(read_u64(c, &entries));
    CHECK_AT(c, entries <= left(c) / ENTRY_BYTES, "%" PRIu64 " keys in %" PRIu64 " bytes (truncated copy?)",
             entries, left(c));
    CHECK_AT(c, tensors <= left(c) / TENSOR_BYTES,
             "%" PRIu64 " tensors in %" PRIu64 " bytes (truncated copy?)", tensors, left(c));
    g->entry_count = (int64_t)entries;
    g->tensor_count = (int64_t)tensors;
    g->entries = nbl__arena_alloc(&g->arena, (size_t)entries * sizeof *g->entries);
    g->tensors = nbl__arena_alloc(&g->arena, (size_t)tensors * sizeof *g->tensors);
    return g->entries && g->tensors ? NBL_OK : NBL_ERROR_MEMORY;
}

static nbl_status read_alignment(cursor *c, const nbl__gguf *g, uint64_t *alignment)
{
    const nbl__gguf_entry *entry = nbl__gguf_find(g, "general.alignment");
    int64_t value = ALIGNMENT_DEFAULT;
    if (entry) {
        c->kind = "key", c->name = entry->key;
        bool fits = entry->type == NBL_GGUF_U32 && nbl__gguf_integer(entry, 0, &value) && value > 0 &&
                    (value & (value - 1)) == 0;
        if (!fits) return refuse(c, (uint64_t)(entry->data - c->data), "%s", "not a power of two in a u32");
    }
    *alignment = (uint64_t)value;
    return NBL_OK;
}

static nbl_status read_tensors(cursor *c, nbl__gguf *g, uint64_t alignment, uint64_t *places)
{
    for (int64_t i = 0; i < g->tensor_count; i++)
        NBL_TRY(read_tensor(c, alignment, &g->tensors[i], &places[i]));
    uint64_t begin = 0; /* of the data; cannot overflow: a mapped file is smaller than 2^63 */
    begin = (c->at + alignment - 1) / alignment * alignment;
    for (int64_t i = 0; i < g->tensor_count; i++) {
        nbl__gguf_tensor *tensor = &g->tensors[i];
        uint64_t end = 0;
        c->kind = "tensor", c->name = tensor->name;
        bool fits = nbl__add_u64(begin, places[i], &end) && nbl__add_u64(end, tensor->bytes, &end) &&
                    end <= c->size;
        CHECK_AT(c, fits,
                 "its %" PRIu64 " bytes begin at byte %" PRIu64 " of the data, the file has %" PRIu64
                 " bytes (truncated copy?)",
                 tensor->bytes, places[i], c->size);
        tensor->data = c->data + begin + places[i];
    }
    return NBL_OK;
}

static nbl_status read_all(cursor *c, nbl__gguf *g)
{
    uint64_t alignment = 0, *places;
    NBL_TRY(read_header(c, g));
    for (int64_t i = 0; i < g->entry_count; i++) NBL_TRY(read_entry(c, &g->entries[i]));
    NBL_TRY(index_entries(g));
    NBL_TRY(read_alignment(c, g, &alignment));
    NBL_TRY(NBL_ALLOC(g->ctx, places, g->tensor_count));
    nbl_status status = read_tensors(c, g, alignment, places);
    nbl__free(g->ctx, places, (size_t)g->tensor_count * sizeof *places);
    return status == NBL_OK ? index_tensors(g) : status;
}

static nbl_status make(nbl_context *ctx, const char *path, nbl__gguf **out)
{
    nbl__gguf *g;
    *out = NULL;
    NBL_TRY(NBL_ALLOC(ctx, g, 1));
    g->ctx = ctx;
    g->arena = nbl__arena_make(ctx);
    *out = g;
    g->path = nbl__arena_strdup(&g->arena, path);
    return g->path ? NBL_OK : NBL_ERROR_MEMORY;
}

static nbl_status fill(nbl__gguf *g, const uint8_t *data, uint64_t size)
{
    cursor c = {.ctx = g->ctx, .arena = &g->arena, .file = g->path, .data = data, .size = size};
    return read_all(&c, g);
}

/* A half-made one does not leave. */
static nbl_status deliver(nbl_status status, nbl__gguf **out)
{
    if (status == NBL_OK) return NBL_OK;
    nbl__gguf_close(*out);
    *out = NULL;
    return status;
}

nbl_status nbl__gguf_parse(nbl_context *ctx, const char *path, const uint8_t *data, uint64_t size,
                           nbl__gguf **out)
{
    nbl_status status = make(ctx, path, out);
    if (status == NBL_OK) status = fill(*out, data, size);
    return deliver(status, out);
}

nbl_status nbl__gguf_open(nbl_context *ctx, const char *path, nbl__gguf **out)
{
    nbl_status status = make(ctx, path, out);
    if (status == NBL_OK) status = nbl__file_map(ctx, path, &(*out)->file);
    if (status == NBL_OK) status = fill(*out, (*out)->file.data, (*out)->file.size);
    return deliver(status, out);
}

void nbl__gguf_close(nbl__gguf *gguf)
{
    if (gguf == NULL) return;
    nbl_context *ctx = gguf->ctx;
    if (gguf->file.data) nbl__file_unmap(&gguf->file);
    nbl__arena_free(&gguf->arena);
    nbl__free(ctx, gguf, sizeof *gguf);
}

/* ---- access ---- */

const nbl__gguf_entry *nbl__gguf_find(const nbl__gguf *gguf, const char *key)
{
    nbl__gguf_entry wanted = {.key = key}, *pointer = &wanted;
    const nbl__gguf_entry **found = bsearch(&pointer, gguf->by_key, (size_t)gguf->entry_count,
                                            sizeof *gguf->by_key, by_key);
    return found ? *found : NULL;
}

const nbl__gguf_tensor *nbl__gguf_tensor_find(const nbl__gguf *gguf, const char *name)
{
    nbl__gguf_tensor wanted = {.name = name}, *pointer = &wanted;
    const nbl__gguf_tensor **found = bsearch(&pointer, gguf->by_name, (size_t)gguf->tensor_count,
                                             sizeof *gguf->by_name, by_name);
    return found ? *found : NULL;
}

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

/* The bits of an integer, sign-extended where it has one. */
static bool read_integer(const nbl__gguf_entry *entry, int64_t i, uint64_t *bits)
{
    if (!has(entry, i)) return false;
    const uint8_t *place = entry->data + i * number_bytes(entry->element);
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
    } value;
    memcpy(&value, place, (size_t)number_bytes(entry->element));
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
    if (!read_integer(entry, i, &bits)) return false;
    if (entry->element == NBL_GGUF_U64 && bits > INT64_MAX) return false;
    *value = (int64_t)bits;
    return true;
}

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
