/* yaml.c - parses YAML with libyaml into a tree, and reads scalars. See yaml.h.
 *
 *     datasets:                  MAP
 *       - path: a.jsonl            LIST "datasets"
 *         type: alpaca               MAP
 *                                      SCALAR "path", SCALAR "type"
 *
 * libyaml gives a sequence of events. A stack of open lists and maps builds the tree from them,
 * without recursion. libyaml allocates with malloc and has no other way; its memory is freed when
 * parsing ends. Keys are compared pairwise: with at most NBL_YAML_MAX_VALUES values that is at most
 * some ten million short comparisons.
 *
 * Lines are those of the key, since a reader looks for the key and not for its value. A node
 * without a line (0) comes from --set or from a default. */
#include "run/yaml.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <yaml.h>

#include "base/file/file.h"
#include "base/number.h"

nbl_status nbl__yaml_fail(nbl_context *ctx, const nbl__yaml *at, nbl_status code, const char *format, ...)
{
    char message[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    if (at->line == 0) return nbl__fail(ctx, code, "%s %s", at->where, message);
    return nbl__fail(ctx, code, "%s:%" PRId64 ": %s", at->where, at->line, message);
}

/* ---- parsing ---- */

/* An open list or map. key: of a map, set between a key and its value; NULL: a key comes next. */
typedef struct frame {
    nbl__yaml *node, *last; /* last: the item added last */
    const char *key;
    int64_t key_line;
} frame;

/* The state of one parsing. */
typedef struct reader {
    nbl__arena *arena;
    const char *where;
    bool lines;
    nbl__yaml *root;
    frame open[NBL_YAML_MAX_DEPTH];
    int depth;
    int64_t values, documents;
} reader;

/* Fails with the file and the line; libyaml counts lines from 0. */
static nbl_status refuse(reader *r, size_t line, const char *why)
{
    nbl__yaml at = {.where = r->where, .line = r->lines ? (int64_t)line + 1 : 0};
    return nbl__yaml_fail(r->arena->ctx, &at, NBL_ERROR_FORMAT, "%s", why);
}

/* Fails with libyaml's error. For a syntax error libyaml gives the line; for an invalid byte
 * only its offset, from which the line is counted. */
static nbl_status refuse_text(reader *r, const yaml_parser_t *parser, const char *text, size_t size)
{
    nbl_context *ctx = r->arena->ctx;
    if (parser->error == YAML_MEMORY_ERROR)
        return nbl__fail(ctx, NBL_ERROR_MEMORY, "%s: out of memory while it was parsed", r->where);
    size_t line = parser->problem_mark.line;
    if (parser->error == YAML_READER_ERROR) {
        line = 0;
        for (size_t i = 0; i < size && i < parser->problem_offset; i++) line += text[i] == '\n';
    }
    nbl__yaml at = {.where = r->where, .line = r->lines ? (int64_t)line + 1 : 0};
    return nbl__yaml_fail(ctx, &at, NBL_ERROR_FORMAT, "not YAML: %s%s%s",
                          parser->context ? parser->context : "", parser->context ? ": " : "",
                          parser->problem ? parser->problem : "unreadable");
}

/* *copy: the text of a scalar, in the arena. */
static nbl_status copy_text(reader *r, const yaml_event_t *event, const char **copy)
{
    const char *value = (const char *)event->data.scalar.value;
    if (memchr(value, 0, event->data.scalar.length))
        return refuse(r, event->start_mark.line, "a text holds a zero byte");
    *copy = nbl__arena_strdup(r->arena, value);
    return *copy ? NBL_OK : NBL_ERROR_MEMORY;
}

/* Reads the key that comes next in the map on top of the stack. */
static nbl_status take_key(reader *r, frame *top, const yaml_event_t *event)
{
    size_t line = event->start_mark.line;
    if (event->type != YAML_SCALAR_EVENT) return refuse(r, line, "a key must be a word, not a list or a map");
    const char *key;
    NBL_TRY(copy_text(r, event, &key));
    nbl__yaml at = {.where = r->where, .line = r->lines ? (int64_t)line + 1 : 0};
    const nbl__yaml *first = nbl__yaml_get(top->node, key);
    if (first != NULL)
        return nbl__yaml_fail(r->arena->ctx, &at, NBL_ERROR_FORMAT,
                              "%.80s: given twice, the first time in line %" PRId64, key, first->line);
    top->key = key;
    top->key_line = at.line;
    return NBL_OK;
}

/* Adds a scalar, list or map to the list or map on top of the stack; a scalar may also be a key. */
static nbl_status add_value(reader *r, const yaml_event_t *event)
{
    size_t line = event->start_mark.line;
    const yaml_char_t *tag = event->type == YAML_SCALAR_EVENT           ? event->data.scalar.tag
                             : event->type == YAML_SEQUENCE_START_EVENT ? event->data.sequence_start.tag
                                                                        : event->data.mapping_start.tag;
    if (tag != NULL) return refuse(r, line, "tags such as !!str are not read; quote a text instead");
    frame *top = r->depth > 0 ? &r->open[r->depth - 1] : NULL;
    if (top && top->node->kind == NBL_YAML_MAP && top->key == NULL) return take_key(r, top, event);
    if (++r->values > NBL_YAML_MAX_VALUES) return refuse(r, line, "more values than a configuration has");

    nbl__yaml *node = nbl__arena_alloc(r->arena, sizeof *node);
    if (node == NULL) return NBL_ERROR_MEMORY;
    *node = (nbl__yaml){.where = r->where, .line = r->lines ? (int64_t)line + 1 : 0};
    if (top == NULL) {
        r->root = node;
    } else {
        if (top->key) {
            node->key = top->key;
            node->line = top->key_line;
            top->key = NULL;
        }
        *(top->last ? &top->last->next : &top->node->first) = node;
        top->last = node;
        top->node->count++;
    }
    if (event->type == YAML_SCALAR_EVENT) {
        node->plain = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
        return copy_text(r, event, &node->text);
    }
    node->kind = event->type == YAML_SEQUENCE_START_EVENT ? NBL_YAML_LIST : NBL_YAML_MAP;
    if (r->depth == NBL_YAML_MAX_DEPTH) return refuse(r, line, "nested too deeply");
    r->open[r->depth++] = (frame){.node = node};
    return NBL_OK;
}

/* Handles one event. Streams, comments and the end of a document need no action. */
static nbl_status take_event(reader *r, const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_DOCUMENT_START_EVENT:
        if (++r->documents > 1) return refuse(r, event->start_mark.line, "a second document begins here");
        return NBL_OK;
    case YAML_ALIAS_EVENT:
        return refuse(r, event->start_mark.line, "aliases (*name) are not read; write the value out");
    case YAML_SCALAR_EVENT:
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT: return add_value(r, event);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT: r->depth--; return NBL_OK;
    default: return NBL_OK;
    }
}

nbl_status nbl__yaml_parse(nbl__arena *arena, const char *where, bool lines, const char *text, size_t size,
                           nbl__yaml **root)
{
    reader r = {.arena = arena, .where = where, .lines = lines};
    yaml_parser_t parser;
    *root = NULL;
    if (size > NBL_YAML_MAX_BYTES) return refuse(&r, 0, "longer than a configuration is");
    if (!yaml_parser_initialize(&parser))
        return nbl__fail(arena->ctx, NBL_ERROR_MEMORY, "%s: out of memory while it was parsed", where);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, size);
    nbl_status status = NBL_OK;
    for (bool more = true; more && status == NBL_OK;) {
        yaml_event_t event;
        if (!yaml_parser_parse(&parser, &event)) {
            status = refuse_text(&r, &parser, text, size);
            break;
        }
        more = event.type != YAML_STREAM_END_EVENT;
        status = take_event(&r, &event);
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    NBL_TRY(status);
    if (r.root == NULL) {
        if ((r.root = nbl__arena_alloc(arena, sizeof *r.root)) == NULL) return NBL_ERROR_MEMORY;
        *r.root = (nbl__yaml){.plain = true, .text = "", .where = where, .line = lines};
    }
    *root = r.root;
    return NBL_OK;
}

/* Reads a file of at most NBL_YAML_MAX_BYTES. The nodes keep a copy of its path. */
nbl_status nbl__yaml_read(nbl__arena *arena, const char *path, nbl__yaml **root)
{
    char *text;
    size_t size;
    *root = NULL;
    NBL_TRY(nbl__file_read(arena->ctx, path, NBL_YAML_MAX_BYTES, &text, &size));
    const char *where = nbl__arena_strdup(arena, path);
    nbl_status status = where ? nbl__yaml_parse(arena, where, true, text, size, root) : NBL_ERROR_MEMORY;
    nbl__free(arena->ctx, text, size + 1);
    return status;
}

/* ---- setting values by path ---- */

/* A component of a path as an index; -1: it is a key. */
static int64_t index_of(const char *step, size_t size)
{
    int64_t index = 0;
    if (size == 0 || size > 6) return -1;
    for (size_t i = 0; i < size; i++) {
        if (step[i] < '0' || step[i] > '9') return -1;
        index = index * 10 + (step[i] - '0');
    }
    return index;
}

/* *link: the pointer in the list of items that points to the item named `step`, or that would
 * after appending it. */
static nbl_status find_link(nbl__arena *arena, nbl__yaml *node, const nbl__yaml *at, const char *path,
                            const char *step, size_t size, nbl__yaml ***link)
{
    int64_t index = index_of(step, size), position = 0;
    nbl__yaml **l = &node->first;
    if (node->kind == NBL_YAML_LIST) {
        if (index < 0 || index > node->count)
            return nbl__yaml_fail(arena->ctx, at, NBL_ERROR_ARGUMENT,
                                  "%s: '%.*s' is no index into a list of %" PRId64 " items", path, (int)size,
                                  step, node->count);
        while (*l && position++ < index) l = &(*l)->next;
    } else {
        while (*l && !(strlen((*l)->key) == size && memcmp((*l)->key, step, size) == 0)) l = &(*l)->next;
    }
    *link = l;
    return NBL_OK;
}

/* Walks along the path. A map or list that is missing, or null, becomes one: a list if the step
 * below it is an index. An item that exists is replaced in its position. */
nbl_status nbl__yaml_put(nbl__arena *arena, nbl__yaml *root, const char *path, nbl__yaml *value)
{
    nbl__yaml *node = root;
    int depth = 0;
    for (const char *step = path;;) {
        size_t size = strcspn(step, ".");
        bool last = step[size] == 0;
        nbl__yaml **link = NULL;
        if (size == 0 || ++depth > NBL_YAML_MAX_DEPTH)
            return nbl__yaml_fail(arena->ctx, value, NBL_ERROR_ARGUMENT, "%s: not a key", path);
        NBL_TRY(find_link(arena, node, value, path, step, size, &link));
        nbl__yaml *old = *link, *next = last ? value : old;
        if (old == NULL) node->count++;
        if (!last && old == NULL) {
            if ((next = nbl__arena_alloc(arena, sizeof *next)) == NULL) return NBL_ERROR_MEMORY;
            *next = (nbl__yaml){.plain = true, .text = "", .where = value->where, .line = value->line};
        }
        if (old == NULL || last) {
            char *key = NULL;
            /* the key of a list's item stays NULL */
            if (node->kind == NBL_YAML_MAP && (key = nbl__arena_alloc(arena, size + 1)) == NULL)
                return NBL_ERROR_MEMORY;
            if (key) memcpy(key, step, size);
            next->key = key;
            next->next = old ? old->next : NULL;
            *link = next;
        }
        if (last) return NBL_OK;
        step += size + 1;
        if (nbl__yaml_is_null(next)) {
            next->kind = index_of(step, strcspn(step, ".")) >= 0 ? NBL_YAML_LIST : NBL_YAML_MAP;
            next->text = NULL;
        }
        if (next->kind == NBL_YAML_SCALAR)
            return nbl__yaml_fail(arena->ctx, value, NBL_ERROR_ARGUMENT, "%s: '%.*s' has no keys of its own",
                                  path, (int)(step - 1 - path), path);
        node = next;
    }
}

/* ---- reading scalars ---- */

nbl__yaml *nbl__yaml_get(const nbl__yaml *map, const char *key)
{
    if (map == NULL || map->kind != NBL_YAML_MAP) return NULL;
    for (nbl__yaml *item = map->first; item; item = item->next)
        if (strcmp(item->key, key) == 0) return item;
    return NULL;
}

/* *which: the index of the word that the text equals. */
static bool is_word(const char *text, const char *const *words, int count, int *which)
{
    for (int i = 0; i < count; i++)
        if (strcmp(text, words[i]) == 0) return *which = i, true;
    return false;
}

/* In quotes only the empty text is null; "null" in quotes is a text. */
bool nbl__yaml_is_null(const nbl__yaml *value)
{
    static const char *const words[] = {"", "~", "null", "Null", "NULL"};
    int which;
    if (value == NULL) return true;
    return value->kind == NBL_YAML_SCALAR && is_word(value->text, words, value->plain ? 5 : 1, &which);
}

bool nbl__yaml_boolean(const nbl__yaml *value, bool *boolean)
{
    static const char *const words[] = {"no",  "No",  "NO",  "off", "Off", "OFF", "false", "False", "FALSE",
                                        "yes", "Yes", "YES", "on",  "On",  "ON",  "true",  "True",  "TRUE"};
    int which;
    if (value->kind != NBL_YAML_SCALAR || !is_word(value->text, words, 18, &which)) return false;
    *boolean = which >= 9;
    return true;
}

/* Copies digits without the underscores between them. */
static const char *digits(const char *s, char **out)
{
    while ((*s >= '0' && *s <= '9') || (*s == '_' && s[1] >= '0' && s[1] <= '9')) {
        if (*s != '_') *(*out)++ = *s;
        s++;
    }
    return s;
}

/* True if the value is a decimal number. copy: its text without underscores. *whole: no point
 * and no exponent. A leading zero is refused, because YAML 1.1 reads such numbers as octal. */
static bool decimal(const nbl__yaml *value, char copy[64], bool *whole)
{
    const char *s = value->text;
    if (value->kind != NBL_YAML_SCALAR || strlen(s) >= 60) return false;
    char *out = copy;
    if (*s == '-' || *s == '+') *out++ = *s++;
    if (*s == '_' || (s[0] == '0' && (s[1] == '_' || (s[1] >= '0' && s[1] <= '9')))) return false;
    char *begin = out;
    s = digits(s, &out);
    int64_t count = out - begin;
    *whole = true;
    if (*s == '.') {
        *out++ = *s++;
        char *fraction = out;
        if (*s != '_') s = digits(s, &out);
        count += out - fraction;
        *whole = false;
    }
    if (count == 0) return false;
    if (*s == 'e' || *s == 'E') {
        *out++ = *s++;
        if (*s == '-' || *s == '+') *out++ = *s++;
        char *exponent = out;
        if (*s != '_') s = digits(s, &out);
        if (out == exponent) return false;
        *whole = false;
    }
    *out = 0;
    return *s == 0;
}

bool nbl__yaml_real(const nbl__yaml *value, double *number)
{
    char copy[64];
    bool whole;
    if (!decimal(value, copy, &whole)) return false;
    *number = nbl__parse_double(copy, NULL);
    return isfinite(*number);
}

/* A number with a point or exponent is an integer if its value is one, and below 2^53. The others
 * are summed as negative numbers, because -2^63 has no positive counterpart. */
bool nbl__yaml_integer(const nbl__yaml *value, int64_t *number)
{
    char copy[64];
    bool whole;
    if (!decimal(value, copy, &whole)) return false;
    if (!whole) {
        double real = nbl__parse_double(copy, NULL);
        if (!(fabs(real) < 0x1p53) || real != floor(real)) return false;
        *number = (int64_t)real;
        return true;
    }
    const char *s = copy + (*copy == '-' || *copy == '+');
    int64_t n = 0;
    for (; *s; s++)
        if (__builtin_mul_overflow(n, 10, &n) || __builtin_sub_overflow(n, *s - '0', &n)) return false;
    if (*copy != '-' && __builtin_sub_overflow(0, n, &n)) return false;
    *number = n;
    return true;
}
