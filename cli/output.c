/* output.c - collects standard output and writes it at the end; colours, wrapping, errors. */
#include "output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* ---- standard output ---- */

/* The collected output: a stream in memory and what it has written. NULL: nothing was printed. */
static FILE *collected;
static char *collected_text;
static size_t collected_size;

FILE *cli_out(void)
{
    if (collected == NULL) collected = open_memstream(&collected_text, &collected_size);
    if (collected == NULL) cli_no_memory();
    return collected;
}

/* Forgets the collected output, after it was written or when an error replaces it. */
static void drop_collected(void)
{
    if (collected) fclose(collected);
    free(collected_text);
    collected = NULL;
    collected_text = NULL;
    collected_size = 0;
}

int cli_finish(const cli_call *call, int status)
{
    if (collected == NULL) return status;
    int error = fflush(collected) == 0 && !ferror(collected) ? 0 : ENOMEM;
    const char *from = collected_text;
    size_t left = error ? 0 : collected_size;
    while (left && error == 0) {
        ssize_t n = write(STDOUT_FILENO, from, left);
        if (n > 0) {
            from += n;
            left -= (size_t)n;
        } else if (n < 0 && errno != EINTR) {
            error = errno;
        }
    }
    drop_collected();
    if (error == 0) return status;
    /* A reader that closes the pipe early (`| head`) is not an error. */
    if (error != EPIPE) {
        cli_error(call, error == ENOSPC ? NBL_ERROR_NO_SPACE : NBL_ERROR_IO, NULL,
                  "cannot write standard output: %s", strerror(error));
        drop_collected();
    }
    return status == CLI_DONE ? CLI_FAILED : status;
}

void cli_text_result(const cli_call *call, const char *key, void (*put)(FILE *to))
{
    if (!call->json) {
        put(cli_out());
        return;
    }
    char *text = NULL;
    size_t size;
    FILE *to = open_memstream(&text, &size);
    if (to == NULL) cli_no_memory();
    put(to);
    if (fclose(to) != 0) cli_no_memory();
    cli_json *document = cli_json_object();
    cli_json_set(document, key, cli_json_text(text));
    cli_json_print(document);
    free(text);
}

const char *cli_styled(cli_style style)
{
    static const char *const sequences[] = {"\033[0m", "\033[1m", "\033[2m", "\033[31m", "\033[32m"};
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if ((no_color && *no_color) || term == NULL || strcmp(term, "dumb") == 0 || !isatty(STDOUT_FILENO))
        return "";
    return sequences[style];
}

/* Width for wrapped text. Longer lines than 100 columns are hard to read. */
static int text_width(void)
{
    struct winsize size;
    if (!isatty(STDOUT_FILENO) || ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return size.ws_col < 40 ? 40 : size.ws_col > 100 ? 100 : size.ws_col;
}

/* Returns the length of "[...]", or `word` if the bracket is not closed on the same line. */
static size_t bracket_length(const char *text, size_t word)
{
    size_t length = strcspn(text, "]\n");
    return text[length] == ']' && length < 40 ? length + 1 + strcspn(text + length + 1, " \n") : word;
}

void cli_wrap(FILE *to, const char *text, int indent, int at)
{
    int width = text_width(), column = at;
    bool fresh = false; /* at the begin of a line that is not indented yet */
    while (*text) {
        if (*text == '\n') { /* line breaks are kept; an empty line separates paragraphs */
            fputc('\n', to);
            column = 0;
            fresh = true;
            text++;
            continue;
        }
        size_t blanks = strspn(text, " ");
        size_t length = strcspn(text + blanks, " \n");
        if (text[blanks] == '[')
            length = bracket_length(text + blanks, length); /* "[--block N]" is not broken */
        int columns = 0;
        for (size_t i = 0; i < length; i++) columns += ((unsigned char)text[blanks + i] & 0xc0) != 0x80;
        if (!fresh && column > indent && column + (int)blanks + columns > width) {
            fputc('\n', to);
            column = 0;
            fresh = true;
            text += blanks;
            blanks = 0;
        }
        if (fresh) {
            fprintf(to, "%*s", indent, "");
            column = indent;
            fresh = false;
        }
        fprintf(to, "%*s%.*s", (int)blanks, "", (int)length, text + blanks);
        column += (int)blanks + columns;
        text += blanks + length;
    }
    fputc('\n', to);
}

/* ---- errors ---- */

static int exit_status(nbl_status code)
{
    switch (code) {
    case NBL_OK: return CLI_DONE;
    case NBL_ERROR_ARGUMENT: return CLI_USAGE;
    case NBL_ERROR_CANCELLED: return CLI_INTERRUPTED;
    default: return CLI_FAILED;
    }
}

/* Cleans a message line by line, because a message of the library can be a list. */
static const char *clean_lines(const char *text)
{
    const char *end = strchr(text, '\n');
    if (end == NULL) return cli_clean(text);
    const char *line = cli_clean(cli_format("%.*s", (int)(end - text), text));
    return cli_format("%s\n  %s", line, clean_lines(end + 1));
}

/* Prints an error. `message` must be clean. */
static int print_error(const cli_call *call, nbl_status code, const char *hint, const char *message)
{
    hint = hint ? cli_clean(hint) : "";
    if (call->command) fprintf(stderr, "nibble: %s: %s\n", call->command->name, message);
    else fprintf(stderr, "nibble: %s\n", message);
    if (*hint) fprintf(stderr, "hint: %s\n", hint);

    drop_collected();
    if (call->json) {
        cli_json *error = cli_json_object(), *document = cli_json_object();
        cli_json_set(error, "code", cli_json_text(nbl_status_name(code)));
        cli_json_set(error, "message", cli_json_text(message));
        if (*hint) cli_json_set(error, "hint", cli_json_text(hint));
        cli_json_set(document, "error", error);
        cli_json_print(document);
    }
    return exit_status(code);
}

/* Formats a message, cleans it as one line, and prints it as an error. */
CLI_PRINTF(4, 0)
static int report(const cli_call *call, nbl_status code, const char *hint, const char *format,
                  va_list arguments)
{
    char *text = NULL;
    size_t size;
    FILE *line = open_memstream(&text, &size);
    if (line) {
        vfprintf(line, format, arguments);
        if (fclose(line) != 0) text = NULL;
    }
    int status = print_error(call, code, hint, text ? cli_clean(text) : "out of memory");
    free(text);
    return status;
}

int cli_library_error(const cli_call *call, const nbl_context *ctx, nbl_status code, const char *hint)
{
    const char *message = nbl_error_message(ctx);
    return print_error(call, code, hint, clean_lines(*message ? message : nbl_status_text(code)));
}

int cli_error(const cli_call *call, nbl_status code, const char *hint, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    int status = report(call, code, hint, format, arguments);
    va_end(arguments);
    return status;
}

int cli_usage(const cli_call *call, const char *hint, const char *format, ...)
{
    if (hint == NULL)
        hint = call->command ? cli_format("try 'nibble %s --help'", call->command->name)
                             : "try 'nibble --help'";
    va_list arguments;
    va_start(arguments, format);
    int status = report(call, NBL_ERROR_ARGUMENT, hint, format, arguments);
    va_end(arguments);
    return status;
}
