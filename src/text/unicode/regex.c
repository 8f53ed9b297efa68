/* regex.c - compiles patterns and matches them with PCRE2; see regex.h.
 *
 *     pattern (Ruby syntax) ──regex_translate.c──▶ pattern (PCRE2) ──compile──▶ nbl__regex
 *     text ──stand-ins for new characters──▶ subject ──search──▶ matches, as byte offsets
 *
 * Neither patterns nor texts are trusted: a match that needs more than MATCH_LIMIT steps is an
 * error. PCRE2's JIT code runs on its own stack of up to MAX_JIT_STACK bytes. If that is too small,
 * the same match runs in PCRE2's interpreter.
 *
 * New characters: the installed PCRE2 may be older than Unicode 16. Characters that it may not know
 * are replaced in a copy of the text by older ones with the same length and properties (unicode.h).
 * Offsets stay valid, because the length in bytes is the same. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/unicode/regex.h"

#include <pcre2.h>
#include <stdio.h>

#include "base/alloc.h"
#include "text/chars.h"
#include "text/unicode/unicode.h"

/* MATCH_LIMIT bounds the work of one match. */
/* MATCH_LIMIT: steps; JIT_STACK_FIRST: initial size in bytes. */
enum { MATCH_LIMIT = 20000000, HEAP_LIMIT_KIB = 64 << 10, LARGEST_PATTERN = 64 << 10 };
enum { JIT_STACK_FIRST = 64 << 10, MAX_JIT_STACK = 4 << 20 };

struct nbl__regex {
    pcre2_code *code;
    pcre2_general_context *general;
    bool exact;     /* the pattern compares characters: stand-ins would give false matches */
    char where[96]; /* begin of messages, shortened */
};

/* PCRE2 does not say why it has no memory; the failed allocation was made by nbl__alloc_sized(). */
static nbl_status out_of_memory(nbl_context *ctx, const char *where)
{
    return nbl__fail(ctx, NBL_ERROR_MEMORY, "%s: out of memory for a regular expression", where);
}

/* Compiles a translated pattern. The options give Oniguruma's view of text: UTF-8, Unicode
 * properties for \d and the like, ^ and $ at every line, and "\n" as the only line end. \C, which
 * matches a lone byte, is forbidden: it could split a character. */
static nbl_status compile(nbl_context *ctx, nbl__regex *regex, const char *pattern, size_t size)
{
    regex->general = pcre2_general_context_create(nbl__alloc_sized, nbl__free_sized, ctx);
    pcre2_compile_context *how = regex->general ? pcre2_compile_context_create(regex->general) : NULL;
    if (how == NULL) return out_of_memory(ctx, regex->where);
    pcre2_set_parens_nest_limit(how, 100);
    pcre2_set_newline(how, PCRE2_NEWLINE_LF);
    int code;
    PCRE2_SIZE at;
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    regex->code = pcre2_compile((PCRE2_SPTR)pattern, size, options, &code, &at, how);
    pcre2_compile_context_free(how);
    if (regex->code == NULL) {
        PCRE2_UCHAR why[160];
        if (code == PCRE2_ERROR_HEAP_FAILED) return out_of_memory(ctx, regex->where);
        pcre2_get_error_message(code, why, sizeof why);
        return nbl__fail(ctx, NBL_ERROR_FORMAT, "%s: not a valid regex: %s", regex->where, (const char *)why);
    }
    /* An error is ignored: on systems that forbid JIT the interpreter does the same, slower. */
    (void)pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE);
    return NBL_OK;
}

/* Asks PCRE2 itself, by compiling \p{sc:NAME}. A pattern has few properties, so the cost does not
 * count. */
nbl_status nbl__regex_is_script(nbl_context *ctx, const char *where, const char *name, bool *yes)
{
    char pattern[80];
    int code = 0;
    PCRE2_SIZE at;
    snprintf(pattern, sizeof pattern, "\\p{sc:%s}", name);
    pcre2_general_context *general = pcre2_general_context_create(nbl__alloc_sized, nbl__free_sized, ctx);
    pcre2_compile_context *how = general ? pcre2_compile_context_create(general) : NULL;
    pcre2_code *script = how ? pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &code,
                                             &at, how)
                             : NULL;
    bool lacks_memory = how == NULL || (script == NULL && code == PCRE2_ERROR_HEAP_FAILED);
    *yes = script != NULL;
    pcre2_code_free(script);
    pcre2_compile_context_free(how);
    pcre2_general_context_free(general);
    return lacks_memory ? out_of_memory(ctx, where) : NBL_OK;
}

/* Makes a regex of a pattern in PCRE2's syntax. */
static nbl_status make(nbl_context *ctx, const char *where, const char *pattern, size_t size,
                       nbl__regex **regex)
{
    nbl__regex *made;
    NBL_TRY(NBL_ALLOC(ctx, made, 1));
    size_t length = strlen(where);
    if (length >= sizeof made->where) length = sizeof made->where - 1;
    memcpy(made->where, where, length);
    nbl_status status = compile(ctx, made, pattern, size);
    if (status != NBL_OK) nbl__regex_free(ctx, made);
    else *regex = made;
    return status;
}

nbl_status nbl__regex_compile(nbl_context *ctx, const char *where, const char *pattern, size_t size,
                              nbl__regex **regex)
{
    nbl__bytes translated = {0};
    NBL_CHECK(ctx, size <= LARGEST_PATTERN, NBL_ERROR_UNSUPPORTED,
              "%s: a regex of %zu bytes; at most %d are supported", where, size, LARGEST_PATTERN);
    bool backreference = false;
    nbl_status status = nbl__regex_translate(ctx, where, pattern, size, &translated, &backreference);
    if (status == NBL_OK) status = make(ctx, where, translated.data, translated.size, regex);
    if (status == NBL_OK) (*regex)->exact = backreference;
    nbl__bytes_free(ctx, &translated);
    return status;
}

/* All ASCII characters but letters, digits, blanks and control characters are quoted by a
 * backslash. Quoting is always allowed for these. A literal compares characters, so it must see the
 * text itself. */
nbl_status nbl__regex_literal(nbl_context *ctx, const char *where, const char *text, size_t size,
                              nbl__regex **regex)
{
    nbl__bytes quoted = {0};
    nbl_status status = nbl__bytes_reserve(ctx, &quoted, 2 * size + 1);
    for (size_t i = 0; status == NBL_OK && i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        bool plain = c >= 0x80 || (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
        if (!plain && c > ' ') quoted.data[quoted.size++] = '\\';
        quoted.data[quoted.size++] = (char)c;
    }
    if (status == NBL_OK) status = make(ctx, where, quoted.data, quoted.size, regex);
    if (status == NBL_OK) (*regex)->exact = true;
    nbl__bytes_free(ctx, &quoted);
    return status;
}

void nbl__regex_free(nbl_context *ctx, nbl__regex *regex)
{
    if (regex == NULL) return;
    pcre2_code_free(regex->code);
    pcre2_general_context_free(regex->general);
    nbl__free(ctx, regex, sizeof *regex);
}

/* ---- matching ---- */

/* The matcher can be used again afterwards: it begins as after zeroing. */
void nbl__matcher_free(nbl__matcher *m)
{
    if (m->data) pcre2_match_data_free(m->data);
    if (m->match) pcre2_match_context_free(m->match);
    if (m->stack) pcre2_jit_stack_free(m->stack);
    if (m->general) pcre2_general_context_free(m->general);
    nbl__bytes_free(m->ctx, &m->standin);
    *m = (nbl__matcher){.ctx = m->ctx};
}

/* Allocates PCRE2's objects at the first match. After a failure the next call goes on where it
 * stopped. */
static nbl_status prepare(nbl__matcher *m)
{
    if (m->match) return NBL_OK;
    if (m->general == NULL)
        m->general = pcre2_general_context_create(nbl__alloc_sized, nbl__free_sized, m->ctx);
    if (m->general && m->data == NULL) m->data = pcre2_match_data_create(1, m->general);
    if (m->data && m->stack == NULL)
        m->stack = pcre2_jit_stack_create(JIT_STACK_FIRST, MAX_JIT_STACK, m->general);
    pcre2_match_context *match = m->data ? pcre2_match_context_create(m->general) : NULL;
    if (match == NULL) return out_of_memory(m->ctx, "tokenizer");
    pcre2_set_match_limit(match, MATCH_LIMIT);
    pcre2_set_heap_limit(match, HEAP_LIMIT_KIB);
    if (m->stack) pcre2_jit_stack_assign(match, NULL, m->stack);
    m->match = match;
    return NBL_OK;
}

/* Returns the offset of the first character that has a stand-in, or `size`. All characters with a
 * stand-in have three or four bytes. */
static size_t first_standin(const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        unsigned char lead = (unsigned char)text[at];
        if (lead < 0xe0) {
            at += lead < 0x80 ? 1 : 2;
            continue;
        }
        uint32_t c;
        int n = nbl__char_get(text + at, &c);
        if (nbl__char_standin_of(c) != c) return at;
        at += (size_t)n;
    }
    return size;
}

/* Begins a search. The copy with stand-ins is made only if the text has a new character, which is
 * rare: the scan skips one- and two-byte characters without a look-up. */
nbl_status nbl__search_begin(nbl__search *search, nbl__matcher *m, const nbl__regex *regex, const char *text,
                             size_t size)
{
    NBL_TRY(prepare(m));
    *search = (nbl__search){.matcher = m, .regex = regex, .subject = text, .size = size};
    size_t first = regex->exact ? size : first_standin(text, size);
    if (first == size) return NBL_OK;
    m->standin.size = 0;
    NBL_TRY(nbl__bytes_add(m->ctx, &m->standin, text, size));
    for (size_t at = first; at < size;) {
        uint32_t c;
        int n = nbl__char_get(text + at, &c);
        nbl__char_put(m->standin.data + at, nbl__char_standin_of(c));
        at += (size_t)n;
    }
    search->subject = m->standin.data;
    return NBL_OK;
}

/* One match costs at most MATCH_LIMIT steps. An empty match right after the last one is skipped. */
nbl_status nbl__search_next(nbl__search *s, bool *found, size_t *begin, size_t *end)
{
    nbl__matcher *m = s->matcher;
    *found = false;
    while (s->next <= s->size) {
        PCRE2_SPTR subject = (PCRE2_SPTR)(s->subject ? s->subject : "");
        int rc = pcre2_match(s->regex->code, subject, s->size, s->next, PCRE2_NO_UTF_CHECK, m->data,
                             /* the JIT's stack is full: the interpreter uses the heap, up to
                              * HEAP_LIMIT_KIB */
                             m->match);
        if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
            rc = pcre2_match(s->regex->code, subject, s->size, s->next, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                             m->data, m->match);
        if (rc == PCRE2_ERROR_NOMATCH) return NBL_OK;
        if (rc == PCRE2_ERROR_NOMEMORY) return out_of_memory(m->ctx, s->regex->where);
        NBL_CHECK(m->ctx, rc >= 0, NBL_ERROR_UNSUPPORTED,
                  "%s: the regex needs more than %d steps on this text", s->regex->where, MATCH_LIMIT);
        /* \K in a look-around can put the begin behind the end; callers need spans in order */
        PCRE2_SIZE *span = pcre2_get_ovector_pointer(m->data);
        size_t from = span[0], to = span[1];
        NBL_CHECK(m->ctx, from <= to && to <= s->size && to >= s->next, NBL_ERROR_UNSUPPORTED,
                  "%s: the regex matches backwards", s->regex->where);
        if (from == to && s->matched_before && s->last_end == to) { /* empty: skip one character */
            s->next += s->next < s->size ? (size_t)nbl__char_length(s->subject + s->next) : 1;
            continue;
        }
        s->next = s->last_end = to;
        s->matched_before = true;
        *begin = from;
        *end = to;
        *found = true;
        return NBL_OK;
    }
    return NBL_OK;
}
