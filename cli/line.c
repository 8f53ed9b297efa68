/* line.c - reads lines from a terminal or a pipe, and keeps the file of the history; see line.h.
 *
 * The file is read once, when the lines are opened, and only appended to. A failed append turns the
 * history off with a warning; the conversation goes on. */
#include "line.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "process.h"

static const char prompt[] = "> ";

/* ---- the file of the history ---- */

/* Reads the history of earlier conversations. A file with other content is an error, because lines
 * would be appended to it. */
static int read_history(cli_lines *l)
{
    struct stat info;
    if (stat(l->history, &info) != 0 && errno == ENOENT) return CLI_DONE;
    if (stat(l->history, &info) == 0 && !S_ISREG(info.st_mode))
        return cli_error(l->call, NBL_ERROR_ARGUMENT, NULL, "--history %s: not a regular file", l->history);
    nbl_string all;
    if (!cli_read_file(l->call, l->history, &all)) return CLI_FAILED;
    int number = 1;
    for (const char *at = all.text, *end = at + all.size; at < end; number++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t size = (size_t)((stop ? stop : end) - at);
        cli_json_document document = cli_json_read((nbl_string){at, size});
        nbl_string turn;
        bool good = cli_json_is_string(document.root, &turn) && strlen(turn.text) == turn.size;
        if (good) cli_editor_remember(l->editor, turn.text);
        cli_json_forget(&document);
        if (!good)
            return cli_error(l->call, NBL_ERROR_FORMAT, "name a file that is not there yet",
                             "--history %s: line %d is not a JSON string, so this is no history of chats",
                             l->history, number);
        at += size + (stop != NULL);
    }
    return CLI_DONE;
}

/* Appends a line to the history with one write per turn. So a killed conversation loses no turn,
 * and two conversations do not mix their lines. */
static int add_to_history(cli_lines *l, const char *text, size_t size)
{
    cli_json *turn = cli_json_string((nbl_string){text, size}); /* text that is not UTF-8 is cleaned */
    char *line = cli_json_line(turn);
    cli_json_free(turn);
    const char *whole = cli_format("%s\n", line);
    free(line);
    int fd = open(l->history, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600);
    ssize_t length = (ssize_t)strlen(whole), written = fd < 0 ? -1 : write(fd, whole, (size_t)length);
    int error = written == length ? 0 : written < 0 ? errno : ENOSPC;
    if (fd >= 0) close(fd);
    return error;
}

/* Adds a typed line to the history in memory and to the file. Empty lines are not added. */
static void remember(cli_lines *l, const char *text, size_t size)
{
    if (size == 0) return;
    cli_editor_remember(l->editor, text);
    int error = l->history ? add_to_history(l, text, size) : 0;
    if (error == 0) return;
    fprintf(stderr, "nibble: %s: warning: --history %s: %s; what is typed is remembered until the end only\n",
            l->call->command->name, cli_clean(l->history), strerror(error));
    l->history = NULL;
}

/* ---- lines ---- */

int cli_lines_open(const cli_call *call, const char *history, cli_lines *l)
{
    *l = (cli_lines){.call = call, .terminal = isatty(STDIN_FILENO) && isatty(STDERR_FILENO)};
    if (!l->terminal) return CLI_DONE;
    if (history && cli_editor_version() == NULL)
        return cli_error(call, NBL_ERROR_UNSUPPORTED, "leave --history out, or build nibble with libedit",
                         "--history: this nibble was built without libedit");
    l->editor = cli_editor_open(prompt);
    if (l->editor == NULL || history == NULL) return CLI_DONE;
    l->history = history;
    int status = read_history(l);
    if (status != CLI_DONE) cli_lines_close(l);
    return status;
}

/* Reads a line with getline: from a pipe, or from a terminal without line editing. */
static cli_line_result read_plain(cli_lines *l, const char **text, size_t *size)
{
    if (l->terminal) fputs(prompt, stderr);
    errno = 0;
    ssize_t length = getline(&l->text, &l->room, stdin);
    if (length < 0 && errno && !feof(stdin)) {
        cli_error(l->call, NBL_ERROR_IO, NULL, "standard input: %s", strerror(errno));
        return CLI_LINE_FAILED;
    }
    if (length < 0) return CLI_LINE_END;
    *text = l->text;
    *size = (size_t)length;
    return CLI_LINE_READ;
}

cli_line_result cli_lines_next(cli_lines *l, const char **text, size_t *size)
{
    cli_line_result result = l->editor ? cli_editor_read(l->editor, text, size) : read_plain(l, text, size);
    if (result == CLI_LINE_END && l->terminal) fputc('\n', stderr);
    if (result != CLI_LINE_READ) return result;
    /* a line from a file of Windows ends with \r\n */
    while (*size > 0 && ((*text)[*size - 1] == '\n' || (*text)[*size - 1] == '\r')) --*size;
    if (l->editor == NULL) {
        l->text[*size] = '\0';
        return result;
    }
    char *line = cli_format("%.*s", (int)*size, *text);
    *text = line;
    remember(l, line, *size);
    return result;
}

void cli_lines_close(cli_lines *l)
{
    cli_editor_close(l->editor);
    free(l->text);
    *l = (cli_lines){0};
}
