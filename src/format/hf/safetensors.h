/* safetensors.h - one .safetensors file: reading it mapped, and writing a sharded set.
 *
 *   u64 header length | JSON header, padded with spaces | data, without holes
 *
 * The reader refuses whatever the upstream library refuses: offsets that overlap, leave holes or
 * point outside, sizes that do not fit dtype and shape, duplicate keys, a header over 100 MB. Beyond that it refuses more
 * tensors than any file has: what is kept of one takes eight times its entry in the header. */
#ifndef NBL_SAFETENSORS_H
#define NBL_SAFETENSORS_H

#include "base/arena.h"
#include "base/file/file.h"
#include "base/file/output.h"
#include "tensor/dtype.h"

enum {
    NBL_HEADER_LIMIT = 100000000, /* bytes of a header; upstream's limit */
    NBL_MAX_TENSORS = 1 << 18 /* of one file; the largest published model in 4 bits has 350,000 in 60 files */
};

/* A stored tensor, as the file tells it. */
typedef struct nbl__stored {
    const char *name;
    const char *file;
    nbl_dtype dtype;
    int rank;
    int64_t shape[NBL_MAX_RANK];
    int64_t elements;
    const uint8_t *data; /* mapped; no alignment beyond a byte */
    uint64_t bytes;
} nbl__stored;

/* Parses a file's bytes; `file` names it in messages and tensors. The tensors, sorted by place in the file, live in
 * the arena and point into `data`. */
nbl_status nbl__safetensors_parse(nbl__arena *arena, const char *file, const uint8_t *data, uint64_t size,
                                  nbl__stored **tensors, int64_t *count);

/* The f32 values of a tensor, aligned: as mapped where possible, else a copy in the arena. */
nbl_status nbl__stored_floats(nbl__arena *arena, const nbl__stored *stored, const float **values);

/* Appends a whole file to a text, laid out as upstream does: for small ones. */
struct nbl__text;
nbl_status nbl__safetensors_build(nbl__arena *arena, const nbl__stored *tensors, int64_t count,
                                  struct nbl__text *out);
/* The same with a mark in its __metadata__: a result that nibble may replace (result_file.h). */
#define NBL_RESULT_KEY "nibble"
#define NBL_RESULT_VALUE "result"
nbl_status nbl__safetensors_build_result(nbl__arena *arena, const nbl__stored *tensors, int64_t count,
                                         struct nbl__text *out);

/* ---- writing ----
 *
 * All tensors are declared first, in groups that stay in one file; then the layout is fixed; then
 * their bytes are written, group by group, in any order and from any thread within a group. Nothing
 * is held in memory. Within a file the order is that of upstream (widest dtype first, then by name),
 * so that the same tensors give the same file, byte for byte, unless one was declared late. */
typedef struct nbl__writer nbl__writer;

nbl_status nbl__writer_create(nbl_context *ctx, nbl__writer **writer);
/* The files are called STEM.safetensors, …; "model" unless told. Text that lives as long, of at most 23 bytes. */
void nbl__writer_name(nbl__writer *writer, const char *stem);
void nbl__writer_free(nbl__writer *writer); /* NULL is allowed */
/* Declares a tensor; groups are numbered from 0 without gaps, in order. Returns its number. */
nbl_status nbl__writer_declare(nbl__writer *writer, int64_t group, const char *name, nbl_dtype dtype,
                               int rank, const int64_t *shape, int64_t *number);
/* Declares a vector of bytes whose length, at most `bytes`, is known only when it is written. */
nbl_status nbl__writer_declare_late(nbl__writer *writer, int64_t group, const char *name, int64_t bytes,
                                    int64_t *number);
/* Fixes files and offsets. A file holds at most `shard_size` bytes of data unless one group is
 * larger. Tells the bytes of all files together (at most) and how many there are. */
nbl_status nbl__writer_layout(nbl__writer *writer, uint64_t shard_size, uint64_t *bytes, int *files);
/* Before writing the tensors of a group, in order of the groups. */
nbl_status nbl__writer_begin_group(nbl__writer *writer, nbl__output *output, int64_t group);
nbl_status nbl__writer_write(nbl__writer *writer, int64_t number, const void *data, size_t size,
                             uint64_t offset); /* any thread */
/* The whole of an entry at once; the caller may stop it. */
nbl_status nbl__writer_write_all(nbl__writer *writer, int64_t number, const void *data);
nbl_status nbl__writer_write_late(nbl__writer *writer, int64_t number, const void *data, size_t size);
/* Makes the last file durable, writes the index when there are several, tells the files' bytes. */
nbl_status nbl__writer_finish(nbl__writer *writer, nbl__output *output, uint64_t *bytes);

#endif
