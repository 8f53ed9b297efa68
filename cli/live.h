/* live.h - the live line: the last line of a terminal, drawn again and again on standard error.
 *
 * A line never fills the terminal's width, which is asked for at every drawing. The cursor rests in the first column: when
 * a terminal that has become narrower breaks the line into several, the next drawing begins at the first of them and
 * clears to the end of the screen. Nothing here takes memory. */
#ifndef CLI_LIVE_H
#define CLI_LIVE_H

#include <stdbool.h>
#include <stddef.h>

/* Is there a terminal that can draw one? */
bool cli_live_possible(void);

/* A part of a line. In a narrow terminal parts are left out, those of the highest rank first; rank 0 stays, and is
 * cut at last. */
typedef struct cli_part {
    const char *text; /* NULL or "": left out */
    int rank;
} cli_part;

/* Draws parts with two spaces between them, in place of the line before. */
void cli_live_draw(const cli_part *parts, int count);
/* Draws the same parts again if the terminal's width has changed. */
void cli_live_resize(void);
/* Takes the line away. */
void cli_live_clear(void);
/* The same for a signal handler, to be followed by a whole line: also what the terminal echoed. "" without a line. */
const char *cli_live_clearing(void);

/* Columns of standard error's terminal; 80 where it does not tell. */
int cli_live_width(void);
/* Copies as many whole characters as `columns` hold; "..." at the end of a text that was cut. */
void cli_cut(char *to, size_t size, const char *text, int columns);

#endif
