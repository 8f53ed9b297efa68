/* text.c - strings that live until the tool ends, and readable numbers. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "output.h"

/* ---- memory ---- */

typedef struct kept {
    struct kept *next;
    max_align_t data[];
} kept;

static kept *all_kept;

_Noreturn void cli_no_memory(void)
{
    static const char line[] = "nibble: out of memory\n";
    ssize_t written = write(STDERR_FILENO, line, sizeof line - 1);
    (void)written;
    _exit(CLI_FAILED);
}

void *cli_alloc(size_t size)
{
    kept *piece = calloc(1, sizeof *piece + size);
    if (piece == NULL) cli_no_memory();
    piece->next = all_kept;
    all_kept = piece;
    return piece->data;
}

void cli_free_all(void)
{
    while (all_kept) {
        kept *next = all_kept->next;
        free(all_kept);
        all_kept = next;
    }
}

char *cli_format(const char *format, ...)
{
    va_list arguments, again;
    va_start(arguments, format);
    va_copy(again, arguments);
    int length = vsnprintf(NULL, 0, format, arguments);
    va_end(arguments);
    if (length < 0) length = 0;
    char *text = cli_alloc((size_t)length + 1);
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    return text;
}

/* ---- clean text ---- */

/* Length of the UTF-8 sequence at s (0: not valid). Overlong forms and surrogates are not valid. */
static int sequence_length(const unsigned char *s)
{
    int n = 0;
    if (s[0] < 0x80) n = 1;
    else if (s[0] >= 0xc2 && s[0] < 0xe0) n = 2;
    else if (s[0] >= 0xe0 && s[0] < 0xf0) n = 3;
    else if (s[0] >= 0xf0 && s[0] < 0xf5) n = 4;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0; /* also at the terminator */
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))) return 0;
    return n;
}

/* Bytes of the printable character at s; 0 for a broken one or a control character. U+2028 and
 * U+2029 count as controls: they end a line for many readers. */
static int printable_length(const unsigned char *s)
{
    int n = sequence_length(s);
    if (n == 1 && (s[0] < 0x20 || s[0] == 0x7f)) return 0;
    if (n == 2 && s[0] == 0xc2 && s[1] < 0xa0) return 0;
    if (n == 3 && s[0] == 0xe2 && s[1] == 0x80 && (s[2] == 0xa8 || s[2] == 0xa9)) return 0;
    return n;
}

const char *cli_clean(const char *text)
{
    const unsigned char *from = (const unsigned char *)text;
    while (*from && printable_length(from)) from += printable_length(from);
    if (*from == '\0') return text;

    char *copy = cli_alloc(strlen(text) + 1), *to = copy;
    for (from = (const unsigned char *)text; *from;) {
        int n = printable_length(from), whole = sequence_length(from);
        if (n == 0) *to++ = '?';
        for (int i = 0; i < n; i++) *to++ = (char)from[i];
        from += whole ? whole : 1;
    }
    return copy;
}

int cli_columns(const char *text)
{
    int columns = 0;
    for (; *text; text++) columns += ((unsigned char)*text & 0xc0) != 0x80;
    return columns;
}

const char *cli_shell_word(const char *text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789@%+=:,./_-";
    size_t length = strlen(text);
    if (length && strspn(text, plain) == length) return text;
    char *word = cli_alloc(4 * length + 3), *to = word;
    *to++ = '\'';
    for (; *text; text++) {
        if (*text == '\'') {
            memcpy(to, "'\\''", 4);
            to += 4;
        } else {
            *to++ = *text;
        }
    }
    *to = '\'';
    return cli_clean(word);
}

/* ---- readable numbers ---- */

/* Three significant digits and one of the units, each `1000` of the one before. */
static const char *scaled(double value, const char *const *units, int count)
{
    int unit = 0;
    while (unit + 1 < count && value >= 999.5) {
        value /= 1000;
        unit++;
    }
    int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    return cli_format("%.*f%s%s", decimals, value, *units[unit] ? " " : "", units[unit]);
}

const char *cli_bytes(double bytes)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
    return scaled(bytes, units, 7);
}

const char *cli_short(double number)
{
    static const char *const units[] = {"", "K", "M", "B", "T"};
    return scaled(number, units, 5);
}

const char *cli_grouped(uint64_t number)
{
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)number);
    char *text = cli_alloc(48), *to = text;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) *to++ = ',';
        *to++ = digits[i];
    }
    return text;
}

const char *cli_duration(double seconds)
{
    if (!(seconds >= 0) || seconds > 360000000) return "?";
    if (seconds < 59.95) return cli_format("%.*f s", seconds < 9.95 ? 1 : 0, seconds);
    long whole = lround(seconds);
    if (whole < 3600) return cli_format("%ld:%02ld", whole / 60, whole % 60);
    return cli_format("%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}
