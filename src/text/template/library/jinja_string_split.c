/* jinja_string_split.c - the methods of str that split a text: split, rsplit, splitlines,
 * partition.
 *
 * Parts are borrowed from the text, and no text is copied. All functions are linear in the text.
 * Parts of safe HTML are safe HTML. */
#include "text/template/runtime/jinja_runtime.h"
#include "text/template/library/jinja_unicode.h"

/* Adds the bytes [begin, end) to the parts. They are borrowed from the text. */
static nbl_status push_part(tpl_vm *vm, tpl_items *parts, tpl_value self, const char *begin, const char *end)
{
    tpl_value part;
    NBL_TRY(nbl__tpl_string(vm, begin, (size_t)(end - begin), &part));
    part.markup = self.markup;
    return nbl__tpl_push(vm, parts, part);
}

/* Reverses the parts: a split from the end finds the last part first. */
static void turn_round(tpl_items *parts)
{
    for (int64_t i = 0, k = parts->count - 1; i < k; i++, k--) {
        tpl_value swap = parts->items[i];
        parts->items[i] = parts->items[k];
        parts->items[k] = swap;
    }
}

/* str.split() without a separator: runs of white space separate, and there are no empty parts. */
static nbl_status split_space(tpl_vm *vm, tpl_value self, int64_t max, tpl_items *parts)
{
    const char *at = self.string->bytes, *end = at + self.string->size;
    for (int size;;) {
        while (at < end && nbl__tpl_is_space(tpl_char(at, &size))) at += size;
        if (at == end) return NBL_OK;
        const char *begin = at;
        if (max-- == 0) return push_part(vm, parts, self, begin, end); /* the rest, as it is */
        while (at < end && !nbl__tpl_is_space(tpl_char(at, &size))) at += size;
        NBL_TRY(push_part(vm, parts, self, begin, at));
    }
}

/* The same from the end. Only `max` and the direction make a difference: 'a b c'.rsplit(none, 1) is
 * ['a b', 'c']. */
static nbl_status rsplit_space(tpl_vm *vm, tpl_value self, int64_t max, tpl_items *parts)
{
    const char *begin = self.string->bytes, *end = begin + self.string->size;
    int size;
    for (;;) {
        const char *last = end;
        while (end > begin) {
            for (last = end - 1; ((unsigned char)*last & 0xc0) == 0x80;) last--;
            if (!nbl__tpl_is_space(tpl_char(last, &size))) break;
            end = last;
        }
        if (end == begin) break;
        const char *from = end;
        if (max-- == 0) { /* the rest, as it is */
            NBL_TRY(push_part(vm, parts, self, begin, end));
            break;
        }
        while (from > begin) {
            for (last = from - 1; ((unsigned char)*last & 0xc0) == 0x80;) last--;
            if (nbl__tpl_is_space(tpl_char(last, &size))) break;
            from = last;
        }
        NBL_TRY(push_part(vm, parts, self, from, end));
        end = from;
    }
    turn_round(parts);
    return NBL_OK;
}

/* str.split(by): every occurrence separates, so ',a'.split(',') is ['', 'a']. */
static nbl_status split_by(tpl_vm *vm, tpl_value self, const tpl_string *by, int64_t max, bool from_end,
                           tpl_items *parts)
{
    const char *begin = self.string->bytes, *end = begin + self.string->size;
    for (int64_t at; max != 0; max--) {
        size_t size = (size_t)(end - begin);
        at = from_end ? nbl__tpl_find_last(begin, size, by->bytes, by->size)
                      : nbl__tpl_find(begin, size, by->bytes, by->size, 0);
        if (at < 0) break;
        if (from_end) {
            NBL_TRY(push_part(vm, parts, self, begin + at + by->size, end));
            end = begin + at;
        } else {
            NBL_TRY(push_part(vm, parts, self, begin, begin + at));
            begin += at + (int64_t)by->size;
        }
    }
    NBL_TRY(push_part(vm, parts, self, begin, end));
    if (from_end) turn_round(parts);
    return NBL_OK;
}

/* str.split and rsplit. A maxsplit that is missing or negative splits everywhere. */
static nbl_status split(tpl_vm *vm, tpl_value self, const tpl_args *args, bool from_end, tpl_value *result)
{
    tpl_value v[2];
    const tpl_string *by = NULL;
    int64_t max = -1;
    tpl_items parts = {0};
    NBL_TRY(nbl__tpl_bind(vm, "split", args, "sep maxsplit", 0, v));
    NBL_TRY(nbl__tpl_want_int(vm, v[1], &max));
    NBL_TRY(tpl_read_characters(vm, self.string->size));
    if (v[0].type == TPL_MISSING || v[0].type == TPL_NONE) {
        NBL_TRY((from_end ? rsplit_space : split_space)(vm, self, max, &parts));
    } else {
        NBL_TRY(nbl__tpl_want_string(vm, v[0], &by));
        if (by->size == 0) return nbl__tpl_raise(vm, "ValueError: empty separator");
        NBL_TRY(split_by(vm, self, by, max, from_end, &parts));
    }
    return nbl__tpl_finish(vm, &parts, TPL_LIST, result);
}

/* The methods: split from the start, and rsplit from the end. */
static nbl_status str_split(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return split(vm, self, args, false, result);
}

static nbl_status str_rsplit(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return split(vm, self, args, true, result);
}

/* Splits at the line ends that Python knows: \n \r \r\n \v \f \x1c-\x1e \x85 U+2028 U+2029. A line
 * end at the end of the text does not begin another line. */
nbl_status nbl__tpl_split_lines(tpl_vm *vm, const tpl_string *s, bool keep_ends, tpl_items *lines)
{
    const char *begin = s->bytes, *end = begin + s->size;
    tpl_value plain = {.type = TPL_STRING};
    NBL_TRY(tpl_read(vm, s->size));
    for (const char *at = begin; at < end;) {
        int size;
        uint32_t c = tpl_char(at, &size);
        bool breaks = (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
                      c == 0x2029;
        if (breaks) {
            const char *next = at + size + (c == '\r' && at + 1 < end && at[1] == '\n');
            NBL_TRY(push_part(vm, lines, plain, begin, keep_ends ? next : at));
            begin = at = next;
        } else {
            at += size;
        }
    }
    return begin < end ? push_part(vm, lines, plain, begin, end) : NBL_OK;
}

/* str.splitlines(keepends). The lines are views into the text. */
static nbl_status str_splitlines(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value v;
    bool keep = false;
    tpl_items lines = {0};
    NBL_TRY(nbl__tpl_bind(vm, "splitlines", args, "keepends", 0, &v));
    NBL_TRY(nbl__tpl_want_truth(vm, v, &keep));
    NBL_TRY(nbl__tpl_split_lines(vm, self.string, keep, &lines));
    for (int64_t i = 0; i < lines.count; i++) lines.items[i].markup = self.markup;
    return nbl__tpl_finish(vm, &lines, TPL_LIST, result);
}

/* 'a=b=c'.partition('=') is ('a', '=', 'b=c'). Without the separator the text is the first part, or
 * for rpartition the last. */
static nbl_status partition(tpl_vm *vm, tpl_value self, const tpl_args *args, bool last, tpl_value *result)
{
    tpl_value v;
    const tpl_string *s = self.string, *by;
    tpl_items parts = {0};
    NBL_TRY(nbl__tpl_bind(vm, "partition", args, "/sep", 1, &v));
    NBL_TRY(nbl__tpl_want_string(vm, v, &by));
    if (by->size == 0) return nbl__tpl_raise(vm, "ValueError: empty separator");
    NBL_TRY(tpl_read(vm, s->size));
    int64_t at = last ? nbl__tpl_find_last(s->bytes, s->size, by->bytes, by->size)
                      : nbl__tpl_find(s->bytes, s->size, by->bytes, by->size, 0);
    const char *end = s->bytes + s->size;
    const char *from = at >= 0 ? s->bytes + at
                       : last  ? s->bytes
                               : end,
               *to = at >= 0 ? from + by->size : from;
    NBL_TRY(push_part(vm, &parts, self, s->bytes, from));
    NBL_TRY(push_part(vm, &parts, self, from, to));
    if (at >= 0 && v.markup)
        parts.items[1].markup = v.markup; /* the middle part is the separator: Markup too */
    NBL_TRY(push_part(vm, &parts, self, to, end));
    return nbl__tpl_finish(vm, &parts, TPL_TUPLE, result);
}

static nbl_status str_partition(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return partition(vm, self, args, false, result);
}

static nbl_status str_rpartition(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return partition(vm, self, args, true, result);
}

const tpl_method nbl__tpl_split_methods[] = {
    {"split", str_split},         {"rsplit", str_rsplit},         {"splitlines", str_splitlines},
    {"partition", str_partition}, {"rpartition", str_rpartition}, {NULL, NULL},
};
