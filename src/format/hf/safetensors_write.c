/* safetensors_write.c - the .safetensors writer; see safetensors.h.
 *
 *   length | header, padded to its reserved size | entries, widest dtype first | late entries
 *
 * All sizes but those of late entries are known before the first byte is written, so data goes
 * straight to its final offset. A late entry is appended behind all others. The header is reserved
 * with the largest sizes of late entries and written when the file is closed. It computes offsets
 * in the order of declaration, so late entries must be written in that order.
 * One file is open at a time: groups are written in order, and a group never spans two files. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/json/json.h"
#include "format/hf/safetensors.h"

typedef struct entry {
    const char *name;
    nbl_dtype dtype;
    int rank, file;
    int64_t shape[NBL_MAX_RANK];
    int64_t group;
    uint64_t bytes, offset; /* offset from the beginning of the file's data */
    bool late;              /* `bytes` is an upper bound until the entry is written */
} entry;

typedef struct file {
    uint64_t header;      /* reserved bytes */
    uint64_t end;         /* bytes of data: of entries with known size, plus late ones written so far */
    int64_t begin, count; /* its entries are order[begin, begin + count) */
} file;

struct nbl__safetensors_writer {
    nbl_context *ctx;
    const char *stem; /* of the files' names */
    nbl__arena arena;
    entry *entries;
    int64_t count, capacity, groups;
    entry **order;   /* [count], sorted by file, then in the file's order; set by layout */
    int *group_file; /* [groups] */
    file *file;      /* [files] */
    int files;
    int open_file, fd; /* -1: none */
    char open_name[64];
    nbl__output *output;
};

/* A dtype's rank in upstream's order within a file, which is descending in its enumeration of
 * dtypes. */
static int dtype_order(nbl_dtype dtype)
{
    static const nbl_dtype order[] = {
        NBL_DTYPE_U64,     NBL_DTYPE_I64,         NBL_DTYPE_F64,         NBL_DTYPE_C64,     NBL_DTYPE_F32,
        NBL_DTYPE_U32,     NBL_DTYPE_I32,         NBL_DTYPE_BF16,        NBL_DTYPE_F16,     NBL_DTYPE_U16,
        NBL_DTYPE_I16,     NBL_DTYPE_F8_E5M2FNUZ, NBL_DTYPE_F8_E4M3FNUZ, NBL_DTYPE_F8_E8M0, NBL_DTYPE_F8_E4M3,
        NBL_DTYPE_F8_E5M2, NBL_DTYPE_I8,          NBL_DTYPE_U8,          NBL_DTYPE_F6_E3M2, NBL_DTYPE_F6_E2M3,
        NBL_DTYPE_F4,      NBL_DTYPE_BOOL,
    };
    _Static_assert(sizeof order / sizeof *order == NBL_DTYPE_COUNT, "every dtype has its place");
    int i = 0;
    while (order[i] != dtype) i++;
    return i;
}

static int by_file_order(const void *a, const void *b)
{
    const entry *x = *(entry *const *)a, *y = *(entry *const *)b;
    if (x->file != y->file) return x->file - y->file;
    if (x->late != y->late) return x->late - y->late;
    if (x->late) return x < y ? -1 : 1; /* as declared */
    int order = dtype_order(x->dtype) - dtype_order(y->dtype);
    return order ? order : strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(entry *const *)a)->name, (*(entry *const *)b)->name);
}

nbl_status nbl__safetensors_writer_create(nbl_context *ctx, nbl__safetensors_writer **writer)
{
    NBL_TRY(NBL_ALLOC(ctx, *writer, 1));
    (*writer)->ctx = ctx;
    (*writer)->stem = "model";
    (*writer)->arena = nbl__arena_make(ctx);
    (*writer)->fd = (*writer)->open_file = -1;
    return NBL_OK;
}

void nbl__safetensors_writer_name(nbl__safetensors_writer *w, const char *stem)
{
    assert(strlen(stem) < 24);
    w->stem = stem;
}

void nbl__safetensors_writer_free(nbl__safetensors_writer *w)
{
    if (w == NULL) return;
    if (w->fd >= 0) close(w->fd);
    nbl__free(w->ctx, w->entries, (size_t)w->capacity * sizeof *w->entries);
    nbl__arena_free(&w->arena);
    nbl__free(w->ctx, w, sizeof *w);
}

nbl_status nbl__safetensors_writer_declare_late(nbl__safetensors_writer *w, int64_t group, const char *name,
                                                int64_t bytes, int64_t *number)
{
    NBL_TRY(nbl__safetensors_writer_declare(w, group, name, NBL_DTYPE_U8, 1, &bytes, number));
    w->entries[*number].late = true;
    return NBL_OK;
}

nbl_status nbl__safetensors_writer_declare(nbl__safetensors_writer *w, int64_t group, const char *name,
                                           nbl_dtype dtype, int rank, const int64_t *shape, int64_t *number)
{
    assert(group == w->groups || group == w->groups - 1);
    if (w->count == w->capacity) {
        int64_t capacity = w->capacity ? w->capacity * 2 : 256;
        entry *entries;
        NBL_TRY(NBL_ALLOC(w->ctx, entries, capacity));
        if (w->count) memcpy(entries, w->entries, (size_t)w->count * sizeof *entries);
        nbl__free(w->ctx, w->entries, (size_t)w->capacity * sizeof *entries);
        w->entries = entries;
        w->capacity = capacity;
    }
    entry *e = &w->entries[w->count];
    *e = (entry){.dtype = dtype, .rank = rank, .group = group};
    uint64_t elements = 1;
    for (int i = 0; i < rank; i++) {
        e->shape[i] = shape[i];
        NBL_CHECK(w->ctx, shape[i] >= 0 && nbl__mul_u64(elements, (uint64_t)shape[i], &elements),
                  NBL_ERROR_SHAPE, "tensor \"%s\": its shape overflows", name);
    }
    NBL_CHECK(w->ctx, nbl__dtype_bytes(dtype, elements, &e->bytes), NBL_ERROR_SHAPE,
              "tensor \"%s\": its size overflows", name);
    if ((e->name = nbl__arena_strdup(&w->arena, name)) == NULL) return NBL_ERROR_MEMORY;
    w->groups = group + 1;
    *number = w->count++;
    return NBL_OK;
}

/* The name of file `number`, as transformers names shards. */
static void file_name(const nbl__safetensors_writer *w, int number, char name[64])
{
    if (w->files == 1) snprintf(name, 64, "%s.safetensors", w->stem);
    else snprintf(name, 64, "%s-%05d-of-%05d.safetensors", w->stem, number + 1, w->files);
}

/* Appends the header of entries order[0 … n) of one file, padded to a multiple of 8 bytes. `mark`
 * is more text for __metadata__, or "". */
static void add_header(nbl__text *text, const char *mark, entry *const *order, int64_t n)
{
    size_t begin = text->size;
    nbl__text_printf(text, "{\"__metadata__\":{\"format\":\"pt\"%s}", mark);
    uint64_t offset = 0;
    for (int64_t i = 0; i < n; i++) {
        nbl__text_add(text, ",", 1);
        nbl__text_json(text, order[i]->name);
        nbl__text_printf(text, ":{\"dtype\":\"%s\",\"shape\":[", nbl__dtype_file_name(order[i]->dtype));
        for (int d = 0; d < order[i]->rank; d++)
            nbl__text_printf(text, d ? ",%" PRId64 : "%" PRId64, order[i]->shape[d]);
        nbl__text_printf(text, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", offset,
                         offset + order[i]->bytes);
        offset += order[i]->bytes;
    }
    nbl__text_add(text, "}", 1);
    while ((text->size - begin) % 8 && text->status == NBL_OK) nbl__text_add(text, " ", 1);
}

/* All entries sorted, in the arena; NULL: out of memory. */
static entry **sorted(nbl__safetensors_writer *w, int (*order)(const void *, const void *))
{
    entry **list = nbl__arena_alloc(&w->arena, (size_t)(w->count + 1) * sizeof *list);
    if (list == NULL) return NULL;
    for (int64_t i = 0; i < w->count; i++) list[i] = &w->entries[i];
    qsort(list, (size_t)w->count, sizeof *list, order);
    return list;
}

/* Distributes the groups over files: a group starts a new file if it does not fit in the current
 * one. */
static nbl_status assign_files(nbl__safetensors_writer *w, uint64_t shard_size)
{
    w->group_file = nbl__arena_alloc(&w->arena, (size_t)(w->groups + 1) * sizeof *w->group_file);
    if (w->group_file == NULL) return NBL_ERROR_MEMORY;
    uint64_t in_file = 0;
    int number = 0;
    for (int64_t i = 0, j; i < w->count; i = j) { /* group by group */
        uint64_t group = 0;
        for (j = i; j < w->count && w->entries[j].group == w->entries[i].group; j++)
            NBL_CHECK(w->ctx, nbl__add_u64(group, w->entries[j].bytes, &group), NBL_ERROR_SHAPE,
                      "the output overflows");
        if (in_file > 0 && (group > shard_size || in_file > shard_size - group)) {
            number++;
            in_file = 0;
        }
        in_file += group;
        w->group_file[w->entries[i].group] = number;
        for (int64_t k = i; k < j; k++) w->entries[k].file = number;
    }
    w->files = number + 1;
    NBL_CHECK(w->ctx, w->files <= 99999, NBL_ERROR_ARGUMENT, "a shard size of %" PRIu64 " gives %d files",
              shard_size, w->files);
    return NBL_OK;
}

/* Two entries may have one name: a storage format adds names such as W.absmax, which the source may
 * have. */
static nbl_status check_names(nbl__safetensors_writer *w)
{
    entry **list = sorted(w, by_name);
    if (list == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 1; i < w->count; i++)
        NBL_CHECK(w->ctx, strcmp(list[i - 1]->name, list[i]->name) != 0, NBL_ERROR_UNSUPPORTED,
                  "the output would have two tensors called \"%s\"", list[i]->name);
    return NBL_OK;
}

nbl_status nbl__safetensors_writer_layout(nbl__safetensors_writer *w, uint64_t shard_size, uint64_t *bytes,
                                          int *files)
{
    NBL_TRY(assign_files(w, shard_size));
    NBL_TRY(check_names(w));
    w->order = sorted(w, by_file_order);
    w->file = nbl__arena_alloc(&w->arena, (size_t)w->files * sizeof *w->file);
    if (w->order == NULL || w->file == NULL) return NBL_ERROR_MEMORY;
    *bytes = 0;
    *files = w->files;
    for (int f = 0; f < w->files; f++) {
        file *it = &w->file[f];
        it->begin = f ? w->file[f - 1].begin + w->file[f - 1].count : 0;
        uint64_t bound = 0;
        for (int64_t k = it->begin; k < w->count && w->order[k]->file == f; k++, it->count++) {
            entry *e = w->order[k];
            NBL_CHECK(w->ctx, nbl__add_u64(bound, e->bytes, &bound), NBL_ERROR_SHAPE, "the output overflows");
            if (e->late) continue;
            e->offset = it->end;
            it->end += e->bytes;
        }
        nbl__text header = {.ctx = w->ctx};
        add_header(&header, "", w->order + it->begin, it->count);
        nbl_status status = header.status;
        it->header = header.size;
        nbl__text_free(&header);
        NBL_TRY(status);
        NBL_CHECK(w->ctx, it->header <= NBL_HEADER_LIMIT, NBL_ERROR_UNSUPPORTED,
                  "a header of %" PRIu64 " bytes would be needed, readers allow %d; smaller shards help",
                  it->header, NBL_HEADER_LIMIT);
        *bytes += 8 + it->header + bound;
    }
    return NBL_OK;
}

/* ---- writing ---- */

/* Writes length and header of the open file, padded to the reserved size. */
static nbl_status write_header(nbl__safetensors_writer *w)
{
    const file *it = &w->file[w->open_file];
    nbl__text header = {.ctx = w->ctx};
    nbl__text_add(&header, "\0\0\0\0\0\0\0", 8);
    add_header(&header, "", w->order + it->begin, it->count);
    while (header.status == NBL_OK && header.size < 8 + it->header) nbl__text_add(&header, " ", 1);
    nbl_status status = header.status;
    if (status == NBL_OK) {
        assert(header.size == 8 + it->header);
        for (int i = 0; i < 8; i++) header.text[i] = (char)(it->header >> (8 * i) & 0xff);
        status = nbl__output_write(w->output, w->fd, w->open_name, header.text, header.size, 0);
    }
    nbl__text_free(&header);
    return status;
}

static nbl_status close_file(nbl__safetensors_writer *w)
{
    if (w->fd < 0) return NBL_OK;
    NBL_TRY(write_header(w));
    int fd = w->fd;
    w->fd = -1;
    return nbl__output_close(w->output, fd, w->open_name);
}

static nbl_status open_file(nbl__safetensors_writer *w, int number)
{
    file_name(w, number, w->open_name);
    NBL_TRY(nbl__output_open(w->output, w->open_name, &w->fd));
    w->open_file = number;
    return NBL_OK;
}

nbl_status nbl__safetensors_writer_begin_group(nbl__safetensors_writer *w, nbl__output *output, int64_t group)
{
    w->output = output;
    if (w->group_file[group] == w->open_file) return NBL_OK;
    NBL_TRY(close_file(w));
    return open_file(w, w->group_file[group]);
}

nbl_status nbl__safetensors_writer_write(nbl__safetensors_writer *w, int64_t number, const void *data,
                                         size_t size, uint64_t offset)
{
    const entry *e = &w->entries[number];
    assert(e->file == w->open_file && !e->late && offset + size <= e->bytes);
    return nbl__output_write(w->output, w->fd, w->open_name, data, size,
                             8 + w->file[e->file].header + e->offset + offset);
}

nbl_status nbl__safetensors_writer_write_all(nbl__safetensors_writer *w, int64_t number, const void *data)
{
    enum { PIECE = 16 << 20 };
    const entry *e = &w->entries[number];
    for (uint64_t at = 0; at < e->bytes; at += PIECE) {
        size_t size = (size_t)(e->bytes - at < PIECE ? e->bytes - at : PIECE);
        NBL_TRY(nbl__progress_poll(w->ctx, e->name));
        NBL_TRY(nbl__safetensors_writer_write(w, number, (const uint8_t *)data + at, size, at));
    }
    return NBL_OK;
}

nbl_status nbl__safetensors_writer_write_late(nbl__safetensors_writer *w, int64_t number, const void *data,
                                              size_t size)
{
    entry *e = &w->entries[number];
    file *it = &w->file[e->file];
    assert(e->file == w->open_file && e->late && size <= e->bytes);
    e->offset = it->end;
    e->bytes = size;
    e->shape[0] = (int64_t)size;
    it->end += size;
    return nbl__output_write(w->output, w->fd, w->open_name, data, size, 8 + it->header + e->offset);
}

/* Writes STEM.safetensors.index.json: the file of each tensor. */
static nbl_status write_index(nbl__safetensors_writer *w)
{
    entry **list = sorted(w, by_name);
    if (list == NULL) return NBL_ERROR_MEMORY;
    nbl__text text = {.ctx = w->ctx};
    uint64_t total = 0;
    for (int f = 0; f < w->files; f++) total += w->file[f].end;
    nbl__text_printf(
        &text, "{\n  \"metadata\": {\n    \"total_size\": %" PRIu64 "\n  },\n  \"weight_map\": {", total);
    for (int64_t i = 0; i < w->count; i++) {
        char file_of[64];
        file_name(w, list[i]->file, file_of);
        nbl__text_printf(&text, "%s\n    ", i ? "," : "");
        nbl__text_json(&text, list[i]->name);
        nbl__text_printf(&text, ": \"%s\"", file_of);
    }
    nbl__text_printf(&text, "\n  }\n}\n");
    nbl_status status = text.status;
    char name[64];
    (void)snprintf(name, sizeof name, "%s.safetensors.index.json", w->stem);
    if (status == NBL_OK) status = nbl__output_put(w->output, name, text.text, text.size);
    nbl__text_free(&text);
    return status;
}

nbl_status nbl__safetensors_writer_finish(nbl__safetensors_writer *w, nbl__output *output, uint64_t *bytes)
{
    w->output = output;
    *bytes = 0;
    for (int f = 0; f < w->files; f++) *bytes += 8 + w->file[f].header + w->file[f].end;
    if (w->open_file < 0) NBL_TRY(open_file(w, 0)); /* no tensors at all: still a valid file */
    NBL_TRY(close_file(w));
    return w->files > 1 ? write_index(w) : NBL_OK;
}

/* Appends a whole file, without groups and late entries. */
static nbl_status build(nbl__arena *arena, const char *mark, const nbl__stored *tensors, int64_t count,
                        nbl__text *out)
{
    entry *entries = nbl__arena_alloc(arena, (size_t)count * sizeof *entries);
    entry **order = nbl__arena_alloc(arena, (size_t)count * sizeof *order);
    if (entries == NULL || order == NULL) return NBL_ERROR_MEMORY;
    for (int64_t i = 0; i < count; i++) {
        entries[i] = (entry){.name = tensors[i].name,
                             .dtype = tensors[i].dtype,
                             .rank = tensors[i].rank,
                             .bytes = tensors[i].bytes};
        memcpy(entries[i].shape, tensors[i].shape, sizeof entries[i].shape);
        order[i] = &entries[i];
    }
    qsort(order, (size_t)count, sizeof *order, by_file_order);
    size_t begin = out->size;
    nbl__text_add(out, "\0\0\0\0\0\0\0", 8);
    add_header(out, mark, order, count);
    NBL_TRY(out->status);
    uint64_t length = out->size - begin - 8;
    for (int i = 0; i < 8; i++) out->text[begin + (size_t)i] = (char)(length >> (8 * i) & 0xff);
    for (int64_t i = 0; i < count; i++)
        nbl__text_add(out, (const char *)tensors[order[i] - entries].data, order[i]->bytes);
    return out->status;
}

nbl_status nbl__safetensors_build(nbl__arena *arena, const nbl__stored *tensors, int64_t count,
                                  nbl__text *out)
{
    return build(arena, "", tensors, count, out);
}

nbl_status nbl__safetensors_build_result(nbl__arena *arena, const nbl__stored *tensors, int64_t count,
                                         nbl__text *out)
{
    return build(arena, ",\"" NBL_RESULT_KEY "\":\"" NBL_RESULT_VALUE "\"", tensors, count, out);
}
