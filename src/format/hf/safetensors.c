/* safetensors.c - the .safetensors reader. See safetensors.h.
 *
 * The header is parsed entry by entry: a JSON tree of the whole header would take ten times its
 * size. Names are then sorted to find duplicates, and offsets to find overlaps and gaps: O(n log
 * n). */
#include "format/hf/safetensors.h"

#include <stdlib.h>

#include "base/json/json.h"

/* Checks the header's length and first character. */
static nbl_status read_header(nbl_context *ctx, const char *file, const uint8_t *data, uint64_t size,
                              uint64_t *header_size)
{
    NBL_CHECK(ctx, size >= 8, NBL_ERROR_FORMAT, "%s: %" PRIu64 " bytes are too few for a safetensors file",
              file, size);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | data[i];
    NBL_CHECK(ctx, length <= NBL_HEADER_LIMIT, NBL_ERROR_FORMAT,
              "%s: a header of %" PRIu64 " bytes (at most %d are allowed; not a safetensors file?)", file,
              length, NBL_HEADER_LIMIT);
    NBL_CHECK(ctx, length <= size - 8, NBL_ERROR_FORMAT,
              "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64 " (truncated copy?)", file, length,
              size);
    uint64_t first = 0; /* leading white space is allowed, as in upstream's reader */
    while (first < length && memchr(" \t\n\r", data[8 + first], 4)) first++;
    NBL_CHECK(ctx, first < length && data[8 + first] == '{', NBL_ERROR_FORMAT,
              "%s: the header is not a JSON object", file);
    *header_size = length;
    return NBL_OK;
}

static nbl_status check_metadata(nbl_context *ctx, const char *file, const nbl__json *metadata)
{
    if (metadata->type == NBL_JSON_NULL) return NBL_OK;
    NBL_CHECK(ctx, metadata->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT, "%s: __metadata__ is not an object",
              file);
    for (int64_t i = 0; i < metadata->count; i++)
        NBL_CHECK(ctx, nbl__json_is(&metadata->items[i], NBL_JSON_STRING), NBL_ERROR_FORMAT,
                  "%s: __metadata__ \"%s\" is not text", file, metadata->items[i].key);
    return NBL_OK;
}

/* Reads one entry of the header. Its offsets are checked against the data's size here, and against
 * other entries in check_offsets. */
static nbl_status read_entry(nbl_context *ctx, const char *file, const char *name, const nbl__json *entry,
                             uint64_t data_size, nbl__stored *tensor, int64_t offsets[2])
{
#define CHECK_ENTRY(condition, text, ...)                                                                    \
    NBL_CHECK(ctx, condition, NBL_ERROR_FORMAT, "%s: tensor \"%s\": " text, file, name, __VA_ARGS__)
    CHECK_ENTRY(nbl__json_is(entry, NBL_JSON_OBJECT), "%s", "its entry is not an object");
    const char *dtype = nbl__json_text(entry, "dtype");
    CHECK_ENTRY(dtype, "%s", "no dtype");
    CHECK_ENTRY(nbl__dtype_from_file_name(dtype, &tensor->dtype), "unknown dtype \"%s\"", dtype);
    const nbl__json *shape = nbl__json_get(entry, "shape"),
                    *data_offsets = nbl__json_get(entry, "data_offsets");
    CHECK_ENTRY(nbl__json_is(shape, NBL_JSON_ARRAY), "%s", "no shape");
    CHECK_ENTRY(shape->count <= NBL_MAX_RANK, "%" PRId64 " dimensions, at most %d are supported",
                shape->count, NBL_MAX_RANK);
    CHECK_ENTRY(nbl__json_shape(shape, &tensor->rank, tensor->shape, &tensor->elements), "%s",
                "its shape is not a list of sizes, or overflows");
    bool two = nbl__json_is(data_offsets, NBL_JSON_ARRAY) && data_offsets->count == 2 &&
               nbl__json_natural(&data_offsets->items[0], &offsets[0]) &&
               nbl__json_natural(&data_offsets->items[1], &offsets[1]);
    CHECK_ENTRY(two, "%s", "data_offsets is not two numbers");
    CHECK_ENTRY(offsets[0] <= offsets[1], "data begins at byte %" PRId64 " and ends at %" PRId64, offsets[0],
                offsets[1]);
    CHECK_ENTRY((uint64_t)offsets[1] <= data_size,
                "data ends at byte %" PRId64 ", the file's at %" PRIu64 " (truncated copy?)", offsets[1],
                data_size);
    bool whole = nbl__dtype_bytes(tensor->dtype, (uint64_t)tensor->elements, &tensor->bytes);
    CHECK_ENTRY(whole && tensor->bytes == (uint64_t)(offsets[1] - offsets[0]),
                "%" PRId64 " elements of %s do not fill its %" PRId64 " bytes", tensor->elements,
                nbl_dtype_name(tensor->dtype), offsets[1] - offsets[0]);
#undef CHECK_ENTRY
    return NBL_OK;
}

static int by_offset(const void *a, const void *b)
{
    const nbl__stored *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    if (x->bytes != y->bytes) return x->bytes < y->bytes ? -1 : 1; /* empty tensors first */
    return strcmp(x->name, y->name);
}

/* Checks that tensors sorted by offset fill the data without overlaps and gaps. */
static nbl_status check_offsets(nbl_context *ctx, const char *file, const nbl__stored *tensors, int64_t count,
                                const uint8_t *data, uint64_t size)
{
    const uint8_t *end = data;
    for (int64_t i = 0; i < count; i++) {
        NBL_CHECK(ctx, tensors[i].data >= end, NBL_ERROR_FORMAT, "%s: tensor \"%s\" overlaps \"%s\"", file,
                  tensors[i].name, i ? tensors[i - 1].name : "");
        NBL_CHECK(ctx, tensors[i].data == end, NBL_ERROR_FORMAT,
                  "%s: %td bytes before tensor \"%s\" belong to none", file, tensors[i].data - end,
                  tensors[i].name);
        end = tensors[i].data + tensors[i].bytes;
    }
    NBL_CHECK(ctx, end == data + size, NBL_ERROR_FORMAT, "%s: %td bytes after the last tensor belong to none",
              file, data + size - end);
    return NBL_OK;
}

/* ---- the header, entry by entry ---- */

typedef struct header {
    nbl__arena *arena; /* for names and the final list */
    const char *file;
    const uint8_t *data;
    uint64_t size;
    nbl__stored *tensors;
    int64_t count, room;
    bool has_metadata;
} header;

/* The error for a duplicate key. */
static nbl_status twice(const header *h, const char *key)
{
    return nbl__fail(h->arena->ctx, NBL_ERROR_FORMAT, "%s: not valid JSON: the key \"%s\" is there twice",
                     h->file, key);
}

static nbl_status make_room(header *h)
{
    nbl_context *ctx = h->arena->ctx;
    nbl__stored *tensors;
    if (h->count < h->room) return NBL_OK;
    NBL_CHECK(ctx, h->room < NBL_MAX_TENSORS, NBL_ERROR_UNSUPPORTED, "%s: more than %d tensors in one file",
              h->file, NBL_MAX_TENSORS);
    int64_t room = h->room ? 2 * h->room : 256;
    NBL_TRY(NBL_ALLOC(ctx, tensors, room));
    if (h->count) memcpy(tensors, h->tensors, (size_t)h->count * sizeof *tensors);
    nbl__free(ctx, h->tensors, (size_t)h->room * sizeof *h->tensors);
    h->tensors = tensors;
    h->room = room;
    return NBL_OK;
}

static nbl_status visit_entry(void *user, const nbl__json *entry)
{
    header *h = user;
    int64_t offsets[2];
    if (strcmp(entry->key, "__metadata__") == 0) {
        if (h->has_metadata) return twice(h, entry->key);
        h->has_metadata = true;
        return check_metadata(h->arena->ctx, h->file, entry);
    }
    NBL_TRY(make_room(h));
    nbl__stored *tensor = &h->tensors[h->count];
    NBL_TRY(read_entry(h->arena->ctx, h->file, entry->key, entry, h->size, tensor, offsets));
    tensor->data = h->data + offsets[0];
    tensor->file = h->file;
    if ((tensor->name = nbl__arena_strdup(h->arena, entry->key)) == NULL) return NBL_ERROR_MEMORY;
    h->count++;
    return NBL_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nbl__stored *)a)->name, ((const nbl__stored *)b)->name);
}

/* Copies the list to the arena, finds duplicate names, sorts by offset and checks offsets. */
static nbl_status finish(header *h, nbl__stored **result)
{
    nbl__stored *tensors = nbl__arena_alloc(h->arena, (size_t)(h->count + 1) * sizeof *tensors);
    if (tensors == NULL) return NBL_ERROR_MEMORY;
    if (h->count) memcpy(tensors, h->tensors, (size_t)h->count * sizeof *tensors);
    qsort(tensors, (size_t)h->count, sizeof *tensors, by_name);
    for (int64_t i = 1; i < h->count; i++)
        if (strcmp(tensors[i - 1].name, tensors[i].name) == 0) return twice(h, tensors[i].name);
    qsort(tensors, (size_t)h->count, sizeof *tensors, by_offset);
    *result = tensors;
    return check_offsets(h->arena->ctx, h->file, tensors, h->count, h->data, h->size);
}

nbl_status nbl__safetensors_parse(nbl__arena *arena, const char *file, const uint8_t *data, uint64_t size,
                                  nbl__stored **tensors, int64_t *count)
{
    uint64_t length = 0;
    NBL_TRY(read_header(arena->ctx, file, data, size, &length));
    header h = {.arena = arena, .file = file, .data = data + 8 + length, .size = size - 8 - length};
    nbl_status status = nbl__json_each(arena->ctx, file, (const char *)data + 8, length, NBL_JSON_STRICT,
                                       visit_entry, &h);
    if (status == NBL_OK) status = finish(&h, tensors);
    nbl__free(arena->ctx, h.tensors, (size_t)h.room * sizeof *h.tensors);
    *count = status == NBL_OK ? h.count : 0;
    return status;
}

nbl_status nbl__stored_floats(nbl__arena *arena, const nbl__stored *stored, const float **values)
{
    if ((uintptr_t)stored->data % sizeof(float) == 0) {
        *values = (const float *)(const void *)stored->data;
        return NBL_OK;
    }
    void *copy = nbl__arena_alloc(arena, stored->bytes);
    if (copy == NULL) return NBL_ERROR_MEMORY;
    *values = memcpy(copy, stored->data, stored->bytes);
    return NBL_OK;
}
