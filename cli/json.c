/* json.c - JSON values over the library's base/json; see json.h.
 *
 * A value under construction is an nbl__json whose key, text and items are blocks of malloc. The
 * items of an array or object have room for a power of two, at least 4. */
#include "json.h"

#include <math.h>
#include <stdlib.h>

#include "base/json/json_write.h"
#include "base/utf8.h"
#include "output.h"

/* ---- making ---- */

/* Returns `memory`; ends the tool if it is NULL. */
static void *need(void *memory)
{
    if (memory == NULL) cli_no_memory();
    return memory;
}

static cli_json *make(nbl__json value)
{
    cli_json *made = need(malloc(sizeof *made));
    *made = value;
    return made;
}

cli_json *cli_json_object(void)
{
    return make((nbl__json){.type = NBL_JSON_OBJECT});
}

cli_json *cli_json_array(void)
{
    return make((nbl__json){.type = NBL_JSON_ARRAY});
}

cli_json *cli_json_null(void)
{
    return make((nbl__json){.type = NBL_JSON_NULL});
}

cli_json *cli_json_boolean(bool value)
{
    return make((nbl__json){.type = value ? NBL_JSON_TRUE : NBL_JSON_FALSE});
}

cli_json *cli_json_integer(int64_t value)
{
    return make((nbl__json){.type = NBL_JSON_INTEGER, .integer = value});
}

cli_json *cli_json_unsigned(uint64_t value)
{
    return cli_json_integer(value > INT64_MAX ? INT64_MAX : (int64_t)value);
}

cli_json *cli_json_number(double value)
{
    return isfinite(value) ? make((nbl__json){.type = NBL_JSON_REAL, .real = value}) : cli_json_null();
}

/* Returns a terminated copy in a block of malloc. */
static const char *copy_of(const char *text, size_t size)
{
    char *copy = need(malloc(size + 1));
    if (size) memcpy(copy, text, size);
    copy[size] = '\0';
    return copy;
}

/* True if all of the text is UTF-8. A zero byte is a character. */
static bool is_utf8(nbl_string s)
{
    const char *at = s.text, *end = at + s.size;
    int n = 1;
    for (; at < end && n; at += n) n = nbl__utf8_length(at, end);
    return n != 0;
}

/* json.h promises UTF-8: another text is cleaned, and then ends at its first zero byte */
cli_json *cli_json_string(nbl_string s)
{
    if (!is_utf8(s)) {
        const char *copy = copy_of(s.text, s.size);
        cli_json *cleaned = cli_json_text(copy);
        free((void *)copy);
        return cleaned;
    }
    return make(
        (nbl__json){.type = NBL_JSON_STRING, .string = copy_of(s.text, s.size), .count = (int64_t)s.size});
}

cli_json *cli_json_text(const char *text)
{
    if (text == NULL) return cli_json_null();
    nbl_string whole = {text, strlen(text)};
    if (!is_utf8(whole)) text = cli_clean(text);
    return cli_json_string((nbl_string){text, strlen(text)});
}

/* Frees a value's key, text and items, but not the value itself, which may be an item. */
static void free_contents(const nbl__json *value)
{
    free((void *)value->key);
    if (value->type == NBL_JSON_STRING || value->type == NBL_JSON_DIGITS_KEPT) free((void *)value->string);
    if (value->type != NBL_JSON_ARRAY && value->type != NBL_JSON_OBJECT) return;
    for (int64_t i = 0; i < value->count; i++) free_contents(&value->items[i]);
    free(value->items);
}

void cli_json_free(cli_json *value)
{
    if (value == NULL) return;
    free_contents(value);
    free(value);
}

/* Moves a value to the end of an array or object. */
static nbl__json *append(nbl__json *to, cli_json *value)
{
    size_t count = (size_t)to->count;
    bool full = count == 0 || (count >= 4 && (count & (count - 1)) == 0);
    if (full) to->items = need(realloc(to->items, (count ? 2 * count : 4) * sizeof *to->items));
    nbl__json *item = &to->items[to->count++];
    *item = *value;
    free(value);
    return item;
}

void cli_json_set(cli_json *object, const char *key, cli_json *value)
{
    nbl__json *member = append(object, value);
    member->key_size = (uint32_t)strlen(key);
    member->key = copy_of(key, member->key_size);
}

void cli_json_add(cli_json *array, cli_json *value)
{
    (void)append(array, value);
}

void cli_json_cut(cli_json *array, int64_t count)
{
    if (array->count <= count) return;
    for (int64_t i = count; i < array->count; i++) free_contents(&array->items[i]);
    array->count = count;
}

cli_json *cli_json_copy(const cli_json *value)
{
    cli_json *copy = make(*value);
    copy->key = NULL;
    if (value->type == NBL_JSON_STRING || value->type == NBL_JSON_DIGITS_KEPT)
        copy->string = copy_of(value->string, (size_t)value->count);
    if (value->type != NBL_JSON_ARRAY && value->type != NBL_JSON_OBJECT) return copy;
    copy->items = NULL;
    copy->count = 0;
    for (int64_t i = 0; i < value->count; i++) {
        cli_json *item = cli_json_copy(&value->items[i]);
        if (value->type == NBL_JSON_OBJECT) cli_json_set(copy, value->items[i].key, item);
        else cli_json_add(copy, item);
    }
    return copy;
}

/* ---- printing ---- */

static const nbl__json_style lines = {
    .indent = "  ", .indent_size = 2, .item = {",", 1}, .key = {": ", 2}, .jansson = true};
static const nbl__json_style compact = {.item = {",", 1}, .key = {":", 1}, .jansson = true};

static nbl_status add(void *to, const char *bytes, size_t size)
{
    fwrite(bytes, 1, size, to);
    return NBL_OK;
}

static char *text_of(const cli_json *value, const nbl__json_style *style)
{
    char *text = NULL;
    size_t size;
    FILE *to = need(open_memstream(&text, &size));
    nbl__json_writer w = {.add = add, .to = to, .style = style};
    (void)nbl__json_write(&w, value);
    bool failed = ferror(to);
    if (fclose(to) != 0 || failed) cli_no_memory();
    return text;
}

static void print(cli_json *document, const nbl__json_style *style)
{
    char *text = text_of(document, style);
    cli_put_json(cli_out(), text);
    fputc('\n', cli_out());
    free(text);
    cli_json_free(document);
}

void cli_json_print(cli_json *document)
{
    print(document, &lines);
}

void cli_json_print_compact(cli_json *document)
{
    print(document, &compact);
}

char *cli_json_line(const cli_json *value)
{
    return text_of(value, &compact);
}

/* ---- reading ---- */

bool cli_json_is_array(const cli_json *value)
{
    return nbl__json_is(value, NBL_JSON_ARRAY);
}

bool cli_json_is_integer(const cli_json *value, int64_t *integer)
{
    if (!nbl__json_is(value, NBL_JSON_INTEGER)) return false;
    *integer = value->integer;
    return true;
}

bool cli_json_is_string(const cli_json *value, nbl_string *string)
{
    if (!nbl__json_is(value, NBL_JSON_STRING)) return false;
    *string = (nbl_string){value->string, (size_t)value->count};
    return true;
}

int64_t cli_json_count(const cli_json *value)
{
    return nbl__json_is(value, NBL_JSON_ARRAY) || nbl__json_is(value, NBL_JSON_OBJECT) ? value->count : 0;
}

const cli_json *cli_json_item(const cli_json *array, int64_t index)
{
    return index < cli_json_count(array) ? &array->items[index] : NULL;
}

const cli_json *cli_json_member(const cli_json *object, const char *key)
{
    return nbl__json_get(object, key);
}

static nbl_context *reader; /* memory of the documents that are read; NULL: none was read yet */

cli_json_document cli_json_read(nbl_string text)
{
    enum {
        DIALECT = NBL_JSON_ZERO_BYTES | NBL_JSON_DIGITS | NBL_JSON_REPEATED | NBL_JSON_DEEP | NBL_JSON_MANY
    };
    cli_json_document document = {0};
    nbl__json_error error;
    nbl_status status = reader ? NBL_OK : nbl_context_create(NULL, &reader);
    if (status != NBL_OK) {
        document.wrong = nbl_status_text(status);
        return document;
    }
    nbl__arena *arena = need(malloc(sizeof *arena));
    *arena = nbl__arena_make(reader);
    document.memory = arena;
    status = nbl__json_read(arena, text.text, text.size, DIALECT, &document.root, &error);
    if (status == NBL_ERROR_MEMORY) cli_no_memory();
    if (status != NBL_OK)
        document.wrong = cli_format("not valid JSON: %s (line %" PRId64 ", column %" PRId64 ")", error.what,
                                    error.line, error.column);
    return document;
}

void cli_json_forget(cli_json_document *document)
{
    if (document->memory) nbl__arena_free(document->memory);
    free(document->memory);
    *document = (cli_json_document){0};
}

void cli_json_end(void)
{
    nbl_context_destroy(reader);
    reader = NULL;
}
