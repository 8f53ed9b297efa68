/* output.h - what the tool says: results, errors, JSON, readable numbers.
 *
 * Results are collected in memory and written to standard output at the end, so that a call that
 * fails prints no half of a document and a full disk is noticed. Errors are one line on standard
 * error, "nibble: COMMAND: message", and at most one line with a hint. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <jansson.h>
#include <stdio.h>

#include "command.h"

#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* ---- memory that lives until the tool ends; running out of it ends the tool ---- */

void *cli_alloc(size_t size); /* zeroed */
_Noreturn void cli_no_memory(void);
CLI_PRINTF(1, 2) char *cli_format(const char *format, ...);
/* The text as one line of valid UTF-8 that steers no terminal and hides nothing: line breaks become \n, control
 * characters and broken bytes \x1b, C1 and bidirectional controls \u202e. */
const char *cli_clean(const char *text);
/* Writes a text so, zero bytes included. `lines`: line feeds and tabs stay. */
void cli_put_shown(FILE *to, nbl_string text, bool lines);
/* Writes JSON with the same characters escaped in its strings, which changes no value. */
void cli_put_json(FILE *to, const char *json);
/* Writes text that a model, a template or a tokenizer made: as above, with lines, if standard output is a terminal,
 * else byte for byte. */
void cli_put_text(FILE *to, nbl_string text);
/* As a word of a shell command: quoted when it needs to be. */
const char *cli_shell_word(const char *text);
/* Columns that a terminal gives to a clean text: two for a wide character, none for a combining one. */
int cli_columns(const char *text);
/* Bytes of the first character of a clean text, and its columns. */
size_t cli_character(const char *text, int *columns);
void cli_free_all(void);

/* A whole file ("-": standard input), kept until the tool ends; false after an error line. */
bool cli_read_file(const cli_call *call, const char *path, nbl_string *text);

/* A JSON file that is a list of lists of token ids, each from `least` to `most`; kept until the tool ends. */
typedef struct cli_ids {
    nbl_ids *lists;
    int64_t count;
} cli_ids;
bool cli_read_ids(const cli_call *call, const char *path, int64_t min, int64_t max, cli_ids *ids);

/* ---- results ---- */

FILE *cli_out(void); /* collects what goes to standard output */
/* Writes what was collected. Returns `status`, or CLI_FAILED when it could not be written. */
int cli_finish(const cli_call *call, int status);

/* A text as result: as it is, or with --json as the value of `key`. */
void cli_text_result(const cli_call *call, const char *key, void (*put)(FILE *to));

/* Whether colours may be used on standard output, and the sequence of one ("" when not). */
typedef enum cli_style { CLI_PLAIN, CLI_BOLD, CLI_DIM, CLI_RED, CLI_GREEN } cli_style;
const char *cli_styled(cli_style style);

/* Text wrapped to the width of the terminal (at most 100 columns, 80 when there is none), every line
 * after `indent` spaces. The first line starts at column `at`. Empty lines part paragraphs. */
void cli_wrap(FILE *to, const char *text, int indent, int at);

/* ---- errors ---- */

/* Prints an error and returns the exit status that belongs to `code`. An empty or NULL hint is
 * left out. `call` may know no command yet. */
CLI_PRINTF(4, 5)
int cli_error(const cli_call *call, nbl_status code, const char *hint, const char *format, ...);
/* The same with the library's message of its last failure. A message that is a list keeps its lines. */
int cli_library_error(const cli_call *call, const nbl_context *ctx, nbl_status code, const char *hint);
/* Wrong usage: as above with NBL_ERROR_ARGUMENT; a NULL hint points to --help. */
CLI_PRINTF(3, 4)
int cli_usage(const cli_call *call, const char *hint, const char *format, ...);

/* ---- JSON: every function takes over the json_t it gets; none returns NULL ---- */

json_t *cli_json_object(void);
json_t *cli_json_array(void);
json_t *cli_json_text(const char *text); /* NULL: null; broken UTF-8 is cleaned */
json_t *cli_json_unsigned(uint64_t value);
json_t *cli_json_number(double value); /* null for NaN and infinities */
void cli_json_set(json_t *object, const char *key, json_t *value);
void cli_json_add(json_t *array, json_t *value);
/* Makes it the one document on standard output. */
void cli_json_print(json_t *document);
/* The same on one line, for lists of thousands of numbers. */
void cli_json_print_compact(json_t *document);

/* ---- readable numbers (kept until the tool ends) ---- */

const char *cli_bytes(double bytes);      /* "2.47 GB", powers of 1000 */
const char *cli_grouped(uint64_t number); /* "1,235,814,400" */
const char *cli_short(double number);     /* "1.24 B" */
const char *cli_duration(double seconds); /* "0.8 s", "1:05", "2:03:04" */

/* The same without memory, for what is drawn again and again. */
enum { CLI_NUMBER_ROOM = 48 };
void cli_put_bytes(char *text, size_t size, double bytes);
void cli_put_duration(char *text, size_t size, double seconds);

#endif
