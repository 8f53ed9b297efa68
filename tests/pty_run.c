/* pty_run.c - runs a command on a terminal of its own, as somebody would who types.
 *
 *   pty_run COLUMNS ROWS COMMAND... < SCRIPT
 *
 * Lines of the script, with \r \n \t \e \\ and \xHH: "expect TEXT" waits until TEXT was printed after what the last expect
 * found; "send TEXT" types; "size COLUMNS ROWS" resizes; "pause MS" waits. Then the rest of the output is awaited.
 * Standard output gets what the terminal got. A live line (it ends with ESC [ J and a carriage return) that is as wide as the
 * terminal or wider is told on standard error, and so is a terminal that is left without echo.
 * Exit status: the command's (128 + the signal that ended it); 125: an expected text did not come, or a line was too wide. */
#define _GNU_SOURCE
#include <locale.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

enum { FAILED = 125, WAIT_MS = 60000 };

static pid_t child;
static int terminal, width, previous_width;
static char *all; /* what was printed */
static size_t all_size, all_room, found_to;
static bool failed;

static long now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Columns of what stands in one line of output; escape sequences have none. */
static int columns(const char *text, size_t size)
{
    int count = 0;
    mbstate_t state = {0};
    for (size_t i = 0; i < size;) {
        if (text[i] == '\033') {
            i += 2;
            while (i < size && (text[i - 1] == '[' || (text[i] < '@' || text[i] > '~'))) {
                if (text[i] >= '@' && text[i] <= '~') break;
                i++;
            }
            i++;
            continue;
        }
        wchar_t c;
        size_t length = mbrtowc(&c, text + i, size - i, &state);
        if (length == 0 || length > 8) break;
        count += wcwidth(c) > 0 ? wcwidth(c) : 0;
        i += length;
    }
    return count;
}

/* Live lines that ended in the last `size` bytes. A line may have been on its way while the terminal was resized. */
static void judge(size_t size)
{
    static const char end[] = "\033[J\r";
    enum { END = sizeof end - 1 };
    for (size_t i = all_size - size < END ? END : all_size - size; i <= all_size; i++) {
        if (memcmp(all + i - END, end, END) != 0) continue;
        size_t stop = i - END, begin = stop;
        while (begin > 0 && all[begin - 1] != '\r' && all[begin - 1] != '\n') begin--;
        int wide = columns(all + begin, stop - begin),
            limit = previous_width > width ? previous_width : width;
        if (wide < limit) continue;
        fprintf(stderr, "pty_run: a live line of %d columns on a terminal of %d: %.*s\n", wide, limit,
                (int)(stop - begin), all + begin);
        failed = true;
    }
}

/* Reads what there is within `ms`; false: nothing came, or the end did (*ended). */
static bool take(long ms, bool *ended)
{
    struct pollfd ready = {.fd = terminal, .events = POLLIN};
    if (ms < 0 || poll(&ready, 1, (int)ms) <= 0) return false;
    if (all_room - all_size < 4096 && (all = realloc(all, all_room = 2 * all_room + 65536)) == NULL)
        exit(FAILED);
    ssize_t n = read(terminal, all + all_size, 4096);
    *ended = n <= 0;
    if (n <= 0) return false;
    if (fwrite(all + all_size, 1, (size_t)n, stdout) != (size_t)n || fflush(stdout) != 0) exit(FAILED);
    all_size += (size_t)n;
    judge((size_t)n);
    return true;
}

static void expect(const char *text)
{
    long until = now_ms() + WAIT_MS;
    bool ended = false;
    for (;;) {
        char *at = all_size > found_to ? memmem(all + found_to, all_size - found_to, text, strlen(text))
                                       : NULL;
        if (at) {
            found_to = (size_t)(at - all) + strlen(text);
            return;
        }
        if (!take(until - now_ms(), &ended)) break;
    }
    fprintf(stderr, "pty_run: '%s' did not come\n", text);
    kill(child, SIGKILL);
    exit(FAILED);
}

/* In place. */
static void unescape(char *text)
{
    char *to = text;
    for (; *text; text++) {
        char c = *text;
        if (c == '\\' && *++text == 'x') {
            char digits[3] = {text[1], text[2], 0};
            c = (char)strtol(digits, NULL, 16);
            text += 2;
        } else if (c == '\\') {
            c = *text == 'r'   ? '\r'
                : *text == 'n' ? '\n'
                : *text == 't' ? '\t'
                : *text == 'e' ? '\033'
                               : *text;
        }
        *to++ = c;
    }
    *to = '\0';
}

static void send_text(const char *text)
{
    for (size_t size = strlen(text); size > 0;) {
        ssize_t n = write(terminal, text, size < 256 ? size : 256);
        if (n <= 0) exit(FAILED);
        text += n;
        size -= (size_t)n;
        bool ended = false; /* what is echoed must go, or the terminal stands still */
        while (take(0, &ended)) {}
    }
}

static void pause_ms(long ms)
{
    bool ended = false;
    for (long until = now_ms() + ms; now_ms() < until && !ended;) take(until - now_ms(), &ended);
}

static void resize(const char *text)
{
    struct winsize size = {0};
    if (sscanf(text, "%hu %hu", &size.ws_col, &size.ws_row) != 2) exit(FAILED);
    pause_ms(0);
    previous_width = width;
    width = size.ws_col;
    ioctl(terminal, TIOCSWINSZ, &size);
}

int main(int count, char **words)
{
    if (count < 4) return FAILED;
    setlocale(LC_ALL, "C.UTF-8");
    struct winsize size = {.ws_col = (unsigned short)atoi(words[1]),
                           .ws_row = (unsigned short)atoi(words[2])};
    width = previous_width = size.ws_col;
    child = forkpty(&terminal, NULL, NULL, &size);
    if (child < 0) return FAILED;
    if (child == 0) {
        execvp(words[3], words + 3);
        _exit(FAILED);
    }
    char *line = NULL;
    size_t room = 0;
    for (ssize_t length; (length = getline(&line, &room, stdin)) > 0;) {
        if (line[length - 1] == '\n') line[length - 1] = '\0';
        unescape(line);
        if (strncmp(line, "expect ", 7) == 0) expect(line + 7);
        else if (strncmp(line, "send ", 5) == 0) send_text(line + 5);
        else if (strncmp(line, "size ", 5) == 0) resize(line + 5);
        else if (strncmp(line, "pause ", 6) == 0) pause_ms(atol(line + 6));
        else if (*line) return FAILED;
    }
    free(line);
    struct termios modes;
    bool ended = false, echo = true;
    long until = now_ms() + WAIT_MS;
    while (!ended && now_ms() < until) take(200, &ended);
    if (tcgetattr(terminal, &modes) == 0) echo = modes.c_lflag & ECHO;
    if (!ended) kill(child, SIGKILL);
    int status;
    if (waitpid(child, &status, 0) != child) return FAILED;
    fflush(stdout);
    if (!ended) fprintf(stderr, "pty_run: the command did not end\n");
    if (!echo) fprintf(stderr, "pty_run: the terminal is left without echo\n");
    if (!ended || !echo || failed) return FAILED;
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}
