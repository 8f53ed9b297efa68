/* read_rows.c - finds and parses the rows of JSON lines, JSON lists and plain text. See
 * read_rows.h.
 *
 * Scanning reads every byte once. It knows just enough of a form to find the end of a row: line
 * ends, or quotes and brackets. The content of a row is checked when it is parsed. */
#include "data/read_rows.h"

#include <strings.h>

#include "base/file/hub.h"
#include "text/chars.h"

static const char *bytes(const nbl__rows *r)
{
    return (const char *)r->file.data;
}

/* Fails: the file cannot be divided into rows from this line on. */
static nbl_status broken(nbl__rows *r, int64_t line, const char *what)
{
    return nbl__fail(r->ctx, NBL_ERROR_FORMAT, "%s: line %" PRId64 ": %s", r->path, line, what);
}

/* ---- open ---- */

/* True if the path ends in `end`, in upper or lower case. */
static bool named(const char *path, const char *end)
{
    size_t n = strlen(path), m = strlen(end);
    return n > m && strcasecmp(path + n - m, end) == 0;
}

/* The offset after a UTF-8 byte order mark; 0: there is none. */
static uint64_t after_mark(const nbl__rows *r)
{
    return r->file.size >= 3 && memcmp(r->file.data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* True if the first character that is no white space is '['. */
static bool begins_with_list(const nbl__rows *r)
{
    for (uint64_t i = r->at; i < r->file.size; i++)
        if (!strchr(" \t\r\n", bytes(r)[i]) || bytes(r)[i] == '\0') return bytes(r)[i] == '[';
    return false;
}

/* Sets the form as `told`, or by the file's name. JSON is a list if it begins with '[', except
 * in .jsonl files. */
static nbl_status choose_form(nbl__rows *r, nbl__data_file told)
{
    if (told == NBL_FILE_BY_NAME) {
        told = named(r->path, ".jsonl") || named(r->path, ".ndjson") || named(r->path, ".json")
                   ? NBL_FILE_JSON
               : named(r->path, ".csv") ? NBL_FILE_CSV
               : named(r->path, ".txt") ? NBL_FILE_TEXT
                                        : NBL_FILE_BY_NAME;
        if (told == NBL_FILE_BY_NAME)
            return nbl__hint(r->ctx,
                             nbl__fail(r->ctx, NBL_ERROR_UNSUPPORTED,
                                       "%s: the form of the data is not known by the file's name", r->path),
                             "files end in .jsonl, .json, .csv or .txt, or ds_type says json, csv or text");
    }
    r->form = told == NBL_FILE_CSV ? NBL_ROWS_CSV : told == NBL_FILE_TEXT ? NBL_ROWS_TEXT : NBL_ROWS_LINES;
    if (r->form == NBL_ROWS_LINES && !named(r->path, ".jsonl") && begins_with_list(r))
        r->form = NBL_ROWS_LIST;
    return NBL_OK;
}

nbl_status nbl__rows_open(nbl_context *ctx, const char *path, nbl__data_file form, const char *text_key,
                          nbl__rows *r)
{
    *r = (nbl__rows){.ctx = ctx, .arena = nbl__arena_make(ctx), .path = path, .text_key = text_key};
    if (nbl__is_folder(path))
        return nbl__hint(ctx, nbl__fail(ctx, NBL_ERROR_IO, "%s: a folder, not a file of rows", path),
                         "data_files of the entry names files in a folder");
    NBL_TRY(nbl__hub_hint(ctx, nbl__file_map(ctx, path, &r->file), path, NBL_HUB_DATASET));
    NBL_CHECK(ctx, r->file.size > 0, NBL_ERROR_FORMAT, "%s: the file is empty", path);
    return nbl__rows_begin(r, form);
}

nbl_status nbl__rows_begin(nbl__rows *r, nbl__data_file form)
{
    r->at = after_mark(r);
    NBL_TRY(choose_form(r, form));
    return nbl__rows_rewind(r);
}

void nbl__rows_close(nbl__rows *r)
{
    nbl__file_unmap(&r->file);
    nbl__arena_free(&r->arena);
}

nbl_status nbl__rows_rewind(nbl__rows *r)
{
    nbl__row header;
    bool found;
    r->at = after_mark(r);
    r->line = 1;
    r->any = false;
    if (r->form == NBL_ROWS_CSV) {
        NBL_TRY(nbl__csv_next(r, &header, &found));
        NBL_CHECK(r->ctx, found, NBL_ERROR_FORMAT, "%s: no header row", r->path);
        return r->columns ? NBL_OK : nbl__csv_header(r, &header);
    }
    if (r->form != NBL_ROWS_LIST) return NBL_OK;
    for (; bytes(r)[r->at] != '['; r->at++) r->line += bytes(r)[r->at] == '\n';
    r->at++;
    return NBL_OK;
}

/* ---- scanning ---- */

/* The next line that is not blank. The row excludes the '\n' but not a '\r' before it. */
static nbl_status next_line(nbl__rows *r, nbl__row *row, bool *found)
{
    for (*found = false; !*found && r->at < r->file.size; r->line++) {
        const char *begin = bytes(r) + r->at, *stop = memchr(begin, '\n', r->file.size - r->at);
        uint64_t size = stop ? (uint64_t)(stop - begin) : r->file.size - r->at, blank = 0;
        r->at += size + (stop != NULL);
        while (blank < size && (begin[blank] == ' ' || begin[blank] == '\t' || begin[blank] == '\r')) blank++;
        *found = blank < size;
        *row = (nbl__row){(uint64_t)(begin - bytes(r)), size, r->line};
    }
    return NBL_OK;
}

static void skip_space(nbl__rows *r)
{
    for (; r->at < r->file.size; r->at++) {
        char c = bytes(r)[r->at];
        if (c != ' ' && c != '\t' && c != '\r' && c != '\n') return;
        r->line += c == '\n';
    }
}

/* Moves from the first byte of a list's item to the ',' or ']' after it. Counts brackets outside
 * of strings only. */
static nbl_status skip_item(nbl__rows *r)
{
    int64_t depth = 0, began = r->line;
    bool quoted = false;
    for (; r->at < r->file.size; r->at++) {
        char c = bytes(r)[r->at];
        r->line += c == '\n';
        if (quoted) {
            if (c == '\\') {
                r->at++;
                r->line += r->at < r->file.size && bytes(r)[r->at] == '\n';
            } else {
                quoted = c != '"';
            }
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
        } else if (depth == 0 && (c == ',' || c == ']')) {
            return NBL_OK;
        } else if (c == '}' || c == ']') {
            depth--;
        }
    }
    return broken(r, began, "the list has no end: the item that begins here is not closed");
}

/* The next item of a JSON list. */
static nbl_status next_item(nbl__rows *r, nbl__row *row, bool *found)
{
    *found = false;
    skip_space(r);
    if (r->at >= r->file.size) return broken(r, r->line, "the list has no end");
    char c = bytes(r)[r->at];
    if (c == ']') {
        r->at++;
        skip_space(r);
        if (r->at != r->file.size) return broken(r, r->line, "something follows the end of the list");
        r->at = r->file.size - 1; /* a further call finds the end again */
        while (bytes(r)[r->at] != ']') r->at--;
        return NBL_OK;
    }
    if (r->any) {
        if (c != ',') return broken(r, r->line, "',' or ']' was expected between the rows of the list");
        r->at++;
        skip_space(r);
    }
    *row = (nbl__row){r->at, 0, r->line};
    NBL_TRY(skip_item(r));
    row->size = r->at - row->offset;
    if (row->size == 0) return broken(r, row->line, "a row was expected between the commas of the list");
    r->any = *found = true;
    return NBL_OK;
}

nbl_status nbl__rows_next(nbl__rows *r, nbl__row *row, bool *found)
{
    switch (r->form) {
    case NBL_ROWS_LIST: NBL_TRY(next_item(r, row, found)); break;
    case NBL_ROWS_CSV: NBL_TRY(nbl__csv_next(r, row, found)); break;
    default: NBL_TRY(next_line(r, row, found));
    }
    if (*found && row->size > NBL_LARGEST_ROW) return broken(r, row->line, "a row of more than a gigabyte");
    return NBL_OK;
}

/* ---- one row ---- */

/* A line of plain text as the object {text_key: line}. */
static nbl_status parse_text(const nbl__rows *r, nbl__arena *arena, const nbl__row *row,
                             const nbl__json **object)
{
    const char *text = bytes(r) + row->offset;
    size_t size = row->size, good;
    if (size && text[size - 1] == '\r') size--;
    good = nbl__utf8_check(text, size);
    NBL_CHECK(r->ctx, good == size, NBL_ERROR_FORMAT, "%s: line %" PRId64 ", byte %zu: not UTF-8", r->path,
              row->line, good + 1);
    nbl__json *whole = nbl__arena_alloc(arena, 2 * sizeof *whole);
    char *copy = nbl__arena_alloc(arena, size + 1);
    int32_t *sorted = nbl__arena_alloc(arena, sizeof *sorted);
    if (whole == NULL || copy == NULL || sorted == NULL) return NBL_ERROR_MEMORY;
    memcpy(copy, text, size);
    whole[0] = (nbl__json){.type = NBL_JSON_OBJECT, .count = 1, .items = &whole[1], .sorted = sorted};
    whole[1] = (nbl__json){.type = NBL_JSON_STRING,
                           .count = (int64_t)size,
                           .string = copy,
                           .key = r->text_key,
                           .key_size = (uint32_t)strlen(r->text_key)};
    *object = whole;
    return NBL_OK;
}

nbl_status nbl__rows_parse(const nbl__rows *r, nbl__arena *arena, const nbl__row *row,
                           const nbl__json **object)
{
    if (r->form == NBL_ROWS_CSV) return nbl__csv_parse(r, arena, row, object);
    if (r->form == NBL_ROWS_TEXT) return parse_text(r, arena, row, object);
    return nbl__json_parse_row(arena, r->path, row->line, bytes(r) + row->offset, row->size, NBL_JSON_SERDE,
                               object);
}
