/* line.h - lines of standard input: typed by somebody, with editing and history, or from a pipe.
 *
 * Editing is libedit's (line_edit.c); it is used where the build found it and a terminal can move its cursor. */
#ifndef CLI_LINE_H
#define CLI_LINE_H

#include "output.h"

typedef struct cli_editor cli_editor;

typedef struct cli_lines {
    const cli_call *call;
    bool terminal; /* someone types: standard input and standard error are terminals */
    char *text;    /* plain reading */
    size_t room;
    cli_editor *editor;  /* NULL: plain reading */
    const char *history; /* the file to which typed lines are added; or NULL */
} cli_lines;

typedef enum cli_line_result {
    CLI_LINE_READ,
    CLI_LINE_END,         /* end of input */
    CLI_LINE_INTERRUPTED, /* by a signal, while nothing was typed */
    CLI_LINE_FAILED       /* after an error line */
} cli_line_result;

/* `history`: a file of JSON strings, one per line and turn, that may not be there yet; or NULL. It is used at a terminal
 * only. CLI_DONE, or the exit status after an error line. */
int cli_lines_open(const cli_call *call, const char *history, cli_lines *lines);
/* The next line, without its end; valid until the next call. */
cli_line_result cli_lines_next(cli_lines *lines, const char **text, size_t *size);
void cli_lines_close(cli_lines *lines);

/* ---- line_edit.c ---- */

/* The version of libedit; NULL: built without it. */
const char *cli_editor_version(void);
/* NULL: there is no libedit, or this terminal cannot be drawn on. */
cli_editor *cli_editor_open(const char *prompt);
void cli_editor_remember(cli_editor *editor, const char *text);
cli_line_result cli_editor_read(cli_editor *editor, const char **text, size_t *size);
void cli_editor_close(cli_editor *editor);

#endif
