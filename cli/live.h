/* live.h - the live line: a line at the bottom of a terminal that is redrawn, on standard error.
 *
 * The line is always shorter than the terminal; the width is queried at each drawing. The cursor
 * stays in the first column. If the terminal becomes narrower, it breaks the line into several
 * rows. The next drawing then begins at the first of these rows and clears to the end of the
 * screen. No memory is allocated. */
#ifndef CLI_LIVE_H
#define CLI_LIVE_H

#include <stdbool.h>
#include <stddef.h>

/* Returns true if standard error is a terminal that can draw a live line. */
bool cli_live_possible(void);

/* A part of a line. If the terminal is too narrow, the parts of the highest rank are left out
 * first. Parts of rank 0 always stay; they are cut if necessary. */
typedef struct cli_part {
    const char *text; /* NULL or "": left out */
    int rank;
} cli_part;

/* Replaces the live line by these parts, with two spaces between them. */
void cli_live_draw(const cli_part *parts, int count);
/* Draws the same parts again if the terminal's width has changed. */
void cli_live_resize(void);
/* Removes the line. */
void cli_live_clear(void);
/* Returns the sequence that removes the line and what the terminal echoed, for a signal handler,
 * which writes a whole line after it. Returns "" if there is no live line. */
const char *cli_live_clearing(void);

/* Returns the width of standard error's terminal in columns; 80 if it is unknown. */
int cli_live_width(void);
/* Copies as many whole characters as fit into `columns`. A text that was cut ends with "...". */
void cli_cut(char *to, size_t size, const char *text, int columns);

#endif
