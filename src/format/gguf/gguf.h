/* gguf.h - one .gguf file, mapped: its metadata and its tensors.
 *
 *   "GGUF" | u32 version | u64 tensors | u64 entries
 *   entries: key, type, value         tensors: name, rank, sizes, type, place
 *   padding to general.alignment | data
 *
 * Versions 2 and 3, little-endian. Whatever opens was checked: all entries and tensors lie inside the
 * file, names are unique, no two tensors overlap. What does not open is refused with the key or tensor
 * and the byte of the file. Memory is in proportion to the file's head; numbers and texts are
 * read from the map. A gguf is read-only and may be used by several threads. */
#ifndef NBL_GGUF_H
#define NBL_GGUF_H

#include "base/arena.h"
#include "base/file/file.h"
#include "base/problems.h"
#include "quant/ggml.h"

/* As numbered in files. */
typedef enum nbl__gguf_type {
    NBL_GGUF_U8,
    NBL_GGUF_I8,
    NBL_GGUF_U16,
    NBL_GGUF_I16,
    NBL_GGUF_U32,
    NBL_GGUF_I32,
    NBL_GGUF_F32,
    NBL_GGUF_BOOL,
    NBL_GGUF_STRING,
    NBL_GGUF_ARRAY,
    NBL_GGUF_U64,
    NBL_GGUF_I64,
    NBL_GGUF_F64,
    NBL_GGUF_TYPE_COUNT
} nbl__gguf_type;

typedef struct nbl__gguf_text {
    const char *bytes; /* mapped, not terminated; any bytes */
    size_t length;
} nbl__gguf_text;

typedef struct nbl__gguf_entry {
    const char *key;        /* valid UTF-8, terminated */
    nbl__gguf_type type;    /* ARRAY: `count` elements; else one value */
    nbl__gguf_type element; /* of an array; else as `type`. ARRAY: an array of arrays, which has no readers */
    int64_t count;          /* 1 for what is no array */
    const uint8_t *data;    /* numbers: the first, mapped, unaligned */
    const nbl__gguf_text *texts; /* strings */
} nbl__gguf_entry;

typedef struct nbl__gguf_tensor {
    const char *name; /* valid UTF-8, terminated */
    nbl__ggml_type type;
    int rank;         /* 0 ... 4 */
    int64_t shape[4]; /* row-major: the slowest dimension first; a row is a whole number of blocks */
    int64_t elements;
    const uint8_t *data; /* mapped; NULL of one with a problem, in a file that is looked at */
    uint64_t bytes;
} nbl__gguf_tensor;

typedef struct nbl__gguf {
    nbl_context *ctx;
    const char *path;
    nbl__file file; /* data is NULL where the bytes were handed in */
    nbl__arena arena;
    nbl__problems *problems; /* NULL: the first one is an error */
    nbl__problems found;
    uint32_t version;
    int64_t entry_count, tensor_count;
    nbl__gguf_entry *entries; /* in the order of the file, as are the tensors */
    nbl__gguf_tensor *tensors;
    const nbl__gguf_entry **by_key; /* the same sorted by name, for the two that find */
    const nbl__gguf_tensor **by_name;
} nbl__gguf;

nbl_status nbl__gguf_open(nbl_context *ctx, const char *path, nbl__gguf **out);
/* The same of bytes in memory, which must live as long; `path` names them in messages. */
nbl_status nbl__gguf_parse(nbl_context *ctx, const char *path, const uint8_t *data, uint64_t size,
                           nbl__gguf **out);
/* Opens to look at it: problems go into `problems`, and what can still be read is there. A tensor with a problem has no
 * data. After a problem in the head nothing of what follows is read. Names may be there twice. */
nbl_status nbl__gguf_look(nbl_context *ctx, const char *path, nbl__gguf **out);
nbl_status nbl__gguf_look_at(nbl_context *ctx, const char *path, const uint8_t *data, uint64_t size,
                             nbl__gguf **out); /* as nbl__gguf_parse */
void nbl__gguf_close(nbl__gguf *gguf);         /* NULL is allowed */

const nbl__gguf_entry *nbl__gguf_find(const nbl__gguf *gguf, const char *key); /* NULL: no such key */
const nbl__gguf_tensor *nbl__gguf_tensor_find(const nbl__gguf *gguf, const char *name);

/* For sorting by_key and by_name. */
int nbl__gguf_by_key(const void *a, const void *b);
int nbl__gguf_by_name(const void *a, const void *b);

/* ---- values: of entry NULL, out of range or of another type: false, and the result is left alone ---- */

/* A string entry (i = 0) or element i of an array of strings. */
bool nbl__gguf_string(const nbl__gguf_entry *entry, int64_t i, const char **text, size_t *length);
/* Any number or bool. */
bool nbl__gguf_number(const nbl__gguf_entry *entry, int64_t i, double *value);
/* Any integer type or bool whose value fits. */
bool nbl__gguf_integer(const nbl__gguf_entry *entry, int64_t i, int64_t *value);
/* Bytes of a number in files; 0: not a number. */
int nbl__gguf_number_bytes(uint32_t type);

#endif
