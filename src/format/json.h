/* json.h - JSON of files, by jansson: every text is hostile, every error names its place. */
#ifndef NBL_JSON_H
#define NBL_JSON_H

#include <jansson.h>

#include "base/base.h"

/* Parses `size` bytes into *root, an object; keys must be unique, nothing may follow. `where` opens
 * the error message, e.g. a file's name. Free with json_decref. */
nbl_status nbl__json_object(nbl_context *ctx, const char *where, const char *text, size_t size,
                            json_t **root);
/* The same for what Python writes: NaN, Infinity and numbers beyond 64 bits are legal. Their values
 * are not kept (they read as 0); who needs the text unchanged keeps the text. */
nbl_status nbl__json_object_python(nbl_context *ctx, const char *where, const char *text, size_t size,
                                   json_t **root);

/* A non-negative integer below 2^63, or false. */
bool nbl__json_natural(const json_t *value, int64_t *number);
/* A list of at most NBL_MAX_RANK natural numbers whose product (as 64 bits) does not overflow. */
bool nbl__json_shape(const json_t *value, int *rank, int64_t *shape, int64_t *elements);
/* Member of an object as text, or NULL. */
const char *nbl__json_text(const json_t *object, const char *key);

/* Appends text to a growing buffer; zero it first, free `text` (capacity bytes) with nbl__free. */
typedef struct nbl__text {
    nbl_context *ctx;
    char *text;
    size_t size, capacity;
    nbl_status status; /* sticky: out of memory once, then nothing happens */
} nbl__text;
void nbl__text_add(nbl__text *t, const char *bytes, size_t size);
__attribute__((format(printf, 2, 3))) void nbl__text_printf(nbl__text *t, const char *format, ...);
/* A JSON string with its quotes, escaped as serde_json and Python (ensure_ascii=False) do. */
void nbl__text_json(nbl__text *t, const char *string);
void nbl__text_free(nbl__text *t);

#endif
