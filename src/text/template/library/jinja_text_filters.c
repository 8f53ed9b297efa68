/* jinja_text_filters.c - filters of text: case, trim, replace, indent, truncate, striptags and
 * others.
 *
 * The input is made a text first (nbl__tpl_soft_str), as jinja2's soft_str does: safe HTML stays
 * safe. */
#include <stdio.h>

#include "text/template/runtime/jinja_runtime.h"
#include "text/template/library/jinja_unicode.h"

/* The filters upper, lower and capitalize. */
static nbl_status change_case(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_case how, tpl_value *result)
{
    NBL_TRY(nbl__tpl_bind(vm, "this filter", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_soft_str(vm, v, &v));
    return nbl__tpl_change_case(vm, how, v, result);
}

/* The filters of change_case. The names are those of str's methods. */
static nbl_status filter_upper(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return change_case(vm, v, args, CASE_UPPER, result);
}

static nbl_status filter_lower(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return change_case(vm, v, args, CASE_LOWER, result);
}

static nbl_status filter_capitalize(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    return change_case(vm, v, args, CASE_CAPITALIZE, result);
}

/* True for the characters between the words of `title`: '-', opening brackets and white space. */
static bool parts_words(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || nbl__tpl_is_space(c);
}

/* Words as jinja2's `title` defines them: separated by blanks, hyphens and opening brackets. */
static nbl_status filter_title(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_text text = {0};
    NBL_TRY(nbl__tpl_bind(vm, "title", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_soft_str(vm, v, &v));
    NBL_TRY(tpl_read_characters(vm, v.string->size));
    for (const char *at = v.string->bytes, *end = at + v.string->size; at < end;) {
        const char *begin = at;
        int size, first;
        tpl_char(at, &first);
        bool parting = parts_words(tpl_char(at, &size));
        while (at < end && parts_words(tpl_char(at, &size)) == parting) at += size;
        tpl_value head, rest;
        NBL_TRY(nbl__tpl_string(vm, begin, (size_t)first, &head));
        NBL_TRY(nbl__tpl_string(vm, begin + first, (size_t)(at - begin - first), &rest));
        NBL_TRY(nbl__tpl_change_case(vm, CASE_UPPER, head, &head));
        NBL_TRY(nbl__tpl_change_case(vm, CASE_LOWER, rest, &rest));
        NBL_TRY(nbl__tpl_add_string(vm, &text, head.string));
        NBL_TRY(nbl__tpl_add_string(vm, &text, rest.string));
    }
    return nbl__tpl_take(vm, &text, result);
}

/* x|trim(chars): str.strip. */
static nbl_status filter_trim(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value chars;
    NBL_TRY(nbl__tpl_bind(vm, "trim", args, "chars", 0, &chars));
    NBL_TRY(nbl__tpl_soft_str(vm, v, &v));
    return nbl__tpl_strip(vm, v, chars, true, true, result);
}

/* x|center(width): str.center with blanks. */
static nbl_status filter_center(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a;
    int64_t width = 80;
    NBL_TRY(nbl__tpl_bind(vm, "center", args, "width", 0, &a));
    NBL_TRY(nbl__tpl_want_int(vm, a, &width));
    NBL_TRY(nbl__tpl_soft_str(vm, v, &v));
    NBL_TRY(nbl__tpl_center(vm, v.string, width, ' ', 0, result));
    result->markup = v.markup;
    return NBL_OK;
}

/* x|replace(old, new, count). Without autoescape all are plain text. With it, safe HTML on one side
 * makes the other side escaped, so that the result stays safe. */
static nbl_status filter_replace(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[3];
    int64_t count = -1;
    NBL_TRY(nbl__tpl_bind(vm, "replace", args, "old new count", 2, a));
    if (a[2].type != TPL_NONE) NBL_TRY(nbl__tpl_want_int(vm, a[2], &count));
    if (!vm->autoescape) {
        NBL_TRY(nbl__tpl_str(vm, v, &v));
        NBL_TRY(nbl__tpl_str(vm, a[0], &a[0]));
        NBL_TRY(nbl__tpl_str(vm, a[1], &a[1]));
        return nbl__tpl_replace(vm, v.string, a[0].string, a[1].string, count, result);
    }
    bool old = a[0].type == TPL_STRING && a[0].markup, new = a[1].type == TPL_STRING &&a[1].markup;
    if (old || (new && !(v.type == TPL_STRING && v.markup))) NBL_TRY(nbl__tpl_escape(vm, v, &v));
    else NBL_TRY(nbl__tpl_soft_str(vm, v, &v));
    NBL_TRY(nbl__tpl_soft_str(vm, a[0], &a[0]));
    NBL_TRY(nbl__tpl_soft_str(vm, a[1], &a[1]));
    if (v.markup) NBL_TRY(nbl__tpl_escape(vm, a[1], &a[1]));
    NBL_TRY(nbl__tpl_replace(vm, v.string, a[0].string, a[1].string, count, result));
    result->markup = v.markup;
    return NBL_OK;
}

/* '%s %s'|format(a, b) is the operator %. */
static nbl_status filter_format(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value values, *items;
    if (args->count && args->keyword_count)
        return nbl__tpl_raise(vm, "can't handle positional and keyword arguments at the same time");
    NBL_TRY(nbl__tpl_soft_str(vm, v, &v));
    if (args->keyword_count) {
        values = (tpl_value){.type = TPL_DICT};
        NBL_TRY(nbl__tpl_dict(vm, &values.dict));
        for (int64_t i = 0; i < args->keyword_count; i++)
            NBL_TRY(nbl__tpl_dict_set(vm, values.dict, args->keywords[i].name, args->keywords[i].value));
    } else {
        NBL_TRY(nbl__tpl_list(vm, TPL_TUPLE, args->count, &values, &items));
        if (args->count) memcpy(items, args->items, (size_t)args->count * sizeof *items);
    }
    return nbl__tpl_percent(vm, v, values, result);
}

/* x|indent(4): a line end becomes a line end and four blanks. The first line and empty lines are
 * left alone, unless `first` or `blank` is set. */
static nbl_status filter_indent(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[3], blanks, indent;
    int64_t width = 4;
    bool first = false, blank = false;
    tpl_text text = {0}, more = {0};
    tpl_items lines = {0};
    NBL_TRY(nbl__tpl_bind(vm, "indent", args, "width first blank", 0, a));
    NBL_TRY(nbl__tpl_want_truth(vm, a[1], &first));
    NBL_TRY(nbl__tpl_want_truth(vm, a[2], &blank));
    if (a[0].type == TPL_STRING) {
        indent = a[0];
    } else {
        NBL_TRY(nbl__tpl_want_int(vm, a[0], &width));
        NBL_TRY(nbl__tpl_cstring(vm, " ", &blanks));
        NBL_TRY(nbl__tpl_binary(vm, OP_MUL, blanks, tpl_int(width), &indent));
    }
    if (v.type == TPL_UNDEFINED) return nbl__tpl_raise_undefined(vm, v);
    if (v.type != TPL_STRING)
        return nbl__tpl_raise(vm, "TypeError: unsupported operand type(s) for +=: '%s' and 'str'",
                              nbl__tpl_type_name(v));
    if (v.markup && !indent.markup)
        NBL_TRY(a[0].type == TPL_STRING ? NBL_OK : nbl__tpl_escape(vm, indent, &indent));
    /* the line end that is added keeps an empty last line, which splitting into lines would drop */
    NBL_TRY(nbl__tpl_add_string(vm, &more, v.string));
    NBL_TRY(tpl_add_c(vm, &more, "\n"));
    tpl_string whole = {more.bytes, more.size, more.length};
    NBL_TRY(nbl__tpl_split_lines(vm, &whole, false, &lines));
    for (int64_t i = 0; i < lines.count; i++) {
        if (i) NBL_TRY(tpl_add_c(vm, &text, "\n"));
        if (i ? blank || lines.items[i].string->size : first)
            NBL_TRY(nbl__tpl_add_string(vm, &text, indent.string));
        NBL_TRY(nbl__tpl_add_string(vm, &text, lines.items[i].string));
    }
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = v.markup;
    return NBL_OK;
}

/* x|truncate(255): cuts a text that is longer than length + leeway, at the last blank, and adds
 * "...". With `killwords` it cuts inside a word. */
static nbl_status filter_truncate(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value a[4], cut;
    int64_t length = 255, leeway = 5;
    bool kill = false;
    static const tpl_string dots = {"...", 3, 3};
    const tpl_string *end = &dots;
    NBL_TRY(nbl__tpl_bind(vm, "truncate", args, "length killwords end leeway", 0, a));
    NBL_TRY(nbl__tpl_want_int(vm, a[0], &length));
    NBL_TRY(nbl__tpl_want_truth(vm, a[1], &kill));
    NBL_TRY(nbl__tpl_want_string(vm, a[2], &end));
    if (a[3].type != TPL_NONE) NBL_TRY(nbl__tpl_want_int(vm, a[3], &leeway));
    if (length < (int64_t)end->length)
        return nbl__tpl_raise(vm, "AssertionError: expected length >= %zu, got %" PRId64, end->length,
                              length);
    if (leeway < 0) return nbl__tpl_raise(vm, "AssertionError: expected leeway >= 0, got %" PRId64, leeway);
    if (v.type != TPL_STRING) {
        int64_t count;
        bool short_enough = nbl__tpl_length(v, &count) && count <= length + leeway;
        if (short_enough) return *result = v, NBL_OK;
        return nbl__tpl_raise(vm, "TypeError: object of type '%s' cannot be truncated",
                              nbl__tpl_type_name(v));
    }
    if (leeway > (int64_t)1 << 40 || (int64_t)v.string->length <= length + leeway) return *result = v, NBL_OK;
    tpl_text text = {0};
    NBL_TRY(nbl__tpl_substring(vm, v.string, 0, length - (int64_t)end->length, &cut));
    int64_t blank = kill ? -1 : nbl__tpl_find_last(cut.string->bytes, cut.string->size, " ", 1);
    NBL_TRY(nbl__tpl_add(vm, &text, cut.string->bytes, blank < 0 ? cut.string->size : (size_t)blank));
    NBL_TRY(nbl__tpl_add_string(vm, &text, end));
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = v.markup;
    return NBL_OK;
}

/* Counts runs of \w characters, as jinja2's regular expression does. */
static nbl_status filter_wordcount(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    int64_t count = 0;
    bool inside = false;
    int size;
    NBL_TRY(nbl__tpl_bind(vm, "wordcount", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_soft_str(vm, v, &v));
    NBL_TRY(tpl_read_characters(vm, v.string->size));
    for (size_t at = 0; at < v.string->size; at += (size_t)size) {
        uint32_t c = tpl_char(v.string->bytes + at, &size);
        bool part = c == '_' || nbl__tpl_is_alnum(c);
        count += part && !inside;
        inside = part;
    }
    return *result = tpl_int(count), NBL_OK;
}

/* Percent-encoding of the UTF-8 bytes. In a query string a blank is '+' and '/' is encoded. */
static nbl_status add_quoted(tpl_vm *vm, tpl_text *text, tpl_value v, bool query)
{
    tpl_value plain;
    NBL_TRY(nbl__tpl_str(vm, v, &plain));
    NBL_TRY(tpl_read_characters(vm, plain.string->size));
    for (size_t i = 0; i < plain.string->size; i++) {
        unsigned char c = (unsigned char)plain.string->bytes[i];
        char escape[8];
        bool safe = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
                    c == '.' || c == '-' || c == '~' || (c == '/' && !query);
        if (safe) snprintf(escape, sizeof escape, "%c", c);
        else if (query && c == ' ') snprintf(escape, sizeof escape, "+");
        else snprintf(escape, sizeof escape, "%%%02X", c);
        NBL_TRY(tpl_add_c(vm, text, escape));
    }
    return NBL_OK;
}

/* A text is quoted as a path. A dictionary or pairs become a query string: a=1&b=2. */
static nbl_status filter_urlencode(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_text text = {0};
    tpl_items pairs = {0};
    NBL_TRY(nbl__tpl_bind(vm, "urlencode", args, "", 0, NULL));
    if (v.type == TPL_STRING || !nbl__tpl_is_iterable(v)) {
        NBL_TRY(add_quoted(vm, &text, v, false));
        return nbl__tpl_take(vm, &text, result);
    }
    if (v.type == TPL_DICT) v = (tpl_value){.type = TPL_VIEW, .view = TPL_ITEMS, .dict = v.dict};
    NBL_TRY(nbl__tpl_collect(vm, v, &pairs));
    for (int64_t i = 0; i < pairs.count; i++) {
        tpl_items pair = {0};
        NBL_TRY(nbl__tpl_collect(vm, pairs.items[i], &pair));
        if (pair.count != 2) return nbl__tpl_raise(vm, "ValueError: pairs were expected to unpack");
        if (i) NBL_TRY(tpl_add_c(vm, &text, "&"));
        NBL_TRY(add_quoted(vm, &text, pair.items[0], true));
        NBL_TRY(tpl_add_c(vm, &text, "="));
        NBL_TRY(add_quoted(vm, &text, pair.items[1], true));
    }
    return nbl__tpl_take(vm, &text, result);
}

/* x|striptags: removes comments, then tags, and joins runs of white space to one blank. A text with
 * '&' is refused: jinja2 would resolve its HTML entities, and nibble has no table of them. */
static nbl_status filter_striptags(tpl_vm *vm, tpl_value v, const tpl_args *args, tpl_value *result)
{
    tpl_value plain;
    tpl_text text = {0}, joined = {0};
    NBL_TRY(nbl__tpl_bind(vm, "striptags", args, "", 0, NULL));
    NBL_TRY(nbl__tpl_str(vm, v, &plain));
    NBL_TRY(tpl_read_characters(vm, plain.string->size));
    const char *all = plain.string->bytes;
    size_t size = plain.string->size, at = 0;
    if (memchr(all, '&', size))
        return nbl__tpl_refuse(vm, "striptags of text with HTML entities is not supported");
    for (int pass = 0; pass < 2; pass++) { /* first comments, then tags */
        const char *open = pass ? "<" : "<!--", *close = pass ? ">" : "-->";
        tpl_text kept = {0};
        for (at = 0;;) {
            int64_t begin = nbl__tpl_find(all, size, open, strlen(open), at);
            int64_t end = begin < 0 ? -1
                                    : nbl__tpl_find(all, size, close, strlen(close),
                                                    (size_t)begin + (pass ? 0 : 4));
            if (end < 0) break;
            NBL_TRY(nbl__tpl_add(vm, &kept, all + at, (size_t)begin - at));
            at = (size_t)end + strlen(close);
        }
        NBL_TRY(nbl__tpl_add(vm, &kept, all + at, size - at));
        text = kept;
        all = text.bytes;
        size = text.size;
    }
    /* runs of white space become one blank, and none at the ends */
    bool pending = false;
    for (int n; at = (size_t)(all - text.bytes), at < size; all += n) {
        uint32_t c = tpl_char(all, &n);
        if (nbl__tpl_is_space(c)) {
            pending = joined.size > 0;
            continue;
        }
        if (pending) NBL_TRY(tpl_add_c(vm, &joined, " "));
        pending = false;
        NBL_TRY(nbl__tpl_add(vm, &joined, all, (size_t)n));
    }
    return nbl__tpl_take(vm, &joined, result);
}

const tpl_filter nbl__tpl_text_filters[] = {
    {"trim", filter_trim},
    {"upper", filter_upper},
    {"lower", filter_lower},
    {"title", filter_title},
    {"capitalize", filter_capitalize},
    {"replace", filter_replace},
    {"indent", filter_indent},
    {"center", filter_center},
    {"format", filter_format},
    {"truncate", filter_truncate},
    {"wordcount", filter_wordcount},
    {"urlencode", filter_urlencode},
    {"striptags", filter_striptags},
    {NULL, NULL},
};
