/* json.h - JSON of files. Every text is hostile: whatever it says, parsing it takes memory in
 * proportion to its length from the arena, no deep recursion, and ends in a value or in an error that
 * names the place.
 *
 * Own code rather than a library, because the one at hand (jansson 2.14) calls assert when memory runs
 * out, and this library may not abort. */
#ifndef NBL_JSON_H
#define NBL_JSON_H

#include "base/arena.h"

typedef enum nbl__json_type {
    NBL_JSON_NULL,
    NBL_JSON_FALSE,
    NBL_JSON_TRUE,
    NBL_JSON_INTEGER, /* fits 64 bits */
    NBL_JSON_REAL,    /* any other number, also an integer beyond 64 bits */
    NBL_JSON_STRING,  /* valid UTF-8 without a zero byte (but see NBL_JSON_SERDE) */
    NBL_JSON_ARRAY,
    NBL_JSON_OBJECT
} nbl__json_type;

typedef struct nbl__json {
    nbl__json_type type;
    uint32_t key_size;
    int64_t count;   /* of items; of a string: bytes */
    const char *key; /* of a member */
    union {
        int64_t integer;
        double real;
        const char *string;
        struct nbl__json *items; /* array, object: in the order of the text */
    };
    int32_t *sorted; /* object: items by key */
} nbl__json;

typedef enum nbl__json_dialect {
    NBL_JSON_STRICT,
    NBL_JSON_PYTHON, /* also NaN, Infinity, -Infinity and numbers that overflow a double */
    NBL_JSON_SERDE   /* strings may hold U+0000; reals are rounded as Rust's serde_json does it: the first 19
                        digits or so, then one product or quotient with a power of ten */
} nbl__json_dialect;

/* Parses `size` bytes, which must be one object with unique keys and nothing after it. `where` opens
 * the error message, e.g. a file's name. The values live in the arena. */
nbl_status nbl__json_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                           nbl__json_dialect dialect, const nbl__json **root);

/* The same for a row of a larger file that begins in its line `line`: errors name that file's lines. */
nbl_status nbl__json_parse_row(nbl__arena *arena, const char *where, int64_t line, const char *text,
                               size_t size, nbl__json_dialect dialect, const nbl__json **root);

/* The same member by member, for an object of very many: `visit` is called with each in turn, and the member lives no
 * longer than the call. What a key says, and whether it comes twice, is the visitor's affair. */
typedef nbl_status (*nbl__json_visit)(void *user, const nbl__json *member);
nbl_status nbl__json_each(nbl_context *ctx, const char *where, const char *text, size_t size,
                          nbl__json_dialect dialect, nbl__json_visit visit, void *user);

/* ---- access; all of them accept NULL and values of another type ---- */

const nbl__json *nbl__json_get(const nbl__json *object, const char *key); /* NULL: no such member */
const char *nbl__json_text(const nbl__json *object, const char *key);     /* NULL: no such text */
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
/* A non-negative integer below 2^63, or false. */
bool nbl__json_natural(const nbl__json *value, int64_t *number);
/* A list of at most NBL_MAX_RANK natural numbers whose product (of those that are not 0) does not
 * overflow. */
bool nbl__json_shape(const nbl__json *value, int *rank, int64_t *shape, int64_t *elements);

/* ---- writing: text in a growing buffer; zero it, set ctx, free it ---- */

struct nbl__text {
    nbl_context *ctx;
    char *text; /* terminated once something was added */
    size_t size, capacity;
    nbl_status status; /* sticky: out of memory once, then nothing happens */
};
typedef struct nbl__text nbl__text;
void nbl__text_add(nbl__text *t, const char *bytes, size_t size);
__attribute__((format(printf, 2, 3))) void nbl__text_printf(nbl__text *t, const char *format, ...);
/* A JSON string with its quotes, escaped as serde_json and Python (ensure_ascii=False) do. */
void nbl__text_json(nbl__text *t, const char *string);
/* The same without a byte above 0x7f, as Python does by default. The text is valid UTF-8. */
void nbl__text_json_ascii(nbl__text *t, const char *string);
/* A finite number as Python's repr has it: the shortest digits that read back as the same number; exponent
 * form below 1e-4 and from 1e16 on. */
void nbl__text_real(nbl__text *t, double value);
void nbl__text_free(nbl__text *t);

#endif
