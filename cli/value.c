/* value.c - checks and converts values of options, and finds the name most similar to a mistyped
 * word.
 *
 * cli_value_read is the only function that knows the kinds of values. Its result for an invalid
 * text is what a valid one looks like, so parse.c needs no texts of its own. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "output.h"

/* ---- choices ---- */

int cli_choice_count(const char *choices)
{
    int count = 1;
    for (; *choices; choices++) count += *choices == '|';
    return count;
}

const char *cli_choice(const char *choices, int index)
{
    for (; index > 0; index--) choices = strchr(choices, '|') + 1;
    return cli_format("%.*s", (int)strcspn(choices, "|"), choices);
}

const char *cli_choice_list(const char *choices)
{
    const char *list = "";
    int count = cli_choice_count(choices);
    for (int i = 0; i < count; i++) {
        const char *between = i == 0 ? "" : i == count - 1 ? " or " : ", ";
        list = cli_format("%s%s%s", list, between, cli_choice(choices, i));
    }
    return list;
}

/* True if `text` is one of the choices, exactly. */
static bool read_choice(const char *choices, const char *text)
{
    for (int i = 0; i < cli_choice_count(choices); i++)
        if (strcmp(cli_choice(choices, i), text) == 0) return true;
    return false;
}

/* ---- numbers: strict, in the C locale, without leading blanks, hexadecimals or "inf" ---- */

static bool read_integer(const char *text, const cli_option *rule, int64_t *integer)
{
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || text[digits] != '\0') return false;
    errno = 0;
    long long value = strtoll(text, NULL, 10);
    if (errno != 0 || (double)value < rule->minimum || (double)value > rule->maximum) return false;
    *integer = value;
    return true;
}

static bool read_number(const char *text, const cli_option *rule, double *number)
{
    if (*text == '\0' || strspn(text, "0123456789.eE+-") != strlen(text)) return false;
    char *end;
    double value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value) || !(value >= rule->minimum && value <= rule->maximum)) return false;
    *number = value + 0.0; /* turns -0 into 0 */
    return true;
}

/* Reads a size: 4096, 500K, 1.5G, 5GB (powers of 1000), 64KiB, 1.5GiB (powers of 1024). */
static bool read_size(const char *text, uint64_t *size)
{
    size_t length = strspn(text, "0123456789.");
    if (length == 0 || length > 32) return false;
    char digits[33];
    memcpy(digits, text, length);
    digits[length] = '\0';
    char *end;
    double value = strtod(digits, &end);
    if (*end != '\0') return false;

    const char *unit = text + length;
    if (*unit && *unit != 'B' && *unit != 'b') {
        static const char letters[] = "kKmMgGtT";
        const char *letter = strchr(letters, *unit);
        if (letter == NULL) return false;
        unit++;
        double base = *unit == 'i' ? 1024 : 1000;
        unit += *unit == 'i';
        value *= pow(base, (double)((letter - letters) / 2 + 1));
    }
    unit += *unit == 'B' || *unit == 'b';
    if (*unit != '\0' || value < 1 || value > 0x1p62) return false;
    *size = (uint64_t)value;
    return true;
}

/* wanted: what a valid value looks like, returned if `good` is false */
const char *cli_value_read(const cli_option *rule, const char *text, cli_value *value)
{
    bool good = true;
    const char *wanted = NULL;
    value->text = text;
    switch (rule->kind) {
    case CLI_FLAG: value->integer = 1; break;
    case CLI_TEXT: break;
    case CLI_PATH:
        good = *text != '\0';
        wanted = "the path of a file or folder";
        break;
    case CLI_CHOICE:
        good = read_choice(rule->choices, text);
        wanted = cli_choice_list(rule->choices);
        break;
    case CLI_COMMAND:
        good = cli_find_command(text) != NULL;
        wanted = "the name of a command";
        break;
    case CLI_INTEGER:
        good = read_integer(text, rule, &value->integer);
        wanted = cli_format("an integer from %.0f to %.0f", rule->minimum, rule->maximum);
        break;
    case CLI_NUMBER:
        good = read_number(text, rule, &value->number);
        wanted = isfinite(rule->maximum) ? cli_format("a number from %g to %g", rule->minimum, rule->maximum)
                                         : cli_format("a finite number of at least %g", rule->minimum);
        break;
    case CLI_SIZE:
        good = read_size(text, &value->size);
        wanted = "a size like 500M, 1.5G, 64MiB or a number of bytes";
        break;
    }
    return good ? NULL : wanted;
}

/* ---- the most similar name ---- */

static int smallest(int a, int b)
{
    return a < b ? a : b;
}

/* Returns the edit distance of two words (optimal string alignment): the number of letters that are
 * inserted, deleted, replaced or swapped with their neighbour. */
static int edit_distance(const char *a, const char *b)
{
    enum { LONGEST = 40 };
    int rows[3][LONGEST + 1]; /* rows of the distance table: this letter of a and the two before */
    int length_a = (int)strlen(a), length_b = (int)strlen(b);
    if (length_a > LONGEST || length_b > LONGEST) return LONGEST;
    for (int j = 0; j <= length_b; j++) rows[0][j] = j;
    for (int i = 1; i <= length_a; i++) {
        int *row = rows[i % 3], *above = rows[(i + 2) % 3], *two_above = rows[(i + 1) % 3];
        row[0] = i;
        for (int j = 1; j <= length_b; j++) {
            int replaced = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = smallest(replaced, smallest(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = smallest(row[j], two_above[j - 2] + 1);
        }
    }
    return rows[length_a % 3][length_b];
}

void cli_nearest_try(cli_nearest *nearest, const char *candidate)
{
    size_t length = strlen(nearest->word);
    /* A prefix of a name has distance 1. Otherwise up to a third of the letters may differ. */
    int distance = length >= 2 && strncmp(candidate, nearest->word, length) == 0
                       ? 1
                       : edit_distance(nearest->word, candidate);
    int limit = (int)strlen(candidate) / 3;
    if (distance > (limit < 1 ? 1 : limit)) return;
    if (nearest->best && distance >= nearest->distance) return;
    nearest->best = candidate;
    nearest->distance = distance;
}
