/* json.h - parses JSON, and builds texts (nbl__text). json_write.h writes JSON.
 *
 * The one parser of JSON: of model folders, rows of data, messages of chat templates, and of what
 * the command reads (cli/json.c).
 *
 * The input is untrusted. Whatever it contains, parsing takes memory in proportion to its
 * length, recurses at most 128 levels (450 with NBL_JSON_DEEP), and ends with a value or with an
 * error that names line and column, or the duplicate key.
 *
 * The parser is written here because jansson 2.14 calls assert when memory runs out, and a
 * library may not abort. */
#ifndef NBL_JSON_H
#define NBL_JSON_H

#include "base/arena.h"

typedef enum nbl__json_type {
    NBL_JSON_NULL,
    NBL_JSON_FALSE,
    NBL_JSON_TRUE,
    NBL_JSON_INTEGER,     /* magnitude below 2^62 */
    NBL_JSON_REAL,        /* any other number, integers of 2^62 and more included */
    NBL_JSON_DIGITS_KEPT, /* integer of 2^62 or more as `string`; only with NBL_JSON_DIGITS */
    NBL_JSON_STRING,      /* valid UTF-8, without a zero byte unless NBL_JSON_ZERO_BYTES is given */
    NBL_JSON_ARRAY,
    NBL_JSON_OBJECT
} nbl__json_type;

typedef struct nbl__json {
    nbl__json_type type;
    uint32_t key_size;
    int64_t count;   /* array, object: items; string, kept digits: bytes */
    const char *key; /* name of an object's member; NULL: not a member */
    union {
        int64_t integer;
        double real;
        const char *string;
        struct nbl__json *items; /* array, object: [count] in the order of the text */
    };
    int32_t *sorted; /* object: [count] indices of `items`, sorted by key */
} nbl__json;

/* What is accepted beyond RFC 8259, and what is not: the sum of any of these. */
enum {
    NBL_JSON_STRICT = 0,
    /* also NaN, Infinity, -Infinity, and numbers that overflow a double */
    NBL_JSON_NON_FINITE = 1,
    NBL_JSON_ZERO_BYTES = 2, /* strings may contain U+0000 */
    /* A real is rounded as by Rust's serde_json: as many leading digits as fit in 64 bits (19 or
     * 20), times or divided by a power of ten. */
    NBL_JSON_SERDE_REALS = 4,
    NBL_JSON_DIGITS = 8,    /* integers of 2^62 and more are NBL_JSON_DIGITS_KEPT */
    NBL_JSON_REPEATED = 16, /* of members with one key the last value counts, at the first's position */
    NBL_JSON_DEEP = 32,     /* up to 450 levels, if the thread's stack has room */
    NBL_JSON_MANY = 64,     /* any number of values; without it 8 million */

    NBL_JSON_PYTHON = NBL_JSON_NON_FINITE, /* Python's json for configurations: unique keys */
    NBL_JSON_SERDE = NBL_JSON_ZERO_BYTES | NBL_JSON_SERDE_REALS,
    /* Python's json.loads, as it is */
    NBL_JSON_LOADS = NBL_JSON_NON_FINITE | NBL_JSON_ZERO_BYTES | NBL_JSON_DIGITS | NBL_JSON_REPEATED |
                     NBL_JSON_DEEP
};

/* Why a text is not JSON. */
typedef struct nbl__json_error {
    const char *what;
    const char *key;      /* the key that is there twice, in the arena; NULL: another error */
    int64_t line, column; /* from 1; columns count bytes */
} nbl__json_error;

/* Parses `size` bytes, which must be one value of any type with nothing after it. All values are in
 * the arena. NBL_ERROR_FORMAT: *error says why, and the context has no message. */
nbl_status nbl__json_read(nbl__arena *arena, const char *text, size_t size, unsigned dialect,
                          const nbl__json **root, nbl__json_error *error);

/* The same for a text that must be an object. `where` (a file's path) begins every error message;
 * errors are NBL_ERROR_FORMAT and NBL_ERROR_MEMORY. */
nbl_status nbl__json_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                           unsigned dialect, const nbl__json **root);

/* The same for one row of a larger file: errors count lines from `line`, where the row begins. */
nbl_status nbl__json_parse_row(nbl__arena *arena, const char *where, int64_t line, const char *text,
                               size_t size, unsigned dialect, const nbl__json **root);

/* The same for an object with very many members: `visit` is called with one member at a time.
 * The member is freed when `visit` returns; a failure of `visit` ends the parse. Duplicate keys
 * are not detected here. */
typedef nbl_status (*nbl__json_visit)(void *user, const nbl__json *member);
nbl_status nbl__json_each(nbl_context *ctx, const char *where, const char *text, size_t size,
                          unsigned dialect, nbl__json_visit visit, void *user);

/* ---- access; every function accepts NULL and values of another type ---- */

/* member by key, in O(log count); NULL: none */
const nbl__json *nbl__json_get(const nbl__json *object, const char *key);
/* string member by key; NULL: none */
const char *nbl__json_text(const nbl__json *object, const char *key);
static inline bool nbl__json_is(const nbl__json *value, nbl__json_type type)
{
    return value != NULL && value->type == type;
}
static inline bool nbl__json_number(const nbl__json *value, double *number)
{
    if (nbl__json_is(value, NBL_JSON_INTEGER)) return *number = (double)value->integer, true;
    if (nbl__json_is(value, NBL_JSON_REAL)) return *number = value->real, true;
    return false;
}
/* True for a non-negative integer; stores it. */
bool nbl__json_natural(const nbl__json *value, int64_t *number);
/* True for a list of at most NBL_MAX_RANK non-negative integers; the product of those that are
 * not 0 must not overflow. *elements is the product of all. */
bool nbl__json_shape(const nbl__json *value, int *rank, int64_t *shape, int64_t *elements);

/* ---- a growing text; zero it, set ctx, free it with nbl__text_free ---- */

struct nbl__text {
    nbl_context *ctx;
    char *text; /* zero-terminated; NULL while empty */
    size_t size, capacity;
    nbl_status status; /* NBL_ERROR_MEMORY once memory has run out; then all calls do nothing */
};
typedef struct nbl__text nbl__text;
void nbl__text_add(nbl__text *t, const char *bytes, size_t size);
__attribute__((format(printf, 2, 3))) void nbl__text_printf(nbl__text *t, const char *format, ...);
/* Appends a JSON string with quotes, escaped as serde_json and Python (ensure_ascii=False) do. */
void nbl__text_json(nbl__text *t, const char *string);
/* The same with all but ASCII as \u escapes, as Python does by default. `string` must be valid
 * UTF-8. */
void nbl__text_json_ascii(nbl__text *t, const char *string);
/* Appends a number as Python's repr writes it (nbl__print_repr). NaN and infinities become null. */
void nbl__text_real(nbl__text *t, double value);
void nbl__text_free(nbl__text *t);

#endif
