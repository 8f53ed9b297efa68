/* gguf_write.h - writes a .gguf file, version 3. Layout: gguf.h.
 *
 *     open ─▶ put entries, declare tensors ─▶ begin ─▶ write tensors ─▶ commit ─▶ close
 *
 * Tensors are written in any order and from any thread; all else by one thread. The file appears
 * under its name at the commit. The head is held in memory, the data is not. */
#ifndef NBL_GGUF_WRITE_H
#define NBL_GGUF_WRITE_H

#include "base/file/output.h"
#include "format/gguf/gguf.h"
#include "base/json/json.h"

typedef struct nbl__gguf_writer {
    nbl_context *ctx;
    nbl__arena arena;
    nbl__text entries;
    uint64_t entry_count;
    struct nbl__gguf_new {
        const char *name;
        nbl__ggml_type type;
        int rank;
        int64_t shape[4];       /* the slowest dimension first */
        uint64_t bytes, offset; /* offset: from the beginning of the data */
    } * tensors;
    int64_t count, room;
    unsigned rights;     /* permission bits that the file may have; 0666 after opening */
    uint64_t data, size; /* offset of the data; bytes of the file. Set by begin */
    nbl__new_file file;
} nbl__gguf_writer;

void nbl__gguf_writer_open(nbl_context *ctx, nbl__gguf_writer *w);
/* Frees everything. A file that was not committed is removed. */
void nbl__gguf_writer_close(nbl__gguf_writer *w);

/* Entries. The caller keeps keys unique. A lack of memory is reported by nbl__gguf_begin. */
void nbl__gguf_put_text(nbl__gguf_writer *w, const char *key, const char *text, size_t size);
void nbl__gguf_put_u32(nbl__gguf_writer *w, const char *key, uint32_t value);
void nbl__gguf_put_f32(nbl__gguf_writer *w, const char *key, float value);
void nbl__gguf_put_bool(nbl__gguf_writer *w, const char *key, bool value);
/* Begins an array. `count` calls of nbl__gguf_add_text (strings) or nbl__gguf_add (else) must
 * follow. */
void nbl__gguf_put_array(nbl__gguf_writer *w, const char *key, nbl__gguf_type element, uint64_t count);
void nbl__gguf_add_text(nbl__gguf_writer *w, const char *text, size_t size);
void nbl__gguf_add(nbl__gguf_writer *w, const void *value, size_t size);

/* Declares a tensor of rank 1 to 4. A row must be a whole number of the type's blocks, else
 * NBL_ERROR_SHAPE. *number: for nbl__gguf_write. */
nbl_status nbl__gguf_declare(nbl__gguf_writer *w, const char *name, nbl__ggml_type type, int rank,
                             const int64_t *shape, int64_t *number);
/* Fixes all offsets, creates the file beside its final path and writes the head. */
nbl_status nbl__gguf_begin(nbl__gguf_writer *w, const char *path);
/* Writes `size` bytes of a tensor, `offset` bytes from its beginning. May be called from any
 * thread. */
nbl_status nbl__gguf_write(nbl__gguf_writer *w, int64_t number, const void *data, size_t size,
                           uint64_t offset);
/* Makes the file durable and renames it to its final path. */
nbl_status nbl__gguf_commit(nbl__gguf_writer *w);

#endif
