/* regex.h - the regular expressions of tokenizers: written for Oniguruma (its Ruby syntax), run by PCRE2.
 *
 * regex_translate.c rewrites what the two read differently and refuses what it cannot rewrite. A compiled
 * pattern is constant and shared; every thread matches with its own nbl__matcher. */
#ifndef NBL_REGEX_H
#define NBL_REGEX_H

#include "base/arena.h"
#include "text/scratch.h"

typedef struct nbl__regex nbl__regex;

/* `where` opens the error message. */
nbl_status nbl__regex_compile(nbl_context *ctx, const char *where, const char *pattern, size_t size,
                              nbl__regex **regex);
/* A pattern that stands for itself. */
nbl_status nbl__regex_literal(nbl_context *ctx, const char *where, const char *text, size_t size,
                              nbl__regex **regex);
void nbl__regex_free(nbl_context *ctx, nbl__regex *regex); /* NULL is allowed */

/* What one thread needs to match. Zero it, set ctx; free it. */
typedef struct nbl__matcher {
    nbl_context *ctx;
    void *data, *match, *stack, *general; /* of PCRE2 */
    nbl__bytes standin;                   /* the subject with characters that PCRE2 is too old for replaced */
} nbl__matcher;
void nbl__matcher_free(nbl__matcher *matcher);

/* One run over all matches in a text, which must stay as it is meanwhile. */
typedef struct nbl__search {
    nbl__matcher *matcher;
    const nbl__regex *regex;
    const char *subject;
    size_t size, next, last_end;
    bool matched_before;
} nbl__search;
nbl_status nbl__search_begin(nbl__search *search, nbl__matcher *matcher, const nbl__regex *regex,
                             const char *text, size_t size);
/* Sets *found; when true, [*begin, *end) is the next match. An empty match right after the last match is
 * passed over, as Oniguruma's iterator does. */
nbl_status nbl__search_next(nbl__search *search, bool *found, size_t *begin, size_t *end);

/* Is this the name of a script ("Han")? */
nbl_status nbl__regex_is_script(nbl_context *ctx, const char *where, const char *name, bool *yes);

/* ---- regex_translate.c ---- */

/* Appends the pattern in PCRE2's language to `out` and tells whether it refers back to what it matched; fails
 * with what is wrong or not supported. */
nbl_status nbl__regex_translate(nbl_context *ctx, const char *where, const char *pattern, size_t size,
                                nbl__bytes *out, bool *backreference);

#endif
