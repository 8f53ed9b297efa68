/* gguf_write.h - writing a .gguf file, version 3: entries are put, tensors are declared, the file is begun, tensors are
 * written in any order and from any thread, and the file appears when it is committed. The head is held in memory, the
 * data is not. Layout: gguf.h. */
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
        int64_t shape[4]; /* the slowest dimension first */
        uint64_t bytes, offset;
    } * tensors;
    int64_t count, room;
    unsigned rights;     /* of the file at most; at first 0666 */
    uint64_t data, size; /* where tensors begin; of the file */
    nbl__new_file file;
} nbl__gguf_writer;

void nbl__gguf_writer_open(nbl_context *ctx, nbl__gguf_writer *w);
void nbl__gguf_writer_close(nbl__gguf_writer *w); /* a file that was not committed is removed */

/* Entries: keys are unique, by the caller's care. Running out of memory shows in nbl__gguf_begin. */
void nbl__gguf_put_text(nbl__gguf_writer *w, const char *key, const char *text, size_t size);
void nbl__gguf_put_u32(nbl__gguf_writer *w, const char *key, uint32_t value);
void nbl__gguf_put_f32(nbl__gguf_writer *w, const char *key, float value);
void nbl__gguf_put_bool(nbl__gguf_writer *w, const char *key, bool value);
/* An array of `count` elements, which follow by as many calls of nbl__gguf_add_…. */
void nbl__gguf_put_array(nbl__gguf_writer *w, const char *key, nbl__gguf_type element, uint64_t count);
void nbl__gguf_add_text(nbl__gguf_writer *w, const char *text, size_t size);
void nbl__gguf_add(nbl__gguf_writer *w, const void *value, size_t size);

/* Rows must be whole blocks. */
nbl_status nbl__gguf_declare(nbl__gguf_writer *w, const char *name, nbl__ggml_type type, int rank,
                             const int64_t *shape, int64_t *number);
nbl_status nbl__gguf_begin(nbl__gguf_writer *w, const char *path);
nbl_status nbl__gguf_write(nbl__gguf_writer *w, int64_t number, const void *data, size_t size,
                           uint64_t offset); /* any thread */
nbl_status nbl__gguf_commit(nbl__gguf_writer *w);

#endif
