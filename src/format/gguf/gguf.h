/* gguf.h - reads one .gguf file, mapped: its metadata and its tensors.
 *
 *   "GGUF" | u32 version | u64 tensor count | u64 entry count
 *   entries, each:  key (text) | u32 type | value
 *   tensors, each:  name (text) | u32 rank | u64 sizes, fastest first | u32 type | u64 offset
 *   padding to a multiple of general.alignment (default 32) | data
 *
 *   text:   u64 length | bytes          array: u32 element type | u64 count | elements
 *   offset: from the beginning of the data
 *
 * Versions 2 and 3, little-endian. An opened file was checked: all entries and tensors lie inside
 * it, names are unique, no two tensors overlap. An error names the key or tensor and the byte of
 * the file. Memory is proportional to the head; numbers and texts are read from the map. An opened
 * file is read-only and may be used by several threads. */
#ifndef NBL_GGUF_H
#define NBL_GGUF_H

#include "base/arena.h"
#include "base/file/file.h"
#include "base/problems.h"
#include "quant/ggml.h"

/* Types of values; the numbers are the file format's. */
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
    const char *key;     /* valid UTF-8, terminated */
    nbl__gguf_type type; /* ARRAY: `count` elements; else one value */
    nbl__gguf_type
        element;         /* of an array; else equal to `type`. ARRAY: array of arrays, values not readable */
    int64_t count;       /* 1 unless an array */
    const uint8_t *data; /* numbers and bools: the first one, mapped, unaligned */
    const nbl__gguf_text *texts; /* [count] if the elements are strings */
} nbl__gguf_entry;

typedef struct nbl__gguf_tensor {
    const char *name; /* valid UTF-8, terminated */
    nbl__ggml_type type;
    int rank;         /* 0 ... 4 */
    int64_t shape[4]; /* row-major: the slowest dimension first; a row is a whole number of blocks */
    int64_t elements;
    const uint8_t *data; /* mapped; NULL: the tensor has a problem (only after nbl__gguf_inspect) */
    uint64_t bytes;
} nbl__gguf_tensor;

typedef struct nbl__gguf {
    nbl_context *ctx;
    const char *path;
    nbl__file file; /* data is NULL after nbl__gguf_parse and nbl__gguf_inspect_file */
    nbl__arena arena;
    nbl__problems *problems; /* &found after nbl__gguf_inspect; NULL: the first problem is an error */
    nbl__problems found;
    uint32_t version;
    int64_t entry_count, tensor_count;
    nbl__gguf_entry *entries;         /* in the file's order */
    nbl__gguf_tensor *tensors;        /* in the file's order */
    const nbl__gguf_entry **by_key;   /* the entries sorted by key, for nbl__gguf_find */
    const nbl__gguf_tensor **by_name; /* the tensors sorted by name, for nbl__gguf_tensor_find */
} nbl__gguf;

/* Maps and checks a file. The first problem is an error, and *out is NULL. */
nbl_status nbl__gguf_open(nbl_context *ctx, const char *path, nbl__gguf **out);
/* The same for bytes in memory, which must outlive *out; `path` names them in messages. */
nbl_status nbl__gguf_parse(nbl_context *ctx, const char *path, const uint8_t *data, uint64_t size,
                           nbl__gguf **out);
/* Opens a file for inspection: problems are listed in `found`, and everything readable is there. A
 * tensor with a problem has no data. Reading stops at a problem that leaves the next offset
 * unknown. Names may be duplicate. A file without a valid header is still an error. */
nbl_status nbl__gguf_inspect(nbl_context *ctx, const char *path, nbl__gguf **out);
/* The same for bytes in memory. */
nbl_status nbl__gguf_inspect_file(nbl_context *ctx, const char *path, const uint8_t *data, uint64_t size,
                                  nbl__gguf **out);
void nbl__gguf_close(nbl__gguf *gguf); /* NULL is allowed */

const nbl__gguf_entry *nbl__gguf_find(const nbl__gguf *gguf, const char *key); /* NULL: no such key */
const nbl__gguf_tensor *nbl__gguf_tensor_find(const nbl__gguf *gguf, const char *name);

/* Comparison functions for qsort and bsearch over by_key and by_name. */
int nbl__gguf_by_key(const void *a, const void *b);
int nbl__gguf_by_name(const void *a, const void *b);

/* ---- values ----
 *
 * i is the index of an array's element; 0 for a single value. If entry is NULL, i out of range or the type
 * another one, the result is false and the outputs are unchanged. */

/* A string; not terminated. */
bool nbl__gguf_string(const nbl__gguf_entry *entry, int64_t i, const char **text, size_t *length);
/* Any number or bool, as f64. */
bool nbl__gguf_number(const nbl__gguf_entry *entry, int64_t i, double *value);
/* Any integer or bool that fits in int64_t. */
bool nbl__gguf_integer(const nbl__gguf_entry *entry, int64_t i, int64_t *value);
/* Bytes that a number or bool of this type takes in the file; 0: another type. */
int nbl__gguf_number_bytes(uint32_t type);

#endif
