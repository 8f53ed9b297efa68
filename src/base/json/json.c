/* json.c - a recursive descent parser of limited depth. See json.h.
 *
 * The items of open arrays and objects are on one stack. When an array or object is complete,
 * its items move to an arena block of exact size, so memory follows the number of values. The
 * keys of an object are sorted once (heap sort of indices): this finds duplicates, and lookups
 * take O(log n) even among 100,000 tensors. */
#include "base/json/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/number.h"
#include "base/stack.h"
#include "base/utf8.h"

enum {
    DEPTH = 128,
    DEEP = 450,               /* with NBL_JSON_DEEP */
    STACK_RESERVE = 96 << 10, /* bytes of the thread's stack that stay free beyond DEPTH levels */
    MAX_VALUES = 8 << 20,
    MAX_DIGITS = 4300 /* of a kept integer: Python's limit */
};

typedef struct parser {
    nbl__arena *arena;
    const char *begin, *at, *end;
    unsigned dialect;
    nbl__json_error *error;
    int depth;
    nbl__json *stack; /* items of the arrays and objects that are open */
    int64_t used, room, values;
} parser;

/* Fails at the current position. */
static nbl_status wrong(parser *p, const char *what)
{
    nbl__json_error *error = p->error;
    *error = (nbl__json_error){.what = what, .line = 1, .column = 1};
    for (const char *s = p->begin; s < p->at; s++) {
        error->column = *s == '\n' ? 1 : error->column + 1;
        error->line += *s == '\n';
    }
    return NBL_ERROR_FORMAT;
}

static void skip_space(parser *p)
{
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n' || *p->at == '\r')) p->at++;
}

static bool accept(parser *p, char c)
{
    if (p->at >= p->end || *p->at != c) return false;
    p->at++;
    return true;
}

static bool accept_word(parser *p, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(p->end - p->at) < length || memcmp(p->at, word, length) != 0) return false;
    p->at += length;
    return true;
}

/* ---- strings ---- */

static bool read_hex4(parser *p, uint32_t *code)
{
    *code = 0;
    for (int i = 0; i < 4; i++, p->at++) {
        if (p->at >= p->end) return false;
        char c = *p->at;
        uint32_t digit = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                         : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                                : 99;
        if (digit == 99) return false;
        *code = *code << 4 | digit;
    }
    return true;
}

/* Reads the four hex digits after "\u", and a second \u escape if they are a high surrogate;
 * appends UTF-8. */
static bool read_unicode(parser *p, char **out)
{
    uint32_t code, low;
    if (!read_hex4(p, &code) || (code == 0 && !(p->dialect & NBL_JSON_ZERO_BYTES))) return false;
    if (code >= 0xd800 && code < 0xdc00) {
        if (!accept(p, '\\') || !accept(p, 'u') || !read_hex4(p, &low) || low < 0xdc00 || low > 0xdfff)
            return false;
        code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    } else if (code >= 0xdc00 && code < 0xe000) {
        return false;
    }
    *out += nbl__char_put(*out, code);
    return true;
}

/* Upper bound of the decoded string's bytes; -1 if there is no closing quote. Escapes only
 * shrink. */
static int64_t string_bound(const parser *p)
{
    for (const char *s = p->at; s < p->end; s++) {
        if (*s == '"') return s - p->at;
        if (*s == '\\') s++;
    }
    return -1;
}

/* Reads a string after its opening quote. */
static nbl_status read_string(parser *p, const char **string, int64_t *size)
{
    int64_t bound = string_bound(p);
    if (bound < 0) return wrong(p, "a string without end");
    char *text = nbl__arena_alloc(p->arena, (size_t)bound + 1), *out = text;
    if (text == NULL) return NBL_ERROR_MEMORY;
    while (*p->at != '"') {
        if (*p->at == '\\') {
            static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
            const char *name = p->at[1] ? strchr(names, p->at[1])
                                        /* safe: string_bound found a byte after the backslash */
                                        : NULL;
            p->at += 2;
            if (p->at[-1] == 'u') {
                if (!read_unicode(p, &out)) return wrong(p, "a bad \\u escape");
            } else if (name) {
                *out++ = values[name - names];
            } else {
                return wrong(p, "an unknown escape");
            }
        } else { /* a run of ordinary characters; string_bound found what ends the last one */
            const char *run = p->at;
            for (int n; *p->at != '"' && *p->at != '\\'; p->at += n) {
                n = nbl__utf8_length(p->at, p->end);
                if (n == 0 || (unsigned char)*p->at < 0x20)
                    return wrong(p, n ? "a control character in a string" : "not UTF-8");
            }
            memcpy(out, run, (size_t)(p->at - run));
            out += p->at - run;
        }
    }
    p->at++;
    assert(out - text <= bound); /* escapes only shrink */
    *out = '\0';
    *string = text;
    *size = out - text;
    return NBL_OK;
}

/* ---- numbers ---- */

static bool digits(parser *p)
{
    const char *begin = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
    return p->at > begin;
}

/* 10^exponent, correctly rounded; 0 <= exponent <= 308. */
static double power_of_ten(int exponent)
{
    char text[8], *end;
    assert(exponent >= 0 && exponent <= 308);
    snprintf(text, sizeof text, "1e%d", exponent);
    return nbl__parse_double(text, &end);
}

/* Converts a valid number text as serde_json does: digits that overflow 64 bits only count in
 * the exponent. */
static double serde_real(const char *text)
{
    uint64_t digits_read = 0;
    int64_t exponent = 0;
    bool negative = *text == '-', full = false, fraction = false;
    for (text += negative; (*text >= '0' && *text <= '9') || *text == '.'; text++) {
        if (*text == '.') {
            fraction = true;
            continue;
        }
        uint64_t digit = (uint64_t)(*text - '0');
        full |= digits_read > UINT64_MAX / 10 || (digits_read == UINT64_MAX / 10 && digit > UINT64_MAX % 10);
        if (!full) digits_read = digits_read * 10 + digit;
        if (full && !fraction) exponent++;
        if (!full && fraction) exponent--;
    }
    if (*text == 'e' || *text == 'E') {
        bool minus = text[1] == '-';
        int64_t stated = 0;
        for (text += 1 + (text[1] == '-' || text[1] == '+'); *text >= '0' && *text <= '9'; text++)
            if (stated < 100000000) stated = stated * 10 + (*text - '0');
        exponent += minus ? -stated : stated;
    }
    double value = (double)digits_read;
    for (; exponent < -308 && value != 0; exponent += 308) value /= 1e308;
    if (value != 0 && exponent > 308) value = INFINITY;
    else if (value != 0)
        value = exponent < 0 ? value / power_of_ten((int)-exponent) : value * power_of_ten((int)exponent);
    return negative ? -value : value;
}

/* Reads a number: an integer if it has no fraction or exponent and is below 2^62. Other integers
 * keep their digits or become reals, as the dialect says. */
static nbl_status read_number(parser *p, nbl__json *value)
{
    const char *begin = p->at;
    bool negative = accept(p, '-'), whole = true;
    if ((p->dialect & NBL_JSON_NON_FINITE) && accept_word(p, "Infinity")) {
        *value = (nbl__json){.type = NBL_JSON_REAL, .real = negative ? -INFINITY : INFINITY};
        return NBL_OK;
    }
    if (!accept(p, '0') && !digits(p)) return wrong(p, "an unknown word");
    if (accept(p, '.')) {
        whole = false;
        if (!digits(p)) return wrong(p, "a number without digits after its point");
    }
    if (accept(p, 'e') || accept(p, 'E')) {
        whole = false;
        if (!accept(p, '+')) accept(p, '-');
        if (!digits(p)) return wrong(p, "a number without digits in its exponent");
    }
    size_t length = (size_t)(p->at - begin);
    bool digits_kept = whole && (p->dialect & NBL_JSON_DIGITS);
    /* -0 is a real, because integers have no negative zero; Python's integer -0 is 0 */
    bool minus_zero = negative && length == 2 && begin[1] == '0' && !digits_kept;
    if (whole && length <= 18 && !minus_zero) { /* 18 digits fit in 64 bits */
        int64_t number = 0;
        for (const char *s = begin + negative; s < p->at; s++) number = number * 10 + (*s - '0');
        *value = (nbl__json){.type = NBL_JSON_INTEGER, .integer = negative ? -number : number};
        return NBL_OK;
    }
    char *copy = nbl__arena_alloc(p->arena, length + 1), *end;
    if (copy == NULL) return NBL_ERROR_MEMORY;
    memcpy(copy, begin, length);
    if (digits_kept) {
        if (length > MAX_DIGITS) return wrong(p, "an integer of more than 4300 digits");
        *value = (nbl__json){.type = NBL_JSON_DIGITS_KEPT, .string = copy, .count = (int64_t)length};
        return NBL_OK;
    }
    double real = (p->dialect & NBL_JSON_SERDE_REALS) && !whole ? serde_real(copy)
                                                                : nbl__parse_double(copy, &end);
    *value = (nbl__json){.type = NBL_JSON_REAL, .real = real};
    if (!(p->dialect & NBL_JSON_NON_FINITE) && !isfinite(value->real))
        return wrong(p, "a number that is too large");
    if (whole && !minus_zero && value->real >= -0x1p62 &&
        value->real < 0x1p62) /* 19 digits or more, but small enough */
        *value = (nbl__json){.type = NBL_JSON_INTEGER, .integer = strtoll(copy, NULL, 10)};
    return NBL_OK;
}

/* ---- arrays and objects ---- */

static nbl_status read_value(parser *p, nbl__json *value);

static nbl_status push(parser *p, const nbl__json *item)
{
    if (p->used == p->room) {
        int64_t room = p->room ? p->room * 2 : 64;
        nbl__json *stack = nbl__alloc_array(p->arena->ctx, (size_t)room, sizeof *stack);
        if (stack == NULL) return NBL_ERROR_MEMORY;
        if (p->used) memcpy(stack, p->stack, (size_t)p->used * sizeof *stack);
        nbl__free(p->arena->ctx, p->stack, (size_t)p->room * sizeof *stack);
        p->stack = stack;
        p->room = room;
    }
    p->stack[p->used++] = *item;
    if (++p->values > MAX_VALUES && !(p->dialect & NBL_JSON_MANY))
        return wrong(p, "more values than any sane file has");
    return NBL_OK;
}

/* Moves the items from `first` on from the stack to an arena block. */
static nbl_status pop(parser *p, int64_t first, nbl__json *value)
{
    assert(first >= 0 && first <= p->used && p->used <= p->room);
    value->count = p->used - first;
    value->items = nbl__arena_alloc(p->arena, (size_t)value->count * sizeof *value->items);
    if (value->items == NULL) return NBL_ERROR_MEMORY;
    if (value->count) memcpy(value->items, p->stack + first, (size_t)value->count * sizeof *value->items);
    p->used = first;
    return NBL_OK;
}

/* Reads an item of an array, or a member ("key": value) of an object. */
static nbl_status read_item(parser *p, bool member, nbl__json *item)
{
    const char *key = NULL;
    int64_t key_size = 0;
    skip_space(p);
    if (member) {
        if (!accept(p, '"')) return wrong(p, "a key was expected");
        NBL_TRY(read_string(p, &key, &key_size));
        if (key_size > UINT32_MAX) return wrong(p, "a key that is too long");
        skip_space(p);
        if (!accept(p, ':')) return wrong(p, "':' was expected");
        skip_space(p);
    }
    NBL_TRY(read_value(p, item));
    item->key = key;
    item->key_size = (uint32_t)key_size;
    skip_space(p);
    return NBL_OK;
}

static int compare_keys(const nbl__json *a, const nbl__json *b)
{
    int order = memcmp(a->key, b->key, a->key_size < b->key_size ? a->key_size : b->key_size);
    return order ? order : (a->key_size > b->key_size) - (a->key_size < b->key_size);
}

/* True if item a comes before item b: by key, and by position where keys are the same. */
static bool before(const nbl__json *items, int32_t a, int32_t b)
{
    int order = compare_keys(&items[a], &items[b]);
    return order ? order < 0 : a < b;
}

/* One step of heap sort. qsort has no argument for the keys, and it may allocate. */
static void sift(const nbl__json *items, int32_t *order, int64_t root, int64_t count)
{
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && before(items, order[child], order[child + 1])) child++;
        if (before(items, order[child], order[root])) return;
        int32_t swap = order[root];
        order[root] = order[child];
        order[child] = swap;
    }
}

static void heap_sort(const nbl__json *items, int32_t *order, int64_t count)
{
    for (int64_t i = 0; i < count; i++) order[i] = (int32_t)i;
    for (int64_t i = count / 2; i-- > 0;) sift(items, order, i, count);
    for (int64_t i = count; i-- > 1;) {
        int32_t swap = order[0];
        order[0] = order[i];
        order[i] = swap;
        sift(items, order, 0, i);
    }
}

/* True if `order` is as heap_sort leaves it. For assertions. */
static bool are_sorted(const nbl__json *items, const int32_t *order, int64_t count)
{
    for (int64_t i = 1; i < count; i++)
        if (!before(items, order[i - 1], order[i])) return false;
    return true;
}

/* Of members with the same key the last value is kept, at the position of the first. */
static void drop_repeated(nbl__json *object)
{
    nbl__json *items = object->items, *first = &items[object->sorted[0]];
    for (int64_t i = 1; i < object->count; i++) {
        nbl__json *item = &items[object->sorted[i]];
        if (compare_keys(first, item) != 0) {
            first = item;
        } else {
            *first = *item;
            item->key = NULL;
        }
    }
    int64_t kept = 0;
    for (int64_t i = 0; i < object->count; i++)
        if (items[i].key) items[kept++] = items[i];
    object->count = kept;
    heap_sort(items, object->sorted, kept);
}

static nbl_status sort_keys(parser *p, nbl__json *object)
{
    if (object->count > INT32_MAX) return wrong(p, "too many members");
    int32_t *order = object->sorted = nbl__arena_alloc(p->arena, (size_t)object->count * sizeof *order);
    if (order == NULL) return NBL_ERROR_MEMORY;
    heap_sort(object->items, order, object->count);
    nbl__assert_slow(are_sorted(object->items, order, object->count));
    for (int64_t i = 1; i < object->count; i++) {
        if (compare_keys(&object->items[order[i - 1]], &object->items[order[i]]) != 0) continue;
        if (p->dialect & NBL_JSON_REPEATED) return drop_repeated(object), NBL_OK;
        (void)wrong(p, "a key is there twice in the object that ends here");
        p->error->key = object->items[order[i]].key;
        return NBL_ERROR_FORMAT;
    }
    return NBL_OK;
}

/* Counts a level of nesting. */
static nbl_status go_deeper(parser *p)
{
    bool deep = p->dialect & NBL_JSON_DEEP;
    if (++p->depth <= DEPTH) return NBL_OK;
    return deep && p->depth <= DEEP && nbl__stack_left() >= STACK_RESERVE ? NBL_OK
                                                                          : wrong(p, "nested too deep");
}

/* Reads an array or object after its opening bracket. */
static nbl_status read_items(parser *p, nbl__json_type type, nbl__json *value)
{
    bool object = type == NBL_JSON_OBJECT;
    char close = object ? '}' : ']';
    int64_t first = p->used;
    *value = (nbl__json){.type = type};
    NBL_TRY(go_deeper(p));
    skip_space(p);
    if (!accept(p, close)) {
        do {
            nbl__json item;
            NBL_TRY(read_item(p, object, &item));
            NBL_TRY(push(p, &item));
        } while (accept(p, ','));
        if (!accept(p, close))
            return wrong(p, object ? "',' or '}' was expected" : "',' or ']' was expected");
    }
    assert(p->depth > 0);
    p->depth--;
    NBL_TRY(pop(p, first, value));
    return object ? sort_keys(p, value) : NBL_OK;
}

static nbl_status read_value(parser *p, nbl__json *value)
{
    *value = (nbl__json){.type = NBL_JSON_NULL};
    if (p->at >= p->end) return wrong(p, "it ends too early");
    if (accept(p, '{')) return read_items(p, NBL_JSON_OBJECT, value);
    if (accept(p, '[')) return read_items(p, NBL_JSON_ARRAY, value);
    if (accept(p, '"')) {
        value->type = NBL_JSON_STRING;
        return read_string(p, &value->string, &value->count);
    }
    if (accept_word(p, "null")) return NBL_OK;
    if (accept_word(p, "true")) return value->type = NBL_JSON_TRUE, NBL_OK;
    if (accept_word(p, "false")) return value->type = NBL_JSON_FALSE, NBL_OK;
    if ((p->dialect & NBL_JSON_NON_FINITE) && accept_word(p, "NaN"))
        return *value = (nbl__json){.type = NBL_JSON_REAL, .real = NAN}, NBL_OK;
    return read_number(p, value);
}

nbl_status nbl__json_read(nbl__arena *arena, const char *text, size_t size, unsigned dialect,
                          const nbl__json **root, nbl__json_error *error)
{
    parser p = {
        .arena = arena, .begin = text, .at = text, .end = text + size, .dialect = dialect, .error = error};
    nbl__json *value = nbl__arena_alloc(arena, sizeof *value);
    if (value == NULL) return NBL_ERROR_MEMORY;
    skip_space(&p);
    nbl_status status = read_value(&p, value);
    nbl__free(arena->ctx, p.stack, (size_t)p.room * sizeof *p.stack);
    NBL_TRY(status);
    skip_space(&p);
    if (p.at != p.end) return wrong(&p, "something follows the end");
    *root = value;
    return NBL_OK;
}

/* Records what is wrong with a file. */
static nbl_status report(nbl_context *ctx, const char *where, const nbl__json_error *error)
{
    if (error->key)
        return nbl__fail(ctx, NBL_ERROR_FORMAT, "%s: not valid JSON: the key \"%s\" is there twice", where,
                         error->key);
    return nbl__fail(ctx, NBL_ERROR_FORMAT, "%s: not valid JSON: %s (line %" PRId64 ", column %" PRId64 ")",
                     where, error->what, error->line, error->column);
}

nbl_status nbl__json_parse(nbl__arena *arena, const char *where, const char *text, size_t size,
                           unsigned dialect, const nbl__json **root)
{
    nbl__json_error error;
    nbl_status status = nbl__json_read(arena, text, size, dialect, root, &error);
    if (status == NBL_ERROR_FORMAT) return report(arena->ctx, where, &error);
    NBL_TRY(status);
    NBL_CHECK(arena->ctx, (*root)->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT, "%s: JSON, but not an object",
              where);
    return NBL_OK;
}

nbl_status nbl__json_parse_row(nbl__arena *arena, const char *where, int64_t line, const char *text,
                               size_t size, unsigned dialect, const nbl__json **root)
{
    nbl__json_error error;
    nbl_status status = nbl__json_read(arena, text, size, dialect, root, &error);
    if (status == NBL_ERROR_FORMAT)
        return nbl__fail(arena->ctx, NBL_ERROR_FORMAT,
                         "%s: line %" PRId64 ", column %" PRId64 ": not valid JSON: %s", where,
                         line + error.line - 1, error.column, error.what);
    NBL_TRY(status);
    NBL_CHECK(arena->ctx, (*root)->type == NBL_JSON_OBJECT, NBL_ERROR_FORMAT,
              "%s: line %" PRId64 ": JSON, but not an object", where, line);
    return NBL_OK;
}

/* Reads an object after its opening brace, one member at a time; the arena holds one member. */
static nbl_status visit_members(parser *p, nbl__json_visit visit, void *user)
{
    p->depth = 1;
    skip_space(p);
    if (!accept(p, '}')) {
        do {
            nbl__json member;
            NBL_TRY(read_item(p, true, &member));
            if (++p->values > MAX_VALUES) return wrong(p, "more values than any sane file has");
            NBL_TRY(visit(user, &member));
            nbl__arena_clear(p->arena);
        } while (accept(p, ','));
        if (!accept(p, '}')) return wrong(p, "',' or '}' was expected");
    }
    skip_space(p);
    return p->at == p->end ? NBL_OK : wrong(p, "something follows the end");
}

nbl_status nbl__json_each(nbl_context *ctx, const char *where, const char *text, size_t size,
                          unsigned dialect, nbl__json_visit visit, void *user)
{
    nbl__arena member = nbl__arena_make(ctx);
    nbl__json_error error = {0};
    parser p = {
        .arena = &member, .begin = text, .at = text, .end = text + size, .dialect = dialect, .error = &error};
    skip_space(&p);
    nbl_status status = accept(&p, '{')
                            ? visit_members(&p, visit, user)
                            : nbl__fail(ctx, NBL_ERROR_FORMAT, "%s: JSON, but not an object", where);
    if (error.what) status = report(ctx, where, &error);
    nbl__free(ctx, p.stack, (size_t)p.room * sizeof *p.stack);
    nbl__arena_free(&member);
    return status;
}
