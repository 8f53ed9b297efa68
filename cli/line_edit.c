/* line_edit.c - the line editor for a terminal: libedit, with the keys of emacs or those of
 * ~/.editrc.
 *
 * Signals: libedit's own handling is off. While a line is edited the signals are blocked, except
 * while the editor waits for a key. A handler only sets a flag, which is acted on outside the
 * handler. The terminal is restored before the process ends or stops, and redrawn after a resize or
 * SIGCONT.
 *
 * Paste: the terminal marks pasted text (bracketed paste). Pasted text is inserted unchanged, with
 * its line feeds, so that it is one turn. */
#include "line.h"

#ifdef NIBBLE_LIBEDIT

#include <errno.h>
#include <histedit.h>
#include <langinfo.h>
#include <locale.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <unistd.h>
#include <utf8proc.h>
#include <wchar.h>

#include "live.h"
#include "process.h"

enum { MAX_REMEMBERED = 1000, CTRL_E = 5 };

struct cli_editor {
    EditLine *edit;
    History *history;
    FILE *nowhere; /* /dev/null, for libedit's messages about the terminal */
    const char *prompt;
    sigset_t before; /* the signal mask outside of editing */
    mbstate_t state;
    bool interrupted, dropped;
};

static volatile sig_atomic_t resized, stopped, continued;

static void on_terminal_signal(int number)
{
    if (number == SIGWINCH) resized = 1;
    if (number == SIGTSTP) stopped = 1;
    if (number == SIGCONT) continued = 1;
}

static const int terminal_signals[] = {SIGWINCH, SIGTSTP, SIGCONT};
enum { TERMINAL_SIGNALS = sizeof terminal_signals / sizeof *terminal_signals };

/* The callback for the prompt. The cast removes const: libedit does not change it. */
static char *show_prompt(EditLine *edit)
{
    cli_editor *e;
    el_get(edit, EL_CLIENTDATA, &e);
    return (char *)(uintptr_t)e->prompt;
}

/* ---- keys ---- */

/* Turns bracketed paste on or off, if the terminal supports it. */
static void mark_pastes(bool on)
{
    fputs(on ? "\033[?2004h" : "\033[?2004l", stderr);
    fflush(stderr);
}

/* Returns the rows from the prompt to the cursor, after the terminal was resized to this width. */
static int rows_above(const cli_editor *e, int width)
{
    const LineInfoW *line = el_wline(e->edit);
    int row = 0, column = cli_columns(e->prompt);
    for (const wchar_t *c = line->buffer; c < line->cursor; c++) {
        int wide = *c == L'\t' ? 8 - column % 8 : utf8proc_charwidth(*c);
        bool next = *c == L'\n' || column + wide > width;
        row += next;
        column = *c == L'\n' ? 0 : next ? wide : column + wide;
    }
    return row;
}

/* Stops the process (SIGTSTP) with the default handler. Does nothing if no shell could continue
 * it. */
static void stop_here(void)
{
    struct sigaction usual = {.sa_handler = SIG_DFL}, ours;
    sigset_t set, before;
    sigaction(SIGTSTP, &usual, &ours);
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    raise(SIGTSTP);
    sigprocmask(SIG_UNBLOCK, &set, &before); /* the process stops here */
    sigprocmask(SIG_SETMASK, &before, NULL);
    sigaction(SIGTSTP, &ours, NULL);
}

/* Acts on the flags of on_terminal_signal, between two keys. The order matters: a stop is followed
 * by a continue, and a resize may have come while the process was stopped. */
static void take_terminal_signals(cli_editor *e)
{
    if (stopped) {
        stopped = 0;
        mark_pastes(false);
        el_set(e->edit, EL_PREP_TERM, 0);
        fputc('\n', stderr);
        stop_here();
        continued = 1;
    }
    if (continued) {
        continued = 0;
        el_set(e->edit, EL_PREP_TERM, 0); /* the shell may have changed the terminal's modes */
        el_set(e->edit, EL_PREP_TERM, 1);
        mark_pastes(true);
        fputs("\r\033[J", stderr);
        el_set(e->edit, EL_REFRESH);
    }
    if (resized) {
        resized = 0;
        int rows = rows_above(e, cli_live_width());
        el_resize(e->edit);
        if (rows) fprintf(stderr, "\033[%dA", rows);
        fputs("\r\033[J", stderr);
        el_set(e->edit, EL_REFRESH);
    }
}

/* Ctrl-C drops the typed text. On an empty line Ctrl-C ends the conversation, and so does any other
 * signal. */
static void take_interrupt(cli_editor *e, int signal_number)
{
    const LineInfo *line = el_line(e->edit);
    e->dropped = signal_number == SIGINT && line->lastchar > line->buffer;
    e->interrupted = !e->dropped;
}

/* Reads the next byte of the terminal. Returns 1, or 0 at the end of input, or -1 if the line is
 * abandoned. In that case the cursor is moved to the end of the line first. */
static int next_byte(cli_editor *e, unsigned char *byte)
{
    for (;;) {
        take_terminal_signals(e);
        int signal_number = cli_prompt_signal();
        if (signal_number) {
            take_interrupt(e, signal_number);
            *byte = CTRL_E;
            return 1;
        }
        if (e->dropped || e->interrupted) return -1;
        fd_set set;
        FD_ZERO(&set);
        FD_SET(STDIN_FILENO, &set);
        /* A signal may be delivered to a thread of a device's driver. Then this wait is not
         * interrupted. */
        const struct timespec look_again = {.tv_nsec = 250000000};
        int ready = pselect(STDIN_FILENO + 1, &set, NULL, NULL, &look_again, &e->before);
        if (ready == 0 || (ready < 0 && errno == EINTR)) continue;
        if (ready < 0) return 0;
        ssize_t n = read(STDIN_FILENO, byte, 1);
        if (n == 1) return 1;
        if (n == 0 || (errno != EINTR && errno != EAGAIN)) return 0;
    }
}

/* Reads one character. Bytes that are not UTF-8 are skipped. */
static int next_character(cli_editor *e, wchar_t *c)
{
    for (;;) {
        unsigned char byte;
        int got = next_byte(e, &byte);
        if (got <= 0) return got;
        size_t length = mbrtowc(c, (const char *)&byte, 1, &e->state);
        if (length == (size_t)-1) memset(&e->state, 0, sizeof e->state);
        else if (length != (size_t)-2 && *c != L'\0') return 1;
    }
}

/* The callback for keys. It replaces libedit's own reading, so that signals are seen between
 * bytes. */
static int read_key(EditLine *edit, wchar_t *c)
{
    cli_editor *e;
    el_get(edit, EL_CLIENTDATA, &e);
    return next_character(e, c);
}

/* Inserts pasted text: the text between ESC [ 200 ~ and ESC [ 201 ~, without control characters. */
static unsigned char paste(EditLine *edit, int key)
{
    static const wchar_t end[] = L"\033[201~";
    enum { END = sizeof end / sizeof *end - 1 };
    cli_editor *e;
    wchar_t *text = NULL, c = L'\0';
    size_t size = 0;
    int matched = 0;
    (void)key;
    el_get(edit, EL_CLIENTDATA, &e);
    FILE *pasted = open_wmemstream(&text, &size);
    if (pasted == NULL) cli_no_memory();
    while (matched < END) {
        wchar_t before = c;
        if (next_character(e, &c) <= 0) break;
        matched = c == end[matched] ? matched + 1 : c == end[0];
        bool control = c < L' ' || (c >= 0x7f && c < 0xa0);
        if (c == L'\r' || (c == L'\n' && before != L'\r')) fputwc(L'\n', pasted);
        else if (c == L'\t' || !control) fputwc(c, pasted);
    }
    if (fclose(pasted) != 0) cli_no_memory();
    if (matched == END) text[size - (END - 1)] = L'\0'; /* remove the end mark; its ESC was skipped */
    int refused = matched == END && *text ? el_winsertstr(edit, text) : 0;
    free(text);
    if (matched < END) return CC_EOF; /* interrupted, or end of input */
    return refused ? CC_ERROR : CC_REFRESH;
}

/* ---- the editor ---- */

const char *cli_editor_version(void)
{
    return cli_format("%d.%d", LIBEDIT_MAJOR, LIBEDIT_MINOR);
}

/* Input is UTF-8, independent of the locale. */
static void use_utf8(void)
{
    if (setlocale(LC_CTYPE, "") == NULL || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

/* Pasted text, tabs as text, Ctrl-R, and Ctrl with the arrow keys. ~/.editrc may bind others
 * later. */
static void bind_keys(EditLine *edit)
{
    el_set(edit, EL_ADDFN, "nibble-paste", "put a pasted text into the line", paste);
    el_set(edit, EL_BIND, "\033[200~", "nibble-paste", NULL);
    el_set(edit, EL_BIND, "^I", "ed-insert", NULL);
    el_set(edit, EL_BIND, "^R", "em-inc-search-prev", NULL);
    el_set(edit, EL_BIND, "\033[1;5C", "em-next-word", NULL);
    el_set(edit, EL_BIND, "\033[1;5D", "ed-prev-word", NULL);
}

cli_editor *cli_editor_open(const char *prompt)
{
    if (!cli_live_possible()) return NULL;
    use_utf8();
    cli_editor *e = cli_alloc(sizeof *e);
    HistEvent event;
    e->prompt = prompt;
    e->nowhere = fopen("/dev/null", "we");
    e->history = history_init();
    e->edit = e->nowhere && e->history ? el_init("nibble", stdin, stderr, e->nowhere) : NULL;
    if (e->edit == NULL) {
        cli_editor_close(e);
        return NULL;
    }
    history(e->history, &event, H_SETSIZE, MAX_REMEMBERED);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->edit, EL_CLIENTDATA, e);
    el_set(e->edit, EL_PROMPT, show_prompt);
    el_set(e->edit, EL_EDITOR, "emacs");
    el_set(e->edit, EL_HIST, history, e->history);
    el_set(e->edit, EL_GETCFN, read_key);
    bind_keys(e->edit);
    el_source(e->edit, NULL);
    return e;
}

void cli_editor_remember(cli_editor *e, const char *text)
{
    HistEvent event;
    if (e) history(e->history, &event, H_ENTER, text);
}

/* Blocks the signals, which are handled between keys, and sets handlers for those of the
 * terminal. */
static void begin_signals(cli_editor *e, struct sigaction *old)
{
    struct sigaction action = {.sa_handler = on_terminal_signal};
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGINT);
    sigaddset(&blocked, SIGTERM);
    sigaddset(&blocked, SIGHUP);
    for (int i = 0; i < TERMINAL_SIGNALS; i++) sigaddset(&blocked, terminal_signals[i]);
    sigprocmask(SIG_BLOCK, &blocked, &e->before);
    for (int i = 0; i < TERMINAL_SIGNALS; i++) sigaction(terminal_signals[i], &action, &old[i]);
    cli_prompt_begin();
}

/* Restores the handlers and the mask of begin_signals. */
static void end_signals(cli_editor *e, const struct sigaction *old)
{
    cli_prompt_end();
    for (int i = 0; i < TERMINAL_SIGNALS; i++) sigaction(terminal_signals[i], &old[i], NULL);
    sigprocmask(SIG_SETMASK, &e->before, NULL);
}

/* A dropped line (Ctrl-C with text) is read again, so the caller never sees it. */
cli_line_result cli_editor_read(cli_editor *e, const char **text, size_t *size)
{
    struct sigaction old[TERMINAL_SIGNALS];
    int count = 0;
    do {
        e->interrupted = e->dropped = false;
        begin_signals(e, old);
        el_set(e->edit, EL_PREP_TERM,
               1); /* before the prompt is written, so that a Ctrl-D after it is not lost */
        mark_pastes(true);
        *text = el_gets(e->edit, &count);
        mark_pastes(false);
        end_signals(e, old);
        if (e->dropped) fputs("^C\n", stderr);
    } while (e->dropped);
    if (e->interrupted) fputc('\n', stderr);
    if (e->interrupted) return CLI_LINE_INTERRUPTED;
    if (*text == NULL || count <= 0) return CLI_LINE_END;
    *size = (size_t)count;
    return CLI_LINE_READ;
}

void cli_editor_close(cli_editor *e)
{
    if (e == NULL) return;
    if (e->edit) el_end(e->edit);
    if (e->history) history_end(e->history);
    if (e->nowhere) fclose(e->nowhere);
    *e = (cli_editor){0};
}

#else

const char *cli_editor_version(void)
{
    return NULL;
}

cli_editor *cli_editor_open(const char *prompt)
{
    (void)prompt;
    return NULL;
}

void cli_editor_remember(cli_editor *e, const char *text)
{
    (void)e;
    (void)text;
}

cli_line_result cli_editor_read(cli_editor *e, const char **text, size_t *size)
{
    (void)e;
    (void)text;
    (void)size;
    return CLI_LINE_END;
}

void cli_editor_close(cli_editor *e)
{
    (void)e;
}

#endif
