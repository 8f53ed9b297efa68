/* line.h - reads lines of standard input, typed at a terminal or from a pipe.
 *
 * At a terminal lines can be edited, and there is a history. libedit does the editing
 * (line_edit.c). It is used if the build found it and the terminal can move its cursor. Otherwise
 * lines are read plainly. */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include "output.h"

typedef struct cli_editor cli_editor;

typedef struct cli_lines {
    const cli_call *call;
    bool terminal;       /* standard input and standard error are terminals */
    char *text;          /* plain reading: the line, in memory of getline */
    size_t room;         /* plain reading: size of that memory */
    cli_editor *editor;  /* NULL: plain reading */
    const char *history; /* file to which typed lines are appended; NULL: none */
} cli_lines;

typedef enum cli_line_result {
    CLI_LINE_READ,
    CLI_LINE_END,         /* end of input */
    CLI_LINE_INTERRUPTED, /* a signal came while the line was empty */
    CLI_LINE_FAILED       /* an error was printed */
} cli_line_result;

/* Begins reading. `history` is a file with one JSON string per line, one per turn; it need not
 * exist yet. NULL: no history. It is used only at a terminal. Returns CLI_DONE, or the exit status
 * after printing an error. */
int cli_lines_open(const cli_call *call, const char *history, cli_lines *lines);
/* Reads the next line, without its line feed. *text is valid until the next call. */
cli_line_result cli_lines_next(cli_lines *lines, const char **text, size_t *size);
void cli_lines_close(cli_lines *lines);

/* ---- line_edit.c ---- */

/* Returns the version of libedit, or NULL if the tool was built without it. */
const char *cli_editor_version(void);
/* Returns NULL if there is no libedit, or if the terminal cannot move its cursor. */
cli_editor *cli_editor_open(const char *prompt);
/* Adds a text to the history in memory. */
void cli_editor_remember(cli_editor *editor, const char *text);
cli_line_result cli_editor_read(cli_editor *editor, const char **text, size_t *size);
void cli_editor_close(cli_editor *editor);

#endif
