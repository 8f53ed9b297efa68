/* jinja_lexer.c - splits the text of a template into tokens.
 *
 * Example, one line per token:
 *
 *     Hi {{ name|trim }}!   DATA "Hi ", VARIABLE_BEGIN, NAME name, PIPE, NAME trim, VARIABLE_END,
 *                           DATA "!", END
 *
 * White space follows jinja2 with trim_blocks and lstrip_blocks:
 * * A newline right after a block tag is dropped.
 * * Blanks between the start of a line and a block tag are dropped.
 * * '-' in a tag strips all white space on its side. '+' keeps it.
 * * Line ends become '\n'. One line end at the end of the template is dropped.
 *
 * The whole text is split before the parser starts. Text that cannot be split becomes an error
 * token. So if the template has two errors, the parser reports the one that jinja2 finds first.
 *
 * Invariant: begin <= at <= end, and every token starts at or after the token before it. So lines
 * and columns are counted in one pass.
 *
 * Memory: the text is copied once into the arena. Names and data are slices of this copy. Strings
 * with escapes and numbers are built anew.
 *
 * Cost: linear in the length of the text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number.h"
#include "base/utf8.h"
#include "text/template/syntax/jinja_ast.h"
#include "text/template/library/jinja_unicode.h"

/* The state of one run over the text. `at` is the next character to read. */
typedef struct lexer {
    tpl_vm *vm;
    tpl_tokens *tokens;
    const char *begin, *at, *end;
    const char *counted; /* lines and columns are counted up to here */
    int line, column;
    char open[TPL_MAX_PARSE]; /* the closing brackets of all open ones, innermost last */
    int open_count;
    bool line_starts; /* the text before ended with a newline */
    bool stopped;
} lexer;

/* Moves the position (line, column) to `to`. UTF-8 continuation bytes (10xxxxxx) do not count: a
 * column is a character. */
static void count_to(lexer *x, const char *to)
{
    for (; x->counted < to; x->counted++) {
        unsigned char c = (unsigned char)*x->counted;
        if (c == '\n') x->line++, x->column = 1;
        else x->column += (c & 0xc0) != 0x80;
    }
}

/* Appends a token that begins at `at`. The array doubles in the arena; the old array is not
 * freed. */
static nbl_status add(lexer *x, tpl_token_type type, const char *at, tpl_value value)
{
    tpl_tokens *t = x->tokens;
    if (t->count == t->room) {
        int64_t room = t->room ? t->room * 2 : 64;
        tpl_token *items;
        NBL_TRY(TPL_NEW(x->vm, items, room));
        if (t->count) memcpy(items, t->items, (size_t)t->count * sizeof *items);
        t->items = items;
        t->room = room;
    }
    count_to(x, at);
    t->items[t->count++] = (tpl_token){type, x->line, x->column, value};
    return NBL_OK;
}

/* Ends the split with an error token at `at`. The parser raises the message when it gets there. */
static nbl_status stop(lexer *x, const char *at, const char *message)
{
    tpl_value text;
    NBL_TRY(nbl__tpl_string_copy(x->vm, message, strlen(message), &text));
    x->stopped = true;
    return add(x, TOKEN_ERROR, at, text);
}

/* Appends a token whose text is [begin, end). The bytes are borrowed from the lexer's copy. */
static nbl_status add_text(lexer *x, tpl_token_type type, const char *begin, const char *end)
{
    tpl_value value;
    NBL_TRY(nbl__tpl_string(x->vm, begin, (size_t)(end - begin), &value));
    return add(x, type, begin, value);
}

static const char *skip_space(const char *at, const char *end)
{
    for (int size; at < end; at += size)
        if (!nbl__tpl_is_space(tpl_char(at, &size))) break;
    return at;
}

static bool starts(const lexer *x, const char *at, const char *what)
{
    size_t n = strlen(what);
    return (size_t)(x->end - at) >= n && memcmp(at, what, n) == 0;
}

/* ---- text between tags ---- */

/* Returns the end of the text before a tag with this sign ('-', '+' or 0), after stripping.
 *
 *     "a \n  {%- …"   '-': all white space goes: "a"
 *     "a \n  {% …"    none: only the blanks of the tag's own line go: "a \n"
 *     "a b {% …"      none: text stands before the tag on its line: nothing goes
 *     "  {{ …"        variables: only '-' strips
 *
 * `begin` may lie inside a line, behind a tag. Then the blanks after that tag stay, unless the tag
 * ended the line (line_starts). */
static const char *strip(const lexer *x, const char *begin, const char *end, char sign, bool variable)
{
    if (sign == '-') {
        const char *keep = begin;
        for (int size; begin < end; begin += size)
            if (!nbl__tpl_is_space(tpl_char(begin, &size))) keep = begin + size;
        return keep;
    }
    if (sign == '+' || variable) return end;
    const char *line = end;
    while (line > begin && line[-1] != '\n') line--;
    if (line == begin && !x->line_starts) return end;
    return skip_space(line, end) == end ? line : end;
}

/* Skips the white space that "%}" or "#}" with this sign swallows. */
static const char *after_block(const lexer *x, const char *at, char sign)
{
    if (sign == '-') return skip_space(at, x->end);
    if (sign != '+' && at < x->end && *at == '\n') return at + 1;
    return at;
}

/* Returns the length of an end marker with its optional sign, or 0 if there is none. */
static int end_marker(const lexer *x, const char *at, const char *marker, char *sign)
{
    *sign = at < x->end && (*at == '-' || *at == '+') ? *at : 0;
    const char *from = at + (*sign != 0);
    return starts(x, from, marker) ? (int)(from - at) + (int)strlen(marker) : 0;
}

/* Continues behind a tag at `to`. Records whether the next text begins at the start of a line,
 * which strip() needs. */
static void passed(lexer *x, const char *to)
{
    x->line_starts = to > x->begin && to[-1] == '\n';
    x->at = to;
}

/* Skips a comment; x->at is behind "{#" and its sign. A comment has no token. */
static nbl_status lex_comment(lexer *x)
{
    const char *from = x->at;
    for (const char *at = from; at < x->end; at++) {
        char sign;
        int n = end_marker(x, at, "#}", &sign);
        if (n == 0) continue;
        passed(x, after_block(x, at + n, sign));
        return NBL_OK;
    }
    /* as in jinja2, nothing at all after the opening is not an error */
    if (from == x->end) return x->at = x->end, NBL_OK;
    return stop(x, from, "Missing end of comment tag");
}

/* True if the tag is {% raw %} or, with `end`, {% endraw %}; `at` is behind "{%" and its sign. *to
 * is where the text behind the tag begins. jinja2 allows the sign '+' only at the end of endraw. A
 * newline behind {% raw %} is part of the raw text; one behind {% endraw %} is dropped. */
static bool is_raw(const lexer *x, const char *at, const char *word, const char **to, bool end)
{
    char sign;
    at = skip_space(at, x->end);
    if (!starts(x, at, word)) return false;
    at = skip_space(at + strlen(word), x->end);
    int n = end_marker(x, at, "%}", &sign);
    if (n == 0 || (!end && sign == '+')) return false;
    at += n;
    *to = end ? after_block(x, at, sign) : sign == '-' ? skip_space(at, x->end) : at;
    return true;
}

/* The sign behind the opening of a tag: '-', '+', or 0 for none. */
static char sign_at(const lexer *x, const char *at)
{
    return at < x->end && (*at == '-' || *at == '+') ? *at : 0;
}

/* Reads the text up to {% endraw %} as one token of data. Tags inside it are text. */
static nbl_status lex_raw(lexer *x)
{
    const char *from = x->at, *to;
    for (const char *at = from; at < x->end; at++) {
        if (!starts(x, at, "{%")) continue;
        char sign = sign_at(x, at + 2);
        if (!is_raw(x, at + 2 + (sign != 0), "endraw", &to, true)) continue;
        const char *end = strip(x, from, at, sign, false);
        if (end > from) NBL_TRY(add_text(x, TOKEN_DATA, from, end));
        passed(x, to);
        return NBL_OK;
    }
    if (from == x->end) return NBL_OK;
    return stop(x, from, "Missing end of raw directive");
}

/* ---- inside a tag ---- */

/* True if a digit of this base stands at `at`. Both cases of a to f count. */
static bool is_digit(const lexer *x, const char *at, int base)
{
    if (at >= x->end) return false;
    char c = *at;
    int digit = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'f' ? c - 'a' + 10
                : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                       : 99;
    return digit < base;
}

/* Skips digits with single underscores between them: "1_000", but not "1__0". Returns the end. */
static const char *digits(const lexer *x, const char *at, int base)
{
    if (!is_digit(x, at, base)) return at;
    for (at++; is_digit(x, at, base) || (at < x->end && *at == '_' && is_digit(x, at + 1, base));) at++;
    return at;
}

/* Copies a number without underscores, terminated. */
static nbl_status number_text(lexer *x, const char *begin, const char *end, char **text)
{
    NBL_TRY(TPL_NEW(x->vm, *text, end - begin + 1));
    char *o = *text;
    for (; begin < end; begin++)
        if (*begin != '_') *o++ = *begin;
    *o = '\0';
    return NBL_OK;
}

/* Reads an integer that ends at `end`. A prefix (0x, 0o, 0b) has two characters. Only decimal
 * integers may exceed 64 bits: a TPL_BIG keeps its decimal digits as text, and other bases would
 * have to be converted. 4300 digits is Python's own limit. */
static nbl_status lex_integer(lexer *x, const char *end, int base)
{
    char *text;
    tpl_value value;
    NBL_TRY(number_text(x, x->at + (base == 10 ? 0 : 2), end, &text));
    int64_t integer = 0;
    bool over = false;
    for (const char *s = text; *s; s++) {
        int digit = *s <= '9' ? *s - '0' : (*s | 32) - 'a' + 10;
        over |= __builtin_mul_overflow(integer, (int64_t)base, &integer) ||
                __builtin_add_overflow(integer, (int64_t)digit, &integer);
    }
    if (over && base != 10)
        return stop(x, x->at, "an integer beyond 64 bits is not supported in this notation");
    if (over && strlen(text) > 4300)
        return stop(x, x->at, "Exceeds the limit (4300 digits) for integer string conversion");
    if (over) {
        NBL_TRY(nbl__tpl_cstring(x->vm, text, &value));
        value.type = TPL_BIG;
    } else {
        value = tpl_int(integer);
    }
    NBL_TRY(add(x, TOKEN_NUMBER, x->at, value));
    x->at = end;
    return NBL_OK;
}

/* Reads an integer or a float. The order of the checks is that of jinja2's expressions:
 * * A float needs a fraction or an exponent: "1.5", "1e3". "1." is the integer 1 and a dot.
 * * No float begins right behind a dot. So a.0.1 is two subscripts, (a.0).1.
 * * Then the bases 0x, 0o, 0b; one underscore may follow the prefix.
 * * A leading 0 takes only zeros with it: "012" is the integers 0 and 12. */
static nbl_status lex_number(lexer *x)
{
    const char *at = x->at, *whole = digits(x, at, 10), *end = whole;
    bool after_dot = at > x->begin && at[-1] == '.';
    if (whole < x->end && *whole == '.' && is_digit(x, whole + 1, 10)) end = digits(x, whole + 1, 10);
    const char *e = end;
    if (e < x->end && (*e == 'e' || *e == 'E')) {
        const char *power = e + 1 + (e + 1 < x->end && (e[1] == '+' || e[1] == '-'));
        if (is_digit(x, power, 10)) end = digits(x, power, 10);
    }
    if (end > whole && !after_dot) {
        char *text, *rest;
        NBL_TRY(number_text(x, at, end, &text));
        NBL_TRY(add(x, TOKEN_NUMBER, at, tpl_float(nbl__parse_double(text, &rest))));
        x->at = end;
        return NBL_OK;
    }
    if (*at == '0' && at + 1 < x->end) {
        char mark = (char)(at[1] | 32);
        int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
        const char *first = at + 2 + (at + 2 < x->end && at[2] == '_');
        if (base && is_digit(x, first, base)) return lex_integer(x, digits(x, first, base), base);
    }
    if (*at == '0') { /* zeros only */
        for (end = at + 1;
             end < x->end && (*end == '0' || (*end == '_' && end + 1 < x->end && end[1] == '0'));)
            end++;
        return lex_integer(x, end, 10);
    }
    return lex_integer(x, whole, 10);
}

/* Reads a word (Python's \w) and then checks that it is an identifier (Python's isidentifier). \w
 * has more characters, such as superscript digits. A word that contains one of them is an error. */
static nbl_status lex_name(lexer *x)
{
    const char *end = x->at;
    int size;
    bool valid = nbl__tpl_is_name_start(tpl_char(end, &size));
    for (uint32_t c; end < x->end; end += size) {
        c = tpl_char(end, &size);
        bool part = nbl__tpl_is_name_continue(c);
        if (!part && !nbl__tpl_is_alnum(c)) break;
        valid &= part;
    }
    if (!valid) return stop(x, x->at, "Invalid character in identifier");
    NBL_TRY(add_text(x, TOKEN_NAME, x->at, end));
    x->at = end;
    return NBL_OK;
}

/* Reads one escape of a string; *at is behind the backslash and moves past the escape. Sets *code,
 * or sets *keep for an unknown escape: Python keeps its backslash, so "\d" has two characters.
 * Returns NULL, or a message. */
static const char *read_escape(const char **at, const char *end, uint32_t *code, bool *keep)
{
    static const char names[] = "abfnrtv\\'\"", values[] = "\a\b\f\n\r\t\v\\'\"";
    char c = *(*at)++;
    const char *name = strchr(names, c);
    *keep = false;
    if (c && name) return *code = (unsigned char)values[name - names], NULL;
    if (c >= '0' && c <= '7') {
        *code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && *at < end && **at >= '0' && **at <= '7'; i++)
            *code = *code * 8 + (uint32_t)(*(*at)++ - '0');
        return NULL;
    }
    int n = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    if (c == 'N') return "names of characters (\\N{...}) are not supported";
    if (n == 0) return *keep = true, *code = (unsigned char)c, NULL;
    *code = 0;
    for (int i = 0; i < n; i++, (*at)++) {
        char h = *at < end ? (char)(**at | 32) : 0;
        bool digit = *at < end && **at >= '0' && **at <= '9';
        if (!digit && (h < 'a' || h > 'f')) return n == 2 ? "truncated \\xXX escape" : "truncated \\u escape";
        *code = *code << 4 | (uint32_t)(digit ? **at - '0' : h - 'a' + 10);
    }
    if (*code > 0x10ffff) return "illegal Unicode character";
    if (*code >= 0xd800 && *code < 0xe000) return "half of a surrogate pair is not supported in a string";
    return NULL;
}

/* Reads a string in single or double quotes; x->at is the opening quote. A string without an end is
 * an unexpected quote, as in jinja2, because no rule of its lexer matches there. */
static nbl_status lex_string(lexer *x)
{
    const char *begin = x->at + 1, *end = begin;
    while (end < x->end && *end != *x->at) end += *end == '\\' ? 2 : 1;
    if (end >= x->end) {
        char message[64];
        count_to(x, x->at);
        snprintf(message, sizeof message, "unexpected char %s", *x->at == '"' ? "'\"'" : "\"'\"");
        return stop(x, x->at, message);
    }
    tpl_text text = {0};
    for (const char *at = begin; at < end;) {
        const char *run = at;
        while (at < end && *at != '\\') at++;
        NBL_TRY(nbl__tpl_add(x->vm, &text, run, (size_t)(at - run)));
        if (at == end) break;
        at++;
        uint32_t code;
        bool keep;
        /* a backslash at the end of a line joins the lines */
        if (*at == '\n') {
            at++;
        } else if ((unsigned char)*at >=
                   0x80) { /* as Python: the character is spelled out after the backslash */
            char spelled[16];
            int size;
            code = tpl_char(at, &size);
            snprintf(spelled, sizeof spelled,
                     code < 0x100     ? "\\x%02x"
                     : code < 0x10000 ? "\\u%04x"
                                      : "\\U%08x",
                     code);
            NBL_TRY(tpl_add_c(x->vm, &text, spelled));
            at += size;
        } else {
            const char *wrong = read_escape(&at, end, &code, &keep);
            if (wrong) return stop(x, x->at, wrong);
            if (keep) NBL_TRY(tpl_add_c(x->vm, &text, "\\"));
            NBL_TRY(nbl__tpl_add_char(x->vm, &text, code));
        }
    }
    tpl_value value;
    NBL_TRY(nbl__tpl_take(x->vm, &text, &value));
    NBL_TRY(add(x, TOKEN_STRING, x->at, value));
    x->at = end + 1;
    return NBL_OK;
}

/* The order matters: the first entry that the text starts with is taken. */
static const struct {
    const char *text;
    tpl_token_type type;
} operators[] = {
    /* longer ones first */
    {"//", TOKEN_FLOORDIV}, {"**", TOKEN_POW},      {"==", TOKEN_EQ},    {"!=", TOKEN_NE},
    {">=", TOKEN_GE},       {"<=", TOKEN_LE},       {"+", TOKEN_ADD},    {"-", TOKEN_SUB},
    {"/", TOKEN_DIV},       {"*", TOKEN_MUL},       {"%", TOKEN_MOD},    {"~", TOKEN_TILDE},
    {"[", TOKEN_LBRACKET},  {"]", TOKEN_RBRACKET},  {"(", TOKEN_LPAREN}, {")", TOKEN_RPAREN},
    {"{", TOKEN_LBRACE},    {"}", TOKEN_RBRACE},    {">", TOKEN_GT},     {"<", TOKEN_LT},
    {"=", TOKEN_ASSIGN},    {".", TOKEN_DOT},       {":", TOKEN_COLON},  {"|", TOKEN_PIPE},
    {",", TOKEN_COMMA},     {";", TOKEN_SEMICOLON},
};

/* Reads an operator or a bracket. Brackets must match. While one is open, "}}" and "%}" do not end
 * the tag, so that {{ {"a": {}} }} is read as jinja2 reads it. */
static nbl_status lex_operator(lexer *x)
{
    char message[64];
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++) {
        if (!starts(x, x->at, operators[i].text)) continue;
        char c = *x->at, close = c == '{' ? '}' : c == '(' ? ')' : c == '[' ? ']' : 0;
        if (close) {
            if (x->open_count == TPL_MAX_PARSE) return stop(x, x->at, "brackets are nested too deep");
            x->open[x->open_count++] = close;
        } else if (c == '}' || c == ')' || c == ']') {
            snprintf(message, sizeof message, "unexpected '%c'", c);
            if (x->open_count == 0) return stop(x, x->at, message);
            char expected = x->open[--x->open_count];
            snprintf(message, sizeof message, "unexpected '%c', expected '%c'", c, expected);
            if (expected != c) return stop(x, x->at, message);
        }
        NBL_TRY(add(x, operators[i].type, x->at, tpl_none()));
        x->at += strlen(operators[i].text);
        return NBL_OK;
    }
    int size;
    tpl_char(x->at, &size);
    snprintf(message, sizeof message, "unexpected char '%.*s'", size, x->at);
    return stop(x, x->at, message);
}

/* Splits the inside of a tag, from behind "{{" or "{%" to its end. A variable's tag may end with
 * "-}}", but not with "+}}". A tag without an end is no error here: the parser finds the end of the
 * template instead of the end tag. */
static nbl_status lex_tag(lexer *x, bool variable)
{
    while (x->at < x->end && !x->stopped) {
        char sign;
        int n = x->open_count ? 0 : end_marker(x, x->at, variable ? "}}" : "%}", &sign);
        if (n && !(variable && sign == '+')) {
            NBL_TRY(add(x, variable ? TOKEN_VARIABLE_END : TOKEN_BLOCK_END, x->at, tpl_none()));
            const char *to = x->at + n;
            passed(x, !variable ? after_block(x, to, sign) : sign == '-' ? skip_space(to, x->end) : to);
            return NBL_OK;
        }
        int size;
        uint32_t c = tpl_char(x->at, &size);
        if (nbl__tpl_is_space(c)) x->at += size;
        else if (c >= '0' && c <= '9') NBL_TRY(lex_number(x));
        else if (c == '_' || nbl__tpl_is_name_continue(c) || nbl__tpl_is_alnum(c)) NBL_TRY(lex_name(x));
        else if (c == '\'' || c == '"') NBL_TRY(lex_string(x));
        else NBL_TRY(lex_operator(x));
    }
    return NBL_OK;
}

/* Splits the whole text: data up to the next "{%", "{{" or "{#", then the tag. */
static nbl_status lex_all(lexer *x)
{
    while (x->at < x->end && !x->stopped) {
        const char *from = x->at, *at = from;
        while (at < x->end && !(starts(x, at, "{%") || starts(x, at, "{{") || starts(x, at, "{#"))) at++;
        if (at == x->end) {
            NBL_TRY(add_text(x, TOKEN_DATA, from, at));
            x->at = at;
            break;
        }
        char kind = at[1], sign = sign_at(x, at + 2);
        const char *end = strip(x, from, at, sign, kind == '{'), *raw;
        if (end > from) NBL_TRY(add_text(x, TOKEN_DATA, from, end));
        x->at = at + 2 + (sign != 0);
        if (kind == '%' && is_raw(x, x->at, "raw", &raw, false)) {
            passed(x, raw);
            NBL_TRY(lex_raw(x));
            continue;
        }
        x->line_starts = false;
        if (kind == '#') {
            NBL_TRY(lex_comment(x));
        } else {
            NBL_TRY(add(x, kind == '{' ? TOKEN_VARIABLE_BEGIN : TOKEN_BLOCK_BEGIN, at, tpl_none()));
            NBL_TRY(lex_tag(x, kind == '{'));
        }
    }
    return NBL_OK;
}

nbl_status nbl__tpl_lex(tpl_vm *vm, const char *text, size_t size, tpl_tokens *tokens)
{
    char *copy, *o;
    NBL_TRY(TPL_NEW(vm, copy, size + 1));
    o = copy;
    /* copy the text, with "\r\n" and "\r" as "\n" */
    for (const char *s = text, *end = text + size; s < end;) {
        int n = nbl__utf8_length(s, end);
        if (n == 0) return nbl__tpl_raise(vm, "the template is not valid UTF-8");
        if (*s == '\r') {
            *o++ = '\n';
            s += s + 1 < end && s[1] == '\n' ? 2 : 1;
        } else {
            memcpy(o, s, (size_t)n);
            o += n;
            s += n;
        }
    }
    if (o > copy && o[-1] == '\n') o--;
    lexer x = {.vm = vm,
               .tokens = tokens,
               .begin = copy,
               .at = copy,
               .end = o,
               .counted = copy,
               .line = 1,
               .column = 1,
               .line_starts = true};
    NBL_TRY(lex_all(&x));
    /* the end of the template has the position of the last token */
    int line = tokens->count ? tokens->items[tokens->count - 1].line : 1;
    int column = tokens->count ? tokens->items[tokens->count - 1].column : 1;
    NBL_TRY(add(&x, TOKEN_END, x.counted, tpl_none()));
    tokens->items[tokens->count - 1].line = line;
    tokens->items[tokens->count - 1].column = column;
    return NBL_OK;
}

const char *nbl__tpl_token_name(tpl_vm *vm, const tpl_token *token)
{
    switch (token->type) {
    case TOKEN_END: return "end of template";
    case TOKEN_DATA: return "template data / text";
    case TOKEN_VARIABLE_BEGIN: return "begin of print statement";
    case TOKEN_VARIABLE_END: return "end of print statement";
    case TOKEN_BLOCK_BEGIN: return "begin of statement block";
    case TOKEN_BLOCK_END: return "end of statement block";
    case TOKEN_STRING: return "string";
    case TOKEN_NUMBER: return token->value.type == TPL_FLOAT ? "float" : "integer";
    case TOKEN_NAME: {
        char *name = nbl__tpl_alloc(vm, token->value.string->size + 1);
        if (name == NULL) return "name";
        memcpy(name, token->value.string->bytes, token->value.string->size);
        return name;
    }
    default: break;
    }
    for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
        if (operators[i].type == token->type) return operators[i].text;
    return "name"; /* of a type that is expected, without a token */
}
