/* safetensors.h - reads one mapped .safetensors file, and writes a set of files (shards).
 *
 *   u64 header length | JSON header, padded with spaces | data, without gaps
 *
 *   header: {"__metadata__": {...}, "NAME": {"dtype": "BF16", "shape": [r, c], "data_offsets": [begin, end]}, ...}
 *   offsets count from the first byte of the data
 *
 * The reader rejects what the upstream library rejects: offsets that overlap, leave gaps or point
 * outside, sizes that do not fit dtype and shape, duplicate keys, a header over 100 MB. In addition
 * it limits a file to NBL_MAX_TENSORS tensors, because a parsed tensor takes eight times the memory
 * of its header entry. */
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

/* One tensor of a file. */
typedef struct nbl__stored {
    const char *name;
    const char *file; /* for messages */
    nbl_dtype dtype;
    int rank;
    int64_t shape[NBL_MAX_RANK];
    int64_t elements;
    const uint8_t *data; /* mapped; may be unaligned */
    uint64_t bytes;
} nbl__stored;

/* Parses the `size` bytes of a file at `data`. `file` names it in messages and in the tensors. The
 * tensors live in the arena, point into `data` and are sorted by offset. NBL_ERROR_FORMAT names
 * file and tensor. */
nbl_status nbl__safetensors_parse(nbl__arena *arena, const char *file, const uint8_t *data, uint64_t size,
                                  nbl__stored **tensors, int64_t *count);

/* The f32 values of an f32 tensor, aligned to 4 bytes: in the mapped file, or a copy in the
 * arena. */
nbl_status nbl__stored_floats(nbl__arena *arena, const nbl__stored *stored, const float **values);

/* Appends a whole file to `out`, in upstream's order. For small files: all data is copied. */
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
 *     create ─▶ declare every tensor ─▶ layout ─▶ { begin_group ─▶ write ... } per group ─▶ finish
 *
 * A group is a set of tensors that stay in one file, such as a packed weight with its scales. Groups are
 * written in order; within a group, bytes are written in any order and from any thread. No data is held in
 * memory. Within a file tensors are in upstream's order (widest dtype first, then by name), so the same
 * tensors give the same bytes. Only late entries, whose size is unknown until they are written, come last. */
typedef struct nbl__safetensors_writer nbl__safetensors_writer;

nbl_status nbl__safetensors_writer_create(nbl_context *ctx, nbl__safetensors_writer **writer);
/* Names the files: STEM.safetensors, or STEM-00001-of-00003.safetensors and so on. Default:
 * "model". `stem` is not copied and has at most 23 bytes. */
void nbl__safetensors_writer_name(nbl__safetensors_writer *writer, const char *stem);
void nbl__safetensors_writer_free(nbl__safetensors_writer *writer); /* NULL is allowed */
/* Declares a tensor. Groups are numbered from 0, without gaps and in order. *number: for the write
 * calls. */
nbl_status nbl__safetensors_writer_declare(nbl__safetensors_writer *writer, int64_t group, const char *name,
                                           nbl_dtype dtype, int rank, const int64_t *shape, int64_t *number);
/* Declares a late entry: a vector of at most `bytes` bytes whose length is known only when it is
 * written. */
nbl_status nbl__safetensors_writer_declare_late(nbl__safetensors_writer *writer, int64_t group,
                                                const char *name, int64_t bytes, int64_t *number);
/* Fixes files and offsets. A file holds at most `shard_size` bytes of data, unless one group is
 * larger. *bytes: upper bound for all files together. *files: their number. Two tensors of one name
 * are an error. */
nbl_status nbl__safetensors_writer_layout(nbl__safetensors_writer *writer, uint64_t shard_size,
                                          uint64_t *bytes, int *files);
/* Opens the file of a group, if it is not open. Call it before the writes of each group, in
 * order. */
nbl_status nbl__safetensors_writer_begin_group(nbl__safetensors_writer *writer, nbl__output *output,
                                               int64_t group);
/* Writes `size` bytes of a tensor of the current group, `offset` bytes from its beginning. */
nbl_status nbl__safetensors_writer_write(nbl__safetensors_writer *writer, int64_t number, const void *data,
                                         size_t size, uint64_t offset); /* any thread */
/* Writes a whole tensor, with polls for cancellation. */
nbl_status nbl__safetensors_writer_write_all(nbl__safetensors_writer *writer, int64_t number,
                                             const void *data);
/* Writes a late entry, whose length is now `size`. Late entries of a file must be written by one
 * thread at a time and in the order of their declaration: the header lists them in that order. */
nbl_status nbl__safetensors_writer_write_late(nbl__safetensors_writer *writer, int64_t number,
                                              const void *data, size_t size);
/* Closes the last file durably and writes the index if there are several files. *bytes: of all
 * files, without the index. */
nbl_status nbl__safetensors_writer_finish(nbl__safetensors_writer *writer, nbl__output *output,
                                          uint64_t *bytes);

#endif
