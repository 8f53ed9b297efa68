/* regex_translate.c - translates a pattern from Oniguruma's Ruby syntax to PCRE2's; see regex.h.
 *
 * One pass copies the syntax that both libraries read alike and rewrites the rest:
 *
 *     Ruby                       PCRE2
 *     \s \d \h                   a class with Oniguruma's characters (PCRE2's \s has U+180E too)
 *     \w                         [WORDS]
 *     \b \B                      look-behind and look-ahead for [WORDS]
 *     \v                         the vertical tab (PCRE2's \v is all vertical white space)
 *     ^ $                        the same; PCRE2_MULTILINE is set, because Ruby's always match at lines
 *     (?m)                       (?s): the dot takes newlines
 *     {,n}                       {0,n}
 *     {n}+  {n}?                 (?:x{n})+  (?:x{n})?: repeat the repetition
 *     \p{name}                   names that both libraries know
 *     [a[b]]                     (?:[a]|[b])
 *     [a&&b]                     (?:(?=[a])[b])
 *     [^ a[b] ]                  (?:(?!(?:[a]|[b]))(?s:.))
 *
 * Each function reads from t->at and appends to t->out. A construction that is seen to need a
 * bracket in front only after it was written gets it by insert().
 *
 * Classes nest at most DEPTH deep, groups 100 deep. */
#include <stdio.h>

#include "text/chars.h"
#include "text/unicode/regex.h"

enum { DEPTH = 16 };

#define SPACES                                                                                               \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{" \
    "3000}"
#define NO_SPACES                                                                                            \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}\\x{200b}" \
    "-"                                                                                                      \
    "\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}\\x{3001}-\\x{d7ff}\\x{e000}-\\x{"    \
    "10ffff}"
#define POSIX_WORDS "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORDS POSIX_WORDS "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}" /* Oniguruma's \\w outside classes */
#define HEX "0-9A-Fa-f"
#define NO_HEX "\\x{0}-/:-@G-`g-\\x{d7ff}\\x{e000}-\\x{10ffff}"

typedef struct translator {
    nbl_context *ctx;
    const char *where;    /* begin of messages */
    const char *at, *end; /* the rest of the pattern */
    nbl__bytes *out;      /* the translation so far */
    bool backreference;   /* a backreference was read */
} translator;

static nbl_status wrong(translator *t, const char *what)
{
    return nbl__fail(t->ctx, NBL_ERROR_FORMAT, "%s: not a valid regex: %s", t->where, what);
}

static nbl_status unsupported(translator *t, const char *what)
{
    return nbl__fail(t->ctx, NBL_ERROR_UNSUPPORTED, "%s: a regex with %s is not supported", t->where, what);
}

static nbl_status put(translator *t, const char *text)
{
    return nbl__bytes_add(t->ctx, t->out, text, strlen(text));
}

static nbl_status put_char(translator *t, uint32_t c)
{
    char text[16];
    snprintf(text, sizeof text, "\\x{%x}", (unsigned)c);
    return put(t, text);
}

/* Inserts `text` into the output at offset `from`. */
static nbl_status insert(translator *t, size_t from, const char *text)
{
    size_t size = strlen(text);
    NBL_TRY(nbl__bytes_reserve(t->ctx, t->out, size));
    memmove(t->out->data + from + size, t->out->data + from, t->out->size - from);
    memcpy(t->out->data + from, text, size);
    t->out->size += size;
    return NBL_OK;
}

/* Skips character c if it comes next. */
static bool accept(translator *t, char c)
{
    if (t->at >= t->end || *t->at != c) return false;
    t->at++;
    return true;
}

/* ---- properties and sets of characters ---- */

/* A set of characters, as text that is valid within [ ]. */
typedef struct charset {
    const char *in, *out; /* the set; its complement, or NULL if that cannot be written within [ ] */
} charset;

static const struct {
    const char *name;
    charset set;
} posix[] = {
    {"alnum", {"\\p{Alphabetic}\\p{Nd}", NULL}},
    {"alpha", {"\\p{Alphabetic}", "\\P{Alphabetic}"}},
    {"ascii", {"\\x{0}-\\x{7f}", "\\x{80}-\\x{d7ff}\\x{e000}-\\x{10ffff}"}},
    {"blank", {"\\p{Zs}\\x{9}", NULL}},
    {"cntrl", {"\\p{Cc}", "\\P{Cc}"}},
    {"digit", {"\\p{Nd}", "\\P{Nd}"}},
    {"lower", {"\\p{Lowercase}", "\\P{Lowercase}"}},
    {"punct", {"\\p{P}\\p{S}", NULL}},
    {"space", {SPACES, NO_SPACES}},
    {"upper", {"\\p{Uppercase}", "\\P{Uppercase}"}},
    {"word", {POSIX_WORDS, NULL}},
    {"xdigit", {HEX, NO_HEX}},
};

/* True if a name is `known`, which is in lower case. As in Oniguruma, case, spaces, hyphens and
 * underscores do not matter. */
static bool same_name(const char *name, size_t size, const char *known)
{
    for (size_t i = 0; i < size; i++) {
        char c = name[i];
        if (c == ' ' || c == '-' || c == '_') continue;
        if (c >= 'A' && c <= 'Z') c = (char)(c + 32);
        if (c != *known++) return false;
    }
    return *known == '\0';
}

static bool find_posix(const char *name, size_t size, charset *set)
{
    for (size_t i = 0; i < sizeof posix / sizeof *posix; i++)
        if (same_name(name, size, posix[i].name)) return *set = posix[i].set, true;
    return false;
}

/* Reads {name} or {^name}; t->at is behind \p or \P. `space` is memory for the texts of *set. */
static nbl_status read_property(translator *t, bool negated, char space[128], charset *set, bool *complement)
{
    const char *close = memchr(t->at, '}', (size_t)(t->end - t->at));
    if (close == NULL || close - t->at > 48) return wrong(t, "a property without end");
    t->at++;
    if (accept(t, '^')) negated = !negated;
    size_t size = (size_t)(close - t->at);
    const char *name = t->at;
    t->at = close + 1;
    *complement = negated;
    if (find_posix(name, size, set)) return NBL_OK;
    /* PCRE2 has these names, Oniguruma does not; "any" is known to both */
    static const char *const foreign[] = {"any", "xan", "xps", "xsp", "xwd", "xuc", "l&"};
    for (size_t i = 0; i < sizeof foreign / sizeof *foreign; i++)
        if (same_name(name, size, foreign[i]) && i > 0) return wrong(t, "an unknown property");
    char clean[52];
    size_t length = 0;
    for (size_t i = 0; i < size; i++) {
        bool letter = (name[i] >= 'A' && name[i] <= 'Z') || (name[i] >= 'a' && name[i] <= 'z');
        bool filler = name[i] == '_' || name[i] == ' ' || name[i] == '-';
        if (!letter && !filler) return wrong(t, "an unknown property");
        if (!filler) clean[length++] = name[i];
    }
    clean[length] = '\0';
    if (length == 0) return wrong(t, "a property without a name");
    /* PCRE2 reads the bare name of a script as Script_Extensions, which contains characters of
     * other scripts. Oniguruma reads it as Script: "sc:". */
    bool script;
    NBL_TRY(nbl__regex_is_script(t->ctx, t->where, clean, &script));
    snprintf(space, 64, "\\p{%s%s}", script ? "sc:" : "", clean);
    snprintf(space + 64, 64, "\\P{%s%s}", script ? "sc:" : "", clean);
    *set = (charset){space, space + 64};
    return NBL_OK;
}

/* Returns true if the letter after a backslash names a set, as in \s or \D. */
static bool find_escape_set(char letter, charset *set, bool *complement)
{
    static const struct {
        char letter;
        charset set;
    } sets[] = {{'s', {SPACES, NO_SPACES}},
                {'w', {POSIX_WORDS, NULL}},
                {'d', {"\\p{Nd}", "\\P{Nd}"}},
                {'h', {HEX, NO_HEX}}};
    for (size_t i = 0; i < sizeof sets / sizeof *sets; i++)
        if ((letter | 32) == sets[i].letter) {
            *set = sets[i].set;
            *complement = letter < 'a';
            return true;
        }
    return false;
}

/* ---- one character ---- */

static int hex_value(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static nbl_status read_hex(translator *t, int max, uint32_t *c)
{
    int digits = 0;
    *c = 0;
    for (; digits < max && t->at < t->end && hex_value(*t->at) >= 0; digits++, t->at++)
        *c = *c << 4 | (uint32_t)hex_value(*t->at);
    if (digits == 0) return wrong(t, "an escape without digits");
    if (*c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000)) return wrong(t, "an escape of no character");
    return NBL_OK;
}

/* Reads an escape that stands for one character. t->at is behind the backslash. */
static nbl_status read_escape(translator *t, bool in_class, uint32_t *c)
{
    if (t->at >= t->end) return wrong(t, "it ends with a backslash");
    static const char names[] = "ntrfvae", values[] = "\n\t\r\f\v\a\x1b";
    const char *found = *t->at ? strchr(names, *t->at) : NULL;
    if (found) return *c = (unsigned char)values[found - names], t->at++, NBL_OK;
    if (in_class && *t->at == 'b') return *c = 8, t->at++, NBL_OK;
    if (*t->at == 'x') {
        t->at++;
        if (accept(t, '{')) {
            NBL_TRY(read_hex(t, 8, c));
            return accept(t, '}') ? NBL_OK : wrong(t, "\\x{ without end");
        }
        NBL_TRY(read_hex(t, 2, c));
        return *c < 0x80 ? NBL_OK : unsupported(t, "an escape of a lone byte");
    }
    if (*t->at == 'u') {
        t->at++;
        const char *begin = t->at;
        NBL_TRY(read_hex(t, 4, c));
        return t->at - begin == 4 ? NBL_OK : wrong(t, "\\u without four digits");
    }
    if (*t->at >= '0' && *t->at <= '9') {
        if (*t->at != '0' && !in_class) return unsupported(t, "this backreference");
        *c = 0;
        for (int i = 0; i < 3 && t->at < t->end && *t->at >= '0' && *t->at <= '7'; i++)
            *c = *c * 8 + (uint32_t)(*t->at++ - '0');
        return *c < 0x80 ? NBL_OK : unsupported(t, "an escape of a lone byte");
    }
    if (strchr("cCMyYNOKGkg", *t->at) && *t->at)
        return unsupported(t, "an escape \\c, \\C, \\M, \\y, \\Y, \\N or \\O here");
    t->at += nbl__char_get(t->at, c);
    return NBL_OK;
}

/* ---- classes ---- */

static nbl_status read_class(translator *t, int depth);

/* The items of a class, in PCRE2's syntax. `simple`: characters and sets that are valid within [ ].
 * `others`: complements and nested classes as alternatives, each with '|' in front. */
typedef struct class_parts {
    nbl__bytes simple, others;
} class_parts;

static nbl_status add_set(translator *t, class_parts *p, const charset *set, bool complement)
{
    const char *text = complement ? set->out : set->in;
    if (text) return nbl__bytes_add(t->ctx, &p->simple, text, strlen(text));
    NBL_TRY(nbl__bytes_add(t->ctx, &p->others, "|[^", 3));
    NBL_TRY(nbl__bytes_add(t->ctx, &p->others, set->in, strlen(set->in)));
    return nbl__bytes_add(t->ctx, &p->others, "]", 1);
}

/* Reads one item of a class that is not a nested class. A character is stored in *c. A set is added
 * to p, and *is_set is true. */
static nbl_status read_item(translator *t, class_parts *p, bool *is_set, uint32_t *c)
{
    char space[128];
    charset set;
    bool complement;
    *is_set = false;
    if (!accept(t, '\\')) {
        t->at += nbl__char_get(t->at, c);
        return NBL_OK;
    }
    if (t->at >= t->end) return wrong(t, "it ends with a backslash");
    char letter = *t->at;
    if ((letter == 'p' || letter == 'P') && t->end - t->at > 1 && t->at[1] == '{') {
        t->at++;
        NBL_TRY(read_property(t, letter == 'P', space, &set, &complement));
    } else if (find_escape_set(letter, &set, &complement)) {
        t->at++;
    } else if (letter == 'R' || letter == 'X') {
        return unsupported(t, "\\R or \\X in a class");
    } else {
        return read_escape(t, true, c);
    }
    *is_set = true;
    return add_set(t, p, &set, complement);
}

static nbl_status add_range(translator *t, class_parts *p, uint32_t first, uint32_t last)
{
    char text[32];
    if (last < first) return wrong(t, "a range out of order in a class");
    /* No check for surrogates is needed: `first` and `last` are characters, and PCRE2 allows a
     * range that has the surrogates inside. */
    snprintf(text, sizeof text, first == last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", (unsigned)first,
             (unsigned)last);
    return nbl__bytes_add(t->ctx, &p->simple, text, strlen(text));
}

/* Reads [:name:] or [:^name:]; t->at is behind the first bracket. Returns false, and reads nothing,
 * if there is no such class. */
static bool read_posix(translator *t, charset *set, bool *negated)
{
    const char *s = t->at;
    if (s >= t->end || *s != ':') return false;
    *negated = ++s < t->end && *s == '^';
    s += *negated;
    const char *name = s;
    while (s < t->end && *s >= 'a' && *s <= 'z') s++;
    if (t->end - s < 2 || s[0] != ':' || s[1] != ']' || !find_posix(name, (size_t)(s - name), set))
        return false;
    t->at = s + 2;
    return true;
}

/* Reads items into p up to "]" or "&&". `first`: a "]" that comes first is a character. */
static nbl_status read_items(translator *t, class_parts *p, int depth, bool first)
{
    while (t->at < t->end) {
        charset set;
        bool negated, is_set;
        uint32_t c, last;
        if (*t->at == ']' && !first) return NBL_OK;
        if (t->end - t->at >= 2 && t->at[0] == '&' && t->at[1] == '&') return NBL_OK;
        first = false;
        if (accept(t, '[')) {
            if (read_posix(t, &set, &negated)) {
                NBL_TRY(add_set(t, p, &set, negated));
                continue;
            }
            if (t->at < t->end && *t->at == ':') return unsupported(t, "this [:class:]");
            size_t begin = t->out->size;
            NBL_TRY(read_class(t, depth + 1)); /* written to the end of `out`, then moved to p */
            NBL_TRY(nbl__bytes_add(t->ctx, &p->others, "|", 1));
            NBL_TRY(nbl__bytes_add(t->ctx, &p->others, t->out->data + begin, t->out->size - begin));
            t->out->size = begin;
            continue;
        }
        NBL_TRY(read_item(t, p, &is_set, &c));
        if (is_set) continue;
        last = c;
        if (t->end - t->at >= 2 && t->at[0] == '-' && t->at[1] != ']') {
            t->at++;
            if (*t->at == '[') return unsupported(t, "a range that ends in a class");
            NBL_TRY(read_item(t, p, &is_set, &last));
            if (is_set) return wrong(t, "a set at the end of a range in a class");
        }
        NBL_TRY(add_range(t, p, c, last));
    }
    return wrong(t, "a class without end");
}

/* Writes the items as one expression that matches one character. */
static nbl_status write_parts(translator *t, const class_parts *p)
{
    bool simple = p->simple.size > 0, others = p->others.size > 0;
    if (!simple && !others) return wrong(t, "an empty class");
    if (others) NBL_TRY(put(t, "(?:"));
    if (simple) {
        NBL_TRY(put(t, "["));
        NBL_TRY(nbl__bytes_add(t->ctx, t->out, p->simple.data, p->simple.size));
        NBL_TRY(put(t, "]"));
    }
    if (others) {
        NBL_TRY(nbl__bytes_add(t->ctx, t->out, p->others.data + !simple, p->others.size - !simple));
        NBL_TRY(put(t, ")"));
    }
    return NBL_OK;
}

/* Writes a class as one expression; t->at is behind "[". An intersection a&&b&&c becomes
 * look-aheads for all operands but the last: (?=a)(?=b)c. */
static nbl_status read_class(translator *t, int depth)
{
    if (depth > DEPTH) return unsupported(t, "classes nested this deep");
    bool negated = accept(t, '^'), first = true, joined = false;
    size_t begin = t->out->size;
    nbl_status status = NBL_OK;
    for (;;) {
        class_parts p = {0};
        status = read_items(t, &p, depth, first);
        first = false;
        bool more = status == NBL_OK && t->at < t->end && *t->at == '&';
        if (status == NBL_OK && more) { /* an operand of "&&", not the last one */
            status = put(t, "(?=");
            if (status == NBL_OK) status = write_parts(t, &p);
            if (status == NBL_OK) status = put(t, ")");
            t->at += 2;
            joined = true;
        } else if (status == NBL_OK && negated && !joined && p.others.size == 0 && p.simple.size > 0) {
            status = put(t, "[^");
            if (status == NBL_OK) status = nbl__bytes_add(t->ctx, t->out, p.simple.data, p.simple.size);
            if (status == NBL_OK) status = put(t, "]");
            negated = false;
        } else if (status == NBL_OK) {
            status = write_parts(t, &p);
        }
        nbl__bytes_free(t->ctx, &p.simple);
        nbl__bytes_free(t->ctx, &p.others);
        if (status != NBL_OK) return status;
        if (!more) break;
    }
    t->at++; /* the closing bracket */
    if (joined || negated) {
        NBL_TRY(insert(t, begin, negated ? "(?:(?!" : "(?:"));
        NBL_TRY(put(t, negated ? ")(?s:.))" : ")"));
    }
    return NBL_OK;
}

/* ---- outside classes ---- */

/* Writes a set outside a class. */
static nbl_status write_set(translator *t, const charset *set, bool complement)
{
    if (set->out && set->out[1] == 'P') return put(t, complement ? set->out : set->in); /* one property */
    NBL_TRY(put(t, complement ? "[^" : "["));
    NBL_TRY(put(t, set->in));
    return put(t, "]");
}

/* Translates an escape outside a class; t->at is behind the backslash. */
static nbl_status read_backslash(translator *t)
{
    char space[128];
    charset set;
    bool complement;
    uint32_t c;
    if (t->at >= t->end) return wrong(t, "it ends with a backslash");
    char letter = *t->at;
    if ((letter == 'p' || letter == 'P') && t->end - t->at > 1 && t->at[1] == '{') {
        t->at++;
        NBL_TRY(read_property(t, letter == 'P', space, &set, &complement));
        return write_set(t, &set, complement);
    }
    if (letter == 'w' || letter == 'W')
        return t->at++, put(t, letter == 'w' ? "[" WORDS "]" : "[^" WORDS "]");
    if (find_escape_set(letter, &set, &complement)) return t->at++, write_set(t, &set, complement);
    char copy[3] = {'\\', letter, '\0'};
    switch (letter) {
    case 'b': return t->at++, put(t, "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))");
    case 'B': return t->at++, put(t, "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))");
    case 'N': return t->at++, put(t, "(?-s:.)");
    case 'O': return t->at++, put(t, "(?s:.)");
    case 'A':
    case 'z':
    case 'Z':
    case 'G':
    case 'K':
    case 'R': return t->at++, put(t, copy);
    case 'X': return unsupported(t, "\\X"); /* the libraries differ in what a grapheme is */
    case 'k': {
        t->backreference = true;
        const char *close = memchr(t->at, '>', (size_t)(t->end - t->at));
        if (t->end - t->at < 3 || t->at[1] != '<' || close == NULL) return wrong(t, "\\k without a name");
        NBL_TRY(put(t, "\\"));
        NBL_TRY(nbl__bytes_add(t->ctx, t->out, t->at, (size_t)(close + 1 - t->at)));
        t->at = close + 1;
        return NBL_OK;
    }
    case '1':
    case '2':
    case '3':
    case '4':
    case '5':
    case '6':
    case '7':
    case '8':
    case '9': /* one digit only: the libraries read longer numbers differently */
        if (t->end - t->at > 1 && t->at[1] >= '0' && t->at[1] <= '9')
            return unsupported(t, "this backreference");
        t->at++;
        t->backreference = true;
        NBL_TRY(put(t, "\\g{"));
        NBL_TRY(put(t, copy + 1));
        return put(t, "}");
    default: break;
    }
    NBL_TRY(read_escape(t, false, &c));
    return put_char(t, c);
}

/* Translates the head of a group: its kind and options. t->at is behind "(". */
static nbl_status read_group(translator *t)
{
    NBL_TRY(put(t, "("));
    if (t->at < t->end && *t->at == '*') return wrong(t, "a repeat operator without a target");
    if (!accept(t, '?')) return NBL_OK;
    if (t->at >= t->end) return wrong(t, "a group without end");
    if (*t->at == '#') {
        while (t->at < t->end && *t->at != ')') t->at++;
        t->out->size--; /* a comment: remove "(" from the output, skip ")" */
        return accept(t, ')') ? NBL_OK : wrong(t, "a comment without end");
    }
    NBL_TRY(put(t, "?"));
    if (strchr(":=!>", *t->at) && *t->at) {
        char kind[2] = {*t->at++, '\0'};
        return put(t, kind);
    }
    if (*t->at == '<') {
        const char *begin = t->at++;
        if (t->at < t->end && (*t->at == '=' || *t->at == '!')) {
            t->at++;
        } else {
            while (t->at < t->end && *t->at != '>') t->at++;
            if (!accept(t, '>')) return wrong(t, "a name without end");
        }
        return nbl__bytes_add(t->ctx, t->out, begin, (size_t)(t->at - begin));
    }
    while (t->at < t->end && *t->at != ')' && *t->at != ':') {
        char option[2] = {*t->at++, '\0'};
        if (*option == 'm') *option = 's';
        else if (*option != 'i' && *option != 'x' && *option != '-')
            return wrong(t, "an unknown group option");
        NBL_TRY(put(t, option));
    }
    if (t->at >= t->end) return wrong(t, "a group without end");
    return *t->at == ':' ? (t->at++, put(t, ":")) : NBL_OK;
}

/* Translates a repetition {n}, {n,}, {n,m} or {,m}; t->at is at "{". Any other "{" is a character.
 * `atom` is the offset in the output where the repeated expression begins. */
static nbl_status read_repeat(translator *t, size_t atom)
{
    const char *s = t->at + 1, *low = s;
    while (s < t->end && *s >= '0' && *s <= '9') s++;
    size_t low_digits = (size_t)(s - low), high_digits = 0;
    bool comma = s < t->end && *s == ',';
    const char *high = s += comma;
    while (comma && s < t->end && *s >= '0' && *s <= '9') s++;
    high_digits = (size_t)(s - high);
    if (s >= t->end || *s != '}' || (low_digits == 0 && high_digits == 0)) return t->at++, put(t, "\\{");
    NBL_TRY(put(t, "{"));
    NBL_TRY(low_digits ? nbl__bytes_add(t->ctx, t->out, low, low_digits) : put(t, "0"));
    if (comma) NBL_TRY(put(t, ","));
    NBL_TRY(nbl__bytes_add(t->ctx, t->out, high, high_digits));
    NBL_TRY(put(t, "}"));
    t->at = s + 1;
    bool again = t->at < t->end && (*t->at == '+' || (*t->at == '?' && !comma));
    if (!again) return NBL_OK;
    NBL_TRY(insert(t, atom, "(?:"));
    return put(t, ")");
}

nbl_status nbl__regex_translate(nbl_context *ctx, const char *where, const char *pattern, size_t size,
                                nbl__bytes *out, bool *backreference)
{
    translator t = {ctx, where, pattern, pattern + size, out, false};
    enum { OPEN = 100 };
    size_t opened[OPEN], atom = out->size; /* offsets in `out`: of open groups, of the last expression */
    int open = 0;
    NBL_TRY(nbl__bytes_reserve(ctx, out, size + 1));
    while (t.at < t.end) {
        char c = *t.at;
        size_t begin = out->size;
        if (c == '{') {
            NBL_TRY(read_repeat(&t, atom));
            continue;
        }
        if (c == '*' || c == '+' || c == '?') {
            t.at++;
            NBL_TRY(nbl__bytes_add(ctx, out, &c, 1));
            continue;
        }
        if (c == '(') {
            if (open == OPEN) return unsupported(&t, "groups nested this deep");
            bool comment = t.end - t.at >= 3 && t.at[1] == '?' && t.at[2] == '#';
            t.at++;
            NBL_TRY(read_group(&t));
            if (!comment) opened[open++] = begin;
            continue;
        }
        atom = begin;
        if (c == ')') {
            if (open == 0) return wrong(&t, "a parenthesis that closes nothing");
            atom = opened[--open];
            t.at++;
            NBL_TRY(put(&t, ")"));
        } else if (c == '\\') {
            t.at++;
            NBL_TRY(read_backslash(&t));
        } else if (c == '[') {
            t.at++;
            NBL_TRY(read_class(&t, 0));
        } else {
            int n = nbl__char_length(t.at);
            NBL_TRY(nbl__bytes_add(ctx, out, t.at, (size_t)n));
            t.at += n;
        }
    }
    *backreference = t.backreference;
    return open == 0 ? NBL_OK : wrong(&t, "a parenthesis without end");
}
