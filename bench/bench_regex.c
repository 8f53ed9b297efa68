/* bench_regex.c - how fast the patterns of pre-tokenizers are matched, beside Oniguruma, the engine of the tokenizers
 * library.
 *
 *     nibble-bench-regex FILE [ROUNDS]          FILE: a UTF-8 text, some megabytes
 *
 * One core. A round cuts the whole text with PCRE2 (as src/text/unicode/regex.c uses it) and with Oniguruma, in turns;
 * the median over the rounds is printed in MB/s, and the ratio. Both must find the same matches. */
#include <oniguruma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "text/unicode/regex.h"

#ifndef NBL_COMMIT
#define NBL_COMMIT "unknown"
#endif

enum { MAX_ROUNDS = 101 };

static const struct {
    const char *name, *pattern;
} patterns[] = {
    {"gpt2", "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},
    {"llama3", "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+"
               "[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"qwen2",
     "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
     "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    {"o200k",
     "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|"
     "'re|'ve|'m|'ll|'d)?|[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}"
     "\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+"
     "(?!\\S)|\\s+"},
};

typedef struct tally {
    long matches;
    size_t sum; /* of begins and ends */
} tally;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void fail(const char *what)
{
    fprintf(stderr, "nibble-bench-regex: %s\n", what);
    exit(1);
}

static tally run_pcre2(nbl__matcher *matcher, const nbl__regex *regex, const char *text, size_t size)
{
    nbl__search search;
    tally t = {0, 0};
    bool found = false;
    size_t begin, end;
    if (nbl__search_begin(&search, matcher, regex, text, size) != NBL_OK)
        fail(nbl_error_message(matcher->ctx));
    for (;;) {
        if (nbl__search_next(&search, &found, &begin, &end) != NBL_OK) fail(nbl_error_message(matcher->ctx));
        if (!found) return t;
        t.matches++;
        t.sum += begin + end;
    }
}

static tally run_oniguruma(regex_t *regex, OnigRegion *region, const char *text, size_t size)
{
    const OnigUChar *begin = (const OnigUChar *)text, *end = begin + size;
    tally t = {0, 0};
    for (const OnigUChar *at = begin; at < end;) {
        if (onig_search(regex, begin, end, at, end, region, ONIG_OPTION_NONE) < 0) return t;
        t.matches++;
        t.sum += (size_t)(region->beg[0] + region->end[0]);
        at = begin + region->end[0];
        if (region->end[0] == region->beg[0]) at++; /* none of these patterns matches nothing */
    }
    return t;
}

static double median(double *times, int count)
{
    qsort(times, (size_t)count, sizeof *times, by_size);
    return times[count / 2];
}

int main(int argc, char **argv)
{
    int rounds = argc > 2 ? atoi(argv[2]) : 7;
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL || rounds < 1 || rounds > MAX_ROUNDS)
        fail("usage: nibble-bench-regex FILE [ROUNDS, 1 to 101]");
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    char *text = malloc(size + 1);
    if (text == NULL || fread(text, 1, size, file) != size) fail("cannot read the file");
    fclose(file);
    nbl_context *ctx;
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    if (nbl_context_create(NULL, &ctx) != NBL_OK || onig_initialize(encodings, 1) != 0) fail("no context");
    printf("commit     %s\ntext       %.1f MB, %d rounds in turns, one core, medians\n", NBL_COMMIT,
           1e-6 * (double)size, rounds);
    printf("%-8s %12s %14s %8s %12s\n", "pattern", "PCRE2 MB/s", "Oniguruma MB/s", "ratio", "matches");
    for (size_t p = 0; p < sizeof patterns / sizeof *patterns; p++) {
        const char *pattern = patterns[p].pattern;
        nbl__regex *ours;
        regex_t *theirs;
        OnigErrorInfo why;
        OnigRegion *region = onig_region_new();
        nbl__matcher matcher = {.ctx = ctx};
        double times[2][MAX_ROUNDS];
        if (nbl__regex_compile(ctx, patterns[p].name, pattern, strlen(pattern), &ours) != NBL_OK)
            fail(nbl_error_message(ctx));
        if (onig_new(&theirs, (const OnigUChar *)pattern, (const OnigUChar *)pattern + strlen(pattern),
                     ONIG_OPTION_NONE, ONIG_ENCODING_UTF8, ONIG_SYNTAX_ONIGURUMA, &why) != 0)
            fail("Oniguruma refuses the pattern");
        tally a = {0, 0}, b = {0, 0};
        for (int i = 0; i < rounds; i++) {
            double begin = now();
            a = run_pcre2(&matcher, ours, text, size);
            times[0][i] = now() - begin;
            begin = now();
            b = run_oniguruma(theirs, region, text, size);
            times[1][i] = now() - begin;
        }
        double x = 1e-6 * (double)size / median(times[0], rounds),
               y = 1e-6 * (double)size / median(times[1], rounds);
        printf("%-8s %12.1f %14.1f %8.2f %12ld%s\n", patterns[p].name, x, y, x / y, a.matches,
               a.matches != b.matches || a.sum != b.sum ? "   OTHER MATCHES" : "");
        nbl__matcher_free(&matcher);
        nbl__regex_free(ctx, ours);
        onig_region_free(region, 1);
        onig_free(theirs);
    }
    onig_end();
    nbl_context_destroy(ctx);
    free(text);
    return 0;
}
