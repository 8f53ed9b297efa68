/* data_split.h - parses a dataset's `split`: which rows of a file it selects. */
#ifndef NBL_DATA_SPLIT_H
#define NBL_DATA_SPLIT_H

#include "base/base.h"

/* Selects rows [*first, *last) of `count`. split: NULL or "train" for all rows, or "train[A:B]":
 *
 *     train[100:200]    rows 100 .. 199          train[:100]     the first 100 rows
 *     train[10%:20%]    by percent of count      train[-100:]    the last 100 rows
 *
 * Percentages are rounded to the nearest row, as Hugging Face datasets do. An empty selection is
 * NBL_ERROR_ARGUMENT. `where`: the file's name in messages. */
nbl_status nbl__data_split(nbl_context *ctx, const char *where, const char *split, int64_t count,
                           int64_t *first, int64_t *last);

#endif
