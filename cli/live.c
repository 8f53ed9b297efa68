/* live.c - draws the live line; see live.h. The parts that were drawn last are kept in `shown`, in
 * static memory, so that a resize can draw them again. */
#include "live.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "output.h"

enum { MAX_PARTS = 12, PART_ROOM = 512, LINE_ROOM = MAX_PARTS * (PART_ROOM + 2), GAP = 2 };

/* Clears the line, then the screen below. Two sequences, because some terminals move text that is
 * cleared as a whole screen into their scrollback. */
static const char clearing[] = "\r\033[K\033[J";
static volatile sig_atomic_t drawn;
static struct {
    char text[PART_ROOM];
    int rank;
} shown[MAX_PARTS]; /* the parts drawn last */
static int shown_count, shown_width;

bool cli_live_possible(void)
{
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

int cli_live_width(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void cli_cut(char *to, size_t size, const char *text, int columns)
{
    size_t used = 0, kept = 0; /* kept: bytes that leave room for the dots */
    int column = 0;
    for (const char *at = text; *at;) {
        int wide;
        size_t length = cli_character(at, &wide);
        if (column + wide > columns || used + length + 4 > size) {
            static const char dots[] = "...";
            size_t dot_count = columns < 3 ? (size_t)(columns > 0 ? columns : 0) : 3;
            memcpy(to + kept, dots, dot_count);
            used = kept + dot_count;
            break;
        }
        memcpy(to + used, at, length);
        used += length;
        column += wide;
        at += length;
        if (column + 3 <= columns) kept = used;
    }
    to[used] = '\0';
}

/* Returns the width of the parts up to this rank, in columns. */
static int columns_of(int rank)
{
    int columns = 0;
    for (int i = 0; i < shown_count; i++)
        if (shown[i].rank <= rank && *shown[i].text)
            columns += cli_columns(shown[i].text) + (columns ? GAP : 0);
    return columns;
}

/* Draws `shown`: drops the parts of the highest rank until the rest fits, then cuts what is
 * left. */
static void draw(void)
{
    char line[LINE_ROOM] = "", fitting[LINE_ROOM];
    shown_width = cli_live_width();
    int room = shown_width - 1, rank = 0; /* the last column stays free: some terminals wrap there */
    for (int i = 0; i < shown_count; i++)
        if (shown[i].rank > rank) rank = shown[i].rank;
    while (rank > 0 && columns_of(rank) > room) rank--;
    for (int i = 0; i < shown_count; i++) {
        if (shown[i].rank > rank || *shown[i].text == '\0') continue;
        if (*line) strcat(line, "  ");
        strcat(line, shown[i].text);
    }
    cli_cut(fitting, sizeof fitting, line, room);
    fprintf(stderr, "\r%s\033[J\r", fitting);
    fflush(stderr);
    drawn = 1;
}

void cli_live_draw(const cli_part *parts, int count)
{
    shown_count = count < MAX_PARTS ? count : MAX_PARTS;
    for (int i = 0; i < shown_count; i++) {
        snprintf(shown[i].text, sizeof shown[i].text, "%s", parts[i].text ? parts[i].text : "");
        shown[i].rank = parts[i].rank;
    }
    draw();
}

void cli_live_resize(void)
{
    if (drawn && cli_live_width() != shown_width) draw();
}

void cli_live_clear(void)
{
    if (!drawn) return;
    fputs(clearing, stderr);
    fflush(stderr);
    drawn = 0;
}

const char *cli_live_clearing(void)
{
    return drawn ? clearing : "";
}
