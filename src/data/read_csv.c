/* read_csv.c - CSV by RFC 4180. Fields are separated by commas. A field in quotes may contain
 * commas, line ends and doubled quotes. A row ends with LF, CRLF or CR. The first row names the
 * columns. Every value is a text. */
#include "text/chars.h"
#include "data/read_rows.h"

typedef struct scan {
    const char *at, *end;
    int64_t lines; /* line ends passed */
} scan;

/* Reads one field and stops at the comma, line end or end of file after it. Returns the size of
 * its text. out: gets the text, and must have room for all bytes read; NULL: the text is
 * skipped. *wrong: the error, or NULL. */
static size_t pass_field(scan *s, char *out, const char **wrong)
{
    size_t size = 0;
    *wrong = NULL;
    if (s->at < s->end && *s->at == '"') {
        for (s->at++;; s->at++) {
            if (s->at >= s->end) return *wrong = "a quoted field without end", size;
            if (*s->at == '"') {
                s->at++;
                if (s->at >= s->end || *s->at != '"') break;
            }
            s->lines += *s->at == '\n' || (*s->at == '\r' && (s->at + 1 == s->end || s->at[1] != '\n'));
            if (out) out[size] = *s->at;
            size++;
        }
    }
    /* An unquoted field, or text after a closing quote, which is kept as Python's csv does. */
    for (; s->at < s->end && *s->at != ',' && *s->at != '\n' && *s->at != '\r'; s->at++) {
        if (out) out[size] = *s->at;
        size++;
    }
    return size;
}

/* Skips one line end: LF, CRLF or CR. */
static void pass_line_end(scan *s)
{
    if (s->at >= s->end) return;
    if (*s->at == '\r' && s->at + 1 < s->end && s->at[1] == '\n') s->at++;
    s->at++;
    s->lines++;
}

nbl_status nbl__csv_next(nbl__rows *r, nbl__row *row, bool *found)
{
    const char *base = (const char *)r->file.data;
    scan s = {base + r->at, base + r->file.size, 0};
    while (s.at < s.end && (*s.at == '\n' || *s.at == '\r')) pass_line_end(&s); /* empty lines */
    r->line += s.lines;
    s.lines = 0;
    *found = s.at < s.end;
    *row = (nbl__row){(uint64_t)(s.at - base), 0, r->line};
    for (const char *wrong; s.at < s.end;) {
        pass_field(&s, NULL, &wrong);
        NBL_CHECK(r->ctx, wrong == NULL, NBL_ERROR_FORMAT, "%s: line %" PRId64 ": %s", r->path, row->line,
                  wrong);
        if (s.at >= s.end || *s.at != ',') break;
        s.at++;
    }
    row->size = (uint64_t)(s.at - base) - row->offset;
    pass_line_end(&s);
    r->at = (uint64_t)(s.at - base);
    r->line += s.lines;
    return NBL_OK;
}

/* Reads the fields of a row; fields[] gets at most `max`. *count: how many the row has, even if
 * more. Their texts are in one piece of the arena, each with a zero byte. */
static nbl_status read_fields(const nbl__rows *r, nbl__arena *arena, const nbl__row *row, nbl__json *fields,
                              int64_t max, int64_t *count)
{
    const char *text = (const char *)r->file.data + row->offset, *wrong;
    scan s = {text, text + row->size, 0};
    size_t good = nbl__utf8_check(text, row->size);
    NBL_CHECK(r->ctx, good == row->size, NBL_ERROR_FORMAT, "%s: line %" PRId64 ", byte %zu: not UTF-8",
              r->path, row->line, good + 1);
    char *copy = nbl__arena_alloc(arena, 2 * row->size + 2); /* fields, each terminated */
    if (copy == NULL) return NBL_ERROR_MEMORY;
    for (*count = 0;; s.at++) {
        size_t size = pass_field(&s, copy, &wrong);
        if (*count < max) {
            fields[*count].type = NBL_JSON_STRING;
            fields[*count].string = copy;
            fields[*count].count = (int64_t)size;
        }
        ++*count;
        copy += size + 1;
        if (s.at >= s.end) return NBL_OK;
    }
}

nbl_status nbl__csv_header(nbl__rows *r, const nbl__row *row)
{
    int64_t max = 1, count;
    for (uint64_t i = 0; i < row->size; i++) max += r->file.data[row->offset + i] == ',';
    r->columns = nbl__arena_alloc(&r->arena, (size_t)max * sizeof *r->columns);
    r->sorted = nbl__arena_alloc(&r->arena, (size_t)max * sizeof *r->sorted);
    if (r->columns == NULL || r->sorted == NULL) return NBL_ERROR_MEMORY;
    NBL_CHECK(r->ctx, max <= 4096, NBL_ERROR_FORMAT, "%s: line %" PRId64 ": more than 4096 columns", r->path,
              row->line);
    NBL_TRY(read_fields(r, &r->arena, row, r->columns, max, &count));
    r->column_count = count;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = i;
        nbl__json *column = &r->columns[i];
        column->key = column->string;
        column->key_size = (uint32_t)column->count;
        for (; at > 0 && strcmp(r->columns[r->sorted[at - 1]].key, column->key) > 0; at--)
            r->sorted[at] = r->sorted[at - 1];
        NBL_CHECK(r->ctx, at == 0 || strcmp(r->columns[r->sorted[at - 1]].key, column->key) != 0,
                  NBL_ERROR_FORMAT, "%s: line %" PRId64 ": the column \"%s\" is there twice", r->path,
                  row->line, column->key);
        r->sorted[at] = (int32_t)i;
    }
    return NBL_OK;
}

nbl_status nbl__csv_parse(const nbl__rows *r, nbl__arena *arena, const nbl__row *row,
                          const nbl__json **object)
{
    int64_t count;
    nbl__json *whole = nbl__arena_alloc(arena, (size_t)(r->column_count + 1) * sizeof *whole);
    if (whole == NULL) return NBL_ERROR_MEMORY;
    memcpy(whole + 1, r->columns, (size_t)r->column_count * sizeof *whole);
    NBL_TRY(read_fields(r, arena, row, whole + 1, r->column_count, &count));
    NBL_CHECK(r->ctx, count == r->column_count, NBL_ERROR_FORMAT,
              "%s: line %" PRId64 ": %" PRId64 " fields, the header has %" PRId64, r->path, row->line, count,
              r->column_count);
    whole[0] = (nbl__json){.type = NBL_JSON_OBJECT, .count = count, .items = whole + 1, .sorted = r->sorted};
    *object = whole;
    return NBL_OK;
}
