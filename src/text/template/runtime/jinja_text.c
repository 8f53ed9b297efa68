/* jinja_text.c - turns values into text: str, repr, HTML escapes, and the shortest digits of a
 * float.
 *
 *     value        str            repr
 *     it's         it's           "it's"
 *     none         None           None
 *     1.0          1.0            1.0
 *     ['a', 1]     ['a', 1]       ['a', 1]     items are always shown by repr
 *     undefined    (nothing)      Undefined
 *
 * A tpl_text grows by doubling in the arena. Its size and its number of characters are counted
 * while it grows, so that taking it (nbl__tpl_take) costs nothing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number.h"
#include "text/template/runtime/jinja_runtime.h"
#include "text/template/library/jinja_unicode.h"

/* ---- growing ---- */

/* Appends bytes, which are whole characters. All output passes here, so the limits on its size and
 * on work hold everywhere. */
nbl_status nbl__tpl_add(tpl_vm *vm, tpl_text *text, const char *bytes, size_t size)
{
    if (size > TPL_MAX_OUTPUT - text->size)
        return nbl__tpl_refuse(vm, "a text becomes too long: more than %d MiB", TPL_MAX_OUTPUT >> 20);
    NBL_TRY(tpl_read(vm, size));
    if (text->room - text->size < size) {
        size_t room = (text->size + size) * 2 + 64;
        char *grown;
        NBL_TRY(TPL_NEW(vm, grown, room));
        if (text->size) memcpy(grown, text->bytes, text->size);
        text->bytes = grown;
        text->room = room;
    }
    if (size) memcpy(text->bytes + text->size, bytes, size);
    for (size_t i = 0; i < size; i++) text->length += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    text->size += size;
    return NBL_OK;
}

nbl_status nbl__tpl_add_string(tpl_vm *vm, tpl_text *text, const tpl_string *string)
{
    return nbl__tpl_add(vm, text, string->bytes, string->size);
}

/* Appends one character as UTF-8. */
nbl_status nbl__tpl_add_char(tpl_vm *vm, tpl_text *text, uint32_t c)
{
    char bytes[4];
    return nbl__tpl_add(vm, text, bytes, (size_t)nbl__char_put(bytes, c));
}

/* No copy: the string points to the bytes of the text. So the text must not grow afterwards. */
nbl_status nbl__tpl_take(tpl_vm *vm, const tpl_text *text, tpl_value *result)
{
    tpl_string *string;
    NBL_TRY(TPL_NEW(vm, string, 1));
    *string = (tpl_string){text->bytes ? text->bytes : "", text->size, text->length};
    *result = tpl_of_string(string);
    return NBL_OK;
}

/* ---- repr ---- */

/* Python's repr of a text: in single quotes, or in double quotes if it contains single ones only.
 * Characters that are not printable are escaped: \n, \x1b, \u200b. */
static nbl_status add_string_repr(tpl_vm *vm, tpl_text *text, const tpl_string *s)
{
    bool single = memchr(s->bytes, '\'', s->size) != NULL, both = single && memchr(s->bytes, '"', s->size);
    char quote = single && !both ? '"' : '\'';
    NBL_TRY(tpl_read_characters(vm, s->size));
    NBL_TRY(nbl__tpl_add(vm, text, &quote, 1));
    const char *run = s->bytes, *end = s->bytes + s->size;
    for (const char *at = run; at < end;) {
        int size;
        uint32_t c = tpl_char(at, &size);
        bool plain = c == (uint32_t)quote || c == '\\' ? false : nbl__tpl_is_printable(c);
        if (plain) {
            at += size;
            continue;
        }
        NBL_TRY(nbl__tpl_add(vm, text, run, (size_t)(at - run)));
        at += size;
        run = at;
        char escape[16];
        if (c == (uint32_t)quote || c == '\\') snprintf(escape, sizeof escape, "\\%c", (int)c);
        else if (c == '\n') snprintf(escape, sizeof escape, "\\n");
        else if (c == '\r') snprintf(escape, sizeof escape, "\\r");
        else if (c == '\t') snprintf(escape, sizeof escape, "\\t");
        else if (c < 0x100) snprintf(escape, sizeof escape, "\\x%02x", c);
        else if (c < 0x10000) snprintf(escape, sizeof escape, "\\u%04x", c);
        else snprintf(escape, sizeof escape, "\\U%08x", c);
        NBL_TRY(tpl_add_c(vm, text, escape));
    }
    NBL_TRY(nbl__tpl_add(vm, text, run, (size_t)(end - run)));
    return nbl__tpl_add(vm, text, &quote, 1);
}

/* Items by their repr, separated by ", ". */
static nbl_status add_items(tpl_vm *vm, tpl_text *text, const tpl_list *list, const char *open,
                            const char *close)
{
    NBL_TRY(tpl_add_c(vm, text, open));
    for (int64_t i = 0; i < list->count; i++) {
        if (i) NBL_TRY(tpl_add_c(vm, text, ", "));
        NBL_TRY(nbl__tpl_add_repr(vm, text, list->items[i]));
    }
    return tpl_add_c(vm, text, close);
}

/* Keys and values by their repr, in the order of insertion. */
static nbl_status add_dict(tpl_vm *vm, tpl_text *text, const tpl_dict *dict)
{
    NBL_TRY(tpl_add_c(vm, text, "{"));
    for (int64_t i = 0; i < dict->count; i++) {
        if (i) NBL_TRY(tpl_add_c(vm, text, ", "));
        NBL_TRY(nbl__tpl_add_repr(vm, text, dict->entries[i].key));
        NBL_TRY(tpl_add_c(vm, text, ": "));
        NBL_TRY(nbl__tpl_add_repr(vm, text, dict->entries[i].value));
    }
    return tpl_add_c(vm, text, "}");
}

/* A view shows its items: dict_keys(['a', 'b']). */
static nbl_status add_view(tpl_vm *vm, tpl_text *text, tpl_value v)
{
    tpl_items items = {0};
    tpl_value list;
    NBL_TRY(nbl__tpl_collect(vm, v, &items));
    NBL_TRY(nbl__tpl_finish(vm, &items, TPL_LIST, &list));
    NBL_TRY(tpl_add_c(vm, text, nbl__tpl_type_name(v)));
    return add_items(vm, text, list.list, "([", "])");
}

/* Writes an object whose text in Python contains its address. The address is fixed here, because
 * the output must not differ from run to run. */
static nbl_status add_address(tpl_vm *vm, tpl_text *text, tpl_value v)
{
    char line[160];
    if (v.type == TPL_FUNCTION && v.function->owner)
        snprintf(line, sizeof line, "<built-in method %s of %s object at 0x7f0000000000>", v.function->name,
                 v.function->owner);
    else if (v.type == TPL_FUNCTION)
        snprintf(line, sizeof line, "<function %s at 0x7f0000000000>", v.function->name);
    else snprintf(line, sizeof line, "<%s object at 0x7f0000000000>", nbl__tpl_type_name(v));
    return tpl_add_c(vm, text, line);
}

/* Containers and objects. The caller has entered one level of depth. */
static nbl_status add_compound_repr(tpl_vm *vm, tpl_text *text, tpl_value v)
{
    char line[96];
    switch ((tpl_type)v.type) {
    case TPL_LIST: return add_items(vm, text, v.list, "[", "]");
    case TPL_TUPLE: return add_items(vm, text, v.list, "(", v.list->count == 1 ? ",)" : ")");
    case TPL_DICT: return add_dict(vm, text, v.dict);
    case TPL_VIEW: return add_view(vm, text, v);
    case TPL_NAMESPACE:
        NBL_TRY(tpl_add_c(vm, text, "<Namespace "));
        NBL_TRY(add_dict(vm, text, v.dict));
        return tpl_add_c(vm, text, ">");
    case TPL_RANGE:
        snprintf(line, sizeof line, "range(%" PRId64 ", %" PRId64, v.range->start, v.range->stop);
        NBL_TRY(tpl_add_c(vm, text, line));
        snprintf(line, sizeof line, v.range->step == 1 ? ")" : ", %" PRId64 ")", v.range->step);
        return tpl_add_c(vm, text, line);
    case TPL_MACRO: return nbl__tpl_add_macro_repr(vm, text, v.macro);
    case TPL_LOOP: return nbl__tpl_add_loop_repr(vm, text, v.loop);
    case TPL_OBJECT:
        if (v.object->kind == TPL_SELF) return tpl_add_c(vm, text, "<TemplateReference None>");
        break;
    default: break;
    }
    return add_address(vm, text, v);
}

/* The repr of a value. Containers count as depth, because they nest. */
nbl_status nbl__tpl_add_repr(tpl_vm *vm, tpl_text *text, tpl_value v)
{
    char line[40];
    switch ((tpl_type)v.type) {
    case TPL_MISSING: return tpl_add_c(vm, text, "missing");
    case TPL_UNDEFINED: return tpl_add_c(vm, text, "Undefined");
    case TPL_NONE: return tpl_add_c(vm, text, "None");
    case TPL_BOOL: return tpl_add_c(vm, text, v.integer ? "True" : "False");
    case TPL_INT: snprintf(line, sizeof line, "%" PRId64, v.integer); return tpl_add_c(vm, text, line);
    case TPL_BIG: return nbl__tpl_add_string(vm, text, v.string);
    case TPL_FLOAT: nbl__print_repr(v.real, line); return tpl_add_c(vm, text, line);
    case TPL_STRING:
        if (!v.markup) return add_string_repr(vm, text, v.string);
        NBL_TRY(tpl_add_c(vm, text, "Markup("));
        NBL_TRY(add_string_repr(vm, text, v.string));
        return tpl_add_c(vm, text, ")");
    default: break;
    }
    NBL_TRY(nbl__tpl_enter(vm));
    NBL_TRY(add_compound_repr(vm, text, v));
    vm->depth--;
    return NBL_OK;
}

/* ---- str ---- */

/* str(v): a text is itself, an undefined value is empty, and everything else is its repr. */
nbl_status nbl__tpl_add_str(tpl_vm *vm, tpl_text *text, tpl_value v)
{
    if (v.type == TPL_STRING) return nbl__tpl_add_string(vm, text, v.string);
    if (v.type == TPL_UNDEFINED) return NBL_OK;
    return nbl__tpl_add_repr(vm, text, v);
}

/* str(v) as a value. The mark of safe HTML is dropped, as str(Markup) does. */
nbl_status nbl__tpl_str(tpl_vm *vm, tpl_value v, tpl_value *result)
{
    if (v.type == TPL_STRING) return v.markup = false, *result = v, NBL_OK;
    tpl_text text = {0};
    NBL_TRY(nbl__tpl_add_str(vm, &text, v));
    return nbl__tpl_take(vm, &text, result);
}

nbl_status nbl__tpl_soft_str(tpl_vm *vm, tpl_value v, tpl_value *result)
{
    if (v.type == TPL_STRING) return *result = v, NBL_OK;
    return nbl__tpl_str(vm, v, result);
}

/* Appends HTML with the five special characters escaped, as markupsafe does. */
nbl_status nbl__tpl_add_escaped(tpl_vm *vm, tpl_text *text, const tpl_string *string)
{
    const char *run = string->bytes, *end = run + string->size;
    NBL_TRY(tpl_read(vm, string->size));
    for (const char *at = run; at < end; at++) {
        const char *to = *at == '&'    ? "&amp;"
                         : *at == '<'  ? "&lt;"
                         : *at == '>'  ? "&gt;"
                         : *at == '\'' ? "&#39;"
                         : *at == '"'  ? "&#34;"
                                       : NULL;
        if (to == NULL) continue;
        NBL_TRY(nbl__tpl_add(vm, text, run, (size_t)(at - run)));
        NBL_TRY(tpl_add_c(vm, text, to));
        run = at + 1;
    }
    return nbl__tpl_add(vm, text, run, (size_t)(end - run));
}

/* markupsafe.escape: a text that is safe already is returned unchanged. */
nbl_status nbl__tpl_escape(tpl_vm *vm, tpl_value v, tpl_value *result)
{
    if (v.type == TPL_STRING && v.markup) return *result = v, NBL_OK;
    tpl_value plain;
    tpl_text text = {0};
    NBL_TRY(nbl__tpl_str(vm, v, &plain));
    NBL_TRY(nbl__tpl_add_escaped(vm, &text, plain.string));
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = true;
    return NBL_OK;
}

/* Names, numbers and none are shown by repr, everything else by its type. Never fails: without
 * memory the text is "?". */
const char *nbl__tpl_shown(tpl_vm *vm, tpl_value v)
{
    enum { MAX = 200 };
    tpl_text text = {0};
    if (v.type == TPL_STRING && v.string->size > MAX) return "a long name";
    if (!tpl_is_number(v) && v.type != TPL_STRING && v.type != TPL_NONE) return nbl__tpl_type_name(v);
    if (nbl__tpl_add_repr(vm, &text, v) != NBL_OK || nbl__tpl_add(vm, &text, "", 1) != NBL_OK) return "?";
    return text.bytes;
}
