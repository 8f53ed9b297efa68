/* json.h - JSON values: the results that --json prints, and the JSON files that commands read.
 *
 * json.c is the command's only view of base/json, the library's reader and writer of JSON: the
 * public interface has none, because no other program needs it.
 *
 * A value that is made here belongs to its maker until it is moved into an array or object, printed
 * or freed; the pointer is invalid afterwards. No function returns NULL: if memory runs out, the
 * tool ends. */
#ifndef CLI_JSON_H
#define CLI_JSON_H

#include <stdbool.h>

#include "nibble.h"

typedef struct nbl__json cli_json;

/* ---- making ---- */

cli_json *cli_json_object(void);
cli_json *cli_json_array(void);
cli_json *cli_json_null(void);
cli_json *cli_json_boolean(bool value);
cli_json *cli_json_integer(int64_t value);
cli_json *cli_json_unsigned(uint64_t value);  /* at most INT64_MAX */
cli_json *cli_json_number(double value);      /* null for NaN and infinities */
cli_json *cli_json_text(const char *text);    /* NULL becomes null; invalid UTF-8 is cleaned */
cli_json *cli_json_string(nbl_string string); /* may contain zero bytes; invalid UTF-8 is cleaned */
cli_json *cli_json_copy(const cli_json *value);
void cli_json_free(cli_json *value); /* NULL is ignored */

/* Moves a value into an object as its last member, or into an array as its last item. */
void cli_json_set(cli_json *object, const char *key, cli_json *value);
void cli_json_add(cli_json *array, cli_json *value);
/* Drops the items of an array from `count` on. */
void cli_json_cut(cli_json *array, int64_t count);

/* Prints the document, which is all of standard output, and frees it. */
void cli_json_print(cli_json *document);
/* The same on one line, for lists of thousands of numbers. */
void cli_json_print_compact(cli_json *document);
/* Returns the value as text on one line. The caller frees it. */
char *cli_json_line(const cli_json *value);

/* ---- reading ---- */

bool cli_json_is_array(const cli_json *value);
bool cli_json_is_integer(const cli_json *value, int64_t *integer);
bool cli_json_is_string(const cli_json *value, nbl_string *string); /* zero-terminated */
int64_t cli_json_count(const cli_json *value);                      /* items or members; else 0 */
const cli_json *cli_json_item(const cli_json *array, int64_t index);
const cli_json *cli_json_member(const cli_json *object, const char *key); /* NULL: none */

/* A text that was read. Its values are valid until cli_json_forget. */
typedef struct cli_json_document {
    const cli_json *root;
    const char *wrong; /* why the text is not JSON, with line and column, on one line; root is NULL */
    void *memory;
} cli_json_document;
cli_json_document cli_json_read(nbl_string text);
void cli_json_forget(cli_json_document *document);
/* Frees what reading keeps from document to document. */
void cli_json_end(void);

#endif
