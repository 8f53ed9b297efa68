/* gguf_write.c - the .gguf writer. See gguf_write.h.
 *
 * Entries are encoded into w->entries as they are put; begin() writes header, entries and tensor
 * heads at once.
 *
 * The offsets of all tensors are known at begin(), before any data: types and shapes determine the
 * sizes. So tensors can be written in any order by several threads, each to its own range of the
 * file. */
#include "format/gguf/gguf_write.h"

enum { ALIGNMENT = 32, VERSION = 3 }; /* 32 is the default, so general.alignment need not be put */

/* The next multiple of the alignment. */
static uint64_t aligned(uint64_t size)
{
    return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void nbl__gguf_writer_open(nbl_context *ctx, nbl__gguf_writer *w)
{
    *w = (nbl__gguf_writer){.rights = 0666,
                            .ctx = ctx,
                            .arena = nbl__arena_make(ctx),
                            .entries = {.ctx = ctx},
                            .file = {.fd = -1}};
}

void nbl__gguf_writer_close(nbl__gguf_writer *w)
{
    if (w->ctx == NULL) return;
    nbl__new_file_close(&w->file);
    nbl__text_free(&w->entries);
    nbl__arena_free(&w->arena);
    *w = (nbl__gguf_writer){0};
}

/* ---- entries; numbers are little-endian in the file and on every supported machine ---- */

void nbl__gguf_add(nbl__gguf_writer *w, const void *value, size_t size)
{
    nbl__text_add(&w->entries, value, size);
}

static void add_u32(nbl__text *out, uint32_t value)
{
    nbl__text_add(out, (const char *)&value, sizeof value);
}

static void add_u64(nbl__text *out, uint64_t value)
{
    nbl__text_add(out, (const char *)&value, sizeof value);
}

static void add_text(nbl__text *out, const char *text, size_t size)
{
    add_u64(out, size);
    nbl__text_add(out, text, size);
}

void nbl__gguf_add_text(nbl__gguf_writer *w, const char *text, size_t size)
{
    add_text(&w->entries, text, size);
}

/* Begins an entry. The value follows. */
static void put_key(nbl__gguf_writer *w, const char *key, nbl__gguf_type type)
{
    add_text(&w->entries, key, strlen(key));
    add_u32(&w->entries, type);
    w->entry_count++;
}

void nbl__gguf_put_text(nbl__gguf_writer *w, const char *key, const char *text, size_t size)
{
    put_key(w, key, NBL_GGUF_STRING);
    add_text(&w->entries, text, size);
}

void nbl__gguf_put_u32(nbl__gguf_writer *w, const char *key, uint32_t value)
{
    put_key(w, key, NBL_GGUF_U32);
    add_u32(&w->entries, value);
}

void nbl__gguf_put_f32(nbl__gguf_writer *w, const char *key, float value)
{
    put_key(w, key, NBL_GGUF_F32);
    nbl__gguf_add(w, &value, sizeof value);
}

void nbl__gguf_put_bool(nbl__gguf_writer *w, const char *key, bool value)
{
    put_key(w, key, NBL_GGUF_BOOL);
    nbl__gguf_add(w, value ? "\1" : "\0", 1);
}

void nbl__gguf_put_array(nbl__gguf_writer *w, const char *key, nbl__gguf_type element, uint64_t count)
{
    put_key(w, key, NBL_GGUF_ARRAY);
    add_u32(&w->entries, element);
    add_u64(&w->entries, count);
}

/* ---- tensors ---- */

nbl_status nbl__gguf_declare(nbl__gguf_writer *w, const char *name, nbl__ggml_type type, int rank,
                             const int64_t *shape, int64_t *number)
{
    if (w->count == w->room) {
        int64_t room = w->room ? 2 * w->room : 256;
        struct nbl__gguf_new *larger = nbl__arena_alloc(&w->arena, (size_t)room * sizeof *larger);
        if (larger == NULL) return NBL_ERROR_MEMORY;
        if (w->count) memcpy(larger, w->tensors, (size_t)w->count * sizeof *larger);
        w->tensors = larger;
        w->room = room;
    }
    nbl__ggml_layout layout = {"", 1, 1};
    (void)nbl__ggml_layout_of(type, &layout);
    uint64_t elements = 1;
    bool fits = rank >= 1 && rank <= 4 && shape[rank - 1] % layout.values == 0;
    for (int i = 0; i < rank && fits; i++)
        fits = shape[i] >= 0 && nbl__mul_u64(elements, (uint64_t)shape[i], &elements);
    struct nbl__gguf_new *t = &w->tensors[w->count];
    *t = (struct nbl__gguf_new){.name = nbl__arena_strdup(&w->arena, name), .type = type, .rank = rank};
    NBL_CHECK(w->ctx,
              fits && nbl__mul_u64(elements / (uint64_t)layout.values, (uint64_t)layout.bytes, &t->bytes),
              NBL_ERROR_SHAPE, "tensor \"%s\": its shape does not fit %s", name, layout.name);
    if (t->name == NULL) return NBL_ERROR_MEMORY;
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    *number = w->count++;
    return NBL_OK;
}

/* Appends the head: header, entries, tensor heads, padding. */
static void add_head(const nbl__gguf_writer *w, nbl__text *head)
{
    nbl__text_add(head, "GGUF", 4);
    add_u32(head, VERSION);
    add_u64(head, (uint64_t)w->count);
    add_u64(head, w->entry_count);
    nbl__text_add(head, w->entries.text, w->entries.size);
    for (int64_t i = 0; i < w->count; i++) {
        const struct nbl__gguf_new *t = &w->tensors[i];
        add_text(head, t->name, strlen(t->name));
        add_u32(head, (uint32_t)t->rank);
        for (int d = t->rank - 1; d >= 0; d--) add_u64(head, (uint64_t)t->shape[d]); /* the fastest first */
        add_u32(head, t->type);
        add_u64(head, t->offset);
    }
    while (head->status == NBL_OK && head->size % ALIGNMENT) nbl__text_add(head, "\0", 1);
}

/* Lays out the data, then writes the head. *head is the caller's, who frees it also on an error. */
static nbl_status begin(nbl__gguf_writer *w, const char *path, nbl__text *head)
{
    uint64_t end = 0;
    for (int64_t i = 0; i < w->count; i++) {
        w->tensors[i].offset = end;
        NBL_CHECK(w->ctx, nbl__add_u64(end, w->tensors[i].bytes, &end) && end < UINT64_MAX / 2,
                  NBL_ERROR_SHAPE, "%s: the output overflows", path);
        end = aligned(end);
    }
    NBL_TRY(w->entries.status);
    add_head(w, head);
    NBL_TRY(head->status);
    w->data = head->size;
    w->size = head->size + end;
    NBL_TRY(nbl__new_file_open(w->ctx, path, false, w->size, &w->file));
    nbl__new_file_narrow(&w->file, w->rights);
    return nbl__new_file_write(&w->file, head->text, head->size, 0);
}

nbl_status nbl__gguf_begin(nbl__gguf_writer *w, const char *path)
{
    nbl__text head = {.ctx = w->ctx};
    nbl_status status = begin(w, path, &head);
    nbl__text_free(&head);
    return status;
}

nbl_status nbl__gguf_write(nbl__gguf_writer *w, int64_t number, const void *data, size_t size,
                           uint64_t offset)
{
    const struct nbl__gguf_new *t = &w->tensors[number];
    assert(offset + size <= t->bytes);
    return nbl__new_file_write(&w->file, data, size, w->data + t->offset + offset);
}

nbl_status nbl__gguf_commit(nbl__gguf_writer *w)
{
    static const char zeros[ALIGNMENT];
    if (w->count) { /* pad the end of the file; unwritten gaps between tensors read as zeros */
        const struct nbl__gguf_new *last = &w->tensors[w->count - 1];
        uint64_t end = last->offset + last->bytes;
        NBL_TRY(nbl__new_file_write(&w->file, zeros, aligned(end) - end, w->data + end));
    }
    return nbl__new_file_commit(&w->file);
}
