/* jinja_string_methods.c - the methods of str that search, strip, replace, pad and join.
 *
 * Positions are counted in characters, as in Python; texts are UTF-8. Searches for long texts use a
 * rolling hash (Rabin-Karp), so that they are linear. A byte search is a character search, because
 * no UTF-8 character begins inside another.
 *
 * The result of a method of safe HTML (Markup) is safe HTML too, and texts that are put into it are
 * escaped. */
#include "text/template/runtime/jinja_runtime.h"
#include "text/template/library/jinja_unicode.h"

/* ---- searching ---- */

/* Rabin-Karp search, for parts that are too long for memchr and memcmp at each position. */
static int64_t find_long(const char *all, size_t size, const char *part, size_t part_size, size_t from)
{
    uint64_t want = 0, have = 0, top = 1;
    for (size_t i = 0; i < part_size; i++) {
        want = want * 0x100000001b3u + (unsigned char)part[i];
        have = have * 0x100000001b3u + (unsigned char)all[from + i];
        if (i) top *= 0x100000001b3u;
    }
    for (size_t at = from;; at++) {
        if (have == want && memcmp(all + at, part, part_size) == 0) return (int64_t)at;
        if (at + part_size >= size) return -1;
        have = (have - top * (unsigned char)all[at]) * 0x100000001b3u + (unsigned char)all[at + part_size];
    }
}

/* Short parts are searched by memchr for their first byte; at most LONG bytes are compared at each
 * hit, so this is linear too. */
int64_t nbl__tpl_find(const char *all, size_t size, const char *part, size_t part_size, size_t from)
{
    enum { LONG = 32 };
    if (part_size > size || from > size - part_size) return -1;
    if (part_size == 0) return (int64_t)from;
    if (part_size > LONG) return find_long(all, size, part, part_size, from);
    const char *at = all + from, *last = all + size - part_size;
    while (at <= last && (at = memchr(at, part[0], (size_t)(last - at) + 1))) {
        if (memcmp(at, part, part_size) == 0) return at - all;
        at++;
    }
    return -1;
}

/* Always by the rolling hash: there is no memrchr in standard C. */
int64_t nbl__tpl_find_last(const char *all, size_t size, const char *part, size_t part_size)
{
    uint64_t want = 0, have = 0, top = 1;
    if (part_size > size) return -1;
    if (part_size == 0) return (int64_t)size;
    for (size_t i = part_size; i-- > 0;) { /* the rolling hash of find_long, from right to left */
        want = want * 0x100000001b3u + (unsigned char)part[i];
        have = have * 0x100000001b3u + (unsigned char)all[size - part_size + i];
        if (i) top *= 0x100000001b3u;
    }
    for (size_t at = size - part_size;; at--) {
        if (have == want && memcmp(all + at, part, part_size) == 0) return (int64_t)at;
        if (at == 0) return -1;
        have = (have - top * (unsigned char)all[at + part_size - 1]) * 0x100000001b3u +
               (unsigned char)all[at - 1];
    }
}

/* Characters in valid UTF-8: all bytes but continuation bytes. */
static int64_t count_characters(const char *bytes, size_t size)
{
    int64_t n = 0;
    for (size_t i = 0; i < size; i++) n += ((unsigned char)bytes[i] & 0xc0) != 0x80;
    return n;
}

/* Returns the part of a string between two optional positions, which find and startswith take.
 * *valid is false if the start is behind the end of the string. */
static nbl_status window(tpl_vm *vm, const tpl_string *s, tpl_value start, tpl_value end, tpl_string *part,
                         int64_t *first, bool *valid)
{
    int64_t length = (int64_t)s->length, low = 0, high = length;
    if (start.type != TPL_NONE) NBL_TRY(nbl__tpl_want_int(vm, start, &low));
    if (end.type != TPL_NONE) NBL_TRY(nbl__tpl_want_int(vm, end, &high));
    if (low < 0) low = nbl__max_i64(0, low + length);
    if (high < 0) high = nbl__max_i64(0, high + length);
    high = nbl__min_i64(high, length);
    *valid = low <= high;
    *first = low;
    if (!*valid) return NBL_OK;
    size_t begin = nbl__tpl_offset(s, low), stop = nbl__tpl_offset(s, high);
    *part = (tpl_string){s->bytes + begin, stop - begin, (size_t)(high - low)};
    return tpl_read(vm, s->size);
}

/* str.find and its kin: the position in characters, or -1. */
static nbl_status find_text(tpl_vm *vm, tpl_value self, const tpl_args *args, const char *name, bool last,
                            int64_t *found)
{
    tpl_value v[3];
    const tpl_string *sub;
    tpl_string part;
    int64_t first;
    bool valid;
    NBL_TRY(nbl__tpl_bind(vm, name, args, "/sub start end", 1, v));
    NBL_TRY(nbl__tpl_want_string(vm, v[0], &sub));
    NBL_TRY(window(vm, self.string, v[1], v[2], &part, &first, &valid));
    *found = -1;
    if (!valid) return NBL_OK;
    NBL_TRY(tpl_read(vm, part.size));
    int64_t at = last ? nbl__tpl_find_last(part.bytes, part.size, sub->bytes, sub->size)
                      : nbl__tpl_find(part.bytes, part.size, sub->bytes, sub->size, 0);
    if (at >= 0) *found = first + count_characters(part.bytes, (size_t)at);
    return NBL_OK;
}

/* The methods: each is one of the functions above with its direction. */
static nbl_status str_find(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    *result = tpl_int(0);
    return find_text(vm, self, args, "find", false, &result->integer);
}

static nbl_status str_rfind(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    *result = tpl_int(0);
    return find_text(vm, self, args, "rfind", true, &result->integer);
}

/* index() is find() that fails. */
static nbl_status index_text(tpl_vm *vm, tpl_value self, const tpl_args *args, bool last, tpl_value *result)
{
    *result = tpl_int(0);
    NBL_TRY(find_text(vm, self, args, "index", last, &result->integer));
    return result->integer < 0 ? nbl__tpl_raise(vm, "ValueError: substring not found") : NBL_OK;
}

static nbl_status str_index(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return index_text(vm, self, args, false, result);
}

static nbl_status str_rindex(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return index_text(vm, self, args, true, result);
}

/* Counts occurrences that do not overlap. "" occurs before each character and at the end. */
static nbl_status str_count(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value v[3];
    const tpl_string *sub;
    tpl_string part;
    int64_t first, count = 0;
    bool valid;
    NBL_TRY(nbl__tpl_bind(vm, "count", args, "/sub start end", 1, v));
    NBL_TRY(nbl__tpl_want_string(vm, v[0], &sub));
    NBL_TRY(window(vm, self.string, v[1], v[2], &part, &first, &valid));
    NBL_TRY(tpl_read(vm, valid ? part.size : 0));
    if (valid && sub->size == 0) count = (int64_t)part.length + 1;
    for (int64_t at = 0; valid && sub->size &&
                         (at = nbl__tpl_find(part.bytes, part.size, sub->bytes, sub->size, (size_t)at)) >= 0;
         at += (int64_t)sub->size)
        count++;
    return *result = tpl_int(count), NBL_OK;
}

/* startswith and endswith. The argument is a string or a tuple of strings. */
static nbl_status affix(tpl_vm *vm, tpl_value self, const tpl_args *args, bool end, tpl_value *result)
{
    tpl_value v[3], one;
    tpl_string part;
    int64_t first;
    bool valid;
    NBL_TRY(nbl__tpl_bind(vm, end ? "endswith" : "startswith", args, "/affix start end", 1, v));
    NBL_TRY(window(vm, self.string, v[1], v[2], &part, &first, &valid));
    int64_t count = v[0].type == TPL_TUPLE ? v[0].list->count : 1;
    *result = tpl_bool(false);
    for (int64_t i = 0; i < count; i++) {
        const tpl_string *sub;
        one = v[0].type == TPL_TUPLE ? v[0].list->items[i] : v[0];
        if (one.type != TPL_STRING)
            return nbl__tpl_raise(vm, "TypeError: %s first arg must be str or a tuple of str, not %s",
                                  end ? "endswith" : "startswith", nbl__tpl_type_name(one));
        sub = one.string;
        NBL_TRY(nbl__tpl_work(vm, 1 + sub->size / 16));
        if (!valid || sub->size > part.size) continue;
        if (memcmp(part.bytes + (end ? part.size - sub->size : 0), sub->bytes, sub->size) == 0)
            return *result = tpl_bool(true), NBL_OK;
    }
    return NBL_OK;
}

/* The methods of affix. */
static nbl_status str_startswith(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return affix(vm, self, args, false, result);
}

static nbl_status str_endswith(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return affix(vm, self, args, true, result);
}

/* ---- stripping ---- */

/* True if a character is to be stripped; NULL: white space is. Adds the bytes that were searched to
 * *read. */
static bool in_set(const tpl_string *set, uint32_t code, size_t *read)
{
    int size;
    ++*read;
    if (set == NULL) return nbl__tpl_is_space(code);
    for (size_t at = 0; at < set->size; at += (size_t)size, *read += (size_t)size)
        if (tpl_char(set->bytes + at, &size) == code) return true;
    return false;
}

/* Counts the bytes read as work, in portions. */
static nbl_status count_read(tpl_vm *vm, size_t *read)
{
    if (*read < 4096) return NBL_OK;
    size_t bytes = *read;
    *read = 0;
    return tpl_read_characters(vm, bytes);
}

/* str.strip and the filter trim. MISSING or none: white space. The set is searched character by
 * character, so the work is counted: a long set over a long text is quadratic. */
nbl_status nbl__tpl_strip(tpl_vm *vm, tpl_value v, tpl_value chars, bool left, bool right, tpl_value *result)
{
    const tpl_string *s = v.string, *set = NULL;
    if (chars.type != TPL_NONE) NBL_TRY(nbl__tpl_want_string(vm, chars, &set));
    const char *begin = s->bytes, *end = begin + s->size;
    size_t read = 0;
    for (int size; left && begin < end; begin += size) {
        if (!in_set(set, tpl_char(begin, &size), &read)) break;
        NBL_TRY(count_read(vm, &read));
    }
    while (right && end > begin) {
        const char *last = end - 1;
        int size;
        while (((unsigned char)*last & 0xc0) == 0x80) last--;
        if (!in_set(set, tpl_char(last, &size), &read)) break;
        end = last;
        NBL_TRY(count_read(vm, &read));
    }
    NBL_TRY(tpl_read_characters(vm, read));
    NBL_TRY(nbl__tpl_string(vm, begin, (size_t)(end - begin), result));
    result->markup = v.markup;
    return NBL_OK;
}

/* strip, lstrip and rstrip. `chars` is a set of characters, not an affix. */
static nbl_status strip(tpl_vm *vm, tpl_value self, const tpl_args *args, bool left, bool right,
                        tpl_value *result)
{
    tpl_value chars;
    NBL_TRY(nbl__tpl_bind(vm, "strip", args, "/chars", 0, &chars));
    return nbl__tpl_strip(vm, self, chars, left, right, result);
}

static nbl_status str_strip(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return strip(vm, self, args, true, true, result);
}

static nbl_status str_lstrip(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return strip(vm, self, args, true, false, result);
}

static nbl_status str_rstrip(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return strip(vm, self, args, false, true, result);
}

/* removeprefix and removesuffix: the text itself if it has no such affix. */
static nbl_status remove_affix(tpl_vm *vm, tpl_value self, const tpl_args *args, bool end, tpl_value *result)
{
    tpl_value v;
    const tpl_string *s = self.string, *part;
    NBL_TRY(nbl__tpl_bind(vm, end ? "removesuffix" : "removeprefix", args, "/affix", 1, &v));
    NBL_TRY(nbl__tpl_want_string(vm, v, &part));
    NBL_TRY(tpl_read(vm, part->size));
    *result = self;
    if (part->size > s->size) return NBL_OK;
    size_t rest = s->size - part->size;
    if (memcmp(s->bytes + (end ? rest : 0), part->bytes, part->size) != 0) return NBL_OK;
    NBL_TRY(nbl__tpl_string(vm, s->bytes + (end ? 0 : part->size), rest, result));
    result->markup = self.markup;
    return NBL_OK;
}

static nbl_status str_removeprefix(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return remove_affix(vm, self, args, false, result);
}

static nbl_status str_removesuffix(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return remove_affix(vm, self, args, true, result);
}

/* ---- making new text ---- */

/* str.replace. A negative count means all. The parts between the matches are appended as they
 * are. */
nbl_status nbl__tpl_replace(tpl_vm *vm, const tpl_string *s, const tpl_string *from, const tpl_string *to,
                            int64_t count, tpl_value *result)
{
    tpl_text text = {0};
    size_t at = 0;
    if (count < 0) count = INT64_MAX;
    NBL_TRY(tpl_read(vm, s->size));
    while (count-- > 0) {
        NBL_TRY(nbl__tpl_work(vm, 1));
        if (from->size == 0) { /* an empty text matches before each character and at the end */
            int size = 0;
            NBL_TRY(nbl__tpl_add_string(vm, &text, to));
            if (at == s->size) break;
            tpl_char(s->bytes + at, &size);
            NBL_TRY(nbl__tpl_add(vm, &text, s->bytes + at, (size_t)size));
            at += (size_t)size;
            continue;
        }
        int64_t next = nbl__tpl_find(s->bytes, s->size, from->bytes, from->size, at);
        if (next < 0) break;
        NBL_TRY(nbl__tpl_add(vm, &text, s->bytes + at, (size_t)next - at));
        NBL_TRY(nbl__tpl_add_string(vm, &text, to));
        at = (size_t)next + from->size;
    }
    NBL_TRY(nbl__tpl_add(vm, &text, s->bytes + at, s->size - at));
    return nbl__tpl_take(vm, &text, result);
}

/* str.replace of safe HTML escapes the new text, of any type; the old text must be a string. */
static nbl_status str_replace(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value v[3];
    const tpl_string *from, *to;
    int64_t count = -1;
    NBL_TRY(nbl__tpl_bind(vm, "replace", args, "/old new count", 2, v));
    if (self.markup) NBL_TRY(nbl__tpl_escape(vm, v[1], &v[1])); /* of any type */
    NBL_TRY(nbl__tpl_want_string(vm, v[0], &from));
    NBL_TRY(nbl__tpl_want_string(vm, v[1], &to));
    NBL_TRY(nbl__tpl_want_int(vm, v[2], &count));
    NBL_TRY(nbl__tpl_replace(vm, self.string, from, to, count, result));
    result->markup = self.markup;
    return NBL_OK;
}

/* str.center rounds as CPython: an odd blank goes to the left only if the width is odd. */
nbl_status nbl__tpl_center(tpl_vm *vm, const tpl_string *s, int64_t width, uint32_t fill, int side,
                           tpl_value *result)
{
    tpl_text text = {0};
    int64_t missing = width - (int64_t)s->length, left;
    if (missing <= 0) return nbl__tpl_string(vm, s->bytes, s->size, result);
    if (missing > TPL_MAX_OUTPUT)
        return nbl__tpl_refuse(vm, "a text becomes too long: more than %d MiB", TPL_MAX_OUTPUT >> 20);
    left = side < 0 ? 0 : side > 0 ? missing : missing / 2 + (missing & width & 1);
    for (int64_t i = 0; i < left; i++) NBL_TRY(nbl__tpl_add_char(vm, &text, fill));
    NBL_TRY(nbl__tpl_add_string(vm, &text, s));
    for (int64_t i = left; i < missing; i++) NBL_TRY(nbl__tpl_add_char(vm, &text, fill));
    return nbl__tpl_take(vm, &text, result);
}

/* ljust, rjust and center with a fill character. */
static nbl_status pad(tpl_vm *vm, tpl_value self, const tpl_args *args, int side, tpl_value *result)
{
    tpl_value v[2];
    int64_t width = 0;
    uint32_t fill = ' ';
    int size;
    NBL_TRY(nbl__tpl_bind(vm, "padding", args, "/width fillchar", 1, v));
    NBL_TRY(nbl__tpl_want_int(vm, v[0], &width));
    if (v[1].type != TPL_MISSING && (v[1].type != TPL_STRING || v[1].string->length != 1))
        return nbl__tpl_raise(vm, "TypeError: The fill character must be exactly one character long");
    if (v[1].type != TPL_MISSING) fill = tpl_char(v[1].string->bytes, &size);
    NBL_TRY(nbl__tpl_center(vm, self.string, width, fill, side, result));
    result->markup = self.markup;
    return NBL_OK;
}

static nbl_status str_ljust(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return pad(vm, self, args, -1, result);
}

static nbl_status str_rjust(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return pad(vm, self, args, 1, result);
}

static nbl_status str_center(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    return pad(vm, self, args, 0, result);
}

/* '-5'.zfill(4) is '-005': the zeros go behind the sign. */
static nbl_status str_zfill(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value v, zeros;
    tpl_text text = {0};
    int64_t width = 0;
    const tpl_string *s = self.string;
    NBL_TRY(nbl__tpl_bind(vm, "zfill", args, "/width", 1, &v));
    NBL_TRY(nbl__tpl_want_int(vm, v, &width));
    size_t sign = s->size && (s->bytes[0] == '+' || s->bytes[0] == '-');
    tpl_string rest = {s->bytes + sign, s->size - sign, s->length - sign};
    NBL_TRY(nbl__tpl_center(vm, &rest, width - (int64_t)sign, '0', 1, &zeros));
    NBL_TRY(nbl__tpl_add(vm, &text, s->bytes, sign));
    NBL_TRY(nbl__tpl_add_string(vm, &text, zeros.string));
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = self.markup;
    return NBL_OK;
}

/* Tabs become blanks up to the next multiple of the tab size. A line end begins a new column. */
static nbl_status str_expandtabs(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value v;
    tpl_text text = {0};
    int64_t size = 8, column = 0;
    int n;
    NBL_TRY(nbl__tpl_bind(vm, "expandtabs", args, "tabsize", 0, &v));
    NBL_TRY(nbl__tpl_want_int(vm, v, &size));
    NBL_TRY(tpl_read_characters(vm, self.string->size));
    for (size_t at = 0; at < self.string->size; at += (size_t)n) {
        uint32_t c = tpl_char(self.string->bytes + at, &n);
        if (c == '\t') {
            int64_t blanks = size > 0 ? size - column % size : 0;
            if (blanks > TPL_MAX_OUTPUT)
                return nbl__tpl_refuse(vm, "a text becomes too long: tabs that wide");
            column += blanks;
            while (blanks-- > 0) NBL_TRY(nbl__tpl_add(vm, &text, " ", 1));
        } else {
            column = c == '\n' || c == '\r' ? 0 : column + 1;
            NBL_TRY(nbl__tpl_add(vm, &text, self.string->bytes + at, (size_t)n));
        }
    }
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = self.markup;
    return NBL_OK;
}

/* str.join. Every item must be a text; under a safe separator items of all types are escaped
 * instead. */
nbl_status nbl__tpl_join(tpl_vm *vm, tpl_value separator, tpl_value items, tpl_value *result)
{
    tpl_items list = {0};
    tpl_text text = {0};
    NBL_TRY(nbl__tpl_collect(vm, items, &list));
    for (int64_t i = 0; i < list.count; i++) {
        tpl_value item = list.items[i];
        if (separator.markup) NBL_TRY(nbl__tpl_escape(vm, item, &item));
        if (item.type != TPL_STRING)
            return nbl__tpl_raise(vm, "TypeError: sequence item %" PRId64 ": expected str instance, %s found",
                                  i, nbl__tpl_type_name(item));
        if (i) NBL_TRY(nbl__tpl_add_string(vm, &text, separator.string));
        NBL_TRY(nbl__tpl_add_string(vm, &text, item.string));
    }
    NBL_TRY(nbl__tpl_take(vm, &text, result));
    result->markup = separator.markup;
    return NBL_OK;
}

/* str.join(items) as a method: the text is the separator. */
static nbl_status str_join(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    tpl_value items;
    NBL_TRY(nbl__tpl_bind(vm, "join", args, "/iterable", 1, &items));
    if (!nbl__tpl_is_iterable(items)) return nbl__tpl_raise(vm, "TypeError: can only join an iterable");
    return nbl__tpl_join(vm, self, items, result);
}

/* These methods need bytes or tables of characters, which templates do not have here. */
static nbl_status str_unsupported(tpl_vm *vm, tpl_value self, const tpl_args *args, tpl_value *result)
{
    (void)self, (void)args, (void)result;
    return nbl__tpl_refuse(vm, "the methods encode, translate and maketrans of str are not supported");
}

const tpl_method nbl__tpl_string_methods[] = {
    {"strip", str_strip},
    {"lstrip", str_lstrip},
    {"rstrip", str_rstrip},
    {"startswith", str_startswith},
    {"endswith", str_endswith},
    {"replace", str_replace},
    {"join", str_join},
    {"find", str_find},
    {"rfind", str_rfind},
    {"index", str_index},
    {"rindex", str_rindex},
    {"count", str_count},
    {"removeprefix", str_removeprefix},
    {"removesuffix", str_removesuffix},
    {"ljust", str_ljust},
    {"rjust", str_rjust},
    {"center", str_center},
    {"zfill", str_zfill},
    {"expandtabs", str_expandtabs},
    {"format", nbl__tpl_format},
    {"format_map", nbl__tpl_format_map},
    {"encode", str_unsupported},
    {"translate", str_unsupported},
    {"maketrans", str_unsupported},
    {NULL, NULL},
};
