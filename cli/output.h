/* output.h - the output of the tool: results, errors, readable numbers. json.h: JSON.
 *
 * Results are collected in memory and written to standard output at the end. So a call that fails
 * prints no incomplete document, and a full disk is an error. An error is one line on standard
 * error, "nibble: COMMAND: message", and at most one more line with a hint. */
#ifndef CLI_OUTPUT_H
#define CLI_OUTPUT_H

#include <stdio.h>

#include "command.h"
#include "json.h"

#define CLI_PRINTF(text, first) __attribute__((format(printf, text, first)))

/* ---- memory ----
 *
 * Memory of these functions is freed when the tool ends (cli_free_all). If memory runs out, the
 * tool ends with an error. */

void *cli_alloc(size_t size); /* zeroed */
_Noreturn void cli_no_memory(void);
CLI_PRINTF(1, 2) char *cli_format(const char *format, ...);
/* Returns a "clean" text: one line of valid UTF-8 without control characters, safe for a terminal.
 * Line breaks are written as \n, control characters and invalid bytes as \x1b, C1 and bidirectional
 * controls as \u202e. */
const char *cli_clean(const char *text);
/* Writes a text in this way, zero bytes included. `lines`: keep line feeds and tabs. */
void cli_put_shown(FILE *to, nbl_string text, bool lines);
/* Writes JSON with the same characters escaped in its strings. The values stay the same. */
void cli_put_json(FILE *to, const char *json);
/* Writes text that a model, a template or a tokenizer made. On a terminal it is written as
 * cli_put_shown does, with lines; otherwise byte for byte. */
void cli_put_text(FILE *to, nbl_string text);
/* Returns a text as a word of a shell command, quoted if necessary. */
const char *cli_shell_word(const char *text);
/* Returns the width of a clean text on a terminal, in columns: 2 for a wide character, 0 for a
 * combining one. */
int cli_columns(const char *text);
/* Returns the length in bytes of the first character of a clean text; *columns is its width. */
size_t cli_character(const char *text, int *columns);
void cli_free_all(void);

/* Reads a whole file; "-" is standard input. The text is valid until the tool ends. Returns false
 * after printing an error. */
bool cli_read_file(const cli_call *call, const char *path, nbl_string *text);

/* Lists of token ids from a JSON file: a list of lists of integers from `min` to `max`. They are
 * valid until the tool ends. */
typedef struct cli_ids {
    nbl_ids *lists;
    int64_t count;
} cli_ids;
bool cli_read_ids(const cli_call *call, const char *path, int64_t min, int64_t max, cli_ids *ids);

/* ---- results ---- */

FILE *cli_out(void); /* the stream that collects standard output */
/* Writes the collected output. Returns `status`, or CLI_FAILED if writing failed. */
int cli_finish(const cli_call *call, int status);

/* Writes a text as the result; with --json as an object with the key `key`. `put` writes the
 * text. */
void cli_text_result(const cli_call *call, const char *key, void (*put)(FILE *to));

/* Returns the escape sequence of a style, or "" if standard output has no colours. */
typedef enum cli_style { CLI_PLAIN, CLI_BOLD, CLI_DIM, CLI_RED, CLI_GREEN } cli_style;
const char *cli_styled(cli_style style);

/* Writes text wrapped to the width of the terminal: at most 100 columns, 80 without a terminal.
 * Each line begins with `indent` spaces; the first line begins at column `at`. Empty lines separate
 * paragraphs. */
void cli_wrap(FILE *to, const char *text, int indent, int at);

/* ---- errors ---- */

/* Prints an error and returns the exit status of `code`. An empty or NULL hint is left out.
 * call->command may be NULL. */
CLI_PRINTF(4, 5)
int cli_error(const cli_call *call, nbl_status code, const char *hint, const char *format, ...);
/* The same with the message of the library's last failure. The lines of a list in the message are
 * kept. */
int cli_library_error(const cli_call *call, const nbl_context *ctx, nbl_status code, const char *hint);
/* Prints a usage error (NBL_ERROR_ARGUMENT). A NULL hint becomes a pointer to --help. */
CLI_PRINTF(3, 4)
int cli_usage(const cli_call *call, const char *hint, const char *format, ...);

/* ---- readable numbers; the texts are valid until the tool ends ---- */

const char *cli_bytes(double bytes);      /* "2.47 GB", powers of 1000 */
const char *cli_grouped(uint64_t number); /* "1,235,814,400" */
const char *cli_short(double number);     /* "1.24 B" */
const char *cli_duration(double seconds); /* "0.8 s", "1:05", "2:03:04" */

/* The same into memory of the caller, for lines that are redrawn often. */
enum { CLI_NUMBER_ROOM = 48 };
void cli_put_bytes(char *text, size_t size, double bytes);
void cli_put_duration(char *text, size_t size, double seconds);

#endif
