/* text.c - strings that are valid until the tool ends, clean texts, and readable numbers.
 *
 * Strings are never freed one by one: a call of the tool makes few, and code that prints need not
 * care who owns a text. Lines that are redrawn often use cli_put_bytes and cli_put_duration, which
 * allocate nothing. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utf8proc.h>

#include "output.h"

/* ---- memory ---- */

/* A block of cli_alloc, in a list for cli_free_all. */
typedef struct kept {
    struct kept *next;
    max_align_t data[];
} kept;

static kept *all_kept;

/* Writes with write(2): stdio may allocate. _exit: no handler of atexit runs without memory. */
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

/* Returns the length of the UTF-8 sequence at s, or 0 if it is invalid. Overlong forms and
 * surrogates are invalid. */
static int sequence_length(const unsigned char *s)
{
    int n = 0;
    if (s[0] < 0x80) n = 1;
    else if (s[0] >= 0xc2 && s[0] < 0xe0) n = 2;
    else if (s[0] >= 0xe0 && s[0] < 0xf0) n = 3;
    else if (s[0] >= 0xf0 && s[0] < 0xf5) n = 4;
    for (int i = 1; i < n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0; /* stops at the terminating zero too */
    if (n == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0))) return 0;
    if (n == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))) return 0;
    return n;
}

/* Returns the code point of a valid sequence of n bytes. */
static unsigned code_of(const unsigned char *s, int n)
{
    unsigned code = n == 1 ? s[0] : n == 2 ? s[0] & 31u : n == 3 ? s[0] & 15u : s[0] & 7u;
    for (int i = 1; i < n; i++) code = code << 6 | (s[i] & 63u);
    return code;
}

/* True for DEL, C1 controls, bidirectional controls, and Unicode line separators. */
static bool is_hidden(unsigned c)
{
    return (c >= 0x7f && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f ||
           (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

/* Decides how the character at s is written. Returns true if it is replaced by `shown`. *n is its
 * length in bytes, at least 1. `lines`: line feeds and tabs are kept. The text must end with a zero
 * byte. */
static bool written_out(const unsigned char *s, bool lines, int *n, char shown[8])
{
    int length = sequence_length(s);
    unsigned code = length ? code_of(s, length) : s[0];
    *n = length ? length : 1;
    if (lines && (code == '\n' || code == '\t')) return false;
    if (code == '\n' || code == '\r' || code == '\t')
        snprintf(shown, 8, "\\%c", code == '\n' ? 'n' : code == '\r' ? 'r' : 't');
    else if (length == 0 || code < 0x20 || code == 0x7f) snprintf(shown, 8, "\\x%02x", code & 0xff);
    else if (is_hidden(code)) snprintf(shown, 8, "\\u%04x", code & 0xffff);
    else return false;
    return true;
}

const char *cli_clean(const char *text)
{
    char shown[8];
    int n;
    size_t more = 0;
    for (const char *at = text; *at; at += n)
        if (written_out((const unsigned char *)at, false, &n, shown)) more += strlen(shown);
    if (more == 0) return text;

    char *copy = cli_alloc(strlen(text) + more + 1), *to = copy;
    for (const char *at = text; *at; at += n) {
        bool out = written_out((const unsigned char *)at, false, &n, shown);
        size_t size = out ? strlen(shown) : (size_t)n;
        memcpy(to, out ? shown : at, size);
        to += size;
    }
    return copy;
}

void cli_put_shown(FILE *to, nbl_string text, bool lines)
{
    char *copy = malloc(text.size + 1),
         shown[8]; /* terminated, so that a sequence cut off at the end is seen */
    int n;
    if (copy == NULL) cli_no_memory();
    if (text.size) memcpy(copy, text.text, text.size);
    copy[text.size] = '\0';
    const char *from = copy, *end = copy + text.size;
    for (const char *at = copy; at < end; at += n) {
        if (!written_out((const unsigned char *)at, lines, &n, shown)) continue;
        fwrite(from, 1, (size_t)(at - from), to);
        fputs(shown, to);
        from = at + n;
    }
    fwrite(from, 1, (size_t)(end - from), to);
    free(copy);
}

/* Only characters inside strings can be hidden ones, so a \u escape keeps the document valid. */
void cli_put_json(FILE *to, const char *json)
{
    const char *from = json;
    int n = 0;
    for (const char *at = json; *at; at += n) {
        const unsigned char *s = (const unsigned char *)at;
        n = sequence_length(s);
        n = n ? n : 1;
        if (!is_hidden(code_of(s, n))) continue;
        fwrite(from, 1, (size_t)(at - from), to);
        fprintf(to, "\\u%04x", code_of(s, n));
        from = at + n;
    }
    fputs(from, to);
}

void cli_put_text(FILE *to, nbl_string text)
{
    if (isatty(STDOUT_FILENO)) cli_put_shown(to, text, true);
    else fwrite(text.text, 1, text.size, to);
}

size_t cli_character(const char *text, int *columns)
{
    utf8proc_int32_t code;
    utf8proc_ssize_t length = utf8proc_iterate((const utf8proc_uint8_t *)text, -1, &code);
    *columns = length > 0 ? utf8proc_charwidth(code) : 1;
    return length > 0 ? (size_t)length : 1;
}

int cli_columns(const char *text)
{
    int all = 0, columns;
    while (*text) {
        text += cli_character(text, &columns);
        all += columns;
    }
    return all;
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

/* Writes three significant digits and a unit. Each unit is 1000 of the one before. */
static void put_scaled(char *text, size_t size, double value, const char *const *units, int count)
{
    int unit = 0;
    while (unit + 1 < count && value >= 999.5) {
        value /= 1000;
        unit++;
    }
    int decimals = unit == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(text, size, "%.*f%s%s", decimals, value, *units[unit] ? " " : "", units[unit]);
}

void cli_put_bytes(char *text, size_t size, double bytes)
{
    static const char *const units[] = {"B", "KB", "MB", "GB", "TB", "PB", "EB"};
    put_scaled(text, size, bytes, units, 7);
}

const char *cli_bytes(double bytes)
{
    char text[CLI_NUMBER_ROOM];
    cli_put_bytes(text, sizeof text, bytes);
    return cli_format("%s", text);
}

const char *cli_short(double number)
{
    static const char *const units[] = {"", "K", "M", "B", "T"};
    char text[CLI_NUMBER_ROOM];
    put_scaled(text, sizeof text, number, units, 5);
    return cli_format("%s", text);
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

void cli_put_duration(char *text, size_t size, double seconds)
{
    long whole = seconds >= 0 && seconds <= 360000000 ? lround(seconds) : -1;
    if (whole < 0) snprintf(text, size, "?");
    else if (seconds < 59.95) snprintf(text, size, "%.*f s", seconds < 9.95 ? 1 : 0, seconds);
    else if (whole < 3600) snprintf(text, size, "%ld:%02ld", whole / 60, whole % 60);
    else snprintf(text, size, "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
}

const char *cli_duration(double seconds)
{
    char text[CLI_NUMBER_ROOM];
    cli_put_duration(text, sizeof text, seconds);
    return cli_format("%s", text);
}
