/* jinja_json.c - reads and writes JSON as Python's json module does.
 *
 * Reader: accepts big integers, NaN and repeated keys. Of repeated keys the last value counts, at
 * the position of the first. The input is not trusted: depth and memory are limited. Writer:
 * json.dumps with its parameters. */
#include <math.h>
#include <stdio.h>

#include "base/stack.h"
#include "base/number.h"
#include "base/utf8.h"
#include "text/template/runtime/jinja_runtime.h"

/* ---- reading ---- */

typedef struct reader {
    tpl_vm *vm;
    const char *where, *begin, *at, *end;
    int depth;
} reader;

static nbl_status wrong(const reader *r, const char *what)
{
    int line = 1, column = 1;
    for (const char *s = r->begin; s < r->at && s < r->end; s++) {
        if (*s == '\n') line++, column = 1;
        else column += ((unsigned char)*s & 0xc0) != 0x80;
    }
    return nbl__tpl_raise(r->vm, "%s: not valid JSON: %s at line %d, column %d", r->where, what, line,
                          column);
}

static void skip_blanks(reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r')) r->at++;
}

static bool accept(reader *r, const char *word)
{
    size_t size = strlen(word);
    if ((size_t)(r->end - r->at) < size || memcmp(r->at, word, size) != 0) return false;
    r->at += size;
    return true;
}

static bool read_hex(reader *r, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        if (r->at >= r->end) return false;
        char c = *r->at;
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : -1;
        if (digit < 0) return false;
        *code = *code << 4 | (uint32_t)digit;
    }
    return true;
}

static nbl_status read_escape(reader *r, tpl_text *text)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    uint32_t code, low;
    char c = r->at < r->end ? *r->at++ : 0;
    const char *name = c ? strchr(names, c) : NULL;
    if (name) return nbl__tpl_add(r->vm, text, &values[name - names], 1);
    if (c != 'u' || !read_hex(r, &code)) return wrong(r, "a bad escape in a string");
    if (code >= 0xd800 && code < 0xdc00) {
        if (!accept(r, "\\u") || !read_hex(r, &low) || low < 0xdc00 || low > 0xdfff)
            return wrong(r, "half of a surrogate pair");
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return wrong(r, "half of a surrogate pair");
    }
    return nbl__tpl_add_char(r->vm, text, code);
}

static nbl_status read_string(reader *r, tpl_value *value)
{
    tpl_text text = {0};
    for (;;) {
        const char *run = r->at;
        while (r->at < r->end && *r->at != '"' && *r->at != '\\' && (unsigned char)*r->at >= 0x20) {
            int n = nbl__utf8_length(r->at, r->end);
            if (n == 0) return wrong(r, "bytes that are not UTF-8");
            r->at += n;
        }
        NBL_TRY(nbl__tpl_add(r->vm, &text, run, (size_t)(r->at - run)));
        if (r->at >= r->end) return wrong(r, "a string without end");
        if (*r->at == '"') break;
        if (*r->at != '\\') return wrong(r, "a control character in a string");
        r->at++;
        NBL_TRY(read_escape(r, &text));
    }
    r->at++;
    return nbl__tpl_take(r->vm, &text, value);
}

static bool read_digits(reader *r)
{
    const char *begin = r->at;
    while (r->at < r->end && *r->at >= '0' && *r->at <= '9') r->at++;
    return r->at > begin;
}

static nbl_status read_number(reader *r, tpl_value *value)
{
    enum { MAX = 4300 };
    const char *begin = r->at;
    bool minus = accept(r, "-"), whole = true, over = false;
    if (accept(r, "Infinity")) return *value = tpl_float(minus ? -INFINITY : INFINITY), NBL_OK;
    if (!accept(r, "0") && !read_digits(r)) return wrong(r, "an unknown word");
    const char *after = r->at;
    if (accept(r, ".")) {
        if (read_digits(r)) after = r->at, whole = false;
        else return wrong(r, "a number without digits after its point");
    }
    if (r->at < r->end && (*r->at | 32) == 'e') {
        r->at++;
        if (!accept(r, "+")) accept(r, "-");
        if (!read_digits(r)) return wrong(r, "a number without digits in its exponent");
        after = r->at, whole = false;
    }
    size_t size = (size_t)(after - begin);
    char *copy, *end;
    int64_t integer = 0;
    for (const char *s = begin + minus; whole && s < after; s++)
        over |= __builtin_mul_overflow(integer, (int64_t)10, &integer) ||
                __builtin_sub_overflow(integer, (int64_t)(*s - '0'), &integer);
    over |= !minus && integer == INT64_MIN;
    if (whole && !over) return *value = tpl_int(minus ? integer : -integer), NBL_OK;
    if (whole && size > MAX) return wrong(r, "an integer of more than 4300 digits");
    NBL_TRY(TPL_NEW(r->vm, copy, size + 1));
    memcpy(copy, begin, size);
    if (!whole) return *value = tpl_float(nbl__parse_double(copy, &end)), NBL_OK;
    NBL_TRY(nbl__tpl_string(r->vm, copy, size, value));
    value->type = TPL_BIG;
    return NBL_OK;
}

static nbl_status read_value(reader *r, tpl_value *value);

static nbl_status read_array(reader *r, tpl_value *value)
{
    tpl_items items = {0};
    skip_blanks(r);
    if (!accept(r, "]")) {
        do {
            tpl_value item;
            NBL_TRY(read_value(r, &item));
            NBL_TRY(nbl__tpl_push(r->vm, &items, item));
            skip_blanks(r);
        } while (accept(r, ","));
        if (!accept(r, "]")) return wrong(r, "',' or ']' was expected");
    }
    return nbl__tpl_finish(r->vm, &items, TPL_LIST, value);
}

static nbl_status read_object(reader *r, tpl_value *value)
{
    *value = (tpl_value){.type = TPL_DICT};
    NBL_TRY(nbl__tpl_dict(r->vm, &value->dict));
    skip_blanks(r);
    if (accept(r, "}")) return NBL_OK;
    do {
        tpl_value key, item;
        skip_blanks(r);
        if (!accept(r, "\"")) return wrong(r, "a key was expected");
        NBL_TRY(read_string(r, &key));
        skip_blanks(r);
        if (!accept(r, ":")) return wrong(r, "':' was expected");
        NBL_TRY(read_value(r, &item));
        NBL_TRY(nbl__tpl_dict_set(r->vm, value->dict, key, item));
        skip_blanks(r);
    } while (accept(r, ","));
    return accept(r, "}") ? NBL_OK : wrong(r, "',' or '}' was expected");
}

static nbl_status read_value(reader *r, tpl_value *value)
{
    nbl_status status;
    skip_blanks(r);
    if (r->at >= r->end) return wrong(r, "it ends too early");
    if (accept(r, "\"")) return read_string(r, value);
    if (*r->at == '{' || *r->at == '[') {
        if (++r->depth > TPL_MAX_NESTING || nbl__stack_left() < TPL_STACK_RESERVE)
            return wrong(r, "nesting that is too deep");
        status = *r->at++ == '{' ? read_object(r, value) : read_array(r, value);
        r->depth--;
        return status;
    }
    if (accept(r, "null")) return *value = tpl_none(), NBL_OK;
    if (accept(r, "true")) return *value = tpl_bool(true), NBL_OK;
    if (accept(r, "false")) return *value = tpl_bool(false), NBL_OK;
    if (accept(r, "NaN")) return *value = tpl_float(NAN), NBL_OK;
    return read_number(r, value);
}

nbl_status nbl__tpl_from_json(tpl_vm *vm, const char *where, const char *text, size_t size, tpl_value *result)
{
    reader r = {.vm = vm, .where = where, .begin = text, .at = text, .end = text + size};
    NBL_TRY(read_value(&r, result));
    skip_blanks(&r);
    return r.at == r.end ? NBL_OK : wrong(&r, "something after the end");
}

/* ---- writing ---- */

static nbl_status write_string(tpl_vm *vm, tpl_text *text, const tpl_string *s, bool ascii)
{
    static const char short_names[] = "btnvfr"; /* escapes of 8 … 13; 11 has no short one */
    const char *run = s->bytes, *end = run + s->size;
    NBL_TRY(tpl_read(vm, s->size));
    NBL_TRY(nbl__tpl_add(vm, text, "\"", 1));
    for (const char *at = run; at < end;) {
        int size;
        char escape[16];
        uint32_t c = tpl_char(at, &size);
        if (c >= 0x20 && c != '"' && c != '\\' && (!ascii || c < 0x7f)) {
            at += size;
            continue;
        }
        NBL_TRY(nbl__tpl_add(vm, text, run, (size_t)(at - run)));
        at += size;
        run = at;
        if (c == '"' || c == '\\') snprintf(escape, sizeof escape, "\\%c", (int)c);
        else if (c >= 8 && c <= 13 && c != 11) snprintf(escape, sizeof escape, "\\%c", short_names[c - 8]);
        else if (c < 0x10000) snprintf(escape, sizeof escape, "\\u%04x", c);
        else
            snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                     0xdc00 + (c & 0x3ff));
        NBL_TRY(tpl_add_c(vm, text, escape));
    }
    NBL_TRY(nbl__tpl_add(vm, text, run, (size_t)(end - run)));
    return nbl__tpl_add(vm, text, "\"", 1);
}

typedef struct writer {
    tpl_vm *vm;
    tpl_text *text;
    const tpl_json_style *style;
} writer;

static nbl_status write_value(writer *w, tpl_value v, int level);

static nbl_status new_line(writer *w, int level)
{
    if (w->style->indent == NULL) return NBL_OK;
    NBL_TRY(nbl__tpl_add(w->vm, w->text, "\n", 1));
    for (int i = 0; i < level; i++)
        NBL_TRY(nbl__tpl_add(w->vm, w->text, w->style->indent, w->style->indent_size));
    return NBL_OK;
}

static nbl_status write_list(writer *w, const tpl_list *list, int level)
{
    if (list->count == 0) return tpl_add_c(w->vm, w->text, "[]");
    NBL_TRY(tpl_add_c(w->vm, w->text, "["));
    for (int64_t i = 0; i < list->count; i++) {
        if (i) NBL_TRY(nbl__tpl_add_string(w->vm, w->text, w->style->item));
        NBL_TRY(new_line(w, level + 1));
        NBL_TRY(write_value(w, list->items[i], level + 1));
    }
    NBL_TRY(new_line(w, level));
    return tpl_add_c(w->vm, w->text, "]");
}

static void number_text(tpl_value v, char text[40])
{
    if (v.type != TPL_FLOAT) {
        snprintf(text, 40, "%" PRId64, v.integer);
    } else if (isfinite(v.real)) {
        nbl__tpl_float_repr(v.real, text);
    } else {
        snprintf(text, 40, "%s", isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
    }
}

/* Writes a key. Numbers and constants become text; any other type is an error. */
static nbl_status write_key(writer *w, tpl_value key)
{
    char text[48];
    tpl_string spelled = {text, 0, 0};
    switch ((tpl_type)key.type) {
    case TPL_STRING: return write_string(w->vm, w->text, key.string, w->style->ascii);
    case TPL_NONE: snprintf(text, sizeof text, "null"); break;
    case TPL_BOOL: snprintf(text, sizeof text, key.integer ? "true" : "false"); break;
    case TPL_INT:
    case TPL_FLOAT: number_text(key, text); break;
    case TPL_BIG: return write_string(w->vm, w->text, key.string, w->style->ascii);
    default:
        return nbl__tpl_raise(w->vm, "TypeError: keys must be str, int, float, bool or None, not %s",
                              nbl__tpl_type_name(key));
    }
    spelled.size = spelled.length = strlen(text);
    return write_string(w->vm, w->text, &spelled, w->style->ascii);
}

static nbl_status write_dict(writer *w, const tpl_dict *dict, int level)
{
    tpl_value *keys = NULL, *order = NULL;
    if (dict->count == 0) return tpl_add_c(w->vm, w->text, "{}");
    if (w->style->sort) {
        NBL_TRY(TPL_NEW(w->vm, keys, dict->count));
        NBL_TRY(TPL_NEW(w->vm, order, dict->count));
        for (int64_t i = 0; i < dict->count; i++) keys[i] = dict->entries[i].key, order[i] = tpl_int(i);
        NBL_TRY(nbl__tpl_sort(w->vm, order, keys, dict->count, false));
    }
    NBL_TRY(tpl_add_c(w->vm, w->text, "{"));
    for (int64_t i = 0; i < dict->count; i++) {
        const tpl_entry *entry = &dict->entries[order ? order[i].integer : i];
        if (i) NBL_TRY(nbl__tpl_add_string(w->vm, w->text, w->style->item));
        NBL_TRY(new_line(w, level + 1));
        NBL_TRY(write_key(w, entry->key));
        NBL_TRY(nbl__tpl_add_string(w->vm, w->text, w->style->key));
        NBL_TRY(write_value(w, entry->value, level + 1));
    }
    NBL_TRY(new_line(w, level));
    return tpl_add_c(w->vm, w->text, "}");
}

static nbl_status write_value(writer *w, tpl_value v, int level)
{
    char text[40];
    nbl_status status;
    switch ((tpl_type)v.type) {
    case TPL_NONE: return tpl_add_c(w->vm, w->text, "null");
    case TPL_BOOL: return tpl_add_c(w->vm, w->text, v.integer ? "true" : "false");
    case TPL_INT:
    case TPL_FLOAT: number_text(v, text); return tpl_add_c(w->vm, w->text, text);
    case TPL_BIG: return nbl__tpl_add_string(w->vm, w->text, v.string);
    case TPL_STRING: return write_string(w->vm, w->text, v.string, w->style->ascii);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_DICT:
        NBL_TRY(nbl__tpl_enter(w->vm));
        status = v.type == TPL_DICT ? write_dict(w, v.dict, level) : write_list(w, v.list, level);
        w->vm->depth--;
        return status;
    default:
        return nbl__tpl_raise(w->vm, "TypeError: Object of type %s is not JSON serializable",
                              nbl__tpl_type_name(v));
    }
}

nbl_status nbl__tpl_to_json(tpl_vm *vm, tpl_text *text, tpl_value v, const tpl_json_style *style)
{
    writer w = {vm, text, style};
    return write_value(&w, v, 0);
}
