/* regex.h - the regular expressions of tokenizers.
 *
 * The patterns are written for the library Oniguruma, in its Ruby syntax. nibble runs them with
 * PCRE2. regex_translate.c rewrites the syntax that the two libraries read differently. Syntax that
 * cannot be rewritten is an error.
 *
 * Threads: a compiled pattern is constant and can be shared. Each thread matches with its own
 * nbl__matcher. */
#ifndef NBL_REGEX_H
#define NBL_REGEX_H

#include "base/arena.h"
#include "text/scratch.h"

typedef struct nbl__regex nbl__regex;

/* Compiles a pattern of `size` bytes. The caller frees *regex. Messages begin with `where`. Errors:
 * NBL_ERROR_FORMAT for an invalid pattern, NBL_ERROR_UNSUPPORTED for one that has no equivalent. */
nbl_status nbl__regex_compile(nbl_context *ctx, const char *where, const char *pattern, size_t size,
                              nbl__regex **regex);
/* Makes a pattern that matches exactly `text`. */
nbl_status nbl__regex_literal(nbl_context *ctx, const char *where, const char *text, size_t size,
                              nbl__regex **regex);
void nbl__regex_free(nbl_context *ctx, nbl__regex *regex); /* NULL is allowed */

/* Memory that one thread needs for matching. Zero it and set ctx before the first use. The rest is
 * allocated on the first match. */
typedef struct nbl__matcher {
    nbl_context *ctx;
    void *data, *match, *stack, *general; /* PCRE2's objects */
    nbl__bytes standin; /* copy of the subject in which characters too new for PCRE2 are replaced */
} nbl__matcher;
void nbl__matcher_free(nbl__matcher *matcher);

/* A search for all matches in a text, from left to right. The text must not change during the
 * search. A matcher serves one search at a time. */
typedef struct nbl__search {
    nbl__matcher *matcher;
    const nbl__regex *regex;
    const char *subject;         /* the text, or its copy in matcher->standin */
    size_t size, next, last_end; /* next: offset where the search goes on; last_end: of the last match */
    bool matched_before;         /* there was a match */
} nbl__search;
nbl_status nbl__search_begin(nbl__search *search, nbl__matcher *matcher, const nbl__regex *regex,
                             const char *text, size_t size);
/* Finds the next match. If *found, the match is the bytes [*begin, *end). An empty match right
 * after the last match is skipped, as Oniguruma's iterator does. */
nbl_status nbl__search_next(nbl__search *search, bool *found, size_t *begin, size_t *end);

/* Sets *yes if `name` is the name of a Unicode script, such as "Han". */
nbl_status nbl__regex_is_script(nbl_context *ctx, const char *where, const char *name, bool *yes);

/* ---- regex_translate.c ---- */

/* Appends the pattern in PCRE2's syntax to `out`. Sets *backreference if the pattern has a
 * backreference. On an error the message says what is invalid or unsupported. */
nbl_status nbl__regex_translate(nbl_context *ctx, const char *where, const char *pattern, size_t size,
                                nbl__bytes *out, bool *backreference);

#endif
