/* json_write.c - see json_write.h. */
#include "base/json/json_write.h"

#include <math.h>
#include <stdio.h>

#include "base/number.h"
#include "base/utf8.h"

const nbl__json_style nbl__json_style_line = {.item = {", ", 2}, .key = {": ", 2}};

static nbl_status add_to_text(void *to, const char *bytes, size_t size)
{
    nbl__text *text = to;
    nbl__text_add(text, bytes, size);
    return text->status;
}

nbl__json_writer nbl__json_to_text(nbl__text *text, const nbl__json_style *style)
{
    return (nbl__json_writer){.add = add_to_text, .to = text, .style = style};
}

/* ---- arrays and objects ---- */

static nbl_status new_line(nbl__json_writer *w)
{
    if (w->style->indent == NULL) return NBL_OK;
    NBL_TRY(w->add(w->to, "\n", 1));
    for (int i = 0; i < w->level; i++) NBL_TRY(w->add(w->to, w->style->indent, w->style->indent_size));
    return NBL_OK;
}

nbl_status nbl__json_open(nbl__json_writer *w, char bracket)
{
    w->level++;
    w->filled = false;
    return w->add(w->to, &bracket, 1);
}

nbl_status nbl__json_close(nbl__json_writer *w, char bracket)
{
    assert(w->level > 0);
    w->level--;
    if (w->filled) NBL_TRY(new_line(w)); /* empty ones stay in one line */
    w->filled = true;                    /* what it was in has an item: this one */
    return w->add(w->to, &bracket, 1);
}

nbl_status nbl__json_item(nbl__json_writer *w)
{
    if (w->filled) NBL_TRY(w->add(w->to, w->style->item.text, w->style->item.size));
    w->filled = true;
    return new_line(w);
}

nbl_status nbl__json_key(nbl__json_writer *w, const char *key, size_t size)
{
    NBL_TRY(nbl__json_item(w));
    NBL_TRY(nbl__json_string(w, key, size));
    return w->add(w->to, w->style->key.text, w->style->key.size);
}

/* ---- strings ---- */

static int unicode_escape(bool capitals, uint32_t unit, char text[8])
{
    return snprintf(text, 8, capitals ? "\\u%04X" : "\\u%04x", unit & 0xffff);
}

/* Writes the escape of a character. Returns its length. */
static int escape(const nbl__json_style *style, uint32_t c, char text[16])
{
    static const char short_names[] = "btnvfr"; /* of 8 … 13; 11 has none and is not looked up */
    if (c == '"' || c == '\\') return snprintf(text, 16, "\\%c", (int)c);
    if (c >= 8 && c <= 13 && c != 11) return snprintf(text, 16, "\\%c", short_names[c - 8]);
    if (c < 0x10000) return unicode_escape(style->jansson, c, text);
    int length = unicode_escape(style->jansson, 0xd7c0 + (c >> 10), text);
    return length + unicode_escape(style->jansson, 0xdc00 + (c & 0x3ff), text + length);
}

/* Copies runs of ordinary characters, and escapes those between them. */
nbl_status nbl__json_string(nbl__json_writer *w, const char *text, size_t size)
{
    const char *run = text, *end = text + size;
    char escaped[16];
    NBL_TRY(w->add(w->to, "\"", 1));
    for (const char *at = text; at < end;) {
        uint32_t c = (unsigned char)*at;
        int n = 1;
        if (c >= 0x20 && c != '"' && c != '\\' && (c < 0x7f || !w->style->ascii)) {
            at++;
            continue;
        }
        NBL_TRY(w->add(w->to, run, (size_t)(at - run)));
        if (c >= 0x80 && nbl__utf8_length(at, end)) n = nbl__char_get(at, &c);
        NBL_TRY(w->add(w->to, escaped, (size_t)escape(w->style, c, escaped)));
        run = at += n;
    }
    NBL_TRY(w->add(w->to, run, (size_t)(end - run)));
    return w->add(w->to, "\"", 1);
}

static void text_json(nbl__text *t, const char *string, bool ascii)
{
    nbl__json_style style = {.ascii = ascii};
    nbl__json_writer w = nbl__json_to_text(t, &style);
    (void)nbl__json_string(&w, string, strlen(string)); /* t->status has a failure */
}

void nbl__text_json(nbl__text *t, const char *string)
{
    text_json(t, string, false);
}

void nbl__text_json_ascii(nbl__text *t, const char *string)
{
    text_json(t, string, true);
}

/* ---- other values ---- */

nbl_status nbl__json_word(nbl__json_writer *w, const char *word)
{
    return w->add(w->to, word, strlen(word));
}

nbl_status nbl__json_integer(nbl__json_writer *w, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    return nbl__json_word(w, text);
}

/* 17 digits without needless zeros, with a point or an exponent, which has no '+' and no leading
 * zeros. */
static void print_as_jansson(double value, char text[40])
{
    nbl__print_general(text, 36, 17, value);
    char *e = strchr(text, 'e');
    if (e == NULL) {
        if (strchr(text, '.') == NULL) strcat(text, ".0");
        return;
    }
    char *to = e[1] == '-' ? e + 2 : e + 1, *digits = e + 2;
    while (*digits == '0') digits++;
    memmove(to, digits, strlen(digits) + 1);
}

nbl_status nbl__json_real(nbl__json_writer *w, double value)
{
    char text[40];
    if (!isfinite(value)) return nbl__json_word(w, "null"); /* JSON has no NaN and no infinities */
    if (w->style->jansson) print_as_jansson(value, text);
    else nbl__print_repr(value, text);
    return nbl__json_word(w, text);
}

void nbl__text_real(nbl__text *t, double value)
{
    nbl__json_writer w = nbl__json_to_text(t, &nbl__json_style_line);
    (void)nbl__json_real(&w, value);
}

nbl_status nbl__json_write(nbl__json_writer *w, const nbl__json *value)
{
    switch (value->type) {
    case NBL_JSON_NULL: return nbl__json_word(w, "null");
    case NBL_JSON_FALSE: return nbl__json_word(w, "false");
    case NBL_JSON_TRUE: return nbl__json_word(w, "true");
    case NBL_JSON_INTEGER: return nbl__json_integer(w, value->integer);
    case NBL_JSON_REAL: return nbl__json_real(w, value->real);
    case NBL_JSON_DIGITS_KEPT: return w->add(w->to, value->string, (size_t)value->count);
    case NBL_JSON_STRING: return nbl__json_string(w, value->string, (size_t)value->count);
    case NBL_JSON_ARRAY:
        NBL_TRY(nbl__json_open(w, '['));
        for (int64_t i = 0; i < value->count; i++) {
            NBL_TRY(nbl__json_item(w));
            NBL_TRY(nbl__json_write(w, &value->items[i]));
        }
        return nbl__json_close(w, ']');
    case NBL_JSON_OBJECT:
        NBL_TRY(nbl__json_open(w, '{'));
        for (int64_t i = 0; i < value->count; i++) {
            if (w->style->no_nulls && value->items[i].type == NBL_JSON_NULL) continue;
            NBL_TRY(nbl__json_key(w, value->items[i].key, value->items[i].key_size));
            NBL_TRY(nbl__json_write(w, &value->items[i]));
        }
        return nbl__json_close(w, '}');
    }
    return NBL_ERROR_INTERNAL;
}
