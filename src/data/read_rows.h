/* read_rows.h - the rows of a data file, whatever its form: objects with named values.
 *
 *   lines   one JSON object per line (.jsonl)           list   one JSON list of objects (.json)
 *   csv     RFC 4180 with a header row (.csv)           text   one text per line (.txt)
 *
 * The file is mapped; a row is a range of its bytes, found by scanning and parsed on demand. Nothing but the
 * row at hand is held in memory. */
#ifndef NBL_READ_ROWS_H
#define NBL_READ_ROWS_H

#include "base/file/file.h"
#include "run/run_config.h"

typedef enum nbl__row_form { NBL_ROWS_LINES, NBL_ROWS_LIST, NBL_ROWS_CSV, NBL_ROWS_TEXT } nbl__row_form;

typedef struct nbl__row {
    uint64_t offset, size;
    int64_t line; /* in which it begins, from 1 */
} nbl__row;

typedef struct nbl__rows {
    nbl_context *ctx;
    nbl__arena arena;
    const char *path;
    const char *text_key; /* of text: the name its one value gets */
    nbl__file file;
    nbl__row_form form;
    /* Where scanning is: nbl__rows_next moves on, nbl__rows_rewind goes back. */
    uint64_t at;
    int64_t line;
    bool any; /* list: an item came before */
    /* csv: the header. */
    nbl__json *columns; /* key and key_size of each are set */
    int32_t *sorted;    /* columns by key */
    int64_t column_count;
} nbl__rows;

enum { NBL_LARGEST_ROW = 1 << 30 };

/* `form` by the file's name unless told. `path` and `text_key` are borrowed. Free also after a failure. */
nbl_status nbl__rows_open(nbl_context *ctx, const char *path, nbl__data_file form, const char *text_key,
                          nbl__rows *rows);
/* The part of opening after the file is mapped; ctx, arena, path, text_key and file are set. */
nbl_status nbl__rows_begin(nbl__rows *rows, nbl__data_file form);
void nbl__rows_close(nbl__rows *rows);
nbl_status nbl__rows_rewind(nbl__rows *rows);
/* The next row; *found is false at the end. Fails where the file is so damaged that what follows cannot be told
 * apart into rows. */
nbl_status nbl__rows_next(nbl__rows *rows, nbl__row *row, bool *found);
/* The row as an object; strings are valid UTF-8. A row that is not one is an NBL_ERROR_FORMAT that names file
 * and line. */
nbl_status nbl__rows_parse(const nbl__rows *rows, nbl__arena *arena, const nbl__row *row,
                           const nbl__json **object);

/* ---- csv; read_csv.c ---- */

nbl_status nbl__csv_next(nbl__rows *rows, nbl__row *row, bool *found);
nbl_status nbl__csv_header(nbl__rows *rows, const nbl__row *row);
nbl_status nbl__csv_parse(const nbl__rows *rows, nbl__arena *arena, const nbl__row *row,
                          const nbl__json **object);

#endif
