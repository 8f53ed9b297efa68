/* read_rows.h - the rows of a data file of any form, as JSON objects with named values.
 *
 *   lines   one JSON object per line (.jsonl)           list   one JSON list of objects (.json)
 *   csv     RFC 4180 with a header row (.csv)           text   one text per line (.txt)
 *
 * The file is mapped. A row is a range of its bytes: scanning finds it, parsing is done on demand.
 * Only the row being parsed takes memory.
 *
 *   nbl__rows_open → nbl__rows_next until *found is false → nbl__rows_parse of any row, in any order */
#ifndef NBL_READ_ROWS_H
#define NBL_READ_ROWS_H

#include "base/file/file.h"
#include "run/run_config.h"

typedef enum nbl__row_form { NBL_ROWS_LINES, NBL_ROWS_LIST, NBL_ROWS_CSV, NBL_ROWS_TEXT } nbl__row_form;

typedef struct nbl__row {
    uint64_t offset, size;
    int64_t line; /* the line in which the row begins, from 1 */
} nbl__row;

typedef struct nbl__rows {
    nbl_context *ctx;
    nbl__arena arena;
    const char *path;
    const char *text_key; /* text form: the key of the row's only value */
    nbl__file file;
    nbl__row_form form;
    /* State of scanning: nbl__rows_next advances it, nbl__rows_rewind resets it. */
    uint64_t at;
    int64_t line;
    bool any; /* list: an item has been read, so a comma must come next */
    /* csv: the header. */
    nbl__json *columns; /* [column_count] key and key_size are set */
    int32_t *sorted;    /* [column_count] indices of columns, sorted by key */
    int64_t column_count;
} nbl__rows;

enum { NBL_LARGEST_ROW = 1 << 30 }; /* bytes */

/* Maps the file and finds its form. form: as ds_type says, or NBL_FILE_BY_NAME. `path` and
 * `text_key` must outlive `rows`. Call nbl__rows_close also after an error. */
nbl_status nbl__rows_open(nbl_context *ctx, const char *path, nbl__data_file form, const char *text_key,
                          nbl__rows *rows);
/* The part of opening after the file is mapped. The caller has set ctx, arena, path, text_key
 * and file. */
nbl_status nbl__rows_begin(nbl__rows *rows, nbl__data_file form);
void nbl__rows_close(nbl__rows *rows);
/* Goes back to the first row. Of CSV: to the row after the header. */
nbl_status nbl__rows_rewind(nbl__rows *rows);
/* The next row; *found is false at the end. NBL_ERROR_FORMAT: the end of the row cannot be
 * found, so no further row can be either. */
nbl_status nbl__rows_next(nbl__rows *rows, nbl__row *row, bool *found);
/* Parses a row to a JSON object in the arena. All strings are valid UTF-8. A malformed row is
 * NBL_ERROR_FORMAT with file and line. */
nbl_status nbl__rows_parse(const nbl__rows *rows, nbl__arena *arena, const nbl__row *row,
                           const nbl__json **object);

/* ---- csv; read_csv.c ---- */

nbl_status nbl__csv_next(nbl__rows *rows, nbl__row *row, bool *found);
nbl_status nbl__csv_header(nbl__rows *rows, const nbl__row *row);
nbl_status nbl__csv_parse(const nbl__rows *rows, nbl__arena *arena, const nbl__row *row,
                          const nbl__json **object);

#endif
