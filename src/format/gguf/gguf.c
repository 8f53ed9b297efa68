/* gguf.c - the .gguf reader; see gguf.h.
 *
 *     read_header ─▶ read_entries ─▶ index ─▶ alignment ─▶ read_tensors ─▶ index
 *
 * One pass over the head with a cursor that cannot leave the file. Every count is compared with the
 * bytes that are left before memory is allocated for it, so a hostile count cannot exhaust memory.
 * Then keys and names are sorted to find duplicates, and tensors by address to find overlaps: O(n
 * log n).
 *
 * In inspection mode (nbl__gguf_inspect) c->problems is not NULL, and nbl__problem_collect lists a
 * problem. Reading goes on as long as the next offset is known: a wrong bool or a misaligned tensor
 * is listed, a text that is longer than the file ends the reading. */
#include "format/gguf/gguf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/utf8.h"

enum {
    NAME_LIMIT = 65535, /* bytes of a key or tensor name; the specification's limit of keys */
    RANK_LIMIT = 4,
    DEPTH_LIMIT = 8, /* of arrays in arrays */
    ALIGNMENT_DEFAULT = 32,
    /* Minimum bytes of an entry and of a tensor's head in the file: */
    ENTRY_BYTES = 8 + 4 + 1,
    TENSOR_BYTES = 8 + 4 + 4 + 8,
};

/* The position in the file, and what is read there, for messages. Invariant: at <= size. */
typedef struct cursor {
    nbl_context *ctx;
    nbl__arena *arena;
    const char *file;
    const uint8_t *data;
    uint64_t size, at;
    nbl__problems *problems;
    const char *kind, *name; /* what is being read: "key", "general.name"; name is NULL in the header */
} cursor;

static const uint64_t NOWHERE = UINT64_MAX; /* the offset of a tensor with a problem */

/* Errors name the file, what was being read and the byte. */
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

/* Fails unless this many bytes are left. */
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

/* A text: length and bytes. The bytes stay in the map and may be anything. */
static nbl_status read_text(cursor *c, nbl__gguf_text *text)
{
    uint64_t length = 0;
    NBL_TRY(read_u64(c, &length));
    NBL_TRY(need(c, length));
    *text = (nbl__gguf_text){(const char *)c->data + c->at, (size_t)length};
    c->at += length;
    return NBL_OK;
}

/* Reads a key or a tensor's name. It must be UTF-8 without NUL, as it is compared as a C string and
 * printed. */
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

/* A bool is 0 or 1 in the specification. Another byte is a problem that leaves the offset known. */
static nbl_status check_bools(cursor *c, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (c->data[c->at + i] > 1) return refuse(c, c->at + i, "a bool that is %d", c->data[c->at + i]);
    return NBL_OK;
}

/* Skips numbers, which are read later from the map (gguf_value.c). */
static nbl_status read_numbers(cursor *c, nbl__gguf_type type, uint64_t count)
{
    uint64_t width = (uint64_t)nbl__gguf_number_bytes(type);
    CHECK_AT(c, count <= left(c) / width,
             "%" PRIu64 " numbers of %" PRIu64 " bytes, the file has %" PRIu64
             " bytes more (truncated copy?)",
             count, width, left(c));
    if (type == NBL_GGUF_BOOL) NBL_TRY(nbl__problem_collect(c->problems, check_bools(c, count)));
    c->at += count * width;
    return NBL_OK;
}

/* Reads an array of texts. Their addresses are kept: each length depends on the text before it, so
 * a text could not be found by its index. */
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

/* The head of an array: element type and count. */
static nbl_status read_array_head(cursor *c, nbl__gguf_type *element, uint64_t *count)
{
    uint32_t type = 0;
    NBL_TRY(read_u32(c, &type));
    CHECK_AT(c, type < NBL_GGUF_TYPE_COUNT, "an array of the unknown type %" PRIu32, type);
    *element = (nbl__gguf_type)type;
    return read_u64(c, count);
}

/* Skips the elements of an array of arrays. No known model uses one, but the specification allows
 * them. */
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

/* Reads one entry: key, type and value. c->name is the key from here on, so errors name it. */
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

/* Reads rank and sizes. The file has the fastest dimension first, nibble the slowest. */
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

/* Checks that the type is known and that a row is a whole number of its blocks; computes the
 * bytes. */
static nbl_status check_layout(cursor *c, nbl__gguf_tensor *tensor)
{
    nbl__ggml_layout layout;
    CHECK_AT(c, nbl__ggml_layout_of((uint32_t)tensor->type, &layout), "the unknown tensor type %" PRIu32,
             (uint32_t)tensor->type);
    int64_t row = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
    CHECK_AT(c, row % layout.values == 0,
             "a row of %" PRId64 " values is no whole number of blocks of %s (%d)", row, layout.name,
             layout.values);
    uint64_t blocks = (uint64_t)(tensor->elements / layout.values);
    CHECK_AT(c, nbl__mul_u64(blocks, (uint64_t)layout.bytes, &tensor->bytes), "%s", "its bytes overflow");
    return NBL_OK;
}

/* The specification wants every tensor to begin at a multiple of the alignment. */
static nbl_status check_alignment(cursor *c, uint64_t alignment, uint64_t offset)
{
    CHECK_AT(c, offset % alignment == 0, "its data begins at byte %" PRIu64 ", not a multiple of %" PRIu64,
             offset, alignment);
    return NBL_OK;
}

/* Lists a tensor's problem, if `status` is one, and sets *offset to NOWHERE. */
static nbl_status list_or_fail(cursor *c, nbl_status status, uint64_t *offset)
{
    if (status != NBL_OK) *offset = NOWHERE;
    return nbl__problem_collect(c->problems, status);
}

/* Reads a tensor's head. *offset counts from the beginning of the data, which is known only after
 * the last tensor; NOWHERE: the tensor has a problem. */
static nbl_status read_tensor(cursor *c, uint64_t alignment, nbl__gguf_tensor *tensor, uint64_t *offset)
{
    uint32_t type = 0;
    uint64_t at = 0, nowhere = 0;
    c->kind = "tensor";
    NBL_TRY(read_name(c, &tensor->name));
    NBL_TRY(read_shape(c, tensor));
    NBL_TRY(read_u32(c, &type));
    tensor->type = (nbl__ggml_type)type;
    NBL_TRY(list_or_fail(c, check_layout(c, tensor), &nowhere));
    NBL_TRY(read_u64(c, &at));
    NBL_TRY(list_or_fail(c, check_alignment(c, alignment, at), &nowhere));
    *offset = nowhere ? NOWHERE : at;
    return NBL_OK;
}

/* ---- names: sorted for finding, and unique ---- */

/* Sorts by address, so that only neighbours can overlap. Tensors with a problem (data NULL) come
 * first. */
static int by_offset(const void *a, const void *b)
{
    const nbl__gguf_tensor *const *x = a, *const *y = b;
    if ((*x)->data != (*y)->data) return (*x)->data < (*y)->data ? -1 : 1;
    return (*x)->bytes < (*y)->bytes ? -1 : (*x)->bytes > (*y)->bytes; /* empty ones first */
}

/* Sorts the entries by key; duplicates are problems. */
static nbl_status index_entries(nbl__gguf *g)
{
    size_t n = (size_t)g->entry_count;
    g->by_key = nbl__arena_alloc(&g->arena, n * sizeof *g->by_key);
    if (g->by_key == NULL) return NBL_ERROR_MEMORY;
    for (size_t i = 0; i < n; i++) g->by_key[i] = &g->entries[i];
    qsort(g->by_key, n, sizeof *g->by_key, nbl__gguf_by_key);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(g->by_key[i - 1]->key, g->by_key[i]->key) != 0) continue;
        nbl_status status = nbl__fail(g->ctx, NBL_ERROR_FORMAT, "%s: the key \"%.200s\" is there twice",
                                      g->path, g->by_key[i]->key);
        NBL_TRY(nbl__problem_collect(g->problems, status));
    }
    return NBL_OK;
}

/* Finds overlapping tensors, then sorts by name; duplicates are problems. */
static nbl_status index_tensors(nbl__gguf *g)
{
    size_t n = (size_t)g->tensor_count;
    const nbl__gguf_tensor **list = g->by_name = nbl__arena_alloc(&g->arena, n * sizeof *list);
    if (list == NULL) return NBL_ERROR_MEMORY;
    for (size_t i = 0; i < n; i++) list[i] = &g->tensors[i];
    qsort(list, n, sizeof *list, by_offset);
    for (size_t i = 1; i < n; i++) {
        const nbl__gguf_tensor *before = list[i - 1], *it = list[i];
        if (before->data == NULL || before->data + before->bytes <= it->data) continue;
        NBL_TRY(nbl__problem_collect(
            g->problems, nbl__fail(g->ctx, NBL_ERROR_FORMAT,
                                   "%s: the data of tensor \"%.200s\" overlaps that of \"%.200s\"", g->path,
                                   it->name, before->name)));
    }
    qsort(list, n, sizeof *list, nbl__gguf_by_name);
    for (size_t i = 1; i < n; i++) {
        if (strcmp(list[i - 1]->name, list[i]->name) != 0) continue;
        NBL_TRY(nbl__problem_collect(g->problems, nbl__fail(g->ctx, NBL_ERROR_FORMAT,
                                                            "%s: the tensor \"%.200s\" is there twice",
                                                            g->path, list[i]->name)));
    }
    return NBL_OK;
}

/* ---- the whole ---- */

/* Reads the header: magic, version, counts. The bytes of a big-endian version are swapped, so its
 * low half is 0. */
static nbl_status read_header(cursor *c, nbl__gguf *g)
{
    uint64_t tensors = 0, entries = 0;
    CHECK_AT(c, c->size >= 24 && memcmp(c->data, "GGUF", 4) == 0, "%s", "not a GGUF file");
    c->at = 4;
    NBL_TRY(read_u32(c, &g->version));
    c->at = 4; /* errors below name the version's byte */
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

/* *alignment: general.alignment, which must be a power of two in a u32; else 32. */
static nbl_status read_alignment(cursor *c, const nbl__gguf *g, uint64_t *alignment)
{
    const nbl__gguf_entry *entry = nbl__gguf_find(g, "general.alignment");
    int64_t value = ALIGNMENT_DEFAULT;
    if (entry) {
        c->kind = "key", c->name = entry->key;
        bool fits = entry->type == NBL_GGUF_U32 && nbl__gguf_integer(entry, 0, &value) && value > 0 &&
                    (value & (value - 1)) == 0;
        if (!fits) {
            value = ALIGNMENT_DEFAULT;
            NBL_TRY(nbl__problem_collect(c->problems, refuse(c, (uint64_t)(entry->data - c->data), "%s",
                                                             "not a power of two in a u32")));
        }
    }
    *alignment = (uint64_t)value;
    return NBL_OK;
}

/* Checks that the data of a tensor ends within the file. */
static nbl_status check_end(cursor *c, const nbl__gguf_tensor *tensor, uint64_t begin, uint64_t offset)
{
    uint64_t end = 0;
    bool fits = nbl__add_u64(begin, offset, &end) && nbl__add_u64(end, tensor->bytes, &end) && end <= c->size;
    CHECK_AT(c, fits,
             "its %" PRIu64 " bytes begin at byte %" PRIu64 " of the data, the file has %" PRIu64
             " bytes (truncated copy?)",
             tensor->bytes, offset, c->size);
    return NBL_OK;
}

/* Reads all tensor heads, then computes and checks the address of each tensor's data. */
static nbl_status read_tensors(cursor *c, nbl__gguf *g, uint64_t alignment, uint64_t *offsets)
{
    int64_t count = g->tensor_count;
    for (g->tensor_count = 0; g->tensor_count < count;
         g->tensor_count++) /* after a failure: the number of tensors that were read */
        NBL_TRY(read_tensor(c, alignment, &g->tensors[g->tensor_count], &offsets[g->tensor_count]));
    uint64_t begin = 0; /* of the data; cannot overflow: a mapped file is smaller than 2^63 */
    begin = (c->at + alignment - 1) / alignment * alignment;
    for (int64_t i = 0; i < g->tensor_count; i++) {
        nbl__gguf_tensor *tensor = &g->tensors[i];
        c->kind = "tensor", c->name = tensor->name;
        if (offsets[i] == NOWHERE) continue;
        nbl_status status = check_end(c, tensor, begin, offsets[i]);
        if (status == NBL_OK) tensor->data = c->data + begin + offsets[i];
        NBL_TRY(nbl__problem_collect(c->problems, status));
    }
    return NBL_OK;
}

/* After a failure entry_count is the number of entries that were read. */
static nbl_status read_entries(cursor *c, nbl__gguf *g)
{
    int64_t count = g->entry_count;
    for (g->entry_count = 0; g->entry_count < count; g->entry_count++)
        NBL_TRY(read_entry(c, &g->entries[g->entry_count]));
    return NBL_OK;
}

/* Reads everything. In inspection mode, what was read before a failure stays. */
static nbl_status read_all(cursor *c, nbl__gguf *g)
{
    uint64_t alignment = 0, *offsets;
    int64_t tensors;
    NBL_TRY(read_header(c, g));
    tensors = g->tensor_count;
    nbl_status status = read_entries(c, g);
    if (status != NBL_OK) g->tensor_count = 0;
    bool stopped = status != NBL_OK;
    NBL_TRY(nbl__problem_collect(c->problems, status));
    NBL_TRY(index_entries(g));
    if (!stopped) {
        NBL_TRY(read_alignment(c, g, &alignment));
        /* the offsets count from the end of the head, which is known after the last tensor */
        NBL_TRY(NBL_ALLOC(g->ctx, offsets, tensors));
        status = nbl__problem_collect(c->problems, read_tensors(c, g, alignment, offsets));
        nbl__free(g->ctx, offsets, (size_t)tensors * sizeof *offsets);
        NBL_TRY(status);
    }
    return index_tensors(g);
}

/* Makes an empty nbl__gguf. On an error *out may be set; deliver() frees it. */
static nbl_status make(nbl_context *ctx, const char *path, bool look, nbl__gguf **out)
{
    nbl__gguf *g;
    *out = NULL;
    NBL_TRY(NBL_ALLOC(ctx, g, 1));
    g->ctx = ctx;
    g->arena = nbl__arena_make(ctx);
    g->found.arena = &g->arena;
    g->problems = look ? &g->found : NULL;
    *out = g;
    g->path = nbl__arena_strdup(&g->arena, path);
    return g->path ? NBL_OK : NBL_ERROR_MEMORY;
}

static nbl_status fill(nbl__gguf *g, const uint8_t *data, uint64_t size)
{
    cursor c = {.ctx = g->ctx,
                .arena = &g->arena,
                .file = g->path,
                .problems = g->problems,
                .data = data,
                .size = size};
    return read_all(&c, g);
}

/* On an error frees *out, so that the caller never gets a half-read file. */
static nbl_status deliver(nbl_status status, nbl__gguf **out)
{
    if (status == NBL_OK) return NBL_OK;
    nbl__gguf_close(*out);
    *out = NULL;
    return status;
}

static nbl_status parse(nbl_context *ctx, const char *path, const uint8_t *data, uint64_t size, bool look,
                        nbl__gguf **out)
{
    nbl_status status = make(ctx, path, look, out);
    if (status == NBL_OK) status = fill(*out, data, size);
    return deliver(status, out);
}

nbl_status nbl__gguf_parse(nbl_context *ctx, const char *path, const uint8_t *data, uint64_t size,
                           nbl__gguf **out)
{
    return parse(ctx, path, data, size, false, out);
}

nbl_status nbl__gguf_inspect_file(nbl_context *ctx, const char *path, const uint8_t *data, uint64_t size,
                                  nbl__gguf **out)
{
    return parse(ctx, path, data, size, true, out);
}

static nbl_status open_file(nbl_context *ctx, const char *path, bool look, nbl__gguf **out)
{
    nbl_status status = make(ctx, path, look, out);
    if (status == NBL_OK) status = nbl__file_map(ctx, path, &(*out)->file);
    if (status == NBL_OK) status = fill(*out, (*out)->file.data, (*out)->file.size);
    return deliver(status, out);
}

nbl_status nbl__gguf_open(nbl_context *ctx, const char *path, nbl__gguf **out)
{
    return open_file(ctx, path, false, out);
}

nbl_status nbl__gguf_inspect(nbl_context *ctx, const char *path, nbl__gguf **out)
{
    return open_file(ctx, path, true, out);
}

void nbl__gguf_close(nbl__gguf *gguf)
{
    if (gguf == NULL) return;
    nbl_context *ctx = gguf->ctx;
    if (gguf->file.data) nbl__file_unmap(&gguf->file);
    nbl__arena_free(&gguf->arena);
    nbl__free(ctx, gguf, sizeof *gguf);
}
